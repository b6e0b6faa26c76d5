/*
 * unstable_ranges.h - blocks of a file that clients wrote in place and that may not be
 * stable yet.
 *
 * Stable means: on as many storages as a write needs. A few ranges, which may cover too
 * much but never too little. A sync covers what was written before it; the client that
 * asked for it makes sure that all storages with the blocks make them stable, or sees
 * that one failed. So synced blocks stay unstable only for a while, in case that client
 * dies in between. Blocks in the journal are unstable until their commit and are not
 * listed here. Pure.
 */
#ifndef ROZO_STORAGED_OBJECT_UNSTABLE_RANGES_H
#define ROZO_STORAGED_OBJECT_UNSTABLE_RANGES_H

#include <stdint.h>

enum {
    UNSTABLE_RANGES_MAX = 8,
    UNSTABLE_LIST_MAX = 32, /* ranges of an answer */
    UNSTABLE_MS =
        60000, /* time that synced blocks stay unstable, or up to twice as long */
};

struct unstable_range {
    uint64_t first, end;
};

struct unstable_list {
    unsigned n;
    struct unstable_range ranges[UNSTABLE_RANGES_MAX]; /* ascending, disjoint */
    uint64_t oldest;                                   /* lowest version in the list */
};

/* All zero when empty. */
struct unstable_ranges {
    struct unstable_list fresh; /* written since the last sync began */
    /* synced in this span of UNSTABLE_MS; in the one before */
    struct unstable_list synced[2];
    uint64_t since_ns; /* ns, monotonic; start of synced[0] */
};

/**
 * Adds [first, end) to a list of at most max ranges; above that the two closest ones are
 * merged.
 */
void unstable_list_add(struct unstable_range *ranges, unsigned *n, unsigned max,
                       uint64_t first, uint64_t end);
/** Adds blocks that a client's write of this version put in place. */
void unstable_ranges_add(struct unstable_ranges *l, uint64_t first, uint64_t end,
                         uint64_t version);
/** Records that a sync for a client begins. */
void unstable_ranges_sync(struct unstable_ranges *l, uint64_t now_ns);
/**
 * Adds all ranges to a list of at most UNSTABLE_LIST_MAX, and lowers *oldest to the
 * lowest version.
 */
void unstable_ranges_get(const struct unstable_ranges *l, struct unstable_range *ranges,
                         unsigned *n, uint64_t *oldest);

#endif
