/*
 * repair_piece.h - one piece of a repair. Private to repair*.c.
 *
 * repair_piece.c has its life and its one step function. repair_look.c checks records as
 * they come, repair_plan.c decides, repair_drop.c rolls back, and repair_group.c rebuilds
 * what homes lack.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_PIECE_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_PIECE_H

#include "storaged/heal/repair/repair_int.h"

enum { REPAIR_BAD_MAX = 512 }; /* records of a piece with a wrong crc */

/* Steps of a piece; repair_piece.c has their order. */
enum piece_state {
    PIECE_BEGIN,
    PIECE_HEADS,
    PIECE_VERIFY,
    PIECE_VERIFY_READ,
    PIECE_DECIDE,
    PIECE_FENCE,
    PIECE_DROP,
    PIECE_UNTEAR,
    PIECE_GROUP,
    PIECE_RATE,
    PIECE_READ,
    PIECE_WRITE,
    PIECE_MARK,
    PIECE_END,
};

/* A record that is wrong although its storage reports it as good. */
struct piece_bad {
    uint64_t version;
    uint16_t block;
    uint8_t candidate, projection;
    bool torn; /* see struct decide_answer */
};

/* One request of a piece. */
struct piece_ask {
    struct repair_ask ask;
    struct repair_piece *piece;
    uint8_t projection;
};

/* Blocks of a piece that are repaired together. */
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
};

/* Bodies that came with the heads, before anything was decided; for all blocks of the
 * piece. */
struct piece_ahead {
    uint8_t *read[CODEC_N_MAX]; /* owned; as in a group */
    uint32_t got; /* bitmap of projections whose bodies came; not checked yet */
};

/* One part of a repair: blocks of one extent, or (flat) one block that stands for a
 * stretch without heads. */
struct repair_piece {
    struct list_node link;
    struct repair *repair; /* borrowed */
    enum piece_state state;
    uint64_t first;
    unsigned n;
    bool flat;
    uint64_t span; /* blocks that a flat piece stands for; 0: to the end */
    /* Epoch of the fence that was up when the stretch was found without heads: no write
     * of a client of this epoch or older came into it since. 0: none. */
    uint32_t span_epoch;
    uint64_t *told; /* owned; versions of marks that lie over the whole stretch */
    unsigned n_told;
    bool uneven; /* some home in scope lacks the newest of these marks */
    /* Flat piece far beyond all data: homes that lack its hole get the mark from
     * tail_from on. */
    bool tail;
    /* Version of that mark; a newer one begins at another block. */
    uint64_t tail_from, tail_version;
    uint64_t memory; /* bytes, counted in repairer.memory_used */
    struct env_timer timer;
    struct repair_heads heads;
    struct fence_view fence; /* under which the heads were read */
    struct decision decided[EXTENT_BLOCKS];
    uint32_t lack[EXTENT_BLOCKS]; /* projections in scope still to be healed */
    /* Projections that are already in the result's counts. */
    uint32_t counted[EXTENT_BLOCKS];
    uint32_t holders[EXTENT_BLOCKS]; /* candidates that have the decided version by now */
    uint32_t projections[EXTENT_BLOCKS]; /* projections of it that they have; 0: a hole */
    /* Projections that homes have whole, read or written by this repair, and their
     * version. A head alone does not show that. */
    uint32_t sound[EXTENT_BLOCKS];
    uint64_t sound_version[EXTENT_BLOCKS];
    bool skip[EXTENT_BLOCKS]; /* leave it out in this round */
    /* A record that we gave to a home waits in its journal. */
    bool pending[EXTENT_BLOCKS];
    unsigned n_rounds, n_belows, n_fences, n_bad, n_bad_before;
    bool again, verified;
    bool whole; /* all blocks were rebuilt in one group */
    bool busy;  /* the journal of a home had no room just now */
    struct piece_bad bad[REPAIR_BAD_MAX];
    struct piece_group group;
    struct piece_ahead ahead;
    struct piece_ask asks[DIST_MAX];
    unsigned n_asks;
    unsigned drop_at, untorn_at, verify_at;
    bool sparse; /* no data and no damage was seen */
};

/* ---- repair_piece.c ---- */
/**
 * Creates a piece, which begins later, so the caller can set more members. It ends by
 * repair_piece_ended(). Returns NULL if out of memory.
 */
struct repair_piece *repair_piece_new(struct repair *repair, uint64_t first, unsigned n);
void repair_piece_free(struct repair_piece *piece);
/** Continues a piece that waits for the fence, which is up as far as possible. */
void repair_piece_wake(struct repair_piece *piece);
/** Returns the bytes that one piece of this repair may need. */
uint64_t repair_piece_memory(const struct repair *repair);

/**
 * Does the next step of the piece. Every answer ends with it; it alone decides about the
 * next state.
 */
void piece_step(struct repair_piece *piece);
/**
 * Returns the request slot of a projection, or of a candidate if each candidate gets one
 * request.
 */
struct piece_ask *piece_ask_for(struct repair_piece *piece, unsigned projection);
/**
 * Sends a request of the piece. n_iov 1: with the records that the group made of that
 * projection. Returns false if it was not sent; then done is not called.
 */
bool piece_send(struct repair_piece *piece, struct piece_ask *pa, unsigned candidate,
                uint16_t op, const ProtobufCMessage *msg, unsigned n_iov,
                repair_ask_done_cb *done);
/** Notes as the repair's problem that a request failed: `what` names it. */
void piece_refused(struct repair_piece *piece, const struct repair_ask *ask, int rc,
                   const char *what);

static inline void piece_go(struct repair_piece *piece, enum piece_state state)
{
    piece->state = state;
}

static inline struct decide_answer *piece_answers(struct repair_piece *piece, unsigned b,
                                                  unsigned *n)
{
    *n = piece->heads.n_answers[b];
    return repair_heads_of(&piece->heads, b);
}

/**
 * Returns how many blocks of the file a request covers for `n` blocks of the piece; 0: to
 * the end.
 */
static inline uint64_t piece_blocks(const struct repair_piece *piece, unsigned n)
{
    return piece->flat ? piece->span : n;
}

/* ---- repair_look.c ---- */

enum look { LOOK_RIGHT, LOOK_OTHER, LOOK_WRONG };

/**
 * Takes the answer to a read of n records from block `at` of the piece: heads to `heads`,
 * bodies at full strides to `bodies`. Returns 0 or -EBADMSG.
 */
int records_take(const struct repair_piece *piece, unsigned at, unsigned n, unsigned p,
                 const struct repair_ask *ask, uint8_t *heads, uint8_t *bodies);
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
 * Returns whether the answer is a copy outside of the projection's home, of this version
 * or older.
 */
bool piece_is_copy(const struct repair_piece *piece, const struct decide_answer *a,
                   uint64_t version);
/**
 * Returns the projections of block b that their homes certainly have whole, at the
 * decided version.
 */
uint32_t piece_sound(const struct repair_piece *piece, unsigned b);
/**
 * Selects the next run of our own records as a group that is only read. Returns false
 * when all were read.
 */
bool piece_verify_next(struct repair_piece *piece);
/** Reads the selected run. */
void piece_verify_send(struct repair_piece *piece);
/** Marks as damaged the records that were found wrong when they were read whole. */
void piece_apply_bad(struct repair_piece *piece);

/* ---- repair_plan.c ---- */

/** Decides all blocks. Returns true if heads below some version were asked for first. */
bool piece_decide_all(struct repair_piece *piece);
/**
 * Finds the newest epoch that needs a fence to be decided. Returns false if there is
 * none.
 */
bool piece_wants_fence(const struct repair_piece *piece, uint32_t *epoch);
/** Plans the repair of all decided blocks: which homes lack which projections. */
void piece_plan(struct repair_piece *piece);
/**
 * Returns the version that the home of projection p reports for its damaged record; 0:
 * none.
 */
uint64_t piece_torn_version(struct repair_piece *piece, unsigned b, unsigned p);

/* ---- repair_drop.c ---- */

/**
 * Rolls back the next run of blocks with the same version to keep. Returns false when all
 * are done.
 */
bool piece_drop_next(struct repair_piece *piece);
/** Lets a home drop its next torn record. Returns false when none is left. */
bool piece_untorn_next(struct repair_piece *piece);
/**
 * Sends ST_DROP for the group's blocks. epoch 0: without a fence; projections 0: all.
 * Returns false if it was not sent.
 */
bool piece_drop_send(struct repair_piece *piece, struct piece_ask *pa, unsigned candidate,
                     uint64_t keep, uint32_t epoch, uint32_t projections,
                     repair_ask_done_cb *done);

/* ---- repair_group.c ---- */

/**
 * Makes room in piece->ahead, so that bodies come with the heads, if all blocks will
 * probably be rebuilt from k others.
 */
void piece_ahead_start(struct repair_piece *piece);
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
