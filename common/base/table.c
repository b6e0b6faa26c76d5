/*
 * table.c - hash chains; their number doubles when there are more links than chains.
 */
#include "common/base/table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { CHAINS_MIN = 16 };

static struct table_link **chain_of(const struct table *t, uint64_t hash)
{
    return &t->chains[hash & (t->n_chains - 1)];
}

static void chain_add(struct table *t, struct table_link *link)
{
    struct table_link **chain = chain_of(t, link->hash);

    link->next = *chain;
    *chain = link;
}

/* Doubles the chains. Without memory an existing table stays as it is. */
static int table_grow(struct table *t)
{
    const struct table old = *t;
    size_t n = old.n_chains == 0 ? CHAINS_MIN : 2 * old.n_chains;
    struct table_link **chains = calloc(n, sizeof(struct table_link *));

    if (chains == NULL)
        return old.n_chains == 0 ? -ENOMEM : 0;
    t->chains = chains;
    t->n_chains = n;
    for (size_t i = 0; i < old.n_chains; i++) {
        for (struct table_link *link = old.chains[i], *next; link != NULL; link = next) {
            next = link->next;
            chain_add(t, link);
        }
    }
    free(old.chains);
    return 0;
}

int table_add(struct table *t, struct table_link *link, uint64_t hash)
{
    int rc = t->n < t->n_chains ? 0 : table_grow(t);

    if (rc != 0)
        return rc;
    link->hash = hash;
    chain_add(t, link);
    t->n++;
    return 0;
}

void table_remove(struct table *t, struct table_link *link)
{
    struct table_link **at = chain_of(t, link->hash);

    while (*at != link)
        at = &(*at)->next;
    *at = link->next;
    t->n--;
}

void table_free(struct table *t)
{
    free(t->chains);
    *t = (struct table){ 0 };
}

uint64_t table_hash(const void *bytes, size_t len)
{
    uint64_t h = 0x9e3779b97f4a7c15 ^ len;
    const uint8_t *p = bytes;

    for (; len >= 8; p += 8, len -= 8) {
        uint64_t x;

        memcpy(&x, p, 8);
        h = (h ^ x) * 0xff51afd7ed558ccd;
        h ^= h >> 32;
    }
    for (; len > 0; p++, len--)
        h = (h ^ *p) * 0x100000001b3;
    h *= 0xc4ceb9fe1a85ec53;
    return h ^ h >> 29;
}
