/*
 * table.h - hash tables of embedded links.
 *
 * The caller computes the hash, and it is kept: links with equal hashes share a chain,
 * whatever their keys. A zeroed table is empty. There are as many chains as links, so
 * that a find takes a look or two at memory, and the low bits choose the chain: numbers
 * that count up are their own best hash.
 */
#ifndef ROZO_COMMON_BASE_TABLE_H
#define ROZO_COMMON_BASE_TABLE_H

#include <stddef.h>
#include <stdint.h>

/* Link embedded in a member of a table. */
struct table_link {
    struct table_link *next; /* in its chain */
    uint64_t hash;
};

struct table {
    struct table_link **chains; /* owned */
    size_t n_chains;            /* 0, or a power of two */
    size_t n;                   /* links */
};

/** Adds the link. -ENOMEM: it is not in. */
int table_add(struct table *t, struct table_link *link, uint64_t hash);
/** Removes the link, which must be in. */
void table_remove(struct table *t, struct table_link *link);
/** Frees the chains; the links are the caller's. The table is empty then. */
void table_free(struct table *t);
/** Returns the hash of some bytes, such as a name. */
uint64_t table_hash(const void *bytes, size_t len);

/** Return the first link with this hash, and the next one; NULL: there is none. */
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
