/*
 * repair_piece.h - one piece of a repair. Private to repair*.c.
 *
 * repair_piece.c has its life and its one step function. repair_look.c checks records as
 * they come, repair_plan.c decides, repair_drop.c rolls back, and repair_group.c rebuilds
 * what homes lack. Only repair_piece.c writes the members that are declared here.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_PIECE_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_PIECE_H

#include <assert.h>

#include "storaged/heal/repair/repair_drop.h"
#include "storaged/heal/repair/repair_group.h"
#include "storaged/heal/repair/repair_int.h"
#include "storaged/heal/repair/repair_look.h"
#include "storaged/heal/repair/repair_plan.h"
#include "storaged/heal/repair/repair_spares.h"

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

enum piece_kind {
    PIECE_OF_EXTENT,
    PIECE_OF_STRETCH, /* one block that stands for a stretch without heads */
    /* One block far beyond all data: homes that lack its hole get the mark to the end. */
    PIECE_OF_TAIL,
};

/* One request of a piece. */
struct piece_ask {
    struct repair_ask ask;
    struct repair_piece *piece;
    uint8_t projection;
};

/* A piece looks at its blocks again while they change or some journal has no room. */
struct piece_round {
    unsigned n_rounds, n_fences;
    unsigned n_bad_before; /* wrong records found in the rounds before */
    bool again;            /* something changed: another round */
    bool busy;             /* the journal of a home had no room just now */
};

/* One part of a repair: blocks of one extent, or one that stands for others. */
struct repair_piece {
    struct list_node link; /* in the walk's pieces */
    struct repair *repair; /* borrowed */
    enum piece_state state;
    enum piece_kind kind;
    uint64_t first;
    unsigned n;
    uint64_t memory; /* bytes, counted in repairer.memory_used */
    struct env_timer timer;
    struct repair_heads heads;
    struct fence_view fence; /* under which the heads were read */
    struct piece_round round;
    struct walk_stretch stretch; /* unless of an extent */
    struct piece_look look;
    struct piece_plan plan;
    struct piece_drop drop;
    struct piece_group group;
    struct piece_ahead ahead;
    struct piece_ask asks[DIST_MAX];
    unsigned n_asks; /* under way */
};

/**
 * Creates a piece, which begins later, so the caller can set its stretch. It ends by
 * repair_piece_ended(). Returns NULL if out of memory.
 */
struct repair_piece *repair_piece_new(struct repair *repair, enum piece_kind kind,
                                      uint64_t first, unsigned n);
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
/** Asks for another round, since blocks changed. */
void piece_again(struct repair_piece *piece);
/** Notes that the journal of a home had no room; the walk comes back to the piece. */
void piece_busy(struct repair_piece *piece);
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
/** Begins the handling of an answer. Returns its piece. */
struct repair_piece *piece_answered(struct repair_ask *ask);
/** Notes as the repair's problem that a request failed: `what` names it. */
void piece_refused(struct repair_piece *piece, const struct repair_ask *ask, int rc,
                   const char *what);
/** Lets the piece wait before its next step. */
void piece_wait(struct repair_piece *piece, uint32_t ms);

static inline bool piece_is_of_extent(const struct repair_piece *piece)
{
    return piece->kind == PIECE_OF_EXTENT;
}

static inline bool piece_is_of_tail(const struct repair_piece *piece)
{
    return piece->kind == PIECE_OF_TAIL;
}

static inline struct decide_answer *piece_answers(struct repair_piece *piece, unsigned b,
                                                  unsigned *n)
{
    assert(b < piece->heads.n);
    *n = piece->heads.n_answers[b];
    return repair_heads_of(&piece->heads, b);
}

/**
 * Returns how many blocks of the file a request covers for `n` blocks of the piece; 0: to
 * the end.
 */
static inline uint64_t piece_blocks(const struct repair_piece *piece, unsigned n)
{
    return piece_is_of_extent(piece) ? n : piece->stretch.span;
}

#endif
