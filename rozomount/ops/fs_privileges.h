/*
 * fs_privileges.h - privileges that a write removes from a file.
 */
#ifndef ROZO_ROZOMOUNT_OPS_FS_PRIVILEGES_H
#define ROZO_ROZOMOUNT_OPS_FS_PRIVILEGES_H

#include "rozomount/op/mount.h"

/**
 * A step: removes the set-id bits (unless root writes) and the capability of the file of
 * op->handle before a write. Does nothing if the kernel does this itself.
 */
enum step_end fuse_op_drop_privileges(struct fuse_op *op);
/**
 * Returns true if flags of the file of op->handle (chattr) forbid this change. They may
 * have been set after the open, and O_APPEND cleared. Called with the token: the flags
 * are exact.
 */
bool fuse_op_is_forbidden(const struct fuse_op *op, bool only_appends);
/** Returns true if the caller is in that group; false if that cannot be found out. */
bool fuse_op_is_in_group(struct fuse_op *op, gid_t gid);
/**
 * Returns the set-id bits, as SetattrBits, that a change by this caller clears; 0 if
 * none.
 */
uint32_t fuse_op_kills_set_id(struct fuse_op *op, uint32_t mode, gid_t gid);
/**
 * Returns true if cached knowledge of an open file, such as "has no capability", may be
 * used. It is valid until until_ns (0: none), and longer while exportd is unreachable.
 */
bool fuse_op_still_knows(const struct fuse_op *op, uint64_t until_ns);
/**
 * Asks exportd to renew such knowledge; with a short timeout if the cached one is usable.
 */
enum step_end fuse_op_ask_again(struct fuse_op *op, uint64_t until_ns, uint16_t code,
                                const ProtobufCMessage *msg);
/**
 * Returns true if exportd did not answer fuse_op_ask_again() and the cached knowledge is
 * used.
 */
bool fuse_op_goes_on_knowing(const struct fuse_op *op, uint64_t until_ns);

#endif
