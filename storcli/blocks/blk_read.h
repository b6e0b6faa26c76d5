/*
 * blk_read.h - shared by the files of one read: blk_read.c (pieces, rounds, end),
 * read_request.c (one request to one storage), read_select.c (choice of the next
 * storage), read_decide.c (value of each block, assembly).
 *
 * A run is cut into pieces of one extent. A piece lives in rounds: ask, judge every
 * block, ask more about those that are unclear, and, when all was asked and some are
 * still unclear (a write may be under way), finish the clear ones and begin another round
 * for the rest a little later.
 *
 * Private to these files. Thread: the env's.
 */
#ifndef ROZO_STORCLI_BLOCKS_BLK_READ_H
#define ROZO_STORCLI_BLOCKS_BLK_READ_H

#include "common/base/bytes.h"
#include "storcli/blocks/engine.h"

enum ask_state {
    ASK_SENT,
    ASK_ANSWERED,
    ASK_FAILED, /* unknown, damaged or timed out: no answer */
};

enum judged {
    JUDGED_BAD, /* damaged: as if no answer had come for this block */
    JUDGED_DATA,
    JUDGED_HOLE,
};

/* Patience with a request without an answer. */
enum ask_pace {
    PACE_FINE,
    PACE_HEDGED, /* hedged: one more storage was asked; the answer still counts */
    PACE_SLOW,   /* unanswered too long or channel suspect: not waited for */
};

/* Projection that a storage answered not to have. */
enum ask_lack {
    LACK_NOTHING,
    LACK_OTHERS_UNASKED, /* other projections may be there: they are asked for */
    LACK_OTHERS_ASKED,
};

/* Request to one candidate. */
struct read_ask {
    struct rpc_request rq;
    struct read_piece *piece;
    struct read_ask *next;
    uint64_t sent_ns;
    uint64_t took_ns;  /* answered */
    uint64_t grace_ns; /* extra wait for a storage that was known to be late */
    uint64_t at_most;  /* not 0: asks for the newest version that is not newer */
    uint8_t candidate;
    uint8_t projection; /* asked for, then the one that was answered */
    uint8_t state;      /* enum ask_state */
    enum ask_pace pace;
    bool in_place;     /* full rows go to the caller's memory */
    bool whole;        /* covers the whole piece, and nothing in it is damaged */
    uint16_t at, n;    /* blocks, within the piece */
    uint32_t present;  /* answered: bitmap of the projections on that storage */
    size_t head_bytes; /* bytes of one record head */
    uint8_t *heads;    /* scratch, n * head_bytes */
    uint8_t *bodies;   /* scratch, n rows; NULL while all is in place */
    bool heads_judged;
    bool doubt; /* answered: the storage may have had something newer */
    enum ask_lack lack;
    uint8_t judged[EXTENT_BLOCKS];     /* enum judged, from `at` on */
    uint16_t row_bytes[EXTENT_BLOCKS]; /* bytes of each body */
};

/* Result for one block. */
struct blk_read_block {
    uint64_t version;
    uint16_t user_bytes;  /* 0: hole */
    bool clear;           /* version and user_bytes are the result */
    bool done;            /* clear, and handed over to the caller */
    uint64_t below;       /* not clear: ask for versions below this one; 0: nothing */
    unsigned doubt_round; /* round of the first doubtful result, from 1; 0: none */
    /* version of that result, and the newest one above it */
    uint64_t doubt_version, doubt_newest;
};

/* At most 128 blocks of one extent. */
struct read_piece {
    struct watch watch;
    struct blk_read_op *op;
    struct read_ask *asks; /* owned; requests of this round */
    unsigned n_asks;
    uint64_t first_block;
    unsigned n_blocks;
    unsigned at, n; /* the blocks of this round: from the first to the last unclear one */
    /* again_ns: start of the next round, or 0 */
    uint64_t started_ns, deadline_ns, again_ns;
    uint32_t backoff_ms;
    uint32_t denied; /* candidates that refused the capability */
    uint32_t none;   /* candidates that answered in this round that they have no file */
    uint32_t up_before; /* candidates up when the round had none left to ask */
    uint32_t heard;     /* candidates that gave an answer in this round */
    unsigned n_rounds;  /* finished rounds */
    unsigned n_full;    /* full rounds in a row: all candidates answered */
    uint64_t full_ns;   /* end of the first of these */
    bool moved;         /* a storage knows of a newer distribution */
    bool ended;
    struct blk_read_block blocks[EXTENT_BLOCKS];
};

struct blk_read_op {
    struct blk_op op;
    struct read_want want;
    uint64_t first_block;
    uint32_t n_blocks;
    unsigned n_pieces, n_ended;
    int rc;
    struct read_piece pieces[];
};

/** Decides what to do next for the piece; it may have ended afterwards. */
void read_piece_step(struct read_piece *piece);

/* read_request.c */

/** Returns the place of a block of the piece in the caller's memory. */
uint8_t *read_block_data(const struct read_piece *piece, unsigned block);
/** Returns the place of the body of block `block` of the request. */
uint8_t *read_ask_body(const struct read_ask *ask, unsigned block, size_t row_bytes);
/**
 * Asks a candidate for a projection (or PROJECTION_ANY) of blocks [at, at + n) of the
 * piece. False: too many requests in this round, or no memory.
 * @param at_most 0: the newest version; else the newest one that is not newer than this.
 */
bool read_ask_send(struct read_piece *piece, unsigned candidate, unsigned projection,
                   unsigned at, unsigned n, uint64_t at_most);
/** Cancels and frees all requests of the round. */
void read_forget_asks(struct read_piece *piece);

static inline const uint8_t *read_ask_head(const struct read_ask *ask, unsigned block)
{
    return ask->heads + (block - ask->at) * ask->head_bytes;
}

static inline uint64_t read_head_version(const uint8_t *head)
{
    return get_le64(head + 16);
}

static inline uint16_t read_head_user_bytes(const uint8_t *head)
{
    return get_le16(head + 8);
}

/** Returns true if the request was answered and covers this block of the piece. */
static inline bool read_ask_covers(const struct read_ask *ask, unsigned block)
{
    return ask->state == ASK_ANSWERED && block >= ask->at &&
           block < ask->at + (unsigned)ask->n;
}

/* read_select.c */

/** Returns the candidates that were asked in this round. */
uint32_t read_asked_candidates(const struct read_piece *piece);
/**
 * Returns the best candidate not asked yet in this round: healthy ones first, and among
 * them the homes in order, so that rows come before coded projections, and spares last.
 * -1: none of that rank or better.
 */
int read_pick_candidate(const struct read_piece *piece, enum peer_rank worst);
/**
 * Asks a home for its projection, a spare for any that it has. False as read_ask_send().
 */
bool read_ask_candidate(struct read_piece *piece, unsigned candidate, unsigned at,
                        unsigned n);
/**
 * Marks requests that are unanswered for long: late (another storage is asked too), then
 * slow (not waited for any more).
 */
void read_note_slow_ones(struct read_piece *piece, uint64_t now_ns);
/** Counts the requests in a state; slow ones only with slow_too. */
unsigned read_n_in_state(const struct read_piece *piece, enum ask_state state,
                         bool slow_too);
/**
 * Returns true if an answer is expected soon: a request that is not late is under way.
 */
bool read_is_awaited(const struct read_piece *piece);
/**
 * Records how long the storages of a piece took, compared with one another. For pieces
 * that end well.
 */
void read_note_times(struct read_piece *piece, uint64_t now_ns);
/** Asks further candidates until k answers have come or are expected. */
void read_ask_until_k(struct read_piece *piece);
/**
 * Asks for further projections of storages that answered, as one may hold several. False:
 * there are no more.
 */
bool read_ask_beside(struct read_piece *piece, unsigned at, unsigned n);
/** Asks all other candidates about the blocks that are unclear. False: none is left. */
bool read_ask_the_rest(struct read_piece *piece);
/**
 * Asks for the version below where too few have the newest one: it may be complete.
 * False: nothing to ask.
 */
bool read_ask_below(struct read_piece *piece);

/* read_decide.c */

/**
 * Judges the blocks of this round. Returns true if all are clear; a clear block stays so.
 */
bool read_resolve_all(struct read_piece *piece);
/**
 * Hands the clear blocks over to the caller. No answer may be under way: it could still
 * write there.
 */
void read_assemble(struct read_piece *piece);

#endif
