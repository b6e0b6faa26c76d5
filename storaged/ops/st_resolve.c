/*
 * st_resolve.c - at the start: finds out which pending records and marks lie in place.
 *
 * In:     storage_resolve(), a hook of the journal. Thread: the storio loop.
 * Out:    struct disk, journal_index.h.
 * Keeps:  a record that was being applied when the process ended is committed; one that
 *         is not newer than what lies in place does not come back.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "storaged/ops/st_requests.h"

struct resolve_block {
    uint64_t block, version;
    uint8_t projection;
};

struct resolve_op {
    struct st_op op;              /* must be first */
    struct resolve_block *blocks; /* owned */
    unsigned n, at;
    bool reading;
    struct pending_mark mark; /* mark being checked; version 0: none */
    uint64_t marks_done;      /* marks up to this version are done */
    unsigned p;
    bool here; /* the mark is in place in all projections so far */
    struct head_scan scan;
};

static enum st_op_next resolve_enter(struct st_op *op)
{
    struct resolve_op *r = (struct resolve_op *)op;
    struct journal_index *p = journal_get_index(op->st->journal);
    enum st_op_next next = st_op_enter(op);
    struct pending_file *f;

    assert(op->call == NULL);
    if (next != OP_GO)
        return next;
    f = st_op_pending_file(op);
    if (f == NULL)
        return OP_GO;
    if (object_present(op->obj) == 0) { /* the file was removed */
        journal_index_remove_all(p, f);
        return OP_GO;
    }
    r->blocks = malloc((f->n_records + 1) * sizeof(r->blocks[0]));
    if (r->blocks == NULL)
        return st_op_bad(op, -ENOMEM);
    PENDING_FOREACH(node, f)
    {
        const struct pending_record *x = container_of(node, struct pending_record, link);

        r->blocks[r->n++] = (struct resolve_block){ x->block, x->version, x->projection };
    }
    return OP_GO;
}

/* Compares a pending record with the one in place. If it is older it was applied or
 * superseded: remove it. If equal, it was being applied: commit it. */
static void resolve_judge(struct resolve_op *r, struct proj *proj)
{
    struct journal_index *p = journal_get_index(r->op.st->journal);
    const struct resolve_block *b = &r->blocks[r->at];
    uint64_t mark = marks_find(proj_marks(proj), b->block);
    struct record_header h;
    enum record_state state =
        st_op_inspect(&r->op, b->projection, b->block, r->scan.buf, &h);
    struct pending_record *x = journal_index_at_most(p, st_op_pending_file(&r->op),
                                                     b->projection, b->block, b->version);

    assert(r->at < r->n && b->projection < CODEC_N_MAX);
    if (x == NULL || x->version != b->version)
        return;
    if (mark > x->version || (state != RECORD_IS_DAMAGED && h.version > x->version))
        journal_index_remove_record(p, x);
    else if (state != RECORD_IS_DAMAGED && h.version == x->version && x->damaged)
        journal_index_remove_record(p,
                                    x); /* the record lies in place, protected by a crc */
    else if (state != RECORD_IS_DAMAGED && h.version == x->version)
        journal_index_commit_range(p, x->file, b->block, b->block + 1, b->version,
                                   env_now_ns(r->op.st->env));
}

/* Removes a pending record whose file is absent: the file was never stable, so no sync
 * of it ended. Records of a quarantined file stay; its replacement drops them. */
static enum st_op_next resolve_absent(struct resolve_op *r)
{
    const struct resolve_block *b = &r->blocks[r->at];
    struct journal_index *p = journal_get_index(r->op.st->journal);
    enum st_op_next next = st_op_seek_quarantined(&r->op, b->projection);
    struct pending_record *x;

    assert(r->at < r->n);
    if (next != OP_GO || (r->op.obj->emptied >> b->projection & 1) != 0)
        return next;
    x = journal_index_at_most(p, st_op_pending_file(&r->op), b->projection, b->block,
                              b->version);
    if (x != NULL && x->version == b->version)
        journal_index_remove_record(p, x);
    return OP_GO;
}

static enum st_op_next resolve_records(struct st_op *op)
{
    struct resolve_op *r = (struct resolve_op *)op;

    for (; r->at < r->n; r->at++) {
        const struct resolve_block *b = &r->blocks[r->at];
        struct proj *proj = object_ready(op->obj, b->projection);
        enum st_op_next next = OP_GO;

        if (op->obj->state[b->projection] == PROJ_ABSENT)
            next = resolve_absent(r);
        if (next != OP_GO)
            return next;
        if (proj == NULL)
            continue; /* damaged: unknown */
        if (!r->reading && st_op_read_heads(op, proj, b->block, 1, r->scan.buf)) {
            r->reading = true;
            return OP_WAIT;
        }
        if (r->reading && op->rc != 0)
            return OP_BAD;
        if (r->reading)
            st_op_read_heads_done(op, r->scan.buf);
        r->reading = false;
        resolve_judge(r, proj);
    }
    return OP_GO;
}

/* True if the mark pages have this mark, or a newer one, over every block. */
static bool mark_in_pages(const struct proj *proj, const struct pending_mark *m)
{
    const struct marks *marks = proj_marks(proj);
    uint64_t at = m->first;

    assert(m->first < m->end);
    for (unsigned i = 0; i < marks->n && at < m->end; i++) {
        const struct mark_range *x = &marks->ranges[i];

        if (x->end <= at)
            continue;
        if (x->first > at || x->version < m->version)
            return false;
        at = x->end;
    }
    return at >= m->end;
}

static bool mark_in_heads(struct resolve_op *r, const struct proj *proj)
{
    assert(r->scan.n > 0 && r->p < CODEC_N_MAX);
    for (unsigned i = 0; i < r->scan.n; i++) {
        uint64_t block = r->scan.at + i;
        struct record_header h;
        enum record_state state = st_op_inspect(
            &r->op, r->p, block, r->scan.buf + i * proj->geo.head_bytes, &h);

        if (marks_find(proj_marks(proj), block) < r->mark.version &&
            (state == RECORD_IS_DAMAGED || h.version < r->mark.version))
            return false;
    }
    return true;
}

enum { HEADS_LOOKED_AT = 4 * EXTENT_BLOCKS };

static enum st_op_next resolve_mark_in(struct resolve_op *r, struct proj *proj)
{
    if (!head_scan_is_on(&r->scan)) {
        if (mark_in_pages(proj, &r->mark))
            return OP_GO;
        if (r->mark.end - r->mark.first > HEADS_LOOKED_AT) {
            r->here = false;
            return OP_GO;
        }
        head_scan_start(&r->scan, r->mark.first, r->mark.end, false);
    }
    for (;;) {
        enum st_op_next next = st_op_scan(&r->op, proj, &r->scan);

        if (next != OP_GO || r->scan.n == 0)
            return next;
        r->here &= mark_in_heads(r, proj);
    }
}

/* Takes the next mark by version; pieces of one version as one. Returns false if there
 * is none. */
static bool resolve_next_mark(struct resolve_op *r)
{
    const struct pending_file *f = st_op_pending_file(&r->op);

    r->mark.version = 0;
    if (f == NULL)
        return false;
    LIST_FOREACH(node, &f->marks) {
        const struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->version <= r->marks_done)
            continue;
        if (r->mark.version == 0)
            r->mark = *m;
        else if (m->version == r->mark.version && m->end > r->mark.end)
            r->mark.end = m->end;
        else if (m->version == r->mark.version && m->first < r->mark.first)
            r->mark.first = m->first;
    }
    return r->mark.version != 0;
}

static void resolve_mark_end(struct resolve_op *r)
{
    struct pending_file *f = st_op_pending_file(&r->op);

    assert(r->mark.version > r->marks_done);
    r->marks_done = r->mark.version;
    if (f == NULL || !r->here)
        return;
    pending_file_hold(f);
    LIST_FOREACH_SAFE(node, &f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->version == r->mark.version)
            journal_index_remove_mark(journal_get_index(r->op.st->journal), f, m);
    }
    journal_index_put(journal_get_index(r->op.st->journal), f);
}

static enum st_op_next resolve_marks(struct st_op *op)
{
    struct resolve_op *r = (struct resolve_op *)op;

    for (;;) {
        if (r->mark.version == 0) {
            if (!resolve_next_mark(r))
                return OP_GO;
            r->p = 0;
            r->here = object_present(op->obj) != 0;
        }
        for (; r->p < CODEC_N_MAX; r->p++) {
            struct proj *proj = object_ready(op->obj, r->p);
            enum st_op_next next = OP_GO;

            if (op->obj->state[r->p] == PROJ_DAMAGED)
                r->here = false;
            if (proj != NULL)
                next = resolve_mark_in(r, proj);
            if (next != OP_GO)
                return next;
        }
        resolve_mark_end(r);
        r->mark.version = 0;
    }
}

/* Keeps what is pending of a file that cannot be read, though newer records may lie in
 * place. */
static void resolve_later(struct st_op *op)
{
    struct pending_file *f = st_op_pending_file(op);

    if (f != NULL)
        f->unresolved = true;
    st_op_end_internal(op, 0);
}

static void resolve_failed(struct st_op *op)
{
    if (op->rc == -EIO || op->rc == -EBADMSG)
        resolve_later(op);
    else
        st_op_end_internal(op, op->rc);
}

static void resolve_free(struct st_op *op)
{
    struct resolve_op *r = (struct resolve_op *)op;

    free(r->blocks);
    free(r->scan.buf);
}

static const struct st_op_kind resolve_kind = {
    .bytes = sizeof(struct resolve_op),
    .free = resolve_free,
    .failed = resolve_failed,
    .steps = { resolve_enter, resolve_records, resolve_marks },
};

int storage_resolve(void *storage, struct pending_file *f,
                    void (*done)(void *arg, int rc), void *arg)
{
    struct resolve_op *r =
        (struct resolve_op *)st_op_new_internal(storage, f, &resolve_kind, done, arg);

    if (r == NULL)
        return -ENOMEM;
    r->scan.buf = malloc(HEADS_MAX);
    if (r->scan.buf == NULL) {
        st_op_free(&r->op);
        return -ENOMEM;
    }
    r->op.want = file_ref_projections(&r->op.ref);
    r->op.access = OP_EXCLUSIVE;
    st_op_start(&r->op, 0);
    return 0;
}
