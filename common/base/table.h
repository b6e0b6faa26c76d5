/*
 * table.h - hash tables of embedded links.
 *
 * The hash is the caller's, and kept: what has the same one is in one chain, whatever its key. A zeroed table is empty. There are as many
 * chains as links, so that one is found by a look or two at memory, and the low bits choose: numbers that count up are their own best hash.
 */
#ifndef ROZO_COMMON_BASE_TABLE_H
#define ROZO_COMMON_BASE_TABLE_H

#include <stddef.h>
#include <stdint.h>

/* In what is kept there. */
struct table_link {
    struct table_link *next; /* in its chain */
    uint64_t hash;
};

struct table {
    struct table_link **chains; /* owned */
    size_t n_chains;            /* 0, or a power of two */
    size_t n;                   /* links */
};

/** -ENOMEM: it is not in. */
int table_add(struct table *t, struct table_link *link, uint64_t hash);
/** It is in. */
void table_remove(struct table *t, struct table_link *link);
/** Of the chains; the links are the caller's. It is empty then. */
void table_free(struct table *t);
/** Of bytes, such as a name. */
uint64_t table_hash(const void *bytes, size_t len);

/** The first with this hash, and the next one; NULL: there is none. */
static inline struct table_link *table_next(struct table_link *link, uint64_t hash)
{
    while (link != NULL && link->hash != hash)
        link = link->next;
    return link;
}
static inline struct table_link *table_find(const struct table *t, uint64_t hash)
{
    return t->n == 0 ? NULL : table_next(t->chains[hash & (t->n_chains - 1)], hash);
}

#endif
