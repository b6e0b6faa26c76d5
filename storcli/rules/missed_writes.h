/*
 * missed_writes.h - which homes missed which blocks of a file, until storages that took
 * them have the note.
 *
 * Pure. A short sorted list of disjoint block ranges; coarser (but never omitting a
 * range) when it would grow too long: healing then looks at more than needed.
 */
#ifndef ROZO_STORCLI_RULES_MISSED_WRITES_H
#define ROZO_STORCLI_RULES_MISSED_WRITES_H

#include <stdbool.h>
#include <stdint.h>

enum {
    MISSED_RANGES_MAX = 64,
};

struct missed_range {
    uint64_t first_block;
    uint64_t end_block;  /* exclusive; UINT64_MAX: to the end of the file */
    uint64_t version;    /* newest version in it that was missed */
    uint32_t candidates; /* homes that missed some of it */
    uint32_t holders;    /* candidates that took some of it */
    bool urgent;         /* a sync waits until a holder has the note */
};

/* Owned by one file. Zero-initialise. */
struct missed {
    struct missed_range *ranges; /* owned, MISSED_RANGES_MAX of them; or NULL */
    unsigned n;
};

void missed_free(struct missed *m);
static inline bool missed_is_empty(const struct missed *m)
{
    return m->n == 0;
}
/** Notes a range. False: no memory for the list; nothing is noted. */
bool missed_add(struct missed *m, const struct missed_range *range);
/** Moves all ranges of `from` into m. False: no memory, both stay as they are. */
bool missed_move(struct missed *m, struct missed *from);
/**
 * Forgets a candidate whose place another storage has taken: it neither missed nor took
 * anything.
 */
void missed_replaced(struct missed *m, unsigned candidate);
/** Returns all candidates that took some of the noted ranges. */
uint32_t missed_holders(const struct missed *m);
/** Returns true if any range is urgent. */
bool missed_is_urgent(const struct missed *m);

#endif
