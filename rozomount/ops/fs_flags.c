/*
 * fs_flags.c - chattr and lsattr: flags of files and directories; only +i and +a are
 * supported.
 *
 * In:     ioctls of the kernel: FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, and their XFS variants
 *         that newer programs use. Linux lets only owners ask, and only
 *         CAP_LINUX_IMMUTABLE change these two.
 * Out:    MD_GETATTR, MD_SETATTR, replies.
 * Keeps:  when chattr has returned, nothing that the flags forbid changes any more: other
 *         mounts have given back their tokens, and here the kernel has written out
 *         changed pages of mappings.
 */
#include <errno.h>
#include <linux/fs.h>
#include <string.h>

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"

/* Flags on the wire, and as the two kinds of ioctl have them. */
static const struct flag {
    uint32_t wire, fs, xfs;
} flags[] = {
    { ROZO__FILE_FLAGS__FLAG_IMMUTABLE, FS_IMMUTABLE_FL, FS_XFLAG_IMMUTABLE },
    { ROZO__FILE_FLAGS__FLAG_APPEND, FS_APPEND_FL, FS_XFLAG_APPEND },
};

enum { N_FLAGS = sizeof(flags) / sizeof(flags[0]) };

static bool is_xfs(unsigned cmd)
{
    return cmd == FS_IOC_FSGETXATTR || cmd == FS_IOC_FSSETXATTR;
}

/* Returns false if a flag is not supported. */
static bool flags_to_wire(uint32_t from, bool xfs, uint32_t *out)
{
    *out = 0;
    for (unsigned i = 0; i < N_FLAGS; i++) {
        uint32_t bit = xfs ? flags[i].xfs : flags[i].fs;

        if ((from & bit) != 0)
            *out |= flags[i].wire;
        from &= ~bit;
    }
    return from == 0;
}

static uint32_t flags_from_wire(uint32_t wire, bool xfs)
{
    uint32_t out = 0;

    for (unsigned i = 0; i < N_FLAGS; i++) {
        if ((wire & flags[i].wire) != 0)
            out |= xfs ? flags[i].xfs : flags[i].fs;
    }
    return out;
}

/*
 * Uses of members: op->valid is the ioctl, op->flags the flags to set, op->size the room
 * for the answer.
 */

static void reply_flags(struct fuse_op *op)
{
    bool xfs = is_xfs(op->valid);
    struct fsxattr x = { .fsx_xflags = flags_from_wire(op->entry.attr.file_flags, xfs) };
    uint64_t room[(sizeof(x) + 7) / 8] = { x.fsx_xflags }; /* room for an int or a long */
    fuse_req_t req = op->req;

    if (xfs)
        memcpy(room, &x, sizeof(x));
    op->req = NULL;
    fuse_reply_ioctl(req, 0, room, op->size);
    fuse_op_finish(op);
}

static void reply_set(struct fuse_op *op)
{
    fuse_req_t req = op->req;

    op->req = NULL;
    fuse_reply_ioctl(req, 0, NULL, 0);
    fuse_op_finish(op);
}

static int take_attr(struct fuse_op *op, int rc)
{
    if (rc == 0 &&
        (md_decode_entry(&op->call, &op->entry) != 0 || op->entry.attr.ino != op->ino))
        rc = -EIO;
    if (rc == 0)
        fuse_op_take_grant(op, 0);
    return rc == -ENOENT ? -ESTALE : rc;
}

static void ask_attr(struct fuse_op *op, void (*on_answer)(struct fuse_op *op, int rc))
{
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;

    msg.ino = op->ino;
    fuse_op_ask(op, ROZO__OP__MD_GETATTR, &msg.base, on_answer);
}

/* ---- setting ---- */

static void on_set_before(struct fuse_op *op, int rc)
{
    rc = take_attr(op, rc);
    if (rc == 0 && op->handle != NULL)
        node_note_mode(op->handle->node, &op->entry.attr);
    if (rc != 0)
        fuse_op_reply_err(op, -EIO); /* done, but the result is unknown */
    else
        fuse_op_drop_pages(op, reply_set);
}

static void on_flags_set(struct fuse_op *op, int rc)
{
    bool is_old = rc == -EINVAL && op->call.answered;

    rc = take_attr(op, is_old ? -EOPNOTSUPP : rc); /* -EINVAL: exportd knows no flags */
    if (op->handle != NULL)
        node_change_answered(op->handle->node, rc == 0 ? &op->entry.attr : NULL);
    if (fuse_op_was_done(op)) {
        op->to_the_end = true;
        ask_attr(op, on_set_before);
    } else if (rc != 0) {
        fuse_op_reply_err(op, rc);
    } else {
        fuse_op_drop_pages(op, reply_set); /* the kernel does not know the new ctime */
    }
}

static void set_ask(struct fuse_op *op)
{
    Rozo__MdSetattrReq msg = ROZO__MD_SETATTR_REQ__INIT;

    msg.ino = op->ino;
    msg.valid = ROZO__SETATTR_BITS__SET_FLAGS;
    msg.file_flags = op->flags;
    if (op->handle != NULL)
        node_change_sent(op->handle->node);
    fuse_op_ask(op, ROZO__OP__MD_SETATTR, &msg.base, on_flags_set);
}

static void on_attr_to_set(struct fuse_op *op, int rc)
{
    rc = take_attr(op, rc);
    if (rc == 0 && op->entry.attr.file_flags == op->flags)
        reply_set(op);
    else if (rc == 0 && op->uid != 0)
        fuse_op_reply_err(op, -EPERM);
    else if (rc != 0)
        fuse_op_reply_err(op, rc);
    else if (op->handle != NULL) /* the kernel writes out changed mappings first */
        fuse_op_drop_pages(op, set_ask);
    else
        set_ask(op);
}

static void set_on_owner(struct fuse_op *op)
{
    ask_attr(op, on_attr_to_set);
}

/* ---- getting ---- */

static void on_attr_to_get(struct fuse_op *op, int rc)
{
    rc = take_attr(op, rc);
    if (rc != 0)
        fuse_op_reply_err(op, rc);
    else
        reply_flags(op);
}

static void get_on_owner(struct fuse_op *op)
{
    ask_attr(op, on_attr_to_get);
}

/* ---- the ioctls ---- */

/* Reads the flags to set. Returns 0, -EINVAL, or -EOPNOTSUPP if one is not supported. */
static int read_flags(unsigned cmd, const void *in_buf, size_t in_size, uint32_t *wire)
{
    struct fsxattr x = { 0 };
    size_t size = is_xfs(cmd) ? sizeof(x) : sizeof(x.fsx_xflags);

    if (in_size < size)
        return -EINVAL;
    memcpy(&x, in_buf, size);
    if (!flags_to_wire(x.fsx_xflags, is_xfs(cmd), wire) || x.fsx_extsize != 0 ||
        x.fsx_projid != 0 || x.fsx_cowextsize != 0)
        return -EOPNOTSUPP;
    return 0;
}

void fs_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
              struct fuse_file_info *fi, unsigned ioctl_flags, const void *in_buf,
              size_t in_size, size_t out_size)
{
    struct fuse_op *op = fuse_op_begin(req);
    size_t room = is_xfs(cmd) ? sizeof(struct fsxattr) : sizeof(long);
    int rc;

    (void)arg;
    op->ino = ino;
    op->valid = cmd;
    op->size = out_size < room ? out_size : room;
    if ((ioctl_flags & FUSE_IOCTL_DIR) == 0)
        op->handle = (struct handle *)(uintptr_t)fi->fh;
    switch (cmd) {
    case FS_IOC_GETFLAGS:
    case FS_IOC_FSGETXATTR:
        fuse_op_goto_owner(op, ino, get_on_owner);
        break;
    case FS_IOC_SETFLAGS:
    case FS_IOC_FSSETXATTR:
        rc = read_flags(cmd, in_buf, in_size, &op->flags);
        if (rc != 0)
            fuse_op_reply_err(op, rc);
        else
            fuse_op_goto_owner(op, ino, set_on_owner);
        break;
    default:
        fuse_op_reply_err(op, -ENOTTY);
    }
}
