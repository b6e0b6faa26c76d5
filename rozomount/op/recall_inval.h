/*
 * recall_inval.h - caches of the kernel are dropped.
 */
#ifndef ROZO_ROZOMOUNT_OP_RECALL_INVAL_H
#define ROZO_ROZOMOUNT_OP_RECALL_INVAL_H

#include "rozomount/op/mount.h"

/**
 * A READ, pinned in op->node, was answered with less than was asked for. Where a notice to the kernel came after the kernel had asked, it
 * takes what is lacking for zeros, not for the end of the file, and keeps them, if the notice was not about these pages:
 * then they are dropped now.
 */
void fuse_op_read_ended(struct fuse_op *op);
/**
 * The kernel drops the attributes and pages of op->ino: then step. Without a token, and nothing that the kernel waits for with a page
 * locked waits for op: it may wait for pages that others read.
 */
void fuse_op_drop_pages(struct fuse_op *op, void (*step)(struct fuse_op *op));
/** Makes the kernel drop the attributes of op->ino, but no pages; then calls step. */
void op_drop_attr(struct fuse_op *op, void (*step)(struct fuse_op *op));
/** exportd may have ended our session: the kernel is to ask us. Any loop. */
void recalls_drop_kernel(struct loop *loop);
/**
 * No name that the kernel was told until now needs to be dropped any more, but those of listings on their way; locked: see name_inval.h.
 * False: it is not done. Any loop.
 */
bool recalls_age_names(struct loop *loop, const uint64_t *locked);

/** The kernel can drop names that it cannot reach (Linux 6.18). */
bool mount_prunes(const struct mount *m);
/** The kernel gets a name, or its absence, that it may not keep; it has a dentry all the same. */
void name_is_loose(struct mount *m, uint64_t dir, const char *name, bool is_dir);

#endif
