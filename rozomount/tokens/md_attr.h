/*
 * md_attr.h - attributes of an inode.
 */
#ifndef ROZO_ROZOMOUNT_TOKENS_MD_ATTR_H
#define ROZO_ROZOMOUNT_TOKENS_MD_ATTR_H

#include "common/base/wide_ns.h"
#include "rozomount/tokens/token_cache.h"

/* An inode's attributes as exportd has them. */
struct md_attr {
    uint64_t ino; /* not 0 */
    uint32_t generation;
    uint32_t mode; /* type is one of the seven */
    uint32_t nlink, uid, gid, rdev;
    uint64_t size;              /* 0..INT64_MAX */
    wide_ns atime_ns, mtime_ns; /* fine, as ctime always is */
    int64_t ctime_ns;
    bool has_data;
    uint64_t blocks;    /* of 512 bytes */
    bool blocks_unsure; /* it may grow by itself, when somebody has counted */
    uint64_t change;
    enum token_mode token; /* what we hold of it after this answer; see token_cache.h */
    uint32_t xattrs;       /* of XattrBits; 0: not told */
    uint32_t file_flags;   /* FileFlags: what chattr has set */
};

#endif
