/*
 * repair_piece.c - one piece of a repair: looks at blocks of one extent, decides them,
 * and repairs them.
 *
 * In:     repair_piece_new(); answers. Thread: that of the env.
 * Out:    the steps of repair_look.c, repair_plan.c, repair_drop.c and repair_group.c;
 *         notes for the repair's commits.
 * Keeps:  only decided versions are written; blocks that changed meanwhile are looked at
 *         again, a bounded number of times.
 *
 * HEADS -> VERIFY -> DECIDE (-> HEADS for lower versions, -> FENCE -> all again) -> DROP
 * -> UNTEAR -> one group of blocks after the other: RATE, READ, WRITE, or MARK -> END, or
 * all again if blocks changed.
 */
#include "storaged/heal/repair/repair_piece.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/wire/status.h"

enum { ROUNDS_MAX = 8, AGAIN_MS = 20 };

static void piece_go(struct repair_piece *piece, enum piece_state state)
{
    piece->state = state;
}

void piece_again(struct repair_piece *piece)
{
    piece->round.again = true;
}

void piece_busy(struct repair_piece *piece)
{
    piece->round.busy = true;
}

void piece_wait(struct repair_piece *piece, uint32_t ms)
{
    assert(!env_timer_is_running(&piece->timer));
    env_timer_start(piece->repair->file.env, &piece->timer, ms);
}

/* ---- requests of a piece ---- */

struct piece_ask *piece_ask_for(struct repair_piece *piece, unsigned projection)
{
    struct piece_ask *pa = &piece->asks[projection];

    assert(projection < DIST_MAX && !pa->ask.sent);
    pa->piece = piece;
    pa->projection = (uint8_t)projection;
    pa->ask.place = NULL;
    pa->ask.recv_head = NULL;
    pa->ask.recv_head_len = 0;
    return pa;
}

bool piece_send(struct repair_piece *piece, struct piece_ask *pa, unsigned candidate,
                uint16_t op, const ProtobufCMessage *msg, unsigned n_iov,
                repair_ask_done_cb *done)
{
    const struct iovec *iov = n_iov == 0 ? NULL : &piece->group.iov[pa->projection];

    assert(pa->piece == piece && n_iov <= 1);
    if (repair_ask_send(&pa->ask, &piece->repair->file, candidate, op, msg, iov, n_iov,
                        done) != 0)
        return false;
    piece->n_asks++;
    return true;
}

struct repair_piece *piece_answered(struct repair_ask *ask)
{
    struct repair_piece *piece = container_of(ask, struct piece_ask, ask)->piece;

    assert(piece->n_asks > 0);
    piece->n_asks--;
    return piece;
}

void piece_refused(struct repair_piece *piece, const struct repair_ask *ask, int rc,
                   const char *what)
{
    repair_problem(piece->repair, "%s at storage %u: %s", what,
                   piece->repair->file.target.storages[ask->candidate],
                   rc != 0 ? "no answer" : status_name(ask->rq.status));
}

/* ---- the end of a round ---- */

static bool is_rolled_forward(const struct repair_piece *piece, unsigned b)
{
    const struct decision *d = &piece->plan.decided[b];

    assert(b < piece->n);
    return d->what == DECIDE_FORWARD && d->version != 0 && !piece->plan.skip[b];
}

static void note_commits(struct repair_piece *piece)
{
    const struct piece_plan *plan = &piece->plan;
    bool all = (piece->repair->request.flags & (REPAIR_FENCE | REPAIR_PROVE)) != 0 &&
               !piece_is_of_tail(piece);

    for (unsigned b = 0; b < piece->n; b++) {
        if (is_rolled_forward(piece, b) && (all || plan->pending[b]))
            repair_note_commit(piece->repair,
                               piece_is_of_tail(piece) ? piece->stretch.tail_from
                                                       : piece->first + b,
                               piece_blocks(piece, 1), plan->decided[b].version,
                               plan->holders[b], plan->projections[b]);
    }
}

/* Returns whether all homes have the decided version and no candidate a newer one. */
static bool is_whole(const struct repair_piece *piece, unsigned b)
{
    const struct piece_plan *plan = &piece->plan;
    const struct heal_file *file = &piece->repair->file;
    const struct decision *d = &plan->decided[b];

    if (!is_rolled_forward(piece, b) || !d->newest || d->user_bytes == 0)
        return false;
    for (unsigned p = 0; p < file->n; p++) {
        unsigned home = file->home[p];

        if (home >= file->c || (plan->holders[b] >> home & 1) == 0 ||
            ((piece->heads.answered | piece->heads.none) >> home & 1) == 0)
            return false;
    }
    return (d->lack & (plan->lack[b] | ~piece->repair->scope)) == 0;
}

/* Ends a piece for which some journal had no room. Blocks still lacking records are
 * repaired and counted later, when the walk comes back. */
static void finish_busy(struct repair_piece *piece)
{
    assert(piece->state == PIECE_END);
    piece_plan_uncount(piece);
    note_commits(piece);
    repair_again(piece->repair,
                 piece_is_of_tail(piece) ? piece->stretch.tail_from : piece->first);
}

static void torn_note(const struct repair_piece *piece, unsigned b)
{
    struct repair_result *r = &piece->repair->result;
    uint64_t first = piece->first + b, n = piece_blocks(piece, 1);
    uint64_t end = n == 0 ? UINT64_MAX : first + n;

    if (r->n_torn == 0 || first < r->torn_first)
        r->torn_first = first;
    if (r->n_torn == 0 || end > r->torn_end)
        r->torn_end = end;
    r->n_torn++;
}

static void piece_finish(struct repair_piece *piece)
{
    const struct piece_plan *plan = &piece->plan;
    struct repair_result *r = &piece->repair->result;

    assert(piece->state == PIECE_END);
    note_commits(piece);
    findings_take(&piece->repair->findings, &piece->heads);
    for (unsigned b = 0; b < piece->n; b++) {
        const struct decision *d = &plan->decided[b];

        r->has_content |= d->what == DECIDE_FORWARD && d->version != 0;
        r->failed += (unsigned)__builtin_popcount(plan->lack[b]);
        if (plan->lack[b] != 0)
            r->rc = -EIO;
        if (d->what == DECIDE_UNDECIDED && !piece_is_of_tail(piece)) {
            r->undecided++;
            repair_problem(piece->repair, "block %llu is undecided",
                           (unsigned long long)(piece->first + b));
        }
        if (d->what == DECIDE_FORWARD && d->torn != 0 && !d->newest && d->drop == 0 &&
            !piece_is_of_tail(piece))
            torn_note(piece, b);
        if ((piece->repair->request.flags & REPAIR_CLEAN_SPARES) != 0 &&
            piece_is_of_extent(piece) && is_whole(piece, b))
            spares_note(piece, b);
    }
}

static bool goes_round(struct repair_piece *piece)
{
    bool found = piece->look.n_bad > piece->round.n_bad_before;

    assert(piece->n_asks == 0);
    if (!piece->round.again || (piece->round.n_rounds >= ROUNDS_MAX && !found))
        return false;
    note_commits(piece); /* commits what was done in this round */
    piece->round.n_bad_before = piece->look.n_bad;
    piece->round.n_rounds++;
    piece->round.again = piece->round.busy = false;
    piece_go(piece, PIECE_BEGIN);
    piece_wait(piece, AGAIN_MS);
    return true;
}

/* ---- the machine ---- */

/* Returns true if our own storage did not answer: the piece alone is tried again, all
 * others go on. */
static bool own_is_unseen(const struct repair_piece *piece)
{
    const struct repair_heads *h = &piece->heads;

    if ((piece->repair->own.bit & ~(h->answered | h->none)) != 0)
        return repair_own_refused(piece->repair);
    repair_own_told(piece->repair);
    return false;
}

static void on_piece_heads(struct repair_heads *heads)
{
    struct repair_piece *piece = container_of(heads, struct repair_piece, heads);

    assert(piece->state == PIECE_HEADS);
    if (heads->clients)
        piece->repair->repairer->clients_ns = env_now_ns(piece->repair->file.env);
    piece_ahead_got(piece, heads->with_bodies);
    piece->repair->result.read_bytes += heads->body_bytes;
    heads->body_bytes = 0;
    if (piece->repair->file.moved != 0) { /* the repair ends, and frees this piece */
        repair_step_soon(piece->repair);
        return;
    }
    if (own_is_unseen(piece)) {
        piece_go(piece, PIECE_BEGIN);
        piece_wait(piece, REPAIR_AGAIN_MS);
        return;
    }
    piece_apply_bad(piece);
    piece_go(piece, piece->look.verified ? PIECE_DECIDE : PIECE_VERIFY);
    piece_step(piece);
}

static bool piece_begin(struct repair_piece *piece)
{
    struct repair *repair = piece->repair;

    assert(piece->state == PIECE_BEGIN && piece->n_asks == 0);
    piece->fence = fence_view(&repair->fence);
    piece_plan_begin(piece);
    piece_drop_begin(piece);
    piece_go(piece, PIECE_HEADS);
    piece_ahead_free(piece);
    piece_ahead_start(piece);
    if (repair_heads_start(&piece->heads, &repair->file, piece->first, piece->n,
                           piece->ahead.read, on_piece_heads) == 0)
        return true;
    repair_problem(repair, "out of memory");
    repair->result.rc = -ENOMEM;
    return false;
}

/* Returns the milliseconds to wait before this many rows of n blocks may be read or
 * written. */
static uint32_t rows_wait(const struct repair_piece *piece, int rows, unsigned n)
{
    const struct repairer_config *config = &piece->repair->repairer->config;

    if (config->take == NULL)
        return 0;
    return config->take(config->arg, (uint64_t)rows * n * piece->repair->file.row_bytes);
}

/* Reads our own records whole after the first look, where the request wants it. */
static void piece_verify(struct repair_piece *piece)
{
    assert(piece->state == PIECE_VERIFY);
    if (piece_verify_next(piece)) {
        uint32_t wait_ms = rows_wait(piece, 1, piece->look.n);

        piece_go(piece, PIECE_VERIFY_READ);
        if (wait_ms > 0)
            piece_wait(piece, wait_ms);
        return;
    }
    piece_apply_bad(piece);
    piece_go(piece, PIECE_DECIDE);
}

/* Decides the piece. Returns true if it has to wait. In a stretch nothing is rolled back
 * unless a walk that began under this fence found it without heads: an acknowledged write
 * that came before the fence may lie in the stretch without showing in its first
 * block. */
static bool piece_decide(struct repair_piece *piece)
{
    uint32_t epoch;

    assert(piece->state == PIECE_DECIDE);
    if (piece_decide_all(piece)) {
        piece_go(piece, PIECE_HEADS);
        return true;
    }
    piece_plan(piece);
    if (!piece_is_of_tail(piece) && piece_wants_fence(piece, &epoch)) {
        piece->round.n_fences++;
        piece_go(piece, PIECE_FENCE);
        if (!repair_want_fence(piece->repair, epoch))
            return true;
        piece_go(piece, PIECE_BEGIN);
        return false;
    }
    if (!piece_is_of_extent(piece) && !piece_is_of_tail(piece) &&
        piece->plan.decided[0].drop != 0 && piece->fence.epoch > piece->stretch.epoch) {
        piece_skip(piece, 0, 1);
        piece_busy(piece);
        piece_go(piece, PIECE_END);
        return false;
    }
    piece_go(piece, PIECE_DROP);
    return false;
}

static void piece_rate(struct repair_piece *piece)
{
    const struct piece_group *g = &piece->group;
    int rows = __builtin_popcount(g->sources) + __builtin_popcount(g->lack);
    uint32_t wait_ms = rows_wait(piece, rows, g->n);

    assert(piece->group.n > 0 && piece->group.sources != 0);
    piece_go(piece, PIECE_RATE);
    if (wait_ms > 0)
        piece_wait(piece, wait_ms);
}

static void piece_group(struct repair_piece *piece)
{
    assert(piece->state == PIECE_GROUP);
    if (!piece_group_next(piece)) {
        if (!goes_round(piece))
            piece_go(piece, PIECE_END);
        return;
    }
    if (piece->group.n == 0)
        return; /* selects the next group */
    if (piece->plan.decided[piece->group.at].user_bytes != 0) {
        piece_rate(piece);
        return;
    }
    piece_go(piece, PIECE_MARK);
    piece_group_mark(piece);
}

void piece_step(struct repair_piece *piece)
{
    for (;;) {
        if (piece->n_asks > 0 || env_timer_is_running(&piece->timer))
            return;
        switch (piece->state) {
        case PIECE_BEGIN:
            if (piece_begin(piece))
                return;
            piece_go(piece, PIECE_END);
            break;
        case PIECE_HEADS:
        case PIECE_FENCE:
            return;
        case PIECE_VERIFY:
            piece_verify(piece);
            break;
        case PIECE_VERIFY_READ:
            piece_go(piece, PIECE_VERIFY);
            piece_verify_send(piece);
            break;
        case PIECE_DECIDE:
            if (piece_decide(piece))
                return;
            break;
        case PIECE_DROP:
            if (!piece_drop_next(piece))
                piece_go(piece, PIECE_UNTEAR);
            break;
        case PIECE_UNTEAR:
            if (!piece_untorn_next(piece))
                piece_go(piece, PIECE_GROUP);
            break;
        case PIECE_GROUP:
            piece_group(piece);
            break;
        case PIECE_RATE:
            piece_go(piece, PIECE_READ);
            piece_group_read(piece);
            break;
        case PIECE_READ:
            if (piece->group.answered == piece->group.sources) {
                piece_go(piece, PIECE_WRITE);
                piece_group_write(piece);
            } else {
                piece_group_again(piece);
                piece_go(piece, PIECE_GROUP);
            }
            break;
        case PIECE_WRITE:
        case PIECE_MARK:
            piece_group_end(piece);
            piece_go(piece, PIECE_GROUP);
            break;
        case PIECE_END:
            if (piece->round.busy)
                finish_busy(piece);
            else if (piece->heads.answers != NULL)
                piece_finish(piece);
            repair_piece_ended(piece);
            return;
        }
    }
}

static void on_piece_timer(struct env_timer *timer)
{
    piece_step(container_of(timer, struct repair_piece, timer));
}

void repair_piece_wake(struct repair_piece *piece)
{
    if (piece->state != PIECE_FENCE)
        return;
    piece_go(piece, PIECE_BEGIN);
    piece_step(piece);
}

uint64_t repair_piece_memory(const struct repair *repair)
{
    const struct heal_file *file = &repair->file;
    uint64_t rows = file->k + (unsigned)__builtin_popcount(repair->scope);

    return EXTENT_BLOCKS * (rows * (file->row_bytes + RECORD_HEADER_BYTES) +
                            DECIDE_ANSWERS_MAX * sizeof(struct decide_answer)) +
           sizeof(struct repair_piece);
}

struct repair_piece *repair_piece_new(struct repair *repair, enum piece_kind kind,
                                      uint64_t first, unsigned n)
{
    struct repair_piece *piece = calloc(1, sizeof(*piece));

    if (piece == NULL)
        return NULL;
    assert(n >= 1 && n <= EXTENT_BLOCKS);
    assert(first % EXTENT_BLOCKS + n <= EXTENT_BLOCKS);
    assert(kind == PIECE_OF_EXTENT || n == 1);
    piece->repair = repair;
    piece->kind = kind;
    piece->first = first;
    piece->n = n;
    piece->memory = repair_piece_memory(repair);
    repair->repairer->memory_used += piece->memory;
    env_timer_init(&piece->timer, on_piece_timer);
    env_timer_start(repair->file.env, &piece->timer, 0);
    return piece;
}

void repair_piece_free(struct repair_piece *piece)
{
    struct repair *repair = piece->repair;

    assert(repair->repairer->memory_used >= piece->memory);
    for (unsigned i = 0; i < DIST_MAX; i++)
        repair_ask_cancel(&piece->asks[i].ask);
    env_timer_stop(repair->file.env, &piece->timer);
    repair_heads_close(&piece->heads);
    piece_ahead_free(piece);
    piece_group_free(piece);
    repair->repairer->memory_used -= piece->memory;
    free(piece);
}
