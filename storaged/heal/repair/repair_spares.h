/*
 * repair_spares.h - copies of records that spares may drop. Private to repair*.c.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_SPARES_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_SPARES_H

#include <stdbool.h>
#include <stdint.h>

#include "storaged/heal/decide/repair_decide.h"

struct repair_piece;

/**
 * Returns whether the answer is a copy outside of the projection's home, of this version
 * or older.
 */
bool spares_is_copy(const struct repair_piece *piece, const struct decide_answer *a,
                    uint64_t version);
/**
 * Returns the projections of block b that must be read whole at their homes, besides our
 * own projection p, before any home may have spares drop its copy: p is in a circle of
 * homes that each hold the copy of another one. 0: p is in no circle.
 */
uint32_t spares_circle(struct repair_piece *piece, unsigned b, unsigned p,
                       uint64_t version);
/** Notes the copies of block b that spares may drop; all homes have the block. */
void spares_note(struct repair_piece *piece, unsigned b);

#endif
