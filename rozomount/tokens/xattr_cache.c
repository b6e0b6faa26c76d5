/*
 * xattr_cache.c - a list of entries for each inode; the inodes in the order of insertion.
 *
 * In:     answers about xattrs, from token_cache.c. Out: the cached values.
 * Keeps:  I9: at most XATTR_CACHE_BYTES_MAX bytes, whatever programs request.
 */
#include "rozomount/tokens/xattr_cache.h"

#include <stdlib.h>
#include <string.h>

#include "rozomount/options/xalloc.h"

struct xattr_entry {
    struct xattr_entry *next;
    bool is_there;
    uint16_t len;
    uint8_t name_len;
    uint8_t bytes[]; /* the name, then the value */
};

struct xattr_set {
    struct list_node link;     /* in xattr_cache->sets */
    struct xattr_set **owner;  /* the owner's pointer to this set */
    struct xattr_entry *first; /* owned */
    unsigned n;
    bool has_all;
    size_t bytes;
};

void xattr_cache_init(struct xattr_cache *c)
{
    list_init(&c->sets);
    c->bytes = 0;
}

static struct xattr_entry **entry_find(struct xattr_set *set, const char *name,
                                       size_t name_len)
{
    struct xattr_entry **at = &set->first;

    while (*at != NULL &&
           ((*at)->name_len != name_len || memcmp((*at)->bytes, name, name_len) != 0))
        at = &(*at)->next;
    return at;
}

static void entry_remove(struct xattr_cache *c, struct xattr_set *set,
                         struct xattr_entry **at)
{
    struct xattr_entry *e = *at;
    size_t bytes = sizeof(*e) + e->name_len + e->len;

    *at = e->next;
    set->n--;
    set->bytes -= bytes;
    c->bytes -= bytes;
    free(e);
}

static struct xattr_set *set_new(struct xattr_cache *c, struct xattr_set **owner)
{
    struct xattr_set *set = *owner = xzalloc(sizeof(*set));

    set->owner = owner;
    list_add_tail(&c->sets, &set->link);
    set->bytes = sizeof(*set);
    c->bytes += set->bytes;
    return set;
}

void xattr_cache_drop(struct xattr_cache *c, struct xattr_set **owner)
{
    struct xattr_set *set = *owner;

    if (set == NULL)
        return;
    while (set->first != NULL)
        entry_remove(c, set, &set->first);
    c->bytes -= set->bytes;
    list_remove(&set->link);
    *owner = NULL;
    free(set);
}

static void entry_add(struct xattr_cache *c, struct xattr_set *set, const char *name,
                      const struct cached_xattr *x)
{
    size_t name_len = strlen(name),
           bytes = sizeof(struct xattr_entry) + name_len + x->len;
    struct xattr_entry *e = xzalloc(bytes);

    e->is_there = x->is_there;
    e->len = (uint16_t)x->len;
    e->name_len = (uint8_t)name_len;
    memcpy(e->bytes, name, name_len);
    if (x->len != 0)
        memcpy(e->bytes + name_len, x->value, x->len);
    e->next = set->first;
    set->first = e;
    set->n++;
    set->bytes += bytes;
    c->bytes += bytes;
}

void xattr_cache_put(struct xattr_cache *c, struct xattr_set **owner, const char *name,
                     const struct cached_xattr *x)
{
    struct xattr_set *set = *owner;
    size_t name_len = strlen(name);
    struct xattr_entry **at;

    if (name_len > UINT8_MAX || x->len > XATTR_CACHED_MAX)
        return;
    if (set == NULL)
        set = set_new(c, owner);
    at = entry_find(set, name, name_len);
    if (*at != NULL)
        entry_remove(c, set, at);
    if (set->n < XATTR_CACHE_ENTRIES_MAX)
        entry_add(c, set, name, x);
    while (c->bytes > XATTR_CACHE_BYTES_MAX)
        xattr_cache_drop(c, container_of(c->sets.next, struct xattr_set, link)->owner);
}

bool xattr_cache_find(const struct xattr_set *set, const char *name,
                      struct cached_xattr *out)
{
    const struct xattr_entry *e;

    if (set == NULL)
        return false;
    e = *entry_find((struct xattr_set *)(uintptr_t)set, name, strlen(name));
    if (e == NULL)
        return false;
    *out = (struct cached_xattr){ e->is_there, e->len, e->bytes + e->name_len };
    return true;
}

void xattr_cache_is_all(struct xattr_set *set, unsigned n)
{
    if (set != NULL && set->n == n)
        set->has_all = true;
}

bool xattr_cache_has_all(const struct xattr_set *set)
{
    return set != NULL && set->has_all;
}
