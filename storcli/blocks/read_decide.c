/*
 * read_decide.c - judges each block of a read by all answers, and decodes it into the
 * caller's memory.
 *
 * In:     blk_read.c, after answers. Thread: the env's.
 * Out:    the piece's blocks; the caller's memory.
 * Keeps:  I2: a block is returned at the newest version that may have been acknowledged,
 *         or not at all. Nothing is decoded into the caller's memory while an answer may
 *         still write there.
 * Ask:    resolve.h for the rules.
 */
#include <assert.h>
#include <string.h>

#include "storcli/blocks/blk_read.h"
#include "storcli/rules/encode.h"
#include "storcli/rules/resolve.h"

static void block_is(struct read_piece *piece, unsigned block, uint64_t version,
                     uint16_t user_bytes)
{
    piece->blocks[block].version = version;
    piece->blocks[block].user_bytes = user_bytes;
    piece->blocks[block].clear = true;
    piece->blocks[block].below = 0;
}

/* Handles the usual case cheaply: exactly k whole answers of distinct projections and
 * nothing else, with equal heads for every block. */
static bool resolve_healthy(struct read_piece *piece)
{
    const struct read_ask *asks[CODEC_K_MAX];
    unsigned n = 0, k = piece->op->op.file->k;
    uint32_t projections = 0;

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->state != ASK_ANSWERED)
            continue;
        if (n == k || !ask->whole || ask->at_most != 0 || ask->doubt ||
            ask->present != 1u << ask->projection)
            return false;
        asks[n++] = ask;
        projections |= 1u << ask->projection;
    }
    if (n != k || (unsigned)__builtin_popcount(projections) != k)
        return false;
    for (unsigned b = 0; b < piece->n_blocks; b++) {
        const uint8_t *head = read_ask_head(asks[0], b);

        for (unsigned i = 1; i < k; i++) {
            const uint8_t *other = read_ask_head(asks[i], b);

            if (read_head_version(head) != read_head_version(other) ||
                read_head_user_bytes(head) != read_head_user_bytes(other))
                return false;
        }
        block_is(piece, b, read_head_version(head), read_head_user_bytes(head));
    }
    return true;
}

/* Returns true once a doubtful result is sure. It rests on a version below something
 * newer; if that had been committed before the storages were asked, they would have
 * dropped this version and answered an older one. So all are asked again: if the newer
 * one still cannot have been acknowledged, it was not committed. */
static bool doubt_is_over(struct read_piece *piece, unsigned block, uint64_t version,
                          const struct resolve_answer *answers, unsigned n)
{
    struct blk_read_block *rb = &piece->blocks[block];
    uint64_t newest = 0;

    for (unsigned i = 0; i < n; i++)
        newest = answers[i].version > newest ? answers[i].version : newest;
    if (rb->doubt_round != 0 && rb->doubt_version == version &&
        rb->doubt_newest == newest)
        return rb->doubt_round <= piece->n_rounds;
    rb->doubt_round = piece->n_rounds + 1;
    rb->doubt_version = version;
    rb->doubt_newest = newest;
    return false;
}

/* Returns true if a result that passes over something newer must wait for requests under
 * way. A storage that lost a version with its power, after another client's fsync, shows
 * it as never written; with one such answer the rules alone could overlook what k others
 * still have. Needed, too, if all holders are wanted. */
static bool waits_for_others(const struct read_piece *piece, uint64_t version,
                             const struct resolve_answer *answers, unsigned n)
{
    bool is_newest = piece->op->want.holders == NULL;

    for (unsigned i = 0; i < n; i++)
        is_newest = is_newest && answers[i].version <= version;
    return !is_newest && read_n_in_state(piece, ASK_SENT, false) > 0;
}

/* Judges one block by all answers. */
static void resolve_one(struct read_piece *piece, unsigned block)
{
    const struct storcli_file *file = piece->op->op.file;
    struct resolve_answer answers[RESOLVE_ANSWERS_MAX];
    enum resolve_result result;
    uint32_t present[DIST_MAX] = { 0 }, heard[DIST_MAX] = { 0 };
    uint32_t all = file->c == 32 ? UINT32_MAX : (1u << file->c) - 1;
    uint32_t answered = piece->none, doubt = 0;
    unsigned n = 0;
    uint64_t version;
    uint16_t user_bytes;
    bool below = false, doubtful;

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (!read_ask_covers(ask, block))
            continue;
        present[ask->candidate] |= ask->present;
        doubt |= (uint32_t)ask->doubt << ask->candidate;
        if (ask->judged[block - ask->at] == JUDGED_BAD || n == RESOLVE_ANSWERS_MAX ||
            (ask->at_most == 0 && (heard[ask->candidate] >> ask->projection & 1) != 0))
            continue;
        if (ask->at_most == 0)
            heard[ask->candidate] |= 1u << ask->projection;
        answers[n++] = (struct resolve_answer){
            .version = read_head_version(read_ask_head(ask, block)),
            .user_bytes = read_head_user_bytes(read_ask_head(ask, block)),
            .storage = ask->candidate,
            .projection = ask->projection,
            .below = ask->at_most != 0,
        };
    }
    for (unsigned i = 0; i < file->c; i++) {
        if (present[i] != 0)
            answered = (present[i] & ~heard[i]) == 0 ? answered | 1u << i
                                                     : answered & ~(1u << i);
    }
    piece->blocks[block].below = 0;
    /* no storage with doubt set has said anything about versions newer than those it
     * shows */
    result = resolve_block(file->k, file->q_read, all, answered & ~doubt, answers, n,
                           &version, &user_bytes, &doubtful);
    if (result == RESOLVE_BELOW)
        piece->blocks[block].below = version;
    if (result == RESOLVE_UNCLEAR || result == RESOLVE_BELOW ||
        (doubtful && !doubt_is_over(piece, block, version, answers, n)) ||
        waits_for_others(piece, version, answers, n))
        return;
    for (unsigned i = 0; i < n; i++) {
        if (answers[i].version < version && !answers[i].below)
            file->cli->stats.stale++;
        if (answers[i].version == version && answers[i].below)
            below = true;
    }
    file->cli->stats.below += below;
    block_is(piece, block, version, user_bytes);
}

bool read_resolve_all(struct read_piece *piece)
{
    bool all = true;

    if (piece->n_rounds == 0 && piece->op->want.holders == NULL && resolve_healthy(piece))
        return true;
    for (unsigned b = piece->at; b < piece->at + piece->n; b++) {
        if (!piece->blocks[b].clear)
            resolve_one(piece, b);
        all = all && piece->blocks[b].clear;
    }
    return all;
}

/* ---- giving it to the caller ---- */

static struct holders block_holders(const struct read_piece *piece, unsigned block)
{
    const struct storcli_file *file = piece->op->op.file;
    const struct blk_read_block *rb = &piece->blocks[block];
    uint32_t has[DIST_MAX] = { 0 };

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (!read_ask_covers(ask, block) || ask->judged[block - ask->at] == JUDGED_BAD ||
            read_head_version(read_ask_head(ask, block)) != rb->version ||
            read_head_user_bytes(read_ask_head(ask, block)) != rb->user_bytes)
            continue;
        has[ask->candidate] |= rb->user_bytes == 0
                                   ? holders_hole_projections(ask->candidate, file->n)
                                   : 1u << ask->projection;
    }
    return holders_of(has, rb->user_bytes == 0 ? UINT32_MAX : 0);
}

static uint32_t block_sources(const struct read_piece *piece, unsigned block,
                              const struct read_ask *source[CODEC_N_MAX])
{
    const struct blk_read_block *rb = &piece->blocks[block];
    uint32_t have = 0;

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (!read_ask_covers(ask, block) || ask->judged[block - ask->at] != JUDGED_DATA)
            continue;
        if (read_head_version(read_ask_head(ask, block)) != rb->version ||
            read_head_user_bytes(read_ask_head(ask, block)) != rb->user_bytes)
            continue;
        if ((have >> ask->projection & 1) != 0 && !ask->in_place)
            continue; /* the one in place is better */
        have |= 1u << ask->projection;
        source[ask->projection] = ask;
    }
    return have;
}

static bool block_is_to_decode(const struct read_piece *piece, unsigned block)
{
    const struct blk_read_block *rb = &piece->blocks[block];

    return rb->clear && !rb->done && rb->user_bytes != 0;
}

/* Returns true if this block continues the run: same answers, and rows of equal
 * length. */
static bool block_joins_run(const struct read_piece *piece, unsigned block,
                            unsigned first, uint32_t have,
                            const struct read_ask *const source[CODEC_N_MAX])
{
    const struct read_ask *other[CODEC_N_MAX] = { NULL };

    return block < piece->at + piece->n && block_is_to_decode(piece, block) &&
           piece->blocks[block].user_bytes == piece->blocks[first].user_bytes &&
           block_sources(piece, block, other) == have &&
           memcmp(source, other, sizeof(other)) == 0;
}

/* Decodes a run of blocks by one plan; returns its length. In a healthy run all rows are
 * in place, and nothing is copied. */
static unsigned run_decode(struct read_piece *piece, unsigned first)
{
    struct storcli_file *file = piece->op->op.file;
    const struct read_ask *source[CODEC_N_MAX] = { NULL };
    const uint8_t *body[CODEC_N_MAX] = { NULL }, *overhang[CODEC_N_MAX] = { NULL };
    uint32_t have = block_sources(piece, first, source), rows = (1u << file->k) - 1;
    struct codec_run run = {
        .n_blocks = 1,
        .row_bytes = codec_row_bytes(file->codec, piece->blocks[first].user_bytes),
        .data_stride = file->target.block_bytes,
        .body_stride = file->row_bytes,
    };
    struct codec_plan plan;
    int rc;

    for (unsigned i = 0; i < file->n; i++) {
        if ((have >> i & 1) == 0)
            continue;
        body[i] = read_ask_body(source[i], first - source[i]->at, run.row_bytes);
        overhang[i] = read_ask_head(source[i], first) + RECORD_HEADER_BYTES;
        run.overhang_stride[i] = source[i]->head_bytes;
    }
    while (block_joins_run(piece, first + (unsigned)run.n_blocks, first, have, source))
        run.n_blocks++;
    rc = codec_plan(file->codec, have, 0, &plan);
    assert(rc == 0); /* resolve_block() counted k of them */
    codec_decode_run(&plan, &run, body, overhang, read_block_data(piece, first));
    if (!codec_is_systematic(file->codec) || (have & rows) != rows)
        file->cli->stats.blocks_decoded += run.n_blocks;
    return (unsigned)run.n_blocks;
}

static void piece_decode(struct read_piece *piece)
{
    for (unsigned b = piece->at; b < piece->at + piece->n;)
        b += block_is_to_decode(piece, b) ? run_decode(piece, b) : 1;
}

void read_assemble(struct read_piece *piece)
{
    const struct read_want *want = &piece->op->want;
    size_t block_bytes = piece->op->op.file->target.block_bytes;
    uint64_t index = piece->first_block - piece->op->first_block;

    if (want->data != NULL)
        piece_decode(piece);
    for (unsigned b = piece->at; b < piece->at + piece->n; b++) {
        struct blk_read_block *rb = &piece->blocks[b];

        if (!rb->clear || rb->done)
            continue;
        if (want->data != NULL && rb->user_bytes < block_bytes)
            memset(read_block_data(piece, b) + rb->user_bytes, 0,
                   block_bytes - rb->user_bytes);
        if (want->user_bytes != NULL)
            want->user_bytes[index + b] = rb->user_bytes;
        if (want->versions != NULL)
            want->versions[index + b] = rb->version;
        if (want->holders != NULL)
            want->holders[index + b] = block_holders(piece, b);
        rb->done = true;
    }
}
