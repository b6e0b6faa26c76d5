/*
 * st_commit.c - ST_COMMIT: versions become durable, and repaired files complete.
 *
 * In:     storage_handle_commit(). Thread: the storio loop.
 * Out:    journal.h, struct disk, rpc_reply().
 * Keeps:  a file is called complete on stable storage before the answer.
 */
#include <assert.h>
#include <errno.h>

#include "storaged/ops/st_requests.h"

struct commit_op {
    struct st_op op; /* must be first */
    uint32_t whole;
    unsigned p;
    bool making, writing, changed;
};

/* Replaces a corrupt file, or one without a header, by a new one. All storages agree
 * that nothing needed was only in it. */
static enum st_op_next whole_make(struct st_op *op)
{
    struct commit_op *c = (struct commit_op *)op;

    assert(op->held == OP_HOLDS_EXCLUSIVE && c->whole != 0);
    for (; c->p < CODEC_N_MAX; c->p++) {
        enum st_op_next next = OP_GO;

        if ((c->whole >> c->p & 1) == 0 ||
            (object_ready(op->obj, c->p) != NULL && !c->making))
            continue;
        if (!c->making)
            next = st_op_quarantine(op, c->p, 0);
        if (next != OP_GO)
            return next;
        if (!c->making && (op->obj->emptied >> c->p & 1) == 0)
            continue; /* nothing was here, nothing is needed */
        c->making = true;
        next = st_op_create(op, c->p, 0, NULL);
        if (next != OP_GO)
            return next;
        c->making = false;
    }
    c->p = 0;
    return OP_GO;
}

/* Writes "not partial" into a mark page, which counts more than the header. */
static enum st_op_next whole_pages(struct st_op *op)
{
    struct commit_op *c = (struct commit_op *)op;

    assert(op->held == OP_HOLDS_EXCLUSIVE && !c->making);
    for (; c->p < CODEC_N_MAX; c->p++) {
        struct proj *proj = object_ready(op->obj, c->p);
        enum st_op_next next;

        if (proj == NULL || (c->whole >> c->p & 1) == 0 ||
            (!proj->partial && !c->writing))
            continue;
        c->writing = c->changed = true;
        proj->partial = false;
        next = st_op_write_marks(op, c->p, proj_marks(proj), proj_written(proj), 0);
        if (next == OP_BAD)
            proj->partial = true;
        if (next != OP_GO)
            return next;
        c->writing = false;
    }
    return OP_GO;
}

static enum st_op_next whole_sync(struct st_op *op)
{
    assert(!((struct commit_op *)op)->writing);
    st_op_unlock(op);
    return st_op_sync(op);
}

static const struct st_op_kind commit_kind = {
    .bytes = sizeof(struct commit_op),
    .steps = { st_op_enter, whole_make, whole_pages, whole_sync },
};

static int commit_check(const struct commit_op *c, const Rozo__StCommitReq *req)
{
    uint64_t end;

    if (c->op.call->role != RPC_ROLE_NODE && (req->n_ranges > 0 || req->whole != 0))
        return -EACCES;
    if ((req->whole & ~file_ref_projections(&c->op.ref)) != 0)
        return -EBADMSG;
    for (size_t i = 0; i < req->n_ranges; i++) {
        if (!blocks_take(req->ranges[i]->first_block, req->ranges[i]->n_blocks, &end))
            return -EBADMSG;
    }
    return 0;
}

static void commit_do(struct commit_op *c, const Rozo__StCommitReq *req)
{
    struct journal *j = c->op.st->journal;

    journal_commit(j, &c->op.ref.id, req->durable, req->n_durable);
    for (size_t i = 0; i < req->n_ranges; i++) {
        uint64_t end = 0;

        blocks_take(req->ranges[i]->first_block, req->ranges[i]->n_blocks, &end);
        journal_commit_range(j, &c->op.ref.id, req->ranges[i]->first_block, end,
                             req->ranges[i]->version);
    }
}

static int commit_parse(struct commit_op *c, const Rozo__StCommitReq *req)
{
    struct st_op *op = &c->op;
    int rc = st_op_ref_check(op->st, op->call, req->ref, req->to_storage,
                             CAPABILITY_WRITE, &op->ref);

    if (rc == 0)
        rc = commit_check(c, req);
    if (rc != 0)
        return rc;
    commit_do(c, req);
    c->whole = req->whole;
    op->want = file_ref_projections(&op->ref);
    op->access = OP_EXCLUSIVE;
    return 0;
}

void storage_handle_commit(struct storage *st, struct rpc_call *call)
{
    Rozo__StCommitReq *req = rozo__st_commit_req__unpack(NULL, call->msg_len, call->msg);
    struct commit_op *c = (struct commit_op *)st_op_new(st, call, &commit_kind);
    int rc = -EBADMSG;

    if (c != NULL && req != NULL)
        rc = commit_parse(c, req);
    rozo__st_commit_req__free_unpacked(req, NULL);
    if (c == NULL)
        return;
    if (rc == 0 && c->whole == 0)
        st_op_finish(&c->op, ROZO__STATUS__OK);
    else
        st_op_start(&c->op, rc);
}
