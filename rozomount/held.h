/*
 * held.h - the advisory locks that programs on this mount hold, over all loops.
 *
 * Kept for the day exportd does not know our session any more, and so that a close asks exportd only where
 * there is something to release. Any thread; a call costs one uncontended lock.
 */
#ifndef ROZO_HELD_H
#define ROZO_HELD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

/* One lock, or one to be released. Bytes [from, to). */
struct held_lock {
    uint64_t ino;
    bool flock; /* else fcntl */
    uint64_t owner;
    uint32_t pid;
    uint64_t from, to;
    unsigned mode; /* as in rozo.proto: 0 unlock, 1 read, 2 write */
};

struct held;

/** Borrows nothing. */
void held_to_wire(const struct held_lock *lock, Rozo__Lock *msg);

struct held *held_new(void);
void held_free(struct held *held);
/** exportd did what this says. */
void held_set(struct held *held, const struct held_lock *lock);
/** Does the owner hold anything of this kind on the inode? From now on it does not. */
bool held_take(struct held *held, uint64_t ino, bool flock, uint64_t owner);
/** All of them, as an array to free(); *n its length (NULL when 0). */
struct held_lock *held_list(struct held *held, size_t *n);

#endif
