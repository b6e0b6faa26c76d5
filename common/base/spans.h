/*
 * spans.h - a map from ranges of numbers to small values: who holds which bytes, and how.
 *
 * Ranges are [from, to), sorted, never empty and never overlapping; neighbours of one value are one. What is
 * not in the map has the value 0. A zeroed map is empty. Steps are O(log n) to find, O(n) to change.
 */
#ifndef ROZO_COMMON_BASE_SPANS_H
#define ROZO_COMMON_BASE_SPANS_H

#include <stddef.h>
#include <stdint.h>

#define SPAN_END UINT64_MAX /* as `to`: to the end of everything */

struct span {
    uint64_t from, to;
    unsigned value; /* not 0 */
};

struct spans {
    struct span *list; /* owned */
    size_t n, room;
};

void spans_free(struct spans *spans);
/** [from, to) has this value now, 0: is taken out. from < to. -ENOMEM: nothing has changed. */
int spans_put(struct spans *spans, uint64_t from, uint64_t to, unsigned value);
/** No value in [from, to) is less than this now; larger ones stay. -ENOMEM: some have been raised, none lowered. */
int spans_raise(struct spans *spans, uint64_t from, uint64_t to, unsigned value);
/** No value in [from, to) is more than this now. As above. */
int spans_lower(struct spans *spans, uint64_t from, uint64_t to, unsigned value);
/** The first that ends behind `at`; NULL: there is none. Borrowed until the next change. */
const struct span *spans_find(const struct spans *spans, uint64_t at);
/** The smallest value in [from, to), and the largest. */
unsigned spans_least(const struct spans *spans, uint64_t from, uint64_t to);
unsigned spans_most(const struct spans *spans, uint64_t from, uint64_t to);

/** How many numbers have this value. */
uint64_t spans_total(const struct spans *spans, unsigned value);
/**
 * Fills the narrowest gaps of a map with one value until it has at most n_max ranges.
 * On -ENOMEM the map is unchanged.
 */
int spans_join(struct spans *spans, size_t n_max);

/* On disks and wires: for each range two varints, the numbers between it and the one before, and its length. */
enum { SPAN_PACKED_MAX = 20 };
/** The first n_max ranges of this value; out has room for SPAN_PACKED_MAX bytes each. Bytes written. */
size_t spans_pack(const struct spans *spans, unsigned value, size_t n_max, uint8_t *out);
/**
 * Any bytes: what they say is put with this value. -EINVAL: they make no sense, or there are more than n_max ranges, or one reaches
 * beyond `end`; -ENOMEM. What was put before the error stays.
 */
int spans_unpack(struct spans *spans, const uint8_t *bytes, size_t len, uint64_t end,
                 size_t n_max, unsigned value);

#endif
