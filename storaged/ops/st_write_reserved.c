/*
 * st_write_reserved.c - ST_WRITE without free space: finds out if the run has reserved
 * space.
 *
 * In:     write_space(), a step of st_write.c. Thread: the storio loop.
 * Out:    struct disk.
 * Keeps:  a write into a range that ST_ALLOC granted is not refused for lack of space.
 *         The file system knows what is reserved, so a restart forgets none of it.
 */
#include <assert.h>
#include <errno.h>

#include "storaged/ops/st_write.h"

/* Returns the smallest range with all blocks of [from, to) that need space; perhaps
 * empty. */
static struct mark_range needy_blocks(const struct st_write_op *w, unsigned from,
                                      unsigned to)
{
    while (from < to && !w->blocks[from].needs_space)
        from++;
    while (to > from && !w->blocks[to - 1].needs_space)
        to--;
    return (struct mark_range){ .first = w->first + from, .end = w->first + to };
}

/* Returns the bytes of these blocks' bodies, or of the heads that are written with
 * them. */
static struct disk_range needy_bytes(const struct st_write_op *w, struct mark_range r)
{
    const struct geometry *g = &write_proj(w)->geo;
    uint64_t unit = g->unit_blocks;

    assert(r.first < r.end);
    if (w->measuring == MEASURE_BODIES)
        return (struct disk_range){ geometry_body_at(g, r.first),
                                    geometry_body_at(g, r.end - 1) + g->stride };
    return (struct disk_range){ geometry_head_at(g, r.first / unit * unit),
                                geometry_head_at(g, (r.end - 1) / unit * unit) +
                                    unit * g->head_bytes };
}

static enum st_op_next ends(struct st_write_op *w, enum st_op_next next)
{
    w->at = 0;
    w->measured = 0;
    w->measuring = MEASURE_NONE;
    return next == OP_BAD ? st_op_bad(&w->op, -ENOSPC) : next;
}

/* Checks one range of bytes. OP_GO: all of it has space. */
static enum st_op_next measure(struct st_write_op *w, struct disk_range bytes)
{
    assert(bytes.from < bytes.to);
    if (w->measured != 0) { /* the answer to DISK_MAPPED */
        if (w->op.rc != 0 || !w->op.dr.mapped || w->op.dr.next <= w->measured)
            return OP_BAD;
        w->measured = w->op.dr.next;
    } else {
        w->measured = bytes.from;
    }
    if (w->measured >= bytes.to) {
        w->measured = 0;
        return OP_GO;
    }
    st_op_disk(&w->op, DISK_MAPPED, write_proj(w), w->measured, bytes.to - w->measured);
    return OP_WAIT;
}

enum st_op_next write_is_reserved(struct st_write_op *w)
{
    assert(w->at <= w->n && write_proj(w) != NULL);
    if (w->measuring == MEASURE_NONE)
        w->measuring = MEASURE_HEADS;
    while (w->at < w->n) {
        unsigned to = write_part_end(w, w->at);
        struct mark_range r = needy_blocks(w, w->at, to);
        enum st_op_next next = OP_GO;

        if (r.first < r.end)
            next = measure(w, needy_bytes(w, r));
        if (next != OP_GO)
            return next == OP_BAD ? ends(w, next) : next;
        if (w->measuring == MEASURE_BODIES)
            w->at = to;
        w->measuring = w->measuring == MEASURE_BODIES ? MEASURE_HEADS : MEASURE_BODIES;
    }
    return ends(w, OP_GO);
}
