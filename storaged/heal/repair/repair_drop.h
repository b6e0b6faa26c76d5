/*
 * repair_drop.h - drops what a piece rolled back, and torn records. Private to repair*.c.
 *
 * Only repair_drop.c writes these members.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_DROP_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_DROP_H

#include "storaged/heal/decide/repair_ask.h"

struct repair_piece;
struct piece_ask;

struct piece_drop {
    unsigned at, n; /* blocks that are dropped now */
    bool failed;    /* not all candidates dropped them */
    unsigned next;  /* block to look at next, for versions that were rolled back */
    /* Record to look at next, for torn ones, counted over blocks, then projections. */
    unsigned next_torn;
};

/** Begins a round. */
void piece_drop_begin(struct repair_piece *piece);
/**
 * Rolls back the next run of blocks with the same version to keep. Returns false when all
 * are done.
 */
bool piece_drop_next(struct repair_piece *piece);
/**
 * Lets a home drop its next torn record. A home accepts nothing older than the version it
 * believes to have, and does not see that this record is torn. One record at a time,
 * since they are few. Returns false when none is left.
 */
bool piece_untorn_next(struct repair_piece *piece);
/**
 * Sends ST_DROP for n blocks of the piece from `at` on. epoch 0: without a fence;
 * projections 0: all. Returns false if it was not sent.
 */
bool piece_drop_send(struct repair_piece *piece, struct piece_ask *pa, unsigned at,
                     unsigned n, unsigned candidate, uint64_t keep, uint32_t epoch,
                     uint32_t projections, repair_ask_done_cb *done);

#endif
