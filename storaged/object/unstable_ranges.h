/*
 * unstable_ranges.h - which blocks of a file clients wrote in place, without anybody knowing yet that they are stable on as many
 * storages as a write needs.
 *
 * Pure. A few ranges, coarse rather than forgetful. A sync speaks of what was written before it; the client that asked sees to it
 * that all who hold it make it stable, or hears that it failed. So what was synced stays loose for a while only, in case
 * that client dies in the middle. What lies in the journal is loose until its commit, and needs nothing of this.
 */
#ifndef ROZO_STORAGED_OBJECT_UNSTABLE_RANGES_H
#define ROZO_STORAGED_OBJECT_UNSTABLE_RANGES_H

#include <stdint.h>

enum {
    UNSTABLE_RANGES_MAX = 8,
    UNSTABLE_TOLD_MAX = 32, /* of an answer */
    UNSTABLE_MS = 60000, /* after its sync it stays so long, and twice as long at most */
};

struct unstable_range {
    uint64_t first, end;
};

struct unstable_list {
    unsigned n;
    struct unstable_range ranges[UNSTABLE_RANGES_MAX]; /* ascending, apart */
    uint64_t oldest;                                   /* version of anything in it */
};

/* Zero-initialise. */
struct unstable_ranges {
    struct unstable_list fresh;     /* since the last sync began */
    struct unstable_list synced[2]; /* lately, and before */
    uint64_t since_ns;              /* when synced[0] began */
};

/** Add [first, end) to a list of at most max ranges; above that the two that are closest become one. */
void unstable_list_add(struct unstable_range *ranges, unsigned *n, unsigned max,
                       uint64_t first, uint64_t end);
/** A client's write of this version was put in place. */
void unstable_ranges_add(struct unstable_ranges *l, uint64_t first, uint64_t end,
                         uint64_t version);
/** A sync for a client begins. */
void unstable_ranges_sync(struct unstable_ranges *l, uint64_t now_ns);
/** Add all of it to a list of at most UNSTABLE_TOLD_MAX; *oldest becomes what is less. */
void unstable_ranges_get(const struct unstable_ranges *l, struct unstable_range *ranges,
                         unsigned *n, uint64_t *oldest);

#endif
