/*
 * range_map.h - a map from ranges of numbers to small values, for example which bytes are
 * held, and how.
 *
 * Ranges are [from, to), sorted, never empty and never overlapping; neighbours with one
 * value are joined. A number that is not in the map has the value 0. A zeroed map is
 * empty. Finding costs O(log n), changing O(n).
 */
#ifndef ROZO_COMMON_BASE_RANGE_MAP_H
#define ROZO_COMMON_BASE_RANGE_MAP_H

#include <stddef.h>
#include <stdint.h>

#define SPAN_END UINT64_MAX /* as `to`: all numbers from `from` on */

struct mapped_range {
    uint64_t from, to;
    unsigned value; /* not 0 */
};

struct range_map {
    struct mapped_range *list; /* owned */
    size_t n, room;
};

void range_map_free(struct range_map *spans);
/**
 * Sets the value of [from, to); 0 removes it. from < to. -ENOMEM: the map is unchanged.
 */
int range_map_put(struct range_map *spans, uint64_t from, uint64_t to, unsigned value);
/**
 * Raises smaller values in [from, to) to this one. -ENOMEM: some have been raised, none
 * lowered.
 */
int range_map_raise(struct range_map *spans, uint64_t from, uint64_t to, unsigned value);
/**
 * Lowers larger values in [from, to) to this one. -ENOMEM: some have been lowered, none
 * raised.
 */
int range_map_lower(struct range_map *spans, uint64_t from, uint64_t to, unsigned value);
/**
 * Returns the first range that ends after `at`; NULL: there is none. Borrowed until the
 * next change.
 */
const struct mapped_range *range_map_find(const struct range_map *spans, uint64_t at);
/** Return the smallest, and the largest, value in [from, to). */
unsigned range_map_least(const struct range_map *spans, uint64_t from, uint64_t to);
unsigned range_map_most(const struct range_map *spans, uint64_t from, uint64_t to);

/** Returns how many numbers have this value. */
uint64_t range_map_total(const struct range_map *spans, unsigned value);
/**
 * Fills the narrowest gaps of a map with one value until it has at most n_max ranges.
 * On -ENOMEM the map is unchanged.
 */
int range_map_join(struct range_map *spans, size_t n_max);

/* Packed form, on disks and wires: two varints for each range, its distance from the one
 * before and its length. */
enum { SPAN_PACKED_MAX = 20 };
/**
 * Packs the first n_max ranges of this value; out has room for SPAN_PACKED_MAX bytes
 * each. Returns the bytes written.
 */
size_t range_map_pack(const struct range_map *spans, unsigned value, size_t n_max,
                      uint8_t *out);
/**
 * Unpacks any bytes, and puts the ranges with this value. -EINVAL: the bytes are invalid,
 * or there are more than n_max ranges, or one reaches beyond `end`; -ENOMEM. Ranges put
 * before the error stay.
 */
int range_map_unpack(struct range_map *spans, const uint8_t *bytes, size_t len,
                     uint64_t end, size_t n_max, unsigned value);

#endif
