/*
 * repair_piece.h - one piece of a repair, and what the files that drive it share. Private to repair*.c.
 *
 * repair_piece.c has its life and its one step function; repair_look.c judges records as they come, repair_plan.c
 * decides, repair_drop.c rolls back, repair_group.c makes again what homes lack.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_PIECE_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_PIECE_H

#include "storaged/heal/repair/repair_int.h"

enum { REPAIR_BAD_MAX = 512 }; /* records of a piece whose crc was wrong */

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

/* A record that its storage believes in and that is wrong. */
struct piece_bad {
    uint64_t version;
    uint16_t block;
    uint8_t candidate, projection;
    bool torn; /* see struct decide_answer */
};

struct piece_ask {
    struct repair_ask ask;
    struct repair_piece *piece;
    uint8_t projection;
};

/* Blocks of a piece that are repaired in one go. */
struct piece_group {
    unsigned at, n;
    uint32_t lack;               /* projections */
    bool damaged;                /* some home holds something damaged */
    uint32_t sources;            /* projections that are read; 0: holes */
    uint8_t source[CODEC_N_MAX]; /* at which candidate */
    uint64_t at_most;
    uint8_t *read[CODEC_N_MAX]; /* owned; n heads, then n places for a full row */
    uint8_t *made[CODEC_N_MAX]; /* owned; the same, rows packed */
    struct iovec iov[CODEC_N_MAX];
    uint32_t answered; /* projections read and found right */
};

/* What came with the heads, before anything was decided: all blocks of the piece. */
struct piece_ahead {
    uint8_t *read[CODEC_N_MAX]; /* owned; as in a group */
    uint32_t got;               /* projections whose bodies are there, as they came */
};

/* Part of a repair: blocks of one extent, or one block that stands for many without heads. */
struct repair_piece {
    struct list_node link;
    struct repair *repair; /* borrowed */
    enum piece_state state;
    uint64_t first;
    unsigned n;
    bool flat;
    uint64_t span;       /* of a flat one: blocks it stands for, 0: to the end */
    uint32_t span_epoch; /* and no client's write of this or before came into it since */
    uint64_t *told; /* owned: versions of marks that were told to lie over all of it */
    unsigned n_told;
    bool uneven; /* some home of the scope did not tell the newest of them */
    /* A flat one, far behind everything: whoever lacks its hole gets it from tail_from on. */
    bool tail;
    uint64_t tail_from, tail_version; /* that mark's: a newer one begins elsewhere */
    uint64_t memory;
    struct env_timer timer;
    struct repair_heads heads;
    bool under_fence;
    uint32_t fence_epoch, fenced;
    struct decision decided[EXTENT_BLOCKS];
    uint32_t lack[EXTENT_BLOCKS];    /* of the scope, still to be healed */
    uint32_t counted[EXTENT_BLOCKS]; /* lacks that are in the result's counts */
    uint32_t holders[EXTENT_BLOCKS]; /* candidates that have the decided version by now */
    uint32_t projections[EXTENT_BLOCKS]; /* what they have of it; 0: it is a hole */
    /* What homes have whole, read or written by us, of this version. A head tells less than that. */
    uint32_t sound[EXTENT_BLOCKS];
    uint64_t sound_version[EXTENT_BLOCKS];
    bool skip[EXTENT_BLOCKS];    /* not in this round */
    bool pending[EXTENT_BLOCKS]; /* what we gave some home waits in its journal */
    unsigned n_rounds, n_belows, n_fences, n_bad, n_bad_before;
    bool again, verified;
    bool whole; /* all of it was made in one group */
    bool busy;  /* a home had no room for it just now */
    struct piece_bad bad[REPAIR_BAD_MAX];
    struct piece_group group;
    struct piece_ahead ahead;
    struct piece_ask asks[DIST_MAX];
    unsigned n_asks;
    unsigned drop_at, untorn_at, verify_at;
    bool sparse; /* no data and nothing damaged was seen */
};

/* ---- repair_piece.c ---- */
/** NULL: out of memory. It begins soon, so there is time to fill in more; ends by repair_piece_ended(). */
struct repair_piece *repair_piece_new(struct repair *repair, uint64_t first, unsigned n);
void repair_piece_free(struct repair_piece *piece);
/** The fence it waits for is up, as far as it goes. */
void repair_piece_wake(struct repair_piece *piece);
uint64_t repair_piece_memory(const struct repair *repair);

/** Every answer ends with it; it decides what comes next. */
void piece_step(struct repair_piece *piece);
/** The one of a projection, or of a candidate where there is one request to each. */
struct piece_ask *piece_ask_for(struct repair_piece *piece, unsigned projection);
/** n_iov 1: with what the group made of that projection. False: not sent, no callback. */
bool piece_send(struct repair_piece *piece, struct piece_ask *pa, unsigned candidate,
                uint16_t op, const ProtobufCMessage *msg, unsigned n_iov,
                repair_ask_done_cb *done);
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

/** How many blocks of the file `n` blocks of the piece are in a request; 0: to the end. */
static inline uint64_t piece_blocks(const struct repair_piece *piece, unsigned n)
{
    return piece->flat ? piece->span : n;
}

/* ---- repair_look.c ---- */

enum look { LOOK_RIGHT, LOOK_OTHER, LOOK_WRONG };

/**
 * The payload of a read of n records from block `at` of the piece: heads to `heads`, bodies at full strides to
 * `bodies`. 0 or -EBADMSG.
 */
int records_take(const struct repair_piece *piece, unsigned at, unsigned n, unsigned p,
                 const struct repair_ask *ask, uint8_t *heads, uint8_t *bodies);
/**
 * Is this the record of block b at this version, whole? OTHER: something else got in between. WRONG: it counts as
 * damaged once piece_apply_bad() is called.
 */
enum look record_judge(struct repair_piece *piece, const struct piece_bad *which,
                       uint16_t user_bytes, const uint8_t *head, const uint8_t *body);
/**
 * The candidate has projection p of block b at this version whole. Counts where it is the home, and where its
 * verifier is known: what it loses from then on shows.
 */
void piece_note_sound(struct repair_piece *piece, unsigned b, unsigned p,
                      uint64_t version, unsigned candidate);
/** Is that something of a projection at who is not its home, of this version or older? */
bool piece_is_copy(const struct repair_piece *piece, const struct decide_answer *a,
                   uint64_t version);
/** Projections that their homes are certain to have whole, as decided for block b. */
uint32_t piece_sound(const struct repair_piece *piece, unsigned b);
/** The next run of our own records, as a group that is only read; false: all were read. */
bool piece_verify_next(struct repair_piece *piece);
void piece_verify_send(struct repair_piece *piece);
/** What was found wrong by reading it whole counts as damaged. */
void piece_apply_bad(struct repair_piece *piece);

/* ---- repair_plan.c ---- */

/** True: what lies below some version is being asked for. */
bool piece_decide_all(struct repair_piece *piece);
/** The newest epoch that only a fence lets us settle; false: none. */
bool piece_wants_fence(const struct repair_piece *piece, uint32_t *epoch);
/** All blocks are decided, as far as they can be: what is to be done? */
void piece_plan(struct repair_piece *piece);
/** The version that the home of projection p believes in, of a record that is damaged; 0: none. */
uint64_t piece_torn_version(struct repair_piece *piece, unsigned b, unsigned p);

/* ---- repair_drop.c ---- */

/** The next run of blocks with the same version to be kept; false: all are done. */
bool piece_drop_next(struct repair_piece *piece);
/** The next torn record that its home is told to let go of; false: none is left. */
bool piece_untorn_next(struct repair_piece *piece);
/** ST_DROP of the group's blocks. epoch 0: of no fence; projections 0: all. False: not sent. */
bool piece_drop_send(struct repair_piece *piece, struct piece_ask *pa, unsigned candidate,
                     uint64_t keep, uint32_t epoch, uint32_t projections,
                     repair_ask_done_cb *done);

/* ---- repair_group.c ---- */

/**
 * Where all blocks are likely to be made from k others, their bodies may as well come with the heads: room for those
 * in piece->ahead.
 */
void piece_ahead_start(struct repair_piece *piece);
void piece_ahead_free(struct repair_piece *piece);

/** False: nothing is left to be repaired in this round. A group of no blocks: ask for the next one. */
bool piece_group_next(struct repair_piece *piece);
void piece_group_read(struct repair_piece *piece);
void piece_group_write(struct repair_piece *piece);
/** The holes of a group, as marks or as records. */
void piece_group_mark(struct repair_piece *piece);
/** Not now: look at everything again. */
void piece_group_again(struct repair_piece *piece);
/** Whoever did not take it lacks it still: not again in this round. */
void piece_group_end(struct repair_piece *piece);
void piece_group_free(struct repair_piece *piece);

#endif
