/*
 * st_fence.c - ST_FENCE: refuses writes of clients up to an epoch from now on.
 *
 * In:     storage_handle_fence(). Thread: the storio loop.
 * Out:    journal.h, rpc_reply().
 * Keeps:  a fence holds from its answer on.
 */
#include <assert.h>
#include <errno.h>

#include "storaged/ops/st_requests.h"

struct fence_op {
    struct st_op op; /* must be first */
    uint32_t epoch;
    uint8_t header[JOURNAL_RECORD_HEADER_BYTES];
};

static enum st_op_next fence_append(struct st_op *op)
{
    struct fence_op *f = (struct fence_op *)op;
    uint32_t epoch = journal_fence(op->st->journal, &op->ref.id);
    struct journal_record e = { .kind = JOURNAL_FENCE, .file = st_op_file(op) };
    struct journal_frame *entry;
    enum st_op_next next;

    assert(op->held == OP_HOLDS_EXCLUSIVE && f->epoch != 0);
    if (op->journal.append == NULL && epoch >= f->epoch) {
        if (journal_fence_is_good(op->st->journal, &op->ref.id))
            return OP_GO;
        f->epoch = epoch; /* the old frame may be lost: append it again */
    }
    e.epoch = f->epoch;
    journal_record_put(f->header, &e);
    op->iov = (struct iovec){ .iov_base = f->header, .iov_len = sizeof(f->header) };
    next = st_op_append(op, JOURNAL_FENCE, &op->iov, 1, sizeof(f->header));
    if (next != OP_GO)
        return next;
    entry = op->journal.entry;
    op->journal.entry = NULL;
    op->rc = journal_fence_note(op->st->journal, &op->ref.id, f->epoch, entry);
    return op->rc == 0 ? OP_GO : OP_BAD;
}

/* Syncs even a fence that was here before: another request's sync of it may not have
 * ended. */
static enum st_op_next fence_sync(struct st_op *op)
{
    if (op->held != OP_HOLDS_NOTHING) {
        st_op_unlock(op);
        st_op_wal_sync_start(op);
    }
    return st_op_wal_sync_join(op);
}

/* The lock lets writes under way end first: none is answered after the fence. */
static const struct st_op_kind fence_kind = {
    .bytes = sizeof(struct fence_op),
    .failed = st_op_fail_busy,
    .steps = { st_op_enter, fence_append, fence_sync },
};

static int fence_parse(struct fence_op *f, const Rozo__StFenceReq *req)
{
    struct st_op *op = &f->op;
    int rc = st_op_ref_check(op->st, op->call, req->ref, req->to_storage,
                             CAPABILITY_WRITE, &op->ref);

    if (rc != 0)
        return rc;
    if (op->call->role != RPC_ROLE_NODE)
        return -EACCES;
    f->epoch = req->epoch;
    op->access = OP_EXCLUSIVE;
    return req->epoch == 0 ? -EBADMSG : 0;
}

void storage_handle_fence(struct storage *st, struct rpc_call *call)
{
    Rozo__StFenceReq *req = rozo__st_fence_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, &fence_kind);

    if (op != NULL)
        st_op_start(op, req == NULL ? -EBADMSG : fence_parse((struct fence_op *)op, req));
    rozo__st_fence_req__free_unpacked(req, NULL);
}
