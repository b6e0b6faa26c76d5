/*
 * wal.h - the write-ahead log: crc-framed entries, one behind the other, above a struct
 * disk.
 *
 * The overwrite journal is written to it. docs/FORMATS.md, "Journal", has the bytes.
 *
 * The log is a set of segment files "journal/LOOP.SLOT" of one size. They are
 * preallocated and reused, so the log works on a full disk, and a sync writes data only.
 * A segment begins with a header (segment number, random salt, crc; a copy at its end).
 * Each frame carries the number of its segment, and the salt is part of its crc, so bytes
 * of an earlier use or bytes that a user stored are never taken for an entry. Every entry
 * lies in one segment. The log counts the entries of each segment that its owner still
 * wants.
 *
 * A full segment with no wanted entry is erased before it is used again: one at a time,
 * oldest first, each stable before the next. Until then a scan finds its entries,
 * released or not. So an owner that notes "entry E does not count any more" in a later
 * entry T must not release T while wal_oldest() <= the segment of E: then no scan finds E
 * without T.
 *
 * Core; one thread. Callbacks come exactly once and never inside the call that asks for
 * them.
 */
#ifndef ROZO_COMMON_WAL_WAL_H
#define ROZO_COMMON_WAL_WAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/env/disk.h"
#include "common/env/env.h"
#include "common/wal/wal_frame.h"

enum {
    WAL_SLOTS_MAX = 32,
    WAL_SEGMENT_MIN = 2 << 20, /* bytes; one entry with its frame fits */
    WAL_IOV_MAX = 2 * 128 + 2,
    /* ms without a sync, after which the log notes, on stable storage, how far the
     * last one came */
    WAL_QUIET_MS = 100,
};

struct wal;

struct wal_config {
    struct env *env;        /* borrowed */
    struct disk *disk;      /* borrowed */
    unsigned loop;          /* number in the names of its segments */
    unsigned n_loops;       /* loop 0 erases the segments of loops n_loops.. */
    unsigned n_loops_max;   /* ..n_loops_max - 1 */
    uint64_t reserve_bytes; /* bytes left free on the disk, see disk_reserve() */
    uint64_t segment_bytes; /* bytes, WAL_SEGMENT_MIN..WAL_SEGMENT_MAX, whole pages */
    /* segments at most, 2..WAL_SLOTS_MAX; four are made at start, more if needed */
    unsigned slots;
    /* a segment is erased only after all older ones: what a scan finds has lost nothing
     * but its oldest part, whatever is released first. And a segment begins only when all
     * frames before it are stable: see wal_place.is_behind_gap */
    bool in_order;
};

/* One append, embedded in its owner; all that it points at is borrowed until done. */
struct wal_append {
    uint8_t kind;            /* chosen by the owner, not 0; stored with the entry */
    const struct iovec *iov; /* bytes of the entry; at most WAL_IOV_MAX pieces */
    unsigned n_iov;
    size_t len; /* 0..WAL_ENTRY_MAX */
    /*
     * Length of the entry's head: its first bytes, all in iov[0], which say what it is
     * about. The head has its own crc, and a copy behind the entry, so that damage to the
     * entry costs its contents but not its subject.
     */
    size_t head_len; /* 0..WAL_HEAD_MAX */
    /**
     * Called with rc 0: written, at `place` (only to the page cache: see wal_sync).
     * -ENOSPC: no segment is free and none can be made. -EIO: unknown; a scan may find
     * the entry. Appends end in the order in which they were submitted.
     */
    void (*done)(struct wal_append *a, int rc);
    struct wal_place place;
    struct wal_append *next; /* private to the log, as the rest */
    uint8_t frame_header[56];
    uint8_t frame_tail[7 + 32 + WAL_HEAD_MAX];
    struct env_task task;
    struct wal *wal;
    int rc;
};

/* One wait for stable storage. */
struct wal_wait {
    /**
     * Called with rc -EIO if anything appended since the last good sync may be lost; the
     * next sync does not report that again.
     */
    void (*done)(struct wal_wait *w, int rc);
    uint64_t want; /* private to the log, as the rest */
    struct wal_wait *next;
    struct env_task task;
    int rc;
};

/**
 * Reads every segment of the loops 0..n_loops_max-1 and gives each entry to cb; those of
 * last_loop come last, since a loop that took over files notes in its own log which
 * entries do not count any more. An incomplete frame is skipped if a later one in its
 * segment is complete; an unreadable page costs the frames in it. done(arg, rc, result)
 * comes once: 0, -ROZO_EUNKNOWN_FORMAT (a segment of an unknown format), the result of
 * cb, or an error of the disk. Call it before any wal_start(). Returns 0 or -ENOMEM
 * (then done does not come).
 */
int wal_scan(struct env *env, struct disk *disk, unsigned n_loops_max, unsigned last_loop,
             wal_entry_cb *cb,
             void (*done)(void *arg, int rc, const struct wal_scan_result *result),
             void *arg);
/**
 * Scans like wal_scan() but accepts wrong crcs: for tests which show that crcs are
 * needed.
 */
int wal_scan_any_crc(struct env *env, struct disk *disk, unsigned n_loops_max,
                     unsigned last_loop, wal_entry_cb *cb,
                     void (*done)(void *arg, int rc,
                                  const struct wal_scan_result *result),
                     void *arg);

/** Makes a log in memory; touches no disk. Returns 0 or -ENOMEM. */
int wal_open(const struct wal_config *config, struct wal **out);
/**
 * Starts the log: makes the missing ones of its first four free segments; they are stable
 * when done(arg, rc) comes. Existing segments stay, with their entries, until
 * wal_forget_old(), so a crash before that finds them and the entries that the owner
 * appends again. rc -ENOSPC only if there are not even two segments, used or free.
 */
void wal_start(struct wal *wal, void (*done)(void *arg, int rc), void *arg);
/**
 * Counts an entry that wal_scan() found in a segment of this loop as wanted where it
 * lies, once per call, and sets place->file. This takes no space, unlike appending it
 * again. Call it after wal_start() has ended and before the last wal_forget_old() ends.
 * Returns -ENOENT if there is no such segment: append the entry again.
 */
int wal_adopt(struct wal *wal, struct wal_place *place);
/**
 * Erases the segments of the previous run in which nothing was adopted, oldest first
 * (in_order: those that no older one holds up);
 * loop 0 also erases those of loops that no longer exist. Call it when *all* loops have
 * adopted, or appended again and synced, every entry that still counts. Until done(arg,
 * rc) a scan finds the old entries, so do not note before that that any of them does not
 * count. rc -EIO: some are not erased; call it again.
 */
void wal_forget_old(struct wal *wal, void (*done)(void *arg, int rc), void *arg);
/**
 * Stops making and erasing segments, and notes how far the log is stable. done comes when
 * no request is under way. All appends and waits must have ended.
 */
void wal_stop(struct wal *wal, void (*done)(void *arg), void *arg);
/**
 * Frees the log: after wal_stop() or a failed wal_start(), or instead of them; also
 * inside their callbacks. NULL is fine.
 */
void wal_close(struct wal *wal);

/** Appends an entry. When done comes with rc 0 the entry counts as wanted once. */
void wal_append(struct wal *wal, struct wal_append *a);
/** Counts one wanted entry less in its segment. */
void wal_release(struct wal *wal, const struct wal_place *place);
/**
 * Makes everything appended before this call stable, then calls w->done. One sync at a
 * time runs, shared by all callers that came before it began. Returns true, without a
 * callback, if all is stable already.
 */
bool wal_sync(struct wal *wal, struct wal_wait *w);

/**
 * Returns the bytes in segments that are not free. wal_max_bytes() returns how many there
 * can be (fewer while the disk is full).
 */
uint64_t wal_used_bytes(const struct wal *wal);
/** Returns wal_used_bytes() without the free rest of the segment being written. */
uint64_t wal_filled_bytes(const struct wal *wal);
uint64_t wal_max_bytes(const struct wal *wal);
/** Returns the oldest segment not erased, except the one being written; 0: none. */
uint64_t wal_oldest(const struct wal *wal);
/**
 * Returns the oldest segment with a wanted entry; 0: none. Copying its entries forward
 * frees it.
 */
uint64_t wal_oldest_wanted(const struct wal *wal);
/** Returns the segment being written; 0: none yet. */
uint64_t wal_newest(const struct wal *wal);
/**
 * Returns how often a sync failed or bytes may have been lost otherwise; part of the
 * verifier.
 */
uint64_t wal_failures(const struct wal *wal);

#endif
