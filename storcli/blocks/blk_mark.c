/*
 * blk_mark.c - makes blocks holes: one small request to every storage of a file.
 *
 * In:     storcli_mark(), storcli_mark_below(). Thread: the env's.
 * Out:    ST_MARK through a spread; marks go into file->unsynced.
 * Keeps:  a mark is done when the quorum holds it, so that no read can overlook it;
 *         storages that happen to hold a projection get it too, but do not count.
 */
#include <assert.h>

#include "common/proto/rozo.pb-c.h"

#include "storcli/blocks/engine.h"
#include "storcli/blocks/fanout.h"

struct range_op {
    struct blk_op op;
    struct fanout fanout;
    uint64_t version; /* marks only */
    bool keep_newer;  /* marks: newer records stay */
    uint64_t first_block, n_blocks;
    struct commit_flight flight; /* marks only */
    bool pending, pressure;
    uint32_t verified; /* candidates that answered with their verifier */
    uint64_t verifier[DIST_MAX];
};

static size_t mark_fill(struct fanout *s, unsigned candidate, unsigned projection,
                        struct rpc_request *rq, uint8_t msg[MSG_BYTES_MAX])
{
    struct range_op *op = container_of(s, struct range_op, fanout);
    Rozo__StMarkReq req = ROZO__ST_MARK_REQ__INIT;
    uint64_t durable[COMMIT_EPOCHS_MAX];
    size_t len = engine_msg_begin(s->file, msg);

    req.projection = projection;
    req.first_block = op->first_block;
    req.n_blocks = op->n_blocks;
    req.version = op->version;
    req.keep_newer = op->keep_newer;
    req.durable = durable;
    req.n_durable = commit_durable(&s->file->commit, durable);
    req.to_storage = s->file->target.storages[candidate];
    rq->op = ROZO__OP__ST_MARK;
    return len + rozo__st_mark_req__pack(&req, msg + len);
}

static void mark_acked(struct fanout *s, unsigned candidate, const struct rpc_request *rq)
{
    struct range_op *op = container_of(s, struct range_op, fanout);
    Rozo__StMarkResp *resp = NULL;

    if (rq->answer_msg_len != 0)
        resp = rozo__st_mark_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    if (resp == NULL)
        return;
    if (s->tries[candidate].projection != PROJECTION_ANY) {
        op->verified |= 1u << candidate;
        op->verifier[candidate] = resp->verifier;
    }
    if (resp->pending) {
        op->pending = true;
        op->pressure |= resp->pressure;
        commit_pending(&s->file->commit, candidate, op->version);
    }
    rozo__st_mark_resp__free_unpacked(resp, NULL);
}

static void mark_is_unsynced(struct range_op *op)
{
    struct storcli_file *file = op->op.file;

    for (unsigned i = 0; i < file->c; i++) {
        if ((op->verified >> i & 1) != 0)
            unsynced_verify(&file->unsynced, i, op->verifier[i]);
    }
    unsynced_add_mark(&file->unsynced, op->version, op->first_block, op->n_blocks,
                      &op->fanout.held);
}

static void on_mark_spread(struct fanout *s, int rc)
{
    struct range_op *op = container_of(s, struct range_op, fanout);
    struct storcli_file *file = op->op.file;

    if (rc == 0) {
        mark_is_unsynced(op);
        background_missed(file, op->version, op->first_block, op->n_blocks, &s->held,
                          s->in_flight);
    }
    for (unsigned i = 0; op->pending && i < file->c; i++) {
        if ((s->outcome_unknown >> i & 1) != 0)
            commit_pending(&file->commit, i, op->version);
    }
    commit_end(&file->commit, &op->flight, rc == 0, false);
    if (op->pending)
        background_pending(file, 0, op->pressure);
    blk_op_end(&op->op, rc);
}

static const struct fanout_ops mark_spread_ops = {
    .fill = mark_fill,
    .acked = mark_acked,
    .ended = on_mark_spread,
    .reports = true,
    .extras = true,
};

static void mark_run(struct blk_op *base)
{
    struct range_op *op = container_of(base, struct range_op, op);
    int rc = fanout_start(&op->fanout, base, &mark_spread_ops, false);

    if (rc != 0)
        on_mark_spread(&op->fanout, rc);
}

static struct range_op *range_op_new(struct storcli_file *file, uint64_t first_block,
                                     uint64_t n_blocks, storcli_done_cb *done, void *arg)
{
    struct range_op *op = blk_op_new(file, sizeof(*op), done, arg);

    assert(first_block + n_blocks >= first_block);
    op->first_block = first_block;
    op->n_blocks = n_blocks;
    return op;
}

static void mark_start(struct range_op *op, uint64_t version, bool keep_newer)
{
    assert(version != 0);
    op->op.file->has_stored = true;
    op->version = version;
    op->keep_newer = keep_newer;
    commit_begin(&op->op.file->commit, &op->flight, version);
    engine_op_begin(&op->op, sizeof(*op), mark_run);
}

void storcli_mark(struct storcli_file *file, uint64_t version, uint64_t first_block,
                  uint64_t n_blocks, storcli_done_cb *done, void *arg)
{
    mark_start(range_op_new(file, first_block, n_blocks, done, arg), version, false);
}

void storcli_mark_below(struct storcli_file *file, uint64_t version, uint64_t first_block,
                        uint64_t n_blocks, storcli_done_cb *done, void *arg)
{
    mark_start(range_op_new(file, first_block, n_blocks, done, arg), version, true);
}
