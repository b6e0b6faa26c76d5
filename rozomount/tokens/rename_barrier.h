/*
 * rename_barrier.h - delays recalls of a directory until renames under way in it are
 * answered.
 *
 * After a rename the kernel caches the new name as long as it had cached the old one,
 * whatever we answer. A recall may overtake the answer of the rename that caused it. Then
 * neither name would be among those to invalidate, and the kernel would cache the new one
 * for ever. exportd answers a rename before it waits for a recall of the same session, so
 * the delay is short.
 *
 * Any thread; a call costs one uncontended lock.
 */
#ifndef ROZO_ROZOMOUNT_TOKENS_RENAME_BARRIER_H
#define ROZO_ROZOMOUNT_TOKENS_RENAME_BARRIER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"

struct rename_barrier;

/* One rename under way. Embedded in its operation; all zero: not under way. */
struct rename_under_way {
    struct list_node link;
    uint64_t dirs[2];
    bool is_noted;
};

/* A recall that waits for renames in a directory. Embedded; in a list of the barrier
 * from rename_barrier_wait() to rename_barrier_end(). */
struct rename_waiter {
    struct list_node link;
    uint64_t dir;
};

struct rename_barrier *rename_barrier_new(void);
/**
 * Frees the barrier. No rename may be under way; waiters still belong to their owners.
 */
void rename_barrier_free(struct rename_barrier *r);

/**
 * Notes a rename from dir to dir2. Call it before the request to exportd, and
 * rename_barrier_end() after the kernel was answered.
 */
void rename_barrier_begin(struct rename_barrier *r, struct rename_under_way *u,
                          uint64_t dir, uint64_t dir2);
/** Ends a rename. Appends the waiters that may go on to `ready`. */
void rename_barrier_end(struct rename_barrier *r, struct rename_under_way *u,
                        struct list_node *ready);
/** Returns true if a rename is under way in w->dir; then w waits for it. */
bool rename_barrier_wait(struct rename_barrier *r, struct rename_waiter *w);

#endif
