/*
 * fs_copy.c - copy_file_range: read on one owner, write on the other, piece by piece.
 *
 * In:     the kernel's request.
 * Out:    the file layer, the reply. An error after some bytes is reported by the
 *         program's next request.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/options/xalloc.h"

enum {
    COPY_CALL_MAX = 8 << 20, /* bytes of one copy_file_range; the kernel asks again */
};

/* op.ino is copied to op.ino2; op.n_copied bytes of `size` are done. */
struct copy_op {
    struct fuse_op op; /* must be first */
    struct handle *from, *to;
    uint64_t offset_from, offset_to;
    size_t size;
    size_t piece_bytes; /* read, and to be written */
    struct iovec iov;   /* this piece, in op.memory */
};

static enum step_end copy_end(struct fuse_op *op)
{
    fuse_req_t req = op->req;

    op->req = NULL;
    fuse_reply_write(req, op->n_copied);
    return fuse_op_finish(op);
}

/* ---- reading a piece ---- */

static size_t copy_piece(const struct copy_op *c)
{
    size_t left = c->size - c->op.n_copied;

    return left < IO_MAX ? left : IO_MAX;
}

static enum step_end copy_use_source(struct fuse_op *op)
{
    op->handle = ((struct copy_op *)op)->from;
    return fuse_op_use_handle(op);
}

static enum step_end copy_read_take_token(struct fuse_op *op)
{
    const struct copy_op *c = (struct copy_op *)op;
    uint64_t from = c->offset_from + op->n_copied;
    const struct token_need need = { TOKEN_SHARED, from, from + copy_piece(c) };

    return fuse_op_with_range(op, c->from->node, &need);
}

static void on_copy_read(void *arg, int rc, const struct iovec *iov, unsigned n_iov)
{
    struct copy_op *c = arg;

    c->piece_bytes = 0;
    for (unsigned i = 0; rc == 0 && i < n_iov; i++) {
        assert(c->piece_bytes + iov[i].iov_len <= IO_MAX);
        memcpy((uint8_t *)c->op.memory + c->piece_bytes, iov[i].iov_base, iov[i].iov_len);
        c->piece_bytes += iov[i].iov_len;
    }
    fuse_op_file_done(&c->op, rc);
}

static enum step_end copy_read_submit(struct fuse_op *op)
{
    struct copy_op *c = (struct copy_op *)op;
    uint64_t from = c->offset_from + op->n_copied, to = from + copy_piece(c);

    file_read_within(handle_file(c->from), from, copy_piece(c),
                     token_cache_readable_to(op->loop->mount->tokens, op->ino, to), false,
                     on_copy_read, c);
    return STEP_WAIT;
}

static enum step_end copy_read_answered(struct fuse_op *op)
{
    const struct copy_op *c = (struct copy_op *)op;

    if (op->rc != 0)
        return fuse_op_end(op, md_client_user_errno(op->rc));
    return !c->from->no_atime && node_note_read(c->from->node, op->loop->mount->atimes)
               ? fuse_op_drop_attr(op)
               : STEP_GO;
}

/* ---- writing it ---- */

static enum step_end copy_goto_target(struct fuse_op *op)
{
    const struct copy_op *c = (struct copy_op *)op;

    if (c->piece_bytes == 0) /* end of the source */
        return copy_end(op);
    return fuse_op_goto(op, op->ino2);
}

static enum step_end copy_use_target(struct fuse_op *op)
{
    op->handle = ((struct copy_op *)op)->to;
    return fuse_op_use_handle(op);
}

static enum step_end copy_write_take_token(struct fuse_op *op)
{
    const struct copy_op *c = (struct copy_op *)op;
    uint64_t from = c->offset_to + op->n_copied;
    const struct token_need need = { TOKEN_EXCLUSIVE, from, from + c->piece_bytes };

    return fuse_op_with_range(op, c->to->node, &need);
}

static enum step_end copy_drop_privileges(struct fuse_op *op)
{
    return fuse_op_is_forbidden(op, false) ? fuse_op_end(op, -EPERM)
                                           : fuse_op_drop_privileges(op);
}

static enum step_end copy_write_submit(struct fuse_op *op)
{
    struct copy_op *c = (struct copy_op *)op;

    c->iov = (struct iovec){ .iov_base = op->memory, .iov_len = c->piece_bytes };
    file_write(handle_file(c->to), c->offset_to + op->n_copied, &c->iov, 1,
               c->to->sync ? FILE_WRITE_SYNC : 0, fuse_op_file_done, op);
    return STEP_WAIT;
}

static enum step_end copy_store(struct fuse_op *op)
{
    const struct copy_op *c = (struct copy_op *)op;

    return c->to->sync ? STEP_GO : fuse_op_store(op, c->to);
}

static enum step_end copy_written(struct fuse_op *op);
static fuse_op_step *const copy_steps[] = {
    fuse_op_goto_owner,
    copy_use_source,
    fuse_op_under_lock,
    copy_read_take_token,
    copy_read_submit,
    copy_read_answered,
    copy_goto_target,
    copy_use_target,
    fuse_op_under_lock,
    copy_write_take_token,
    copy_drop_privileges,
    copy_write_submit,
    copy_store,
    copy_written,
    NULL,
};

static enum step_end copy_written(struct fuse_op *op)
{
    const struct copy_op *c = (struct copy_op *)op;

    fuse_op_token_done(op);
    if (op->rc != 0)
        return fuse_op_end(op, md_client_user_errno(op->rc));
    op->n_copied += c->piece_bytes;
    return op->n_copied == c->size ? copy_end(op) : fuse_op_go(op, copy_steps);
}

void fs_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
                        struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
                        struct fuse_file_info *fi_out, size_t len, int flags)
{
    struct copy_op *c = fuse_op_begin(req, sizeof(*c));

    c->op.ino = ino_in;
    c->op.ino2 = ino_out;
    c->from = handle_of(req, ino_in, fi_in);
    c->to = handle_of(req, ino_out, fi_out);
    c->offset_from = (uint64_t)off_in;
    c->offset_to = (uint64_t)off_out;
    c->size = len < COPY_CALL_MAX ? len : COPY_CALL_MAX;
    if (flags != 0 || off_in < 0 || off_out < 0) {
        fuse_op_reply_err(&c->op, -EINVAL);
        return;
    }
    c->op.memory = xzalloc(c->size < IO_MAX ? c->size + 1 : IO_MAX);
    fuse_op_start(&c->op, copy_steps);
}
