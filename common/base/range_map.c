/*
 * range_map.c - see range_map.h. A sorted array, as ranges are few.
 *
 * In:     its users; core, no clock, no I/O.
 * Keeps:  sorted, disjoint, no two neighbours with equal values.
 */
#include "common/base/range_map.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM_FIRST = 4 };

void range_map_free(struct range_map *spans)
{
    free(spans->list);
    *spans = (struct range_map){ 0 };
}

/* Returns the index of the first range that ends after `at`. */
static size_t find(const struct range_map *spans, uint64_t at)
{
    size_t low = 0, high = spans->n;

    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (spans->list[mid].to <= at)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

const struct mapped_range *range_map_find(const struct range_map *spans, uint64_t at)
{
    size_t i = find(spans, at);

    return i == spans->n ? NULL : &spans->list[i];
}

static int make_room(struct range_map *spans, size_t n)
{
    size_t room = spans->room == 0 ? ROOM_FIRST : spans->room;
    struct mapped_range *list;

    while (room < n)
        room *= 2;
    if (room == spans->room)
        return 0;
    list = realloc(spans->list, room * sizeof(*list));
    if (list == NULL)
        return -ENOMEM;
    spans->list = list;
    spans->room = room;
    return 0;
}

int range_map_put(struct range_map *spans, uint64_t from, uint64_t to, unsigned value)
{
    struct mapped_range with[3]; /* replaces the ranges that are touched */
    size_t n_with = 0, first, last;
    int rc = make_room(spans, spans->n + 2);

    assert(from < to);
    if (rc != 0)
        return rc;
    first = last = find(spans, from);
    if (first > 0 && spans->list[first - 1].to == from &&
        spans->list[first - 1].value == value)
        from = spans->list[--first].from; /* joins the neighbour before */
    while (last < spans->n && spans->list[last].from < to)
        last++;
    if (last < spans->n && spans->list[last].from == to &&
        spans->list[last].value == value)
        to = spans->list[last++].to;
    if (first < last) {
        struct mapped_range head = spans->list[first], tail = spans->list[last - 1];

        if (head.from < from && head.value == value)
            from = head.from;
        if (tail.to > to && tail.value == value)
            to = tail.to;
        if (head.from < from)
            with[n_with++] = (struct mapped_range){ head.from, from, head.value };
        if (value != 0)
            with[n_with++] = (struct mapped_range){ from, to, value };
        if (tail.to > to)
            with[n_with++] = (struct mapped_range){ to, tail.to, tail.value };
    } else if (value != 0) {
        with[n_with++] = (struct mapped_range){ from, to, value };
    }
    if (last < spans->n)
        memmove(spans->list + first + n_with, spans->list + last,
                (spans->n - last) * sizeof(*spans->list));
    memcpy(spans->list + first, with, n_with * sizeof(*with));
    spans->n += n_with - (last - first);
    return 0;
}

/* Sets each part of [from, to) whose value is on the other side of `value`. */
static int limit(struct range_map *spans, uint64_t from, uint64_t to, unsigned value,
                 bool up)
{
    int rc = 0;

    while (rc == 0 && from < to) {
        const struct mapped_range *s = range_map_find(spans, from);
        unsigned here = s == NULL || s->from > from ? 0 : s->value;
        uint64_t end = s == NULL ? to : here == 0 ? s->from : s->to;

        if (end > to)
            end = to;
        if (up ? here < value : here > value)
            rc = range_map_put(spans, from, end, value);
        from = end;
    }
    return rc;
}

int range_map_raise(struct range_map *spans, uint64_t from, uint64_t to, unsigned value)
{
    return limit(spans, from, to, value, true);
}

int range_map_lower(struct range_map *spans, uint64_t from, uint64_t to, unsigned value)
{
    return limit(spans, from, to, value, false);
}

unsigned range_map_least(const struct range_map *spans, uint64_t from, uint64_t to)
{
    unsigned least = UINT32_MAX;

    for (size_t i = find(spans, from); from < to; i++) {
        if (i == spans->n || spans->list[i].from > from)
            return 0;
        if (spans->list[i].value < least)
            least = spans->list[i].value;
        from = spans->list[i].to;
    }
    return least;
}

unsigned range_map_most(const struct range_map *spans, uint64_t from, uint64_t to)
{
    unsigned most = 0;

    for (size_t i = find(spans, from); i < spans->n && spans->list[i].from < to; i++) {
        if (spans->list[i].value > most)
            most = spans->list[i].value;
    }
    return most;
}

uint64_t range_map_total(const struct range_map *spans, unsigned value)
{
    uint64_t total = 0;

    for (size_t i = 0; i < spans->n; i++)
        if (spans->list[i].value == value)
            total += spans->list[i].to - spans->list[i].from;
    return total;
}

static int compare_u64(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return (x > y) - (x < y);
}

int range_map_join(struct range_map *spans, size_t n_max)
{
    size_t n_gaps = spans->n == 0 ? 0 : spans->n - 1, n = 0;
    uint64_t *gaps, widest;

    assert(n_max > 0);
    if (spans->n <= n_max)
        return 0;
    gaps = malloc(n_gaps * sizeof(*gaps));
    if (gaps == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < n_gaps; i++)
        gaps[i] = spans->list[i + 1].from - spans->list[i].to;
    qsort(gaps, n_gaps, sizeof(*gaps), compare_u64);
    widest = gaps[spans->n - n_max - 1]; /* widest gap that is filled */
    free(gaps);
    for (size_t i = 1; i < spans->n; i++) {
        assert(spans->list[i].value == spans->list[0].value);
        if (spans->list[i].from - spans->list[n].to <= widest)
            spans->list[n].to = spans->list[i].to;
        else
            spans->list[++n] = spans->list[i];
    }
    spans->n = n + 1;
    return 0;
}

static size_t varint_put(uint8_t *out, uint64_t v)
{
    size_t n = 0;

    for (; v >= 0x80; v >>= 7)
        out[n++] = (uint8_t)(v | 0x80);
    out[n++] = (uint8_t)v;
    return n;
}

size_t range_map_pack(const struct range_map *spans, unsigned value, size_t n_max,
                      uint8_t *out)
{
    uint64_t at = 0;
    size_t len = 0;

    for (size_t i = 0; i < spans->n && n_max > 0; i++) {
        const struct mapped_range *s = &spans->list[i];

        if (s->value != value)
            continue;
        len += varint_put(out + len, s->from - at);
        len += varint_put(out + len, s->to - s->from);
        at = s->to;
        n_max--;
    }
    return len;
}

static bool varint_get(const uint8_t *bytes, size_t len, size_t *at, uint64_t *out)
{
    unsigned shift = 0;

    *out = 0;
    while (*at < len && shift < 63) {
        uint8_t byte = bytes[(*at)++];

        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
        shift += 7;
    }
    return false;
}

int range_map_unpack(struct range_map *spans, const uint8_t *bytes, size_t len,
                     uint64_t end, size_t n_max, unsigned value)
{
    uint64_t from = 0, gap, length;
    size_t at = 0;
    int rc = 0;

    for (size_t n = 0; rc == 0 && at < len; n++) {
        if (n == n_max || !varint_get(bytes, len, &at, &gap) ||
            !varint_get(bytes, len, &at, &length) || length == 0 || gap > end - from ||
            length > end - from - gap || (n > 0 && gap == 0))
            return -EINVAL;
        rc = range_map_put(spans, from + gap, from + gap + length, value);
        from += gap + length;
    }
    return rc;
}
