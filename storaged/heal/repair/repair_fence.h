/*
 * repair_fence.h - the fence of a repair: it rejects late writes of an epoch and of older
 * ones at all candidates. Private to repair*.c.
 *
 * Only repair_fence.c writes these members.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_FENCE_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_FENCE_H

#include "storaged/heal/decide/repair_ask.h"

struct repair;

enum fence_state {
    FENCE_NONE,
    FENCE_RISES, /* requests are under way */
    FENCE_UP,    /* all answered, or no storage was up to take it */
};

struct repair_fence {
    enum fence_state state;
    uint32_t epoch, wanted;
    uint32_t holders; /* candidates that confirmed it */
    struct repair_ask asks[DIST_MAX];
    unsigned n_asks; /* under way */
};

/* A fence at one moment. */
struct fence_view {
    bool up;
    uint32_t epoch, holders;
};

/**
 * Asks for a fence of at least this epoch. Returns true if it is up (or setting it was
 * tried). Else pieces in PIECE_FENCE are woken when it is.
 */
bool repair_want_fence(struct repair *repair, uint32_t epoch);
/** Cancels the requests of the fence. */
void repair_fence_cancel(struct repair *repair);

static inline struct fence_view fence_view(const struct repair_fence *f)
{
    return (struct fence_view){ .up = f->state == FENCE_UP,
                                .epoch = f->epoch,
                                .holders = f->holders };
}

#endif
