/*
 * blk_write.c - writes whole blocks: cut into pieces, code, seal, spread.
 *
 * In:     storcli_write(). Thread: the env's.
 * Out:    ST_WRITE to n storages for each piece of at most 128 blocks of one extent;
 *         acknowledged, unsynced pieces go into file->unsynced; stable ones remove older
 *         entries from it.
 * Keeps:  rows of a systematic code are sent from the caller's memory, nothing is copied.
 * Yours:  the size of pieces; bench with 1 MiB writes.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/proto/rozo.pb-c.h"

#include "storcli/blocks/engine.h"
#include "storcli/blocks/fanout.h"
#include "storcli/rules/encode.h"

/* At most 128 blocks of one extent. Heads, coded bodies and iovecs lie in one scratch
 * buffer. */
struct write_piece {
    struct fanout fanout;
    struct blk_write_op *op;
    uint64_t first_block;
    unsigned n_blocks;
    const uint8_t *data;
    uint16_t last_user_bytes;
    uint8_t *scratch;
    size_t scratch_bytes;
    size_t head_at[CODEC_N_MAX]; /* in scratch: n_blocks heads of each projection */
    /* in scratch: n_blocks bodies of each coded projection */
    size_t body_at[CODEC_N_MAX];
    size_t iov_at[CODEC_N_MAX];
    unsigned n_iov[CODEC_N_MAX];
    uint64_t verifier[DIST_MAX]; /* from the acknowledgements */
    bool pending, pressure;      /* a storage said so */
};

/* One write: every turn codes and sends one piece more, until all are under way. */
struct blk_write_op {
    struct blk_op op;
    uint64_t version;
    uint64_t first_block;
    uint32_t n_blocks;
    const uint8_t *data; /* borrowed until done */
    uint16_t last_user_bytes;
    bool sync;
    struct commit_flight flight;
    uint64_t pending_bytes; /* user bytes of the pieces that a storage has pending */
    bool pressure;
    int rc; /* the first failure */
    unsigned n_pieces, n_started, n_ended;
    struct write_piece pieces[];
};

static void write_step(struct blk_write_op *op);

static bool is_row(const struct storcli_file *file, unsigned projection)
{
    return projection < file->k && codec_is_systematic(file->codec);
}

/* Lays out everything of a piece in its scratch buffer; returns its size. */
static size_t piece_lay_out(struct storcli_file *file, struct write_piece *piece)
{
    size_t at = 0;

    for (unsigned i = 0; i < file->n; i++) {
        if (is_row(file, i))
            continue;
        piece->body_at[i] = at;
        at += piece->n_blocks * file->row_bytes;
    }
    for (unsigned i = 0; i < file->n; i++) {
        piece->iov_at[i] = at;
        piece->n_iov[i] = 1 + (is_row(file, i) ? piece->n_blocks : 1);
        at += piece->n_iov[i] * sizeof(struct iovec);
    }
    for (unsigned i = 0; i < file->n; i++) {
        piece->head_at[i] = at;
        at += piece->n_blocks * encode_head_bytes(file->codec, i);
    }
    return at;
}

static uint16_t piece_user_bytes(const struct storcli_file *file,
                                 const struct write_piece *piece, unsigned block)
{
    return block + 1 == piece->n_blocks ? piece->last_user_bytes
                                        : file->target.block_bytes;
}

static void piece_encode(struct storcli_file *file, struct write_piece *piece)
{
    uint8_t *head[CODEC_N_MAX], *body[CODEC_N_MAX] = { NULL };

    for (unsigned b = 0; b < piece->n_blocks; b++) {
        const struct encode_block block = {
            .codec = file->codec,
            .file_hash = file->file_hash,
            .user_bytes = piece_user_bytes(file, piece, b),
            .version = piece->op->version,
            .block = piece->first_block + b,
        };

        for (unsigned i = 0; i < file->n; i++) {
            head[i] = piece->scratch + piece->head_at[i] +
                      b * encode_head_bytes(file->codec, i);
            if (!is_row(file, i))
                body[i] = piece->scratch + piece->body_at[i] + b * file->row_bytes;
        }
        encode_seal(&block, piece->data + (size_t)b * file->target.block_bytes,
                    (1u << file->n) - 1, head, body);
    }
}

/* Gathers heads, then bodies: rows one by one from the caller's blocks, coded ones in one
 * go. */
static void piece_gather(struct storcli_file *file, struct write_piece *piece, unsigned i)
{
    struct iovec *iov = (struct iovec *)(piece->scratch + piece->iov_at[i]);
    size_t last_row = codec_row_bytes(file->codec, piece->last_user_bytes);

    iov[0].iov_base = piece->scratch + piece->head_at[i];
    iov[0].iov_len = piece->n_blocks * encode_head_bytes(file->codec, i);
    if (!is_row(file, i)) {
        iov[1].iov_base = piece->scratch + piece->body_at[i];
        iov[1].iov_len = (piece->n_blocks - 1) * file->row_bytes + last_row;
        return;
    }
    for (unsigned b = 0; b < piece->n_blocks; b++) {
        size_t row = b + 1 == piece->n_blocks ? last_row : file->row_bytes;
        const uint8_t *block = piece->data + (size_t)b * file->target.block_bytes;

        iov[1 + b].iov_base = (void *)(uintptr_t)(block + i * row);
        iov[1 + b].iov_len = row;
    }
}

static size_t write_fill(struct fanout *s, unsigned candidate, unsigned projection,
                         struct rpc_request *rq, uint8_t msg[MSG_BYTES_MAX])
{
    struct write_piece *piece = container_of(s, struct write_piece, fanout);
    Rozo__StWriteReq req = ROZO__ST_WRITE_REQ__INIT;
    uint64_t durable[COMMIT_EPOCHS_MAX];
    size_t len = engine_msg_begin(s->file, msg);

    req.projection = projection;
    req.first_block = piece->first_block;
    req.n_records = piece->n_blocks;
    req.to_storage = s->file->target.storages[candidate];
    req.sync = piece->op->sync;
    req.durable = durable;
    req.n_durable = commit_durable(&s->file->commit, durable);
    rq->op = ROZO__OP__ST_WRITE;
    rq->payload = (const struct iovec *)(piece->scratch + piece->iov_at[projection]);
    rq->n_payload = piece->n_iov[projection];
    return len + rozo__st_write_req__pack(&req, msg + len);
}

static void piece_free(struct write_piece *piece)
{
    struct storcli *cli = piece->op->op.file->cli;

    fanout_cancel(&piece->fanout);
    bufpool_put(&cli->scratch, piece->scratch, piece->scratch_bytes);
    piece->scratch = NULL;
}

static void write_acked(struct fanout *s, unsigned candidate,
                        const struct rpc_request *rq)
{
    struct write_piece *piece = container_of(s, struct write_piece, fanout);
    Rozo__StWriteResp *resp =
        rozo__st_write_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);

    piece->verifier[candidate] = resp == NULL ? 0 : resp->verifier;
    if (resp != NULL && resp->pending) {
        piece->pending = true;
        piece->pressure |= resp->pressure;
        commit_pending(&s->file->commit, candidate, piece->op->version);
    }
    rozo__st_write_resp__free_unpacked(resp, NULL);
}

/* Returns false if blocks of this piece were completed by read-modify-write and the data
 * read may have been lost since. */
static bool piece_was_complete(struct write_piece *piece)
{
    struct storcli_file *file = piece->op->op.file;
    bool all = file->n_completed > COMPLETED_MAX, lost = false;
    unsigned n = 0;

    for (unsigned i = 0; all && i < piece->n_blocks; i++)
        lost |= unsynced_has_lost(&file->unsynced, piece->first_block + i, file->k);
    for (unsigned i = 0; !all && i < file->n_completed; i++) {
        uint64_t block = file->completed[i];

        if (block - piece->first_block < piece->n_blocks)
            lost |= unsynced_has_lost(&file->unsynced, block, file->k);
        else
            file->completed[n++] = block;
    }
    if (!all)
        file->n_completed = n;
    return !lost;
}

static void piece_is_there(struct write_piece *piece)
{
    struct storcli_file *file = piece->op->op.file;

    for (unsigned i = 0; i < file->c; i++) {
        if ((piece->fanout.held.any >> i & 1) != 0)
            unsynced_verify(&file->unsynced, i, piece->verifier[i]);
    }
    if (!piece_was_complete(piece)) {
        file->lost = true;
        file->n_losses++;
    }
    if (piece->op->sync)
        unsynced_remove(&file->unsynced, piece->first_block, piece->n_blocks);
    else
        unsynced_add(&file->unsynced, piece->op->version, piece->first_block,
                     piece->n_blocks, &piece->fanout.held);
}

/* Records that candidates which did not answer in time may have it in their journals,
 * too. */
static void piece_is_pending(struct write_piece *piece)
{
    struct storcli_file *file = piece->op->op.file;

    for (unsigned i = 0; i < file->c; i++) {
        if ((piece->fanout.outcome_unknown >> i & 1) != 0)
            commit_pending(&file->commit, i, piece->op->version);
    }
    piece->op->pressure |= piece->pressure;
    piece->op->pending_bytes += (uint64_t)piece->n_blocks * file->target.block_bytes;
}

static void on_piece_spread(struct fanout *s, int rc)
{
    struct write_piece *piece = container_of(s, struct write_piece, fanout);
    struct blk_write_op *op = piece->op;

    if (piece->pending)
        piece_is_pending(piece);
    if (rc == 0) {
        piece_is_there(piece);
        background_missed(s->file, op->version, piece->first_block, piece->n_blocks,
                          &s->held, s->in_flight);
        s->file->cli->stats.blocks_written += piece->n_blocks;
    }
    if (rc != 0 && op->rc == 0)
        op->rc = rc;
    piece_free(piece);
    op->n_ended++;
    write_step(op);
}

static const struct fanout_ops write_spread_ops = {
    .fill = write_fill,
    .acked = write_acked,
    .ended = on_piece_spread,
    .reports = true,
};

static int piece_start(struct write_piece *piece)
{
    struct storcli_file *file = piece->op->op.file;

    piece->scratch_bytes = piece_lay_out(file, piece);
    piece->scratch = bufpool_get(&file->cli->scratch, piece->scratch_bytes);
    if (piece->scratch == NULL)
        return -ENOMEM;
    piece_encode(file, piece);
    for (unsigned i = 0; i < file->n; i++)
        piece_gather(file, piece, i);
    return fanout_start(&piece->fanout, &piece->op->op, &write_spread_ops,
                        piece->op->sync);
}

/* Codes and sends the next piece; the one after it in the next turn, so that this one is
 * on its way meanwhile. */
static void write_start_next(struct blk_write_op *op)
{
    struct write_piece *piece = &op->pieces[op->n_started];
    uint64_t n_gone = 0;
    int rc;

    if (op->n_started > 0)
        n_gone = piece[-1].first_block + piece[-1].n_blocks - op->first_block;
    piece->op = op;
    piece->first_block = op->first_block + n_gone;
    piece->n_blocks = piece_blocks(piece->first_block, op->n_blocks - n_gone);
    piece->data = op->data + n_gone * op->op.file->target.block_bytes;
    piece->last_user_bytes = op->n_started + 1 == op->n_pieces
                                 ? op->last_user_bytes
                                 : op->op.file->target.block_bytes;
    op->n_started++;
    rc = piece_start(piece);
    if (rc != 0) {
        op->rc = rc;
        piece_free(piece);
        op->n_ended++;
    }
}

static void write_end(struct blk_write_op *op)
{
    struct storcli_file *file = op->op.file;

    commit_end(&file->commit, &op->flight, op->rc == 0, op->sync);
    if (op->pending_bytes != 0)
        background_pending(file, op->pending_bytes, op->pressure);
    blk_op_end(&op->op, op->rc);
}

static void write_step(struct blk_write_op *op)
{
    if (op->rc != 0) { /* the rest would be useless */
        for (unsigned i = 0; i < op->n_started; i++)
            piece_free(&op->pieces[i]);
        op->n_ended = op->n_pieces;
    }
    if (op->n_ended == op->n_pieces && !op->op.task.queued)
        write_end(op);
}

static void write_run(struct blk_op *base)
{
    struct blk_write_op *op = container_of(base, struct blk_write_op, op);

    if (op->rc == 0 && op->n_started < op->n_pieces) {
        write_start_next(op);
        if (op->rc == 0 && op->n_started < op->n_pieces) {
            env_post(base->file->cli->env, &base->task);
            return;
        }
    }
    if (op->rc != 0 || op->n_ended == op->n_pieces)
        write_step(op);
}

void storcli_write(struct storcli_file *file, uint64_t version, uint64_t first_block,
                   uint32_t n_blocks, const uint8_t *data, size_t last_user_bytes,
                   bool sync, storcli_done_cb *done, void *arg)
{
    unsigned n_pieces = piece_count(first_block, n_blocks);
    struct blk_write_op *op;

    assert(n_blocks >= 1 && n_blocks <= STORCLI_RUN_MAX);
    assert(last_user_bytes >= 1 && last_user_bytes <= file->target.block_bytes);
    assert(version != 0 && first_block + n_blocks > first_block);
    file->has_stored = true;
    op = blk_op_new(file, sizeof(*op) + n_pieces * sizeof(op->pieces[0]), done, arg);
    op->version = version;
    op->first_block = first_block;
    op->n_blocks = n_blocks;
    op->data = data;
    op->last_user_bytes = (uint16_t)last_user_bytes;
    op->sync = sync;
    op->n_pieces = n_pieces;
    commit_begin(&file->commit, &op->flight, version);
    /* as much again for what the channels hold */
    engine_op_begin(&op->op, (uint64_t)n_blocks * file->target.block_bytes * 2,
                    write_run);
}
