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

struct flags_op {
    struct fuse_op op; /* must be first; handle is NULL for a directory */
    unsigned cmd;      /* FS_IOC_* */
    uint32_t flags;    /* FileFlags to set */
    size_t room;       /* bytes for the answer */
};

static int take_attr(struct fuse_op *op)
{
    if (op->rc == 0 &&
        (md_decode_entry(&op->call, &op->entry) != 0 || op->entry.attr.ino != op->ino))
        op->rc = -EIO;
    if (op->rc == 0)
        fuse_op_take_grant(op, 0);
    return op->rc == -ENOENT ? -ESTALE : op->rc;
}

static enum step_end flags_ask(struct fuse_op *op)
{
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;

    msg.ino = op->ino;
    return fuse_op_ask(op, ROZO__OP__MD_GETATTR, &msg.base);
}

/* ---- setting ---- */

static enum step_end set_reply(struct fuse_op *op)
{
    fuse_req_t req = op->req;

    op->req = NULL;
    fuse_reply_ioctl(req, 0, NULL, 0);
    return fuse_op_finish(op);
}

/* The kernel writes out changed mappings of a file first. */
static enum step_end set_drop_pages(struct fuse_op *op)
{
    const struct flags_op *f = (struct flags_op *)op;
    int rc = take_attr(op);

    if (rc != 0)
        return fuse_op_end(op, rc);
    if (op->entry.attr.file_flags == f->flags)
        return set_reply(op);
    if (fuse_op_caller(op)->uid != 0)
        return fuse_op_end(op, -EPERM);
    return op->handle != NULL ? fuse_op_drop_pages(op) : STEP_GO;
}

static enum step_end set_send(struct fuse_op *op)
{
    Rozo__MdSetattrReq msg = ROZO__MD_SETATTR_REQ__INIT;

    msg.ino = op->ino;
    msg.valid = ROZO__SETATTR_BITS__SET_FLAGS;
    msg.file_flags = ((struct flags_op *)op)->flags;
    if (op->handle != NULL)
        node_change_sent(op->handle->node);
    return fuse_op_ask(op, ROZO__OP__MD_SETATTR, &msg.base);
}

static enum step_end set_before_answered(struct fuse_op *op)
{
    int rc = take_attr(op);

    if (rc == 0 && op->handle != NULL)
        node_note_mode(op->handle->node, &op->entry.attr);
    return rc == 0 ? STEP_GO
                   : fuse_op_end(op, -EIO); /* done, but the result is unknown */
}

static enum step_end set_answered(struct fuse_op *op)
{
    int rc;

    if (op->rc == -EINVAL && op->call.answered) /* exportd knows no flags */
        op->rc = -EOPNOTSUPP;
    rc = take_attr(op);
    if (op->handle != NULL)
        node_change_answered(op->handle->node, rc == 0 ? &op->entry.attr : NULL);
    if (fuse_op_was_done(op)) {
        op->interrupt.by = SIGNALS_NONE;
        op->next = set_before_answered;
        return flags_ask(op);
    }
    return rc == 0 ? STEP_GO : fuse_op_end(op, rc);
}

/* ---- getting ---- */

static enum step_end get_answered(struct fuse_op *op)
{
    const struct flags_op *f = (struct flags_op *)op;
    bool xfs = is_xfs(f->cmd);
    int rc = take_attr(op);
    struct fsxattr x = { .fsx_xflags = flags_from_wire(op->entry.attr.file_flags, xfs) };
    uint64_t room[(sizeof(x) + 7) / 8] = { x.fsx_xflags }; /* room for an int or a long */
    fuse_req_t req = op->req;

    if (rc != 0)
        return fuse_op_end(op, rc);
    if (xfs)
        memcpy(room, &x, sizeof(x));
    op->req = NULL;
    fuse_reply_ioctl(req, 0, room, f->room);
    return fuse_op_finish(op);
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
    static fuse_op_step *const get_steps[] = {
        fuse_op_goto_owner,
        flags_ask,
        get_answered,
        NULL,
    };
    static fuse_op_step *const set_steps[] = {
        fuse_op_goto_owner, flags_ask, set_drop_pages, set_send, set_answered,
        fuse_op_drop_pages, /* the kernel does not know the new ctime */
        set_reply,          NULL,
    };
    struct flags_op *f = fuse_op_begin(req, sizeof(*f));
    size_t room = is_xfs(cmd) ? sizeof(struct fsxattr) : sizeof(long);
    int rc;

    (void)arg;
    f->op.ino = ino;
    f->cmd = cmd;
    f->room = out_size < room ? out_size : room;
    if ((ioctl_flags & FUSE_IOCTL_DIR) == 0)
        f->op.handle = handle_of(req, ino, fi);
    switch (cmd) {
    case FS_IOC_GETFLAGS:
    case FS_IOC_FSGETXATTR:
        fuse_op_start(&f->op, get_steps);
        break;
    case FS_IOC_SETFLAGS:
    case FS_IOC_FSSETXATTR:
        rc = read_flags(cmd, in_buf, in_size, &f->flags);
        if (rc != 0)
            fuse_op_reply_err(&f->op, rc);
        else
            fuse_op_start(&f->op, set_steps);
        break;
    default:
        fuse_op_reply_err(&f->op, -ENOTTY);
    }
}
