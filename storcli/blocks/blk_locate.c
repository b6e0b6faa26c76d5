/*
 * blk_locate.c - asks every storage of a file for its projections of it, for people.
 *
 * In:     storcli_locate(). Thread: the env's.
 * Out:    ST_STAT to all of the distribution; a storage without an answer after LOCATE_MS
 *         is unreachable.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "storcli/blocks/engine.h"

enum { LOCATE_MS = 1000 };

struct locate_ask {
    struct rpc_request rq;
    struct locate_op *op;
    bool sent;
};

struct locate_op {
    struct blk_op op;
    struct storcli_place *places; /* the caller's, c entries */
    unsigned n_sent;
    bool moved; /* a storage knows of a newer distribution */
    struct locate_ask asks[DIST_MAX];
};

static void place_fill(struct storcli_place *place, const Rozo__StStatResp *resp,
                       unsigned n)
{
    for (size_t i = 0; i < resp->n_projections; i++) {
        const Rozo__StStatResp__Projection *p = resp->projections[i];

        if (p->projection >= n)
            continue;
        if (place->projections == 0)
            snprintf(place->path, sizeof(place->path), "%s", p->path);
        place->projections |= 1u << p->projection;
        place->size_bytes += p->size;
        place->allocated_bytes += p->allocated;
    }
}

static void locate_end_when_done(struct locate_op *op)
{
    if (op->n_sent == 0)
        blk_op_end(&op->op, op->moved ? -ROZO_EMOVED : 0);
}

static void on_stat_answer(struct rpc_request *rq, int rc)
{
    struct locate_ask *ask = container_of(rq, struct locate_ask, rq);
    struct locate_op *op = ask->op;
    struct storcli_place *place = &op->places[ask - op->asks];
    Rozo__StStatResp *resp = NULL;

    place->reachable = rc == 0;
    op->moved |= rc == 0 && rq->status == ROZO__STATUS__STALE_DISTRIBUTION;
    if (rc == 0 && rq->status == ROZO__STATUS__OK)
        resp = rozo__st_stat_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    if (resp != NULL)
        place_fill(place, resp, op->op.file->n);
    rozo__st_stat_resp__free_unpacked(resp, NULL);
    op->n_sent--;
    locate_end_when_done(op);
}

static void stat_send(struct locate_op *op, unsigned candidate, struct rpc_channel *ch)
{
    struct storcli_file *file = op->op.file;
    struct locate_ask *ask = &op->asks[candidate];
    Rozo__StStatReq req = ROZO__ST_STAT_REQ__INIT;
    uint8_t msg[MSG_BYTES_MAX];
    size_t len = engine_msg_begin(file, msg);

    req.to_storage = file->target.storages[candidate];
    len += rozo__st_stat_req__pack(&req, msg + len);
    ask->op = op;
    ask->rq = (struct rpc_request){
        .op = ROZO__OP__ST_STAT,
        .deadline_ms = LOCATE_MS,
        .msg = msg,
        .msg_len = len,
        .done = on_stat_answer,
    };
    op->n_sent++;
    rpc_send(ch, &ask->rq);
    ask->rq.msg = NULL; /* copied */
}

static void locate_run(struct blk_op *base)
{
    struct locate_op *op = container_of(base, struct locate_op, op);

    for (unsigned i = 0; i < base->file->c; i++) {
        struct rpc_channel *ch = engine_channel(base->file, i);

        op->places[i] = (struct storcli_place){
            .storage_id = base->file->target.storages[i],
        };
        if (ch != NULL && rpc_channel_health(ch) != RPC_DOWN)
            stat_send(op, i, ch);
    }
    locate_end_when_done(op);
}

void storcli_locate(struct storcli_file *file, struct storcli_place places[DIST_MAX],
                    storcli_done_cb *done, void *arg)
{
    struct locate_op *op = blk_op_new(file, sizeof(*op), done, arg);

    op->places = places;
    engine_op_begin(&op->op, sizeof(*op), locate_run);
}
