/*
 * fs_attr.c - getattr, setattr, statfs.
 *
 * In:     the kernel's requests. Out: md calls, the file layer for sizes, replies.
 * Keeps:  a truncate first flushes, then is exportd's, then the storages'
 *         (docs/internals/truncate.md); an mtime set by a user is not overwritten by one
 *         of a write before it.
 */
#include <errno.h>
#include <string.h>

#include "rozomount/inode/open_dirs.h"
#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"

/* ---- getattr ---- */

/* Without a handle the file may still be open, on its owner loop. */
static enum step_end getattr_goto_owner(struct fuse_op *op)
{
    return op->handle != NULL || mount_may_be_open(op->loop->mount, op->ino)
               ? fuse_op_goto_owner(op)
               : STEP_GO;
}

/*
 * Answers from kept attributes if possible. An open file is handled on its owner loop,
 * which knows the latest writes.
 */
static enum step_end getattr_ask(struct fuse_op *op)
{
    const struct node *node = node_find(&op->loop->nodes, op->ino);
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;

    fuse_op_note_asked(op);
    if (loop_may_tell(op->loop) && (node == NULL || !node->closing) &&
        token_cache_take_attr(op->loop->mount->tokens, op->ino, &op->entry.attr,
                              &op->entry.grant.number))
        return fuse_op_reply_attr(op);
    msg.ino = op->ino;
    return fuse_op_ask(op, ROZO__OP__MD_GETATTR, &msg.base);
}

static enum step_end getattr_answered(struct fuse_op *op)
{
    int rc = op->rc;

    if (rc == 0 &&
        (md_decode_entry(&op->call, &op->entry) != 0 || op->entry.attr.ino != op->ino))
        rc = -EIO;
    if (rc == -ENOENT)
        rc = -ESTALE;
    if (rc == -ESTALE &&
        open_dirs_last(op->loop->mount->open_dirs, op->ino, &op->entry.attr))
        rc = 0;
    if (rc != 0)
        return fuse_op_end(op, rc);
    fuse_op_take_grant(op, 0);
    return fuse_op_reply_attr(op);
}

/*
 * With an open file, Linux asks only for the end of the file for a read or a seek, never
 * for a stat.
 */
void fs_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    static fuse_op_step *const steps[] = {
        getattr_goto_owner, fuse_op_under_lock, getattr_ask, getattr_answered, NULL,
    };
    struct fuse_op *op = fuse_op_begin(req, sizeof(*op));

    op->ino = ino;
    if (fi != NULL)
        op->handle = handle_of(req, ino, fi);
    fuse_op_start(op, steps);
}

/* ---- setattr ---- */

struct setattr_op {
    struct fuse_op op;  /* must be first */
    uint32_t valid;     /* SetattrBits */
    struct stat st;     /* the new attributes */
    bool flushes_mtime; /* mtime that writeback_cache gave to written pages */
    bool holds_writes;  /* file_truncate_begin() was done */
};

/* Converts FUSE_SET_ATTR_* to exportd's bits. */
static uint32_t valid_to_wire(int valid)
{
    static const struct {
        int fuse;
        uint32_t wire;
    } table[] = {
        { FUSE_SET_ATTR_MODE, ROZO__SETATTR_BITS__SET_MODE },
        { FUSE_SET_ATTR_UID, ROZO__SETATTR_BITS__SET_UID },
        { FUSE_SET_ATTR_GID, ROZO__SETATTR_BITS__SET_GID },
        { FUSE_SET_ATTR_SIZE, ROZO__SETATTR_BITS__SET_SIZE },
    };
    uint32_t out = 0;

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if ((valid & table[i].fuse) != 0)
            out |= table[i].wire;
    }
    if ((valid & FUSE_SET_ATTR_ATIME_NOW) != 0)
        out |= ROZO__SETATTR_BITS__SET_ATIME_NOW;
    else if ((valid & FUSE_SET_ATTR_ATIME) != 0)
        out |= ROZO__SETATTR_BITS__SET_ATIME;
    if ((valid & FUSE_SET_ATTR_MTIME_NOW) != 0)
        out |= ROZO__SETATTR_BITS__SET_MTIME_NOW;
    else if ((valid & FUSE_SET_ATTR_MTIME) != 0)
        out |= ROZO__SETATTR_BITS__SET_MTIME;
    return out;
}

static fuse_op_step chown_look, chown_answered, setattr_get_node, setattr_take_token,
    setattr_hold_writes, setattr_held, setattr_ask, setattr_answered, setattr_truncate,
    truncate_clear_set_gid, set_gid_cleared, setattr_reply;

static fuse_op_step *const chown_steps[] = {
    fuse_op_goto_owner, chown_look, chown_answered, NULL, /* then setattr_steps */
};
static fuse_op_step *const setattr_steps[] = {
    fuse_op_under_lock,  setattr_get_node, setattr_take_token,
    setattr_hold_writes, setattr_held,     NULL, /* then set_steps */
};
static fuse_op_step *const set_steps[] = {
    setattr_ask,      setattr_answered,
    setattr_truncate, truncate_clear_set_gid,
    set_gid_cleared,  NULL,
};

static bool is_sized(const struct setattr_op *s)
{
    return (s->valid & ROZO__SETATTR_BITS__SET_SIZE) != 0;
}

static bool is_given_away(const struct setattr_op *s)
{
    return (s->valid & (ROZO__SETATTR_BITS__SET_UID | ROZO__SETATTR_BITS__SET_GID)) != 0;
}

/* Looks up the file's group first: chown by a caller outside it clears set-gid, too. */
static enum step_end chown_look(struct fuse_op *op)
{
    const struct setattr_op *s = (struct setattr_op *)op;
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;

    msg.ino = op->ino;
    return (s->valid & ROZO__SETATTR_BITS__SET_KILL_SUIDGID) != 0 &&
                   fuse_op_caller(op)->uid != 0 && is_given_away(s)
               ? fuse_op_ask(op, ROZO__OP__MD_GETATTR, &msg.base)
               : fuse_op_go(op, setattr_steps);
}

static enum step_end chown_answered(struct fuse_op *op)
{
    struct setattr_op *s = (struct setattr_op *)op;
    const struct md_attr *attr = &op->entry.attr;

    if (op->rc != 0)
        return fuse_op_end(op, op->rc == -ENOENT ? -ESTALE : op->rc);
    if (md_decode_entry(&op->call, &op->entry) != 0 || attr->ino != op->ino)
        return fuse_op_end(op, -EIO);
    s->valid |= fuse_op_kills_set_id(op, attr->mode, attr->gid);
    return fuse_op_go(op, setattr_steps);
}

static enum step_end setattr_get_node(struct fuse_op *op)
{
    const struct setattr_op *s = (struct setattr_op *)op;
    struct nodes *nodes = &op->loop->nodes;

    if (!is_sized(s) && node_find(nodes, op->ino) == NULL)
        return STEP_GO;
    op->node = node_get(nodes, op->ino);
    return fuse_op_wait_for_node(op);
}

static enum step_end setattr_take_token(struct fuse_op *op)
{
    if (!is_sized((struct setattr_op *)op))
        return STEP_GO;
    node_let_go(op->node); /* the file gets a new epoch */
    return fuse_op_with_token(op, op->node, TOKEN_EXCLUSIVE);
}

/* Flushes data, and holds writes until the truncate is done. */
static enum step_end setattr_hold_writes(struct fuse_op *op)
{
    struct setattr_op *s = (struct setattr_op *)op;

    if (!is_sized(s) || op->node->file == NULL)
        return fuse_op_go(op, set_steps);
    file_truncate_begin(op->node->file, fuse_op_file_done, op);
    return STEP_WAIT;
}

/*
 * Lets writes go on after a failed truncate; refused: it certainly does not happen, else
 * its outcome is unknown.
 */
static void setattr_cancel(struct setattr_op *s, bool refused)
{
    struct file *file = s->op.node == NULL ? NULL : s->op.node->file;

    if (s->holds_writes && refused)
        file_truncate_cancel(file);
    else if (file != NULL && !refused && is_sized(s))
        file_truncate_unsure(file);
}

static enum step_end setattr_held(struct fuse_op *op)
{
    struct setattr_op *s = (struct setattr_op *)op;

    s->holds_writes = op->rc == 0;
    if (op->rc == 0 && fuse_op_has_lost_its_lock(op)) { /* lost while op waited */
        setattr_cancel(s, true);
        return fuse_op_end(op, -EIO);
    }
    return op->rc == 0 ? fuse_op_go(op, set_steps)
                       : fuse_op_end(op, md_client_user_errno(op->rc));
}

static void setattr_pack(const struct setattr_op *s, Rozo__MdSetattrReq *msg)
{
    const wide_ns atime_ns = wide_ns_of_timespec(s->st.st_atim);
    const wide_ns mtime_ns = wide_ns_of_timespec(s->st.st_mtim);
    const struct node *node = s->op.node;

    rozo__md_setattr_req__init(msg);
    msg->ino = s->op.ino;
    msg->valid = s->valid;
    msg->mode = s->st.st_mode & 07777;
    msg->uid = s->st.st_uid;
    msg->gid = s->st.st_gid;
    msg->size = (uint64_t)s->st.st_size;
    msg->atime_ns = wide_ns_near(atime_ns);
    msg->atime_more_s = wide_ns_more_s(atime_ns);
    msg->mtime_ns = wide_ns_near(mtime_ns);
    msg->mtime_more_s = wide_ns_more_s(mtime_ns);
    /* File flags come only from an exportd that knows this bit. */
    if (s->flushes_mtime && node != NULL && node->file_flags != 0)
        msg->valid |= ROZO__SETATTR_BITS__SET_WRITTEN;
}

static enum step_end setattr_ask(struct fuse_op *op)
{
    enum {
        ATIME = ROZO__SETATTR_BITS__SET_ATIME | ROZO__SETATTR_BITS__SET_ATIME_NOW,
        MTIME = ROZO__SETATTR_BITS__SET_MTIME | ROZO__SETATTR_BITS__SET_MTIME_NOW,
    };
    const struct setattr_op *s = (struct setattr_op *)op;
    Rozo__MdSetattrReq msg;

    setattr_pack(s, &msg);
    if ((s->valid & ATIME) != 0)
        atimes_forget(op->loop->mount->atimes, op->ino);
    if (op->node != NULL) {
        node_change_sent(op->node);
        if (op->node->file != NULL &&
            (s->valid & (MTIME | ROZO__SETATTR_BITS__SET_SIZE)) != 0)
            file_forget_mtime(op->node->file);
    }
    if ((s->valid & ~(uint32_t)(ATIME | MTIME)) != 0) /* an ACL changes with the mode */
        fuse_op_changes_xattrs(op, op->ino);
    return fuse_op_ask(op, ROZO__OP__MD_SETATTR, &msg.base);
}

/*
 * Takes exportd's answer: op->entry is the changed inode, or rc the error. refused: the
 * change was certainly not done.
 */
static enum step_end setattr_take(struct setattr_op *s, int rc, bool refused)
{
    struct fuse_op *op = &s->op;
    bool sized = is_sized(s);

    if (rc == 0 && (op->entry.attr.ino != op->ino || (sized && !op->entry.has_target)))
        rc = -EIO;
    if (rc == 0 && sized)
        node_size_set(op->node, &op->entry.attr);
    if (op->node != NULL)
        node_change_answered(op->node, rc == 0 ? &op->entry.attr : NULL);
    if (rc == -ENOENT)
        rc = -ESTALE;
    if (rc != 0) {
        setattr_cancel(s, refused);
        return fuse_op_end(op, rc);
    }
    fuse_op_take_grant(op, 0);
    return STEP_GO;
}

/* Continues a change that exportd had done before its restart. It is not repeated: others
 * may have written past a truncate since. The attributes are asked for; if the inode is
 * gone, the outcome is unknown. */
static enum step_end done_before_answered(struct fuse_op *op)
{
    struct setattr_op *s = (struct setattr_op *)op;
    int (*decode)(const struct md_call *, struct md_entry *) =
        is_sized(s) ? md_decode_open : md_decode_entry;
    int rc = op->rc != 0 || decode(&op->call, &op->entry) != 0 ? -EIO : 0;

    op->entry.file.truncate_is_old = true;
    return setattr_take(s, rc, false);
}

static enum step_end done_before_ask(struct fuse_op *op)
{
    Rozo__MdOpenReq open = ROZO__MD_OPEN_REQ__INIT;
    Rozo__MdGetattrReq get = ROZO__MD_GETATTR_REQ__INIT;

    op->interrupt.by = SIGNALS_NONE;
    op->next = done_before_answered;
    open.ino = get.ino = op->ino;
    open.write = open.no_reference = true;
    return is_sized((struct setattr_op *)op)
               ? fuse_op_ask(op, ROZO__OP__MD_OPEN, &open.base)
               : fuse_op_ask(op, ROZO__OP__MD_GETATTR, &get.base);
}

static enum step_end setattr_answered(struct fuse_op *op)
{
    /* answered, or never sent */
    bool refused = op->rc != 0 && (op->call.answered || op->rc == -EINTR);
    int rc = op->rc;

    if (fuse_op_was_done(op))
        return done_before_ask(op);
    if (rc == 0 && md_decode_entry(&op->call, &op->entry) != 0)
        rc = -EIO;
    op->changes.entry = op->changes.ino;
    return setattr_take((struct setattr_op *)op, rc, refused);
}

static enum step_end setattr_truncate(struct fuse_op *op)
{
    const struct setattr_op *s = (struct setattr_op *)op;
    int rc = 0;

    if (!is_sized(s))
        return setattr_reply(op);
    if (op->node->file == NULL) /* not open: used only to truncate on the storages */
        rc = node_adopt(op->node, &op->entry, false);
    op->entry.target.session = 0; /* the session of our token, even if lost */
    if (rc != 0)
        return fuse_op_end(op, md_client_user_errno(rc));
    file_truncate(op->node->file, &op->entry.target, &op->entry.file, fuse_op_file_done,
                  op);
    return STEP_WAIT;
}

/*
 * Clears set-gid if the caller is outside the file's group: exportd clears set-id bits on
 * a truncate, but does not know the groups of the caller.
 */
static enum step_end truncate_clear_set_gid(struct fuse_op *op)
{
    const struct md_attr *attr = &op->entry.attr;
    Rozo__MdSetattrReq msg = ROZO__MD_SETATTR_REQ__INIT;

    if (op->rc != 0)
        return fuse_op_end(op, md_client_user_errno(op->rc));
    msg.ino = op->ino;
    msg.valid = !op->loop->mount->drops_privileges
                    ? 0
                    : fuse_op_kills_set_id(op, attr->mode, attr->gid) &
                          ROZO__SETATTR_BITS__SET_KILL_SGID;
    if (msg.valid == 0)
        return setattr_reply(op);
    op->interrupt.by = SIGNALS_NONE;
    node_change_sent(op->node);
    return fuse_op_ask(op, ROZO__OP__MD_SETATTR, &msg.base);
}

static enum step_end set_gid_cleared(struct fuse_op *op)
{
    int rc = op->rc;

    if (rc == 0 &&
        (md_decode_entry(&op->call, &op->entry) != 0 || op->entry.attr.ino != op->ino))
        rc = -EIO;
    node_change_answered(op->node, rc == 0 ? &op->entry.attr : NULL);
    op->changes.entry = op->changes.ino;
    if (fuse_op_was_done(op)) {
        op->entry.attr.mode &= ~(uint32_t)S_ISGID;
        rc = 0;
    }
    return rc != 0 ? fuse_op_end(op, rc) : setattr_reply(op);
}

static enum step_end setattr_reply(struct fuse_op *op)
{
    return ((struct setattr_op *)op)->valid != 0 ? fuse_op_reply_changed_attr(op)
                                                 : fuse_op_reply_attr(op);
}

/*
 * Returns true for changes that clear set-id bits: a new owner, or a new size unless root
 * sets it.
 */
static bool takes_set_id(const struct setattr_op *s)
{
    return is_given_away(s) || (fuse_op_caller(&s->op)->uid != 0 && is_sized(s));
}

void fs_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int valid,
                struct fuse_file_info *fi)
{
    struct setattr_op *s = fuse_op_begin(req, sizeof(*s));
    const struct mount *m = s->op.loop->mount;

    s->op.ino = ino;
    s->st = *st;
    s->valid = valid_to_wire(valid);
    /* utimes(2) never names an open file to FUSE. */
    s->flushes_mtime =
        fi != NULL && mount_writes_back(m) && s->valid == ROZO__SETATTR_BITS__SET_MTIME;
    if (fi != NULL && is_sized(s))
        s->op.handle = handle_of(req, ino, fi);
    if (m->drops_privileges && takes_set_id(s))
        s->valid |= ROZO__SETATTR_BITS__SET_KILL_SUIDGID;
    fuse_op_start(&s->op, chown_steps);
}

/* ---- statfs ---- */

static enum step_end statfs_ask(struct fuse_op *op)
{
    Rozo__MdStatfsReq msg = ROZO__MD_STATFS_REQ__INIT;

    return fuse_op_ask(op, ROZO__OP__MD_STATFS, &msg.base);
}

static void statfs_fill(const Rozo__MdStatfsResp *msg, struct statvfs *st)
{
    enum { UNIT = 4096 };

    st->f_bsize = st->f_frsize = UNIT; /* many programs multiply blocks by f_bsize */
    st->f_blocks = msg->total_bytes / UNIT;
    st->f_bavail = msg->free_bytes / UNIT;
    st->f_bfree =
        msg->unused_bytes > msg->free_bytes ? msg->unused_bytes / UNIT : st->f_bavail;
    /* each inode with data takes a block at least */
    st->f_ffree = st->f_favail = st->f_bavail;
    st->f_files = msg->files + st->f_ffree;
    st->f_namemax = NAME_BYTES_MAX;
}

static enum step_end statfs_answered(struct fuse_op *op)
{
    Rozo__MdStatfsResp *msg;
    struct statvfs st = { 0 };
    fuse_req_t req = op->req;

    if (op->rc != 0)
        return STEP_END;
    msg = rozo__md_statfs_resp__unpack(NULL, op->call.answer_len, op->call.answer);
    if (msg == NULL)
        return fuse_op_end(op, -EIO);
    statfs_fill(msg, &st);
    rozo__md_statfs_resp__free_unpacked(msg, NULL);
    op->req = NULL;
    fuse_reply_statfs(req, &st);
    return fuse_op_finish(op);
}

void fs_statfs(fuse_req_t req, fuse_ino_t ino)
{
    static fuse_op_step *const steps[] = { statfs_ask, statfs_answered, NULL };
    struct fuse_op *op = fuse_op_begin(req, sizeof(*op));

    (void)ino;
    fuse_op_start(op, steps);
}
