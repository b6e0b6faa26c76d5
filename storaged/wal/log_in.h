/*
 * log_in.h - what the files of the log share: log.c (what there is, appends), log_sync.c (syncs), log_job.c (segments made and
 * erased, who waits for that), log_start.c (what lies there from before). Nobody else includes it.
 */
#ifndef ROZO_STORAGED_WAL_LOG_IN_H
#define ROZO_STORAGED_WAL_LOG_IN_H

#include "storaged/wal/log.h"
#include "storaged/wal/log_list.h"

enum {
    LOG_FRAMES_IOV_MAX = 2 * LOG_IOV_MAX, /* of one write */
    LOG_FRAMES_BYTES_MAX = 1 << 20,       /* of one write, or of one frame */
};

enum slot_state {
    SLOT_NONE,    /* not open; there may be a file, erased or never used */
    SLOT_FREE,    /* can be begun */
    SLOT_OLD,     /* of before, until log_forget_old() */
    SLOT_CURRENT, /* being written */
    SLOT_FULL,    /* something of it is wanted */
    SLOT_DEAD,    /* nothing is; to be erased */
};

struct slot {
    enum slot_state state;
    bool has_file;
    bool is_dirty;          /* written since the last sync began */
    bool is_in_round;       /* the sync under way covers it, still to be done */
    bool is_odd;            /* of another size: removed when it is dead */
    struct disk_file *file; /* owned, except NONE */
    struct segment_header h;
    uint64_t wanted; /* entries, and one for the append under way */
};

enum job_kind { JOB_NONE, JOB_MAKE, JOB_ERASE, JOB_REMOVE };
enum job_state {
    MAKE_SPACE,
    MAKE_OPEN,
    MAKE_CUT,
    MAKE_RESERVE,
    MAKE_FILL,
    MAKE_CLEAR_FRONT,
    MAKE_CLEAR_BACK,
    MAKE_SYNC,
    MAKE_SYNC_NAME,
    ERASE_FRONT,
    ERASE_BACK,
    ERASE_SYNC,
    JOB_UNLINK,
    JOB_DONE,
};

/* A segment being made or erased. Changes state in job_step() only. */
struct job {
    enum job_kind kind;
    enum job_state state;
    struct slot *slot;
    bool is_new; /* made by us: removed again when it cannot be finished */
    int rc;      /* what it failed with */
    uint64_t fill_at;
    char path[LOG_PATH_MAX];
    struct iovec iov;
    struct disk_req dr;
};

/* Segments of loops that are not there any more. */
struct leftovers {
    struct log_list list;
    unsigned index;
    bool unwritten; /* the header of this one could not be erased */
    char path[LOG_PATH_MAX];
    struct iovec iov;
    struct disk_req dr;
};

struct log {
    struct log_config config;
    struct slot slots[LOG_FILES_MAX];
    unsigned n_in_state[SLOT_DEAD + 1]; /* slots */
    uint64_t used_bytes;                /* of those that are not free */
    uint64_t next_number;

    struct slot *current; /* NULL: none */
    uint64_t end;         /* of its last frame */
    uint32_t sequence;    /* of its next frame */
    bool is_current_bad;  /* a write or sync failed: go on in another one */
    struct log_append *first, **last;
    bool is_writing;    /* frames or headers */
    unsigned n_writing; /* appends, the first ones, whose frames are being written */
    uint64_t n_writing_bytes;
    struct iovec frames[LOG_FRAMES_IOV_MAX + 1]; /* and zeros to the end of the page */
    struct slot *begun;                          /* whose headers are being written */
    uint8_t header[SEGMENT_HEADER_BYTES];
    struct iovec header_iov[2];
    struct disk_req dr;

    uint64_t n_asked, n_done; /* appends */
    uint64_t n_synced;        /* of n_done */
    uint64_t since;           /* the first segment of this life; 0: none yet */
    struct frame_says
        sync_says; /* where the sync under way comes to, as frames will say then */
    struct frame_says synced; /* where the last good one came to */
    /* What the log says of itself, counted in appends: entries up to n_entries were written and up to n_entries_synced are
     * on stable storage; frames that were written say so of n_said, those of them that are on stable storage of n_told. */
    uint64_t n_entries, n_entries_synced, sync_entries;
    uint64_t n_said, n_told, n_saying, sync_said;
    struct env_timer quiet;
    bool is_saying; /* the append, or the sync behind it */
    struct log_append say;
    struct log_wait say_wait;
    struct log_wait *first_wait, **last_wait;
    bool is_syncing;
    uint64_t sync_upto;
    int sync_rc;
    struct disk_req sync_dr;
    uint64_t failures;

    struct job job;
    struct env_timer retry;
    uint64_t make_retry_ns, erase_retry_ns; /* not before */
    int make_rc;                            /* of the last segment that was made */

    bool is_starting, is_listing, is_forgetting, is_stopping;
    int forget_rc;
    void (*start_done)(void *arg, int rc);
    void *start_arg;
    void (*forget_done)(void *arg, int rc);
    void *forget_arg;
    void (*stop_done)(void *arg);
    void *stop_arg;
    struct env_task check_task;
    struct leftovers left;
};

/* ---- log.c ---- */

unsigned log_slot_index(const struct log *log, const struct slot *slot);
/** Nothing else sets it. h.bytes of a slot changes only while it is free or none. */
void log_slot_set(struct log *log, struct slot *s, enum slot_state state);
unsigned log_count_files(const struct log *log);
/** Segments of this life. Those of before do not count until they are kept for good. */
unsigned log_count_ours(const struct log *log);
struct slot *log_slot_of_number(struct log *log, uint64_t number);
/** Of an entry in a segment that is not free. */
struct slot *log_slot_of(struct log *log, const struct log_place *place);
struct slot *log_slot_oldest_dead(struct log *log);
/** A place for one more segment: first those whose file lies there already. */
struct slot *log_slot_to_make(struct log *log);
/** Nothing is written to it any more. */
void log_slot_retire(struct log *log, struct slot *s);
bool log_append_fits(const struct log *log, const struct log_append *a);
/** The next append, when none is under way. */
void log_append_step(struct log *log);

/* ---- log_sync.c ---- */

/** The next sync, when none is under way and somebody waits for it. */
void log_sync_step(struct log *log);
void log_say_init(struct log *log);
/** Have the log say how far it is on stable storage, where nothing on stable storage says it. */
void log_say(struct log *log);

/* ---- log_job.c ---- */

void log_jobs_init(struct log *log);
/** Soon: begin a job, and tell who waits for the end of them. */
void log_check_later(struct log *log);
void log_forget_finish(struct log *log, int rc);
/** Tell who waits for the log to stop, if it has. */
void log_stop_check(struct log *log);
void log_slot_close(struct log *log, struct slot *s);

/* ---- log_start.c ---- */

/** Erase the segments of loops that are not there any more, then log_forget_finish(). */
void log_leftovers_start(struct log *log);

#endif
