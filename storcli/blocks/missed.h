/*
 * missed.h - which homes missed which blocks of a file, until storages that took them know it.
 *
 * Pure. A short sorted list of disjoint block ranges; coarser (never forgetful) when it would grow too
 * long: it then makes healing look at more than it has to.
 */
#ifndef ROZO_STORCLI_BLOCKS_MISSED_H
#define ROZO_STORCLI_BLOCKS_MISSED_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MISSED_RANGES_MAX = 64,
};

struct missed_range {
    uint64_t first_block;
    uint64_t end_block;  /* exclusive; UINT64_MAX: to the end of everything */
    uint64_t version;    /* the newest of it that was missed */
    uint32_t candidates; /* who missed some of it */
    uint32_t holders;    /* who took some of it */
    bool urgent;         /* a sync waits until one of those has the note */
};

/* Zero-initialise. Owned by one file. */
struct missed {
    struct missed_range
        *ranges; /* owned, room for MISSED_RANGES_MAX; NULL: nothing yet */
    unsigned n;
};

void missed_free(struct missed *m);
static inline bool missed_is_empty(const struct missed *m)
{
    return m->n == 0;
}
/** Note a range. False: no memory for the list; nothing is noted. */
bool missed_add(struct missed *m, const struct missed_range *range);
/** Put all of `from` into m; `from` is empty then. False: no memory, from stays as it is. */
bool missed_move(struct missed *m, struct missed *from);
/** Another storage is in this candidate's place: it neither missed nor took anything. */
void missed_replaced(struct missed *m, unsigned candidate);
/** Everybody who took something of what is noted. */
uint32_t missed_holders(const struct missed *m);
/** Is any of it? */
bool missed_is_urgent(const struct missed *m);

#endif
