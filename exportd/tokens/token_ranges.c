/*
 * token_ranges.c - see token_ranges.h.
 *
 * In:     tokens.c. Out: nothing but answers.
 * Yours:  RECENTS_MAX; how far a range is widened.
 */
#include "exportd/tokens/token_ranges.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum { STRAYS_MAX = 8 };

struct recent {
    uint64_t who;
    struct token_range range;
    /* requests among the ranges of others; each request elsewhere takes one off */
    unsigned n_strays;
};

struct token_recents {
    unsigned n;
    struct recent list[RECENTS_MAX];
};

static bool overlap(const struct token_range *a, const struct token_range *b)
{
    return a->from < b->to && b->from < a->to;
}

static struct recent *find(struct token_recents *recents, uint64_t who)
{
    for (unsigned i = 0; recents != NULL && i < recents->n; i++)
        if (recents->list[i].who == who)
            return &recents->list[i];
    return NULL;
}

static bool others_were_at(const struct token_recents *recents, uint64_t who,
                           const struct token_range *range)
{
    for (unsigned i = 0; i < recents->n; i++)
        if (recents->list[i].who != who && overlap(&recents->list[i].range, range))
            return true;
    return false;
}

static void reach(struct token_range *range, const struct token_range *also)
{
    if (also->from < range->from)
        range->from = also->from;
    if (also->to > range->to)
        range->to = also->to;
}

int recents_note(struct token_recents **recents, uint64_t who,
                 const struct token_range *range)
{
    struct token_recents *all = *recents;
    struct recent *own = find(all, who);
    struct token_range wider;

    assert(who != 0 && range->from < range->to);
    if (all == NULL)
        all = *recents = calloc(1, sizeof(*all));
    if (all == NULL || (own == NULL && all->n == RECENTS_MAX))
        return -ENOMEM;
    if (own == NULL) {
        all->list[all->n++] = (struct recent){ who, *range, 0 };
        return 0;
    }
    wider = own->range;
    reach(&wider, range);
    if (!others_were_at(all, who, &own->range) && others_were_at(all, who, &wider) &&
        own->n_strays < STRAYS_MAX) {
        own->n_strays++;
        return 0;
    }
    own->range = wider;
    if (own->n_strays > 0)
        own->n_strays--;
    return 0;
}

bool recents_are_apart(const struct token_recents *recents, uint64_t who)
{
    const struct recent *own = find((struct token_recents *)recents, who);

    return own != NULL && recents->n > 1 && !others_were_at(recents, who, &own->range);
}

static void limit_by(const struct token_range *other, const struct token_range *range,
                     struct token_range *limit)
{
    if (overlap(other, range))
        *limit = *range;
    else if (other->to <= range->from && other->to > limit->from)
        limit->from = other->to;
    else if (other->from >= range->to && other->from < limit->to)
        limit->to = other->from;
}

void recents_limit(const struct token_recents *recents, uint64_t who,
                   const struct token_range *range, struct token_range *limit)
{
    for (unsigned i = 0; recents != NULL && i < recents->n; i++)
        if (recents->list[i].who != who)
            limit_by(&recents->list[i].range, range, limit);
}

void ranges_limit(const struct range_map *held, const struct token_range *range,
                  struct token_range *limit)
{
    assert(limit->from <= range->from && limit->to >= range->to);
    for (size_t i = 0; i < held->n; i++)
        limit_by(&(struct token_range){ held->list[i].from, held->list[i].to }, range,
                 limit);
}
