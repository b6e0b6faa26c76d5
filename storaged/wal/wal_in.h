/*
 * wal_in.h - what the files of the log share: wal.c (what there is, appends), wal_sync.c (syncs), wal_job.c (segments made and
 * erased, who waits for that), wal_start.c (what lies there from before). Nobody else includes it.
 */
#ifndef ROZO_STORAGED_WAL_WAL_IN_H
#define ROZO_STORAGED_WAL_WAL_IN_H

#include "storaged/wal/wal.h"
#include "storaged/wal/wal_list.h"

enum {
    WAL_FRAMES_IOV_MAX = 2 * WAL_IOV_MAX, /* of one write */
    WAL_FRAMES_BYTES_MAX = 1 << 20,       /* of one write, or of one frame */
};

enum slot_state {
    SLOT_NONE,    /* not open; there may be a file, erased or never used */
    SLOT_FREE,    /* can be begun */
    SLOT_OLD,     /* of before, until wal_forget_old() */
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
    char path[WAL_PATH_MAX];
    struct iovec iov;
    struct disk_req dr;
};

/* Segments of loops that are not there any more. */
struct leftovers {
    struct wal_list list;
    unsigned index;
    bool unwritten; /* the header of this one could not be erased */
    char path[WAL_PATH_MAX];
    struct iovec iov;
    struct disk_req dr;
};

struct wal {
    struct wal_config config;
    struct slot slots[WAL_FILES_MAX];
    unsigned n_in_state[SLOT_DEAD + 1]; /* slots */
    uint64_t used_bytes;                /* of those that are not free */
    uint64_t next_number;

    struct slot *current; /* NULL: none */
    uint64_t end;         /* of its last frame */
    uint32_t sequence;    /* of its next frame */
    bool is_current_bad;  /* a write or sync failed: go on in another one */
    struct wal_append *first, **last;
    bool is_writing;    /* frames or headers */
    unsigned n_writing; /* appends, the first ones, whose frames are being written */
    uint64_t n_writing_bytes;
    struct iovec frames[WAL_FRAMES_IOV_MAX + 1]; /* and zeros to the end of the page */
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
    struct wal_append say;
    struct wal_wait say_wait;
    struct wal_wait *first_wait, **last_wait;
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

/* ---- wal.c ---- */

unsigned wal_slot_index(const struct wal *wal, const struct slot *slot);
/** Nothing else sets it. h.bytes of a slot changes only while it is free or none. */
void wal_slot_set(struct wal *wal, struct slot *s, enum slot_state state);
unsigned wal_count_files(const struct wal *wal);
/** Segments of this life. Those of before do not count until they are kept for good. */
unsigned wal_count_ours(const struct wal *wal);
struct slot *wal_slot_of_number(struct wal *wal, uint64_t number);
/** Of an entry in a segment that is not free. */
struct slot *wal_slot_of(struct wal *wal, const struct wal_place *place);
struct slot *wal_slot_oldest_dead(struct wal *wal);
/** A place for one more segment: first those whose file lies there already. */
struct slot *wal_slot_to_make(struct wal *wal);
/** Nothing is written to it any more. */
void wal_slot_retire(struct wal *wal, struct slot *s);
bool wal_append_fits(const struct wal *wal, const struct wal_append *a);
/** The next append, when none is under way. */
void wal_append_step(struct wal *wal);

/* ---- wal_sync.c ---- */

/** The next sync, when none is under way and somebody waits for it. */
void wal_sync_step(struct wal *wal);
void wal_say_init(struct wal *wal);
/** Have the log say how far it is on stable storage, where nothing on stable storage says it. */
void wal_say(struct wal *wal);

/* ---- wal_job.c ---- */

void wal_jobs_init(struct wal *wal);
/** Soon: begin a job, and tell who waits for the end of them. */
void wal_check_later(struct wal *wal);
void wal_forget_finish(struct wal *wal, int rc);
/** Tell who waits for the log to stop, if it has. */
void wal_stop_check(struct wal *wal);
void wal_slot_close(struct wal *wal, struct slot *s);

/* ---- wal_start.c ---- */

/** Erase the segments of loops that are not there any more, then wal_forget_finish(). */
void wal_leftovers_start(struct wal *wal);

#endif
