/*
 * repair_fence.c - sets the fence of a repair at all candidates, and wakes the pieces
 * that wait for it.
 *
 * In:     repair_want_fence(), from pieces; answers. Thread: that of the env.
 * Out:    ST_FENCE.
 * Keeps:  one fence is set at a time; a newer epoch that is wanted meanwhile is set next.
 */
#include "storaged/heal/repair/repair_fence.h"

#include <assert.h>

#include "storaged/heal/repair/repair_piece.h"

static void fence_start(struct repair *repair);

static void wake_the_fenced(struct repair *repair)
{
    assert(repair->fence.state == FENCE_UP);
    for (;;) {
        struct repair_piece *waits = NULL;

        LIST_FOREACH(node, &repair->walk.pieces) {
            struct repair_piece *piece = container_of(node, struct repair_piece, link);

            if (piece->state == PIECE_FENCE)
                waits = piece;
        }
        if (waits == NULL)
            return;
        repair_piece_wake(waits);
    }
}

static void on_fenced(struct repair_ask *ask, int rc)
{
    struct repair *repair =
        container_of(ask - ask->candidate, struct repair, fence.asks[0]);
    struct repair_fence *f = &repair->fence;

    assert(f->state == FENCE_RISES && f->n_asks > 0);
    f->n_asks--;
    if (repair_ask_is_ok(ask, rc))
        f->holders |= 1u << ask->candidate;
    if (f->n_asks > 0)
        return;
    f->state = FENCE_UP;
    repair->result.fenced = true;
    if (f->wanted > f->epoch)
        fence_start(repair);
    if (f->state == FENCE_UP)
        wake_the_fenced(repair);
}

static void fence_start(struct repair *repair)
{
    struct repair_fence *f = &repair->fence;
    struct heal_file *file = &repair->file;

    assert(f->state != FENCE_RISES || f->n_asks == 0);
    assert(f->wanted >= f->epoch);
    f->state = FENCE_RISES;
    f->epoch = f->wanted;
    f->holders = 0;
    for (unsigned i = 0; i < file->c; i++) {
        Rozo__StFenceReq req = ROZO__ST_FENCE_REQ__INIT;

        req.ref = &file->ref;
        req.epoch = f->epoch;
        req.to_storage = file->target.storages[i];
        if (repair_ask_send(&f->asks[i], file, i, ROZO__OP__ST_FENCE, &req.base, NULL, 0,
                            on_fenced) == 0)
            f->n_asks++;
    }
    if (f->n_asks == 0)
        f->state = FENCE_UP; /* no storage is up to take the fence */
}

bool repair_want_fence(struct repair *repair, uint32_t epoch)
{
    struct repair_fence *f = &repair->fence;

    assert((f->state == FENCE_RISES) == (f->n_asks > 0));
    if (f->state == FENCE_UP && f->epoch >= epoch)
        return true;
    if (epoch > f->wanted)
        f->wanted = epoch;
    if (f->state != FENCE_RISES)
        fence_start(repair);
    return f->state == FENCE_UP;
}

void repair_fence_cancel(struct repair *repair)
{
    for (unsigned i = 0; i < DIST_MAX; i++)
        repair_ask_cancel(&repair->fence.asks[i]);
}
