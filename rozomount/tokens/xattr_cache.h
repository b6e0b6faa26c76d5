/*
 * xattr_cache.h - small extended attributes of many inodes, also which of them are not there.
 *
 * In bounded memory: when it is full, the inode goes whose attributes were put first. Pure data; whoever owns a set sees to it
 * that what is in it is true. No thread of its own: one lock for a cache and all of its sets.
 */
#ifndef ROZO_ROZOMOUNT_TOKENS_XATTR_CACHE_H
#define ROZO_ROZOMOUNT_TOKENS_XATTR_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/list.h"

enum {
    XATTR_CACHED_MAX = 1024,          /* bytes of one value that is kept */
    XATTR_CACHE_ENTRIES_MAX = 32,     /* of one inode */
    XATTR_CACHE_BYTES_MAX = 32 << 20, /* of all inodes, with what it takes to keep them */
};

struct xattr_set;

struct xattr_cache {
    struct list_node sets; /* put first, first */
    size_t bytes;
};

/* One attribute, or that there is none of this name. */
struct cached_xattr {
    bool is_there;
    size_t len; /* 0: value may be NULL */
    const uint8_t *value;
};

void xattr_cache_init(struct xattr_cache *c);
/**
 * Keeps it in *set, the set of one inode; NULL: it has none yet. The cache puts NULL there when the set goes. What is too large
 * is not kept.
 */
void xattr_cache_put(struct xattr_cache *c, struct xattr_set **set, const char *name,
                     const struct cached_xattr *x);
/** out->value is the set's. */
bool xattr_cache_find(const struct xattr_set *set, const char *name,
                      struct cached_xattr *out);
/** The set goes, if there is one. */
void xattr_cache_drop(struct xattr_cache *c, struct xattr_set **set);

#endif
