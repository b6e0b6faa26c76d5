/*
 * read_request.c - one request of a read to one storage, and the checks of its answer.
 *
 * In:     read_ask_send(), answers. Thread: the env's.
 * Out:    ST_READ; read_piece_step() after each answer. Rows of full blocks are received
 *         straight into their places in the caller's memory.
 * Keeps:  no record is believed without its crc, and no answer at all when its length is
 *         not the one promised.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "storcli/blocks/blk_read.h"
#include "storcli/rules/encode.h"

enum {
    /* requests of one piece and round; c storages hold few projections each */
    ASKS_MAX = 256,
};

uint8_t *read_block_data(const struct read_piece *piece, unsigned block)
{
    uint64_t index = piece->first_block - piece->op->first_block + block;

    return piece->op->want.data + index * piece->op->op.file->target.block_bytes;
}

static void ask_free(struct storcli_file *file, struct read_ask *ask)
{
    if (ask->state == ASK_SENT)
        rpc_cancel(&ask->rq);
    bufpool_put(&file->cli->scratch, ask->heads, ask->n * ask->head_bytes);
    bufpool_put(&file->cli->scratch, ask->bodies, ask->n * file->row_bytes);
    free(ask);
}

void read_forget_asks(struct read_piece *piece)
{
    while (piece->asks != NULL) {
        struct read_ask *ask = piece->asks;

        piece->asks = ask->next;
        ask_free(piece->op->op.file, ask);
    }
    piece->n_asks = 0;
}

/* Classifies a record by its head; the crc of the data is checked later. */
static enum judged judge_head(const struct read_ask *ask, unsigned block,
                              size_t *row_bytes)
{
    const struct storcli_file *file = ask->piece->op->op.file;
    const uint8_t *head = ask->heads + block * ask->head_bytes;
    struct record_header h;

    *row_bytes = 0;
    if ((head[6] & RECORD_DAMAGED) != 0)
        return JUDGED_BAD;
    switch (record_inspect(head, file->file_hash,
                           ask->piece->first_block + ask->at + block, ask->projection,
                           file->target.block_bytes, &h)) {
    case RECORD_IS_DATA:
        *row_bytes = codec_row_bytes(file->codec, h.user_bytes);
        return JUDGED_DATA;
    case RECORD_IS_HOLE:
        return JUDGED_HOLE;
    default:
        return JUDGED_BAD;
    }
}

/* Classifies all records, once, as soon as the heads are here. */
static void judge_heads(struct read_ask *ask)
{
    for (unsigned b = 0; !ask->heads_judged && b < ask->n; b++) {
        size_t row_bytes;

        ask->judged[b] = (uint8_t)judge_head(ask, b, &row_bytes);
        ask->row_bytes[b] = (uint16_t)row_bytes;
    }
    ask->heads_judged = true;
}

uint8_t *read_ask_body(const struct read_ask *ask, unsigned block, size_t row_bytes)
{
    const struct storcli_file *file = ask->piece->op->op.file;

    /* full rows only: rows of different lengths would overlap */
    if (ask->in_place && row_bytes == file->row_bytes)
        return read_block_data(ask->piece, ask->at + block) + ask->projection * row_bytes;
    return ask->bodies + block * file->row_bytes;
}

static bool ask_need_bodies(struct read_ask *ask)
{
    struct storcli_file *file = ask->piece->op->op.file;

    if (ask->bodies == NULL)
        ask->bodies = bufpool_get(&file->cli->scratch, ask->n * file->row_bytes);
    return ask->bodies != NULL;
}

static int on_ask_place(struct rpc_request *rq, size_t rest_len, struct iovec *iov)
{
    struct read_ask *ask = container_of(rq, struct read_ask, rq);
    size_t sum = 0;
    int n = 0;

    if (rq->status != ROZO__STATUS__OK || ask->piece->op->want.heads_only)
        return -EBADMSG;
    judge_heads(ask);
    for (unsigned b = 0; b < ask->n; b++) {
        size_t row_bytes = ask->row_bytes[b];
        uint8_t *body;

        if (row_bytes == 0)
            continue;
        if (!(ask->in_place && row_bytes == ask->piece->op->op.file->row_bytes) &&
            !ask_need_bodies(ask))
            return -ENOMEM;
        body = read_ask_body(ask, b, row_bytes);
        sum += row_bytes;
        if (n > 0 && (uint8_t *)iov[n - 1].iov_base + iov[n - 1].iov_len == body)
            iov[n - 1].iov_len += row_bytes;
        else
            iov[n++] = (struct iovec){ .iov_base = body, .iov_len = row_bytes };
    }
    return sum == rest_len ? n : -EBADMSG;
}

/* Takes the payload of a storage that chose the projection itself: only now is the length
 * of its heads known. */
static int ask_take_payload(struct read_ask *ask)
{
    struct storcli_file *file = ask->piece->op->op.file;
    size_t at, heads_bytes = ask->n * ask->head_bytes;

    if (ask->rq.answer_payload_len < heads_bytes)
        return -EBADMSG;
    ask->heads = bufpool_get(&file->cli->scratch, heads_bytes);
    if (ask->heads == NULL)
        return -ENOMEM;
    memcpy(ask->heads, ask->rq.answer_payload, heads_bytes);
    at = heads_bytes;
    judge_heads(ask);
    for (unsigned b = 0; !ask->piece->op->want.heads_only && b < ask->n; b++) {
        size_t row_bytes = ask->row_bytes[b];

        if (row_bytes == 0)
            continue;
        if (!ask_need_bodies(ask))
            return -ENOMEM;
        if (ask->rq.answer_payload_len - at < row_bytes)
            return -EBADMSG;
        memcpy(read_ask_body(ask, b, row_bytes), ask->rq.answer_payload + at, row_bytes);
        at += row_bytes;
    }
    return at == ask->rq.answer_payload_len ? 0 : -EBADMSG;
}

static int ask_parse_answer(struct read_ask *ask)
{
    const struct storcli_file *file = ask->piece->op->op.file;
    Rozo__StReadResp *resp =
        rozo__st_read_resp__unpack(NULL, ask->rq.answer_msg_len, ask->rq.answer_msg);
    int rc = 0;

    if (resp == NULL)
        return -EBADMSG;
    if (resp->projection >= file->n ||
        (ask->projection != PROJECTION_ANY && ask->projection != resp->projection))
        rc = -EBADMSG;
    if (rc == 0) {
        ask->projection = (uint8_t)resp->projection;
        ask->present = (resp->present & ((1u << file->n) - 1)) | 1u << resp->projection;
        ask->doubt = resp->doubt;
    }
    rozo__st_read_resp__free_unpacked(resp, NULL);
    if (rc == 0 && ask->heads == NULL) {
        ask->head_bytes = encode_head_bytes(file->codec, ask->projection);
        rc = ask_take_payload(ask);
    }
    return rc;
}

/* Checks the crc of each record, and that the length of the answer is the one
 * promised. */
static int ask_judge(struct read_ask *ask)
{
    struct storcli_file *file = ask->piece->op->op.file;
    bool heads_only = ask->piece->op->want.heads_only;
    size_t overhang = ask->head_bytes - RECORD_HEADER_BYTES;
    size_t expected = ask->n * ask->head_bytes;

    judge_heads(ask);
    ask->whole = ask->at == 0 && ask->n == ask->piece->n_blocks;
    for (unsigned b = 0; b < ask->n; b++) {
        const uint8_t *head = ask->heads + b * ask->head_bytes;
        size_t row_bytes = ask->row_bytes[b];

        if (ask->judged[b] == JUDGED_DATA && !heads_only) {
            expected += row_bytes;
            if (expected > ask->rq.answer_payload_len)
                return -EBADMSG;
            if (record_crc(head, head + RECORD_HEADER_BYTES, overhang,
                           read_ask_body(ask, b, row_bytes), row_bytes) != get_le32(head))
                ask->judged[b] = JUDGED_BAD;
        }
        if (ask->at_most != 0 && read_head_version(head) > ask->at_most)
            ask->judged[b] = JUDGED_BAD; /* an old storage that ignores at_most */
        else if (ask->judged[b] == JUDGED_BAD)
            file->cli->stats.damaged++;
        if (ask->judged[b] == JUDGED_BAD) {
            ask->whole = false;
        }
    }
    return expected == ask->rq.answer_payload_len ? 0 : -EBADMSG;
}

static void ask_answered(struct read_ask *ask)
{
    struct storcli_file *file = ask->piece->op->op.file;
    bool had_heads = ask->heads != NULL;
    int rc = 0;

    ask->state = ASK_FAILED;
    if (had_heads && ask->rq.answer_payload_len < ask->n * ask->head_bytes)
        rc = -EBADMSG;
    if (rc == 0)
        rc = ask_parse_answer(ask);
    if (rc == 0)
        rc = ask_judge(ask);
    if (rc != 0)
        return;
    ask->state = ASK_ANSWERED;
    ask->took_ns = engine_now_ns(file->cli) - ask->sent_ns;
    if (ask->pace != PACE_SLOW)
        engine_peer_fine(file, ask->candidate);
}

static void on_ask_answer(struct rpc_request *rq, int rc)
{
    struct read_ask *ask = container_of(rq, struct read_ask, rq);

    assert(ask->state == ASK_SENT);
    if (rc == 0 && rq->status == ROZO__STATUS__OK)
        ask_answered(ask);
    else
        ask->state = ASK_FAILED;
    if (rc == 0 && rq->status != ROZO__STATUS__BUSY)
        ask->piece->heard |= 1u << ask->candidate;
    ask->piece->moved |= rc == 0 && rq->status == ROZO__STATUS__STALE_DISTRIBUTION;
    if (rc == 0 && rq->status == ROZO__STATUS__DENIED)
        ask->piece->denied |= 1u << ask->candidate;
    if (rc == 0 && rq->status == ROZO__STATUS__NO_FILE &&
        ask->projection == PROJECTION_ANY)
        ask->piece->none |= 1u << ask->candidate;
    if (rc == 0 && ask->projection != PROJECTION_ANY &&
        (rq->status == ROZO__STATUS__NO_FILE || rq->status == ROZO__STATUS__DAMAGED))
        ask->lack = LACK_OTHERS_UNASKED;
    read_piece_step(ask->piece);
}

static struct read_ask *ask_new(struct read_piece *piece, unsigned candidate,
                                unsigned projection, unsigned at, unsigned n)
{
    struct storcli_file *file = piece->op->op.file;
    struct read_ask *ask = calloc(1, sizeof(*ask));

    if (ask == NULL)
        return NULL;
    ask->piece = piece;
    ask->candidate = (uint8_t)candidate;
    ask->projection = (uint8_t)projection;
    ask->at = (uint16_t)at;
    ask->n = (uint16_t)n;
    ask->in_place = piece->n_rounds == 0 && candidate == projection &&
                    projection < file->k && codec_is_systematic(file->codec) &&
                    !piece->op->want.heads_only;
    if (projection == PROJECTION_ANY)
        return ask;
    ask->head_bytes = encode_head_bytes(file->codec, projection);
    ask->heads = bufpool_get(&file->cli->scratch, n * ask->head_bytes);
    if (ask->heads == NULL) {
        free(ask);
        return NULL;
    }
    return ask;
}

/* Returns true if a row is received in place already: a second request for it must use
 * scratch memory. */
static bool row_is_taken(const struct read_piece *piece, unsigned projection)
{
    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->in_place && ask->projection == projection)
            return true;
    }
    return false;
}

bool read_ask_send(struct read_piece *piece, unsigned candidate, unsigned projection,
                   unsigned at, unsigned n, uint64_t at_most)
{
    struct storcli_file *file = piece->op->op.file;
    uint64_t now_ns = engine_now_ns(file->cli);
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
    uint8_t msg[MSG_BYTES_MAX];
    struct read_ask *ask;
    size_t len;

    if (piece->n_asks >= ASKS_MAX)
        return false;
    ask = ask_new(piece, candidate, projection, at, n);
    if (ask == NULL)
        return false;
    ask->at_most = at_most;
    if (ask->in_place && (at_most != 0 || row_is_taken(piece, projection)))
        ask->in_place = false;
    ask->next = piece->asks;
    piece->asks = ask;
    piece->n_asks++;
    ask->sent_ns = now_ns;
    if (file->peer[candidate]->straggler.is_straggler)
        ask->grace_ns = file->peer[candidate]->straggler.excess_ns;
    len = engine_msg_begin(file, msg);
    req.projection = projection;
    req.first_block = piece->first_block + at;
    req.n_blocks = n;
    req.to_storage = file->target.storages[candidate];
    req.heads_only = piece->op->want.heads_only;
    req.at_most = at_most;
    len += rozo__st_read_req__pack(&req, msg + len);
    ask->rq = (struct rpc_request){
        .op = ROZO__OP__ST_READ,
        .deadline_ms = piece->op->op.file->cli->config.read_deadline_ms,
        .msg = msg,
        .msg_len = len,
        .recv_head = ask->heads,
        .recv_head_len = n * ask->head_bytes,
        .place = ask->heads != NULL ? on_ask_place : NULL,
        .done = on_ask_answer,
    };
    rpc_send(engine_channel(file, candidate), &ask->rq);
    ask->rq.msg = NULL; /* copied */
    return true;
}
