/*
 * unsynced.h - which storages acknowledged data of a file that is not on stable storage
 * yet.
 *
 * Pure. A sorted list of disjoint block ranges, each with the candidates that hold it;
 * exact while it is short, coarser (but never omitting a range) when it would grow too
 * long.
 */
#ifndef ROZO_STORCLI_RULES_UNSYNCED_H
#define ROZO_STORCLI_RULES_UNSYNCED_H

#include <stdbool.h>
#include <stdint.h>

#include "common/wire/record.h"

enum {
    UNSYNCED_RANGES_MAX = 1024,
    UNSYNCED_MARKS_MAX = 32,
    UNSYNCED_NO_PROJECTION = 255,
};

/* Candidates that hold a range. Bits are places in the distribution. */
struct holders {
    uint32_t all;   /* hold every unsynced block of the range */
    uint32_t any;   /* hold some of it: all of these must be synced */
    uint32_t bare;  /* holes only, of no projection yet; in `any`: may get one */
    uint32_t gone;  /* held some of it and may have lost it since */
    uint32_t lacks; /* projections that no storage heard has */
    uint8_t projection[DIST_MAX]; /* projection of each candidate in `all` */
};

/**
 * Returns the projections a hole may count for: a home counts for its own, a spare for
 * any.
 */
static inline uint32_t holders_hole_projections(unsigned candidate, unsigned n)
{
    return candidate < n ? 1u << candidate : (1u << n) - 1;
}

/**
 * Computes the holders of a block. has[i]: the projections that candidate i has of it, or
 * may count for if it is in `holes` (has the block as a hole). Each candidate counts for
 * one projection, so that as many different ones as possible are covered.
 */
struct holders holders_of(const uint32_t has[DIST_MAX], uint32_t holes);

struct unsynced_range {
    uint64_t first_block;
    uint64_t end_block; /* exclusive */
    uint64_t version;   /* each of its unsynced blocks has this version or a newer one */
    bool gaps;          /* some of its blocks may not be unsynced at all */
    struct holders held;
};

/* Blocks that became holes. Marks may overlap, but at most one goes to the end. */
struct unsynced_mark {
    uint64_t first_block;
    uint64_t n_blocks; /* 0: to the end */
    uint64_t version;
    struct holders held;
};

/* Owned by one file or one sync at a time. Zero-initialise. */
struct unsynced {
    struct unsynced_range *ranges; /* owned */
    uint32_t n_ranges, ranges_max; /* ranges_max: entries allocated */
    uint32_t n_marks;
    uint32_t verified;           /* candidates whose verifier is known */
    uint64_t verifier[DIST_MAX]; /* from the answers to writes, see StSyncResp */
    struct unsynced_mark *marks; /* owned, UNSYNCED_MARKS_MAX of them; or NULL */
};

void unsynced_free(struct unsynced *u);
/**
 * Replaces the entries of these blocks: now `held` holds them. Out of memory ends the
 * process.
 */
void unsynced_add(struct unsynced *u, uint64_t version, uint64_t first_block,
                  uint64_t n_blocks, const struct holders *held);
/** Removes these blocks: something newer is on stable storage. */
void unsynced_remove(struct unsynced *u, uint64_t first_block, uint64_t n_blocks);
void unsynced_add_mark(struct unsynced *u, uint64_t version, uint64_t first_block,
                       uint64_t n_blocks, const struct holders *held);
/**
 * Compares this storage's verifier with the one before: if it differs, what it holds of
 * the list so far may be lost. Returns true then. Call it before adding the data that the
 * answer was for.
 */
bool unsynced_verify(struct unsynced *u, unsigned candidate, uint64_t verifier);
/**
 * Forgets a candidate whose place another storage has taken: the other holders of its
 * data are enough.
 */
void unsynced_replaced(struct unsynced *u, unsigned candidate);
bool unsynced_is_empty(const struct unsynced *u);
/** Returns true if exactly this block is in the list, as it was written. */
bool unsynced_knows(const struct unsynced *u, uint64_t block);
/** Returns true if this block may be in the list. */
bool unsynced_has(const struct unsynced *u, uint64_t block);
/**
 * Returns true if holders of the block may have lost it, and fewer than k projections are
 * left.
 */
bool unsynced_has_lost(const struct unsynced *u, uint64_t block, unsigned k);
/** Returns all candidates that hold anything unsynced. */
uint32_t unsynced_any(const struct unsynced *u);
/**
 * Puts an older list (whose sync failed) under a newer one; `older` is empty afterwards.
 */
void unsynced_merge_older(struct unsynced *u, struct unsynced *older);

#endif
