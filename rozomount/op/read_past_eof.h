/*
 * read_past_eof.h - READs that begin behind the end of a file.
 */
#ifndef ROZO_ROZOMOUNT_OP_READ_PAST_EOF_H
#define ROZO_ROZOMOUNT_OP_READ_PAST_EOF_H

#include "rozomount/op/mount.h"

/** A READ that is under way and has come to nothing: does it wait? Then `again` follows, or it is given up. */
bool read_past_eof_waits(struct fuse_op *op, void (*again)(struct fuse_op *op));
/** A READ was told where the file ends. */
void node_eof_answered(struct node *node);
/** The kernel is about to drop these pages: nobody waits. */
void node_past_eof_resume(struct node *node);

#endif
