/*
 * repair_drop.c - lets storages drop versions that were rolled back, and torn records at
 * homes.
 *
 * In:     decisions of a piece. Thread: that of the env.
 * Out:    ST_DROP.
 * Keeps:  only what was decided is dropped; blocks whose drop failed are skipped in this
 *         round.
 */
#include <errno.h>

#include "storaged/heal/repair/repair_piece.h"

static void on_dropped(struct repair_ask *ask, int rc)
{
    struct piece_ask *pa = container_of(ask, struct piece_ask, ask);
    struct repair_piece *piece = pa->piece;

    piece->n_asks--;
    if (!repair_ask_is_ok(ask, rc)) {
        piece_refused(piece, ask, rc, "rolling back");
        piece->group.damaged = true;
    }
    piece_step(piece);
}

bool piece_drop_send(struct repair_piece *piece, struct piece_ask *pa, unsigned candidate,
                     uint64_t keep, uint32_t epoch, uint32_t projections,
                     repair_ask_done_cb *done)
{
    struct heal_file *file = &piece->repair->file;
    Rozo__StDropReq req = ROZO__ST_DROP_REQ__INIT;

    req.ref = &file->ref;
    req.first_block = piece->first + piece->group.at;
    req.n_blocks = piece_blocks(piece, piece->group.n);
    req.keep = keep;
    req.epoch = epoch;
    req.projections = projections;
    req.to_storage = file->target.storages[candidate];
    return piece_send(piece, pa, candidate, ROZO__OP__ST_DROP, &req.base, 0, done);
}

/* Ends the drop before: counts it, or skips its blocks if it failed. */
static void drop_done(struct repair_piece *piece)
{
    const struct piece_group *g = &piece->group;

    if (g->damaged) {
        piece->repair->result.rc = -EIO;
        for (unsigned b = g->at; b < g->at + g->n; b++)
            piece->skip[b] = true;
    } else {
        piece->repair->result.dropped += g->n;
    }
}

bool piece_drop_next(struct repair_piece *piece)
{
    struct piece_group *g = &piece->group;
    uint32_t candidates = 0;
    uint64_t keep = 0;

    if (g->n > 0)
        drop_done(piece);
    *g = (struct piece_group){ .at = piece->drop_at };
    for (; g->at + g->n < piece->n; g->n++) {
        const struct decision *d = &piece->decided[g->at + g->n];
        bool drops = d->what == DECIDE_FORWARD && d->drop != 0 && !piece->tail;

        if (!drops && g->n == 0) {
            g->at++;
            g->n--; /* the loop increments it */
            continue;
        }
        if (!drops || (g->n > 0 && d->version != keep))
            break;
        keep = d->version;
        candidates |= d->drop;
    }
    piece->drop_at = g->at + g->n;
    for (unsigned i = 0; i < piece->repair->file.c; i++) {
        if ((candidates >> i & 1) != 0 &&
            !piece_drop_send(piece, piece_ask_for(piece, i), i, keep, piece->fence.epoch,
                             0, on_dropped))
            g->damaged = true;
    }
    return g->n > 0;
}

/* Lets a home drop its next torn record. A home accepts nothing older than the version it
 * believes to have, and does not see that this record is torn. One record at a time,
 * since they are few. Returns false when none is left. */
bool piece_untorn_next(struct repair_piece *piece)
{
    struct heal_file *file = &piece->repair->file;
    struct piece_group *g = &piece->group;

    if (g->damaged) /* the drop before failed */
        piece->skip[g->at] = true;
    for (; piece->untorn_at < piece->n * file->n; piece->untorn_at++) {
        unsigned b = piece->untorn_at / file->n, p = piece->untorn_at % file->n;
        const struct decision *d = &piece->decided[b];
        uint64_t torn = piece_torn_version(piece, b, p);

        if ((piece->lack[b] & d->damaged & 1u << p) == 0 || d->version == 0 ||
            torn <= d->version || piece->skip[b] || piece->flat)
            continue;
        *g = (struct piece_group){ .at = b, .n = 1 };
        g->damaged = !piece_drop_send(piece, piece_ask_for(piece, p), file->home[p], torn,
                                      0, 1u << p, on_dropped);
        piece->untorn_at++;
        return true;
    }
    *g = (struct piece_group){ 0 };
    return false;
}
