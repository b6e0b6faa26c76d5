/*
 * inode.h - an inode in memory and as the bytes in the kv.
 *
 * docs/FORMATS.md describes the bytes. Both formats are on users' disks; the newer one is written.
 */
#ifndef ROZO_EXPORTD_NAMESPACE_INODE_H
#define ROZO_EXPORTD_NAMESPACE_INODE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "common/base/record.h"
#include "common/base/wide_ns.h"

enum {
    INODE_FORMAT = 2,
    INODE_FORMAT_NS = 1, /* an older one that is read, too: times of 64-bit nanoseconds */
    INODE_BYTES_MIN = 136,    /* without a distribution */
    INODE_BYTES_MIN_NS = 120, /* the same of the older one */
    INODE_BYTES_MAX = INODE_BYTES_MIN + 4 * DIST_MAX,
};

/* Data end at 16 TiB; the smallest blocks have 4 KB. */
#define INODE_N_BLOCKS_MAX (UINT64_C(1) << 32)

enum inode_flags {
    INODE_HAS_DATA = 1,         /* some storage took bytes of it */
    INODE_MAY_HAVE_DATA = 2,    /* somebody has, or had, an epoch to write it with */
    INODE_TRUNCATE_PENDING = 4, /* truncate_size, truncate_version count */
    INODE_XATTRS = 8,           /* it has xattrs */
    INODE_ACL_ACCESS = 16,      /* among them an access ACL */
    INODE_ACL_DEFAULT = 32,     /* and a default ACL (directories) */
    INODE_UNTOLD =
        64, /* whoever wrote it may have left bytes beyond its end; see namespace_attr.c */
    INODE_INLINE = 128, /* its data are in KEY_INLINE; see namespace_inline.c */
    INODE_BLOCKS =
        256, /* KEY_BLOCKS says which blocks are allocated; see namespace_blocks.c */
    INODE_UNCOUNTED =
        512, /* there may be blocks that nobody told of; see namespace_blocks.c */
    /* A build that does not know a flag takes the inode for damaged: nothing of it is
     * ignored. */
    INODE_IMMUTABLE = 4096, /* chattr +i */
    INODE_APPEND = 8192,    /* chattr +a */
    INODE_NAMELESS = 16384, /* made by O_TMPFILE, never had a name: it may get one */
    INODE_MOVED = 32768,    /* it has, or had, a record KEY_REDIST; see redistribute.c */
    INODE_FLAGS_ALL =
        1023 | INODE_IMMUTABLE | INODE_APPEND | INODE_NAMELESS | INODE_MOVED,
};

/* Plain data. Members after change are of directories only, or of regular files only. */
struct inode {
    uint64_t ino; /* not in the bytes: it is in the key */
    uint32_t generation;
    uint32_t flags; /* enum inode_flags */
    uint32_t mode;  /* type and permissions */
    uint32_t nlink; /* 0: an orphan */
    uint32_t uid, gid, rdev;
    uint32_t epoch;       /* the last one given out ... */
    uint32_t epoch_start; /* ... by the exportd of this start; see namespace_attr.c */
    uint64_t size;        /* bytes; of a symlink its target's length */
    wide_ns atime_ns, mtime_ns; /* whatever a user has set */
    int64_t ctime_ns;
    uint64_t change;
    uint64_t n_blocks; /* allocated; without INODE_BLOCKS they are the first ones */

    uint64_t parent;      /* of a directory; the root's is itself */
    uint64_t n_entries;   /* names in it */
    uint64_t next_cookie; /* of the next name */

    uint64_t truncate_size;    /* the smallest since the pending truncate began */
    uint64_t truncate_version; /* of the newest one that was ever pending */
    uint64_t
        wanted_size; /* the size once the truncate is done, when above size; else 0 */
    uint8_t codec;   /* enum codec_kind */
    uint8_t layout;
    uint16_t block_bytes;
    uint32_t dist_generation; /* how often its distribution has changed */
    uint32_t n_storages;      /* 0: no regular file */
    uint32_t storages[DIST_MAX];
};

/** Bytes written to buf, at most INODE_BYTES_MAX. */
size_t inode_encode(const struct inode *in, uint8_t buf[INODE_BYTES_MAX]);
/** Fills all of *in; -EINVAL when the bytes make no sense. Any bytes are safe. */
int inode_decode(struct inode *in, uint64_t ino, const uint8_t *buf, size_t len);

/** As if it had no holes: of records and clients that do not tell. */
uint64_t inode_blocks_of_size(const struct inode *in);

static inline bool inode_is_dir(const struct inode *in)
{
    return S_ISDIR(in->mode);
}
static inline bool inode_is_file(const struct inode *in)
{
    return S_ISREG(in->mode);
}
/** True if storages may hold blocks of this file. */
static inline bool inode_may_have_data(const struct inode *in)
{
    return (in->flags & (INODE_HAS_DATA | INODE_MAY_HAVE_DATA)) != 0;
}
/** Names, attributes and xattrs of such an inode stay as they are. */
static inline bool inode_is_fixed(const struct inode *in)
{
    return (in->flags & (INODE_IMMUTABLE | INODE_APPEND)) != 0;
}
/** -EPERM: its data, or the names in it, stay as they are. */
static inline int inode_may_grow(const struct inode *in)
{
    return (in->flags & INODE_IMMUTABLE) != 0 ? -EPERM : 0;
}
/** The size users see, also while growth waits for a truncate. */
static inline uint64_t inode_final_size(const struct inode *in)
{
    return in->wanted_size > in->size ? in->wanted_size : in->size;
}

#endif
