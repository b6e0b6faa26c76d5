/*
 * unalias.h - directories that another mount has moved while the kernel has a dentry of
 * them.
 */
#ifndef ROZO_ROZOMOUNT_OPS_UNALIAS_H
#define ROZO_ROZOMOUNT_OPS_UNALIAS_H

#include "rozomount/op/mount.h"

/**
 * Returns true if a LOOKUP that found op->entry may be answered at once. False: another
 * mount moved this directory, and the kernel has a dentry of it elsewhere; call
 * fuse_op_reply_free_dir().
 */
bool fuse_op_dir_is_free(struct fuse_op *op);
/**
 * A last step: as fuse_op_reply_entry(), when the kernel has dropped that dentry, or
 * cannot drop it.
 */
enum step_end fuse_op_reply_free_dir(struct fuse_op *op);

#endif
