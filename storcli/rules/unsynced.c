/*
 * unsynced.c - which storages acknowledged data of a file that is not on stable storage
 * yet.
 *
 * In:     acknowledged writes and marks (blk_write.c), failed syncs (blk_sync.c).
 *         Thread: the engine's.
 * Out:    the storages that must sync, and the other holders of the data of a lost
 *         storage.
 * Keeps:  a range in a list stays there until its sync: merging widens ranges and narrows
 *         `all`, never the other way round, so it can only make a sync do more than
 *         needed.
 * Yours:  the bounds.
 */
#include "storcli/rules/unsynced.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Finds a projection of its own for candidate i; a candidate that has it already moves to
 * another if it can. */
static bool choose(const uint32_t *has, unsigned i, uint32_t *tried, int owner[32])
{
    for (unsigned p = 0; p < 32; p++) {
        if (((has[i] & ~*tried) >> p & 1) == 0)
            continue;
        *tried |= 1u << p;
        if (owner[p] < 0 || choose(has, (unsigned)owner[p], tried, owner)) {
            owner[p] = (int)i;
            return true;
        }
    }
    return false;
}

struct holders holders_of(const uint32_t has[DIST_MAX], uint32_t holes)
{
    struct holders held = { 0 };
    int owner[32];

    memset(owner, -1, sizeof(owner));
    for (unsigned i = 0; i < DIST_MAX; i++) {
        uint32_t tried = 0;

        held.projection[i] = UNSYNCED_NO_PROJECTION;
        if (has[i] == 0)
            continue;
        held.any |= 1u << i;
        if (!choose(has, i, &tried, owner) && (holes >> i & 1) != 0)
            held.bare |= 1u << i;
        else
            held.projection[i] = (uint8_t)__builtin_ctz(has[i]);
    }
    held.all = held.any & ~held.bare;
    for (unsigned p = 0; p < 32; p++) {
        if (owner[p] >= 0)
            held.projection[owner[p]] = (uint8_t)p;
    }
    return held;
}

static bool holders_equal(const struct holders *a, const struct holders *b)
{
    if (a->all != b->all || a->any != b->any || a->bare != b->bare ||
        a->gone != b->gone || a->lacks != b->lacks)
        return false;
    for (unsigned i = 0; i < DIST_MAX; i++) {
        if ((a->all >> i & 1) != 0 && a->projection[i] != b->projection[i])
            return false;
    }
    return true;
}

/* Keeps only what holds for both. */
static void holders_merge(struct holders *into, const struct holders *from)
{
    uint32_t all = into->all & from->all;

    for (unsigned i = 0; i < DIST_MAX; i++) {
        if ((all >> i & 1) != 0 && into->projection[i] != from->projection[i])
            all &= ~(1u << i);
    }
    into->all = all;
    into->bare = (into->bare | from->bare) &
                 ~((into->any & ~into->bare) | (from->any & ~from->bare));
    into->any |= from->any;
    into->gone |= from->gone;
    into->lacks |= from->lacks;
}

static void holder_leaves(struct holders *held, uint32_t bit)
{
    held->any &= ~bit;
    held->bare &= ~bit;
    held->all &= ~bit;
}

static void holder_lost(struct holders *held, uint32_t bit)
{
    held->gone |= held->any & bit;
    holder_leaves(held, bit);
}

void unsynced_free(struct unsynced *u)
{
    free(u->ranges);
    free(u->marks);
    *u = (struct unsynced){ 0 };
}

static void ranges_grow(struct unsynced *u)
{
    uint32_t n_max = u->ranges_max == 0 ? 2 : u->ranges_max * 2;
    struct unsynced_range *ranges = realloc(u->ranges, n_max * sizeof(*ranges));

    if (ranges == NULL)
        abort(); /* forgetting unsynced data would make the next fsync lie */
    u->ranges = ranges;
    u->ranges_max = n_max;
}

/* Joins two neighbours into one range, as wide as both and the gap. */
static void range_widen(struct unsynced_range *range, const struct unsynced_range *next)
{
    range->gaps = range->gaps || next->gaps || range->end_block != next->first_block;
    if (next->version < range->version)
        range->version = next->version;
    range->end_block = next->end_block;
    holders_merge(&range->held, &next->held);
}

/* Joins neighbours in pairs: all of them, or those with equal holders. */
static void ranges_pair(struct unsynced *u, bool all)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < u->n_ranges; i++) {
        struct unsynced_range range = u->ranges[i];

        if (i + 1 < u->n_ranges &&
            (all || holders_equal(&range.held, &u->ranges[i + 1].held)))
            range_widen(&range, &u->ranges[++i]);
        u->ranges[n++] = range;
    }
    u->n_ranges = n;
}

/* Frees a quarter of the list. Ranges with different holders stay apart as long as that
 * helps: in a mixture it is unknown which storage has all of it, so a lost one cannot be
 * replaced. */
static void ranges_coarsen(struct unsynced *u)
{
    uint32_t before;

    do {
        before = u->n_ranges;
        ranges_pair(u, false);
    } while (u->n_ranges > UNSYNCED_RANGES_MAX / 4 * 3 && u->n_ranges < before);
    if (u->n_ranges > UNSYNCED_RANGES_MAX / 4 * 3)
        ranges_pair(u, true);
}

static void ranges_insert(struct unsynced *u, uint32_t at,
                          const struct unsynced_range *range)
{
    if (u->n_ranges == u->ranges_max)
        ranges_grow(u);
    memmove(&u->ranges[at + 1], &u->ranges[at], (u->n_ranges - at) * sizeof(*range));
    u->ranges[at] = *range;
    u->n_ranges++;
}

static void ranges_remove(struct unsynced *u, uint32_t at)
{
    u->n_ranges--;
    memmove(&u->ranges[at], &u->ranges[at + 1],
            (u->n_ranges - at) * sizeof(u->ranges[0]));
}

/* Returns the index of the first range that ends after `block`. */
static uint32_t ranges_find(const struct unsynced *u, uint64_t block)
{
    uint32_t low = 0, high = u->n_ranges;

    while (low < high) {
        uint32_t mid = low + (high - low) / 2;

        if (u->ranges[mid].end_block > block)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

/* Cuts [first, end) out of the list; returns the index where a range for it belongs. */
static uint32_t ranges_cut(struct unsynced *u, uint64_t first, uint64_t end)
{
    uint32_t at = ranges_find(u, first);

    if (at < u->n_ranges && u->ranges[at].first_block < first) {
        struct unsynced_range left = u->ranges[at];

        left.end_block = first;
        u->ranges[at].first_block = first;
        ranges_insert(u, at, &left);
        at++;
    }
    while (at < u->n_ranges && u->ranges[at].end_block <= end)
        ranges_remove(u, at);
    if (at < u->n_ranges && u->ranges[at].first_block < end)
        u->ranges[at].first_block = end;
    return at;
}

static bool ranges_join(struct unsynced *u, uint32_t at)
{
    struct unsynced_range *a = &u->ranges[at];

    if (a[0].end_block != a[1].first_block || a[0].version != a[1].version ||
        a[0].gaps != a[1].gaps || !holders_equal(&a[0].held, &a[1].held))
        return false;
    a[0].end_block = a[1].end_block;
    ranges_remove(u, at + 1);
    return true;
}

void unsynced_add(struct unsynced *u, uint64_t version, uint64_t first_block,
                  uint64_t n_blocks, const struct holders *held)
{
    struct unsynced_range range = {
        .first_block = first_block,
        .end_block = first_block + n_blocks,
        .version = version,
        .held = *held,
    };
    uint32_t at;

    assert(n_blocks != 0 && range.end_block > first_block);
    if (u->n_ranges >= UNSYNCED_RANGES_MAX - 2)
        ranges_coarsen(u);
    at = ranges_cut(u, first_block, range.end_block);
    ranges_insert(u, at, &range);
    if (at + 1 < u->n_ranges)
        ranges_join(u, at);
    if (at > 0)
        ranges_join(u, at - 1);
}

void unsynced_remove(struct unsynced *u, uint64_t first_block, uint64_t n_blocks)
{
    if (u->n_ranges >= UNSYNCED_RANGES_MAX - 2)
        ranges_coarsen(u);
    ranges_cut(u, first_block, first_block + n_blocks);
}

bool unsynced_verify(struct unsynced *u, unsigned candidate, uint64_t verifier)
{
    uint32_t bit = 1u << candidate;
    bool changed = (u->verified & bit) != 0 && u->verifier[candidate] != verifier;

    u->verified |= bit;
    u->verifier[candidate] = verifier;
    if (!changed)
        return false;
    for (uint32_t i = 0; i < u->n_ranges; i++)
        holder_lost(&u->ranges[i].held, bit);
    for (uint32_t i = 0; i < u->n_marks; i++)
        holder_lost(&u->marks[i].held, bit);
    return true;
}

void unsynced_replaced(struct unsynced *u, unsigned candidate)
{
    uint32_t bit = 1u << candidate;

    u->verified &= ~bit;
    for (uint32_t i = 0; i < u->n_ranges; i++)
        holder_leaves(&u->ranges[i].held, bit);
    for (uint32_t i = 0; i < u->n_marks; i++)
        holder_leaves(&u->marks[i].held, bit);
}

bool unsynced_is_empty(const struct unsynced *u)
{
    return u->n_ranges == 0 && u->n_marks == 0;
}

static const struct unsynced_range *range_of(const struct unsynced *u, uint64_t block)
{
    uint32_t at = ranges_find(u, block);

    return at < u->n_ranges && u->ranges[at].first_block <= block ? &u->ranges[at] : NULL;
}

bool unsynced_knows(const struct unsynced *u, uint64_t block)
{
    const struct unsynced_range *range = range_of(u, block);

    return range != NULL && !range->gaps;
}

bool unsynced_has(const struct unsynced *u, uint64_t block)
{
    return range_of(u, block) != NULL;
}

bool unsynced_has_lost(const struct unsynced *u, uint64_t block, unsigned k)
{
    const struct unsynced_range *range = range_of(u, block);
    uint32_t projections = 0;

    if (range == NULL || range->held.gone == 0)
        return false;
    for (unsigned i = 0; i < DIST_MAX; i++) {
        if ((range->held.all >> i & 1) != 0)
            projections |= 1u << range->held.projection[i];
    }
    return (unsigned)__builtin_popcount(projections) < k;
}

uint32_t unsynced_any(const struct unsynced *u)
{
    uint32_t any = 0;

    for (uint32_t i = 0; i < u->n_ranges; i++)
        any |= u->ranges[i].held.any;
    for (uint32_t i = 0; i < u->n_marks; i++)
        any |= u->marks[i].held.any;
    return any;
}

/* Adds a coarse range. It has gaps, so the ranges that it overlaps must be merged, not
 * replaced. */
static void ranges_absorb(struct unsynced *u, const struct unsynced_range *coarse)
{
    struct unsynced_range range = *coarse;
    uint32_t at = ranges_find(u, range.first_block);

    while (at < u->n_ranges && u->ranges[at].first_block < range.end_block) {
        const struct unsynced_range *old = &u->ranges[at];

        if (old->first_block < range.first_block)
            range.first_block = old->first_block;
        if (old->end_block > range.end_block)
            range.end_block = old->end_block;
        if (old->version < range.version)
            range.version = old->version;
        range.gaps = range.gaps || old->gaps;
        holders_merge(&range.held, &old->held);
        ranges_remove(u, at);
    }
    if (u->n_ranges >= UNSYNCED_RANGES_MAX - 2) {
        ranges_coarsen(u);
        ranges_absorb(u, &range); /* there is room now, but neighbours may have grown */
        return;
    }
    ranges_insert(u, at, &range);
}

static uint64_t mark_end(const struct unsynced_mark *mark)
{
    return mark->n_blocks == 0 ? UINT64_MAX : mark->first_block + mark->n_blocks;
}

static void mark_set(struct unsynced_mark *mark, uint64_t first, uint64_t end)
{
    mark->first_block = first;
    mark->n_blocks = end == UINT64_MAX ? 0 : end - first;
}

/* Cuts off either end that a newer mark covers; false: nothing is left. */
static bool mark_trim(struct unsynced_mark *mark, const struct unsynced_mark *newer)
{
    uint64_t first = mark->first_block, end = mark_end(mark);

    if (newer->version < mark->version)
        return true;
    if (newer->first_block <= first && first < mark_end(newer))
        first = mark_end(newer) < end ? mark_end(newer) : end;
    if (newer->first_block < end && end <= mark_end(newer))
        end = newer->first_block > first ? newer->first_block : first;
    if (first >= end)
        return false;
    mark_set(mark, first, end);
    return true;
}

static void marks_remove(struct unsynced *u, uint32_t at)
{
    u->n_marks--;
    memmove(&u->marks[at], &u->marks[at + 1], (u->n_marks - at) * sizeof(u->marks[0]));
}

/* Turns the smallest mark into a range: each of its blocks has its version or a newer
 * one. */
static void marks_spill(struct unsynced *u)
{
    uint32_t least = 0;
    struct unsynced_range range;

    for (uint32_t i = 1; i < u->n_marks; i++) {
        if (mark_end(&u->marks[i]) - u->marks[i].first_block <
            mark_end(&u->marks[least]) - u->marks[least].first_block)
            least = i;
    }
    /* at most one reaches the end of the file: it covers the end of the others, or they
     * its end */
    assert(u->marks[least].n_blocks != 0);
    range = (struct unsynced_range){
        .first_block = u->marks[least].first_block,
        .end_block = mark_end(&u->marks[least]),
        .version = u->marks[least].version,
        .held = u->marks[least].held,
    };
    marks_remove(u, least);
    ranges_absorb(u, &range);
}

void unsynced_add_mark(struct unsynced *u, uint64_t version, uint64_t first_block,
                       uint64_t n_blocks, const struct holders *held)
{
    struct unsynced_mark mark = {
        .first_block = first_block,
        .n_blocks = n_blocks,
        .version = version,
        .held = *held,
    };

    for (uint32_t i = 0; i < u->n_marks; i++) {
        if (!mark_trim(&mark, &u->marks[i]))
            return;
    }
    for (uint32_t i = u->n_marks; i > 0; i--) {
        if (!mark_trim(&u->marks[i - 1], &mark))
            marks_remove(u, i - 1);
    }
    if (u->marks == NULL)
        u->marks = calloc(UNSYNCED_MARKS_MAX, sizeof(u->marks[0]));
    if (u->marks == NULL)
        abort(); /* see ranges_grow() */
    if (u->n_marks == UNSYNCED_MARKS_MAX)
        marks_spill(u);
    u->marks[u->n_marks++] = mark;
}

void unsynced_merge_older(struct unsynced *u, struct unsynced *older)
{
    struct unsynced newer = *u;

    *u = *older;
    *older = (struct unsynced){ 0 };
    for (unsigned i = 0; i < DIST_MAX; i++) {
        if ((newer.verified >> i & 1) != 0)
            unsynced_verify(u, i, newer.verifier[i]);
    }
    for (uint32_t i = 0; i < newer.n_ranges; i++) {
        const struct unsynced_range *range = &newer.ranges[i];

        if (range->gaps)
            ranges_absorb(u, range);
        else
            unsynced_add(u, range->version, range->first_block,
                         range->end_block - range->first_block, &range->held);
    }
    for (uint32_t i = 0; i < newer.n_marks; i++) {
        const struct unsynced_mark *mark = &newer.marks[i];

        unsynced_add_mark(u, mark->version, mark->first_block, mark->n_blocks,
                          &mark->held);
    }
    unsynced_free(&newer);
}
