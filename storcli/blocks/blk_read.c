/*
 * blk_read.c - reads blocks: asks the k best storages, believes only what k projections
 * agree on.
 *
 * In:     storcli_read(), engine_read(). Answers, and the tick. Thread: the env's.
 * Out:    ST_READ, ST_CHECK; the caller's memory.
 * Keeps:  see read_decide.c.
 * Yours:  how long unclear blocks are waited for.
 * Ask:    blk_read.h for the life of a piece.
 */
#include "storcli/blocks/blk_read.h"

#include <assert.h>
#include <errno.h>

#include "common/base/err.h"

enum {
    BACKOFF_MIN_MS = 20,
    BACKOFF_MAX_MS = 5000,
    UNCLEAR_MS = 3000, /* ms of full rounds, block still unclear: damaged */
    UNCLEAR_ROUNDS = 5,
    STARVED_MS = 3000, /* longer than rpc pauses between two attempts to connect */
};

static void piece_end(struct read_piece *piece, int rc);

static void piece_stop_asking(struct read_piece *piece)
{
    for (struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->state == ASK_SENT) {
            rpc_cancel(&ask->rq);
            ask->state = ASK_FAILED;
        }
    }
}

/* ---- rounds ---- */

static uint32_t candidates_up(const struct read_piece *piece)
{
    uint32_t up = 0;

    for (unsigned i = 0; i < piece->op->op.file->c; i++) {
        if (engine_is_up(piece->op->op.file, i))
            up |= 1u << i;
    }
    return up;
}

/* Asks all reachable candidates, the k best first. */
static void ask_all(struct read_piece *piece)
{
    int candidate;

    while ((candidate = read_pick_candidate(piece, PEER_SLOW)) >= 0) {
        if (!read_ask_candidate(piece, (unsigned)candidate, piece->at, piece->n))
            return;
    }
}

static bool all_are_heard(const struct read_piece *piece)
{
    return (unsigned)__builtin_popcount(piece->heard) == piece->op->op.file->c;
}

/* Counts the round. A storage that is unreachable or only starts (BUSY) has not answered:
 * once all have, waiting starts as if the read had just begun. */
static void round_count(struct read_piece *piece)
{
    piece->n_rounds++;
    if (!all_are_heard(piece)) {
        piece->n_full = 0;
    } else if (piece->n_full++ == 0) {
        piece->full_ns = engine_now_ns(piece->op->op.file->cli);
        piece->backoff_ms = 0;
    }
}

/* Finishes clear blocks, drops all answers, and asks all candidates at once about the
 * rest. */
static void round_begin(struct read_piece *piece)
{
    unsigned end = piece->at + piece->n;

    piece_stop_asking(piece);
    read_assemble(piece);
    read_forget_asks(piece);
    while (piece->at < end && piece->blocks[piece->at].done)
        piece->at++;
    while (end > piece->at && piece->blocks[end - 1].done)
        end--;
    piece->n = end - piece->at;
    round_count(piece);
    piece->again_ns = 0;
    piece->denied = piece->none = piece->heard = 0;
    ask_all(piece);
}

/* Waits for the next round: no candidate is left to ask and some blocks are unclear. */
static void round_wait(struct read_piece *piece, uint64_t now_ns)
{
    if (piece->again_ns == 0) {
        piece->backoff_ms =
            piece->backoff_ms == 0 ? BACKOFF_MIN_MS : piece->backoff_ms * 2;
        if (piece->backoff_ms > BACKOFF_MAX_MS)
            piece->backoff_ms = BACKOFF_MAX_MS;
        piece->again_ns = now_ns + ms_to_ns(piece->backoff_ms);
        piece->up_before = candidates_up(piece);
    }
    if (now_ns >= piece->again_ns || (candidates_up(piece) & ~piece->up_before) != 0)
        round_begin(piece);
}

/* Returns true if waiting cannot help: all candidates answered, again and again, and it
 * is still unclear. */
static bool stays_unclear(const struct read_piece *piece, uint64_t now_ns)
{
    return piece->n_full >= UNCLEAR_ROUNDS && all_are_heard(piece) &&
           now_ns - piece->full_ns >= ms_to_ns(UNCLEAR_MS) &&
           read_n_in_state(piece, ASK_SENT, true) == 0 &&
           (unsigned)__builtin_popcount(read_asked_candidates(piece)) ==
               piece->op->op.file->c &&
           (unsigned)__builtin_popcount(candidates_up(piece)) == piece->op->op.file->c;
}

/* Returns true if all reachable storages have answered: only unreachable ones can
 * help. */
static bool only_absent_ones_can_help(const struct read_piece *piece)
{
    const struct storcli_file *file = piece->op->op.file;
    uint32_t up = candidates_up(piece);

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->state == ASK_SENT && (up >> ask->candidate & 1) != 0)
            return false;
    }
    return (unsigned)__builtin_popcount(up) < file->c;
}

/* Returns true if the read should end early. The kernel asks for the pages of one read(2)
 * several times, each without success: only the first of these waits until the deadline,
 * unless a storage comes up that was down then. */
static bool is_starved(const struct read_piece *piece, uint64_t now_ns)
{
    const struct storcli_file *file = piece->op->op.file;

    return file->starved && now_ns - piece->started_ns >= ms_to_ns(STARVED_MS) &&
           (candidates_up(piece) & ~file->starved_up) == 0 &&
           only_absent_ones_can_help(piece);
}

static void note_starved(struct read_piece *piece, uint64_t now_ns)
{
    struct storcli_file *file = piece->op->op.file;

    if (now_ns < piece->deadline_ns || !only_absent_ones_can_help(piece))
        return;
    file->starved = true;
    file->starved_up = candidates_up(piece);
}

static bool is_denied(const struct read_piece *piece)
{
    unsigned n_denied = (unsigned)__builtin_popcount(piece->denied);

    return piece->op->op.file->c - n_denied < piece->op->op.file->k;
}

void read_piece_step(struct read_piece *piece)
{
    uint64_t now_ns = engine_now_ns(piece->op->op.file->cli);

    if (piece->moved) { /* answers under two distributions are never judged together */
        piece_end(piece, -ROZO_EMOVED);
        return;
    }
    if (read_n_in_state(piece, ASK_ANSWERED, true) >= piece->op->op.file->k &&
        !(piece->op->want.holders != NULL &&
          read_ask_beside(piece, piece->at, piece->n)) &&
        read_resolve_all(piece)) {
        piece->op->op.file->starved = false;
        piece_end(piece, 0);
        return;
    }
    if (engine_is_relocating(piece->op->op.file)) {
        piece_end(piece, -ROZO_EMOVED);
        return;
    }
    if (is_denied(piece) || now_ns >= piece->deadline_ns ||
        stays_unclear(piece, now_ns) || is_starved(piece, now_ns)) {
        note_starved(piece, now_ns);
        piece_end(piece, piece->denied != 0 ? -EACCES : -EIO);
        return;
    }
    piece->watch.wake_ns = now_ns + ms_to_ns(WATCH_TICK_MS);
    read_note_slow_ones(piece, now_ns);
    read_ask_until_k(piece);
    if (read_is_awaited(piece) || read_ask_the_rest(piece))
        return; /* answers will come soon */
    if (read_n_in_state(piece, ASK_SENT, false) > 0)
        return; /* late storages may still decide it */
    if (!read_ask_below(piece))
        round_wait(piece, now_ns);
}

static void on_piece_wake(struct watch *watch)
{
    read_piece_step(container_of(watch, struct read_piece, watch));
}

static void piece_start(struct read_piece *piece)
{
    struct storcli *cli = piece->op->op.file->cli;

    piece->n = piece->n_blocks;
    piece->started_ns = engine_now_ns(cli);
    piece->deadline_ns = piece->started_ns + ms_to_ns(cli->config.read_deadline_ms);
    watch_start(cli, &piece->watch, on_piece_wake);
    piece->watch.wake_ns = piece->started_ns + ms_to_ns(WATCH_TICK_MS);
    if (piece->op->want.holders != NULL)
        ask_all(piece);
    else
        read_ask_until_k(piece);
    if (cli->n_stragglers != 0)
        straggler_probe(piece->op->op.file, piece->first_block);
}

static void piece_close(struct read_piece *piece)
{
    read_forget_asks(piece);
    watch_stop(piece->op->op.file->cli, &piece->watch);
    piece->ended = true;
}

/* Returns true if this answer of a home (or that it has no file) shows a fault of the
 * block there. */
static bool is_wrong_at_home(const struct read_piece *piece, const struct read_ask *ask,
                             unsigned block)
{
    if (piece->blocks[block].version == 0)
        return false;
    if (ask->lack != LACK_NOTHING)
        return block >= ask->at && block < ask->at + (unsigned)ask->n;
    return read_ask_covers(ask, block) &&
           (ask->judged[block - ask->at] == JUDGED_BAD ||
            read_head_version(read_ask_head(ask, block)) < piece->blocks[block].version);
}

/* Sends a hint to the first home whose answers show a fault. */
static void piece_hint(const struct read_piece *piece)
{
    struct storcli_file *file = piece->op->op.file;

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        unsigned first = 0, end = piece->n_blocks;

        if (ask->candidate >= file->n || ask->projection != ask->candidate ||
            ask->at_most != 0)
            continue;
        while (first < end && !is_wrong_at_home(piece, ask, first))
            first++;
        while (end > first && !is_wrong_at_home(piece, ask, end - 1))
            end--;
        if (first == end)
            continue;
        background_check(file, ask->candidate, piece->first_block + first, end - first);
        return;
    }
}

static void piece_end(struct read_piece *piece, int rc)
{
    struct blk_read_op *op = piece->op;

    if (rc == 0)
        read_note_times(piece, engine_now_ns(op->op.file->cli));
    piece_stop_asking(piece);
    if (rc == 0) {
        read_assemble(piece);
        /* more than the usual k were asked, and no write of ours, which looks like a
         * fault, is under way */
        if (piece->n_asks > op->op.file->k && list_is_empty(&op->op.file->commit.flights))
            piece_hint(piece);
        op->op.file->cli->stats.blocks_read += piece->n_blocks;
    }
    piece_close(piece);
    op->n_ended++;
    if (rc != 0) { /* the rest would be useless */
        for (unsigned i = 0; i < op->n_pieces; i++) {
            if (!op->pieces[i].ended)
                piece_close(&op->pieces[i]);
        }
        op->n_ended = op->n_pieces;
    }
    if (op->n_ended == op->n_pieces)
        blk_op_end(&op->op, rc);
}

static void read_run(struct blk_op *base)
{
    struct blk_read_op *op = container_of(base, struct blk_read_op, op);
    uint64_t first = op->first_block, left = op->n_blocks;

    for (unsigned i = 0; i < op->n_pieces; i++) {
        struct read_piece *piece = &op->pieces[i];

        piece->op = op;
        piece->first_block = first;
        piece->n_blocks = piece_blocks(first, left);
        first += piece->n_blocks;
        left -= piece->n_blocks;
        piece_start(piece);
    }
}

bool engine_read_abandon(struct blk_op *base)
{
    struct blk_read_op *op = container_of(base, struct blk_read_op, op);

    if (base->task.queued)
        return false;
    for (unsigned i = 0; i < op->n_pieces; i++) {
        if (op->pieces[i].op != NULL && !op->pieces[i].ended) /* a piece that has begun */
            piece_close(&op->pieces[i]);
    }
    blk_op_drop(base);
    return true;
}

static struct blk_op *read_new(struct storcli_file *file, uint64_t first_block,
                               uint32_t n_blocks, const struct read_want *want,
                               storcli_done_cb *done, void *arg)
{
    unsigned n_pieces = piece_count(first_block, n_blocks);
    struct blk_read_op *op;

    assert(n_blocks >= 1 && n_blocks <= STORCLI_RUN_MAX);
    assert(first_block + n_blocks > first_block);
    op = blk_op_new(file, sizeof(*op) + n_pieces * sizeof(op->pieces[0]), done, arg);
    op->want = *want;
    op->first_block = first_block;
    op->n_blocks = n_blocks;
    op->n_pieces = n_pieces;
    return &op->op;
}

struct blk_op *engine_read(struct storcli_file *file, uint64_t first_block,
                           uint32_t n_blocks, const struct read_want *want,
                           storcli_done_cb *done, void *arg)
{
    struct blk_op *op = read_new(file, first_block, n_blocks, want, done, arg);

    blk_op_start(op, (uint64_t)n_blocks * file->target.block_bytes, read_run);
    return op;
}

void storcli_read(struct storcli_file *file, uint64_t first_block, uint32_t n_blocks,
                  uint8_t *data, uint16_t *user_bytes, storcli_done_cb *done, void *arg)
{
    const struct read_want want = { .data = data, .user_bytes = user_bytes };

    engine_op_begin(read_new(file, first_block, n_blocks, &want, done, arg),
                    (uint64_t)n_blocks * file->target.block_bytes, read_run);
}
