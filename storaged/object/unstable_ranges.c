/*
 * unstable_ranges.c - blocks that clients wrote in place and that may not be stable yet.
 *
 * In:     writes and sync requests. Pure.
 * Out:    nothing.
 * Yours:  how many ranges, how long.
 */
#include "storaged/object/unstable_ranges.h"

#include <string.h>

#include "common/base/units.h"

static void range_remove(struct unstable_range *ranges, unsigned *n, unsigned at)
{
    (*n)--;
    memmove(&ranges[at], &ranges[at + 1], (*n - at) * sizeof(*ranges));
}

/* Merges the two ranges that are closest. */
static void join_closest(struct unstable_range *ranges, unsigned *n)
{
    unsigned best = 0;

    for (unsigned i = 1; i + 1 < *n; i++) {
        if (ranges[i + 1].first - ranges[i].end <
            ranges[best + 1].first - ranges[best].end)
            best = i;
    }
    ranges[best].end = ranges[best + 1].end;
    range_remove(ranges, n, best + 1);
}

void unstable_list_add(struct unstable_range *ranges, unsigned *n, unsigned max,
                       uint64_t first, uint64_t end)
{
    unsigned at = 0;

    while (at < *n && ranges[at].end < first)
        at++;
    while (at < *n && ranges[at].first <= end) {
        first = ranges[at].first < first ? ranges[at].first : first;
        end = ranges[at].end > end ? ranges[at].end : end;
        range_remove(ranges, n, at);
    }
    if (*n == max) {
        join_closest(ranges, n);
        unstable_list_add(ranges, n, max, first, end);
        return;
    }
    memmove(&ranges[at + 1], &ranges[at], (*n - at) * sizeof(*ranges));
    ranges[at] = (struct unstable_range){ first, end };
    (*n)++;
}

void unstable_ranges_add(struct unstable_ranges *l, uint64_t first, uint64_t end,
                         uint64_t version)
{
    struct unstable_list *list = &l->fresh;

    if (list->n == 0 || version < list->oldest)
        list->oldest = version;
    unstable_list_add(list->ranges, &list->n, UNSTABLE_RANGES_MAX, first, end);
}

static void list_merge(struct unstable_list *into, const struct unstable_list *from)
{
    if (into->n == 0 || (from->n > 0 && from->oldest < into->oldest))
        into->oldest = from->oldest;
    for (unsigned i = 0; i < from->n; i++)
        unstable_list_add(into->ranges, &into->n, UNSTABLE_RANGES_MAX,
                          from->ranges[i].first, from->ranges[i].end);
}

void unstable_ranges_sync(struct unstable_ranges *l, uint64_t now_ns)
{
    uint64_t span_ns = ms_to_ns(UNSTABLE_MS);

    if (l->fresh.n == 0 && l->synced[0].n == 0 && l->synced[1].n == 0)
        return;
    if (now_ns - l->since_ns >= 2 * span_ns)
        l->synced[0].n = 0;
    if (now_ns - l->since_ns >= span_ns) {
        l->synced[1] = l->synced[0];
        l->synced[0].n = 0;
        l->since_ns = now_ns;
    }
    list_merge(&l->synced[0], &l->fresh);
    l->fresh.n = 0;
}

void unstable_ranges_get(const struct unstable_ranges *l, struct unstable_range *ranges,
                         unsigned *n, uint64_t *oldest)
{
    const struct unstable_list *lists[] = { &l->fresh, &l->synced[0], &l->synced[1] };

    for (unsigned i = 0; i < 3; i++) {
        for (unsigned j = 0; j < lists[i]->n; j++)
            unstable_list_add(ranges, n, UNSTABLE_LIST_MAX, lists[i]->ranges[j].first,
                              lists[i]->ranges[j].end);
        if (lists[i]->n > 0 && lists[i]->oldest < *oldest)
            *oldest = lists[i]->oldest;
    }
}
