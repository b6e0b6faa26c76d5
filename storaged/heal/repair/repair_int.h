/*
 * repair_int.h - declarations shared by the parts of a repair. Private to repair*.c.
 *
 * A repair walks over its range (repair.c, repair_walk.c) in pieces of at most one
 * extent, several at a time. A piece looks, decides and repairs (repair_piece.h). The
 * work of the pieces is made durable and committed in batches (repair_commit.c).
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_INT_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_INT_H

#include "common/base/bufpool.h"
#include "common/base/list.h"
#include "storaged/heal/decide/repair_heads.h"
#include "storaged/heal/repair/repair.h"

enum {
    REPAIR_RANGES_MAX = 1024, /* in one batch */
    REPAIR_MARKS_MAX = 65536, /* large marks of a file that are kept in memory */
    REPAIR_BATCH_BYTES = 32 << 20,
    REPAIR_AGAIN_MS = 500,
};

/* Settings and memory shared by all repairs of one user. */
struct repairer {
    struct repairer_config config;
    uint64_t memory_used;
    struct bufpool pool; /* buffers of pieces; empty when there is no repair */
    uint64_t clients_ns; /* when a storage last said that it serves clients; 0: never */
    struct list_node repairs;
    unsigned n_repairs;
};

/* Blocks [first, first + n) (n 0: to the end) that have this version at these
 * candidates. */
struct repair_range {
    uint64_t first, n, version;
    uint32_t holders; /* candidates that have it or something newer */
    /* Projections of it that they have; 0: a hole, or nothing to commit. */
    uint32_t projections;
    /* Not 0: projections that `cleaner` can drop; then nothing is committed. */
    uint32_t clean;
    uint8_t cleaner;
};

/* A large mark that one candidate reported. */
struct repair_mark {
    uint64_t first, end; /* end UINT64_MAX: no end */
    uint64_t version;
    uint8_t candidate;
};

/* Steps of a repair, in this order; batches alternate with the walk. */
enum repair_state {
    REPAIR_BEGIN,
    REPAIR_SYNC_FIRST, /* fetches verifiers before anything is looked at */
    REPAIR_WALK,
    REPAIR_BATCH_SYNC,   /* makes stable what the pieces saw and did */
    REPAIR_BATCH_COMMIT, /* commits it, and lets spares drop their copies */
    REPAIR_END,
    REPAIR_SPOILED, /* lets spares drop unreadable files that are not needed */
    REPAIR_WHOLE,   /* tells homes with partial files that they have everything */
    /* Removes files of a removed file id that a power failure brought back. */
    REPAIR_REMOVE,
};

/* Steps of the walk over the range. */
enum repair_look {
    WALK_EXTENTS, /* the next extent may have something */
    WALK_NEXT,    /* asks where the next heads are */
    WALK_ASKED,
    WALK_TAIL,  /* gives the mark to the end of the file to homes that missed it */
    WALK_FLATS, /* stretches without heads: large marks, or nothing */
    WALK_OVER,
};

/* One repair of a range of a file. */
struct repair {
    struct list_node link;
    struct repairer *repairer; /* borrowed */
    struct heal_file file;
    struct repair_request request;
    repair_done_cb *done;
    void *arg;
    struct repair_result result;
    enum repair_state state;
    struct env_timer timer; /* next step, soon */
    uint32_t own;           /* bitmap: our place in the distribution; 0: none */
    uint32_t scope;         /* projections that are repaired */
    bool seen_file;         /* some storage has the file */
    bool removed; /* a home refuses to take the file: it was asked to remove it */
    /* Projections whose homes did not know about never written blocks. */
    uint32_t unknown;
    uint32_t spoiled[DIST_MAX]; /* see struct repair_heads */
    uint64_t newest;            /* newest version that any storage has */
    uint64_t refused_ns; /* since when our own storage has not answered; 0: it answers */
    bool unseen;         /* part of the range could not be looked at on our own storage */
    uint32_t none;     /* candidates whose last answer was that they have no such file */
    uint32_t damaged;  /* candidates whose file is unreadable */
    uint32_t unsynced; /* subset of damaged: no sync of the file ever ended there */
    bool wants_memory; /* waits for memory of another repair */
    uint32_t doubt;    /* candidates that may have lost something unknown */
    /* Candidates that lost nothing since the repair began, by the last sync. */
    uint32_t proved;
    bool uncommitted; /* something could not be committed */

    /* Walk. */
    enum repair_look look;
    bool small; /* visits every extent of the range without asking for heads */
    uint64_t cursor, end;
    uint64_t head;       /* next block that any storage has a head of */
    uint64_t again_from; /* block from which the walk is repeated; UINT64_MAX: none */
    unsigned n_agains;
    /* Blocks below were walked before, so they are not counted again. */
    uint64_t counted_to;
    struct list_node pieces;
    unsigned n_pieces;
    bool reads_ahead; /* the last piece was rebuilt as a whole, so the next may be, too */
    unsigned n_dense; /* pieces with data since the last one without */
    struct repair_ask next_asks[DIST_MAX];
    unsigned n_asked;
    uint64_t next_block[DIST_MAX];
    uint32_t next_told;
    uint32_t next_refused; /* candidates that gave no usable answer */
    uint64_t next_at_ns;   /* earliest time to ask again */
    /* Epoch of the fence that was up when they were asked; 0: none. */
    uint32_t next_epoch;
    struct repair_mark *marks; /* owned */
    unsigned n_marks;
    bool marks_lost; /* some marks found no room: the marks cannot be used */
    bool tail_tried;
    uint64_t tail_from;   /* first block of the mark to the end ... */
    uint32_t tail_healed; /* ... that these candidates were given */

    /* Fence. */
    uint32_t fence_epoch, fence_wanted;
    bool fence_up;
    uint32_t fenced; /* candidates that confirmed it */
    struct repair_ask fence_asks[DIST_MAX];
    unsigned n_fencing;

    /* Batches. */
    struct repair_range *ranges; /* owned */
    unsigned n_ranges;
    uint64_t batch_bytes;
    bool pressure;
    uint32_t to_sync; /* candidates that got something not yet covered by a sync */
    uint64_t verifier[DIST_MAX];
    uint32_t verified; /* candidates whose verifier is known */
    /* Candidates synced in this batch whose verifier is still the one known. */
    uint32_t synced;
    uint32_t first_synced; /* candidates that still have the verifier of the first sync */
    struct repair_ask batch_asks[DIST_MAX];
    unsigned n_batch;
    unsigned batch_at; /* ranges done */
    bool cleaning;
};

struct repair_piece;

/* repair.c */
/** Does the next step of the repair, later, from its timer. */
void repair_step_soon(struct repair *repair);
/** Sets the text of result.problem. */
void repair_problem(struct repair *repair, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** Notes that this place could not be repaired now; the walk comes back to it. */
void repair_again(struct repair *repair, uint64_t from);
/**
 * Notes that our own storage left a request unanswered. Returns true: ask once more, in
 * REPAIR_AGAIN_MS. Returns false if it is down or did not answer for too long: then the
 * repair ends with an error.
 */
bool repair_own_refused(struct repair *repair);
/** Notes that our own storage answered: resets the timer of repair_own_refused(). */
void repair_own_told(struct repair *repair);
/** Ends a piece and frees it. */
void repair_piece_ended(struct repair_piece *piece);
/**
 * Asks for a fence of at least this epoch. Returns true if it is up (or setting it was
 * tried).
 */
bool repair_want_fence(struct repair *repair, uint32_t epoch);

/* repair_walk.c */
/**
 * Starts the pieces that there is room for. Returns true when all of the range was looked
 * at.
 */
bool repair_walk(struct repair *repair);

/* repair_commit.c */
/** Notes that these candidates have the version, to be committed once that is stable. */
void repair_note_commit(struct repair *repair, uint64_t first, uint64_t n,
                        uint64_t version, uint32_t holders, uint32_t projections);
/**
 * Notes that spare `candidate` can drop these projections of the blocks once they are
 * stable at their homes.
 */
void repair_note_clean(struct repair *repair, uint64_t first, uint64_t n,
                       uint64_t version, uint32_t holders, unsigned candidate,
                       uint32_t projections);
/** Returns whether the batch must be synced and committed before the walk goes on. */
bool repair_batch_is_due(const struct repair *repair);
bool repair_batch_is_empty(const struct repair *repair);
/** Takes the verifier that came with the answer to a write or mark. */
void repair_note_verifier(struct repair *repair, unsigned candidate, uint64_t verifier);
/**
 * Syncs the file at these candidates and takes their verifiers. Steps the repair when all
 * answered.
 */
void repair_sync_start(struct repair *repair, uint32_t candidates);
/**
 * Commits and drops the next part of the batch. Returns false when all is done; else
 * steps the repair when answered.
 */
bool repair_commit_next(struct repair *repair);
/**
 * Tells the homes of these projections that their files are complete. Returns true if
 * there is something to wait for; steps the repair then.
 */
bool repair_whole_start(struct repair *repair, uint32_t projections);
/**
 * Lets spares drop their unreadable files, since every home has everything. Returns true
 * if there is something to wait for; steps the repair then.
 */
bool repair_spoiled_start(struct repair *repair);
/**
 * Removes the file at all candidates. Returns true if there is something to wait for;
 * steps the repair then.
 */
bool repair_remove_start(struct repair *repair);
/** Cancels the requests of the batch and frees its ranges. */
void repair_commit_cancel(struct repair *repair);

#endif
