/*
 * token_ranges.h - where in a file sessions were at work of late, and how far what one asks for may reach.
 *
 * Of each session the least range that has all it asked for is kept, but for some of what lies where others were, or beyond them: a look
 * at what another one writes makes nobody a worker there, many do. Pure: no clock, no I/O.
 */
#ifndef ROZO_EXPORTD_TOKENS_TOKEN_RANGES_H
#define ROZO_EXPORTD_TOKENS_TOKEN_RANGES_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/spans.h"

enum { RECENTS_MAX = 8 }; /* sessions that are remembered of a file */

/* Bytes. to 0: there is none. */
struct token_range {
    uint64_t from, to;
};

struct token_recents;

/** who, not 0, wants this. *recents is made when needed, to be free()d. -ENOMEM: it is not remembered. */
int recents_note(struct token_recents **recents, uint64_t who,
                 const struct token_range *range);
/** Others were there, and all of them elsewhere than who. NULL: nobody was. */
bool recents_are_apart(const struct token_recents *recents, uint64_t who);
/** Shorten `limit` so that it reaches from `range`, which lies in it, to where others were. */
void recents_limit(const struct token_recents *recents, uint64_t who,
                   const struct token_range *range, struct token_range *limit);
/** The same with what another one holds. */
void ranges_limit(const struct spans *held, const struct token_range *range,
                  struct token_range *limit);

#endif
