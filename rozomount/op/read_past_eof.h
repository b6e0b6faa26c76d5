/*
 * read_past_eof.h - delay of READs that begin past the end of a file.
 */
#ifndef ROZO_ROZOMOUNT_OP_READ_PAST_EOF_H
#define ROZO_ROZOMOUNT_OP_READ_PAST_EOF_H

#include "rozomount/op/mount.h"

/* How much a READ past the end has waited. */
enum eof_wait {
    EOF_WAIT,        /* not yet, or it waits for a READ that reaches the end */
    EOF_WAIT_TAKEN,  /* a READ was answered with the end: its reader must take it */
    EOF_WAITED,      /* long enough, and no READ has reached the end */
    EOF_WAITED_TAKEN /* long enough, after one was answered with the end */
};

/* A READ. */
struct read_op {
    struct fuse_op op; /* must be first */
    uint64_t offset;
    size_t size;
    int flags; /* flags of the open file */
    uint64_t started_ns;
    bool overtaken; /* true: its data were changed meanwhile */
    enum eof_wait eof;
    const struct iovec *iov; /* the data, while they are answered */
    unsigned n_iov;
};

/**
 * Delays a READ that found no data. Returns true if it waits: its next step, set before,
 * follows, or the READ is interrupted and answered EINTR.
 */
bool read_past_eof_waits(struct read_op *r);
/**
 * Informs waiting READs that another READ was answered with the end of the file.
 * is_taken: false if the kernel may ignore that end.
 */
void node_eof_answered(struct node *node, bool is_taken);
/**
 * Lets the waiting READs of the node go on: the kernel is about to drop their pages,
 * which they keep locked.
 */
void node_past_eof_resume(struct node *node);

#endif
