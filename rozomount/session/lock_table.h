/*
 * lock_table.h - advisory locks that programs on this mount hold, over all loops.
 *
 * Needed when exportd no longer knows our session: it is then reopened with this list.
 * Also saves requests: a close asks exportd only if there is a lock to release. A lock
 * that exportd has ended is lost: it stays in the table until its owner releases it,
 * which fails. Any thread; a call costs one uncontended lock.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_LOCK_TABLE_H
#define ROZO_ROZOMOUNT_SESSION_LOCK_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

/* A lock or an unlock of bytes [from, to). */
struct table_lock {
    uint64_t ino;
    bool flock; /* false: fcntl */
    uint64_t owner;
    uint32_t pid;
    uint64_t from, to;
    unsigned mode; /* as in rozo.proto: 0 unlock, 1 read, 2 write */
    uint64_t era;  /* lock_table_era() at the time of the request to exportd */
};

/* Kinds of locks that an owner has. */
enum lock_table_bits {
    LOCK_TABLE_SOME = 1,
    LOCK_TABLE_LOST = 2,
};

struct lock_table;

/** Fills a message; it points at nothing in lock. */
void lock_table_to_wire(const struct table_lock *lock, Rozo__Lock *msg);

struct lock_table *lock_table_new(void);
void lock_table_free(struct lock_table *lock_table);
/** Returns a number that changes when lock_table_list() is called. */
uint64_t lock_table_era(struct lock_table *lock_table);
/**
 * Notes a lock or unlock that exportd has done. Returns 0, or -EIO if the owner had lost
 * a lock in the range. Returns -EAGAIN and notes nothing if a list was made since the
 * request: that list may lack this lock, so the request must be sent again.
 */
int lock_table_set(struct lock_table *lock_table, const struct table_lock *lock);
/**
 * Notes that exportd is asked for this unlock. From then on the range is not listed, as
 * another mount may hold it before the answer comes; lock_table_set() removes it.
 */
void lock_table_release(struct lock_table *lock_table, const struct table_lock *unlock);
/**
 * Notes that exportd is asked for this READ lock, if its owner holds the whole range and
 * a part of it to write. From then on the range is listed as READ, as another mount may
 * read before the answer comes. exportd does not refuse such a request. If it fails all
 * the same, the caller calls lock_table_lose(). Returns false and notes nothing in all
 * other cases.
 */
bool lock_table_weaken(struct lock_table *lock_table, const struct table_lock *lock);
/**
 * Removes all locks of one kind that the owner has on the inode. Returns LOCK_TABLE_*
 * bits.
 */
unsigned lock_table_take(struct lock_table *lock_table, uint64_t ino, bool flock,
                         uint64_t owner);
/**
 * Returns LOCK_TABLE_* bits of the locks of both kinds that the owner has on the inode.
 */
unsigned lock_table_look(struct lock_table *lock_table, uint64_t ino, uint64_t owner);
/** Returns true if an owner has lost a lock on the inode and not released it yet. */
bool lock_table_is_lost(struct lock_table *lock_table, uint64_t ino);
/**
 * Notes that a call of this mount may change fcntl locks of the inode, until
 * lock_table_call_ends(): what exportd has may differ from the table meanwhile.
 */
void lock_table_call_begins(struct lock_table *lock_table, uint64_t ino);
void lock_table_call_ends(struct lock_table *lock_table, uint64_t ino);
/**
 * Returns true if a program on this mount has an fcntl lock of the inode, or such a call
 * is under way.
 */
bool lock_table_is_busy(struct lock_table *lock_table, uint64_t ino);
/**
 * Returns all locks that are neither lost nor being released, as an array that the
 * caller frees; *n is its length (NULL if 0). Begins a new era.
 */
struct table_lock *lock_table_list(struct lock_table *lock_table, size_t *n);
/**
 * Returns the inodes with locks, one entry per owner, as an array that the caller frees;
 * *n is its length (NULL if 0).
 */
uint64_t *lock_table_inodes(struct lock_table *lock_table, size_t *n);
/** Marks what is still held of this range as lost. Returns false if nothing is. */
bool lock_table_lose(struct lock_table *lock_table, const struct table_lock *lock);

#endif
