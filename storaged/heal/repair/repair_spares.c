/*
 * repair_spares.c - finds the copies of records that spares may drop.
 *
 * In:     answers about a block; what a piece has read or written whole. Thread: that of
 *         the env.
 * Out:    notes of copies, for the repair's batch.
 * Keeps:  a drop never leaves fewer storages with a projection of their own than before,
 *         whichever heads at homes have lost their bodies.
 */
#include "storaged/heal/repair/repair_spares.h"

#include <assert.h>

#include "storaged/heal/repair/repair_piece.h"

bool spares_is_copy(const struct repair_piece *piece, const struct decide_answer *a,
                    uint64_t version)
{
    const struct heal_file *file = &piece->repair->file;

    return a->level == 0 && a->kind != DECIDE_HOLE && a->projection < file->n &&
           a->version <= version && file->home[a->projection] != a->candidate;
}

/* Returns the projections that the home of p holds for other homes, at this version. */
static uint32_t stood_in(struct repair_piece *piece, unsigned b, unsigned p,
                         uint64_t version)
{
    uint32_t projections = 0;
    unsigned n;
    const struct decide_answer *a = piece_answers(piece, b, &n);

    for (unsigned i = 0; i < n; i++) {
        if (a[i].candidate == piece->repair->file.home[p] && a[i].kind == DECIDE_DATA &&
            a[i].version == version && spares_is_copy(piece, &a[i], version))
            projections |= 1u << a[i].projection;
    }
    return projections;
}

static uint32_t stood_in_by_all(struct repair_piece *piece, unsigned b,
                                uint32_t projections, uint64_t version)
{
    uint32_t others = 0;

    for (unsigned p = 0; p < piece->repair->file.n; p++) {
        if ((projections >> p & 1) != 0)
            others |= stood_in(piece, b, p, version);
    }
    return others;
}

uint32_t spares_circle(struct repair_piece *piece, unsigned b, unsigned p,
                       uint64_t version)
{
    uint32_t reached = stood_in(piece, b, p, version), before;

    assert(p < piece->repair->file.n);
    do {
        before = reached;
        reached |= stood_in_by_all(piece, b, reached, version);
    } while (reached != before);
    return (reached >> p & 1) != 0 ? reached & ~(1u << p) : 0;
}

/* Returns the projections whose copies may be dropped. Their homes must be seen to have
 * them whole, since a power failure may keep a head and take its body. A storage counts
 * for one projection: a home that holds the copy of another one may count for that, and a
 * copy of its own projection for it, unless the other home is seen to have its own. */
static uint32_t may_go(struct repair_piece *piece, unsigned b)
{
    uint64_t version = piece->plan.decided[b].version;
    uint32_t may = piece_sound(piece, b), before;

    do {
        before = may;
        for (unsigned p = 0; p < piece->repair->file.n; p++) {
            if ((may >> p & 1) != 0 && (stood_in(piece, b, p, version) & ~may) != 0)
                may &= ~(1u << p);
        }
    } while (may != before);
    return may;
}

void spares_note(struct repair_piece *piece, unsigned b)
{
    const struct piece_plan *plan = &piece->plan;
    struct repair *repair = piece->repair;
    uint32_t may = may_go(piece, b);
    uint32_t spare[DIST_MAX] = { 0 };
    unsigned n;
    const struct decide_answer *a = piece_answers(piece, b, &n);

    for (unsigned i = 0; i < n; i++) {
        if (spares_is_copy(piece, &a[i], plan->decided[b].version))
            spare[a[i].candidate] |= may & 1u << a[i].projection;
    }
    for (unsigned i = 0; i < repair->file.c; i++) {
        if (spare[i] != 0)
            repair_note_clean(repair, piece->first + b, 1, plan->decided[b].version,
                              plan->holders[b], i, spare[i]);
    }
}
