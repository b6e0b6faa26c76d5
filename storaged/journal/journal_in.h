/*
 * journal_in.h - shared by the files of the journal; private to them.
 *
 * journal.c: room, commits, timer, stop. journal_notes.c: fences and drops.
 * journal_apply.c: the applier. journal_copy.c: copying forward. journal_start.c: replay.
 */
#ifndef ROZO_STORAGED_JOURNAL_JOURNAL_IN_H
#define ROZO_STORAGED_JOURNAL_JOURNAL_IN_H

#include "common/base/units.h"
#include "storaged/journal/journal.h"

enum { JOURNAL_LOOPS_MAX = 16, JOURNAL_FENCE_BUCKETS = 1024 };

struct fence {
    struct fence *hash_next;
    struct list_node link; /* in journal.fences, oldest first */
    struct file_id id;
    uint32_t epoch;
    uint64_t since_ns;
    struct journal_frame *entry; /* referenced */
};

struct drop_note {
    struct list_node link;
    struct journal_frame *entry; /* referenced */
};

enum applier_state { APPLIER_MARKS, APPLIER_RECORDS, APPLIER_SYNC };

struct apply_item {
    uint64_t block;
    uint8_t projection;
};

/* Writes the committed part of one file in place: marks, then records, then a sync. */
struct applier {
    struct list_node link; /* in journal.appliers */
    struct journal *j;
    struct pending_file *f; /* held */
    /* referenced, so that our changes are not evicted before the sync */
    struct object *obj;
    enum applier_state state;
    struct apply_item *items; /* owned; sorted by projection and block */
    unsigned n, at;
    /* ns, monotonic; when all that was committed was collected; 0: there was more */
    uint64_t all_ns;
    struct sync_wait sync;
    struct env_task task;
    int rc; /* the first error */
};

/* Appends the wanted contents of frames again, to free old segments. */
struct copier {
    struct journal *j;
    struct journal_frame *entry; /* frame being copied; held */
    uint8_t *bytes;              /* contents of entry, owned */
    uint8_t *out;                /* the new frame, owned */
    struct journal_record e;     /* header of the new frame */
    struct iovec iov;
    struct disk_req dr;
    struct wal_append append;
    unsigned n_failed; /* failed reads in a row */
};

enum start_state {
    START_SCAN,
    START_LOG,
    START_RESOLVE,
    START_COPY,
    START_DOUBT,
    START_SYNC,
    START_SAY,
    START_SAID,
    START_DONE,
};

enum copy_state {
    COPY_IDLE,
    COPY_FRAMES, /* the copier works */
    COPY_SYNCS,  /* all frames are copied; their copies become stable */
};

enum journal_stop {
    NOT_STOPPING,
    STOP_APPLIES, /* applies what is committed */
    STOP_SYNCS,   /* makes all stable, then stops the log */
};

struct journal {
    struct journal_config config;
    struct wal *wal; /* owned; NULL before it is open */
    bool wal_started;
    uint64_t failures_told; /* failures of the log that are counted in the verifier */
    uint64_t synced_number; /* frames up to this one are on stable storage */
    struct journal_index index;

    struct fence *fence_buckets[JOURNAL_FENCE_BUCKETS];
    struct list_node fences;
    unsigned n_fences;
    struct list_node drops;
    /* the doubt in force, see journal_is_doubt(); referenced; NULL: none */
    struct journal_frame *doubt;

    struct list_node appliers;
    unsigned n_appliers;
    struct list_node queue;   /* files with anything committed */
    struct list_node waiters; /* waiters for room, struct journal_waiter */
    struct env_timer timer;

    struct copier copier;
    enum copy_state copying;
    uint64_t copy_segment; /* segment being emptied */
    uint64_t copy_first;   /* segment of the first copy of this round; 0: none */
    /* segments whose copies may be lost and are copied again; 0: none */
    uint64_t redo_first, redo_last;
    /* failures of the log when the first frame in held was copied */
    uint64_t copy_failures;
    /* copied frames, until their copies are stable; owned array */
    struct journal_frame **held;
    unsigned n_held, held_max;
    struct wal_wait copy_wait;

    struct wal_scan_result *scanned; /* owned, during the start */
    uint64_t n_damaged;              /* records that cannot be read any more */
    uint64_t n_lost;                 /* lost frames of unknown contents */
    /* a sync failed during the start: old segments stay until the next start */
    bool keep_old;
    uint8_t *said; /* owned: a WAL_KIND_SYNCED entry or a doubt while it is appended */
    struct iovec said_iov;
    struct wal_append say;

    enum start_state starting;
    int start_rc;
    unsigned n_resolving;
    struct pending_file *resolved; /* last file given to the hook `resolve`; held */
    bool resolved_all;
    void (*start_done)(void *arg, int rc);
    void *start_arg;
    struct env_task serve_task;
    void (*serve_done)(void *arg);
    void *serve_arg;
    enum journal_stop stopping;
    void (*stop_done)(void *arg);
    void *stop_arg;
    struct wal_wait stop_wait;
};

static inline uint64_t journal_now(const struct journal *j)
{
    return env_now_ns(j->config.env);
}

static inline void journal_frame_init(const struct journal *j, struct journal_frame *e,
                                      uint8_t kind)
{
    e->kind = kind;
    e->failures = wal_failures(j->wal);
}

/* ---- journal.c ---- */

uint64_t journal_segment_bytes(const struct journal *j);
unsigned journal_slots(const struct journal *j);
/** Posts the tasks of all waiters. */
void journal_wake(struct journal *j);
void journal_timer_start(struct journal *j);
/** Starts the appliers that are due, and ends the stop if nothing is left. */
void journal_run(struct journal *j);
/** Queues a file of which anything is committed; it is applied when it is due. */
void journal_queue_file(struct journal *j, struct pending_file *f);

/* ---- journal_notes.c ---- */

/** Returns the link that points at the fence of a file, or at NULL. */
struct fence **journal_fence_link(struct journal *j, const struct file_id *id);
/**
 * True for the id of a doubt: a fence on file 0, which does not exist, in the log of
 * every loop. It says that a log has lost frames of unknown contents. It is kept until
 * all files here were compared with the other storages.
 */
bool journal_is_doubt(const struct file_id *id);
/** Frees old fences, and notes of drops whose targets are no longer in the log. */
void journal_notes_expire(struct journal *j);
void journal_notes_free(struct journal *j);

/* ---- journal_apply.c ---- */

void journal_appliers_start(struct journal *j);

/* ---- journal_copy.c ---- */

/**
 * Copies frames: at the start those in no segment of this loop, later those in
 * copy_segment.
 */
void journal_copy_start(struct journal *j);
/** Empties the oldest segment if that is worth it. */
void journal_copy_maybe_start(struct journal *j);
void journal_copier_free(struct copier *c);

/* ---- journal_start.c ---- */

void journal_start_step(struct journal *j);

#endif
