/*
 * spans.h - a map from ranges of numbers to small values, for example which bytes are
 * held, and how.
 *
 * Ranges are [from, to), sorted, never empty and never overlapping; neighbours with one
 * value are joined. A number that is not in the map has the value 0. A zeroed map is
 * empty. Finding costs O(log n), changing O(n).
 */
#ifndef ROZO_COMMON_BASE_SPANS_H
#define ROZO_COMMON_BASE_SPANS_H

#include <stddef.h>
#include <stdint.h>

#define SPAN_END UINT64_MAX /* as `to`: all numbers from `from` on */

struct span {
    uint64_t from, to;
    unsigned value; /* not 0 */
};

struct spans {
    struct span *list; /* owned */
    size_t n, room;
};

void spans_free(struct spans *spans);
/**
 * Sets the value of [from, to); 0 removes it. from < to. -ENOMEM: the map is unchanged.
 */
int spans_put(struct spans *spans, uint64_t from, uint64_t to, unsigned value);
/**
 * Raises smaller values in [from, to) to this one. -ENOMEM: some have been raised, none
 * lowered.
 */
int spans_raise(struct spans *spans, uint64_t from, uint64_t to, unsigned value);
/**
 * Lowers larger values in [from, to) to this one. -ENOMEM: some have been lowered, none
 * raised.
 */
int spans_lower(struct spans *spans, uint64_t from, uint64_t to, unsigned value);
/**
 * Returns the first range that ends after `at`; NULL: there is none. Borrowed until the
 * next change.
 */
const struct span *spans_find(const struct spans *spans, uint64_t at);
/** Return the smallest, and the largest, value in [from, to). */
unsigned spans_least(const struct spans *spans, uint64_t from, uint64_t to);
unsigned spans_most(const struct spans *spans, uint64_t from, uint64_t to);

/** Returns how many numbers have this value. */
uint64_t spans_total(const struct spans *spans, unsigned value);
/**
 * Fills the narrowest gaps of a map with one value until it has at most n_max ranges.
 * On -ENOMEM the map is unchanged.
 */
int spans_join(struct spans *spans, size_t n_max);

/* Packed form, on disks and wires: two varints for each range, its distance from the one
 * before and its length. */
enum { SPAN_PACKED_MAX = 20 };
/**
 * Packs the first n_max ranges of this value; out has room for SPAN_PACKED_MAX bytes
 * each. Returns the bytes written.
 */
size_t spans_pack(const struct spans *spans, unsigned value, size_t n_max, uint8_t *out);
/**
 * Unpacks any bytes, and puts the ranges with this value. -EINVAL: the bytes are invalid,
 * or there are more than n_max ranges, or one reaches beyond `end`; -ENOMEM. Ranges put
 * before the error stay.
 */
int spans_unpack(struct spans *spans, const uint8_t *bytes, size_t len, uint64_t end,
                 size_t n_max, unsigned value);

#endif
