/*
 * missed_writes.c - which homes missed which blocks of a file, until storages that took
 * them have the note.
 *
 * In:     writes and marks that ended without some home (blk_write.c, blk_mark.c).
 *         Thread: the engine's.
 * Out:    the content of ST_MISSED (background.c).
 * Keeps:  a noted range stays inside the union of the ranges, with its candidates.
 * Yours:  how many ranges are kept apart.
 */
#include "storcli/rules/missed_writes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

void missed_free(struct missed *m)
{
    free(m->ranges);
    *m = (struct missed){ 0 };
}

static void range_join(struct missed_range *range, const struct missed_range *with)
{
    if (with->first_block < range->first_block)
        range->first_block = with->first_block;
    if (with->end_block > range->end_block)
        range->end_block = with->end_block;
    if (with->version > range->version)
        range->version = with->version;
    range->candidates |= with->candidates;
    range->holders |= with->holders;
    range->urgent |= with->urgent;
}

static void ranges_remove(struct missed *m, unsigned at)
{
    m->n--;
    memmove(&m->ranges[at], &m->ranges[at + 1], (m->n - at) * sizeof(m->ranges[0]));
}

/* Joins the two neighbours with the smallest gap. */
static void ranges_coarsen(struct missed *m)
{
    uint64_t least = UINT64_MAX;
    unsigned best = 0;

    for (unsigned i = 0; i + 1 < m->n; i++) {
        uint64_t gap = m->ranges[i + 1].first_block - m->ranges[i].end_block;

        if (gap < least) {
            least = gap;
            best = i;
        }
    }
    range_join(&m->ranges[best], &m->ranges[best + 1]);
    ranges_remove(m, best + 1);
}

bool missed_add(struct missed *m, const struct missed_range *range)
{
    struct missed_range joined = *range;
    unsigned at = 0;

    assert(range->first_block < range->end_block && range->candidates != 0);
    if (m->ranges == NULL)
        m->ranges = malloc((MISSED_RANGES_MAX + 1) * sizeof(m->ranges[0]));
    if (m->ranges == NULL)
        return false;
    while (at < m->n && m->ranges[at].end_block < range->first_block)
        at++;
    while (at < m->n && m->ranges[at].first_block <= joined.end_block) {
        range_join(&joined, &m->ranges[at]); /* the ranges overlap or touch */
        ranges_remove(m, at);
    }
    memmove(&m->ranges[at + 1], &m->ranges[at], (m->n - at) * sizeof(m->ranges[0]));
    m->ranges[at] = joined;
    if (++m->n > MISSED_RANGES_MAX)
        ranges_coarsen(m);
    return true;
}

bool missed_move(struct missed *m, struct missed *from)
{
    if (m->n == 0) {
        struct missed empty = *m;

        *m = *from;
        *from = empty;
        return true;
    }
    while (from->n > 0) {
        if (!missed_add(m, &from->ranges[from->n - 1]))
            return false;
        from->n--;
    }
    return true;
}

void missed_replaced(struct missed *m, unsigned candidate)
{
    unsigned n = 0;

    for (unsigned i = 0; i < m->n; i++) {
        struct missed_range range = m->ranges[i];

        range.candidates &= ~(1u << candidate);
        range.holders &= ~(1u << candidate);
        if (range.candidates != 0 && range.holders != 0)
            m->ranges[n++] = range;
    }
    m->n = n;
}

uint32_t missed_holders(const struct missed *m)
{
    uint32_t holders = 0;

    for (unsigned i = 0; i < m->n; i++)
        holders |= m->ranges[i].holders;
    return holders;
}

bool missed_is_urgent(const struct missed *m)
{
    for (unsigned i = 0; i < m->n; i++) {
        if (m->ranges[i].urgent)
            return true;
    }
    return false;
}
