/*
 * file_writeback.h - runs on their way to the storages, and the epochs of their versions.
 *
 * Private to storcli/file. Written by file_writeback.c only. Thread: the env's.
 */
#ifndef ROZO_STORCLI_FILE_FILE_WRITEBACK_H
#define ROZO_STORCLI_FILE_FILE_WRITEBACK_H

#include "storcli/file/file_queue.h"

struct frun;
struct write_fop;

/* Epoch and ref of the file, as exportd gave them last. */
struct file_epoch {
    uint32_t now, sequence; /* parts of the last version; now 0: no epoch yet */
    bool unsure;            /* outcome of a truncate unknown: no version may be used */
    uint64_t sure_no;       /* renew_no of the answer that will show it */
    bool outdated;          /* storages refused the newest ref that exportd has */
    bool renew_busy;
    uint64_t renew_no; /* answers so far, good and bad */
    int renew_rc;      /* result of the last one */
    uint64_t place_no; /* inl.no when the renewal was asked */
    struct file_meta_call call;
    struct env_timer timer; /* pause while `outdated` */
    struct waitlist waiters;
};

struct file_writeback {
    struct list_node want; /* dirty and parked runs to write, in order of wanting */
    unsigned n_flying;
    uint64_t clock;        /* counts failures */
    uint64_t lost_clock;   /* `clock` when data was dropped last; 0: never */
    int lost_rc;           /* why data, or a report, was dropped */
    uint64_t n_losses;     /* sizes refused by exportd, and data abandoned */
    unsigned n_abandoning; /* operations that abandon failed runs: no retries */
    uint64_t retry_ms;
    uint64_t retry_at_ns; /* parked runs are wanted again; 0: none is parked */
    struct env_timer timer;
};

void writeback_init(struct file *f);
/** Stops the timer. */
void writeback_free(struct file *f);

/* ---- epochs and refs ---- */

/** Takes an epoch of exportd, if it is newer. */
void epoch_adopt(struct file *f, uint32_t epoch);
/**
 * A version above all before; epoch.now must not be 0. False: a fresh epoch is needed
 * first.
 */
bool file_next_version(struct file *f, uint64_t *version);
void file_renew(struct file *f);
/** Forbids all versions until exportd has answered with the state of the file. */
void file_meta_unsure(struct file *f);
/** Allows versions again: exportd has answered. */
void epoch_is_sure(struct file *f);
/**
 * Decides whether an operation about to change the file must wait for exportd. 1: go on;
 * 0: op waits; -errno: exportd does not answer. *asked_no: 0 before the first call, then
 * its own.
 */
int file_be_sure(struct fop *op, uint64_t *asked_no);
/**
 * Handles -ROZO_EMOVED of a request, the n-th time: from the second on our ref may be
 * old.
 */
void file_is_refused(struct file *f, unsigned n);
/** Takes a FileRef from exportd. Returns 0 or -errno of storcli_file_update(). */
int file_take_ref(struct file *f, const struct storcli_target *target);

/* ---- runs ---- */

void frun_want(struct frun *run);
void frun_unwant(struct frun *run);
/** Wants every dirty or parked run. */
void file_want_all(struct file *f);
/** Sends the wanted runs that may go. */
void file_fly(struct file *f);
/** Counts a run as on its way; counts its answer. */
void frun_takes_off(struct frun *run);
void frun_lands(struct frun *run);
/**
 * Sends a write's own memory; no dirty or writing run may overlap. Returns 0 or -errno.
 */
int frun_fly_direct(struct file *f, struct write_fop *w, uint64_t first, uint64_t end,
                    const uint8_t *data, bool sync);
/** Ends an acknowledged run: it becomes clean. */
void frun_written(struct frun *run);
/**
 * Returns true if accepted bytes of blocks [first, end), in runs older than before_id,
 * wait for their acknowledgement; wants them. A failure since clock ends the waiting for
 * that run: its reason goes to *rc (if that is 0).
 */
bool file_is_pending(struct file *f, uint64_t first, uint64_t end, uint64_t before_id,
                     uint64_t clock, int *rc);
/** Returns true if no run is on its way to the storages, or waits for an epoch. */
bool file_is_landed(const struct file *f);
void file_failed(struct frun *run, int rc);
/** Starts the delay timer for the oldest dirty and the parked runs. */
void file_start_write_timer(struct file *f);

/* ---- losses ---- */

/**
 * Drops all unwritten data, for rc: no run may be flying. Operations that wait for it
 * fail, and the size of data after it can be reported.
 */
void file_lose(struct file *f, int rc);
/** Drops all data that is not on its way to storages. */
void file_lose_unsent(struct file *f, int rc);
/** Counts a loss, see file_losses(). */
void file_count_loss(struct file *f);
/** Counts a loss, and keeps its reason for operations that learn of it later. */
void file_lost_for(struct file *f, int rc);
/** Begins, and ends, an operation that abandons what fails: nothing is tried again. */
void writeback_abandon_begin(struct file *f);
void writeback_abandon_end(struct file *f);

#endif
