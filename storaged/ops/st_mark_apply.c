/*
 * st_mark_apply.c - the applier's marks: committed ones of the journal go into the files.
 *
 * In:     storage_apply_mark(), from journal_apply.c. Thread: the storio loop.
 * Out:    struct disk; `applied` of pending marks. The journal syncs afterwards.
 * Keeps:  of a record and a mark over one block the newer counts, so a mark hides what it
 *         covers as soon as its page or heads are written; records are removed only to
 *         free space. Records that a sync may have made stable are removed only after the
 *         mark is stable: a crash leaves the old record or the hole. If a mark lies below
 *         newer records nothing is removed.
 * Yours:  SMALL_BLOCKS.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "storaged/ops/st_mark.h"

/* The stages for one projection file, in order. */
enum mark_stage {
    MARK_LOOK,
    MARK_ROOM, /* large mark: makes room in the mark page */
    /* a small mark, too, if its epoch is new to the file or there is no page */
    MARK_PAGE,
    MARK_HEADS, /* small mark: heads of holes, one extent after the other */
    MARK_SYNC,
    MARK_FREE, /* nothing can fail from here on */
    MARK_END,
};

/* Room in a mark page: one range after the other is moved to heads. */
enum room_state {
    ROOM_NEXT,
    ROOM_HEADS, /* writes heads for the range */
    ROOM_SYNC,  /* makes them stable before the page forgets the range */
};

struct mark_apply {
    struct mark_op m; /* must be first */
    enum mark_stage stage;
    bool begun;                 /* a request of this stage is under way */
    bool covers;                /* records must be removed */
    uint64_t free_at, free_end; /* blocks still to be freed; free_end: their end */
    /* blocks of struct pending_mark that keep their space */
    uint64_t keep_first, keep_end;
    bool heads_freed;      /* heads of the extent of free_at are freed */
    struct marks *written; /* owned; written blocks of p, without the removed ones */
    bool noted;            /* the disk may list removed blocks as written */
    enum room_state room;
    unsigned spill; /* index of the range that is being moved to heads */
};

static struct proj *apply_proj(const struct mark_apply *a)
{
    return object_ready(a->m.op.obj, a->m.p);
}

/* ---- small marks, and large ones that have no room in the page: heads ---- */

/* Returns whether the mark turns a damaged head into a hole. One that keeps newer records
 * does so where reads, while it was pending, took the damage for older. */
static bool is_over_damage(const struct proj *proj, uint64_t block, const uint8_t *head,
                           const struct pending_mark *m)
{
    return m->keep_newer ? proj_is_under(proj, block, head, m)
                         : !m->passed || proj->newest <= m->version;
}

/* Turns older heads in the scan's buffer into holes of `version`, and returns how
 * many. Heads that are holes of that version count, too: a repeated mark may follow a
 * failed sync. Damaged ones only if a mark is given and lies over the damage. */
static unsigned heads_to_holes(struct mark_apply *a, const struct proj *proj,
                               uint64_t version, const struct pending_mark *mark)
{
    unsigned n = 0;

    assert(a->m.scan.n > 0 && version != 0);
    for (unsigned i = 0; i < a->m.scan.n; i++) {
        uint8_t *p = a->m.scan.buf + i * proj->geo.head_bytes;
        uint64_t block = a->m.scan.at + i;
        struct record_header h;
        enum record_state state = st_op_inspect(&a->m.op, a->m.p, block, p, &h);

        if (state == RECORD_IS_DAMAGED
                ? mark == NULL || !is_over_damage(proj, block, p, mark)
                : h.version > version)
            continue;
        if (state == RECORD_IS_DATA && h.version == version)
            continue;
        memset(p + RECORD_HEADER_BYTES, 0, proj->geo.head_bytes - RECORD_HEADER_BYTES);
        hole_head_put(p, a->m.op.obj->hash, a->m.p, block, version);
        a->covers |= state != RECORD_IS_HOLE;
        n++;
    }
    return n;
}

/* Walks over [first, end) and writes the changed heads. */
static enum st_op_next write_holes(struct mark_apply *a, uint64_t first, uint64_t end,
                                   uint64_t version, const struct pending_mark *mark)
{
    struct proj *proj = apply_proj(a);

    assert(first < end);
    if (!head_scan_is_on(&a->m.scan))
        head_scan_start(&a->m.scan, first, end, false);
    for (;;) {
        enum st_op_next next = st_op_scan(&a->m.op, proj, &a->m.scan);

        if (next != OP_GO || a->m.scan.n == 0)
            return next;
        if (heads_to_holes(a, proj, version, mark) > 0)
            return st_op_scan_write(&a->m.op, proj, &a->m.scan);
    }
}

/* ---- large marks: the page ---- */

/* Makes the changes stable by the shared sync: of two syncs at a time, only one might
 * report a failure. A sync that failed since the start of the mark may have lost its
 * bytes. */
static enum st_op_next mark_stabilize(struct mark_apply *a)
{
    enum st_op_next next;

    a->begun = true;
    next = st_op_sync(&a->m.op);
    if (next == OP_WAIT)
        return next;
    a->begun = false;
    if (next == OP_GO && a->m.verifier != storage_verifier(a->m.op.st))
        return st_op_bad(&a->m.op, -EIO);
    return next;
}

/* Moves the smallest ranges to heads until the new range fits. */
static enum st_op_next mark_room(struct mark_apply *a)
{
    const struct mark_op *m = &a->m;
    struct mark_range *ranges = m->marks->ranges;
    enum st_op_next next;

    assert(!mark_is_small(m));
    while (a->room != ROOM_NEXT || !marks_fits(m->marks, m->first, m->end, m->version)) {
        switch (a->room) {
        case ROOM_NEXT:
            a->spill = marks_smallest(m->marks);
            if (ranges[a->spill].end - ranges[a->spill].first > SPILL_BLOCKS_MAX)
                return st_op_bad(&a->m.op, -ENOSPC); /* heads would take too much */
            a->room = ROOM_HEADS;
            /* fall through */
        case ROOM_HEADS:
            next = write_holes(a, ranges[a->spill].first, ranges[a->spill].end,
                               ranges[a->spill].version, NULL);
            if (next != OP_GO)
                return next;
            a->room = ROOM_SYNC;
            /* fall through */
        case ROOM_SYNC:
            next = mark_stabilize(a);
            if (next != OP_GO)
                return next;
            marks_remove(m->marks, a->spill);
            a->room = ROOM_NEXT;
        }
    }
    marks_apply(m->marks, m->first, m->end, m->version);
    a->covers = true;
    return OP_GO;
}

/* ---- freeing space ---- */

static bool free_submit(struct mark_apply *a, enum disk_op what, uint64_t from,
                        uint64_t to)
{
    struct proj *proj = apply_proj(a);

    assert(from < to && (what != DISK_WRITE || to - from <= HEADS_MAX));
    if (what != DISK_WRITE) {
        st_op_disk(&a->m.op, what, proj, from, to - from);
        return true;
    }
    memset(a->m.scan.buf, 0, to - from);
    a->m.op.iov = (struct iovec){ .iov_base = a->m.scan.buf, .iov_len = to - from };
    st_op_write(&a->m.op, proj, from, &a->m.op.iov, 1, to - from);
    return true;
}

/* Frees whole extents from first, the first block of one. Returns false if none are
 * there. */
static bool free_extents(struct mark_apply *a, uint64_t first, uint64_t end)
{
    struct proj *proj = apply_proj(a);
    uint64_t from = geometry_extent_at(&proj->geo, first);
    uint64_t to = geometry_extent_at(&proj->geo, end);

    assert(first < end && first % EXTENT_BLOCKS == 0 && end % EXTENT_BLOCKS == 0);
    if (from >= proj->size)
        return false;
    if (to < proj->size)
        return free_submit(a, DISK_PUNCH, from, to);
    if (a->m.op.obj->n_sends > 0) /* a sendfile under way needs the file's length */
        return free_submit(a, DISK_PUNCH, from, proj->size);
    return free_submit(a, DISK_TRUNCATE, from, proj->size);
}

/* Frees the heads of n blocks of one extent. A small mark keeps them: it lies in them. */
static bool free_heads(struct mark_apply *a, uint64_t first, unsigned n)
{
    struct proj *proj = apply_proj(a);
    uint64_t from = geometry_head_at(&proj->geo, first);

    assert(n <= extent_part(first, UINT64_MAX));
    if (mark_is_small(&a->m) || from >= proj->size)
        return false;
    return free_submit(a, DISK_WRITE, from, from + n * proj->geo.head_bytes);
}

/* Frees whole pages of the bodies of n blocks of one extent. */
static bool free_bodies(struct mark_apply *a, uint64_t first, unsigned n)
{
    struct disk_range pages = proj_body_pages(apply_proj(a), first, n);

    return pages.from < pages.to && free_submit(a, DISK_PUNCH, pages.from, pages.to);
}

/* Returns the end of the blocks to free from free_at on; moves free_at behind reserved
 * blocks. */
static uint64_t free_stretch(struct mark_apply *a)
{
    assert(a->free_at < a->free_end);
    if (a->free_at >= a->keep_first && a->free_at < a->keep_end)
        a->free_at = a->keep_end < a->free_end ? a->keep_end : a->free_end;
    return a->free_at < a->keep_first && a->keep_first < a->free_end ? a->keep_first
                                                                     : a->free_end;
}

/* Submits the next request. Returns false if all is freed. */
static bool free_next(struct mark_apply *a)
{
    while (a->free_at < a->free_end) {
        uint64_t end = free_stretch(a), at = a->free_at;
        unsigned n = extent_part(at, end);

        if (at == a->free_end)
            break;
        if (n == EXTENT_BLOCKS && !mark_is_small(&a->m)) {
            a->free_at = end / EXTENT_BLOCKS * EXTENT_BLOCKS;
            if (free_extents(a, at, a->free_at))
                return true;
            continue;
        }
        if (!a->heads_freed) {
            a->heads_freed = true;
            if (free_heads(a, at, n))
                return true;
        }
        a->heads_freed = false;
        a->free_at += n;
        if (free_bodies(a, at, n))
            return true;
    }
    return false;
}

/* Frees space. The mark is done; records that cannot be removed stay until they are
 * overwritten. */
static enum st_op_next mark_free_space(struct mark_apply *a)
{
    struct proj *proj = apply_proj(a);

    if (a->begun && a->m.op.rc != 0)
        log_warn("cannot free the space of a truncated file: %s", error_text(a->m.op.rc));
    else if (a->begun && a->m.op.dr.op == DISK_TRUNCATE)
        proj->size = a->m.op.dr.offset;
    a->begun = free_next(a);
    return a->begun ? OP_WAIT : OP_GO;
}

/* ---- life ---- */

/* Removes the blocks of a large mark from the written ones, in the page that has the
 * mark. */
static void mark_forget_written(struct mark_apply *a, const struct proj *proj)
{
    struct marks *written = a->written;

    proj_written_copy(proj, written);
    a->noted = false;
    if (mark_is_small(&a->m))
        return;
    for (unsigned i = 0; i < written->n; i++) {
        const struct mark_range *r = &written->ranges[i];

        if (r->first < a->m.end && r->end > a->m.first)
            a->noted |= generation_is_ended(a->m.op.st->config.generations, r->version);
    }
    while (!marks_cut(written, a->m.first, a->m.end))
        marks_remove(written, marks_smallest(written));
}

/* Finds the space that was reserved after the mark was made: it stays reserved. */
static void mark_see_kept(struct mark_apply *a)
{
    struct pending_file *f = st_op_pending_file(&a->m.op);

    a->keep_first = a->keep_end = 0;
    LIST_FOREACH(node, f == NULL ? &a->m.op.journal.room.link : &f->marks) {
        const struct pending_mark *x = container_of(node, struct pending_mark, link);

        if (x->version != a->m.version || x->first != a->m.first || x->end != a->m.end)
            continue;
        a->keep_first = x->keep_first;
        a->keep_end = x->keep_end;
    }
}

static enum st_op_next mark_look(struct mark_apply *a)
{
    struct proj *proj = apply_proj(a);
    uint64_t blocks = geometry_blocks(&proj->geo, proj->size);

    assert(!a->begun && !head_scan_is_on(&a->m.scan));
    if (a->m.version > proj->newest)
        proj->newest = a->m.version;
    proj_forget_floor(proj, a->m.first, a->m.end);
    *a->m.marks = *proj_marks(proj);
    mark_forget_written(a, proj);
    mark_see_kept(a);
    a->covers = false;
    a->free_at = a->m.first;
    a->free_end = a->m.end < blocks ? a->m.end : blocks;
    return OP_GO;
}

static enum st_op_next mark_heads(struct mark_apply *a)
{
    const struct pending_mark mark = { .version = a->m.version,
                                       .keep_newer = a->m.keep_newer,
                                       .passed = a->m.passed };

    return mark_is_small(&a->m)
               ? write_holes(a, a->m.first, a->m.end, a->m.version, &mark)
               : OP_GO;
}

static enum st_op_next mark_page(struct mark_apply *a)
{
    const struct proj *proj = apply_proj(a);
    uint32_t epoch = version_epoch(a->m.version);
    enum st_op_next next;

    if (!a->begun && mark_is_small(&a->m) && epoch <= proj->epoch &&
        proj->marks_slot >= 0)
        return OP_GO;
    next = st_op_write_marks(&a->m.op, a->m.p, a->m.marks, a->written, epoch);
    a->begun = next == OP_WAIT;
    return next;
}

static enum st_op_next mark_sync(struct mark_apply *a)
{
    struct proj *proj = apply_proj(a);

    a->covers &= a->free_at < a->free_end && a->m.stale == 0;
    if (!a->covers)
        a->free_at = a->free_end;
    if (!a->begun && !(a->covers && (proj->promised || a->noted)))
        return OP_GO;
    return mark_stabilize(a);
}

static enum st_op_next mark_stage_run(struct mark_apply *a)
{
    switch (a->stage) {
    case MARK_LOOK:
        return mark_look(a);
    case MARK_ROOM:
        return mark_is_small(&a->m) ? OP_GO : mark_room(a);
    case MARK_PAGE:
        return mark_page(a);
    case MARK_HEADS:
        return mark_heads(a);
    case MARK_SYNC:
        return mark_sync(a);
    case MARK_FREE:
        return mark_free_space(a);
    case MARK_END:
        break;
    }
    return OP_GO;
}

/* Applies the mark to one projection file after the other. */
static enum st_op_next mark_apply(struct st_op *op)
{
    struct mark_apply *a = (struct mark_apply *)op;

    assert(op->held == OP_HOLDS_EXCLUSIVE);
    for (; a->m.p < CODEC_N_MAX; a->m.p++) {
        if (apply_proj(a) == NULL)
            continue;
        while (a->stage != MARK_END) {
            enum st_op_next next = mark_stage_run(a);

            if (next != OP_GO)
                return next;
            a->stage++;
        }
        a->stage = MARK_LOOK;
    }
    return OP_GO;
}

static void mark_apply_done(struct st_op *op)
{
    const struct mark_op *m = (const struct mark_op *)op;
    struct pending_file *f = st_op_pending_file(op);

    LIST_FOREACH(node, f == NULL ? &op->journal.room.link : &f->marks) {
        struct pending_mark *x = container_of(node, struct pending_mark, link);

        if (x->committed && x->version == m->version && x->first >= m->first &&
            x->end <= m->end)
            x->applied = true;
    }
    st_op_end_internal(op, 0);
}

static void mark_apply_free(struct st_op *op)
{
    free(((struct mark_apply *)op)->written);
    mark_free(op);
}

static const struct st_op_kind apply_kind = {
    .bytes = sizeof(struct mark_apply),
    .free = mark_apply_free,
    .done = mark_apply_done,
    .steps = { st_op_enter, mark_check, mark_begin, mark_apply },
};

int storage_apply_mark(void *storage, struct pending_file *f,
                       const struct pending_mark *mark, void (*done)(void *arg, int rc),
                       void *arg)
{
    struct mark_apply *a =
        (struct mark_apply *)st_op_new_internal(storage, f, &apply_kind, done, arg);
    struct mark_op *m;

    assert(mark->committed && mark->first < mark->end);
    if (a == NULL)
        return -ENOMEM;
    m = &a->m;
    m->projection = PROJECTION_ANY;
    m->first = mark->first;
    m->end = mark->end;
    m->version = mark->version;
    m->keep_newer = mark->keep_newer;
    m->passed = mark->passed;
    a->written = malloc(sizeof(*a->written));
    if (a->written == NULL || mark_buffers(m) != 0) {
        st_op_free(&m->op);
        return -ENOMEM;
    }
    st_op_start(&m->op, 0);
    return 0;
}
