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

static void on_got_attr(struct fuse_op *op, int rc)
{
    if (rc == 0 &&
        (md_decode_entry(&op->call, &op->entry) != 0 || op->entry.attr.ino != op->ino))
        rc = -EIO;
    if (rc == -ENOENT)
        rc = -ESTALE;
    if (rc == -ESTALE &&
        open_dirs_last(op->loop->mount->open_dirs, op->ino, &op->entry.attr))
        rc = 0;
    if (rc != 0) {
        fuse_op_reply_err(op, rc);
        return;
    }
    fuse_op_take_grant(op, 0);
    fuse_op_reply_attr(op);
}

/*
 * Answers from kept attributes if possible. An open file is handled on its owner loop,
 * which knows the latest writes.
 */
static void getattr_here(struct fuse_op *op)
{
    const struct node *node = node_find(&op->loop->nodes, op->ino);
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;

    fuse_op_note_asked(op);
    if (loop_may_tell(op->loop) && (node == NULL || !node->closing) &&
        token_cache_take_attr(op->loop->mount->tokens, op->ino, &op->entry.attr,
                              &op->entry.grant.number)) {
        fuse_op_reply_attr(op);
        return;
    }
    msg.ino = op->ino;
    fuse_op_ask(op, ROZO__OP__MD_GETATTR, &msg.base, on_got_attr);
}

static void getattr_under_lock(struct fuse_op *op)
{
    fuse_op_under_lock(op, op->handle, getattr_here);
}

/*
 * With an open file, Linux asks only for the end of the file for a read or a seek, never
 * for a stat.
 */
void fs_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fuse_op *op = fuse_op_begin(req);

    op->ino = ino;
    if (fi != NULL)
        op->handle = (struct handle *)(uintptr_t)fi->fh;
    if (op->handle != NULL)
        fuse_op_goto_owner(op, ino, getattr_under_lock);
    else if (mount_may_be_open(op->loop->mount, ino))
        fuse_op_goto_owner(op, ino, getattr_here);
    else
        getattr_here(op);
}

/* ---- setattr ---- */

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

static void on_set_gid_gone(struct fuse_op *op, int rc)
{
    if (rc == 0 &&
        (md_decode_entry(&op->call, &op->entry) != 0 || op->entry.attr.ino != op->ino))
        rc = -EIO;
    node_change_answered(op->node, rc == 0 ? &op->entry.attr : NULL);
    op->changes = op->changes_ino;
    if (fuse_op_was_done(op)) {
        op->entry.attr.mode &= ~(uint32_t)S_ISGID;
        rc = 0;
    }
    if (rc != 0)
        fuse_op_reply_err(op, rc);
    else
        fuse_op_reply_attr(op);
}

/*
 * Clears set-gid if the caller is outside the file's group: exportd clears set-id bits on
 * a truncate, but does not know the groups of the caller.
 */
static void on_truncated(void *arg, int rc)
{
    struct fuse_op *op = arg;
    const struct md_attr *attr = &op->entry.attr;
    Rozo__MdSetattrReq msg = ROZO__MD_SETATTR_REQ__INIT;

    if (rc != 0) {
        fuse_op_reply_err(op, md_client_user_errno(rc));
        return;
    }
    msg.ino = op->ino;
    msg.valid = !op->loop->mount->drops_privileges
                    ? 0
                    : fuse_op_kills_set_id(op, attr->mode, attr->gid) &
                          ROZO__SETATTR_BITS__SET_KILL_SGID;
    if (msg.valid == 0) {
        fuse_op_reply_attr(op);
        return;
    }
    op->to_the_end = true;
    node_change_sent(op->node);
    fuse_op_ask(op, ROZO__OP__MD_SETATTR, &msg.base, on_set_gid_gone);
}

static bool is_sized(const struct fuse_op *op)
{
    return (op->valid & ROZO__SETATTR_BITS__SET_SIZE) != 0;
}

/*
 * Lets writes go on after a failed truncate; refused: it certainly does not happen, else
 * its outcome is unknown.
 */
static void setattr_cancel(struct fuse_op *op, bool refused)
{
    struct file *file = op->node == NULL ? NULL : op->node->file;

    if (op->plus && refused)
        file_truncate_cancel(file);
    else if (file != NULL && !refused && is_sized(op))
        file_truncate_unsure(file);
}

/*
 * Takes exportd's answer: op->entry is the changed inode, or rc the error. refused: the
 * change was certainly not done.
 */
static void setattr_take(struct fuse_op *op, int rc, bool refused)
{
    bool sized = is_sized(op);

    if (rc == 0 && (op->entry.attr.ino != op->ino || (sized && !op->entry.has_target)))
        rc = -EIO;
    if (rc == 0 && sized)
        node_size_set(op->node, &op->entry.attr);
    if (op->node != NULL)
        node_change_answered(op->node, rc == 0 ? &op->entry.attr : NULL);
    if (rc == -ENOENT)
        rc = -ESTALE;
    if (rc != 0) {
        setattr_cancel(op, refused);
        fuse_op_reply_err(op, rc);
        return;
    }
    fuse_op_take_grant(op, 0);
    if (!sized) {
        fuse_op_reply_attr(op);
        return;
    }
    if (op->node->file == NULL) /* not open: used only to truncate on the storages */
        rc = node_adopt(op->node, &op->entry, false);
    op->entry.target.session = 0; /* the session of our token, even if lost */
    if (rc != 0)
        fuse_op_reply_err(op, md_client_user_errno(rc));
    else
        file_truncate(op->node->file, &op->entry.target, &op->entry.file, on_truncated,
                      op);
}

/* Continues a change that exportd had done before its restart. It is not repeated: others
 * may have written past a truncate since. The attributes are asked for; if the inode is
 * gone, the outcome is unknown. */
static void on_set_before(struct fuse_op *op, int rc)
{
    int (*decode)(const struct md_call *, struct md_entry *) =
        is_sized(op) ? md_decode_open : md_decode_entry;

    if (rc != 0 || decode(&op->call, &op->entry) != 0)
        rc = -EIO;
    op->entry.file.truncate_is_old = true;
    setattr_take(op, rc, false);
}

static void was_set_before(struct fuse_op *op)
{
    Rozo__MdOpenReq open = ROZO__MD_OPEN_REQ__INIT;
    Rozo__MdGetattrReq get = ROZO__MD_GETATTR_REQ__INIT;

    op->to_the_end = true;
    open.ino = get.ino = op->ino;
    open.write = open.no_reference = true;
    if (is_sized(op))
        fuse_op_ask(op, ROZO__OP__MD_OPEN, &open.base, on_set_before);
    else
        fuse_op_ask(op, ROZO__OP__MD_GETATTR, &get.base, on_set_before);
}

static void on_attr_set(struct fuse_op *op, int rc)
{
    /* answered, or never sent */
    bool refused = rc != 0 && (op->call.answered || rc == -EINTR);

    if (fuse_op_was_done(op)) {
        was_set_before(op);
        return;
    }
    if (rc == 0 && md_decode_entry(&op->call, &op->entry) != 0)
        rc = -EIO;
    op->changes = op->changes_ino;
    setattr_take(op, rc, refused);
}

static void setattr_ask(struct fuse_op *op)
{
    enum {
        TIMES = ROZO__SETATTR_BITS__SET_ATIME | ROZO__SETATTR_BITS__SET_ATIME_NOW |
                ROZO__SETATTR_BITS__SET_MTIME | ROZO__SETATTR_BITS__SET_MTIME_NOW,
    };
    const wide_ns atime_ns = wide_ns_of_timespec(op->st.st_atim);
    const wide_ns mtime_ns = wide_ns_of_timespec(op->st.st_mtim);
    Rozo__MdSetattrReq msg = ROZO__MD_SETATTR_REQ__INIT;

    if ((op->valid &
         (ROZO__SETATTR_BITS__SET_ATIME | ROZO__SETATTR_BITS__SET_ATIME_NOW)) != 0)
        atimes_forget(op->loop->mount->atimes, op->ino);
    msg.ino = op->ino;
    msg.valid = op->valid;
    msg.mode = op->st.st_mode & 07777;
    msg.uid = op->st.st_uid;
    msg.gid = op->st.st_gid;
    msg.size = (uint64_t)op->st.st_size;
    msg.atime_ns = wide_ns_near(atime_ns);
    msg.atime_more_s = wide_ns_more_s(atime_ns);
    msg.mtime_ns = wide_ns_near(mtime_ns);
    msg.mtime_more_s = wide_ns_more_s(mtime_ns);
    /* File flags come only from an exportd that knows this bit. */
    if (op->flushes_mtime && op->node != NULL && op->node->file_flags != 0)
        msg.valid |= ROZO__SETATTR_BITS__SET_WRITTEN;
    if (op->node != NULL) {
        node_change_sent(op->node);
        if (op->node->file != NULL && (op->valid & (ROZO__SETATTR_BITS__SET_MTIME |
                                                    ROZO__SETATTR_BITS__SET_MTIME_NOW |
                                                    ROZO__SETATTR_BITS__SET_SIZE)) != 0)
            file_forget_mtime(op->node->file);
    }
    if ((op->valid & ~(uint32_t)TIMES) != 0) /* an ACL changes with the mode */
        fuse_op_changes_xattrs(op, op->ino);
    fuse_op_ask(op, ROZO__OP__MD_SETATTR, &msg.base, on_attr_set);
}

/* Continues when data are flushed; writes are held until the truncate is done. */
static void on_held(void *arg, int rc)
{
    struct fuse_op *op = arg;

    op->plus = rc == 0;
    if (rc == 0 && fuse_op_has_lost_its_lock(op)) { /* lost while op waited */
        setattr_cancel(op, true);
        rc = -EIO;
    }
    if (rc != 0)
        fuse_op_reply_err(op, md_client_user_errno(rc));
    else
        setattr_ask(op);
}

static void setattr_with_token(struct fuse_op *op)
{
    if (op->node->file != NULL && is_sized(op))
        file_truncate_begin(op->node->file, on_held, op);
    else
        setattr_ask(op);
}

/* Continues when the node is ready and not closing. */
static void setattr_with_node(struct fuse_op *op)
{
    if (is_sized(op)) {
        node_let_go(op->node); /* the file gets a new epoch */
        fuse_op_with_token(op, op->node, TOKEN_EXCLUSIVE, setattr_with_token);
    } else {
        setattr_ask(op);
    }
}

static void setattr_under_lock(struct fuse_op *op)
{
    struct nodes *nodes = &op->loop->nodes;

    if (is_sized(op) || node_find(nodes, op->ino) != NULL) {
        op->node = node_get(nodes, op->ino);
        fuse_op_with_node(op, setattr_with_node);
    } else {
        setattr_ask(op);
    }
}

static void setattr_on_owner(struct fuse_op *op)
{
    if (op->handle != NULL)
        fuse_op_under_lock(op, op->handle, setattr_under_lock);
    else
        setattr_under_lock(op);
}

static bool is_given_away(const struct fuse_op *op)
{
    return (op->valid & (ROZO__SETATTR_BITS__SET_UID | ROZO__SETATTR_BITS__SET_GID)) != 0;
}

/*
 * Returns true for changes that clear set-id bits: a new owner, or a new size unless root
 * sets it.
 */
static bool takes_set_id(const struct fuse_op *op)
{
    return is_given_away(op) || (op->uid != 0 && is_sized(op));
}

static void on_attr_for_chown(struct fuse_op *op, int rc)
{
    const struct md_attr *attr = &op->entry.attr;

    if (rc == 0 && (md_decode_entry(&op->call, &op->entry) != 0 || attr->ino != op->ino))
        rc = -EIO;
    if (rc == -ENOENT)
        rc = -ESTALE;
    if (rc != 0) {
        fuse_op_reply_err(op, rc);
        return;
    }
    op->valid |= fuse_op_kills_set_id(op, attr->mode, attr->gid);
    setattr_on_owner(op);
}

/* Looks up the file's group first: chown by a caller outside it clears set-gid, too. */
static void chown_look(struct fuse_op *op)
{
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;

    msg.ino = op->ino;
    fuse_op_ask(op, ROZO__OP__MD_GETATTR, &msg.base, on_attr_for_chown);
}

void fs_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int valid,
                struct fuse_file_info *fi)
{
    struct fuse_op *op = fuse_op_begin(req);

    op->ino = ino;
    op->st = *st;
    op->valid = valid_to_wire(valid);
    /* utimes(2) never names an open file to FUSE. */
    op->flushes_mtime = fi != NULL && op->loop->mount->writeback &&
                        op->valid == ROZO__SETATTR_BITS__SET_MTIME;
    if (fi != NULL && is_sized(op))
        op->handle = (struct handle *)(uintptr_t)fi->fh;
    if (op->loop->mount->drops_privileges && takes_set_id(op))
        op->valid |= ROZO__SETATTR_BITS__SET_KILL_SUIDGID;
    fuse_op_goto_owner(op, ino,
                       (op->valid & ROZO__SETATTR_BITS__SET_KILL_SUIDGID) != 0 &&
                               op->uid != 0 && is_given_away(op)
                           ? chown_look
                           : setattr_on_owner);
}

/* ---- statfs ---- */

static void on_statfs(struct fuse_op *op, int rc)
{
    enum { UNIT = 4096 };
    Rozo__MdStatfsResp *msg = NULL;
    struct statvfs st = { 0 };
    fuse_req_t req;

    if (rc == 0) {
        msg = rozo__md_statfs_resp__unpack(NULL, op->call.answer_len, op->call.answer);
        if (msg == NULL)
            rc = -EIO;
    }
    if (rc != 0) {
        fuse_op_reply_err(op, rc);
        return;
    }
    st.f_bsize = st.f_frsize = UNIT; /* many programs multiply blocks by f_bsize */
    st.f_blocks = msg->total_bytes / UNIT;
    st.f_bavail = msg->free_bytes / UNIT;
    st.f_bfree =
        msg->unused_bytes > msg->free_bytes ? msg->unused_bytes / UNIT : st.f_bavail;
    /* each inode with data takes a block at least */
    st.f_ffree = st.f_favail = st.f_bavail;
    st.f_files = msg->files + st.f_ffree;
    st.f_namemax = NAME_BYTES_MAX;
    rozo__md_statfs_resp__free_unpacked(msg, NULL);
    req = op->req;
    op->req = NULL;
    fuse_reply_statfs(req, &st);
    fuse_op_finish(op);
}

void fs_statfs(fuse_req_t req, fuse_ino_t ino)
{
    struct fuse_op *op = fuse_op_begin(req);
    Rozo__MdStatfsReq msg = ROZO__MD_STATFS_REQ__INIT;

    (void)ino;
    fuse_op_ask(op, ROZO__OP__MD_STATFS, &msg.base, on_statfs);
}
