/*
 * blk_seek.c - finds the next data or the next hole.
 *
 * In:     storcli_seek(). Thread: the env's.
 * Out:    ST_NEXT to storages, to jump over blocks that none of them has; then reads of
 *         heads, judged like any read, since one storage alone does not know the value of
 *         a block.
 * Keeps:  enough storages answer that no acknowledged write can be jumped over.
 */
#include <assert.h>
#include <errno.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "storcli/blocks/engine.h"

enum {
    SILENT_MS = 100, /* ms; then others, if enough, decide without it */
    RETRY_MS = 100,
    NO_FILE_MS = 3000, /* as long as reads wait when all storages answer */
};

struct next_ask {
    struct rpc_request rq;
    struct seek_op *op;
    uint64_t sent_ns, retry_ns;
    uint64_t block;
    bool sent, answered;
    bool no_file; /* last answer: no projection file */
};

/* JUMP (to possible data) -> LOOK (at the heads there) -> JUMP ...; for holes only
 * LOOK. */
struct seek_op {
    struct blk_op op;
    struct watch watch;
    uint64_t at, limit;
    bool want_hole;
    uint64_t *found;                  /* the caller's */
    uint64_t no_file_ns, deadline_ns; /* no_file_ns: see NO_FILE_MS */
    unsigned n_denied;
    bool moved; /* a storage knows of a newer distribution */
    struct next_ask asks[DIST_MAX];
    unsigned n_looked;
    uint16_t user_bytes[STORCLI_RUN_MAX];
};

static void jump_step(struct seek_op *op);

static void jump_stop(struct seek_op *op)
{
    for (unsigned i = 0; i < op->op.file->c; i++) {
        if (op->asks[i].sent)
            rpc_cancel(&op->asks[i].rq);
        op->asks[i].sent = false;
    }
    watch_stop(op->op.file->cli, &op->watch);
}

static void seek_end(struct seek_op *op, int rc, uint64_t block)
{
    jump_stop(op);
    if (rc == 0)
        *op->found = block;
    blk_op_end(&op->op, rc);
}

/* ---- looking at heads ---- */

static void jump_begin(struct seek_op *op);
static void look_begin(struct seek_op *op);

static void on_looked(void *arg, int rc)
{
    struct seek_op *op = arg;

    if (rc != 0) {
        seek_end(op, rc, 0);
        return;
    }
    for (unsigned i = 0; i < op->n_looked; i++) {
        if ((op->user_bytes[i] == 0) == op->want_hole) {
            seek_end(op, 0, op->at + i);
            return;
        }
    }
    op->at += op->n_looked;
    if (op->at >= op->limit) /* a mark that cut the file reaches on without end */
        seek_end(op, 0, op->want_hole ? op->limit : UINT64_MAX);
    else if (op->want_hole)
        look_begin(op);
    else
        jump_begin(op);
}

static void look_begin(struct seek_op *op)
{
    const struct read_want want = { .user_bytes = op->user_bytes, .heads_only = true };
    /* the first look often finds data */
    bool goes_on = op->want_hole || op->n_looked > 0;
    uint64_t left = op->limit - op->at;

    op->n_looked =
        goes_on && left > STORCLI_RUN_MAX ? STORCLI_RUN_MAX : piece_blocks(op->at, left);
    engine_read(op->op.file, op->at, op->n_looked, &want, on_looked, op);
}

/* ---- jumping over blocks that no storage has ---- */

static void on_next_answer(struct rpc_request *rq, int rc)
{
    struct next_ask *ask = container_of(rq, struct next_ask, rq);
    struct seek_op *op = ask->op;
    Rozo__StNextResp *resp = NULL;

    ask->sent = false;
    ask->retry_ns = engine_now_ns(op->op.file->cli) + ms_to_ns(RETRY_MS);
    if (rc == 0 && rq->status == ROZO__STATUS__OK)
        resp = rozo__st_next_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    if (rc == 0 && rq->status == ROZO__STATUS__DENIED)
        op->n_denied++;
    op->moved |= rc == 0 && rq->status == ROZO__STATUS__STALE_DISTRIBUTION;
    ask->no_file = rc == 0 && rq->status == ROZO__STATUS__NO_FILE;
    if (resp != NULL && resp->block >= op->at) {
        ask->answered = true;
        ask->block = resp->block;
    }
    rozo__st_next_resp__free_unpacked(resp, NULL);
    jump_step(op);
}

static void next_send(struct seek_op *op, unsigned candidate, uint64_t now_ns)
{
    struct storcli_file *file = op->op.file;
    struct next_ask *ask = &op->asks[candidate];
    Rozo__StNextReq req = ROZO__ST_NEXT_REQ__INIT;
    uint8_t msg[MSG_BYTES_MAX];
    size_t len = engine_msg_begin(file, msg);

    req.from_block = op->at;
    req.to_storage = file->target.storages[candidate];
    len += rozo__st_next_req__pack(&req, msg + len);
    ask->op = op;
    ask->sent = true;
    ask->sent_ns = now_ns;
    ask->rq = (struct rpc_request){
        .op = ROZO__OP__ST_NEXT,
        .deadline_ms = file->cli->config.read_deadline_ms,
        .msg = msg,
        .msg_len = len,
        .done = on_next_answer,
    };
    rpc_send(engine_channel(file, candidate), &ask->rq);
    ask->rq.msg = NULL; /* copied */
}

/* Returns the nearest block that any of them has. */
static uint64_t jump_target(const struct seek_op *op, unsigned *n_answered)
{
    uint64_t block = UINT64_MAX;

    *n_answered = 0;
    for (unsigned i = 0; i < op->op.file->c; i++) {
        if (!op->asks[i].answered)
            continue;
        ++*n_answered;
        if (op->asks[i].block < block)
            block = op->asks[i].block;
    }
    return block;
}

/* Returns true if all candidates have answered, if only with "no file". */
static bool jump_heard_all(const struct seek_op *op)
{
    for (unsigned i = 0; i < op->op.file->c; i++) {
        if (!op->asks[i].answered && !op->asks[i].no_file)
            return false;
    }
    return true;
}

static bool jump_awaits(struct seek_op *op, uint64_t now_ns)
{
    for (unsigned i = 0; i < op->op.file->c; i++) {
        if (op->asks[i].sent && engine_is_up(op->op.file, i) &&
            now_ns - op->asks[i].sent_ns < ms_to_ns(SILENT_MS))
            return true;
    }
    return false;
}

static void jump_step(struct seek_op *op)
{
    struct storcli_file *file = op->op.file;
    uint64_t now_ns = engine_now_ns(file->cli), block;
    unsigned n_answered;

    op->watch.wake_ns = now_ns + ms_to_ns(WATCH_POLL_MS);
    if (op->moved || engine_is_relocating(file)) {
        seek_end(op, -ROZO_EMOVED, 0);
        return;
    }
    block = jump_target(op, &n_answered);
    if (jump_awaits(op, now_ns))
        return;
    /* the rest alone cannot hold an acknowledged write */
    if (file->c - n_answered < file->q_read) {
        jump_stop(op);
        op->at = block;
        if (block >= op->limit)
            seek_end(op, 0, UINT64_MAX);
        else
            look_begin(op);
        return;
    }
    if (now_ns >= op->deadline_ns || (now_ns >= op->no_file_ns && jump_heard_all(op)) ||
        file->c - op->n_denied < file->k) {
        seek_end(op, op->n_denied > 0 ? -EACCES : -EIO, 0);
        return;
    }
    for (unsigned i = 0; i < file->c; i++) {
        struct next_ask *ask = &op->asks[i];

        if (!ask->sent && !ask->answered && now_ns >= ask->retry_ns &&
            engine_is_up(file, i))
            next_send(op, i, now_ns);
    }
}

static void on_seek_wake(struct watch *watch)
{
    struct seek_op *op = container_of(watch, struct seek_op, watch);

    op->n_denied = 0; /* counted again with each round of answers */
    jump_step(op);
}

static void jump_begin(struct seek_op *op)
{
    struct storcli *cli = op->op.file->cli;

    for (unsigned i = 0; i < op->op.file->c; i++)
        op->asks[i] = (struct next_ask){ 0 };
    op->n_denied = 0;
    op->no_file_ns = engine_now_ns(cli) + ms_to_ns(NO_FILE_MS);
    op->deadline_ns = engine_now_ns(cli) + ms_to_ns(cli->config.read_deadline_ms);
    watch_start(cli, &op->watch, on_seek_wake);
    jump_step(op);
}

static void seek_run(struct blk_op *base)
{
    struct seek_op *op = container_of(base, struct seek_op, op);

    if (op->at >= op->limit)
        seek_end(op, 0, op->want_hole ? op->limit : UINT64_MAX);
    else if (op->want_hole)
        look_begin(op);
    else
        jump_begin(op);
}

void storcli_seek(struct storcli_file *file, uint64_t from_block, uint64_t limit_block,
                  bool want_hole, uint64_t *found_block, storcli_done_cb *done, void *arg)
{
    struct seek_op *op = blk_op_new(file, sizeof(*op), done, arg);

    op->at = from_block;
    op->limit = limit_block;
    op->want_hole = want_hole;
    op->found = found_block;
    engine_op_begin(&op->op, sizeof(*op), seek_run);
}
