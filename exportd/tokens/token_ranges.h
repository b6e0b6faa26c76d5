/*
 * token_ranges.h - the ranges of a file that sessions used recently, and how far to widen
 * a grant.
 *
 * For each session the smallest range around its requests is kept. A few requests in or
 * beyond the ranges of others do not count: reading once what another session writes does
 * not mean to work there; many such requests do. Pure: no clock, no I/O.
 */
#ifndef ROZO_EXPORTD_TOKENS_TOKEN_RANGES_H
#define ROZO_EXPORTD_TOKENS_TOKEN_RANGES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/range_map.h"

enum { RECENTS_MAX = 8 }; /* sessions that are remembered for a file */

/* Range of bytes. to 0: none. */
struct token_range {
    uint64_t from, to;
};

struct token_recents;

/**
 * Notes a request of session `who` (not 0). *recents is allocated when needed, to be
 * freed with free(). Returns -ENOMEM if the request is not remembered.
 */
int recents_note(struct token_recents **recents, uint64_t who,
                 const struct token_range *range);
/**
 * Returns true if other sessions used the file, all of them outside the range of `who`.
 * recents may be NULL.
 */
bool recents_are_apart(const struct token_recents *recents, uint64_t who);
/**
 * Shortens `limit`, which contains `range`, so that it ends where others used the file.
 */
void recents_limit(const struct token_recents *recents, uint64_t who,
                   const struct token_range *range, struct token_range *limit);
/**
 * Shortens `limit`, which contains `range`, so that it ends where another session holds
 * ranges.
 */
void ranges_limit(const struct range_map *held, const struct token_range *range,
                  struct token_range *limit);

#endif
