/*
 * file_inline.h - a small file, whose data exportd has. They take the place of data on
 * storages: runs are completed from them, fetches are served from them, and runs to be
 * written go there, all at once.
 *
 * Private to storcli/file. Written by file_inline.c only. Thread: the env's.
 */
#ifndef ROZO_STORCLI_FILE_FILE_INLINE_H
#define ROZO_STORCLI_FILE_FILE_INLINE_H

#include "storcli/file/file_queue.h"

/* Where the data of the file are. */
enum place {
    PLACE_STORAGES,
    PLACE_EXPORTD, /* no data on storages counts */
    /* Others may have changed it since the last answer: exportd is asked before data are
     * read or changed. */
    PLACE_UNKNOWN,
};

/* Move of the data from exportd to the storages. The place is STORAGES already, but
 * exportd does not know yet. */
enum inline_leave {
    LEAVE_NONE,
    LEAVE_WRITING, /* older runs must be acknowledged, and perhaps synced */
    LEAVE_SYNCED,  /* written and synced: exportd must learn of it */
};

/* Sync before exportd learns of the move. */
enum inline_sync {
    BLOCKS_SYNC_NONE,
    BLOCKS_SYNC_BUSY,
    BLOCKS_SYNC_MOVED, /* waits for a fresh ref */
};

struct fetch;
struct frun;

struct file_inline {
    enum place place;
    uint64_t max;   /* data end here at the latest; 0: never with exportd */
    uint8_t *bytes; /* EXPORTD: its data, owned; zeros follow up to the end */
    uint64_t len;
    uint64_t version; /* version of `bytes`; 0: there are none */
    uint64_t no; /* number of our last change: older answers say nothing of the place */
    bool stale;  /* EXPORTD: needs a fresh epoch before it takes data */
    unsigned n_stale; /* refusals as stale since the last success */
    /* report.change of the last data that we sent to exportd without a sync; 0: none */
    uint64_t unsynced_change;
    bool resend; /* exportd may have forgotten: the next report sends `bytes` again */
    enum inline_leave leave;
    uint64_t leave_id; /* runs older than this must be acknowledged before the report */
    bool leave_syncs;  /* a sync as well: the old data may be durable */
    uint64_t leave_losses; /* storcli_file_losses() when the move began */
    enum inline_sync blocks_sync;
    unsigned n_sync_moved;
    /* A WROTE with data is out. */
    bool busy;
    struct file_meta_call call;
    uint8_t *sent; /* owned */
    struct {
        uint64_t len, version, no, size, change, n_truncates, unsure_no;
        int64_t mtime_ns;
        bool sync;
    } out;
    bool load_busy;
    uint64_t load_no;
    struct file_meta_call load_call;
    struct env_timer load_timer; /* pause while our ref is outdated */
    struct waitlist load_waiters;
    struct waitlist moved_waiters; /* operations that wait for a fresh ref */
};

/** Begins without knowing the place; call inline_adopt() next. */
void inline_init(struct file *f);
void inline_free(struct file *f);
/**
 * Adopts exportd's answer on where the data are. overrules: even if our knowledge is not
 * older.
 */
void inline_adopt(struct file *f, const struct file_attr *attr, bool overrules);
/** Forgets where the data are: others may have changed the file. */
void inline_forget(struct file *f);
/** Makes sure the place is known. 1: it is; 0: op waits for that; -errno. */
int inline_know(struct fop *op);
/** Begins to move the data to storages. 1: they belong there now; 0: op waits; -errno. */
int inline_leave_first(struct fop *op);
/**
 * Prepares for a write up to byte end: moves the data to storages if they get too large.
 */
void inline_expect(struct file *f, uint64_t end);
/** Sends wanted runs to exportd. False: they go to the storages. */
bool inline_fly(struct file *f);
/** Serves fetches that wait for exportd's data. */
void inline_serve(struct file *f);
void inline_read(struct fetch *fetch);
/**
 * Asks exportd where the file lies, without a fresh epoch: moved_waiters and moved
 * fetches go on then.
 */
void file_reload(struct file *f);
/** Bytes [from, to) of what exportd has, to be in their block of the run. */
void inline_copy(const struct file *f, uint8_t *dst, uint64_t from, uint64_t to);
/** Returns true if nothing of it is under way. */
bool inline_is_quiet(const struct file *f);
/** Returns true if a report must wait. */
bool inline_holds_report(struct file *f);
/** Sends a report that waited for an acknowledgement. */
void inline_look(struct file *f);
/** Ends the move: exportd knows of it. */
void inline_left(struct file *f);
/** Drops data that was not reported. */
void inline_lose(struct file *f);
/** Handles the answer to a renewal. */
void inline_renewed(struct file *f, int rc);
/** Notes that exportd may have forgotten its data: they are sent again. */
void inline_report_again(struct file *f);
/** Sends nothing again: exportd has what it needs. */
void inline_no_resend(struct file *f);
/**
 * Adds the data that exportd may have forgotten to a report, under an epoch that it
 * remembers. False: there are none to send.
 */
bool inline_resend(struct file *f, struct file_meta_call *call);
/** Handles a report with data that was refused as stale: gets a fresh epoch. */
void inline_refused(struct file *f);

#endif
