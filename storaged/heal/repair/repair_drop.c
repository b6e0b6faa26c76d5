/*
 * repair_drop.c - lets storages drop versions that were rolled back, and torn records at
 * homes.
 *
 * In:     decisions of a piece. Thread: that of the env.
 * Out:    ST_DROP.
 * Keeps:  only what was decided is dropped; blocks whose drop failed are skipped in this
 *         round.
 */
#include <assert.h>
#include <errno.h>

#include "storaged/heal/repair/repair_piece.h"

void piece_drop_begin(struct repair_piece *piece)
{
    assert(piece->n_asks == 0);
    piece->drop = (struct piece_drop){ 0 };
}

static void on_dropped(struct repair_ask *ask, int rc)
{
    struct repair_piece *piece = piece_answered(ask);

    assert(piece->state == PIECE_DROP || piece->state == PIECE_UNTEAR);
    if (!repair_ask_is_ok(ask, rc)) {
        piece_refused(piece, ask, rc, "rolling back");
        piece->drop.failed = true;
    }
    piece_step(piece);
}

bool piece_drop_send(struct repair_piece *piece, struct piece_ask *pa, unsigned at,
                     unsigned n, unsigned candidate, uint64_t keep, uint32_t epoch,
                     uint32_t projections, repair_ask_done_cb *done)
{
    struct heal_file *file = &piece->repair->file;
    Rozo__StDropReq req = ROZO__ST_DROP_REQ__INIT;

    assert(n > 0 && at + n <= piece->n);
    assert(candidate < file->c);
    req.ref = &file->ref;
    req.first_block = piece->first + at;
    req.n_blocks = piece_blocks(piece, n);
    req.keep = keep;
    req.epoch = epoch;
    req.projections = projections;
    req.to_storage = file->target.storages[candidate];
    return piece_send(piece, pa, candidate, ROZO__OP__ST_DROP, &req.base, 0, done);
}

/* Ends the drop before: counts it, or skips its blocks if it failed. */
static void drop_done(struct repair_piece *piece)
{
    const struct piece_drop *d = &piece->drop;

    assert(d->n > 0 && d->at + d->n <= piece->n);
    if (d->failed) {
        piece->repair->result.rc = -EIO;
        piece_skip(piece, d->at, d->n);
    } else {
        piece->repair->result.dropped += d->n;
    }
}

static bool is_rolled_back(const struct repair_piece *piece, unsigned b)
{
    const struct decision *d = &piece->plan.decided[b];

    return d->what == DECIDE_FORWARD && d->drop != 0 && !piece_is_of_tail(piece);
}

/* Selects the next run of blocks. Returns the candidates that drop something of it. */
static uint32_t drop_select(struct repair_piece *piece)
{
    const struct decision *decided = piece->plan.decided;
    struct piece_drop *d = &piece->drop;
    uint32_t candidates = 0;
    unsigned at = d->next, to;

    while (at < piece->n && !is_rolled_back(piece, at))
        at++;
    for (to = at; to < piece->n && is_rolled_back(piece, to) &&
                  decided[to].version == decided[at].version;
         to++)
        candidates |= decided[to].drop;
    d->at = at;
    d->n = to - at;
    d->next = to;
    d->failed = false;
    assert((d->n > 0) == (candidates != 0));
    return candidates;
}

bool piece_drop_next(struct repair_piece *piece)
{
    struct piece_drop *d = &piece->drop;
    uint32_t candidates;

    if (d->n > 0)
        drop_done(piece);
    candidates = drop_select(piece);
    for (unsigned i = 0; i < piece->repair->file.c; i++) {
        if ((candidates >> i & 1) != 0 &&
            !piece_drop_send(piece, piece_ask_for(piece, i), d->at, d->n, i,
                             piece->plan.decided[d->at].version, piece->fence.epoch, 0,
                             on_dropped))
            d->failed = true;
    }
    return d->n > 0;
}

bool piece_untorn_next(struct repair_piece *piece)
{
    struct heal_file *file = &piece->repair->file;
    const struct piece_plan *plan = &piece->plan;
    struct piece_drop *drop = &piece->drop;

    assert(piece->n_asks == 0);
    if (drop->failed) /* the drop before failed */
        piece_skip(piece, drop->at, 1);
    drop->failed = false;
    for (; drop->next_torn < piece->n * file->n; drop->next_torn++) {
        unsigned b = drop->next_torn / file->n, p = drop->next_torn % file->n;
        const struct decision *d = &plan->decided[b];
        uint64_t torn = piece_torn_version(piece, b, p);

        if ((plan->lack[b] & d->damaged & 1u << p) == 0 || d->version == 0 ||
            torn <= d->version || plan->skip[b] || !piece_is_of_extent(piece))
            continue;
        drop->at = b;
        drop->failed = !piece_drop_send(piece, piece_ask_for(piece, p), b, 1,
                                        file->home[p], torn, 0, 1u << p, on_dropped);
        drop->next_torn++;
        return true;
    }
    return false;
}
