/*
 * read_past_eof.h - delay of READs that begin past the end of a file.
 */
#ifndef ROZO_ROZOMOUNT_OP_READ_PAST_EOF_H
#define ROZO_ROZOMOUNT_OP_READ_PAST_EOF_H

#include "rozomount/op/mount.h"

/**
 * Delays a READ that found no data. Returns true if it waits: `again` follows, or the
 * READ is interrupted and answered EINTR.
 */
bool read_past_eof_waits(struct fuse_op *op, void (*again)(struct fuse_op *op));
/** Informs waiting READs that another READ was answered with the end of the file. */
void node_eof_answered(struct node *node);
/**
 * Lets the waiting READs of the node go on: the kernel is about to drop their pages,
 * which they keep locked.
 */
void node_past_eof_resume(struct node *node);

#endif
