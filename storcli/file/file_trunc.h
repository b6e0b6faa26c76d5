/*
 * file_trunc.h - the truncate that is pending: accepted by exportd, not finished on the
 * storages.
 *
 * Private to storcli/file. Written by file_trunc.c only. Thread: the env's.
 */
#ifndef ROZO_STORCLI_FILE_FILE_TRUNC_H
#define ROZO_STORCLI_FILE_FILE_TRUNC_H

#include "storcli/file/file_queue.h"

/* States of finishing a truncate on the storages: of file_truncate(), or one found
 * unfinished. */
enum trunc_state {
    TRUNC_IDLE,   /* idle: exportd's answers say what is pending */
    TRUNC_DRAIN,  /* no run may be flying */
    TRUNC_EPOCH,  /* an epoch not below the truncate's is needed */
    TRUNC_MARK,   /* blocks beyond become holes */
    TRUNC_LOOK,   /* the last partial block is read */
    TRUNC_CUT,    /* the last partial block is written again, short */
    TRUNC_SYNC,   /* stable on the storages: exportd is about to forget it */
    TRUNC_REPORT, /* exportd may forget it */
};

/* Version of the mark, and the records that it leaves. */
enum trunc_mark {
    MARK_AS_ACCEPTED, /* version of the truncate */
    MARK_FRESH,       /* own truncate: a version of ours, the truncate's was too old */
    MARK_REFUSED,     /* something newer lies beyond a truncate of another client */
    MARK_BELOW,       /* exportd says it is still pending: newer records stay */
};

struct fetch;

struct file_trunc {
    bool pending;
    uint64_t size, version; /* version 0: exportd does not know of it */
    uint64_t n;             /* own truncates; a report across one gives no size */

    enum trunc_state state;
    enum trunc_mark mark;
    enum file_answer answer; /* answer to this state; TRUNC_EPOCH: to file_renew() */
    bool own;    /* our own file_truncate(): blocks beyond are ours to remove */
    bool denied; /* has asked for a fresh capability once */
    bool by_run; /* a run in memory that will be written is the cut */
    int rc;      /* result in the answer */
    unsigned n_tries;
    uint64_t clock;
    struct fetch *look; /* result of TRUNC_LOOK; owned */
    struct file_meta_call call;
};

/** Takes what exportd says of a pending truncate, unless it cannot know. */
void trunc_adopt(struct file *f, const struct file_attr *attr);
/** Takes exportd's answer to a truncate as the state after it. */
void trunc_is(struct file *f, const struct file_attr *attr);
/** Begins a truncate that exportd does not know: the end was not reported to it. */
void trunc_is_unknown(struct file *f, uint64_t size);
/** Counts a truncate. */
void trunc_happened(struct file *f);
/** Forgets the truncate that is pending. */
void trunc_forget(struct file *f);

/**
 * Begins to finish the pending truncate (own: that of our caller); queue.exclusive is
 * held.
 */
void trunc_start(struct file *f, bool own);
/**
 * Does the next steps. 1: it is finished; 0: op waits for its next step; -errno: failed,
 * and still pending.
 */
int trunc_step(struct file *f, struct fop *op);

#endif
