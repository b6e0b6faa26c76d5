/*
 * repair_int.h - what the parts of a repair share. Private to repair*.c.
 *
 * A repair walks over its range (repair.c) in pieces of at most one extent, several at a time; a piece looks, decides and
 * repairs (repair_piece.h). What the pieces did is made durable and committed in batches (repair_commit.c).
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_INT_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_INT_H

#include "common/base/bufpool.h"
#include "common/base/list.h"
#include "storaged/heal/repair/repair.h"
#include "storaged/heal/repair/repair_heads.h"

enum {
    REPAIR_RANGES_MAX = 1024, /* of one batch */
    REPAIR_MARKS_MAX = 65536, /* large marks of a file that are looked at */
    REPAIR_BATCH_BYTES = 32 << 20,
    REPAIR_AGAIN_MS = 500,
};

struct repairer {
    struct repairer_config config;
    uint64_t memory_used;
    struct bufpool pool; /* what pieces read and make; empty when there is no repair */
    uint64_t clients_ns; /* when a storage last said that it serves clients; 0: never */
    struct list_node repairs;
    unsigned n_repairs;
};

/* Blocks [first, first + n), n 0: to the end, that have this version at these candidates. */
struct repair_range {
    uint64_t first, n, version;
    uint32_t holders;     /* told they have it, or something newer */
    uint32_t projections; /* these of it; 0: it is a hole, or there is no commit */
    uint32_t clean; /* not 0: projections that `cleaner` needs no more; no commit then */
    uint8_t cleaner;
};

/* A large mark as one candidate told it. */
struct repair_mark {
    uint64_t first, end; /* end UINT64_MAX: of everything */
    uint64_t version;
    uint8_t candidate;
};

enum repair_state {
    REPAIR_BEGIN,
    REPAIR_SYNC_FIRST, /* verifiers before anything is looked at */
    REPAIR_WALK,
    REPAIR_BATCH_SYNC,   /* what the pieces saw and did is made stable ... */
    REPAIR_BATCH_COMMIT, /* ... committed, and no longer wanted spares dropped */
    REPAIR_END,
    REPAIR_SPOILED, /* spares drop files that nobody can read any more, nor needs */
    REPAIR_WHOLE,   /* files that were partial are told that they have everything */
    REPAIR_REMOVE, /* what came back of a removed file, where the power failed, goes again */
};

enum repair_look {
    WALK_EXTENTS, /* the next extent may have something */
    WALK_NEXT,    /* ask where something is */
    WALK_ASKED,
    WALK_TAIL,  /* the mark to the end of everything goes to whoever missed it */
    WALK_FLATS, /* what lies between here and there: large marks, or nothing */
    WALK_OVER,
};

struct repair {
    struct list_node link;
    struct repairer *repairer; /* borrowed */
    struct heal_file file;
    struct repair_request request;
    repair_done_cb *done;
    void *arg;
    struct repair_result result;
    enum repair_state state;
    struct env_timer timer; /* the next step, soon */
    uint32_t own;           /* bitmap: our place in the distribution, if any */
    uint32_t scope;         /* projections that are to be repaired */
    bool seen_file;         /* somebody has it */
    bool removed;           /* a home takes nothing of it: it was told to remove it */
    uint32_t unknown; /* projections whose homes did not know of blocks never written */
    uint32_t spoiled[DIST_MAX]; /* see struct repair_heads */
    uint64_t newest;            /* version that somebody has */
    uint64_t refused_ns;        /* since then our own storage tells nothing; 0: it does */
    bool unseen;                /* what lies there, somewhere in the range */
    uint32_t none;     /* candidates that said last that they have no file of it */
    uint32_t damaged;  /* ... that what they have of it cannot be believed, ... */
    uint32_t unsynced; /* ... and of these: that no sync of it had ended there */
    bool wants_memory; /* another repair's is to be given back first */
    uint32_t doubt; /* candidates that may have forgotten something, nobody knows what */
    uint32_t
        proved; /* candidates that lost nothing since the repair began, by the last sync */
    bool uncommitted; /* something could not be committed */

    /* Walking. */
    enum repair_look look;
    bool small; /* every extent of the range is looked at, without asking */
    uint64_t cursor, end;
    uint64_t head;       /* the next block that somebody has a head of */
    uint64_t again_from; /* to be walked once more from here on; UINT64_MAX: no */
    unsigned n_agains;
    uint64_t counted_to; /* so far it was walked once already */
    struct list_node pieces;
    unsigned n_pieces;
    bool reads_ahead; /* the last piece was made as a whole: so may be the next */
    unsigned n_dense; /* pieces with data, since the last that had none */
    struct repair_ask next_asks[DIST_MAX];
    unsigned n_asked;
    uint64_t next_block[DIST_MAX];
    uint32_t next_told;
    uint32_t next_refused; /* candidates that gave no answer which tells anything */
    uint64_t next_at_ns;   /* not before they are asked again */
    uint32_t next_epoch;   /* of the fence that was up when they were asked; 0: none */
    struct repair_mark *marks; /* owned */
    unsigned n_marks;
    bool marks_lost; /* some found no room: nothing may be told from them */
    bool tail_tried;
    uint64_t tail_from;   /* from here on ... */
    uint32_t tail_healed; /* ... these candidates were given the mark to the end */

    /* The fence. */
    uint32_t fence_epoch, fence_wanted;
    bool fence_up;
    uint32_t fenced; /* candidates that have it */
    struct repair_ask fence_asks[DIST_MAX];
    unsigned n_fencing;

    /* Batches. */
    struct repair_range *ranges; /* owned */
    unsigned n_ranges;
    uint64_t batch_bytes;
    bool pressure;
    uint32_t to_sync; /* candidates that got something which no sync covers yet */
    uint64_t verifier[DIST_MAX];
    uint32_t verified;     /* candidates whose verifier we have */
    uint32_t synced;       /* in this batch, with the same verifier as before */
    uint32_t first_synced; /* the first sync told their verifier, and it is that still */
    struct repair_ask batch_asks[DIST_MAX];
    unsigned n_batch;
    unsigned batch_at; /* ranges done */
    bool cleaning;
};

struct repair_piece;

/* repair.c */
void repair_step_soon(struct repair *repair);
void repair_problem(struct repair *repair, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** What begins here could not be done just now: the walk comes back. */
void repair_again(struct repair *repair, uint64_t from);
/**
 * Our own storage did not tell what it was asked for. True: ask once more, in REPAIR_AGAIN_MS. Else it is away, or was
 * asked for too long: the repair does not end well.
 */
bool repair_own_refused(struct repair *repair);
/** It did. */
void repair_own_told(struct repair *repair);
/** A piece is over; it is freed. */
void repair_piece_ended(struct repair_piece *piece);
/** The fence of at least this epoch is to be up: true when it is (or was tried). */
bool repair_want_fence(struct repair *repair, uint32_t epoch);

/* repair_walk.c */
/** Begin what can be begun; true: all of the range was looked at. */
bool repair_walk(struct repair *repair);

/* repair_commit.c */
/** These blocks have the version at these candidates: to be committed once that is stable. */
void repair_note_commit(struct repair *repair, uint64_t first, uint64_t n,
                        uint64_t version, uint32_t holders, uint32_t projections);
/** Spare `candidate` needs these projections of the blocks no more, once their homes' are stable. */
void repair_note_clean(struct repair *repair, uint64_t first, uint64_t n,
                       uint64_t version, uint32_t holders, unsigned candidate,
                       uint32_t projections);
bool repair_batch_is_due(const struct repair *repair);
bool repair_batch_is_empty(const struct repair *repair);
/** A write or mark was answered with it. */
void repair_note_verifier(struct repair *repair, unsigned candidate, uint64_t verifier);
/** Ask all for their verifiers, syncing what they have. Steps the repair when answered. */
void repair_sync_start(struct repair *repair, uint32_t candidates);
/** False: nothing more to commit or drop. Steps the repair when answered. */
bool repair_commit_next(struct repair *repair);
/** Their homes have all they should have of these projections. True: wait; steps the repair. */
bool repair_whole_start(struct repair *repair, uint32_t projections);
/** Every home has all of it: spares drop their spoiled files. True: wait; steps the repair. */
bool repair_spoiled_start(struct repair *repair);
/** The file goes wherever it is. True: wait; steps the repair. */
bool repair_remove_start(struct repair *repair);
void repair_commit_cancel(struct repair *repair);

#endif
