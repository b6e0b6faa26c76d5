/*
 * lock_table.h - the advisory locks that programs on this mount hold, over all loops.
 *
 * Kept for the day exportd does not know our session any more, and so that a close asks exportd only where
 * there is something to release. A lock that exportd says we have no more is lost: it stays noted until its
 * owner lets go of it, and hears so. Any thread; a call costs one uncontended lock.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_LOCK_TABLE_H
#define ROZO_ROZOMOUNT_SESSION_LOCK_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

/* One lock, or one to be released. Bytes [from, to). */
struct table_lock {
    uint64_t ino;
    bool flock; /* else fcntl */
    uint64_t owner;
    uint32_t pid;
    uint64_t from, to;
    unsigned mode; /* as in rozo.proto: 0 unlock, 1 read, 2 write */
    uint64_t era;  /* lock_table_era() when exportd was asked for it */
};

/* What an owner has. */
enum lock_table_bits {
    LOCK_TABLE_SOME = 1,
    LOCK_TABLE_LOST = 2,
};

struct lock_table;

/** Borrows nothing. */
void lock_table_to_wire(const struct table_lock *lock, Rozo__Lock *msg);

struct lock_table *lock_table_new(void);
void lock_table_free(struct lock_table *lock_table);
/** Another number: a list was made since. */
uint64_t lock_table_era(struct lock_table *lock_table);
/**
 * exportd did what this says. 0, or -EIO when the owner had lost some of what this unlocks. -EAGAIN: nothing
 * is noted, for a list was made since exportd was asked, and who got that may not know: ask again.
 */
int lock_table_set(struct lock_table *lock_table, const struct table_lock *lock);
/** What the owner has of this kind on the inode: bits. From now on it has nothing. */
unsigned lock_table_take(struct lock_table *lock_table, uint64_t ino, bool flock,
                         uint64_t owner);
/** The same of both kinds, and it keeps it. */
unsigned lock_table_look(struct lock_table *lock_table, uint64_t ino, uint64_t owner);
/** Has anybody lost one on the inode, and not let go of it? */
bool lock_table_is_lost(struct lock_table *lock_table, uint64_t ino);
/** All that are not lost, as an array to free(); *n its length (NULL when 0). Begins another era. */
struct table_lock *lock_table_list(struct lock_table *lock_table, size_t *n);
/** The inodes on which there are any, as an array to free(), some more than once; *n its length (NULL when 0). */
uint64_t *lock_table_inodes(struct lock_table *lock_table, size_t *n);
/** What is still held of this one is lost. False: nothing is. */
bool lock_table_lose(struct lock_table *lock_table, const struct table_lock *lock);

#endif
