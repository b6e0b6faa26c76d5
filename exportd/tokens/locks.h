/*
 * locks.h - advisory locks of one export: fcntl(2) byte ranges and flock(2).
 *
 * An owner is what the kernel of one mount calls so (a process for POSIX locks, an open file for OFD and flock),
 * together with the session of that mount. Locks of one owner never exclude each other: a new one takes the place
 * of what it covers. flock and fcntl do not see each other, as on Linux. Who waits is served in the order of
 * arrival when something is released; who need not wait never does (fcntl(2) knows no queue).
 *
 * Pure: no clock, no I/O. One thread.
 */
#ifndef ROZO_EXPORTD_TOKENS_LOCKS_H
#define ROZO_EXPORTD_TOKENS_LOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/list.h"
#include "common/base/spans.h"
#include "exportd/tokens/hash.h"

enum lock_kind { LOCK_POSIX, LOCK_FLOCK };
/* Values in spans. */
enum lock_mode { LOCK_NONE, LOCK_READ, LOCK_WRITE };

enum { LOCKS_MAX = 1 << 20 }; /* ranges of an export; beyond, -ENOLCK */

/* One lock, or the question for one. Bytes [from, to); SPAN_END: to the end of everything. */
struct lock {
    uint64_t ino;
    enum lock_kind kind;
    struct lock_holder *holder; /* the session; borrowed */
    uint64_t owner;             /* as its kernel says */
    uint32_t pid;               /* for people: F_GETLK */
    uint64_t from, to;
    enum lock_mode mode; /* NONE: release */
};

/* Someone who waits. Embedded. */
struct lock_wait {
    struct lock lock;
    /** rc 0: it has it now; -ENOLCK: no memory. Never within locks_wait() of the same. */
    void (*granted)(struct lock_wait *wait, int rc);
    /* -- the table's -- */
    struct list_node link;        /* in inode->waits, then in locks->granted */
    struct list_node holder_link; /* in holder->waits */
    struct list_node search_link;
    uint64_t search; /* the last search for a deadlock that has seen it */
    int rc;
};

/* A session. Embedded; lock_holder_init(). */
struct lock_holder {
    struct list_node owned; /* struct lock_owner of all inodes */
    struct list_node waits;
};

struct locks {
    struct lock_inode *inodes; /* owned; those with locks or waits */
    struct list_node granted;  /* about to be told */
    size_t n_ranges;
    uint64_t n_searches; /* of deadlocks: marks who was seen */
    bool telling;
};

void locks_init(struct locks *l);
/** Nobody may wait. */
void locks_free(struct locks *l);
void lock_holder_init(struct lock_holder *holder);

/** Take, change or release. 0; -EAGAIN: in conflict with another owner; -ENOLCK: too many, or no memory. */
int locks_set(struct locks *l, const struct lock *lock);
/**
 * The same, but wait. 0: it has it. -EINPROGRESS: `granted` comes, or locks_cancel(). -EDEADLK: somebody it
 * would wait for waits for its owner (fcntl only).
 */
int locks_wait(struct locks *l, struct lock_wait *wait);
/** It is not wanted any more; not after `granted`. */
void locks_cancel(struct locks *l, struct lock_wait *wait);
/** Who is in the way of this lock? *out: the first conflicting range. false: nobody. */
bool locks_test(const struct locks *l, const struct lock *lock, struct lock *out);
/** All locks of this kind of an owner on this inode go. */
void locks_drop(struct locks *l, uint64_t ino, enum lock_kind kind,
                struct lock_holder *holder, uint64_t owner);
/** The session is gone. It must not be waiting for anything. */
void lock_holder_end(struct locks *l, struct lock_holder *holder);

#endif
