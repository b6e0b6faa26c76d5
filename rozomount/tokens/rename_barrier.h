/*
 * rename_barrier.h - recalls of directories wait for the renames that are under way in them.
 *
 * The kernel believes the new name as long as it believed the old one, whatever we answer. A recall may overtake the answer of the rename
 * that it is about: then neither name would be among those to drop, and the new one believed for ever. exportd answers a
 * rename before it waits for what the same session is asked for, so nobody waits for long.
 *
 * Any thread; a call costs one uncontended lock.
 */
#ifndef ROZO_ROZOMOUNT_TOKENS_RENAME_BARRIER_H
#define ROZO_ROZOMOUNT_TOKENS_RENAME_BARRIER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"

struct rename_barrier;

/* One under way. Embedded; zeroed: it is not. */
struct rename_under_way {
    struct list_node link;
    uint64_t dirs[2];
    bool is_noted;
};

/* Who waits for renames in a directory. Embedded; the list's from rename_barrier_wait() to rename_barrier_end(). */
struct rename_waiter {
    struct list_node link;
    uint64_t dir;
};

struct rename_barrier *rename_barrier_new(void);
/** No rename may be under way; who waits is left to its owner. */
void rename_barrier_free(struct rename_barrier *r);

/** From before exportd is asked until the kernel is answered. */
void rename_barrier_begin(struct rename_barrier *r, struct rename_under_way *u,
                          uint64_t dir, uint64_t dir2);
/** Who need not wait any more is appended to `ready`. */
void rename_barrier_end(struct rename_barrier *r, struct rename_under_way *u,
                        struct list_node *ready);
/** Must it wait? Then it does. */
bool rename_barrier_wait(struct rename_barrier *r, struct rename_waiter *w);

#endif
