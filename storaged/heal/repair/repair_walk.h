/*
 * repair_walk.h - moves a repair along its range. Private to repair*.c.
 *
 * Only repair_walk.c writes these members.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_WALK_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_WALK_H

#include "common/base/list.h"
#include "storaged/heal/decide/repair_ask.h"

struct repair;
struct repairer;
struct repair_piece;
struct repair_request;

/* Steps of the walk over the range. */
enum walk_step {
    WALK_EXTENTS, /* the next extent may have something */
    WALK_NEXT,    /* asks where the next heads are */
    WALK_ASKED,
    WALK_TAIL,  /* gives the mark to the end of the file to homes that missed it */
    WALK_FLATS, /* stretches without heads: large marks, or nothing */
    WALK_OVER,
};

/* A large mark that one candidate reported. */
struct walk_mark {
    uint64_t first, end; /* end UINT64_MAX: no end */
    uint64_t version;
    uint8_t candidate;
};

/* The large marks of the file from the cursor on, as all candidates reported them. */
struct walk_marks {
    struct walk_mark *list; /* owned */
    unsigned n;
    bool lost; /* some marks found no room: the marks cannot be used */
};

/* The question to all candidates where their next heads and marks are. */
struct walk_next {
    struct repair_ask asks[DIST_MAX];
    unsigned n_asks;          /* under way */
    uint64_t block[DIST_MAX]; /* next head of each candidate that answered */
    uint32_t answered;        /* candidates that answered */
    uint32_t refused;         /* candidates that gave no usable answer */
    uint64_t at_ns;           /* earliest time to ask again */
    /* Epoch of the fence that was up when they were asked; 0: none. */
    uint32_t epoch;
};

/* The mark to the end of the file that some homes missed. */
struct walk_tail {
    bool tried;
    uint64_t from;   /* first block of the mark to the end ... */
    uint32_t healed; /* ... that these candidates were given */
};

/* A stretch that one block of a piece stands for. */
struct walk_stretch {
    uint64_t span; /* blocks; 0: to the end */
    /* Epoch of the fence that was up when the stretch was found without heads: no write
     * of a client of this epoch or older came into it since. 0: none. */
    uint32_t epoch;
    uint64_t *answered; /* owned; versions of marks that lie over the whole stretch */
    unsigned n_answered;
    bool uneven; /* some home in scope lacks the newest of these marks */
    /* Tail: homes that lack its hole get a mark of this version from here on. A newer one
     * begins at another block. */
    uint64_t tail_from, tail_version;
};

struct repair_walk {
    enum walk_step step;
    bool small; /* visits every extent of the range without asking for heads */
    uint64_t cursor, end;
    uint64_t head;       /* next block that any storage has a head of */
    uint64_t again_from; /* block from which the walk is repeated; UINT64_MAX: none */
    unsigned n_agains;
    /* Blocks below were walked before, so they are not counted again. */
    uint64_t counted_to;
    struct list_node pieces; /* under way */
    unsigned n_pieces;
    bool wants_memory; /* waits for memory of another repair */
    bool reads_ahead; /* the last piece was rebuilt as a whole, so the next may be, too */
    unsigned n_dense; /* pieces with data since the last one without */
    struct walk_next next;
    struct walk_marks marks;
    struct walk_tail tail;
};

/** Begins a walk over the range of a request. */
void repair_walk_init(struct repair_walk *w, const struct repair_request *request);
/**
 * Starts the pieces that there is room for. Returns true when all of the range was looked
 * at.
 */
bool repair_walk(struct repair *repair);
/** Notes that this place could not be repaired now; the walk comes back to it. */
void repair_again(struct repair *repair, uint64_t from);
/**
 * Returns to the first place where storages had no room. Returns false if there is none,
 * or the walk was repeated too often.
 */
bool repair_walk_again(struct repair *repair);
/**
 * Limits a stretch to its first block, as other blocks may differ. The rest is walked
 * again if it may lack something.
 */
void walk_narrow(struct repair_piece *piece);
/** Ends a piece and frees it. */
void repair_piece_ended(struct repair_piece *piece);
/** Frees all pieces and cancels the requests of the walk. */
void repair_walk_cancel(struct repair *repair);
/** Continues repairs that wait for memory. */
void repair_wake_waiting(struct repairer *repairer);

#endif
