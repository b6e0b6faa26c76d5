/*
 * st_sync.c - ST_SYNC: makes the acknowledged changes of a file stable.
 *
 * In:     storage_handle_sync(). Thread: the storio loop.
 * Out:    struct disk, rpc_reply().
 * Keeps:  a sync answers for all changes to the file that were acknowledged before it
 *         came (I1), also by a previous process on this machine.
 */
#include <assert.h>
#include <errno.h>

#include "common/base/err.h"
#include "storaged/ops/st_requests.h"

enum { SYNC_MARKS_MAX = 32, SYNC_RANGES_MAX = UNSTABLE_LIST_MAX + 2 * SYNC_MARKS_MAX };

struct st_sync_op {
    struct st_op op; /* must be first */
    bool others;     /* the answer lists unstable blocks */
};

static enum st_op_next sync_enter(struct st_op *op)
{
    enum st_op_next next = st_op_enter_present(op);

    if (next == OP_GO && object_damaged(op->obj) != 0)
        return st_op_bad(op, -ROZO_EDAMAGED); /* acknowledged records in it are unknown */
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

struct sync_ranges {
    struct unstable_range ranges[UNSTABLE_LIST_MAX];
    unsigned n_ranges, n;
    Rozo__StCommitReq__Range listed[SYNC_RANGES_MAX], *list[SYNC_RANGES_MAX];
};

static void sync_list(struct sync_ranges *t, uint64_t first, uint64_t end,
                      uint64_t version)
{
    Rozo__StCommitReq__Range *range = t->list[t->n] = &t->listed[t->n];

    assert(t->n < SYNC_RANGES_MAX && first < end);
    t->n++;
    rozo__st_commit_req__range__init(range);
    range->first_block = first;
    range->n_blocks = end == UINT64_MAX ? 0 : end - first;
    range->version = version;
}

/* Lists pending marks; too many small ones are listed by their blocks, like records. */
static void sync_list_marks(struct sync_ranges *t, const struct pending_file *f,
                            uint64_t *oldest)
{
    LIST_FOREACH(node, &f->marks) {
        const struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->committed)
            continue;
        if (t->n < (m->end == UINT64_MAX ? 2 * SYNC_MARKS_MAX : SYNC_MARKS_MAX)) {
            sync_list(t, m->first, m->end, m->version);
        } else if (m->end != UINT64_MAX) {
            *oldest = m->version < *oldest ? m->version : *oldest;
            unstable_list_add(t->ranges, &t->n_ranges, UNSTABLE_LIST_MAX, m->first,
                              m->end);
        }
    }
}

static void sync_report_unstable(struct st_op *op, struct sync_ranges *t,
                                 Rozo__StSyncResp *resp)
{
    const struct pending_file *f = st_op_pending_file(op);

    assert(op->obj != NULL);
    resp->unstable_from = UINT64_MAX;
    t->n = t->n_ranges = 0;
    unstable_ranges_get(&op->obj->unstable, t->ranges, &t->n_ranges,
                        &resp->unstable_from);
    if (f != NULL) {
        sync_list_marks(t, f, &resp->unstable_from);
        LIST_FOREACH(node, &f->records[0]) {
            const struct pending_record *r =
                container_of(node, struct pending_record, link);

            if (r->version < resp->unstable_from)
                resp->unstable_from = r->version;
            unstable_list_add(t->ranges, &t->n_ranges, UNSTABLE_LIST_MAX, r->block,
                              r->block + 1);
        }
    }
    for (unsigned i = 0; i < t->n_ranges; i++)
        sync_list(t, t->ranges[i].first, t->ranges[i].end, 0);
    resp->n_unstable = t->n;
    resp->unstable = t->list;
}

static void sync_reply(struct st_op *op)
{
    Rozo__StSyncResp resp = ROZO__ST_SYNC_RESP__INIT;
    struct sync_ranges listed;

    resp.verifier = storage_verifier(op->st);
    if (((struct st_sync_op *)op)->others)
        sync_report_unstable(op, &listed, &resp);
    st_op_finish_message(op, ROZO__STATUS__OK, &resp.base);
}

static const struct st_op_kind sync_kind = {
    .bytes = sizeof(struct st_sync_op),
    .done = sync_reply,
    .steps = { sync_enter, sync_all },
};

static int sync_parse(struct st_op *op, const Rozo__StSyncReq *req)
{
    int rc = st_op_ref_check(op->st, op->call, req->ref, req->to_storage, CAPABILITY_READ,
                             &op->ref);

    if (rc != 0)
        return rc;
    op->want = file_ref_projections(&op->ref);
    ((struct st_sync_op *)op)->others = req->others;
    if (req->n_durable > 0 && st_op_ref_check(op->st, op->call, req->ref, req->to_storage,
                                              CAPABILITY_WRITE, &op->ref) == 0)
        journal_commit(op->st->journal, &op->ref.id, req->durable, req->n_durable);
    return 0;
}

void storage_handle_sync(struct storage *st, struct rpc_call *call)
{
    Rozo__StSyncReq *req = rozo__st_sync_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, &sync_kind);

    if (op != NULL)
        st_op_start(op, req == NULL ? -EBADMSG : sync_parse(op, req));
    rozo__st_sync_req__free_unpacked(req, NULL);
}
