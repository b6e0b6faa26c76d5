/*
 * file_queue.h - operations of one file: they begin in order of arrival, are stepped when
 * they are ready, wait in lists for events, and some run alone.
 *
 * Private to storcli/file. Written by file_queue.c only. Thread: the env's.
 */
#ifndef ROZO_STORCLI_FILE_FILE_QUEUE_H
#define ROZO_STORCLI_FILE_FILE_QUEUE_H

#include "common/base/list.h"
#include "storcli/file.h"

/* Operations that wait for one thing. */
struct waitlist {
    struct list_node ops;
};

enum fop_kind { FOP_READ, FOP_WRITE, FOP_FLUSH, FOP_EXCLUSIVE, FOP_SEEK, FOP_CLOSE };

/* Answer of the engine, or of exportd, to the present step of an operation. */
enum file_answer {
    ANSWER_NONE, /* nothing was asked */
    ANSWER_AWAITED,
    ANSWER_HERE,
};

/* Common part of every operation: first member of its struct, which is malloc'ed. */
struct fop {
    struct list_node link; /* in queue.arrived, queue.ready or one waitlist */
    struct file *f;        /* borrowed */
    enum fop_kind kind;
    bool denied;      /* has asked for a fresh capability once */
    unsigned n_moved; /* fresh refs that it waited for */
    int fetch_rc;     /* error of a fetch it waited for; 0: none */
    void (*step)(struct fop *op);
    file_done_cb *done; /* called once, by fop_end(); NULL: the op calls for itself */
    void *arg;          /* the caller's */
    uint64_t clock;     /* failures up to here are not reported by this op */
    uint64_t start_ns;
};

struct file_queue {
    struct env_task task;
    struct list_node arrived; /* not started, in order of arrival */
    struct list_node ready;   /* to be stepped */
    unsigned n_active;        /* started and not ended */
    struct fop *accepting;    /* write being taken in */
    struct fop *exclusive; /* truncate, punch, allocate, or a write that finishes one */
    /* blocks that may be written out nevertheless */
    uint64_t exclusive_first, exclusive_end;
    bool exclusive_held; /* file_truncate_begin() was answered, its end has not come */
    struct waitlist exclusive_waiters;
    struct fop *close_op; /* owned; outlives the file's other operations */
};

void waitlist_init(struct waitlist *list);
void waitlist_wake(struct file *f, struct waitlist *list);

/** Makes an empty queue. on_task runs a turn of the file. */
void queue_init(struct file *f, void (*on_task)(struct env_task *task));
/** Frees the close operation. */
void queue_free(struct file *f);
/**
 * Posts a turn: steps ready operations, writes wanted runs, starts waiting operations.
 */
void file_wake(struct file *f);
/** Steps the operations that are ready. */
void queue_step_ready(struct file *f);
/** Starts the operations whose turn it is. */
void queue_start(struct file *f);

/**
 * Makes an operation of `bytes` zeroed bytes. Out of memory ends the process: these are
 * small.
 */
void *fop_new(struct file *f, size_t bytes, enum fop_kind kind,
              void (*step)(struct fop *), file_done_cb *done, void *arg);
/** Queues an operation, to be started in order of arrival. */
void fop_queue(struct fop *op);
/** Starts an operation at once, before those that have arrived. */
void fop_start(struct fop *op);
/** Makes the op wait until the list is woken, then steps it again. */
void fop_wait(struct fop *op, struct waitlist *list);
/**
 * Handles a capability refused for the first time: waits for a fresh one, then steps
 * again. False: rc is something else, or it was refused before.
 */
bool fop_denied(struct fop *op, int rc);
/**
 * Handles -ROZO_EMOVED: waits for a fresh ref, then steps again. False: rc is something
 * else, or it was so too often.
 */
bool fop_moved(struct fop *op, int rc);
/** Steps the op again in this turn. */
void fop_ready(struct fop *op);
/** Takes the op out of all lists. It is free to be freed. */
void fop_leave(struct fop *op);
/** Frees the op and calls its caller. */
void fop_end(struct fop *op, int rc);

/** Ends the taking in of a write: the next operation may begin. */
void queue_accepted(struct fop *op);
/** Lets an operation that has started run alone. None other may be alone. */
void queue_run_alone(struct fop *op);
/** Lets blocks [first, end) be written out while an operation is alone. */
void queue_let_through(struct file *f, uint64_t first, uint64_t end);
/** Keeps the operation alone beyond its answer, until another one takes its place. */
void queue_hold(struct file *f);
/** Starts an operation in the place of the one that holds the file. */
void queue_take_hold(struct fop *op);
/** Ends the operation that holds the file. */
void queue_release(struct file *f);
/** Ends the exclusive operation; others go on. */
void file_exclusive_end(struct file *f);

#endif
