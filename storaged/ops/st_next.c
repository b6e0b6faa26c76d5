/*
 * st_next.c - ST_NEXT: the next block of a file that was or may have been written here.
 *
 * In:     storage_handle_next(). Thread: the storio loop.
 * Out:    struct disk, rpc_reply().
 * Keeps:  a block is never skipped that may have a record or lie under a mark.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "storaged/ops/st_requests.h"

enum {
    NEXT_EXTENTS_MAX = 1024, /* extents to search before the answer is "may be here" */
    NEXT_MARKS_MAX = CODEC_N_MAX * MARKS_MAX + PENDING_MARKS_MAX,
};

struct next_op {
    struct st_op op; /* must be first */
    bool unsynced;   /* the whole file is corrupt, and no sync of it had ended */
    uint64_t from, found;
    bool heads; /* looks for heads only; marks are listed by themselves */
    unsigned p;
    unsigned n_extents;
    struct head_scan scan;
    Rozo__StCommitReq__Range *marks; /* owned */
    unsigned n_marks;
};

/* Returns the first block in the scan's buffer that was or may have been written, or
 * UINT64_MAX. */
static uint64_t next_in_heads(const struct next_op *x, const struct proj *proj)
{
    assert(x->scan.n > 0 && x->scan.n <= EXTENT_BLOCKS);
    for (unsigned i = 0; i < x->scan.n; i++) {
        struct record_header h;
        enum record_state state = st_op_inspect(
            &x->op, x->p, x->scan.at + i, x->scan.buf + i * proj->geo.head_bytes, &h);

        if (x->heads && proj->partial && state == RECORD_IS_DAMAGED &&
            record_header_is_zero(x->scan.buf + i * proj->geo.head_bytes))
            continue; /* the block may never have been written */
        if (state != RECORD_IS_HOLE || h.version != 0)
            return x->scan.at + i;
    }
    return UINT64_MAX;
}

/* Lists large marks, once for each projection. */
static int next_tell_marks(struct next_op *x, const struct marks *m)
{
    Rozo__StCommitReq__Range *grown =
        realloc(x->marks, (x->n_marks + m->n + 1) * sizeof(*grown));

    if (grown == NULL)
        return -ENOMEM;
    x->marks = grown;
    if (x->n_marks + m->n > NEXT_MARKS_MAX)
        return -EBUSY; /* pending marks in pieces: fewer later */
    for (unsigned i = 0; i < m->n; i++) {
        const struct mark_range *r = &m->ranges[i];
        Rozo__StCommitReq__Range *to = &grown[x->n_marks];

        if (r->end <= x->from)
            continue;
        rozo__st_commit_req__range__init(to);
        to->first_block = r->first;
        to->n_blocks = r->end == UINT64_MAX ? 0 : r->end - r->first;
        to->version = r->version;
        x->n_marks++;
    }
    return 0;
}

static enum st_op_next next_in_proj(struct next_op *x, struct proj *proj)
{
    uint64_t mark = x->heads ? UINT64_MAX : marks_next(proj_marks(proj), x->from);

    if (!head_scan_is_on(&x->scan)) {
        if (proj->partial && !x->heads) /* anything may have been here */
            mark = x->from;
        if (x->heads && (x->op.rc = next_tell_marks(x, proj_marks(proj))) != 0)
            return OP_BAD;
        if (mark < x->found)
            x->found = mark;
        head_scan_start(&x->scan, x->from, proj_blocks(proj), true);
    }
    for (;;) {
        enum st_op_next next = st_op_scan(&x->op, proj, &x->scan);
        uint64_t block;

        if (next != OP_GO || x->scan.n == 0)
            return next;
        block = ++x->n_extents > NEXT_EXTENTS_MAX ? x->scan.at : next_in_heads(x, proj);
        if (block < x->found)
            x->found = block;
        if (block != UINT64_MAX || x->scan.at >= x->found)
            break;
    }
    head_scan_stop(&x->scan);
    return OP_GO;
}

/* Counts pending records and marks as if they lay in place. */
static int next_pending(struct next_op *x)
{
    struct pending_file *f = st_op_pending_file(&x->op);
    struct marks one = { .n = 1 };
    int rc = 0;

    if (f == NULL)
        return 0;
    PENDING_FOREACH(node, f)
    {
        struct pending_record *r = container_of(node, struct pending_record, link);

        if (r->block >= x->from && r->block < x->found)
            x->found = r->block;
    }
    LIST_FOREACH(node, &f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->end <= x->from)
            continue;
        one.ranges[0] = (struct mark_range){ m->first, m->end, m->version };
        if (x->heads && rc == 0)
            rc = next_tell_marks(x, &one);
        else if ((m->first > x->from ? m->first : x->from) < x->found)
            x->found = m->first > x->from ? m->first : x->from;
    }
    return rc;
}

static enum st_op_next next_find(struct st_op *op)
{
    struct next_op *x = (struct next_op *)op;

    assert(op->held != OP_HOLDS_NOTHING);
    if (x->p == 0 && !head_scan_is_on(&x->scan) && (op->rc = next_pending(x)) != 0)
        return OP_BAD;
    for (; x->p < CODEC_N_MAX; x->p++) {
        struct proj *proj = object_ready(op->obj, x->p);
        enum st_op_next next = proj == NULL ? OP_GO : next_in_proj(x, proj);

        if (next != OP_GO)
            return next;
    }
    return OP_GO;
}

/* Enters, unless a file is damaged: it may have had anything, so "none" would be
 * wrong. */
static enum st_op_next next_enter(struct st_op *op)
{
    struct next_op *x = (struct next_op *)op;
    enum st_op_next next = st_op_enter(op);

    if (next == OP_GO && object_present(op->obj) == 0)
        next = st_op_bad(op, st_op_no_file(op));
    if (next == OP_GO && object_damaged(op->obj) != 0)
        next = st_op_bad(op, -ROZO_EDAMAGED);
    x->unsynced =
        next == OP_BAD && op->rc == -ROZO_EDAMAGED && st_op_was_never_synced(op);
    return x->unsynced ? OP_DONE : next;
}

static uint32_t next_partial(const struct next_op *x)
{
    uint32_t partial = 0;

    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        const struct proj *proj = object_ready(x->op.obj, p);

        partial |= proj != NULL && proj->partial ? UINT32_C(1) << p : 0;
    }
    return partial;
}

static void next_reply(struct st_op *op)
{
    struct next_op *x = (struct next_op *)op;
    Rozo__StNextResp resp = ROZO__ST_NEXT_RESP__INIT;
    Rozo__StCommitReq__Range *marks[NEXT_MARKS_MAX];

    assert(x->n_marks <= NEXT_MARKS_MAX);
    resp.block = x->found;
    resp.partial = next_partial(x);
    resp.n_marks = x->n_marks;
    resp.marks = marks;
    for (unsigned i = 0; i < x->n_marks; i++)
        marks[i] = &x->marks[i];
    resp.unsynced = x->unsynced;
    st_op_finish_message(op, x->unsynced ? ROZO__STATUS__DAMAGED : ROZO__STATUS__OK,
                         &resp.base);
}

static void next_free(struct st_op *op)
{
    free(((struct next_op *)op)->scan.buf);
    free(((struct next_op *)op)->marks);
}

static const struct st_op_kind next_kind = {
    .bytes = sizeof(struct next_op),
    .free = next_free,
    .done = next_reply,
    .steps = { next_enter, next_find },
};

static int next_parse(struct next_op *x, const Rozo__StNextReq *req)
{
    int rc = st_op_ref_check(x->op.st, x->op.call, req->ref, req->to_storage,
                             CAPABILITY_READ, &x->op.ref);

    if (rc != 0)
        return rc;
    x->from = req->from_block;
    x->heads = req->heads;
    x->found = UINT64_MAX;
    x->op.want = file_ref_projections(&x->op.ref);
    x->scan.buf = malloc(HEADS_MAX);
    return x->scan.buf == NULL ? -ENOMEM : 0;
}

void storage_handle_next(struct storage *st, struct rpc_call *call)
{
    Rozo__StNextReq *req = rozo__st_next_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, &next_kind);

    if (op != NULL)
        st_op_start(op, req == NULL ? -EBADMSG : next_parse((struct next_op *)op, req));
    rozo__st_next_req__free_unpacked(req, NULL);
}
