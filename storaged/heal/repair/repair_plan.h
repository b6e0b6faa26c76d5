/*
 * repair_plan.h - what the blocks of a piece are, and what their homes lack. Private to
 * repair*.c.
 *
 * Only repair_plan.c writes these members.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_PLAN_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_PLAN_H

#include "common/wire/record.h"
#include "storaged/heal/decide/repair_decide.h"

struct repair_piece;

/* Projections of a block that homes lacked, by what was found when they were counted. */
struct plan_counted {
    uint32_t unknown, damaged, stale, missing; /* disjoint */
};

struct piece_plan {
    struct decision decided[EXTENT_BLOCKS];
    uint32_t lack[EXTENT_BLOCKS]; /* projections in scope still to be healed */
    struct plan_counted counted[EXTENT_BLOCKS]; /* already in the result */
    uint32_t holders[EXTENT_BLOCKS]; /* candidates that have the decided version by now */
    uint32_t projections[EXTENT_BLOCKS]; /* projections of it that they have; 0: a hole */
    bool skip[EXTENT_BLOCKS];            /* leave it out in this round */
    /* A record that we gave to a home waits in its journal. */
    bool pending[EXTENT_BLOCKS];
    unsigned n_belows; /* times that older versions were asked for, in this round */
    bool has_data;     /* some candidate has data */
};

/** Begins a round: older versions may be asked for again. */
void piece_plan_begin(struct repair_piece *piece);
/** Decides all blocks. Returns true if heads below some version were asked for first. */
bool piece_decide_all(struct repair_piece *piece);
/**
 * Finds the newest epoch that needs a fence to be decided. Returns false if there is
 * none.
 */
bool piece_wants_fence(const struct repair_piece *piece, uint32_t *epoch);
/** Plans the repair of all decided blocks: which homes lack which projections. */
void piece_plan(struct repair_piece *piece);
/** Takes what homes still lack out of the result's counts: it will be counted again. */
void piece_plan_uncount(struct repair_piece *piece);
/** Leaves out n blocks from `at` on in this round. */
void piece_skip(struct repair_piece *piece, unsigned at, unsigned n);
/**
 * Notes that the home of projection p, this candidate, has block b as decided now.
 * pending: its record waits in the candidate's journal.
 */
void piece_plan_healed(struct repair_piece *piece, unsigned b, unsigned p,
                       unsigned candidate, bool pending);
/**
 * Returns the version that the home of projection p reports for its damaged record; 0:
 * none.
 */
uint64_t piece_torn_version(struct repair_piece *piece, unsigned b, unsigned p);

#endif
