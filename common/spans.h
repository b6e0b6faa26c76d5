/*
 * spans.h - a map from ranges of numbers to small values: who holds which bytes, and how.
 *
 * Ranges are [from, to), sorted, never empty and never overlapping; neighbours of one value are one. What is
 * not in the map has the value 0. A zeroed map is empty. Steps are O(log n) to find, O(n) to change.
 */
#ifndef ROZO_SPANS_H
#define ROZO_SPANS_H

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

#endif
