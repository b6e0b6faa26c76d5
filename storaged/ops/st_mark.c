/*
 * st_mark.c - ST_MARK: a range of blocks becomes holes of a version (truncate, punch).
 *
 * In:     storage_handle_mark(), which only appends it to the journal; the applier, which
 *         carries it out. Thread: the storio loop.
 * Out:    struct disk, rpc_reply().
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

#include "common/base/log.h"
#include "storaged/ops/st_requests.h"

enum {
    /* up to so many blocks are written as heads, more as a range */
    SMALL_BLOCKS = 2 * EXTENT_BLOCKS,
    /* blocks of a range that is moved from a full mark page to heads */
    SPILL_BLOCKS_MAX = 1 << 20,
};

/* The stages for one projection file, in order. */
enum mark_stage {
    MARK_BEGIN,
    MARK_ROOM, /* large mark: makes room in the mark page */
    /* a small mark, too, if its epoch is new to the file or there is no page */
    MARK_PAGE,
    MARK_HEADS, /* small mark: heads of holes, one extent after the other */
    MARK_SYNC,
    MARK_FREE, /* nothing can fail from here on */
    MARK_END,
};

struct mark_op {
    struct st_op op;     /* must be first */
    unsigned projection; /* projection, or PROJECTION_ANY */
    uint64_t first, end; /* end UINT64_MAX: no end */
    uint64_t version;
    bool keep_newer;   /* keeps newer records instead of refusing */
    bool passed;       /* applier: see struct pending_mark */
    uint64_t stale;    /* newest version that refuses the mark */
    uint64_t verifier; /* taken before the first change, as for a write */
    bool is_here;      /* an equal mark is pending */
    bool is_nothing;   /* nothing of the file is here */
    bool waiting, created;
    uint8_t *entry_header; /* owned */
    bool unbound;          /* a damaged record without a bound refuses the mark */
    unsigned p;            /* current projection */
    enum mark_stage stage;
    bool begun;                 /* a request of this stage is under way */
    bool covers;                /* records must be removed */
    uint64_t free_at, free_end; /* blocks still to be freed; free_end: their end */
    /* blocks of struct pending_mark that keep their space */
    uint64_t keep_first, keep_end;
    bool heads_freed; /* heads of the extent of free_at are freed */
    struct head_scan scan;
    bool scanning, scan_writing;
    struct marks *marks;   /* owned; marks of p, with the new one */
    struct marks *written; /* owned; written blocks of p, without the removed ones */
    bool noted;            /* the disk may list removed blocks as written */
    unsigned spill;        /* index of the range that is being moved to heads */
    bool spilling;
    struct iovec iov;
};

static bool is_applier(const struct mark_op *m)
{
    return m->op.call == NULL;
}

/* Returns the bytes of an extent's heads, of any projection. */
static size_t heads_max(void)
{
    return (size_t)EXTENT_BLOCKS * (RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX);
}

static bool is_small(const struct mark_op *m)
{
    return m->end - m->first <= SMALL_BLOCKS;
}

static void scan_start(struct mark_op *m, uint64_t first, uint64_t end, bool skip_holes)
{
    m->scan = (struct head_scan){
        .at = first,
        .end = end,
        .buf = m->scan.buf,
        .skip_holes = skip_holes,
    };
    m->scanning = true;
    m->scan_writing = false;
}

/* ---- version checks ---- */

static void check_heads(struct mark_op *m, struct proj *proj)
{
    for (unsigned i = 0; i < m->scan.n; i++) {
        struct record_header h;
        const uint8_t *head = m->scan.buf + i * proj->geo.head_bytes;
        enum record_state state = st_op_inspect(&m->op, m->p, m->scan.at + i, head, &h);
        bool decided = st_op_is_decided(&m->op); /* all storages have agreed */
        uint64_t lost = 0;
        bool unbound = state == RECORD_IS_DAMAGED && !decided &&
                       !proj_lost_floor(proj, m->scan.at + i, head, &lost);
        uint64_t version = state == RECORD_IS_DAMAGED ? lost : h.version;
        bool in_the_way =
            state == RECORD_IS_DATA ? version >= m->version : version > m->version;

        if (in_the_way && version > m->stale)
            m->stale = version;
        m->unbound |= in_the_way && unbound;
    }
}

/* Looks for newer records in one file. Most marks are of a later epoch than all of it. */
static enum st_op_next check_proj(struct mark_op *m, struct proj *proj)
{
    uint64_t newest = marks_newest(proj_marks(proj), m->first, m->end);
    uint64_t blocks = proj_blocks(proj);

    if (!m->scanning) {
        if (newest > m->version && newest > m->stale)
            m->stale = newest;
        if (m->version > proj->newest || m->first >= blocks)
            return OP_GO;
        scan_start(m, m->first, m->end < blocks ? m->end : blocks, !is_small(m));
    }
    for (;;) {
        enum st_op_next next = st_op_scan(&m->op, proj, &m->scan);

        if (next != OP_GO)
            return next;
        if (m->scan.n == 0)
            break;
        check_heads(m, proj);
    }
    if (m->unbound)
        proj_set_floor(proj, m->first, m->end);
    m->unbound = m->scanning = false;
    return OP_GO;
}

/* Checks pending records and marks as if they lay in place. An equal pending mark is
 * enough. */
static void check_pending(struct mark_op *m)
{
    struct pending_file *f = is_applier(m) ? NULL : st_op_pending_file(&m->op);

    if (f == NULL)
        return;
    LIST_FOREACH(node, &f->marks) {
        struct pending_mark *x = container_of(node, struct pending_mark, link);

        if (x->first >= m->end || x->end <= m->first)
            continue;
        if (x->version > m->version && x->version > m->stale)
            m->stale = x->version;
        /* an applied one may lack projections that came later */
        m->is_here |= !x->applied && x->version == m->version && x->first <= m->first &&
                      x->end >= m->end && st_op_frame_is_good(&m->op, x->entry);
    }
    PENDING_FOREACH(node, f)
    {
        struct pending_record *r = container_of(node, struct pending_record, link);

        if (r->block >= m->first && r->block < m->end && r->version >= m->version &&
            (r->version > m->version || r->body_len > 0) && r->version > m->stale)
            m->stale = r->version;
    }
}

/* Checks the fence: a fenced writer may only repeat what is here. */
static bool check_fence(struct mark_op *m)
{
    uint32_t fence =
        st_op_is_decided(&m->op) ? 0 : journal_fence(m->op.st->journal, &m->op.ref.id);

    return fence == 0 || m->is_here || version_epoch(m->version) > fence;
}

/* Checks that the mark pages will have room for it and for the pending marks, since
 * the applier must not fail for good. */
static enum st_op_next check_room(struct mark_op *m)
{
    struct pending_file *f = st_op_pending_file(&m->op);

    if (is_small(m) || m->is_here)
        return OP_GO;
    if (f != NULL && f->n_marks >= PENDING_MARKS_MAX)
        return OP_GO; /* waits for room and is checked again */
    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        struct proj *proj = object_ready(m->op.obj, p);
        struct list_node *node = f == NULL ? NULL : f->marks.next;
        bool last = false;

        if (proj == NULL)
            continue;
        *m->marks = *proj_marks(proj);
        while (!last) {
            struct pending_mark own = { .first = m->first,
                                        .end = m->end,
                                        .version = m->version };
            struct pending_mark *x = &own;

            last = node == NULL || node == &f->marks;
            if (!last) {
                x = container_of(node, struct pending_mark, link);
                node = node->next;
            }
            if (x->end - x->first <= SMALL_BLOCKS)
                continue;
            while (!marks_fits(m->marks, x->first, x->end, x->version)) {
                unsigned i = marks_smallest(m->marks);

                if (m->marks->ranges[i].end - m->marks->ranges[i].first >
                    SPILL_BLOCKS_MAX)
                    return st_op_bad(&m->op, -ENOSPC);
                marks_remove(m->marks, i);
            }
            marks_apply(m->marks, x->first, x->end, x->version);
        }
    }
    return OP_GO;
}

static enum st_op_next mark_check(struct mark_op *m)
{
    for (; m->p < CODEC_N_MAX; m->p++) {
        struct proj *proj = object_ready(m->op.obj, m->p);
        enum st_op_next next = proj == NULL ? OP_GO : check_proj(m, proj);

        if (next != OP_GO)
            return next;
    }
    m->p = 0;
    check_pending(m);
    if (is_applier(m) || (m->op.st->config.mutant & MUTANT_NO_VERSION_CHECK) != 0)
        return OP_GO;
    if (!check_fence(m) || (m->stale != 0 && !m->keep_newer))
        return st_op_bad(&m->op, -EREMCHG);
    return check_room(m);
}

/* ---- small marks, and large ones that have no room in the page: heads ---- */

/* Turns older heads in the scan's buffer into holes of `version`, and returns how
 * many. Heads that are holes of that version count, too: a repeated mark may follow a
 * failed sync. */
static unsigned heads_to_holes(struct mark_op *m, const struct proj *proj,
                               uint64_t version, bool damaged_too)
{
    unsigned n = 0;

    for (unsigned i = 0; i < m->scan.n; i++) {
        uint8_t *p = m->scan.buf + i * proj->geo.head_bytes;
        uint64_t block = m->scan.at + i;
        struct record_header h;
        enum record_state state = st_op_inspect(&m->op, m->p, block, p, &h);

        if (state == RECORD_IS_DAMAGED ? !damaged_too : h.version > version)
            continue;
        if (state == RECORD_IS_DATA && h.version == version)
            continue;
        memset(p + RECORD_HEADER_BYTES, 0, proj->geo.head_bytes - RECORD_HEADER_BYTES);
        hole_head_put(p, m->op.obj->hash, m->p, block, version);
        m->covers |= state != RECORD_IS_HOLE;
        n++;
    }
    return n;
}

/* Walks over [first, end) and writes the changed heads. */
static enum st_op_next write_holes(struct mark_op *m, uint64_t first, uint64_t end,
                                   uint64_t version, bool damaged_too)
{
    struct proj *proj = object_ready(m->op.obj, m->p);

    if (!m->scanning)
        scan_start(m, first, end, false);
    for (;;) {
        enum st_op_next next;
        size_t len;

        if (m->scan_writing && m->op.rc != 0)
            return OP_BAD;
        m->scan_writing = false;
        next = st_op_scan(&m->op, proj, &m->scan);
        if (next != OP_GO)
            return next;
        if (m->scan.n == 0)
            break;
        if (heads_to_holes(m, proj, version, damaged_too) == 0)
            continue;
        len = m->scan.n * proj->geo.head_bytes;
        m->iov = (struct iovec){ .iov_base = m->scan.buf, .iov_len = len };
        m->scan_writing = true;
        st_op_write(&m->op, proj, geometry_head_at(&proj->geo, m->scan.at), &m->iov, 1,
                    len);
        return OP_WAIT;
    }
    m->scanning = false;
    return OP_GO;
}

/* ---- large marks: the page ---- */

/* Makes the changes stable by the shared sync: of two syncs at a time, only one might
 * report a failure. A sync that failed since the start of the mark may have lost its
 * bytes. */
static enum st_op_next mark_stabilize(struct mark_op *m)
{
    enum st_op_next next;

    m->begun = true;
    next = st_op_sync(&m->op);
    if (next == OP_WAIT)
        return next;
    m->begun = false;
    if (next == OP_GO && m->verifier != storage_verifier(m->op.st))
        return st_op_bad(&m->op, -EIO);
    return next;
}

/* Moves the smallest ranges to heads until the new range fits. */
static enum st_op_next mark_room(struct mark_op *m)
{
    for (;;) {
        struct mark_range range;
        enum st_op_next next = OP_GO;

        if (!m->spilling && marks_fits(m->marks, m->first, m->end, m->version))
            break;
        if (!m->spilling)
            m->spill = marks_smallest(m->marks);
        m->spilling = true;
        range = m->marks->ranges[m->spill];
        if (range.end - range.first > SPILL_BLOCKS_MAX)
            return st_op_bad(&m->op, -ENOSPC); /* heads would take too much space */
        if (!m->begun)
            next = write_holes(m, range.first, range.end, range.version, false);
        if (next == OP_GO) /* stable before the page forgets the range */
            next = mark_stabilize(m);
        if (next != OP_GO)
            return next;
        marks_remove(m->marks, m->spill);
        m->spilling = false;
    }
    marks_apply(m->marks, m->first, m->end, m->version);
    m->covers = true;
    return OP_GO;
}

/* ---- freeing space ---- */

static bool free_submit(struct mark_op *m, enum disk_op what, uint64_t from, uint64_t to)
{
    struct proj *proj = object_ready(m->op.obj, m->p);

    if (what != DISK_WRITE) {
        st_op_disk(&m->op, what, proj, from, to - from);
        return true;
    }
    memset(m->scan.buf, 0, to - from);
    m->iov = (struct iovec){ .iov_base = m->scan.buf, .iov_len = to - from };
    st_op_write(&m->op, proj, from, &m->iov, 1, to - from);
    return true;
}

/* Frees whole extents from first, the first block of one. Returns false if none are
 * there. */
static bool free_extents(struct mark_op *m, uint64_t first, uint64_t end)
{
    struct proj *proj = object_ready(m->op.obj, m->p);
    uint64_t from = geometry_extent_at(&proj->geo, first);
    uint64_t to = geometry_extent_at(&proj->geo, end);

    if (from >= proj->size)
        return false;
    if (to < proj->size)
        return free_submit(m, DISK_PUNCH, from, to);
    if (m->op.obj->n_sends > 0) /* a sendfile under way needs the file's length */
        return free_submit(m, DISK_PUNCH, from, proj->size);
    return free_submit(m, DISK_TRUNCATE, from, proj->size);
}

/* Frees the heads of n blocks of one extent. A small mark keeps them: it lies in them. */
static bool free_heads(struct mark_op *m, uint64_t first, unsigned n)
{
    struct proj *proj = object_ready(m->op.obj, m->p);
    uint64_t from = geometry_head_at(&proj->geo, first);

    if (is_small(m) || from >= proj->size)
        return false;
    return free_submit(m, DISK_WRITE, from, from + n * proj->geo.head_bytes);
}

/* Frees whole pages of the bodies of n blocks of one extent. */
static bool free_bodies(struct mark_op *m, uint64_t first, unsigned n)
{
    struct proj *proj = object_ready(m->op.obj, m->p);
    uint64_t page = PROJFILE_PAGE_BYTES;
    uint64_t from = geometry_body_at(&proj->geo, first);
    uint64_t to = from + n * proj->geo.stride;

    from = (from + page - 1) / page * page;
    to = (to < proj->size ? to : proj->size) / page * page;
    return from < to && free_submit(m, DISK_PUNCH, from, to);
}

/* Returns the end of the blocks to free from free_at on; moves free_at behind reserved
 * blocks. */
static uint64_t free_stretch(struct mark_op *m)
{
    if (m->free_at >= m->keep_first && m->free_at < m->keep_end)
        m->free_at = m->keep_end < m->free_end ? m->keep_end : m->free_end;
    return m->free_at < m->keep_first && m->keep_first < m->free_end ? m->keep_first
                                                                     : m->free_end;
}

/* Submits the next request. Returns false if all is freed. */
static bool free_next(struct mark_op *m)
{
    while (m->free_at < m->free_end) {
        uint64_t end = free_stretch(m), at = m->free_at;
        unsigned n = extent_part(at, end);

        if (at == m->free_end)
            break;
        if (n == EXTENT_BLOCKS && !is_small(m)) {
            m->free_at = end / EXTENT_BLOCKS * EXTENT_BLOCKS;
            if (free_extents(m, at, m->free_at))
                return true;
            continue;
        }
        if (!m->heads_freed) {
            m->heads_freed = true;
            if (free_heads(m, at, n))
                return true;
        }
        m->heads_freed = false;
        m->free_at += n;
        if (free_bodies(m, at, n))
            return true;
    }
    return false;
}

/* Frees space. The mark is done; records that cannot be removed stay until they are
 * overwritten. */
static enum st_op_next mark_free(struct mark_op *m)
{
    struct proj *proj = object_ready(m->op.obj, m->p);

    if (m->begun && m->op.rc != 0)
        log_warn("cannot free the space of a truncated file: %s", strerror(-m->op.rc));
    else if (m->begun && m->op.dr.op == DISK_TRUNCATE)
        proj->size = m->op.dr.offset;
    m->begun = free_next(m);
    return m->begun ? OP_WAIT : OP_GO;
}

/* ---- life ---- */

/* Removes the blocks of a large mark from the written ones, in the page that has the
 * mark. */
static void mark_forget_written(struct mark_op *m, const struct proj *proj)
{
    struct marks *written = m->written;

    proj_written_copy(proj, written);
    m->noted = false;
    if (is_small(m))
        return;
    for (unsigned i = 0; i < written->n; i++) {
        const struct mark_range *r = &written->ranges[i];

        if (r->first < m->end && r->end > m->first)
            m->noted |= generation_is_ended(m->op.st->config.generations, r->version);
    }
    while (!marks_cut(written, m->first, m->end))
        marks_remove(written, marks_smallest(written));
}

/* Finds the space that was reserved after the mark was made: it stays reserved. */
static void mark_see_kept(struct mark_op *m)
{
    struct pending_file *f = is_applier(m) ? st_op_pending_file(&m->op) : NULL;

    m->keep_first = m->keep_end = 0;
    LIST_FOREACH(node, f == NULL ? &m->op.room.link : &f->marks) {
        const struct pending_mark *x = container_of(node, struct pending_mark, link);

        if (x->version != m->version || x->first != m->first || x->end != m->end)
            continue;
        m->keep_first = x->keep_first;
        m->keep_end = x->keep_end;
    }
}

static enum st_op_next mark_begin(struct mark_op *m)
{
    struct proj *proj = object_ready(m->op.obj, m->p);
    uint64_t blocks = geometry_blocks(&proj->geo, proj->size);

    if (m->version > proj->newest)
        proj->newest = m->version;
    proj_forget_floor(proj, m->first, m->end);
    *m->marks = *proj_marks(proj);
    mark_forget_written(m, proj);
    mark_see_kept(m);
    m->covers = false;
    m->free_at = m->first;
    m->free_end = m->end < blocks ? m->end : blocks;
    return OP_GO;
}

static enum st_op_next mark_heads(struct mark_op *m)
{
    const struct proj *proj = object_ready(m->op.obj, m->p);
    bool is_passed = m->passed && proj->newest > m->version;
    /* otherwise the damaged record may be newer */
    bool damaged_too = !m->keep_newer && !is_passed;

    return is_small(m) ? write_holes(m, m->first, m->end, m->version, damaged_too)
                       : OP_GO;
}

static enum st_op_next mark_page(struct mark_op *m)
{
    struct proj *proj = object_ready(m->op.obj, m->p);
    uint32_t epoch = version_epoch(m->version);

    if (!m->begun && is_small(m) && epoch <= proj->epoch && proj->marks_slot >= 0)
        return OP_GO;
    m->begun = true;
    switch (st_op_write_marks(&m->op, m->p, m->marks, m->written, epoch)) {
    case OP_WAIT:
        return OP_WAIT;
    case OP_BAD:
        return OP_BAD;
    case OP_GO:
        break;
    }
    m->begun = false;
    return OP_GO;
}

static enum st_op_next mark_sync(struct mark_op *m)
{
    struct proj *proj = object_ready(m->op.obj, m->p);

    m->covers &= m->free_at < m->free_end && m->stale == 0;
    if (!m->covers)
        m->free_at = m->free_end;
    if (!m->begun && !(m->covers && (proj->promised || m->noted)))
        return OP_GO;
    return mark_stabilize(m);
}

static enum st_op_next mark_stage_run(struct mark_op *m)
{
    switch (m->stage) {
    case MARK_BEGIN:
        return mark_begin(m);
    case MARK_ROOM:
        return is_small(m) ? OP_GO : mark_room(m);
    case MARK_PAGE:
        return mark_page(m);
    case MARK_HEADS:
        return mark_heads(m);
    case MARK_SYNC:
        return mark_sync(m);
    case MARK_FREE:
        return mark_free(m);
    case MARK_END:
        break;
    }
    return OP_GO;
}

/* Applies the mark to one projection file after the other. */
static enum st_op_next mark_apply(struct mark_op *m)
{
    for (; m->p < CODEC_N_MAX; m->p++) {
        if (object_ready(m->op.obj, m->p) == NULL)
            continue;
        while (m->stage != MARK_END) {
            enum st_op_next next = mark_stage_run(m);

            if (next != OP_GO)
                return next;
            m->stage++;
        }
        m->stage = MARK_BEGIN;
    }
    return OP_GO;
}

static enum st_op_next mark_start(struct mark_op *m)
{
    if (object_present(m->op.obj) == 0 && st_op_was_removed(&m->op))
        return st_op_bad(&m->op, -ENOMEDIUM);
    m->verifier = storage_verifier(m->op.st);
    return OP_GO;
}

static enum st_op_next mark_create(struct mark_op *m)
{
    unsigned p = m->projection;

    if (p == PROJECTION_ANY || object_ready(m->op.obj, p) != NULL)
        return OP_GO;
    m->created = true;
    return st_op_create(&m->op, p, version_epoch(m->version), NULL);
}

static enum st_op_next mark_first_page(struct mark_op *m)
{
    return m->created ? st_op_first_page(&m->op, m->projection) : OP_GO;
}

static enum st_op_next mark_put_aside(struct mark_op *m)
{
    enum st_op_next next;

    if (m->projection == PROJECTION_ANY)
        return OP_GO;
    if (m->op.aside_state == 0 && m->keep_newer &&
        m->op.obj->state[m->projection] == PROJ_DAMAGED)
        return st_op_bad(&m->op, -EUCLEAN); /* newer records in it could not be kept */
    next = st_op_put_aside(&m->op, m->projection, m->version);
    /* A fresh epoch does not help, as this mark's version stays: spares take it
     * instead. */
    if (next == OP_BAD && m->op.rc == -EREMCHG && m->keep_newer)
        m->op.rc = -EUCLEAN;
    if (st_op_pending_file(&m->op) == NULL || st_op_pending_file(&m->op)->n_marks == 0)
        m->is_here = false; /* the pending mark may be dropped */
    return next;
}

static enum st_op_next mark_marks_first(struct mark_op *m)
{
    return st_op_marks_first(&m->op);
}

static enum st_op_next mark_enter(struct mark_op *m)
{
    return st_op_enter(&m->op);
}

/* Waits for room in the journal without the lock, then starts again. */
static enum st_op_next mark_wait_room(struct mark_op *m)
{
    enum st_op_next next;

    if (m->waiting) {
        m->waiting = false;
        st_op_enter_again(&m->op);
        m->stale = 0;
        m->is_here = false;
        m->op.state = 0; /* mark_run() adds one: mark_enter() is next */
        return OP_GO;
    }
    next = m->is_here ? OP_GO : st_op_journal_room(&m->op, true);
    m->waiting = next == OP_WAIT;
    return next;
}

static int append_index(struct mark_op *m)
{
    struct journal_index *p = journal_get_index(m->op.st->journal);
    struct storage_file file = st_op_file(&m->op);
    struct pending_file *f = journal_index_get(p, &file, m->op.ref.codec);
    struct pending_mark mark = { .first = m->first,
                                 .end = m->end,
                                 .version = m->version,
                                 .since_ns = env_now_ns(m->op.st->env),
                                 .projection = (uint8_t)m->projection,
                                 .keep_newer = m->keep_newer };
    int rc = f == NULL ? -ENOMEM : journal_index_add_mark(p, f, m->op.entry, &mark);

    if (f != NULL && (m->op.st->config.mutant & MUTANT_NO_COMMIT_RULE) != 0)
        journal_commit_range(m->op.st->journal, &m->op.ref.id, 0, UINT64_MAX, UINT64_MAX);
    else if (f != NULL && f->n_committed > 0)
        journal_poke(m->op.st->journal, f);
    return rc;
}

/* True if nothing of the file is here: a pending mark would wait for ever. */
static bool is_about_nothing(const struct mark_op *m)
{
    const struct object *obj = m->op.obj;

    return m->projection == PROJECTION_ANY && object_present(obj) == 0 &&
           obj->emptied == 0;
}

static enum st_op_next mark_append(struct mark_op *m)
{
    struct journal_record e = { .kind = JOURNAL_MARK,
                                .file = st_op_file(&m->op),
                                .projection = (uint8_t)m->projection,
                                .keep_newer = m->keep_newer,
                                .first = m->first,
                                .end = m->end,
                                .version = m->version };
    enum st_op_next next;

    m->is_nothing = is_about_nothing(m);
    if (m->is_here || m->is_nothing)
        return OP_GO;
    if (m->entry_header == NULL) {
        m->entry_header = malloc(JOURNAL_RECORD_HEADER_BYTES);
        if (m->entry_header == NULL)
            return st_op_bad(&m->op, -ENOMEM);
        journal_record_put(m->entry_header, &e);
        m->iov = (struct iovec){ .iov_base = m->entry_header,
                                 .iov_len = JOURNAL_RECORD_HEADER_BYTES };
    }
    next = st_op_append(&m->op, JOURNAL_MARK, &m->iov, 1, JOURNAL_RECORD_HEADER_BYTES);
    if (next == OP_BAD && m->op.rc == -ENOSPC)
        m->op.rc = -EBUSY; /* journal full; room comes soon */
    if (next != OP_GO)
        return next;
    m->op.rc = append_index(m);
    return m->op.rc == 0 ? OP_GO : OP_BAD;
}

/* Runs the steps from op->state on. */
static enum st_op_next mark_run(struct mark_op *m,
                                enum st_op_next (*const *steps)(struct mark_op *), int n)
{
    enum st_op_next next = OP_GO;

    while (next == OP_GO && m->op.state < n) {
        next = steps[m->op.state](m);
        if (next == OP_GO)
            m->op.state++;
    }
    return next;
}

static void mark_step(struct st_op *op)
{
    static enum st_op_next (*const steps[])(struct mark_op *) = {
        mark_marks_first, mark_enter,  mark_check,      mark_put_aside, mark_wait_room,
        mark_start,       mark_create, mark_first_page, mark_append,
    };
    struct mark_op *m = (struct mark_op *)op;
    Rozo__StMarkResp resp = ROZO__ST_MARK_RESP__INIT;
    enum st_op_next next = mark_run(m, steps, (int)(sizeof(steps) / sizeof(steps[0])));

    if (next == OP_GO) {
        resp.verifier = m->verifier;
        resp.pending = !m->is_nothing;
        resp.pressure = st_op_has_pressure(op);
        st_op_finish_message(op, ROZO__STATUS__OK, &resp.base);
    } else if (next == OP_BAD) {
        st_op_fail(op, op->rc); /* -EREMCHG becomes STALE_VERSION */
    }
}

static void mark_op_free(struct st_op *op)
{
    struct mark_op *m = (struct mark_op *)op;

    free(m->scan.buf);
    free(m->entry_header);
    free(m->marks);
    free(m->written);
}

static int mark_buffers(struct mark_op *m)
{
    m->op.want = (UINT32_C(1) << codec_n(m->op.ref.codec)) - 1;
    m->op.exclusive = true;
    m->scan.buf = malloc(heads_max());
    m->marks = malloc(sizeof(*m->marks));
    m->written = malloc(sizeof(*m->written));
    return m->scan.buf == NULL || m->marks == NULL || m->written == NULL ? -ENOMEM : 0;
}

static int mark_parse(struct mark_op *m, const Rozo__StMarkReq *req)
{
    unsigned n;
    int rc = st_op_ref_check(m->op.st, m->op.call, req->ref, req->to_storage,
                             CAPABILITY_WRITE, &m->op.ref);

    if (rc != 0)
        return rc;
    n = codec_n(m->op.ref.codec);
    if (req->projection >= n && req->projection != PROJECTION_ANY)
        return -EBADMSG;
    if (req->version == 0 || req->first_block >= PROJFILE_BLOCKS_MAX ||
        req->n_blocks > PROJFILE_BLOCKS_MAX || m->op.call->payload_len != 0)
        return -EBADMSG;
    m->projection = req->projection;
    m->first = req->first_block;
    m->end = req->n_blocks == 0 ? UINT64_MAX : req->first_block + req->n_blocks;
    if (m->end != UINT64_MAX && m->end > PROJFILE_BLOCKS_MAX)
        return -EBADMSG;
    m->version = req->version;
    m->keep_newer = req->keep_newer;
    m->op.changes = true;
    return mark_buffers(m);
}

/* ---- the applier's marks ---- */

static void apply_step(struct st_op *op)
{
    static enum st_op_next (*const steps[])(struct mark_op *) = {
        mark_enter,
        mark_check,
        mark_start,
        mark_apply,
    };
    struct mark_op *m = (struct mark_op *)op;
    enum st_op_next next = mark_run(m, steps, (int)(sizeof(steps) / sizeof(steps[0])));
    struct pending_file *f = st_op_pending_file(op);

    if (next == OP_WAIT)
        return;
    LIST_FOREACH(node, f == NULL ? &op->room.link : &f->marks) {
        struct pending_mark *x = container_of(node, struct pending_mark, link);

        if (next == OP_GO && x->committed && x->version == m->version &&
            x->first >= m->first && x->end <= m->end)
            x->applied = true;
    }
    st_op_end_internal(op, next == OP_GO ? 0 : op->rc);
}

int storage_apply_mark(void *storage, struct pending_file *f,
                       const struct pending_mark *mark, void (*done)(void *arg, int rc),
                       void *arg)
{
    struct mark_op *m = (struct mark_op *)st_op_new_internal(
        storage, f, sizeof(*m), apply_step, mark_op_free, done, arg);

    if (m == NULL)
        return -ENOMEM;
    m->projection = PROJECTION_ANY;
    m->first = mark->first;
    m->end = mark->end;
    m->version = mark->version;
    m->keep_newer = mark->keep_newer;
    m->passed = mark->passed;
    if (mark_buffers(m) != 0) {
        st_op_free(&m->op);
        return -ENOMEM;
    }
    st_op_start(&m->op);
    return 0;
}

void storage_handle_mark(struct storage *st, struct rpc_call *call)
{
    Rozo__StMarkReq *req = rozo__st_mark_req__unpack(NULL, call->msg_len, call->msg);
    struct mark_op *m =
        (struct mark_op *)st_op_new(st, call, sizeof(*m), mark_step, mark_op_free);
    int rc = req == NULL ? -EBADMSG : 0;

    if (m == NULL) {
        rpc_reply_status(call, ROZO__STATUS__NO_MEMORY);
        rozo__st_mark_req__free_unpacked(req, NULL);
        return;
    }
    if (rc == 0)
        rc = mark_parse(m, req);
    if (rc == 0)
        journal_commit(st->journal, &m->op.ref.id, req->durable, req->n_durable);
    rozo__st_mark_req__free_unpacked(req, NULL);
    if (rc != 0)
        st_op_fail(&m->op, rc);
    else
        st_op_start(&m->op);
}
