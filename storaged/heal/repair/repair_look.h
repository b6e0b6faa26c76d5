/*
 * repair_look.h - the records of a piece that were read whole, and what they showed.
 * Private to repair*.c.
 *
 * Only repair_look.c writes these members.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_LOOK_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_LOOK_H

#include "common/wire/record.h"
#include "storaged/heal/decide/repair_decide.h"

struct repair_piece;

enum { REPAIR_BAD_MAX = 512 }; /* records of a piece with a wrong crc */

/* A record that is wrong although its storage reports it as good. */
struct piece_bad {
    uint64_t version;
    uint16_t block;
    uint8_t candidate, projection;
    bool torn; /* see struct decide_answer */
};

struct piece_look {
    struct piece_bad bad[REPAIR_BAD_MAX];
    unsigned n_bad;
    /* Projections that homes have whole, read or written by this repair, and their
     * version. A head alone does not show that. */
    uint32_t sound[EXTENT_BLOCKS];
    uint64_t sound_version[EXTENT_BLOCKS];
    /* Blocks whose records are read now, of one projection. */
    unsigned at, n, projection;
    unsigned next; /* record to be read next, counted over projections, then blocks */
    bool at_homes; /* our own were read; now those of other homes */
    bool verified; /* all that the request wants was read */
};

enum look { LOOK_RIGHT, LOOK_OTHER, LOOK_WRONG };

/**
 * Checks whether this is the whole record of block `which->block` at its version.
 * LOOK_OTHER: another version was written meanwhile. LOOK_WRONG: it counts as damaged
 * once piece_apply_bad() is called.
 */
enum look record_judge(struct repair_piece *piece, const struct piece_bad *which,
                       uint16_t user_bytes, const uint8_t *head, const uint8_t *body);
/**
 * Notes that the candidate has projection p of block b at this version whole. Counts only
 * for the home, and only if its verifier is known, since a later loss changes the
 * verifier.
 */
void piece_note_sound(struct repair_piece *piece, unsigned b, unsigned p,
                      uint64_t version, unsigned candidate);
/**
 * Returns the projections of block b that their homes certainly have whole, at the
 * decided version.
 */
uint32_t piece_sound(const struct repair_piece *piece, unsigned b);
/** Selects the next run of records to be read. Returns false when all were read. */
bool piece_verify_next(struct repair_piece *piece);
/** Reads the selected run. */
void piece_verify_send(struct repair_piece *piece);
/** Marks as damaged the records that were found wrong when they were read whole. */
void piece_apply_bad(struct repair_piece *piece);

#endif
