/*
 * unalias.h - directories that another mount has moved.
 */
#ifndef ROZO_ROZOMOUNT_OPS_UNALIAS_H
#define ROZO_ROZOMOUNT_OPS_UNALIAS_H

#include "rozomount/op/mount.h"

/**
 * A LOOKUP found op->entry. May it be answered at once? False: it is a directory that another mount moved, and the kernel has a
 * dentry elsewhere: then fuse_op_reply_free_dir().
 */
bool fuse_op_dir_is_free(struct fuse_op *op);
/** fuse_op_reply_entry() as soon as the kernel has dropped that dentry, or cannot. */
void fuse_op_reply_free_dir(struct fuse_op *op);

#endif
