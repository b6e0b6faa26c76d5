/*
 * recall_inval.h - invalidation of kernel caches when tokens are recalled.
 */
#ifndef ROZO_ROZOMOUNT_OP_RECALL_INVAL_H
#define ROZO_ROZOMOUNT_OP_RECALL_INVAL_H

#include "rozomount/op/mount.h"

struct read_op;

/**
 * Handles a READ of its node that was answered short. If the kernel got an invalidation
 * after it had sent the READ, it takes the missing bytes for zeros, not for the end of
 * the file. Drops these pages unless that invalidation covered them. Returns false if the
 * kernel may not take the end.
 */
bool fuse_op_read_ended(struct read_op *r);
/**
 * A step: ends op's use of its token, and makes the kernel drop the attributes and pages
 * of op->ino. No request for which the kernel keeps pages locked may wait for op:
 * the kernel may wait for pages that other READs keep locked.
 */
enum step_end fuse_op_drop_pages(struct fuse_op *op);
/** A step: makes the kernel drop the attributes of op->ino, but no pages. */
enum step_end fuse_op_drop_attr(struct fuse_op *op);
/**
 * Makes the kernel ask us again for all that it keeps, because exportd may have ended our
 * session. Any loop.
 */
void recalls_drop_kernel(struct loop *loop);
/**
 * Invalidates all names that the kernel got until now, except those of listings in
 * progress. locked: see name_inval.h. Returns false if the kernel cannot. Any loop.
 */
bool recalls_age_names(struct loop *loop, const uint64_t *locked);

/** Returns true if the kernel can drop names that it cannot reach (Linux 6.18). */
bool mount_prunes(const struct mount *m);
/**
 * Records that the kernel gets a name, or its absence, without the right to keep it. The
 * kernel has a dentry all the same.
 */
void note_untokened_name(struct mount *m, uint64_t dir, const char *name, bool is_dir);

#endif
