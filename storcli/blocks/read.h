/*
 * read.h - what the files of one read share: read.c (pieces, their rounds, the end), read_ask.c (one request to one
 * storage), read_whom.c (whom to ask next), read_judge.c (what a block is, and handing it over).
 *
 * A run is cut into pieces of one extent. A piece lives in rounds: ask, judge every block, ask
 * more about those that are unclear, and, when all was asked and some are still unclear (a write
 * may be under way), finish the clear ones and begin another round for the rest a little later.
 *
 * Private to these. Thread: the env's.
 */
#ifndef ROZO_STORCLI_BLOCKS_READ_H
#define ROZO_STORCLI_BLOCKS_READ_H

#include "common/base/bytes.h"
#include "storcli/blocks/engine.h"

enum ask_state {
    ASK_SENT,
    ASK_ANSWERED,
    ASK_FAILED, /* unknown, damaged, silent: no answer */
};

enum judged {
    JUDGED_BAD, /* damaged: as if it had not answered for this block */
    JUDGED_DATA,
    JUDGED_HOLE,
};

/* One request to one candidate. */
struct read_ask {
    struct rpc_request rq;
    struct read_piece *piece;
    struct read_ask *next;
    uint64_t sent_ns;
    uint64_t took_ns;  /* answered */
    uint64_t grace_ns; /* it was known to be late when it was asked: so much */
    uint64_t at_most;  /* not 0: what lies below something newer was asked for */
    uint8_t candidate;
    uint8_t projection; /* asked for, then what was answered */
    uint8_t state;      /* enum ask_state */
    bool late; /* not counted on: another was asked, too; what it may say is waited for */
    bool slow; /* silent too long, or its channel is suspect: not waited for either */
    bool in_place;     /* full rows go to the caller's memory */
    bool whole;        /* covers the whole piece, and nothing in it is damaged */
    uint16_t at, n;    /* blocks, within the piece */
    uint32_t present;  /* answered: bitmap of the projections that are there */
    size_t head_bytes; /* of one record */
    uint8_t *heads;    /* scratch, n * head_bytes */
    uint8_t *bodies;   /* scratch, n rows; NULL while all is in place */
    bool heads_judged;
    bool doubt;    /* answered: it may have had something newer */
    bool not_here; /* the projection asked for is not there, others may be */
    bool lacks;    /* the same; stays so */
    uint8_t judged[EXTENT_BLOCKS];     /* enum judged, from `at` on */
    uint16_t row_bytes[EXTENT_BLOCKS]; /* of their bodies */
};

/* What was found out about one block. */
struct read_block {
    uint64_t version;
    uint16_t user_bytes; /* 0: hole */
    bool clear;          /* version and user_bytes are what to return */
    bool done;           /* and the caller has it */
    uint64_t
        below; /* not clear: what is below this version is to be asked for; 0: nothing */
    unsigned doubt_round; /* what was found in it was doubtful; from 1; 0: none */
    uint64_t doubt_version, doubt_newest; /* its version, and of what lay above */
};

/* At most 128 blocks of one extent. */
struct read_piece {
    struct watch watch;
    struct read_op *op;
    struct read_ask *asks; /* owned, of this round */
    unsigned n_asks;
    uint64_t first_block;
    unsigned n_blocks;
    unsigned at, n; /* the blocks of this round: from the first to the last unclear one */
    uint64_t started_ns, deadline_ns,
        again_ns; /* again_ns: when the next round begins, or 0 */
    uint32_t backoff_ms;
    uint32_t denied; /* candidates that refused the capability */
    uint32_t none;   /* candidates that have no file of it, in this round */
    uint32_t
        up_before;     /* candidates that were up when the round had nobody left to ask */
    uint32_t heard;    /* candidates that had something to say, in this round */
    unsigned n_rounds; /* before this one */
    unsigned n_full;   /* the last of these in which all candidates had */
    uint64_t full_ns;  /* when the first of them ended */
    bool moved;        /* a storage knows of a newer distribution */
    bool ended;
    struct read_block blocks[EXTENT_BLOCKS];
};

struct read_op {
    struct op op;
    struct read_want want;
    uint64_t first_block;
    uint32_t n_blocks;
    unsigned n_pieces, n_ended;
    int rc;
    struct read_piece pieces[];
};

/** The next thing to do for the piece; it may have ended afterwards. */
void read_piece_step(struct read_piece *piece);

/* read_ask.c */

/** Where a block of the piece lies in the caller's memory. */
uint8_t *read_block_data(const struct read_piece *piece, unsigned block);
/** Where the body of block `block` of the ask is, or goes to. */
uint8_t *read_ask_body(const struct read_ask *ask, unsigned block, size_t row_bytes);
/**
 * Ask a candidate for a projection (or PROJECTION_ANY) of blocks [at, at + n) of the piece.
 * @param at_most 0: for the newest; or the newest that is not newer than this.
 * False: too many were asked, or no memory.
 */
bool read_ask_send(struct read_piece *piece, unsigned candidate, unsigned projection,
                   unsigned at, unsigned n, uint64_t at_most);
/** Cancel and free all asks of the round. */
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

/** Did it answer, and about this block of the piece? */
static inline bool read_ask_covers(const struct read_ask *ask, unsigned block)
{
    return ask->state == ASK_ANSWERED && block >= ask->at &&
           block < ask->at + (unsigned)ask->n;
}

/* read_whom.c */

/** Bitmap of the candidates that were asked in this round. */
uint32_t read_asked_candidates(const struct read_piece *piece);
/**
 * The best candidate not asked yet this round: healthy ones first, among them the optimal ones in
 * order, so that rows come before coded projections and spares last. -1: none of that rank.
 */
int read_pick_candidate(const struct read_piece *piece, enum peer_rank worst);
/** Ask a home for its projection, a spare for what it has. False as read_ask_send(). */
bool read_ask_candidate(struct read_piece *piece, unsigned candidate, unsigned at,
                        unsigned n);
/** Who is silent for long, or is said to hang, is not counted on any more; or is not even waited for. */
void read_note_slow_ones(struct read_piece *piece, uint64_t now_ns);
unsigned read_n_in_state(const struct read_piece *piece, enum ask_state state,
                         bool slow_too);
/** Is an answer to be expected soon? Not of those who are late. */
bool read_is_awaited(const struct read_piece *piece);
/** The piece ends well: how long did they take who were asked, against one another? */
void read_note_times(struct read_piece *piece, uint64_t now_ns);
/** Keep k answers coming. */
void read_ask_until_k(struct read_piece *piece);
/** Projections that lie beside one that was answered are asked for: a storage may hold several. False: no more of them. */
bool read_ask_beside(struct read_piece *piece, unsigned at, unsigned n);
/** Ask everybody else about the blocks that are unclear; false when there is nobody left. */
bool read_ask_the_rest(struct read_piece *piece);
/** Where too few have the newest version, the one before may be whole: below it. False: nothing to ask. */
bool read_ask_below(struct read_piece *piece);

/* read_judge.c */

/** Are all blocks of this round clear now? What is clear stays so. */
bool read_resolve_all(struct read_piece *piece);
/** Hand over what is clear. No answer may be under way: it could still write where we do. */
void read_assemble(struct read_piece *piece);

#endif
