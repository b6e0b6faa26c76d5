/*
 * st_write_units.c - ST_WRITE: a new file, and the blocks beside the written ones.
 *
 * In:     steps of st_write.c and st_write_apply.c. Thread: the storio loop.
 * Out:    struct disk: the file, heads that say "never written", mark pages.
 * Keeps:  a unit of blocks is noted as written only when all its blocks have heads: from
 *         then on a zero head is a lost one.
 * Ask:    projfile.h for units, marks and their pages.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "storaged/ops/st_write.h"

enum { UNITS_MAX = 16 /* upper bound in one run */ };

static unsigned unit_blocks(const struct st_write_op *w)
{
    struct geometry g;

    geometry_init(&g, w->op.ref.codec, w->projection);
    return g.unit_blocks;
}

/* Returns the blocks of all units of the run. */
static struct mark_range write_units(const struct st_write_op *w)
{
    unsigned unit = unit_blocks(w);

    return (struct mark_range){
        .first = w->first / unit * unit,
        .end = (w->first + w->n + unit - 1) / unit * unit,
        .version = generation_of_note(w->op.st->config.generations),
    };
}

enum st_op_next write_create(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    struct mark_range units;

    if (write_proj(w) != NULL)
        return OP_GO;
    assert(op->call != NULL); /* the applier only replaces records */
    w->created = true;
    units = write_units(w);
    return st_op_create(op, w->projection, version_epoch(w->newest), &units);
}

/* ---- the rest of a unit: blocks that were never written get a head that says so ---- */

static uint64_t unit_first(const struct st_write_op *w, unsigned unit)
{
    unsigned blocks = write_proj(w)->geo.unit_blocks;

    return (w->first / blocks + unit) * blocks;
}

static bool unit_has_place(const struct st_write_op *w, uint64_t first)
{
    unsigned blocks = write_proj(w)->geo.unit_blocks;

    for (uint64_t b = first; b < first + blocks; b++) {
        if (b >= w->first && b < w->first + w->n &&
            w->blocks[b - w->first].way == WAY_PLACE)
            return true;
    }
    return false;
}

/* Finds the units that become complete by this write. In a partial file there are
 * none: its other blocks stay unknown. */
enum st_op_next write_find_fresh(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    struct proj *proj = write_proj(w);
    unsigned blocks = proj->geo.unit_blocks;
    unsigned n = (unsigned)((w->first + w->n - 1) / blocks - w->first / blocks) + 1;

    assert(op->held == OP_HOLDS_EXCLUSIVE && n <= UNITS_MAX);
    w->fresh = 0;
    for (unsigned u = 0; u < n && !proj->partial && !w->no_space; u++) {
        uint64_t first = unit_first(w, u);

        if (!marks_cover(proj_written(proj), first, first + blocks) &&
            (w->created || unit_has_place(w, first)))
            w->fresh |= (uint16_t)(1u << u);
    }
    return OP_GO;
}

/* Makes hole heads for the blocks without one, and returns how many. Lost heads stay
 * lost. */
static unsigned fill_holes(struct st_write_op *w, uint64_t first)
{
    struct proj *proj = write_proj(w);
    unsigned n = 0;

    for (unsigned i = 0; i < proj->geo.unit_blocks; i++) {
        uint8_t *p = w->fill + i * proj->geo.head_bytes;

        if (!record_header_is_zero(p) || marks_find(proj_written(proj), first + i) != 0)
            continue;
        hole_head_put(p, w->op.obj->hash, w->projection, first + i, 0);
        n++;
    }
    return n;
}

/* Writes a mark page first if the epoch is newer, or if the file becomes longer than
 * its header announces: without a page that would look like a file that lost its
 * pages. */
enum st_op_next write_page(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    struct proj *proj = write_proj(w);
    bool first_page = proj->marks_slot < 0 && w->fresh != 0 && !w->created;

    assert(op->held == OP_HOLDS_EXCLUSIVE && proj != NULL);
    if (w->n_place == 0 && !w->created)
        return OP_GO;
    if (version_epoch(w->newest) <= proj->epoch && !first_page &&
        op->create.marks == MARKS_NONE)
        return OP_GO;
    return st_op_write_marks(op, w->projection, proj_marks(proj), proj_written(proj),
                             version_epoch(w->newest));
}

/* Completes one unit: read, fill, write. */
static enum st_op_next fill_unit(struct st_write_op *w, uint64_t first)
{
    struct proj *proj = write_proj(w);
    size_t len = proj->geo.unit_blocks * proj->geo.head_bytes;

    switch (w->filling) {
    case FILL_NEXT:
        if (w->fill == NULL && (w->fill = malloc(len)) == NULL)
            return st_op_bad(&w->op, -ENOMEM);
        if (st_op_read_heads(&w->op, proj, first, proj->geo.unit_blocks, w->fill)) {
            w->filling = FILL_READING;
            return OP_WAIT;
        }
        break;
    case FILL_READING:
        if (w->op.rc != 0)
            return OP_BAD;
        st_op_read_heads_done(&w->op, w->fill);
        break;
    case FILL_WRITING:
        w->filling = FILL_NEXT;
        return w->op.rc != 0 ? OP_BAD : OP_GO;
    case FILL_UNDOING:
        assert(!"a unit is being written");
    }
    w->filling = FILL_NEXT;
    if (fill_holes(w, first) == 0)
        return OP_GO;
    w->filling = FILL_WRITING;
    w->iov[0] = (struct iovec){ .iov_base = w->fill, .iov_len = len };
    st_op_write(&w->op, proj, geometry_head_at(&proj->geo, first), w->iov, 1, len);
    return OP_WAIT;
}

/* True if a unit has blocks to fill. A new file fills all units that its header
 * announces, even those that the run covers. */
static bool unit_needs_fill(const struct st_write_op *w, unsigned unit)
{
    uint64_t first = unit_first(w, unit);
    uint64_t end = first + write_proj(w)->geo.unit_blocks;
    bool is_whole = w->first <= first && end <= w->first + w->n;

    return (w->fresh >> unit & 1) != 0 && (w->created || !is_whole || w->n_place < w->n);
}

enum st_op_next write_fill(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;

    if (w->filling == FILL_UNDOING)
        return st_op_create_undo(op, w->projection);
    for (; w->unit < UNITS_MAX; w->unit++) {
        enum st_op_next next = OP_GO;

        if (unit_needs_fill(w, w->unit))
            next = fill_unit(w, unit_first(w, w->unit));
        if (next == OP_BAD && w->created) {
            w->filling = FILL_UNDOING;
            return st_op_create_undo(op, w->projection);
        }
        if (next != OP_GO)
            return next;
    }
    return OP_GO;
}

/* Returns the written blocks with the fresh units added, or NULL without memory. */
static struct marks *write_note_make(struct st_write_op *w)
{
    struct proj *proj = write_proj(w);
    uint64_t generation = generation_of_note(w->op.st->config.generations);
    struct marks *noted = malloc(sizeof(*noted));

    if (noted == NULL)
        return NULL;
    proj_written_copy(proj, noted);
    for (unsigned u = 0; u < UNITS_MAX; u++) {
        uint64_t first, end;

        if ((w->fresh >> u & 1) == 0)
            continue;
        first = unit_first(w, u);
        end = first + proj->geo.unit_blocks;
        while (marks_newest(noted, first, end) != 0 && !marks_cut(noted, first, end))
            marks_remove(noted, marks_smallest(noted));
        while (noted->n + 2 > MARKS_MAX && !marks_fits(noted, first, end, generation))
            marks_remove(noted, marks_smallest(noted));
        marks_apply(noted, first, end, generation);
    }
    return noted;
}

/* Notes the fresh units in a mark page, unless the header of a new file announces
 * them. During a sync the page is left to the next write. */
enum st_op_next write_note(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    struct proj *proj = write_proj(w);
    enum st_op_next next;

    assert(op->held == OP_HOLDS_EXCLUSIVE && proj != NULL);
    if (!w->noting && w->fresh == 0 && !proj->unsaved)
        return OP_GO;
    if (w->noted == NULL && (w->noted = write_note_make(w)) == NULL)
        return st_op_bad(op, -ENOMEM);
    if (!w->noting && (w->created || op->obj->syncing)) {
        proj->unsaved |= !w->created;
        op->rc = proj_written_keep(proj, w->noted);
        return op->rc == 0 ? OP_GO : OP_BAD;
    }
    w->noting = true;
    next = st_op_write_marks(op, w->projection, proj_marks(proj), w->noted, 0);
    if (next != OP_BAD)
        return next;
    proj->unsaved = true; /* the records are here; a missing note does no harm */
    op->rc = proj_written_keep(proj, w->noted);
    return op->rc == 0 ? OP_GO : OP_BAD;
}
