/*
 * wal.h - a sequential log of crc-framed entries above a struct disk: what the overwrite journal is
 * written to. docs/FORMATS.md, "Journal", has the bytes.
 *
 * The log is a set of segment files "journal/LOOP.SLOT" of one size, preallocated when they are
 * made and used again and again, so that it works on a full disk and a sync moves data only. A
 * segment begins with a header (segment number, a random salt, crc; a copy at its end) and holds entries
 * one behind the other; each frame carries the number of its segment, and the salt goes into its crc, so
 * what an earlier use left behind, or what somebody stored, is never taken for an entry. Every entry
 * lies in one segment. Its owner counts what is still wanted of each segment.
 *
 * A segment that is full and of which nothing is wanted is erased before it is used again: one at a time,
 * the oldest first, each on stable storage before the next. Until then a scan finds its entries, released
 * or not. So who notes "entry E does not count any more" in a later entry T must not release T while
 * wal_oldest() <= the segment of E: then no scan finds E without T.
 *
 * Core; one thread. Callbacks come exactly once and never inside the call that asks for them.
 */
#ifndef ROZO_STORAGED_WAL_WAL_H
#define ROZO_STORAGED_WAL_WAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/env/env.h"
#include "storaged/disk/disk.h"
#include "storaged/format/wal_frame.h"

enum {
    WAL_SLOTS_MAX = 32,
    WAL_SEGMENT_MIN = 2 << 20, /* bytes; an entry with its frame fits into one */
    WAL_IOV_MAX = 2 * 128 + 2,
    WAL_QUIET_MS =
        100, /* without a sync: then it says, on stable storage, how far the last one came */
};

struct wal;

struct wal_config {
    struct env *env;        /* borrowed */
    struct disk *disk;      /* borrowed */
    unsigned loop;          /* in the names of its segments */
    unsigned n_loops;       /* loop 0 forgets the segments of loops n_loops.. */
    unsigned n_loops_max;   /* ..n_loops_max - 1 */
    uint64_t reserve_bytes; /* left to others on the disk, see disk_reserve() */
    uint64_t segment_bytes; /* WAL_SEGMENT_MIN..WAL_SEGMENT_MAX, whole pages */
    unsigned
        slots; /* at most, 2..WAL_SLOTS_MAX; four are made at start, more if needed */
};

/* One append. Embedded in its owner; everything it points at is borrowed until done. */
struct wal_append {
    uint8_t kind;            /* the owner's, not 0; stored with the entry */
    const struct iovec *iov; /* the entry; at most WAL_IOV_MAX pieces */
    unsigned n_iov;
    size_t len; /* 0..WAL_ENTRY_MAX */
    /* The first bytes of the entry, all in iov[0], tell what it is about. They have a crc of their own and lie behind
     * it once more, so that damage to the entry costs what it holds, but never what that was. */
    size_t head_len; /* 0..WAL_HEAD_MAX */
    /** rc 0: written (in the page cache: see wal_sync), at `place`. -ENOSPC: no segment is free and
     * none can be made. -EIO: nobody knows; a scan may find it. Appends end in the order they
     * were asked for. */
    void (*done)(struct wal_append *a, int rc);
    struct wal_place place;
    struct wal_append *next; /* the log's, as the rest */
    uint8_t frame_header[56];
    uint8_t frame_tail[7 + 32 + WAL_HEAD_MAX];
    struct env_task task;
    struct wal *wal;
    int rc;
};

/* Somebody waiting for stable storage. */
struct wal_wait {
    /** rc -EIO: what was appended since the last good sync may be lost; the next sync will not tell again. */
    void (*done)(struct wal_wait *w, int rc);
    uint64_t want; /* the log's, as the rest */
    struct wal_wait *next;
    struct env_task task;
    int rc;
};

/**
 * Read every segment of every loop 0..n_loops_max-1 that lies on the disk and give each entry to cb; those of last_loop come
 * behind all others: a loop that took over files notes in its own log what does not count any more. A frame that is not
 * whole is skipped when a later one in the same segment is whole; a page that cannot be read costs the frames in it.
 * done(arg, rc, result) once: 0, -EPROTONOSUPPORT (a segment of a format we do not know), what cb returned,
 * or the disk's. Before wal_start() of any loop. Returns 0 or -ENOMEM (then done does not come).
 */
int wal_scan(struct env *env, struct disk *disk, unsigned n_loops_max, unsigned last_loop,
             wal_entry_cb *cb,
             void (*done)(void *arg, int rc, const struct wal_scan_result *result),
             void *arg);
/** The same, but entries are believed whatever their crc: for tests that show what that would do. */
int wal_scan_any_crc(struct env *env, struct disk *disk, unsigned n_loops_max,
                     unsigned last_loop, wal_entry_cb *cb,
                     void (*done)(void *arg, int rc,
                                  const struct wal_scan_result *result),
                     void *arg);

/** Returns 0 or -ENOMEM; touches no disk. */
int wal_open(const struct wal_config *config, struct wal **out);
/**
 * Begin: makes what is missing of its first four free segments (preallocated), stable when done(arg, rc). Segments that
 * lie there already stay, with their entries, until wal_forget_old(): so a crash between finds them, and what
 * the owner appends again behind them. rc -ENOSPC only when there are not even two segments, used or free.
 */
void wal_start(struct wal *wal, void (*done)(void *arg, int rc), void *arg);
/**
 * Instead of appending it again: an entry that wal_scan() found in a segment of this loop counts as wanted where it lies,
 * once per call; place->file is set. Needs no space. Between the ends of wal_start() and of the last wal_forget_old()
 * asked for. -ENOENT: there is no such segment: append it again.
 */
int wal_adopt(struct wal *wal, struct wal_place *place);
/**
 * Everything that still counts was adopted, or appended again and synced, by *all* loops: the other segments of before are
 * erased, oldest first, those of loops that are not there any more by loop 0. done(arg, rc). Until then a
 * scan finds them, so nothing may be noted as not counting any more. -EIO: not all are; ask again.
 */
void wal_forget_old(struct wal *wal, void (*done)(void *arg, int rc), void *arg);
/** No more segments are made or erased, and the log says how far it was synced; done when no request is under way. All
 * appends and waits are done. */
void wal_stop(struct wal *wal, void (*done)(void *arg), void *arg);
/** After wal_stop(), a wal_start() that failed, or instead of it; also inside the callbacks of these two. NULL is fine. */
void wal_close(struct wal *wal);

/** Append; every entry whose append was done with 0 counts as wanted once. */
void wal_append(struct wal *wal, struct wal_append *a);
/** One entry less is wanted of its segment. */
void wal_release(struct wal *wal, const struct wal_place *place);
/** Everything appended before this call is on stable storage when done. One at a time is under way, shared by all who
 * asked before it began. Returns true, and no callback comes, when it is already. */
bool wal_sync(struct wal *wal, struct wal_wait *w);

/** Bytes in segments that are not free, and how many there can be (fewer while the disk is full). */
uint64_t wal_used_bytes(const struct wal *wal);
/** The same without what is still free of the segment being written. */
uint64_t wal_filled_bytes(const struct wal *wal);
uint64_t wal_max_bytes(const struct wal *wal);
/** The oldest segment that was not erased, without the one being written; 0: none. */
uint64_t wal_oldest(const struct wal *wal);
/** The oldest of those of which something is wanted; 0: none. Copy that forward to let it go. */
uint64_t wal_oldest_wanted(const struct wal *wal);
/** The segment being written; 0: none yet. */
uint64_t wal_newest(const struct wal *wal);
/** How often a sync failed or bytes may have been lost otherwise; for the verifier. */
uint64_t wal_failures(const struct wal *wal);

#endif
