/*
 * st_mark.c - ST_MARK: checks a mark and appends it to the journal.
 *
 * In:     storage_handle_mark(). Thread: the storio loop.
 * Out:    struct disk, rpc_reply().
 * Keeps:  of a record and a mark over one block the newer counts, so a mark hides what it
 *         covers as soon as it is in the journal. A mark that the applier could not carry
 *         out is refused.
 * Ask:    st_mark.h.
 */
#include "storaged/ops/st_mark.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"

static bool is_applier(const struct mark_op *m)
{
    return m->op.call == NULL;
}

/* ---- version checks ---- */

static void check_heads(struct mark_op *m, struct proj *proj)
{
    assert(m->scan.n > 0 && m->scan.n <= EXTENT_BLOCKS);
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

    assert(m->first < m->end && m->version != 0);
    if (!head_scan_is_on(&m->scan)) {
        if (newest > m->version && newest > m->stale)
            m->stale = newest;
        if (m->version > proj->newest || m->first >= blocks)
            return OP_GO;
        head_scan_start(&m->scan, m->first, m->end < blocks ? m->end : blocks,
                        !mark_is_small(m));
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
    m->unbound = false;
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
        if (!x->applied && x->version == m->version && x->first <= m->first &&
            x->end >= m->end && st_op_frame_is_good(&m->op, x->entry))
            m->way = MARK_IS_HERE;
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

    return fence == 0 || m->way == MARK_IS_HERE || version_epoch(m->version) > fence;
}

/* Checks that the mark pages will have room for it and for the pending marks, since
 * the applier must not fail for good. */
static enum st_op_next check_room(struct mark_op *m)
{
    struct pending_file *f = st_op_pending_file(&m->op);

    if (mark_is_small(m) || m->way == MARK_IS_HERE)
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

enum st_op_next mark_check(struct st_op *op)
{
    struct mark_op *m = (struct mark_op *)op;

    assert(op->held == OP_HOLDS_EXCLUSIVE && m->p <= CODEC_N_MAX);
    for (; m->p < CODEC_N_MAX; m->p++) {
        struct proj *proj = object_ready(op->obj, m->p);
        enum st_op_next next = proj == NULL ? OP_GO : check_proj(m, proj);

        if (next != OP_GO)
            return next;
    }
    m->p = 0;
    check_pending(m);
    if (is_applier(m) || (op->st->config.mutant & MUTANT_NO_VERSION_CHECK) != 0)
        return OP_GO;
    if (!check_fence(m) || (m->stale != 0 && !m->keep_newer))
        return st_op_bad(op, -ROZO_ESTALE_VERSION);
    return check_room(m);
}

/* ---- the request ---- */

enum st_op_next mark_begin(struct st_op *op)
{
    struct mark_op *m = (struct mark_op *)op;

    assert(op->held == OP_HOLDS_EXCLUSIVE && m->p == 0);
    if (object_present(op->obj) == 0 && st_op_was_removed(op))
        return st_op_bad(op, -ROZO_ENO_FILE);
    m->verifier = storage_verifier(op->st);
    return OP_GO;
}

static enum st_op_next mark_create(struct st_op *op)
{
    struct mark_op *m = (struct mark_op *)op;
    unsigned p = m->projection;

    assert(p == PROJECTION_ANY || p < codec_n(op->ref.codec));
    if (p == PROJECTION_ANY || object_ready(op->obj, p) != NULL)
        return OP_GO;
    m->created = true;
    return st_op_create(op, p, version_epoch(m->version), NULL);
}

static enum st_op_next mark_first_page(struct st_op *op)
{
    struct mark_op *m = (struct mark_op *)op;

    return m->created ? st_op_first_page(op, m->projection) : OP_GO;
}

static enum st_op_next mark_quarantine(struct st_op *op)
{
    struct mark_op *m = (struct mark_op *)op;
    enum st_op_next next;

    assert(!head_scan_is_on(&m->scan));
    if (m->projection == PROJECTION_ANY)
        return OP_GO;
    if (op->create.quarantined == QUARANTINE_NONE && m->keep_newer &&
        op->obj->state[m->projection] == PROJ_DAMAGED)
        return st_op_bad(op, -ROZO_EDAMAGED); /* newer records in it could not be kept */
    next = st_op_quarantine(op, m->projection, m->version);
    /* A fresh epoch does not help, as this mark's version stays: spares take it
     * instead. */
    if (next == OP_BAD && op->rc == -ROZO_ESTALE_VERSION && m->keep_newer)
        op->rc = -ROZO_EDAMAGED;
    if (st_op_pending_file(op) == NULL || st_op_pending_file(op)->n_marks == 0)
        m->way = MARK_IS_APPENDED; /* the pending mark may be dropped */
    return next;
}

/* Waits for room in the journal without the lock, then starts again. */
static enum st_op_next mark_wait_room(struct st_op *op)
{
    struct mark_op *m = (struct mark_op *)op;
    enum st_op_next next;

    if (m->waiting) {
        m->waiting = false;
        m->stale = 0;
        m->way = MARK_IS_APPENDED;
        return OP_AGAIN;
    }
    next = m->way == MARK_IS_HERE ? OP_GO : st_op_journal_room(op, true);
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
    int rc =
        f == NULL ? -ENOMEM : journal_index_add_mark(p, f, m->op.journal.entry, &mark);

    assert(m->op.journal.entry != NULL);
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

static enum st_op_next mark_append(struct st_op *op)
{
    struct mark_op *m = (struct mark_op *)op;
    struct journal_record e = { .kind = JOURNAL_MARK,
                                .file = st_op_file(op),
                                .projection = (uint8_t)m->projection,
                                .keep_newer = m->keep_newer,
                                .first = m->first,
                                .end = m->end,
                                .version = m->version };
    enum st_op_next next;

    assert(op->held == OP_HOLDS_EXCLUSIVE && !m->waiting);
    if (is_about_nothing(m))
        m->way = MARK_IS_NOTHING;
    if (m->way != MARK_IS_APPENDED)
        return OP_GO;
    if (m->entry_header == NULL) {
        m->entry_header = malloc(JOURNAL_RECORD_HEADER_BYTES);
        if (m->entry_header == NULL)
            return st_op_bad(op, -ENOMEM);
        journal_record_put(m->entry_header, &e);
        op->iov = (struct iovec){ .iov_base = m->entry_header,
                                  .iov_len = JOURNAL_RECORD_HEADER_BYTES };
    }
    next = st_op_append(op, JOURNAL_MARK, &op->iov, 1, JOURNAL_RECORD_HEADER_BYTES);
    if (next != OP_GO)
        return next;
    op->rc = append_index(m);
    return op->rc == 0 ? OP_GO : OP_BAD;
}

static void mark_reply(struct st_op *op)
{
    const struct mark_op *m = (const struct mark_op *)op;
    Rozo__StMarkResp resp = ROZO__ST_MARK_RESP__INIT;

    resp.verifier = m->verifier;
    resp.pending = m->way != MARK_IS_NOTHING;
    resp.pressure = st_op_has_pressure(op);
    st_op_finish_message(op, ROZO__STATUS__OK, &resp.base);
}

void mark_free(struct st_op *op)
{
    struct mark_op *m = (struct mark_op *)op;

    free(m->scan.buf);
    free(m->entry_header);
    free(m->marks);
}

int mark_buffers(struct mark_op *m)
{
    assert(m->scan.buf == NULL && m->marks == NULL);
    m->op.want = file_ref_projections(&m->op.ref);
    m->op.access = OP_EXCLUSIVE;
    m->scan.buf = malloc(HEADS_MAX);
    m->marks = malloc(sizeof(*m->marks));
    return m->scan.buf == NULL || m->marks == NULL ? -ENOMEM : 0;
}

static const struct st_op_kind mark_kind = {
    .bytes = sizeof(struct mark_op),
    .free = mark_free,
    .done = mark_reply,
    .steps = { st_op_marks_first, st_op_enter, mark_check, mark_quarantine,
               mark_wait_room, mark_begin, mark_create, mark_first_page, mark_append },
};

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
    if (req->version == 0 || !blocks_take(req->first_block, req->n_blocks, &m->end) ||
        m->op.call->payload_len != 0)
        return -EBADMSG;
    m->projection = req->projection;
    m->first = req->first_block;
    m->version = req->version;
    m->keep_newer = req->keep_newer;
    m->op.changes = true;
    rc = mark_buffers(m);
    if (rc == 0)
        journal_commit(m->op.st->journal, &m->op.ref.id, req->durable, req->n_durable);
    return rc;
}

void storage_handle_mark(struct storage *st, struct rpc_call *call)
{
    Rozo__StMarkReq *req = rozo__st_mark_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, &mark_kind);

    if (op != NULL)
        st_op_start(op, req == NULL ? -EBADMSG : mark_parse((struct mark_op *)op, req));
    rozo__st_mark_req__free_unpacked(req, NULL);
}
