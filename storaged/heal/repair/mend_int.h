/*
 * mend_int.h - what the parts of a mend share. Private to mend*.c.
 *
 * A mend walks over its range (mend.c) in pieces of at most one extent, several at a time; a piece looks, decides and
 * repairs (mend_piece.h). What the pieces did is made durable and committed in batches (mend_commit.c).
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_MEND_INT_H
#define ROZO_STORAGED_HEAL_REPAIR_MEND_INT_H

#include "common/base/bufpool.h"
#include "common/base/list.h"
#include "storaged/heal/repair/heads.h"
#include "storaged/heal/repair/mend.h"

enum {
    MEND_RANGES_MAX = 1024, /* of one batch */
    MEND_MARKS_MAX = 65536, /* large marks of a file that are looked at */
    MEND_BATCH_BYTES = 32 << 20,
    MEND_AGAIN_MS = 500,
};

struct mender {
    struct mender_config config;
    uint64_t memory_used;
    struct bufpool pool; /* what pieces read and make; empty when there is no mend */
    uint64_t clients_ns; /* when a storage last said that it serves clients; 0: never */
    struct list_node mends;
    unsigned n_mends;
};

/* Blocks [first, first + n), n 0: to the end, that have this version at these candidates. */
struct mend_range {
    uint64_t first, n, version;
    uint32_t holders;     /* told they have it, or something newer */
    uint32_t projections; /* these of it; 0: it is a hole, or there is no commit */
    uint32_t clean; /* not 0: projections that `cleaner` needs no more; no commit then */
    uint8_t cleaner;
};

/* A large mark as one candidate told it. */
struct mend_mark {
    uint64_t first, end; /* end UINT64_MAX: of everything */
    uint64_t version;
    uint8_t candidate;
};

enum mend_state {
    MEND_BEGIN,
    MEND_SYNC_FIRST, /* verifiers before anything is looked at */
    MEND_WALK,
    MEND_BATCH_SYNC,   /* what the pieces saw and did is made stable ... */
    MEND_BATCH_COMMIT, /* ... committed, and no longer wanted spares dropped */
    MEND_END,
    MEND_SPOILED, /* spares drop files that nobody can read any more, nor needs */
    MEND_WHOLE,   /* files that were partial are told that they have everything */
    MEND_REMOVE, /* what came back of a removed file, where the power failed, goes again */
};

enum mend_look {
    WALK_EXTENTS, /* the next extent may have something */
    WALK_NEXT,    /* ask where something is */
    WALK_ASKED,
    WALK_TAIL,  /* the mark to the end of everything goes to whoever missed it */
    WALK_FLATS, /* what lies between here and there: large marks, or nothing */
    WALK_OVER,
};

struct mend {
    struct list_node link;
    struct mender *mender; /* borrowed */
    struct heal_file file;
    struct mend_request request;
    mend_done_cb *done;
    void *arg;
    struct mend_result result;
    enum mend_state state;
    struct env_timer timer; /* the next step, soon */
    uint32_t own;           /* bitmap: our place in the distribution, if any */
    uint32_t scope;         /* projections that are to be mended */
    bool seen_file;         /* somebody has it */
    bool removed;           /* a home takes nothing of it: it was told to remove it */
    uint32_t unknown; /* projections whose homes did not know of blocks never written */
    uint32_t spoiled[DIST_MAX]; /* see struct heads */
    uint64_t newest;            /* version that somebody has */
    uint64_t refused_ns;        /* since then our own storage tells nothing; 0: it does */
    bool unseen;                /* what lies there, somewhere in the range */
    uint32_t none;     /* candidates that said last that they have no file of it */
    uint32_t damaged;  /* ... that what they have of it cannot be believed, ... */
    uint32_t unsynced; /* ... and of these: that no sync of it had ended there */
    bool wants_memory; /* another mend's is to be given back first */
    uint32_t doubt; /* candidates that may have forgotten something, nobody knows what */
    uint32_t
        proved; /* candidates that lost nothing since the mend began, by the last sync */
    bool uncommitted; /* something could not be committed */

    /* Walking. */
    enum mend_look look;
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
    struct ask next_asks[DIST_MAX];
    unsigned n_asked;
    uint64_t next_block[DIST_MAX];
    uint32_t next_told;
    uint32_t next_refused;   /* candidates that gave no answer which tells anything */
    uint64_t next_at_ns;     /* not before they are asked again */
    uint32_t next_epoch;     /* of the fence that was up when they were asked; 0: none */
    struct mend_mark *marks; /* owned */
    unsigned n_marks;
    bool marks_lost; /* some found no room: nothing may be told from them */
    bool tail_tried;
    uint64_t tail_from;   /* from here on ... */
    uint32_t tail_healed; /* ... these candidates were given the mark to the end */

    /* The fence. */
    uint32_t fence_epoch, fence_wanted;
    bool fence_up;
    uint32_t fenced; /* candidates that have it */
    struct ask fence_asks[DIST_MAX];
    unsigned n_fencing;

    /* Batches. */
    struct mend_range *ranges; /* owned */
    unsigned n_ranges;
    uint64_t batch_bytes;
    bool pressure;
    uint32_t to_sync; /* candidates that got something which no sync covers yet */
    uint64_t verifier[DIST_MAX];
    uint32_t verified;     /* candidates whose verifier we have */
    uint32_t synced;       /* in this batch, with the same verifier as before */
    uint32_t first_synced; /* the first sync told their verifier, and it is that still */
    struct ask batch_asks[DIST_MAX];
    unsigned n_batch;
    unsigned batch_at; /* ranges done */
    bool cleaning;
};

struct mend_piece;

/* mend.c */
void mend_step_soon(struct mend *mend);
void mend_problem(struct mend *mend, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** What begins here could not be done just now: the walk comes back. */
void mend_again(struct mend *mend, uint64_t from);
/**
 * Our own storage did not tell what it was asked for. True: ask once more, in MEND_AGAIN_MS. Else it is away, or was
 * asked for too long: the mend does not end well.
 */
bool mend_own_refused(struct mend *mend);
/** It did. */
void mend_own_told(struct mend *mend);
/** A piece is over; it is freed. */
void mend_piece_ended(struct mend_piece *piece);
/** The fence of at least this epoch is to be up: true when it is (or was tried). */
bool mend_want_fence(struct mend *mend, uint32_t epoch);

/* mend_walk.c */
/** Begin what can be begun; true: all of the range was looked at. */
bool mend_walk(struct mend *mend);

/* mend_commit.c */
/** These blocks have the version at these candidates: to be committed once that is stable. */
void mend_note_commit(struct mend *mend, uint64_t first, uint64_t n, uint64_t version,
                      uint32_t holders, uint32_t projections);
/** Spare `candidate` needs these projections of the blocks no more, once their homes' are stable. */
void mend_note_clean(struct mend *mend, uint64_t first, uint64_t n, uint64_t version,
                     uint32_t holders, unsigned candidate, uint32_t projections);
bool mend_batch_is_due(const struct mend *mend);
bool mend_batch_is_empty(const struct mend *mend);
/** A write or mark was answered with it. */
void mend_note_verifier(struct mend *mend, unsigned candidate, uint64_t verifier);
/** Ask all for their verifiers, syncing what they have. Steps the mend when answered. */
void mend_sync_start(struct mend *mend, uint32_t candidates);
/** False: nothing more to commit or drop. Steps the mend when answered. */
bool mend_commit_next(struct mend *mend);
/** Their homes have all they should have of these projections. True: wait; steps the mend. */
bool mend_whole_start(struct mend *mend, uint32_t projections);
/** Every home has all of it: spares drop their spoiled files. True: wait; steps the mend. */
bool mend_spoiled_start(struct mend *mend);
/** The file goes wherever it is. True: wait; steps the mend. */
bool mend_remove_start(struct mend *mend);
void mend_commit_cancel(struct mend *mend);

#endif
