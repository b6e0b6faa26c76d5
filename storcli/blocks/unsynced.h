/*
 * unsynced.h - which storages acknowledged what of a file that is not on stable storage yet.
 *
 * Pure. A sorted list of disjoint block ranges, each with the candidates that hold it; exact while
 * it is short, coarser (never forgetful) when it would grow too long.
 */
#ifndef ROZO_STORCLI_BLOCKS_UNSYNCED_H
#define ROZO_STORCLI_BLOCKS_UNSYNCED_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/record.h"

enum {
    UNSYNCED_RANGES_MAX = 1024,
    UNSYNCED_MARKS_MAX = 32,
    UNSYNCED_NO_PROJECTION = 255,
};

/* Who holds something. Bits are places in the distribution. */
struct holders {
    uint32_t all; /* they hold every unsynced block of the range */
    uint32_t any; /* they hold some of it: all of these are to be synced */
    uint32_t
        bare; /* those of `any` that hold it only as holes and count for no projection: they may be given one */
    uint32_t gone;  /* they held some of it and may have lost it since */
    uint32_t lacks; /* projections that nobody who was heard has, of what others wrote */
    uint8_t projection[DIST_MAX]; /* of those in `all` */
};

/** A hole is of no projection: a home counts for its own, a spare for any. */
static inline uint32_t holders_hole_projections(unsigned candidate, unsigned n)
{
    return candidate < n ? 1u << candidate : (1u << n) - 1;
}

/**
 * Those who hold a block: has[i] are the projections that candidate i has of it, or may count for when it is in `holes`, that is, has
 * it as a hole. Each counts for one of them, so that they are as many different ones as can be.
 */
struct holders holders_of(const uint32_t has[DIST_MAX], uint32_t holes);

struct unsynced_range {
    uint64_t first_block;
    uint64_t end_block; /* exclusive */
    uint64_t version;   /* every unsynced block of it has this one or a newer one */
    bool gaps;          /* some of its blocks may not be unsynced at all */
    struct holders held;
};

/* Blocks that became holes. They may overlap, but at most one goes to the end. */
struct unsynced_mark {
    uint64_t first_block;
    uint64_t n_blocks; /* 0: to the end */
    uint64_t version;
    struct holders held;
};

/* Zero-initialise. Owned by one file or one sync at a time. */
struct unsynced {
    struct unsynced_range *ranges; /* owned */
    uint32_t n_ranges, ranges_max; /* ranges_max: allocated */
    uint32_t n_marks;
    uint32_t verified;           /* candidates whose verifier is known */
    uint64_t verifier[DIST_MAX]; /* what they answered writes with, see StSyncResp */
    struct unsynced_mark
        *marks; /* owned; NULL before the first, then room for UNSYNCED_MARKS_MAX */
};

void unsynced_free(struct unsynced *u);
/** The newest word on these blocks: now `held` holds them. Out of memory ends the process. */
void unsynced_add(struct unsynced *u, uint64_t version, uint64_t first_block,
                  uint64_t n_blocks, const struct holders *held);
/** These blocks have something newer that is on stable storage. */
void unsynced_remove(struct unsynced *u, uint64_t first_block, uint64_t n_blocks);
void unsynced_add_mark(struct unsynced *u, uint64_t version, uint64_t first_block,
                       uint64_t n_blocks, const struct holders *held);
/** This storage answered with this verifier: when it is another than before, what it holds of the
 * list so far may be lost. Call it before adding what the answer was to. True when it is so. */
bool unsynced_verify(struct unsynced *u, unsigned candidate, uint64_t verifier);
/** Another storage is in this candidate's place: whoever else holds what it held is enough. */
void unsynced_replaced(struct unsynced *u, unsigned candidate);
bool unsynced_is_empty(const struct unsynced *u);
/** Is just this block in the list, as it was written? */
bool unsynced_knows(const struct unsynced *u, uint64_t block);
/** Is this block in it, perhaps? */
bool unsynced_has(const struct unsynced *u, uint64_t block);
/** Have so many who held it, perhaps, lost it that fewer than k projections are left? */
bool unsynced_has_lost(const struct unsynced *u, uint64_t block, unsigned k);
/** Everybody who holds something unsynced. */
uint32_t unsynced_any(const struct unsynced *u);
/** Put an older list (whose sync failed) under a newer one; `older` is empty afterwards. */
void unsynced_merge_older(struct unsynced *u, struct unsynced *older);

#endif
