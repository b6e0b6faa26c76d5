/*
 * st_write_place.c - ST_WRITE: bodies and heads in place, in an order that may be
 * interrupted anywhere.
 *
 * In:     write_pieces(), a step of st_write.c and st_write_apply.c. Thread: the storio
 *         loop.
 * Out:    struct disk, one positioned write after the other.
 * Keeps:  first writes put bodies before heads, so that a stop in between leaves a hole;
 *         everything that may fail for lack of space is done before old records are
 *         touched (I12).
 * Yours:  the order of pieces within those rules.
 */
#include <assert.h>

#include "storaged/ops/st_write.h"

static const uint8_t zeros[CODEC_BLOCK_MAX];

static bool in_place(const struct st_write_op *w, unsigned i)
{
    return w->blocks[i].way == WAY_PLACE && !(w->no_space && w->blocks[i].needs_space);
}

/* True if this part replaces no record. */
static bool part_is_new(const struct st_write_op *w, unsigned from, unsigned to)
{
    assert(from < to && to <= w->n);
    for (unsigned i = from; i < to; i++) {
        if (w->blocks[i].body_len > 0 && !w->blocks[i].needs_space)
            return false;
        if (w->blocks[i].body_len == 0 && w->blocks[i].replaces)
            return false;
    }
    return true;
}

void write_iov_add(struct st_write_op *w, const void *base, size_t len)
{
    struct iovec *last = w->n_iov > 0 ? &w->iov[w->n_iov - 1] : NULL;

    if (last != NULL && (const uint8_t *)last->iov_base + last->iov_len == base) {
        last->iov_len += len;
        return;
    }
    assert(w->n_iov < w->iov_max);
    w->iov[w->n_iov++] =
        (struct iovec){ .iov_base = (void *)(uintptr_t)base, .iov_len = len };
}

static bool in_phase(const struct st_write_op *w, unsigned i)
{
    return w->blocks[i].body_len > 0 && in_place(w, i) &&
           w->blocks[i].needs_space == (w->phase == PHASE_NEW_BODIES);
}

/* Writes bodies of adjacent blocks together, padded to their slots. */
static bool submit_bodies(struct st_write_op *w)
{
    struct proj *proj = write_proj(w);
    unsigned from, to, end;
    uint64_t len = 0;

    assert(w->at <= w->n && proj != NULL);
    while (w->at < w->n && !in_phase(w, w->at))
        w->at++;
    if (w->at == w->n)
        return false;
    from = w->at;
    end = write_part_end(w, from);
    w->n_iov = 0;
    for (to = from; to < end && in_phase(w, to); to++) {
        const struct write_block *b = &w->blocks[to];

        write_iov_add(w, w->payload + b->body_at, b->body_len);
        len += b->body_len;
        if (b->body_len < proj->geo.stride && to + 1 < end && in_phase(w, to + 1)) {
            write_iov_add(w, zeros, proj->geo.stride - b->body_len);
            len += proj->geo.stride - b->body_len;
        }
    }
    w->at = to;
    st_op_write(&w->op, proj, geometry_body_at(&proj->geo, w->first + from), w->iov,
                w->n_iov, len);
    return true;
}

/* Writes the heads of the next part of the right kind: all new, or not. */
static bool submit_heads(struct st_write_op *w)
{
    struct proj *proj = write_proj(w);

    assert(w->at <= w->n && proj != NULL);
    while (w->at < w->n) {
        unsigned from = w->at, to = write_part_end(w, from);
        size_t len;

        /* skip to the next heads in a row that go in place */
        if (w->n_place < w->n || w->no_space) {
            unsigned end = to;

            while (from < end && !in_place(w, from))
                from++;
            for (to = from; to < end && in_place(w, to);)
                to++;
        }
        len = (to - from) * w->head_bytes;
        w->at = to;
        if (from == to ||
            (part_is_new(w, from, to) && !w->no_space) != (w->phase == PHASE_NEW_HEADS))
            continue;
        w->iov[0] =
            (struct iovec){ .iov_base = (void *)(uintptr_t)write_new_head(w, from),
                            .iov_len = len };
        st_op_write(&w->op, proj, geometry_head_at(&proj->geo, w->first + from), w->iov,
                    1, len);
        return true;
    }
    return false;
}

/* Submits the next positioned write. Returns false if all are done. */
static bool submit_piece(struct st_write_op *w)
{
    assert(w->phase != PHASE_BEGIN);
    while (w->phase != PHASE_END) {
        bool bodies = w->phase == PHASE_NEW_BODIES || w->phase == PHASE_OLD_BODIES;

        if (bodies ? submit_bodies(w) : submit_heads(w))
            return true;
        w->phase++;
        w->at = 0;
    }
    return false;
}

enum st_op_next write_pieces(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    struct proj *proj = write_proj(w);

    if (w->phase != PHASE_BEGIN && op->rc != 0)
        return OP_BAD;
    if (w->n_place > 0) {
        proj_forget_floor(proj, w->first, w->first + w->n);
        proj->newest = w->newest > proj->newest ? w->newest : proj->newest;
    }
    if (w->phase == PHASE_BEGIN)
        w->phase = PHASE_NEW_BODIES;
    return submit_piece(w) ? OP_WAIT : OP_GO;
}
