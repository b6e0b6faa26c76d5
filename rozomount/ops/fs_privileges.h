/*
 * fs_privileges.h - privileges that a write takes from a file.
 */
#ifndef ROZO_ROZOMOUNT_OPS_FS_PRIVILEGES_H
#define ROZO_ROZOMOUNT_OPS_FS_PRIVILEGES_H

#include "rozomount/op/mount.h"

/**
 * Before a write: what it takes from the file (set-id bits, unless it is root's; the capability)
 * is taken; then step. At once when the kernel sees to it.
 */
void fuse_op_drop_privileges(struct fuse_op *op, void (*step)(struct fuse_op *op));
/** Is the caller in that group? When nobody can tell: he is not. */
bool fuse_op_is_in_group(struct fuse_op *op, gid_t gid);
/**
 * The set-id bits of a file that a change by this caller clears, as SetattrBits; 0 if it
 * clears none.
 */
uint32_t fuse_op_kills_set_id(struct fuse_op *op, uint32_t mode, gid_t gid);
/**
 * Knowledge of an open file that was good until until_ns (0: there is none) and is looked after
 * from time to time, such as that it has no capability: may we go by it? Also when it is too old,
 * while exportd is away.
 */
bool fuse_op_still_knows(const struct fuse_op *op, uint64_t until_ns);
/** Ask exportd for it; not for long when we have something to go by. */
void fuse_op_ask_again(struct fuse_op *op, uint64_t until_ns, uint16_t code,
                       const ProtobufCMessage *msg,
                       void (*on_answer)(struct fuse_op *op, int rc));
/** rc of fuse_op_ask_again(): exportd did not answer, and we go by what we had. */
bool fuse_op_goes_on_knowing(const struct fuse_op *op, uint64_t until_ns, int rc);

#endif
