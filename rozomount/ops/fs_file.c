/*
 * fs_file.c - open files: open, read, write, flush, release, fsync, fallocate, lseek,
 * copy.
 *
 * In:     the kernel's requests; all work is done on the owner loop of the inode.
 * Out:    md calls at open, storcli's file layer for the rest, replies.
 * Keeps:  a write's memory belongs to its request, which is held until the file layer is
 *         done.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
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
#include "rozomount/prefetch/file_prefetch.h"

enum {
    COPY_CALL_MAX = 8 << 20, /* bytes of one copy_file_range; the kernel asks again */
};

static struct handle *handle_of(const struct fuse_file_info *fi)
{
    return (struct handle *)(uintptr_t)fi->fh;
}

/* ---- open, create ---- */

/* Returns true if the open bypasses the page cache: write-only, or O_DIRECT or O_APPEND
 * if it can still be mapped. Appends must: the kernel would cache their data before we
 * choose the offset. */
static bool open_goes_past_pages(const struct mount *m, int flags)
{
    bool reads = (flags & O_ACCMODE) != O_WRONLY;
    bool appends = (flags & O_ACCMODE) != O_RDONLY && (flags & O_APPEND) != 0;
    bool may = !reads || (m->maps_direct && ((flags & O_DIRECT) != 0 || appends));

    return m->direct || (m->direct_writes && may);
}

static bool counts_as_read(int flags)
{
    return (flags & O_ACCMODE) != O_WRONLY && (flags & O_NOATIME) == 0;
}

/* Gives the pin of op->node, which has its file, to a new handle. */
static void open_set_handle(struct fuse_op *op)
{
    op->handle = handle_new(op->loop, op->node);
    op->node = NULL;
    op->fi.fh = (uintptr_t)op->handle;
    op->fi.direct_io = open_goes_past_pages(op->loop->mount, op->fi.flags);
    op->fi.keep_cache = op->keep_cache;
    op->handle->past_pages = op->fi.direct_io;
    op->handle->no_atime = (op->fi.flags & O_NOATIME) != 0;
    op->handle->sync = (op->fi.flags & O_DSYNC) != 0;
    op->handle->losses = file_losses(op->handle->node->file);
    op->handle->given_up = op->handle->unlocked = op->handle->node->n_given_up;
}

/*
 * Ends an open. rc: of fuse_reply_open/create; -ENOENT: the caller is gone, so the kernel
 * sends no RELEASE.
 */
static void open_answered(struct fuse_op *op, int rc)
{
    if (rc == -ENOENT)
        handle_free(op->loop, op->handle);
    fuse_op_finish(op);
}

/* With O_DIRECT, writes of a file run side by side, as in local file systems: each block
 * is as one of them wrote it. Other writes are atomic, even if split into several
 * requests. */
static bool open_is_parallel(const struct fuse_op *op)
{
    return op->fi.direct_io && (op->fi.flags & O_DIRECT) != 0;
}

static void open_answer(struct fuse_op *op)
{
    struct loop *loop = op->loop;
    fuse_req_t req = op->req;
    uint64_t ino = op->ino;
    bool reads = (op->fi.flags & (O_ACCMODE | O_TRUNC)) == O_RDONLY;

    open_set_handle(op);
    op->req = NULL;
    open_answered(
        op, op->loop->mount->shell->reply_open(req, NULL, &op->fi, open_is_parallel(op)));
    if (reads)
        file_prefetch_opened(loop, ino);
}

/* Counts the open as a read if the kernel has pages, because it sends no READ for them.
 * Without pages the READ counts: attributes dropped here would cost a request. */
static void open_reply(struct fuse_op *op)
{
    const struct mount *m = op->loop->mount;

    if (op->keep_cache && counts_as_read(op->fi.flags) &&
        !open_goes_past_pages(m, op->fi.flags) && tokens_have_data(m->tokens, op->ino) &&
        node_note_read(op->node, m->atimes))
        op_drop_attr(op, open_answer);
    else
        open_answer(op);
}

static void on_opened(struct fuse_op *op, int rc)
{
    bool asked = rc != -EIO || op->call.answered;

    if (rc == 0 && (md_decode_open(&op->call, &op->entry) != 0 ||
                    op->entry.attr.ino != op->ino || !op->entry.has_target)) {
        rc = -EIO;
        asked = false; /* exportd counts the reference all the same */
    }
    if (rc == 0 && node_is_stale(op->node, &op->entry.attr)) {
        rc = -ESTALE;
        asked = false;
    }
    if (rc == 0) {
        fuse_op_take_grant(op, 0);
        token_cache_forget_attr(op->loop->mount->tokens, op->ino, op->changes);
        op->keep_cache = node_cache_is_fresh(op->node, &op->entry.attr);
        /* Pages exist only under a token, and go with it. */
        op->keep_cache |= token_cache_are_given(op->loop->mount->tokens);
        node_note_mode(op->node, &op->entry.attr);
        op->node->nameless |= op->entry.attr.nlink == 0;
        rc = md_client_user_errno(node_adopt(op->node, &op->entry, true));
    } else if (!asked) {
        node_count_unanswered(op->node);
    }
    if (rc != 0) {
        fuse_op_reply_err(op, rc == -ENOENT ? -ESTALE : rc);
        return;
    }
    open_reply(op);
}

static void open_with_node(struct fuse_op *op)
{
    Rozo__MdOpenReq msg = ROZO__MD_OPEN_REQ__INIT;

    msg.ino = op->ino;
    msg.write = (op->fi.flags & O_ACCMODE) != O_RDONLY;
    msg.append = (op->fi.flags & O_APPEND) != 0;
    if (msg.write)
        node_let_go(op->node); /* exportd must learn of its last close */
    if (msg.write || !node_is_open_still(op->loop, op->node)) {
        fuse_op_ask(op, ROZO__OP__MD_OPEN, &msg.base, on_opened);
        return;
    }
    op->keep_cache = true; /* pages go with the token */
    open_reply(op);
}

static void open_on_owner(struct fuse_op *op)
{
    op->node = node_get(&op->loop->nodes, op->ino);
    fuse_op_with_node(op, open_with_node);
}

void fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fuse_op *op = fuse_op_begin(req);

    op->ino = ino;
    op->fi = *fi;
    fuse_op_goto_owner(op, ino, open_on_owner);
}

static void created_with_node(struct fuse_op *op)
{
    struct token_cache *t = op->loop->mount->tokens;
    struct fuse_entry_param e;
    fuse_req_t req;
    int rc;

    node_cache_is_fresh(op->node, &op->entry.attr);
    rc = op->entry.has_target ? node_adopt(op->node, &op->entry, true) : -EBADMSG;
    if (rc != 0) {
        fuse_op_reply_err(op, md_client_user_errno(rc));
        return;
    }
    node_note_mode(op->node, &op->entry.attr);
    if (!op->entry.existed)
        node_note_no_capability(op->node);
    if (op->nameless)
        op->node->nameless = op->node->gone = true;
    open_set_handle(op);
    req = op->req;
    op->req = NULL;
    token_cache_lock(t);
    fuse_op_fill_entry(op, op->ino, op->name, loop_may_tell(op->loop), &e);
    rc = op->loop->mount->shell->reply_open(req, &e, &op->fi, open_is_parallel(op));
    token_cache_unlock(t);
    open_answered(op, rc);
}

void fs_created(struct fuse_op *op)
{
    op->node = node_get(&op->loop->nodes, op->entry.attr.ino);
    fuse_op_with_node(op, created_with_node);
}

/* ---- release ---- */

static void release_unlocked(struct fuse_op *op)
{
    handle_free(op->loop, op->handle);
    fuse_op_reply_err(op, 0);
}

/*
 * Releases all locks at the last close of an open file, OFD locks too: no FLUSH covers
 * them.
 */
static void release_on_owner(struct fuse_op *op)
{
    locks_release(op, op->handle->owners, op->handle->n_owners, true, release_unlocked);
}

void fs_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    struct fuse_op *op = fuse_op_begin(req);

    op->ino = ino;
    op->handle = handle_of(fi);
    fuse_op_goto_owner(op, ino, release_on_owner);
}

/* Begins an operation on an open file, which its handle pins. */
static struct fuse_op *op_begin_on_file(fuse_req_t req, fuse_ino_t ino,
                                        struct fuse_file_info *fi)
{
    struct fuse_op *op = fuse_op_begin(req);

    op->ino = ino;
    op->fi = *fi;
    op->handle = handle_of(fi);
    return op;
}

/* Returns the file, on its owner loop. The handle's pin holds it until the answer. */
static struct file *op_file(struct fuse_op *op)
{
    struct node *node = op->handle->node;

    assert(node->ino == op->ino && node->file != NULL && !node->closing);
    return node->file;
}

/* ---- read ---- */

static void read_with_token(struct fuse_op *op);

static void read_again(struct fuse_op *op)
{
    const struct token_need need = { TOKEN_SHARED, op->offset, op->offset + op->size };

    fuse_op_with_range(op, op->handle->node, &need, read_with_token);
}

static size_t iov_bytes(const struct iovec *iov, unsigned n_iov)
{
    size_t n = 0;

    for (unsigned i = 0; i < n_iov; i++)
        n += iov[i].iov_len;
    return n;
}

static void read_reply(struct fuse_op *op, fuse_req_t req, int rc,
                       const struct iovec *iov, unsigned n_iov, bool is_behind)
{
    if (rc != 0) {
        fuse_reply_err(req, -md_client_user_errno(rc));
    } else if (is_behind && op->end_is_told) {
        op->memory = xzalloc(op->size);
        fuse_reply_buf(req, op->memory, op->size);
    } else {
        fuse_reply_iov(req, iov, (int)n_iov);
    }
}

static void on_read(void *arg, int rc, const struct iovec *iov, unsigned n_iov)
{
    struct fuse_op *op = arg;
    fuse_req_t req = op->req;
    bool ends = rc == 0 && iov_bytes(iov, n_iov) < op->size;
    bool is_behind = ends && op->offset > file_size(op->node->file);

    fuse_op_wait_over(op);
    if (rc == 0 && op->fills_pages)
        tokens_note_data(op->loop->mount->tokens, op->ino);
    if (op->overtaken && req != NULL) {
        op->overtaken = false;
        fuse_op_token_done(op);
        read_again(op);
        return;
    }
    if (is_behind && req != NULL && read_past_eof_waits(op, read_again))
        return;
    op->req = NULL;
    /* Linux asks for attributes after a READ */
    if (rc == 0 && counts_as_read(op->fi.flags))
        node_note_read(op->node, op->loop->mount->atimes);
    if (req != NULL) /* NULL: a signal ended it */
        read_reply(op, req, rc, iov, n_iov, is_behind);
    if (ends)
        fuse_op_read_ended(op);
    if (ends && !is_behind && op->fills_pages)
        node_eof_answered(op->node);
    fuse_op_finish(op);
}

static void give_up_reading(struct fuse_op *op)
{
    fuse_req_t req = op->req;

    op->req = NULL;
    fuse_reply_err(req, EINTR);
}

static void read_with_token(struct fuse_op *op)
{
    if (op->node == NULL) { /* own pin: a signal may end op before the read */
        op->node = op->handle->node;
        node_pin(op->node);
    }
    file_read_within(
        op_file(op), op->offset, op->size,
        token_cache_readable_to(op->loop->mount->tokens, op->ino, op->offset + op->size),
        (op->fi.flags & O_DIRECT) != 0, on_read, op);
    fuse_op_wait_interruptibly(op, give_up_reading);
}

static void read_under_lock(struct fuse_op *op)
{
    if (op->handle->node->stale)
        fuse_op_reply_err(op, -EIO);
    else
        read_again(op);
}

static void read_on_owner(struct fuse_op *op)
{
    fuse_op_under_lock(op, op->handle, read_under_lock);
}

void fs_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
             struct fuse_file_info *fi)
{
    struct fuse_op *op = op_begin_on_file(req, ino, fi);

    op->size = size;
    op->offset = (uint64_t)off;
    op->fills_pages = (fi->flags & O_DIRECT) == 0;
    if (off < 0 || size > IO_MAX)
        fuse_op_reply_err(op, -EINVAL);
    else
        fuse_op_goto_owner(op, ino, read_on_owner);
}

/* ---- write ---- */

static void write_reply(struct fuse_op *op)
{
    fuse_req_t req = op->req;

    op->req = NULL;
    if (op->rc != 0)
        fuse_reply_err(req, -md_client_user_errno(op->rc));
    else
        fuse_reply_write(req, op->size);
    fuse_op_finish(op);
}

/* Drops the kernel's pages and attributes after an append at another place than it
 * thinks, before the answer: dropped later, they would make the kernel ignore the answer
 * when the program asks for the size. */
static void on_written(void *arg, int rc)
{
    struct fuse_op *op = arg;

    op->rc = rc;
    if (op->elsewhere)
        fuse_op_drop_pages(op, write_reply);
    else
        write_reply(op);
}

static unsigned write_flags(const struct fuse_op *op)
{
    const struct fuse_file_info *fi = &op->fi;
    unsigned flags = 0;

    if (fi->writepage) /* written by the kernel, through any handle */
        return 0;
    if ((fi->flags & O_APPEND) != 0 && !op->loop->mount->writeback)
        flags |= FILE_WRITE_APPEND;
    if ((fi->flags & O_DSYNC) != 0)
        flags |= FILE_WRITE_SYNC;
    if ((fi->flags & O_DIRECT) != 0)
        flags |= FILE_WRITE_THROUGH;
    return flags;
}

/*
 * Handles an append elsewhere. Through the page cache nothing waits for the drop: the
 * kernel may keep the last page locked until it is answered.
 */
static void write_elsewhere(struct fuse_op *op)
{
    const struct nodes_config *config = &op->loop->nodes.config;

    if (op->handle->past_pages)
        op->elsewhere = true;
    else if (config->invalidate != NULL)
        config->invalidate(config->arg, op->ino);
}

static void write_unprivileged(struct fuse_op *op)
{
    struct file *file = op_file(op);
    unsigned flags = write_flags(op);

    if (!op->handle->past_pages)
        tokens_note_data(op->loop->mount->tokens, op->ino);
    /*
     * Others extended the file since the kernel looked: its page is not where the data
     * go.
     */
    if ((flags & FILE_WRITE_APPEND) != 0 && op->offset != file_size(file))
        write_elsewhere(op);
    file_write(file, op->offset, &op->iov, 1, flags, on_written, op);
}

/* Answers EPERM and returns true if file flags (chattr) forbid this change. They may have
 * been set after the open, and O_APPEND cleared. Called with the token: the flags are
 * exact. */
static bool change_is_refused(struct fuse_op *op, bool only_appends)
{
    uint32_t flags = op->handle->node->file_flags;

    if ((flags & ROZO__FILE_FLAGS__FLAG_IMMUTABLE) == 0 &&
        ((flags & ROZO__FILE_FLAGS__FLAG_APPEND) == 0 || only_appends))
        return false;
    fuse_op_reply_err(op, -EPERM);
    return true;
}

static void write_with_token(struct fuse_op *op)
{
    if (!change_is_refused(op, (op->fi.flags & O_APPEND) != 0))
        fuse_op_drop_privileges(op, write_unprivileged);
}

/*
 * Writes a page of the kernel. With writeback_cache appends come as pages, too. A refused
 * page must not stay in the cache.
 */
static void write_page(struct fuse_op *op)
{
    const struct nodes_config *config = &op->loop->nodes.config;
    uint64_t ino = op->ino;

    if (!change_is_refused(op, op->loop->mount->writeback))
        write_unprivileged(op);
    else if (config->invalidate != NULL)
        config->invalidate(config->arg, ino);
}

/* Takes a token for the range of the write; an append may go anywhere: the whole file. */
static void write_take_token(struct fuse_op *op, void (*step)(struct fuse_op *op))
{
    struct token_need need = { TOKEN_EXCLUSIVE, op->offset, op->offset + op->size };

    if ((write_flags(op) & FILE_WRITE_APPEND) != 0)
        need.to = 0;
    fuse_op_with_range(op, op->handle->node, &need, step);
}

static void write_under_lock(struct fuse_op *op)
{
    write_take_token(op, write_with_token);
}

static void write_on_owner(struct fuse_op *op)
{
    op->token_page = op->fi.writepage;
    if (op->handle->node->stale)
        fuse_op_reply_err(op, -EIO);
    else if (op->token_page) /* a mapped page: its writer is unknown */
        write_take_token(op, write_page);
    else
        fuse_op_under_lock(op, op->handle, write_under_lock);
}

void fs_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *bufv, off_t off,
                  struct fuse_file_info *fi)
{
    struct fuse_op *op = op_begin_on_file(req, ino, fi);

    assert(bufv->count == 1 && (bufv->buf[0].flags & FUSE_BUF_IS_FD) == 0);
    op->iov =
        (struct iovec){ .iov_base = bufv->buf[0].mem, .iov_len = bufv->buf[0].size };
    op->size = bufv->buf[0].size;
    op->offset = (uint64_t)off;
    fuse_op_take_request(op);
    if (off < 0 || op->size > IO_MAX)
        fuse_op_reply_err(op, -EINVAL);
    else
        fuse_op_goto_owner(op, ino, write_on_owner);
}

/* ---- flush, fsync ---- */

static void on_flushed(void *arg, int rc)
{
    fuse_op_reply_err(arg, md_client_user_errno(rc));
}

static void flush_unlocked(struct fuse_op *op)
{
    fuse_op_reply_err(op, op->lock_lost ? -EIO : op->rc);
}

/*
 * Releases the fcntl locks of a process that closes a descriptor, after its data are
 * flushed for others to see.
 */
static void on_close_flushed(void *arg, int rc)
{
    struct fuse_op *op = arg;

    op->rc = md_client_user_errno(rc != 0 ? rc : handle_has_lost(op->handle));
    locks_release(op, &op->fi.lock_owner, 1, false, flush_unlocked);
}

static void flush_on_owner(struct fuse_op *op)
{
    file_flush(op_file(op), on_close_flushed, op);
}

void fs_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
    fuse_op_goto_owner(op_begin_on_file(req, ino, fi), ino, flush_on_owner);
}

/*
 * Continues an fsync when data and block metadata are stable: checks the rest of the
 * inode.
 */
static void on_synced(void *arg, int rc)
{
    struct fuse_op *op = arg;
    uint64_t losses = file_losses(op_file(op));

    /*
     * Losses already reported to another handle, a truncate or a recall are reported
     * here, too.
     */
    if (rc == 0)
        rc = handle_has_lost(op->handle);
    if (rc == 0 && op->handle->losses != losses)
        rc = -EIO;
    op->handle->losses = losses;
    op->handle->given_up = op->handle->node->n_given_up;
    if (rc != 0)
        fuse_op_reply_err(op, md_client_user_errno(rc));
    else if (op->handle->node->synced_no >= op->found ||
             node_is_settled(op->handle->node))
        fuse_op_reply_err(op, fuse_op_has_lost(op) ? -EIO : 0);
    else
        fuse_op_sync_and_reply(op);
}

static void fsync_under_lock(struct fuse_op *op)
{
    op->found = ++op->handle->node->n_syncs;
    file_sync(op_file(op), on_synced, op);
}

static void fsync_on_owner(struct fuse_op *op)
{
    fuse_op_under_lock(op, op->handle, fsync_under_lock);
}

void fs_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
    (void)datasync;
    fuse_op_goto_owner(op_begin_on_file(req, ino, fi), ino, fsync_on_owner);
}

/* ---- fallocate, lseek ---- */

/* Sets the size after ZERO_RANGE: the part within the file reads as zeros now. */
static void on_zeroed(void *arg, int rc)
{
    struct fuse_op *op = arg;

    if (rc != 0)
        fuse_op_reply_err(op, md_client_user_errno(rc));
    else
        file_allocate(op_file(op), op->offset, op->size,
                      (op->flags & FALLOC_FL_KEEP_SIZE) != 0, on_flushed, op);
}

static void fallocate_unprivileged(struct fuse_op *op)
{
    struct file *file = op_file(op);

    if ((op->flags & FALLOC_FL_PUNCH_HOLE) != 0)
        file_punch(file, op->offset, op->size, on_flushed, op);
    else if ((op->flags & FALLOC_FL_ZERO_RANGE) != 0)
        file_punch(file, op->offset, op->size, on_zeroed, op);
    else
        file_allocate(file, op->offset, op->size, (op->flags & FALLOC_FL_KEEP_SIZE) != 0,
                      on_flushed, op);
}

static void fallocate_with_token(struct fuse_op *op)
{
    if (change_is_refused(op, (op->flags & ~(unsigned)FALLOC_FL_KEEP_SIZE) == 0))
        return;
    fuse_op_drop_privileges(op, fallocate_unprivileged);
}

/* A hole needs the token of its range only; an allocation that of the whole file. */
static void fallocate_under_lock(struct fuse_op *op)
{
    struct token_need need = { .mode = TOKEN_EXCLUSIVE };

    if ((op->flags & FALLOC_FL_PUNCH_HOLE) != 0) {
        need.from = op->offset;
        need.to = op->offset + op->size;
    }
    fuse_op_with_range(op, op->handle->node, &need, fallocate_with_token);
}

static void fallocate_on_owner(struct fuse_op *op)
{
    fuse_op_under_lock(op, op->handle, fallocate_under_lock);
}

void fs_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                  struct fuse_file_info *fi)
{
    const int known = FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE;
    const int both = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE;
    struct fuse_op *op = op_begin_on_file(req, ino, fi);

    op->flags = (unsigned)mode;
    op->offset = (uint64_t)offset;
    op->size = (size_t)length;
    if ((mode & ~known) != 0 || (mode & both) == both ||
        ((mode & FALLOC_FL_PUNCH_HOLE) != 0 && (mode & FALLOC_FL_KEEP_SIZE) == 0))
        fuse_op_reply_err(op, -EOPNOTSUPP);
    else if (offset < 0 || length <= 0)
        fuse_op_reply_err(op, -EINVAL);
    else if (offset > INT64_MAX - length)
        fuse_op_reply_err(op, -EFBIG);
    else
        fuse_op_goto_owner(op, ino, fallocate_on_owner);
}

static void on_sought(void *arg, int rc)
{
    struct fuse_op *op = arg;
    fuse_req_t req = op->req;

    fuse_op_wait_over(op);
    if (req == NULL) { /* a signal ended it */
        fuse_op_finish(op);
        return;
    }
    if (rc != 0) {
        fuse_op_reply_err(op, rc == -ENXIO ? rc : md_client_user_errno(rc));
        return;
    }
    op->req = NULL;
    fuse_reply_lseek(req, (off_t)op->found);
    fuse_op_finish(op);
}

static void lseek_with_token(struct fuse_op *op)
{
    op->node = op->handle->node; /* own pin, as for reads */
    node_pin(op->node);
    file_seek(op_file(op), op->offset, op->plus, &op->found, on_sought, op);
    fuse_op_wait_interruptibly(op, give_up_reading);
}

static void lseek_under_lock(struct fuse_op *op)
{
    fuse_op_with_token(op, op->handle->node, TOKEN_SHARED, lseek_with_token);
}

static void lseek_on_owner(struct fuse_op *op)
{
    fuse_op_under_lock(op, op->handle, lseek_under_lock);
}

void fs_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
              struct fuse_file_info *fi)
{
    const struct loop *loop = fuse_req_userdata(req);
    struct fuse_op *op;

    /*
     * Data that the kernel has not written yet would look like a hole: ENOSYS makes it
     * never ask again.
     */
    if (loop->mount->writeback) {
        fuse_reply_err(req, ENOSYS);
        return;
    }
    op = op_begin_on_file(req, ino, fi);
    op->offset = (uint64_t)off;
    op->plus = whence == SEEK_HOLE;
    if (off < 0)
        fuse_op_reply_err(op, -ENXIO);
    else if (whence != SEEK_DATA && whence != SEEK_HOLE)
        fuse_op_reply_err(op, -EINVAL);
    else
        fuse_op_goto_owner(op, ino, lseek_on_owner);
}

/* ---- copy_file_range: read on one owner, write on the other, piece by piece ---- */

static void copy_read_step(struct fuse_op *op);

static void copy_end(struct fuse_op *op)
{
    fuse_req_t req = op->req;

    op->req = NULL;
    fuse_reply_write(req, op->done_bytes);
    fuse_op_finish(op);
}

static void on_copy_written(void *arg, int rc)
{
    struct fuse_op *op = arg;

    fuse_op_token_done(op);
    op->iov = (struct iovec){ 0 };
    if (rc != 0) {
        fuse_op_reply_err(op, md_client_user_errno(rc));
        return;
    }
    op->done_bytes += op->piece_bytes;
    if (op->done_bytes == op->size)
        copy_end(op);
    else
        fuse_op_goto_owner(op, op->ino, copy_read_step);
}

static void copy_unprivileged(struct fuse_op *op)
{
    op->iov = (struct iovec){ .iov_base = op->memory, .iov_len = op->piece_bytes };
    file_write(op->handle->node->file, op->offset2 + op->done_bytes, &op->iov, 1,
               op->handle->sync ? FILE_WRITE_SYNC : 0, on_copy_written, op);
}

static void copy_write_with_token(struct fuse_op *op)
{
    if (change_is_refused(op, false))
        return;
    fuse_op_drop_privileges(op, copy_unprivileged);
}

static void copy_write_under_lock(struct fuse_op *op)
{
    uint64_t from = op->offset2 + op->done_bytes;
    const struct token_need need = { TOKEN_EXCLUSIVE, from, from + op->piece_bytes };

    fuse_op_with_range(op, op->handle->node, &need, copy_write_with_token);
}

static void copy_write_step(struct fuse_op *op)
{
    fuse_op_under_lock(op, op->handle, copy_write_under_lock);
}

static void copy_have_read(struct fuse_op *op)
{
    if (op->piece_bytes == 0) /* end of the source */
        copy_end(op);
    else
        fuse_op_goto_owner(op, op->ino2, copy_write_step);
}

static void on_copy_read(void *arg, int rc, const struct iovec *iov, unsigned n_iov)
{
    struct fuse_op *op = arg;
    const struct handle *from = handle_of(&op->fi);

    op->piece_bytes = 0;
    for (unsigned i = 0; rc == 0 && i < n_iov; i++) {
        assert(op->piece_bytes + iov[i].iov_len <= IO_MAX);
        memcpy((uint8_t *)op->memory + op->piece_bytes, iov[i].iov_base, iov[i].iov_len);
        op->piece_bytes += iov[i].iov_len;
    }
    if (rc != 0)
        fuse_op_reply_err(op, md_client_user_errno(rc));
    else if (!from->no_atime && node_note_read(from->node, op->loop->mount->atimes))
        op_drop_attr(op, copy_have_read);
    else
        copy_have_read(op);
}

static size_t copy_piece(const struct fuse_op *op)
{
    size_t left = op->size - op->done_bytes;

    return left < IO_MAX ? left : IO_MAX;
}

static void copy_read_with_token(struct fuse_op *op)
{
    uint64_t from = op->offset + op->done_bytes, to = from + copy_piece(op);

    file_read_within(handle_of(&op->fi)->node->file, from, copy_piece(op),
                     token_cache_readable_to(op->loop->mount->tokens, op->ino, to), false,
                     on_copy_read, op);
}

static void copy_read_under_lock(struct fuse_op *op)
{
    uint64_t from = op->offset + op->done_bytes;
    const struct token_need need = { TOKEN_SHARED, from, from + copy_piece(op) };

    fuse_op_with_range(op, handle_of(&op->fi)->node, &need, copy_read_with_token);
}

static void copy_read_step(struct fuse_op *op)
{
    fuse_op_under_lock(op, handle_of(&op->fi), copy_read_under_lock);
}

void fs_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
                        struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
                        struct fuse_file_info *fi_out, size_t len, int flags)
{
    struct fuse_op *op = fuse_op_begin(req);

    op->ino = ino_in;
    op->ino2 = ino_out;
    op->fi = *fi_in;
    op->copies = true;
    op->handle = handle_of(fi_out);
    op->offset = (uint64_t)off_in;
    op->offset2 = (uint64_t)off_out;
    op->size = len < COPY_CALL_MAX ? len : COPY_CALL_MAX;
    if (flags != 0 || off_in < 0 || off_out < 0) {
        fuse_op_reply_err(op, -EINVAL);
        return;
    }
    op->memory = xzalloc(op->size < IO_MAX ? op->size + 1 : IO_MAX);
    fuse_op_goto_owner(op, ino_in, copy_read_step);
}
