/*
 * log.h - a sequential log of crc-framed entries above a struct disk: what the overwrite journal is
 * written to. docs/FORMATS.md, "Journal", has the bytes.
 *
 * The log is a ring of segment files "journal/LOOP.SLOT" of one size, preallocated when they are
 * made and used again and again, so that it works on a full disk and a sync moves data only. A
 * segment begins with a header (log id, segment number, crc) and holds entries one behind the other; each
 * frame carries the number of its segment, so what an earlier use left behind is never taken for an entry.
 * Every entry lies in one segment. Its owner counts what is still wanted of each segment; one of which
 * nothing is wanted can be used again.
 *
 * Core; one thread. Callbacks come exactly once and never inside the call that asks for them.
 */
#ifndef ROZO_STORAGED_LOG_H
#define ROZO_STORAGED_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/env.h"
#include "storaged/core/disk.h"

enum {
    LOG_FORMAT = 1,
    LOG_SLOTS_MAX = 256,
    LOG_SEGMENT_MIN = 2 << 20,  /* bytes; an entry with its frame fits into one */
    LOG_ENTRY_MAX = 1280 << 10, /* bytes of one entry without its frame */
    LOG_IOV_MAX = 2 * 128 + 2,
};

struct log;

struct log_config {
    struct env *env;        /* borrowed */
    struct disk *disk;      /* borrowed */
    unsigned loop;          /* in the names of its segments */
    uint64_t segment_bytes; /* LOG_SEGMENT_MIN..; all segments of this log */
    unsigned
        slots; /* 2..LOG_SLOTS_MAX segments at most; two are made at open, more when needed */
};

/* Where an entry lies. Segment numbers grow for ever; one is never used twice in a log. */
struct log_place {
    uint64_t segment; /* 0: nowhere */
    uint64_t
        offset; /* of the entry itself, behind its frame header, in its segment's file */
    uint32_t len; /* bytes of the entry */
    struct disk_file
        *file; /* borrowed: good for reads and disk_fd() while the segment is wanted */
};

/* One append. Embedded in its owner; everything it points at is borrowed until done. */
struct log_append {
    uint8_t kind;            /* the owner's, not 0; stored with the entry */
    const struct iovec *iov; /* the entry; at most LOG_IOV_MAX pieces */
    unsigned n_iov;
    size_t len;
    /** rc 0: written (in the page cache: see log_sync), at `place`. -ENOSPC: no segment is free and
     * none can be made. -EIO: nobody knows; nothing of it will be found by a scan. Appends end in the order they
     * were asked for. */
    void (*done)(struct log_append *a, int rc);
    struct log_place place;
    struct log_append *next;             /* the log's */
    struct disk_req dr;                  /* the log's */
    struct iovec frame[LOG_IOV_MAX + 1]; /* the log's */
    uint8_t frame_header[32];            /* the log's */
    struct env_task task;                /* the log's */
    int rc;                              /* the log's */
};

/* Somebody waiting for stable storage. */
struct log_wait {
    void (*done)(
        struct log_wait *w,
        int rc);   /* rc -EIO: what was appended since the last good sync may be lost */
    uint64_t want; /* the log's, as the rest */
    struct log_wait *next;
    struct env_task task;
    int rc;
};

/**
 * An entry found by a scan, in the order it was appended (within one loop's log). data: the entry, `len` bytes,
 * valid inside the call. Return 0 to go on, -errno to give up with it.
 */
typedef int log_entry_cb(void *arg, unsigned loop, uint8_t kind,
                         const struct log_place *place, const uint8_t *data, size_t len);

/* What a scan saw beside entries. */
struct log_scan_result {
    uint64_t n_entries;
    uint64_t
        n_torn; /* segments that end in a frame that is not whole: usual after a crash */
    uint64_t
        n_damaged; /* frames in the middle that cannot be believed, though later ones can: bytes were lost */
};

/**
 * Read every segment of every loop 0..n_loops_max-1 that lies on the disk and give each entry to cb. A frame that is not
 * whole is skipped when a later one in the same segment is whole. Segments of a format we do not know: -EPROTONOSUPPORT.
 * done(arg, rc) once. Before log_open() of any loop.
 */
void log_scan(struct env *env, struct disk *disk, unsigned n_loops_max, log_entry_cb *cb,
              void (*done)(void *arg, int rc, const struct log_scan_result *result),
              void *arg);

/**
 * Begin a log: makes what is missing of its first two free segments (preallocated), stable when done(arg, rc). Segments that
 * lie there already (numbers, for each loop, are taken from their headers) count as wanted, with their
 * entries, until log_forget_old(): so a crash between finds them, and what the owner appends again first, both.
 */
int log_open(const struct log_config *config, struct log **out);
void log_start(struct log *log, void (*done)(void *arg, int rc), void *arg);
/**
 * Between log_start() and log_forget_old(): an entry that log_scan() found in a segment of this loop counts as
 * wanted, once, where it lies; it need not be appended again. place->file is set. -ENOENT: the segment is not
 * one of this log's, which then has to be given the entry anew.
 */
int log_adopt(struct log *log, struct log_place *place);
/** Everything that still counts was adopted, or appended again and synced, by all loops: the segments of before are
 * free where nothing was adopted. Also those of loops that are not there any more are removed by loop 0. done(arg, rc). */
void log_forget_old(struct log *log, void (*done)(void *arg, int rc), void *arg);
/** Nothing under way. NULL is fine. */
void log_close(struct log *log);

/** Append; every entry whose append was done with 0 counts as wanted once. */
void log_append(struct log *log, struct log_append *a);
/** One entry less is wanted of its segment. */
void log_release(struct log *log, const struct log_place *place);
/** Everything appended before this call is on stable storage when done. One at a time is under way, shared by all who
 * asked before it began. Returns true, and no callback comes, when it is already. */
bool log_sync(struct log *log, struct log_wait *w);

/** Bytes in segments that are wanted or being written, and how many there can be. */
uint64_t log_used_bytes(const struct log *log);
uint64_t log_max_bytes(const struct log *log);
/** The oldest segment of which something is wanted, without the one being written; 0: none. */
uint64_t log_oldest(const struct log *log);
/** How often a sync failed or bytes may have been lost otherwise; for the verifier. */
uint64_t log_failures(const struct log *log);

#endif
