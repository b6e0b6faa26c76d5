/*
 * wal_in.h - shared by the files of the log; private to them.
 *
 * wal.c: segments, appends. wal_sync.c: syncs. wal_job.c: making and erasing segments,
 * and the callers that wait for that. wal_start.c: segments of the previous run.
 */
#ifndef ROZO_COMMON_WAL_WAL_IN_H
#define ROZO_COMMON_WAL_WAL_IN_H

#include "common/wal/wal.h"
#include "common/wal/wal_list.h"

enum {
    WAL_FRAMES_IOV_MAX = 2 * WAL_IOV_MAX, /* pieces of one write */
    WAL_FRAMES_BYTES_MAX = 1 << 20,       /* bytes of one write, or of one frame */
};

enum slot_state {
    SLOT_NONE,    /* closed; the file is missing, erased or never used */
    SLOT_FREE,    /* erased and stable, ready for use */
    SLOT_OLD,     /* left by the previous run, until wal_forget_old() */
    SLOT_CURRENT, /* being written */
    SLOT_FULL,    /* full; holds wanted entries */
    SLOT_DEAD,    /* full; holds no wanted entry, will be erased */
};

struct slot {
    enum slot_state state;
    bool has_file;
    bool is_dirty;          /* written since the last sync began */
    bool is_in_round;       /* still to be synced by the sync under way */
    bool is_odd;            /* file of an unusual size: removed when dead */
    struct disk_file *file; /* owned; NULL in state NONE */
    struct segment_header h;
    uint64_t wanted; /* wanted entries, and one for the append under way */
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

/* A segment being made or erased. Only job_step() changes the state. */
struct wal_job {
    enum job_kind kind;
    enum job_state state;
    struct slot *slot;
    bool is_new; /* file made by this job: removed if the job fails */
    int rc;      /* the first error */
    uint64_t fill_at;
    char path[WAL_PATH_MAX];
    struct iovec iov;
    struct disk_req dr;
};

/* Removal of the segments of loops that no longer exist. */
struct leftovers {
    struct wal_list list;
    unsigned index;
    bool unwritten; /* the header of the current one could not be erased */
    char path[WAL_PATH_MAX];
    struct iovec iov;
    struct disk_req dr;
};

/* Life of a log. */
enum wal_life {
    WAL_NEW,     /* not started, or the start failed */
    WAL_LISTS,   /* wal_start(): lists the segments of the previous run */
    WAL_STARTS,  /* wal_start(): makes free segments */
    WAL_RUNS,    /* takes appends */
    WAL_FORGETS, /* wal_forget_old(): erases segments; takes appends, too */
    WAL_CLEARS,  /* wal_forget_old(): removes segments of loops that no longer exist */
};

struct wal {
    struct wal_config config;
    enum wal_life life;
    bool is_stopping; /* wal_stop() was called */
    struct slot slots[WAL_FILES_MAX];
    unsigned n_in_state[SLOT_DEAD + 1]; /* slots in each state */
    uint64_t used_bytes;                /* bytes of segments that are not free */
    uint64_t next_number;

    struct slot *current; /* segment being written; NULL: none */
    uint64_t end;         /* bytes; end of its last frame */
    uint32_t sequence;    /* number of its next frame */
    bool is_current_bad;  /* a write or sync failed: another segment is begun */
    struct wal_append *first, **last;
    bool is_writing;    /* a write of frames or headers is under way */
    unsigned n_writing; /* appends, the first of the list, in the write under way */
    uint64_t n_writing_bytes;
    /* frames, and zeros to the end of the page */
    struct iovec frames[WAL_FRAMES_IOV_MAX + 1];
    struct slot *begun; /* slot whose headers are being written */
    uint8_t header[SEGMENT_HEADER_BYTES];
    struct iovec header_iov[2];
    struct disk_req dr;

    uint64_t n_asked, n_done; /* appends submitted; appends ended */
    uint64_t n_synced;        /* appends that are stable, of n_done */
    uint64_t since;           /* the first segment of this run; 0: none yet */
    /* position that the sync under way makes stable, for frames written after it */
    struct frame_says sync_says;
    struct frame_says synced; /* position of the last good sync */
    /*
     * Progress notes of the log, counted in appends. n_entries were written,
     * n_entries_synced are stable. Written frames say that n_said are stable; stable
     * frames say so of n_told. The log appends a frame of its own when n_told stays below
     * n_entries_synced.
     */
    uint64_t n_entries, n_entries_synced, sync_entries;
    uint64_t n_said, n_told, n_saying, sync_said;
    struct env_timer quiet;
    bool is_saying; /* `say` is under way, or the sync behind it */
    struct wal_append say;
    struct wal_wait say_wait;
    struct wal_wait *first_wait, **last_wait; /* in the order of `want` */
    struct wal_wait begin_wait; /* in_order: another segment begins after it */
    bool is_begin_waiting;
    bool is_syncing;
    uint64_t sync_upto;
    int sync_rc;
    struct disk_req sync_dr;
    uint64_t failures;

    struct wal_job job;
    struct env_timer retry;
    uint64_t make_retry_ns, erase_retry_ns; /* ns, monotonic; earliest next try */
    int make_rc; /* result of the last job that made a segment */

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

/** True while a list of segments is under way, or what follows from it. */
static inline bool wal_is_listing(const struct wal *wal)
{
    return wal->life == WAL_LISTS || wal->life == WAL_CLEARS;
}
static inline bool wal_is_starting(const struct wal *wal)
{
    return wal->life == WAL_LISTS || wal->life == WAL_STARTS;
}
static inline bool wal_is_forgetting(const struct wal *wal)
{
    return wal->life == WAL_FORGETS || wal->life == WAL_CLEARS;
}

/* ---- wal.c ---- */

unsigned wal_slot_index(const struct wal *wal, const struct slot *slot);
/**
 * Sets the state of a slot; nothing else does. h.bytes changes only in states FREE and
 * NONE.
 */
void wal_slot_set(struct wal *wal, struct slot *s, enum slot_state state);
unsigned wal_count_files(const struct wal *wal);
/** Counts the segments of this run; old ones count from wal_forget_old() on. */
unsigned wal_count_ours(const struct wal *wal);
struct slot *wal_slot_of_number(struct wal *wal, uint64_t number);
/** Returns the slot of an entry; its segment is not free. */
struct slot *wal_slot_of(struct wal *wal, const struct wal_place *place);
struct slot *wal_slot_oldest_dead(struct wal *wal);
/** Returns a slot for one more segment, one with a file if there is any; NULL: none. */
struct slot *wal_slot_to_make(struct wal *wal);
/** Marks a segment as no longer written: FULL or DEAD. */
void wal_slot_retire(struct wal *wal, struct slot *s);
bool wal_append_fits(const struct wal *wal, const struct wal_append *a);
/** Starts the next write if none is under way. */
void wal_append_step(struct wal *wal);

/* ---- wal_sync.c ---- */

/** Starts the next sync if none is under way and a caller waits for it. */
void wal_sync_step(struct wal *wal);
/** Adds a wait for the appends that have ended; those that wait are not in it. */
void wal_sync_written(struct wal *wal, struct wal_wait *w);
void wal_say_init(struct wal *wal);
/** Appends a note of how far the log is stable, unless a stable frame says so. */
void wal_say(struct wal *wal);

/* ---- wal_job.c ---- */

void wal_jobs_init(struct wal *wal);
/** Posts a task that starts the next job, and calls the callers that wait for jobs. */
void wal_check_later(struct wal *wal);
void wal_forget_finish(struct wal *wal, int rc);
/** Calls the callback of wal_stop() if the log has stopped. */
void wal_stop_check(struct wal *wal);
void wal_slot_close(struct wal *wal, struct slot *s);

/* ---- wal_start.c ---- */

/** Erases the segments of loops that no longer exist, then calls wal_forget_finish(). */
void wal_leftovers_start(struct wal *wal);

#endif
