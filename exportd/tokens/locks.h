/*
 * locks.h - advisory locks of one export: fcntl(2) byte ranges and flock(2).
 *
 * An owner is a session together with the owner that the mount's kernel names: a process
 * for POSIX locks, an open file for OFD and flock. Locks of one owner never exclude each
 * other: a new lock replaces what it covers. flock and fcntl locks do not see each other,
 * as on Linux. When a lock is released, waiters are served in the order of arrival. A
 * lock that is free is granted at once, even if others wait (fcntl(2) has no queue).
 *
 * Pure: no clock, no I/O. One thread.
 */
#ifndef ROZO_EXPORTD_TOKENS_LOCKS_H
#define ROZO_EXPORTD_TOKENS_LOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/hash.h"
#include "common/base/list.h"
#include "common/base/range_map.h"

enum lock_kind { LOCK_POSIX, LOCK_FLOCK };
/* Modes; values in spans. */
enum lock_mode { LOCK_NONE, LOCK_READ, LOCK_WRITE };

enum { LOCKS_MAX = 1 << 20 }; /* ranges of an export; beyond that -ENOLCK */

/*
 * Lock, or request for one. Bytes [from, to); SPAN_END: to the end of the file, however
 * long.
 */
struct lock {
    uint64_t ino;
    enum lock_kind kind;
    struct lock_holder *holder; /* session; borrowed */
    uint64_t owner;             /* as the kernel of the mount names it */
    uint32_t pid;               /* only reported, by F_GETLK */
    uint64_t from, to;
    enum lock_mode mode; /* NONE: release */
};

/* Waiter for a lock. Embedded. */
struct lock_wait {
    struct lock lock;
    /**
     * Called once, never inside locks_wait(). rc 0: the lock is held; -ENOLCK: no memory.
     */
    void (*granted)(struct lock_wait *wait, int rc);
    /* -- used by the table -- */
    struct list_node link;        /* in inode->waits, then in locks->granted */
    struct list_node holder_link; /* in holder->waits */
    struct list_node search_link;
    uint64_t search; /* newest search for a deadlock that has visited this waiter */
    int rc;
};

/* Session as the holder of locks. Embedded; lock_holder_init(). */
struct lock_holder {
    struct list_node owned; /* struct lock_owner, all inodes */
    struct list_node waits;
};

struct locks {
    struct lock_inode *inodes; /* owned; inodes with locks or waiters */
    struct list_node granted;  /* waiters whose callback is due */
    size_t n_ranges;
    uint64_t n_searches; /* searches for deadlocks; the number marks visited waiters */
    bool notifying;
};

void locks_init(struct locks *l);
/** Frees the table. No waiter may be left. */
void locks_free(struct locks *l);
void lock_holder_init(struct lock_holder *holder);

/**
 * Takes, changes or releases a lock. Returns 0; -EAGAIN: another owner's lock conflicts;
 * -ENOLCK: too many ranges, or no memory.
 */
int locks_set(struct locks *l, const struct lock *lock);
/**
 * Takes a lock, or waits for it. Returns 0: the lock is held; -EINPROGRESS: `granted`
 * will be called unless locks_cancel() is; -EDEADLK: an owner in the way already waits
 * for this one (fcntl only); -ENOLCK.
 */
int locks_wait(struct locks *l, struct lock_wait *wait);
/** Cancels a wait. Not allowed after `granted`. */
void locks_cancel(struct locks *l, struct lock_wait *wait);
/** Returns true if another owner's lock conflicts. *out: the first conflicting range. */
bool locks_test(const struct locks *l, const struct lock *lock, struct lock *out);
/**
 * Returns true if other sessions have locks of this kind on the inode, or wait for them.
 */
bool locks_are_of_others(const struct locks *l, uint64_t ino, enum lock_kind kind,
                         const struct lock_holder *holder);
/** Releases all locks of one kind that an owner has on an inode. */
void locks_drop(struct locks *l, uint64_t ino, enum lock_kind kind,
                struct lock_holder *holder, uint64_t owner);
/** Calls fn for each range that the holder has locked. */
void lock_holder_each(struct lock_holder *holder,
                      void (*fn)(void *arg, const struct lock *lock), void *arg);
/** Releases all locks of a session that ended. It must not be waiting. */
void lock_holder_end(struct locks *l, struct lock_holder *holder);

#endif
