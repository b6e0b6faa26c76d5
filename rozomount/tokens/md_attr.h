/*
 * md_attr.h - attributes of an inode.
 */
#ifndef ROZO_ROZOMOUNT_TOKENS_MD_ATTR_H
#define ROZO_ROZOMOUNT_TOKENS_MD_ATTR_H

#include "common/wire/wide_ns.h"
#include "rozomount/tokens/token_cache.h"

/* Attributes of an inode as exportd reported them. */
struct md_attr {
    uint64_t ino; /* not 0 */
    uint32_t generation;
    uint32_t mode; /* has a valid file type */
    uint32_t nlink, uid, gid, rdev;
    uint64_t size;              /* 0..INT64_MAX */
    wide_ns atime_ns, mtime_ns; /* wide_ns_is_fine() holds; also for ctime_ns */
    int64_t ctime_ns;
    bool has_data;
    uint64_t blocks;    /* units of 512 bytes */
    bool blocks_unsure; /* blocks may still grow: exportd has not counted yet */
    uint64_t change;
    enum token_mode token; /* token held after this answer; see token_cache.h */
    uint32_t xattrs;       /* XattrBits; 0: not known */
    uint32_t file_flags;   /* FileFlags, as chattr has set them */
};

#endif
