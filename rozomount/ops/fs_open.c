/*
 * fs_open.c - open files: open, the end of create, flush, release.
 *
 * In:     the kernel's requests; all work is done on the owner loop of the inode.
 * Out:    md calls at open, flushes of the file layer, replies.
 * Keeps:  the locks of a process are released by its close, after its data are flushed.
 */
#include <errno.h>
#include <fcntl.h>

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/prefetch/file_prefetch.h"

/* ---- open, create ---- */

/* Returns true if the open bypasses the page cache: write-only, or O_DIRECT or O_APPEND
 * if it can still be mapped. Appends must: the kernel would cache their data before we
 * choose the offset. */
static bool open_goes_past_pages(const struct mount *m, int flags)
{
    bool reads = (flags & O_ACCMODE) != O_WRONLY;
    bool appends = (flags & O_ACCMODE) != O_RDONLY && (flags & O_APPEND) != 0;
    bool may = !reads || (m->maps_direct && ((flags & O_DIRECT) != 0 || appends));

    return m->cache == CACHE_NONE || (m->cache == CACHE_READS && may);
}

/* Gives the pin of op->node, which has its file, to a new handle. Returns false if too
 * many files are open. */
static bool open_set_handle(struct open_op *o)
{
    struct fuse_op *op = &o->op;

    o->fi.direct_io = open_goes_past_pages(op->loop->mount, o->fi.flags);
    o->fi.keep_cache = o->keep_cache;
    op->handle = handle_new(op->loop, op->node, o->fi.flags, o->fi.direct_io);
    if (op->handle == NULL)
        return false;
    op->node = NULL;
    o->fi.fh = op->handle->number;
    return true;
}

/*
 * Ends an open. rc: of fuse_reply_open/create; -ENOENT: the caller is gone, so the kernel
 * sends no RELEASE.
 */
static enum step_end open_end(struct open_op *o, int rc)
{
    if (rc == -ENOENT)
        handle_free(o->op.loop, o->op.handle);
    return fuse_op_finish(&o->op);
}

/* With O_DIRECT, writes of a file run side by side, as in local file systems: each block
 * is as one of them wrote it. Other writes are atomic, even if split into several
 * requests. */
static bool open_is_parallel(const struct open_op *o)
{
    return o->fi.direct_io && (o->fi.flags & O_DIRECT) != 0;
}

static enum step_end open_get_node(struct fuse_op *op)
{
    op->node = node_get(&op->loop->nodes, op->ino);
    return fuse_op_wait_for_node(op);
}

/* Asks exportd unless its answer to an earlier open is still valid. */
static enum step_end open_ask(struct fuse_op *op)
{
    struct open_op *o = (struct open_op *)op;
    Rozo__MdOpenReq msg = ROZO__MD_OPEN_REQ__INIT;

    msg.ino = op->ino;
    msg.write = (o->fi.flags & O_ACCMODE) != O_RDONLY;
    msg.append = (o->fi.flags & O_APPEND) != 0;
    if (msg.write)
        node_let_go(op->node); /* exportd must learn of its last close */
    if (msg.write || !node_is_open_still(op->loop, op->node))
        return fuse_op_ask(op, ROZO__OP__MD_OPEN, &msg.base);
    o->is_open_still = true;
    return STEP_GO;
}

static enum step_end open_answered(struct fuse_op *op)
{
    struct open_op *o = (struct open_op *)op;
    int rc;

    if (o->is_open_still) {
        o->keep_cache = true; /* pages go with the token */
        return STEP_GO;
    }
    rc = fuse_op_hear_open(op);
    if (rc == 0 && node_is_stale(op->node, &op->entry.attr)) {
        node_count_unanswered(op->node);
        rc = -ESTALE;
    }
    if (rc == 0)
        rc = fuse_op_take_open(op, &o->keep_cache);
    /* Pages exist only under a token, and go with it. */
    o->keep_cache |= token_cache_are_given(op->loop->mount->tokens);
    return rc == 0 ? STEP_GO : fuse_op_end(op, rc == -ENOENT ? -ESTALE : rc);
}

/* Counts the open as a read if the kernel has pages, because it sends no READ for them.
 * Without pages the READ counts: attributes dropped here would cost a request. */
static enum step_end open_note_read(struct fuse_op *op)
{
    const struct open_op *o = (struct open_op *)op;
    const struct mount *m = op->loop->mount;

    return o->keep_cache && open_counts_as_read(o->fi.flags) &&
                   !open_goes_past_pages(m, o->fi.flags) &&
                   tokens_have_data(m->tokens, op->ino) &&
                   node_note_read(op->node, m->atimes)
               ? fuse_op_drop_attr(op)
               : STEP_GO;
}

static enum step_end open_reply(struct fuse_op *op)
{
    struct open_op *o = (struct open_op *)op;
    struct loop *loop = op->loop;
    fuse_req_t req = op->req;
    uint64_t ino = op->ino;
    bool reads = (o->fi.flags & (O_ACCMODE | O_TRUNC)) == O_RDONLY;

    if (!open_set_handle(o))
        return fuse_op_end(op, -ENFILE);
    op->req = NULL;
    open_end(o, loop->mount->shell->reply_open(req, NULL, &o->fi, open_is_parallel(o)));
    if (reads)
        file_prefetch_opened(loop, ino);
    return STEP_WAIT;
}

void fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    static fuse_op_step *const steps[] = {
        fuse_op_goto_owner, open_get_node, open_ask, open_answered,
        open_note_read,     open_reply,    NULL,
    };
    struct open_op *o = fuse_op_begin(req, sizeof(*o));

    o->op.ino = ino;
    o->fi = *fi;
    fuse_op_start(&o->op, steps);
}

/* ---- the end of create ---- */

static enum step_end created_goto_owner(struct fuse_op *op)
{
    return fuse_op_goto(op, op->entry.attr.ino);
}

static enum step_end created_get_node(struct fuse_op *op)
{
    op->node = node_get(&op->loop->nodes, op->entry.attr.ino);
    return fuse_op_wait_for_node(op);
}

static enum step_end created_adopt(struct fuse_op *op)
{
    int rc;

    fuse_op_take_data_grant(op);
    node_cache_is_fresh(op->node, &op->entry.attr);
    rc = op->entry.has_target ? node_adopt(op->node, &op->entry, true) : -EBADMSG;
    if (rc != 0)
        return fuse_op_end(op, md_client_user_errno(rc));
    node_note_mode(op->node, &op->entry.attr);
    if (!op->entry.existed)
        node_note_no_capability(op->node);
    if (op->name == NULL)
        op->node->names = NODE_GONE;
    return STEP_GO;
}

static enum step_end created_reply(struct fuse_op *op)
{
    struct open_op *o = (struct open_op *)op;
    struct token_cache *t = op->loop->mount->tokens;
    struct fuse_entry_param e;
    fuse_req_t req = op->req;
    int rc;

    if (!open_set_handle(o))
        return fuse_op_end(op, -ENFILE);
    op->req = NULL;
    token_cache_lock(t);
    fuse_op_fill_entry(op, op->ino, op->name, loop_may_tell(op->loop), &e);
    rc = op->loop->mount->shell->reply_open(req, &e, &o->fi, open_is_parallel(o));
    token_cache_unlock(t);
    return open_end(o, rc);
}

enum step_end fs_created(struct fuse_op *op)
{
    static fuse_op_step *const steps[] = {
        created_goto_owner, created_get_node, created_adopt, created_reply, NULL,
    };

    return fuse_op_go(op, steps);
}

/* ---- flush, release ---- */

/* A handle of a process before that was not used since has nothing to write. */
static enum step_end flush_data(struct fuse_op *op)
{
    if (op->handle == NULL) /* a process before has closed it */
        return fuse_op_end(op, 0);
    op->rc = 0;
    if (op->handle->node->file == NULL)
        return STEP_GO;
    file_flush(op->handle->node->file, fuse_op_file_done, op);
    return STEP_WAIT;
}

/*
 * Releases the fcntl locks of a process that closes a descriptor, after its data are
 * flushed for others to see.
 */
static enum step_end flush_unlock(struct fuse_op *op)
{
    struct close_op *c = (struct close_op *)op;

    c->rc = md_client_user_errno(op->rc != 0 ? op->rc : handle_has_lost(op->handle));
    return locks_release(op);
}

static enum step_end flush_end(struct fuse_op *op)
{
    const struct close_op *c = (struct close_op *)op;

    return fuse_op_end(op, c->lock_lost ? -EIO : c->rc);
}

void fs_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    static fuse_op_step *const steps[] = {
        fuse_op_goto_owner, flush_data, flush_unlock, flush_end, NULL,
    };
    struct close_op *c = fuse_op_begin(req, sizeof(*c));

    c->op.ino = ino;
    c->op.handle = handle_of(req, ino, fi);
    c->owner = fi->lock_owner;
    c->owners = &c->owner;
    c->n_owners = 1;
    fuse_op_start(&c->op, steps);
}

/*
 * Releases all locks at the last close of an open file, OFD locks too: no FLUSH covers
 * them.
 */
static enum step_end release_locks(struct fuse_op *op)
{
    struct close_op *c = (struct close_op *)op;

    if (op->handle == NULL) /* a process before has closed it */
        return fuse_op_end(op, 0);
    c->owners = op->handle->owners;
    c->n_owners = op->handle->n_owners;
    c->releases_flock = true;
    return locks_release(op);
}

static enum step_end release_end(struct fuse_op *op)
{
    handle_free(op->loop, op->handle);
    return fuse_op_end(op, 0);
}

void fs_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    static fuse_op_step *const steps[] = {
        fuse_op_goto_owner,
        release_locks,
        release_end,
        NULL,
    };
    struct close_op *c = fuse_op_begin(req, sizeof(*c));

    c->op.ino = ino;
    c->op.handle = handle_of(req, ino, fi);
    fuse_op_start(&c->op, steps);
}
