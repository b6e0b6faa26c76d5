/*
 * st_misc.c - ST_SYNC, ST_STAT, ST_NEXT.
 *
 * In:     storage_handle_*(). Thread: the storio loop.
 * Out:    struct disk, rpc_reply().
 * Keeps:  a sync answers for all changes to the file that were acknowledged before it
 *         came (I1), also by a previous process on this machine.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "storaged/ops/st_requests.h"

typedef enum st_op_next st_op_part(struct st_op *op);

/* Runs parts from op->state on. OP_GO: all are done. OP_BAD: the op was failed. */
static enum st_op_next run_parts(struct st_op *op, st_op_part *const *parts, int n)
{
    enum st_op_next next = OP_GO;

    while (next == OP_GO && op->state < n) {
        next = parts[op->state](op);
        if (next == OP_GO)
            op->state++;
    }
    if (next == OP_BAD)
        st_op_fail(op, op->rc);
    return next;
}

static uint32_t all_projections(const struct file_ref *ref)
{
    return (UINT32_C(1) << codec_n(ref->codec)) - 1;
}

/* Enters like st_op_enter() for requests that need a projection file. During a rebuild
 * most files are absent, which is no loss of anything that was ever acknowledged here. */
static enum st_op_next enter_present(struct st_op *op)
{
    enum st_op_next next = st_op_enter(op);

    if (next == OP_GO && object_present(op->obj) == 0) {
        bool is_lost = op->obj->emptied != 0 && !st_op_was_never_synced(op);

        return st_op_bad(op, is_lost ? -EUCLEAN : -ENOMEDIUM);
    }
    return next;
}

/* Starts the op, or answers with the error. */
static void start_or_fail(struct st_op *op, int rc)
{
    if (rc != 0)
        st_op_fail(op, rc);
    else
        st_op_start(op);
}

/* ---- ST_SYNC ---- */

enum { SYNC_MARKS_MAX = 32, SYNC_TOLD_MAX = UNSTABLE_TOLD_MAX + 2 * SYNC_MARKS_MAX };

struct st_sync_op {
    struct st_op op; /* must be first */
    bool others;     /* the answer lists unstable blocks */
};

static enum st_op_next sync_enter(struct st_op *op)
{
    enum st_op_next next = enter_present(op);

    if (next == OP_GO && object_damaged(op->obj) != 0)
        return st_op_bad(op, -EUCLEAN); /* acknowledged records in it are unknown */
    if (next == OP_GO && op->call->role == RPC_ROLE_CLIENT)
        unstable_ranges_sync(&op->obj->unstable, env_now_ns(op->st->env));
    return next;
}

/* Syncs at the same time the projection files and the journal's entries of this file. */
static enum st_op_next sync_all(struct st_op *op)
{
    if (op->held != OP_HOLDS_NOTHING) { /* first call */
        st_op_unlock(op);
        if (!st_op_file_is_synced(op))
            st_op_wal_sync_start(op);
    }
    return st_op_sync_both(op, true);
}

struct sync_told {
    struct unstable_range ranges[UNSTABLE_TOLD_MAX];
    unsigned n_ranges, n;
    Rozo__StCommitReq__Range told[SYNC_TOLD_MAX], *list[SYNC_TOLD_MAX];
};

static void sync_tell(struct sync_told *t, uint64_t first, uint64_t end, uint64_t version)
{
    Rozo__StCommitReq__Range *range = t->list[t->n] = &t->told[t->n];

    t->n++;
    rozo__st_commit_req__range__init(range);
    range->first_block = first;
    range->n_blocks = end == UINT64_MAX ? 0 : end - first;
    range->version = version;
}

/* Lists pending marks; too many small ones are listed by their blocks, like records. */
static void sync_tell_marks(struct sync_told *t, const struct pending_file *f,
                            uint64_t *oldest)
{
    LIST_FOREACH(node, &f->marks) {
        const struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->committed)
            continue;
        if (t->n < (m->end == UINT64_MAX ? 2 * SYNC_MARKS_MAX : SYNC_MARKS_MAX)) {
            sync_tell(t, m->first, m->end, m->version);
        } else if (m->end != UINT64_MAX) {
            *oldest = m->version < *oldest ? m->version : *oldest;
            unstable_list_add(t->ranges, &t->n_ranges, UNSTABLE_TOLD_MAX, m->first,
                              m->end);
        }
    }
}

static void sync_report_unstable(struct st_op *op, struct sync_told *t,
                                 Rozo__StSyncResp *resp)
{
    const struct pending_file *f = st_op_pending_file(op);

    resp->unstable_from = UINT64_MAX;
    t->n = t->n_ranges = 0;
    unstable_ranges_get(&op->obj->unstable, t->ranges, &t->n_ranges,
                        &resp->unstable_from);
    if (f != NULL) {
        sync_tell_marks(t, f, &resp->unstable_from);
        LIST_FOREACH(node, &f->records[0]) {
            const struct pending_record *r =
                container_of(node, struct pending_record, link);

            if (r->version < resp->unstable_from)
                resp->unstable_from = r->version;
            unstable_list_add(t->ranges, &t->n_ranges, UNSTABLE_TOLD_MAX, r->block,
                              r->block + 1);
        }
    }
    for (unsigned i = 0; i < t->n_ranges; i++)
        sync_tell(t, t->ranges[i].first, t->ranges[i].end, 0);
    resp->n_unstable = t->n;
    resp->unstable = t->list;
}

static void sync_op_step(struct st_op *op)
{
    static st_op_part *const parts[] = { sync_enter, sync_all };
    Rozo__StSyncResp resp = ROZO__ST_SYNC_RESP__INIT;
    struct sync_told told;

    if (run_parts(op, parts, 2) != OP_GO)
        return;
    resp.verifier = storage_verifier(op->st);
    if (((struct st_sync_op *)op)->others)
        sync_report_unstable(op, &told, &resp);
    st_op_finish_message(op, ROZO__STATUS__OK, &resp.base);
}

void storage_handle_sync(struct storage *st, struct rpc_call *call)
{
    Rozo__StSyncReq *req = rozo__st_sync_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, sizeof(struct st_sync_op), sync_op_step, NULL);
    int rc = -EBADMSG;

    if (op == NULL) {
        rpc_reply_status(call, ROZO__STATUS__NO_MEMORY);
    } else {
        if (req != NULL)
            rc = st_op_ref_check(st, call, req->ref, req->to_storage, CAPABILITY_READ,
                                 &op->ref);
        if (rc == 0) {
            op->want = all_projections(&op->ref);
            ((struct st_sync_op *)op)->others = req->others;
        }
        if (rc == 0 && req->n_durable > 0 &&
            st_op_ref_check(st, call, req->ref, req->to_storage, CAPABILITY_WRITE,
                            &op->ref) == 0)
            journal_commit(st->journal, &op->ref.id, req->durable, req->n_durable);
        start_or_fail(op, rc);
    }
    rozo__st_sync_req__free_unpacked(req, NULL);
}

/* ---- ST_STAT ---- */

struct stat_op {
    struct st_op op; /* must be first */
    unsigned p;
    bool asking;
    unsigned n;
    Rozo__StStatResp__Projection projections[CODEC_N_MAX];
    char paths[CODEC_N_MAX][PROJFILE_PATH_MAX];
};

static void stat_add(struct stat_op *s, uint64_t size, uint64_t allocated)
{
    Rozo__StStatResp__Projection *out = &s->projections[s->n];

    rozo__st_stat_resp__projection__init(out);
    projfile_path(s->paths[s->n], &s->op.ref.id, s->p);
    out->projection = s->p;
    out->size = size;
    out->allocated = allocated;
    out->path = s->paths[s->n];
    s->n++;
}

static enum st_op_next stat_files(struct st_op *op)
{
    struct stat_op *s = (struct stat_op *)op;

    for (; s->p < CODEC_N_MAX; s->p++) {
        struct proj *proj = object_ready(op->obj, s->p);

        if (op->obj->state[s->p] == PROJ_DAMAGED)
            stat_add(s, 0, 0);
        if (proj == NULL)
            continue;
        if (!s->asking) {
            s->asking = true;
            st_op_disk(op, DISK_STAT, proj, 0, 0);
            return OP_WAIT;
        }
        s->asking = false;
        if (op->rc != 0)
            return OP_BAD;
        stat_add(s, op->dr.size, op->dr.allocated);
    }
    return OP_GO;
}

static void stat_step(struct st_op *op)
{
    static st_op_part *const parts[] = { enter_present, stat_files };
    struct stat_op *s = (struct stat_op *)op;
    Rozo__StStatResp__Projection *all[CODEC_N_MAX];
    Rozo__StStatResp resp = ROZO__ST_STAT_RESP__INIT;

    if (run_parts(op, parts, 2) != OP_GO)
        return;
    for (unsigned i = 0; i < s->n; i++)
        all[i] = &s->projections[i];
    resp.n_projections = s->n;
    resp.projections = all;
    st_op_finish_message(op, ROZO__STATUS__OK, &resp.base);
}

void storage_handle_stat(struct storage *st, struct rpc_call *call)
{
    Rozo__StStatReq *req = rozo__st_stat_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, sizeof(struct stat_op), stat_step, NULL);
    int rc = -EBADMSG;

    if (op == NULL) {
        rpc_reply_status(call, ROZO__STATUS__NO_MEMORY);
    } else {
        if (req != NULL)
            rc = st_op_ref_check(st, call, req->ref, req->to_storage, CAPABILITY_READ,
                                 &op->ref);
        if (rc == 0)
            op->want = all_projections(&op->ref);
        if (rc == 0 && req->look_again && call->role == RPC_ROLE_NODE)
            op->exclusive = op->look_again = true;
        start_or_fail(op, rc);
    }
    rozo__st_stat_req__free_unpacked(req, NULL);
}

/* ---- ST_NEXT ---- */

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
    bool scanning;
    unsigned n_extents;
    struct head_scan scan;
    Rozo__StCommitReq__Range *marks; /* owned */
    unsigned n_marks;
};

/* Returns the first block in the scan's buffer that was or may have been written, or
 * UINT64_MAX. */
static uint64_t next_in_heads(const struct next_op *x, const struct proj *proj)
{
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
    Rozo__StCommitReq__Range *told =
        realloc(x->marks, (x->n_marks + m->n + 1) * sizeof(*told));

    if (told == NULL)
        return -ENOMEM;
    x->marks = told;
    if (x->n_marks + m->n > NEXT_MARKS_MAX)
        return -EBUSY; /* pending marks in pieces: fewer later */
    for (unsigned i = 0; i < m->n; i++) {
        const struct mark_range *r = &m->ranges[i];
        Rozo__StCommitReq__Range *to = &told[x->n_marks];

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

    if (!x->scanning) {
        if (proj->partial && !x->heads) /* anything may have been here */
            mark = x->from;
        if (x->heads && (x->op.rc = next_tell_marks(x, proj_marks(proj))) != 0)
            return OP_BAD;
        if (mark < x->found)
            x->found = mark;
        x->scan = (struct head_scan){
            .at = x->from,
            .end = proj_blocks(proj),
            .buf = x->scan.buf,
            .skip_holes = true,
        };
        x->scanning = true;
    }
    for (;;) {
        enum st_op_next next = st_op_scan(&x->op, proj, &x->scan);
        uint64_t block;

        if (next != OP_GO)
            return next;
        if (x->scan.n == 0)
            break;
        block = ++x->n_extents > NEXT_EXTENTS_MAX ? x->scan.at : next_in_heads(x, proj);
        if (block < x->found)
            x->found = block;
        if (block != UINT64_MAX || x->scan.at >= x->found)
            break;
    }
    x->scanning = false;
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

    if (x->unsynced)
        return OP_GO;
    if (x->p == 0 && !x->scanning && (op->rc = next_pending(x)) != 0)
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
        next = st_op_bad(op, -EUCLEAN);
    x->unsynced = next == OP_BAD && op->rc == -EUCLEAN && st_op_was_never_synced(op);
    return x->unsynced ? OP_GO : next;
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

static void next_reply(struct next_op *x)
{
    Rozo__StNextResp resp = ROZO__ST_NEXT_RESP__INIT;
    Rozo__StCommitReq__Range *marks[NEXT_MARKS_MAX];

    resp.block = x->found;
    resp.partial = next_partial(x);
    resp.n_marks = x->n_marks;
    resp.marks = marks;
    for (unsigned i = 0; i < x->n_marks; i++)
        marks[i] = &x->marks[i];
    resp.unsynced = x->unsynced;
    st_op_finish_message(&x->op, x->unsynced ? ROZO__STATUS__DAMAGED : ROZO__STATUS__OK,
                         &resp.base);
}

static void next_step(struct st_op *op)
{
    static st_op_part *const parts[] = { next_enter, next_find };

    if (run_parts(op, parts, 2) == OP_GO)
        next_reply((struct next_op *)op);
}

static void next_free(struct st_op *op)
{
    free(((struct next_op *)op)->scan.buf);
    free(((struct next_op *)op)->marks);
}

static int next_parse(struct next_op *x, const Rozo__StNextReq *req)
{
    int rc = st_op_ref_check(x->op.st, x->op.call, req->ref, req->to_storage,
                             CAPABILITY_READ, &x->op.ref);

    if (rc != 0)
        return rc;
    x->from = req->from_block;
    x->heads = req->heads;
    x->found = UINT64_MAX;
    x->op.want = all_projections(&x->op.ref);
    x->scan.buf =
        malloc((size_t)EXTENT_BLOCKS * (RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX));
    return x->scan.buf == NULL ? -ENOMEM : 0;
}

void storage_handle_next(struct storage *st, struct rpc_call *call)
{
    Rozo__StNextReq *req = rozo__st_next_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, sizeof(struct next_op), next_step, next_free);

    if (op == NULL)
        rpc_reply_status(call, ROZO__STATUS__NO_MEMORY);
    else
        start_or_fail(op, req == NULL ? -EBADMSG : next_parse((struct next_op *)op, req));
    rozo__st_next_req__free_unpacked(req, NULL);
}
