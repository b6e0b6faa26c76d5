/*
 * journal_in.h - what the files of the journal share: journal.c (rooms, commits, what runs by itself, the end),
 * journal_notes.c (fences and drops), journal_apply.c (the applier), journal_copy.c
 * (copying forward), journal_start.c (replay). Nobody else includes it.
 */
#ifndef ROZO_STORAGED_JOURNAL_JOURNAL_IN_H
#define ROZO_STORAGED_JOURNAL_JOURNAL_IN_H

#include "storaged/journal/journal.h"

enum { JOURNAL_LOOPS_MAX = 16, JOURNAL_FENCE_BUCKETS = 1024 };

#define MS UINT64_C(1000000)

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

/* Brings what is committed of one file into place: marks, then records, then a sync. */
struct applier {
    struct list_node link; /* in journal.appliers */
    struct journal *j;
    struct pending_file *f; /* held */
    struct object
        *obj; /* referenced, so that what we write is not forgotten before the sync */
    enum applier_state state;
    struct apply_item *items; /* owned; sorted */
    unsigned n, at;
    uint64_t all_ns; /* when all that was committed was collected; 0: there was more */
    struct sync_wait sync;
    struct env_task task;
    int rc; /* the first failure */
};

/* Appends anew what is still wanted of some frames. */
struct copier {
    struct journal *j;
    struct journal_frame *entry; /* being copied; held */
    uint8_t *bytes;              /* of it, owned */
    uint8_t *out;                /* the new frame, owned */
    struct journal_record e;     /* what is in the new one */
    struct iovec iov;
    struct disk_req dr;
    struct wal_append append;
    unsigned n_failed; /* reads, in a row */
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

struct journal {
    struct journal_config config;
    struct wal *wal; /* owned; NULL before it is open */
    bool wal_started;
    uint64_t failures_told; /* of the log's */
    uint64_t synced_number; /* frames up to this one are on stable storage */
    struct journal_index index;

    struct fence *fence_buckets[JOURNAL_FENCE_BUCKETS];
    struct list_node fences;
    unsigned n_fences;
    struct list_node drops;
    struct journal_frame *doubt; /* referenced; NULL: none */

    struct list_node appliers;
    unsigned n_appliers;
    struct list_node queue;   /* files with something committed */
    struct list_node waiters; /* struct journal_waiter */
    struct env_timer timer;

    struct copier copier;
    bool copying;
    uint64_t copy_segment; /* being emptied */
    uint64_t copy_first; /* segment that the first copy of this round went to; 0: none */
    uint64_t redo_first,
        redo_last; /* copies in these segments may be lost, so they are copied again; 0: none */
    uint64_t copy_failures; /* of the log, when the first of those held was copied */
    struct journal_frame *
        *held; /* copied, until the copies are on stable storage; owned */
    unsigned n_held, held_max;
    struct wal_wait copy_wait;
    bool copy_syncing;

    struct wal_scan_result *scanned; /* owned, during the start */
    uint64_t n_damaged;              /* records that could not be read any more */
    uint64_t n_lost; /* frames of which nobody can tell what was in them */
    bool
        keep_old; /* a sync failed at the start: what lay there before stays until the next */
    uint8_t *said; /* owned: WAL_KIND_SYNCED, or a doubt, while it is appended */
    struct iovec said_iov;
    struct wal_append say;

    enum start_state starting;
    int start_rc;
    unsigned n_resolving;
    struct pending_file *resolved; /* the last one given to a resolver; held */
    bool resolved_all;
    void (*start_done)(void *arg, int rc);
    void *start_arg;
    struct env_task serve_task;
    void (*serve_done)(void *arg);
    void *serve_arg;
    bool stopping, is_stopped;
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
/** Begin what is due. */
void journal_run(struct journal *j);
/** Of the file something is committed: it is applied when it is due. */
void journal_queue_file(struct journal *j, struct pending_file *f);

/* ---- journal_notes.c ---- */

/** The link that points at the fence of a file, or at NULL. */
struct fence **journal_fence_link(struct journal *j, const struct file_id *id);
/**
 * A doubt is a fence around a file that nobody has, number 0, in the log of every loop: frames of some log were lost, and what
 * they held is not known. It is kept until all that lies here was compared with the other storages.
 */
bool journal_is_doubt(const struct file_id *id);
/** Fences that are old, drops of which nothing lies in the log any more. */
void journal_notes_expire(struct journal *j);
void journal_notes_free(struct journal *j);

/* ---- journal_apply.c ---- */

void journal_appliers_start(struct journal *j);

/* ---- journal_copy.c ---- */

/** Copy what is to be: at the start what lies in no segment of ours, later what j->copy_segment holds. */
void journal_copy_start(struct journal *j);
/** Empty the oldest segment, when that is worth it. */
void journal_copy_maybe_start(struct journal *j);
void journal_copier_free(struct copier *c);

/* ---- journal_start.c ---- */

void journal_start_step(struct journal *j);

#endif
