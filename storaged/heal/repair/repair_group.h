/*
 * repair_group.h - blocks of a piece that are rebuilt together. Private to repair*.c.
 *
 * Only repair_group.c writes these members.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_GROUP_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_GROUP_H

#include <sys/uio.h>

#include "codec/codec.h"

struct repair_piece;

struct piece_group {
    unsigned at, n;
    uint32_t lack;    /* bitmap of projections to rebuild */
    bool damaged;     /* some home has a damaged record */
    uint32_t sources; /* bitmap of projections that are read; 0: the blocks are holes */
    uint8_t source[CODEC_N_MAX]; /* candidate that each is read from */
    uint64_t at_most; /* reads return no newer version than this; 0: the newest */
    uint8_t *read[CODEC_N_MAX]; /* owned; n heads, then n places for a full row */
    uint8_t *made[CODEC_N_MAX]; /* owned; n heads, then n rows, packed */
    struct iovec iov[CODEC_N_MAX];
    uint32_t answered; /* projections that were read and have a right crc */
    bool whole;        /* the last group with data was all blocks of the piece */
};

/* Bodies that came with the heads, before anything was decided; for all blocks of the
 * piece. */
struct piece_ahead {
    uint8_t *read[CODEC_N_MAX]; /* owned; as in a group */
    uint32_t got; /* bitmap of projections whose bodies came; not checked yet */
};

/**
 * Makes room in piece->ahead, so that bodies come with the heads, if all blocks will
 * probably be rebuilt from k others.
 */
void piece_ahead_start(struct repair_piece *piece);
/** Notes the projections whose bodies came. */
void piece_ahead_got(struct repair_piece *piece, uint32_t projections);
void piece_ahead_free(struct repair_piece *piece);

/**
 * Selects the next group to repair. Returns false when nothing is left in this round. A
 * group of no blocks: call again.
 */
bool piece_group_next(struct repair_piece *piece);
/** Reads the sources of the group. */
void piece_group_read(struct repair_piece *piece);
/** Rebuilds the lacking records of the group and writes them to their homes. */
void piece_group_write(struct repair_piece *piece);
/** Sends the holes of a group to their homes, as marks or as records. */
void piece_group_mark(struct repair_piece *piece);
/** Skips the group in this round and looks at all blocks of the piece again later. */
void piece_group_again(struct repair_piece *piece);
/**
 * Ends a group. Homes that did not take a record still lack it; not tried again in this
 * round.
 */
void piece_group_end(struct repair_piece *piece);
void piece_group_free(struct repair_piece *piece);

#endif
