/*
 * repair_commit.h - the batches of a repair: what its pieces saw and did is made stable
 * and committed. Private to repair*.c.
 *
 * Only repair_commit.c writes these members.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_COMMIT_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_COMMIT_H

#include "storaged/heal/decide/repair_ask.h"

struct repair;

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

/* Steps after the sync of a batch. */
enum batch_step {
    BATCH_COMMIT, /* commits all ranges that may be committed */
    BATCH_CLEAN,  /* lets spares drop their copies, one range after the other */
};

struct repair_batch {
    struct repair_range *ranges; /* owned */
    unsigned n_ranges;
    uint64_t bytes; /* bytes of bodies written since the last batch */
    bool pressure;  /* some journal gets full */
    enum batch_step step;
    unsigned at;      /* BATCH_CLEAN: ranges done */
    uint32_t to_sync; /* candidates that got something not yet covered by a sync */
    uint64_t verifier[DIST_MAX];
    uint32_t verified; /* candidates whose verifier is known */
    /* Candidates synced in this batch whose verifier is still the one known. */
    uint32_t synced;
    uint32_t first_synced; /* candidates that still have the verifier of the first sync */
    /* Candidates that lost nothing since the repair began, by the last sync. */
    uint32_t proved;
    bool uncommitted;   /* something could not be committed */
    uint32_t unspoiled; /* candidates that dropped their unreadable files */
    struct repair_ask asks[DIST_MAX];
    unsigned n_asks; /* under way */
};

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
/** Takes the verifier that came with the answer to a write or mark. */
void repair_note_verifier(struct repair *repair, unsigned candidate, uint64_t verifier);
/** Notes that the candidate got something that a sync must make stable. */
void repair_note_unstable(struct repair *repair, unsigned candidate);
/** Notes that bodies were written. */
void repair_note_bytes(struct repair *repair, uint64_t bytes);
/** Notes that a journal gets full: the batch ends early. */
void repair_note_pressure(struct repair *repair);

/** Returns whether the batch must be synced and committed before the walk goes on. */
bool repair_batch_is_due(const struct repair *repair);
bool repair_batch_is_empty(const struct repair *repair);
/** Returns the candidates that must be synced for the batch. */
uint32_t repair_batch_candidates(const struct repair *repair);
/** Begins another batch after one that was empty. */
void repair_batch_skip(struct repair *repair);
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
