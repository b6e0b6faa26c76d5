/*
 * fs_file.c - the data of open files: read, write, fsync, fallocate, lseek.
 *
 * In:     the kernel's requests; all work is done on the owner loop of the inode.
 * Out:    storcli's file layer, replies.
 * Keeps:  a write's memory belongs to its request, which is held until the file layer is
 *         done.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/options/xalloc.h"

/* Begins an operation on an open file, which its handle pins. */
static void *begin_on_file(fuse_req_t req, fuse_ino_t ino,
                           const struct fuse_file_info *fi, size_t bytes)
{
    struct fuse_op *op = fuse_op_begin(req, bytes);

    op->ino = ino;
    op->handle = handle_of(req, ino, fi);
    return op;
}

/* A last step: answers with the result of the file layer. */
static enum step_end file_answered(struct fuse_op *op)
{
    return fuse_op_end(op, md_client_user_errno(op->rc));
}

/* ---- read ---- */

static enum step_end read_check_node(struct fuse_op *op)
{
    return op->handle->node->stale ? fuse_op_end(op, -EIO) : STEP_GO;
}

static enum step_end read_take_token(struct fuse_op *op)
{
    const struct read_op *r = (struct read_op *)op;
    const struct token_need need = { TOKEN_SHARED, r->offset, r->offset + r->size };

    return fuse_op_with_range(op, op->handle->node, &need);
}

static void on_read(void *arg, int rc, const struct iovec *iov, unsigned n_iov)
{
    struct read_op *r = arg;

    r->iov = iov;
    r->n_iov = n_iov;
    fuse_op_file_done(&r->op, rc);
}

static void give_up_reading(struct fuse_op *op)
{
    fuse_req_t req = op->req;

    op->req = NULL;
    fuse_reply_err(req, EINTR);
}

/* Pins the node: a signal may answer op before the file layer is done. */
static void pin_until_the_end(struct fuse_op *op)
{
    if (op->node != NULL)
        return;
    op->node = op->handle->node;
    node_pin(op->node);
}

static enum step_end read_submit(struct fuse_op *op)
{
    struct read_op *r = (struct read_op *)op;
    uint64_t to = r->offset + r->size;

    pin_until_the_end(op);
    file_read_within(handle_file(op->handle), r->offset, r->size,
                     token_cache_readable_to(op->loop->mount->tokens, op->ino, to),
                     (r->flags & O_DIRECT) != 0, on_read, r);
    fuse_op_wait_interruptibly(op, give_up_reading);
    return STEP_WAIT;
}

static size_t iov_bytes(const struct iovec *iov, unsigned n_iov)
{
    size_t n = 0;

    for (unsigned i = 0; i < n_iov; i++)
        n += iov[i].iov_len;
    return n;
}

static void read_reply(struct read_op *r, fuse_req_t req, bool is_behind)
{
    if (r->op.rc != 0) {
        fuse_reply_err(req, -md_client_user_errno(r->op.rc));
    } else if (is_behind && r->eof == EOF_WAITED_TAKEN) {
        r->op.memory = xzalloc(r->size);
        fuse_reply_buf(req, r->op.memory, r->size);
    } else {
        fuse_reply_iov(req, r->iov, (int)r->n_iov);
    }
}

/* Takes the token and reads, once more if the data were changed meanwhile. */
static enum step_end read_answer(struct fuse_op *op);
static fuse_op_step *const read_again[] = {
    read_take_token,
    read_submit,
    read_answer,
    NULL,
};

static enum step_end read_answer(struct fuse_op *op)
{
    struct read_op *r = (struct read_op *)op;
    fuse_req_t req = op->req;
    bool ends = op->rc == 0 && iov_bytes(r->iov, r->n_iov) < r->size;
    bool is_behind = ends && r->offset > file_size(op->node->file);
    bool fills = op->token.pages == PAGES_FILL, is_taken = false;

    if (op->rc == 0 && fills)
        tokens_note_data(op->loop->mount->tokens, op->ino);
    fuse_op_go(op, read_again);
    if (r->overtaken && req != NULL) {
        r->overtaken = false;
        fuse_op_token_done(op);
        return STEP_GO;
    }
    if (is_behind && req != NULL && read_past_eof_waits(r))
        return STEP_WAIT;
    op->req = NULL;
    stream_reads_note(&op->loop->mount->reads,
                      op->rc == 0 ? iov_bytes(r->iov, r->n_iov) : r->size,
                      env_now_ns(&op->loop->env.env) - r->started_ns, op->rc == 0);
    /* Linux asks for attributes after a READ */
    if (op->rc == 0 && open_counts_as_read(r->flags))
        node_note_read(op->node, op->loop->mount->atimes);
    if (req != NULL) /* NULL: a signal ended it */
        read_reply(r, req, is_behind);
    if (ends)
        is_taken = fuse_op_read_ended(r);
    if (ends && !is_behind && fills)
        node_eof_answered(op->node, is_taken);
    return fuse_op_finish(op);
}

void fs_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
             struct fuse_file_info *fi)
{
    static fuse_op_step *const steps[] = {
        fuse_op_goto_owner, fuse_op_use_handle, fuse_op_under_lock, read_check_node,
        read_take_token,    read_submit,        read_answer,        NULL,
    };
    struct read_op *r = begin_on_file(req, ino, fi, sizeof(*r));

    r->size = size;
    r->offset = (uint64_t)off;
    r->flags = fi->flags;
    r->started_ns = env_now_ns(&r->op.home->env.env);
    if (off < 0 || size > IO_MAX) {
        fuse_op_reply_err(&r->op, -EINVAL);
        return;
    }
    fuse_op_use_pages(&r->op, (fi->flags & O_DIRECT) == 0 ? PAGES_FILL : PAGES_NONE,
                      r->offset, size);
    fuse_op_start(&r->op, steps);
}

/* ---- write ---- */

struct write_op {
    struct fuse_op op; /* must be first */
    uint64_t offset;
    struct iovec iov; /* the data, in op.buf */
    int open_flags;
    unsigned flags; /* FILE_WRITE_* */
    bool elsewhere; /* an append at another place than the end that the kernel knew */
    int rc;         /* result of the file layer */
};

static bool write_is_page(const struct write_op *w)
{
    return w->op.token.pages == PAGES_WRITE_BACK;
}

static unsigned write_flags(const struct mount *m, const struct fuse_file_info *fi)
{
    unsigned flags = 0;

    if (fi->writepage) /* written by the kernel, through any handle */
        return 0;
    if ((fi->flags & O_APPEND) != 0 && !mount_writes_back(m))
        flags |= FILE_WRITE_APPEND;
    if ((fi->flags & O_DSYNC) != 0)
        flags |= FILE_WRITE_SYNC;
    if ((fi->flags & O_DIRECT) != 0)
        flags |= FILE_WRITE_THROUGH;
    return flags;
}

/* The writer of a mapped page is unknown. */
static enum step_end write_check_lock(struct fuse_op *op)
{
    const struct write_op *w = (struct write_op *)op;

    if (op->handle->node->stale)
        return fuse_op_end(op, -EIO);
    return write_is_page(w) ? STEP_GO : fuse_op_under_lock(op);
}

/* Takes a token for the range of the write; an append may go anywhere: the whole file. */
static enum step_end write_take_token(struct fuse_op *op)
{
    const struct write_op *w = (struct write_op *)op;
    struct token_need need = { TOKEN_EXCLUSIVE, w->offset, w->offset + w->iov.iov_len };

    if ((w->flags & FILE_WRITE_APPEND) != 0)
        need.to = 0;
    return fuse_op_with_range(op, op->handle->node, &need);
}

/* Writes a page of the kernel. With writeback_cache appends come as pages, too. A refused
 * page must not stay in the cache: it is dropped after the answer, for until then the
 * kernel keeps it. */
static enum step_end write_page_check(struct fuse_op *op)
{
    const struct nodes_config *config = &op->loop->nodes.config;
    uint64_t ino = op->ino;

    if (!fuse_op_is_forbidden(op, mount_writes_back(op->loop->mount)))
        return STEP_GO;
    fuse_op_reply_err(op, -EPERM);
    if (config->invalidate != NULL)
        config->invalidate(config->arg, ino);
    return STEP_WAIT;
}

static enum step_end write_drop_privileges(struct fuse_op *op)
{
    const struct write_op *w = (struct write_op *)op;

    if (write_is_page(w))
        return write_page_check(op);
    if (fuse_op_is_forbidden(op, (w->open_flags & O_APPEND) != 0))
        return fuse_op_end(op, -EPERM);
    return fuse_op_drop_privileges(op);
}

/*
 * Handles an append elsewhere. Through the page cache nothing waits for the drop: the
 * kernel may keep the last page locked until it is answered.
 */
static void write_elsewhere(struct write_op *w)
{
    const struct nodes_config *config = &w->op.loop->nodes.config;

    if (w->op.handle->past_pages)
        w->elsewhere = true;
    else if (config->invalidate != NULL)
        config->invalidate(config->arg, w->op.ino);
}

static enum step_end write_submit(struct fuse_op *op)
{
    struct write_op *w = (struct write_op *)op;
    struct file *file = handle_file(op->handle);

    if (!op->handle->past_pages)
        tokens_note_data(op->loop->mount->tokens, op->ino);
    /*
     * Others extended the file since the kernel looked: its page is not where the data
     * go.
     */
    if ((w->flags & FILE_WRITE_APPEND) != 0 && w->offset != file_size(file))
        write_elsewhere(w);
    file_write(file, w->offset, &w->iov, 1, w->flags, fuse_op_file_done, op);
    return STEP_WAIT;
}

static enum step_end write_store(struct fuse_op *op)
{
    const struct write_op *w = (struct write_op *)op;

    return (w->flags & FILE_WRITE_SYNC) != 0 ? STEP_GO : fuse_op_store(op, op->handle);
}

/* Drops the kernel's pages and attributes after an append at another place than it
 * thinks, before the answer: dropped later, they would make the kernel ignore the answer
 * when the program asks for the size. */
static enum step_end write_drop_pages(struct fuse_op *op)
{
    struct write_op *w = (struct write_op *)op;

    w->rc = op->rc;
    return w->elsewhere ? fuse_op_drop_pages(op) : STEP_GO;
}

static enum step_end write_answer(struct fuse_op *op)
{
    const struct write_op *w = (struct write_op *)op;
    fuse_req_t req = op->req;

    op->req = NULL;
    if (w->rc != 0)
        fuse_reply_err(req, -md_client_user_errno(w->rc));
    else
        fuse_reply_write(req, w->iov.iov_len);
    return fuse_op_finish(op);
}

void fs_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *bufv, off_t off,
                  struct fuse_file_info *fi)
{
    static fuse_op_step *const steps[] = {
        fuse_op_goto_owner,    fuse_op_use_handle,
        write_check_lock,      write_take_token,
        write_drop_privileges, write_submit,
        write_store,           write_drop_pages,
        write_answer,          NULL,
    };
    struct write_op *w = begin_on_file(req, ino, fi, sizeof(*w));

    assert(bufv->count == 1 && (bufv->buf[0].flags & FUSE_BUF_IS_FD) == 0);
    w->iov = (struct iovec){ .iov_base = bufv->buf[0].mem, .iov_len = bufv->buf[0].size };
    w->offset = (uint64_t)off;
    w->open_flags = fi->flags;
    w->flags = write_flags(w->op.loop->mount, fi);
    fuse_op_take_request(&w->op);
    /* A process before may have appended it already, where others have written since. */
    if ((w->flags & FILE_WRITE_APPEND) != 0 && fuse_op_is_resent(&w->op)) {
        fuse_op_reply_err(&w->op, -EIO);
        return;
    }
    if (off < 0 || w->iov.iov_len > IO_MAX) {
        fuse_op_reply_err(&w->op, -EINVAL);
        return;
    }
    fuse_op_use_pages(&w->op,
                      fi->writepage                 ? PAGES_WRITE_BACK
                      : (fi->flags & O_DIRECT) != 0 ? PAGES_WRITE_DIRECT
                                                    : PAGES_WRITE,
                      w->offset, w->iov.iov_len);
    fuse_op_start(&w->op, steps);
}

/* ---- fsync ---- */

struct sync_op {
    struct fuse_op op; /* must be first */
    uint64_t fsync_no; /* number of this fsync of the inode */
    uint64_t unsynced; /* unsynced_inodes_begin() */
};

/* Returns true, once, if exportd lost a change of the inode by a power failure. */
static bool sync_has_lost(struct fuse_op *op)
{
    return unsynced_inodes_take_lost(op->loop->mount->unsynced, op->ino);
}

static enum step_end sync_ask(struct fuse_op *op)
{
    struct sync_op *s = (struct sync_op *)op;
    Rozo__MdSyncReq msg = ROZO__MD_SYNC_REQ__INIT;

    msg.ino = op->ino;
    s->unsynced = unsynced_inodes_begin(op->loop->mount->unsynced);
    return fuse_op_ask(op, ROZO__OP__MD_SYNC, &msg.base);
}

static enum step_end sync_answered(struct fuse_op *op)
{
    const struct sync_op *s = (struct sync_op *)op;
    Rozo__MdSyncResp *msg;

    if (op->rc != 0)
        return STEP_END;
    msg = rozo__md_sync_resp__unpack(NULL, op->call.answer_len, op->call.answer);
    if (msg == NULL)
        return fuse_op_end(op, -EIO);
    nodes_learn_losses(&op->loop->nodes, msg->losses);
    unsynced_inodes_synced(op->loop->mount->unsynced, s->unsynced);
    rozo__md_sync_resp__free_unpacked(msg, NULL);
    return fuse_op_end(op, sync_has_lost(op) ? -EIO : 0);
}

static enum step_end fsync_data(struct fuse_op *op)
{
    struct sync_op *s = (struct sync_op *)op;

    s->fsync_no = ++op->handle->node->n_syncs;
    file_sync(handle_file(op->handle), fuse_op_file_done, op);
    return STEP_WAIT;
}

/* Answers first: an error that did not reach the kernel is for the next process. */
static enum step_end fsync_failed(struct fuse_op *op, int rc)
{
    struct handle *handle = op->handle;
    struct loop *loop = op->loop;

    fuse_op_reply_err(op, rc);
    handle_has_reported(loop, handle);
    return STEP_WAIT;
}

/*
 * Continues an fsync when data and block metadata are stable: checks the rest of the
 * inode.
 */
static enum step_end fsync_inode(struct fuse_op *op)
{
    const struct sync_op *s = (struct sync_op *)op;
    struct handle *handle = op->handle;
    uint64_t losses = file_losses(handle_file(handle));
    int rc = op->rc;

    /*
     * Losses already reported to another handle, a truncate or a recall are reported
     * here, too.
     */
    if (rc == 0)
        rc = handle_has_lost(handle);
    if (rc == 0 && handle->losses != losses)
        rc = -EIO;
    handle->losses = losses;
    handle->abandoned = handle->node->n_abandoned;
    if (rc != 0)
        return fsync_failed(op, md_client_user_errno(rc));
    if (handle->node->synced_no >= s->fsync_no || node_is_durable(handle->node))
        return fuse_op_end(op, sync_has_lost(op) ? -EIO : 0);
    return sync_ask(op);
}

void fs_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    static fuse_op_step *const steps[] = {
        fuse_op_goto_owner,
        fuse_op_use_handle,
        fuse_op_under_lock,
        fsync_data,
        fsync_inode,
        sync_answered,
        NULL,
    };
    struct sync_op *s = begin_on_file(req, ino, fi, sizeof(*s));

    (void)datasync;
    fuse_op_start(&s->op, steps);
}

void fs_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    static fuse_op_step *const steps[] = { sync_ask, sync_answered, NULL };
    struct sync_op *s = fuse_op_begin(req, sizeof(*s));

    (void)datasync;
    (void)fi;
    s->op.ino = ino;
    fuse_op_start(&s->op, steps);
}

/* ---- fallocate ---- */

struct allocate_op {
    struct fuse_op op; /* must be first */
    uint64_t offset, size;
    unsigned mode; /* FALLOC_FL_* */
};

/* A hole needs the token of its range only; an allocation that of the whole file. */
static enum step_end allocate_take_token(struct fuse_op *op)
{
    const struct allocate_op *a = (struct allocate_op *)op;
    struct token_need need = { .mode = TOKEN_EXCLUSIVE };

    if ((a->mode & FALLOC_FL_PUNCH_HOLE) != 0) {
        need.from = a->offset;
        need.to = a->offset + a->size;
    }
    return fuse_op_with_range(op, op->handle->node, &need);
}

static enum step_end allocate_drop_privileges(struct fuse_op *op)
{
    const struct allocate_op *a = (struct allocate_op *)op;

    if (fuse_op_is_forbidden(op, (a->mode & ~(unsigned)FALLOC_FL_KEEP_SIZE) == 0))
        return fuse_op_end(op, -EPERM);
    return fuse_op_drop_privileges(op);
}

static enum step_end allocate_punch(struct fuse_op *op)
{
    const struct allocate_op *a = (struct allocate_op *)op;

    op->rc = 0;
    if ((a->mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) == 0)
        return STEP_GO;
    file_punch(handle_file(op->handle), a->offset, a->size, fuse_op_file_done, op);
    return STEP_WAIT;
}

/* Sets the size after ZERO_RANGE: the part within the file reads as zeros now. */
static enum step_end allocate_space(struct fuse_op *op)
{
    const struct allocate_op *a = (struct allocate_op *)op;

    if (op->rc != 0 || (a->mode & FALLOC_FL_PUNCH_HOLE) != 0)
        return STEP_GO;
    file_allocate(handle_file(op->handle), a->offset, a->size,
                  (a->mode & FALLOC_FL_KEEP_SIZE) != 0, fuse_op_file_done, op);
    return STEP_WAIT;
}

static enum step_end allocate_store(struct fuse_op *op)
{
    return fuse_op_store(op, op->handle);
}

void fs_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                  struct fuse_file_info *fi)
{
    static fuse_op_step *const steps[] = {
        fuse_op_goto_owner,
        fuse_op_use_handle,
        fuse_op_under_lock,
        allocate_take_token,
        allocate_drop_privileges,
        allocate_punch,
        allocate_space,
        allocate_store,
        file_answered,
        NULL,
    };
    const int known = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE;
    const int both = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE;
    struct allocate_op *a = begin_on_file(req, ino, fi, sizeof(*a));

    a->mode = (unsigned)mode;
    a->offset = (uint64_t)offset;
    a->size = (uint64_t)length;
    if ((mode & ~known) != 0 || (mode & both) == both ||
        ((mode & FALLOC_FL_PUNCH_HOLE) != 0 && (mode & FALLOC_FL_KEEP_SIZE) == 0))
        fuse_op_reply_err(&a->op, -EOPNOTSUPP);
    else if (offset < 0 || length <= 0)
        fuse_op_reply_err(&a->op, -EINVAL);
    else if (offset > INT64_MAX - length)
        fuse_op_reply_err(&a->op, -EFBIG);
    else
        fuse_op_start(&a->op, steps);
}

/* ---- lseek ---- */

struct lseek_op {
    struct fuse_op op; /* must be first */
    uint64_t offset;
    bool wants_hole;
    uint64_t found;
};

static enum step_end seek_take_token(struct fuse_op *op)
{
    return fuse_op_with_token(op, op->handle->node, TOKEN_SHARED);
}

static enum step_end seek_submit(struct fuse_op *op)
{
    struct lseek_op *s = (struct lseek_op *)op;

    pin_until_the_end(op);
    file_seek(handle_file(op->handle), s->offset, s->wants_hole, &s->found,
              fuse_op_file_done, op);
    fuse_op_wait_interruptibly(op, give_up_reading);
    return STEP_WAIT;
}

static enum step_end seek_answer(struct fuse_op *op)
{
    const struct lseek_op *s = (struct lseek_op *)op;
    fuse_req_t req = op->req;

    if (req == NULL) /* a signal ended it */
        return fuse_op_finish(op);
    if (op->rc != 0)
        return op->rc == -ENXIO ? STEP_END : file_answered(op);
    op->req = NULL;
    fuse_reply_lseek(req, (off_t)s->found);
    return fuse_op_finish(op);
}

void fs_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
              struct fuse_file_info *fi)
{
    static fuse_op_step *const steps[] = {
        fuse_op_goto_owner,
        fuse_op_use_handle,
        fuse_op_under_lock,
        seek_take_token,
        seek_submit,
        seek_answer,
        NULL,
    };
    const struct loop *loop = fuse_req_userdata(req);
    struct lseek_op *s;

    /*
     * Data that the kernel has not written yet would look like a hole: ENOSYS makes it
     * never ask again.
     */
    if (mount_writes_back(loop->mount)) {
        fuse_reply_err(req, ENOSYS);
        return;
    }
    s = begin_on_file(req, ino, fi, sizeof(*s));
    s->offset = (uint64_t)off;
    s->wants_hole = whence == SEEK_HOLE;
    if (off < 0)
        fuse_op_reply_err(&s->op, -ENXIO);
    else if (whence != SEEK_DATA && whence != SEEK_HOLE)
        fuse_op_reply_err(&s->op, -EINVAL);
    else
        fuse_op_start(&s->op, steps);
}
