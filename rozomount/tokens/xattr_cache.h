/*
 * xattr_cache.h - small extended attributes of many inodes; also notes that one is
 * absent.
 *
 * Memory is bounded: when the cache is full, it evicts the inode whose attributes were
 * added first. Pure data: the owner of a set keeps its content true. Not thread-safe: one
 * lock must guard a cache and all of its sets.
 */
#ifndef ROZO_ROZOMOUNT_TOKENS_XATTR_CACHE_H
#define ROZO_ROZOMOUNT_TOKENS_XATTR_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/list.h"

enum {
    XATTR_CACHED_MAX = 1024, /* bytes of one value that is kept, or of a list of names */
    XATTR_SET_MAX = 16,      /* attributes of an inode that come all at once */
    XATTR_CACHE_ENTRIES_MAX = 32,     /* entries of one inode */
    XATTR_CACHE_BYTES_MAX = 32 << 20, /* bytes of all inodes, with overhead */
};

struct xattr_set;

struct xattr_cache {
    struct list_node sets; /* oldest first */
    size_t bytes;
};

/* One attribute, or the fact that this name is absent. */
struct cached_xattr {
    bool is_there;
    size_t len; /* 0: value may be NULL */
    const uint8_t *value;
};

void xattr_cache_init(struct xattr_cache *c);
/**
 * Adds an attribute to *set, the set of one inode (NULL: no set yet). The cache sets *set
 * to NULL when it evicts the set. Does not keep values that are too large.
 */
void xattr_cache_put(struct xattr_cache *c, struct xattr_set **set, const char *name,
                     const struct cached_xattr *x);
/**
 * Notes that the set has all attributes of its inode, and "", the list of their names.
 * Only if it still has n entries: none was too large, or had no room.
 */
void xattr_cache_is_all(struct xattr_set *set, unsigned n);
/** Returns whether the set has all attributes: others are absent. */
bool xattr_cache_has_all(const struct xattr_set *set);
/** Finds an attribute. out->value is borrowed from the set. */
bool xattr_cache_find(const struct xattr_set *set, const char *name,
                      struct cached_xattr *out);
/** Frees the set, if there is one. */
void xattr_cache_drop(struct xattr_cache *c, struct xattr_set **set);

#endif
