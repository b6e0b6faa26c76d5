/*
 * inode.h - an inode in memory and as the bytes in the kv.
 *
 * docs/FORMATS.md describes the bytes. Both formats are on users' disks; only the newer
 * one is written.
 */
#ifndef ROZO_EXPORTD_NAMESPACE_INODE_H
#define ROZO_EXPORTD_NAMESPACE_INODE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "codec/codec.h"
#include "common/wire/record.h"
#include "common/wire/wide_ns.h"

enum {
    INODE_FORMAT = 2,
    INODE_FORMAT_NS = 1,      /* older format, still read: times of 64-bit nanoseconds */
    INODE_BYTES_MIN = 136,    /* bytes, without a distribution */
    INODE_BYTES_MIN_NS = 120, /* bytes in the older format */
    INODE_BYTES_MAX = INODE_BYTES_MIN + 4 * DIST_MAX,
};

/* Largest number of blocks: data end at 16 TiB, and the smallest blocks have 4 KiB. */
#define INODE_N_BLOCKS_MAX (UINT64_C(1) << 32)

enum inode_flags {
    INODE_HAS_DATA = 1,         /* a storage took bytes of the file */
    INODE_MAY_HAVE_DATA = 2,    /* a client has, or had, an epoch to write it */
    INODE_TRUNCATE_PENDING = 4, /* truncate_size and truncate_version are valid */
    INODE_XATTRS = 8,           /* there are xattrs */
    INODE_ACL_ACCESS = 16,      /* an access ACL is among the xattrs */
    INODE_ACL_DEFAULT = 32,     /* a default ACL is among the xattrs (directories) */
    /* bytes beyond the end may lie on storages; see namespace_attr.c */
    INODE_UNREPORTED = 64,
    INODE_INLINE = 128, /* data are in KEY_INLINE; see namespace_inline.c */
    INODE_BLOCKS = 256, /* KEY_BLOCKS has the allocated blocks; see namespace_blocks.c */
    /* unreported blocks may be allocated; see namespace_blocks.c */
    INODE_UNCOUNTED = 512,
    /*
     * A build that does not know a flag takes the inode for damaged; no flag is ignored.
     */
    INODE_IMMUTABLE = 4096, /* chattr +i */
    INODE_APPEND = 8192,    /* chattr +a */
    INODE_NAMELESS = 16384, /* made by O_TMPFILE and never linked; may get a name */
    INODE_MOVED = 32768,    /* there is, or was, a KEY_REDIST record; see redist_file.c */
    /* FileRef.full_quorum: fewer candidates than the layout, but its write quorum */
    INODE_FULL_QUORUM = 65536,
    INODE_FLAGS_ALL = 1023 | INODE_IMMUTABLE | INODE_APPEND | INODE_NAMELESS |
                      INODE_MOVED | INODE_FULL_QUORUM,
};

/*
 * Plain data. Members after `change` are used by directories only, or by regular files
 * only.
 */
struct inode {
    uint64_t ino; /* not in the bytes, since it is in the key */
    uint32_t generation;
    uint32_t flags; /* enum inode_flags */
    uint32_t mode;  /* type and permissions */
    uint32_t nlink; /* 0: orphan */
    uint32_t uid, gid, rdev;
    uint32_t epoch; /* newest epoch given out */
    /* start of exportd that gave out `epoch`; see namespace_attr.c */
    uint32_t epoch_start;
    uint64_t size;              /* bytes; for a symlink the length of its target */
    wide_ns atime_ns, mtime_ns; /* any time that users may set */
    int64_t ctime_ns;
    uint64_t change;
    /* allocated blocks; without INODE_BLOCKS the first ones of the file */
    uint64_t n_blocks;

    uint64_t parent;    /* directories: inode of the parent; the root is its own parent */
    uint64_t n_entries; /* directories: number of names */
    uint64_t next_cookie; /* directories: cookie of the next new name */

    uint64_t truncate_size;    /* smallest size since the pending truncate began */
    uint64_t truncate_version; /* version of the newest truncate that ever was pending */
    /* size after the pending truncate, if larger than `size`; else 0 */
    uint64_t wanted_size;
    uint8_t codec; /* enum codec_kind */
    uint8_t layout;
    uint16_t block_bytes;
    uint32_t dist_generation; /* number of changes of the distribution */
    uint32_t n_storages;      /* 0: not a regular file */
    uint32_t storages[DIST_MAX];
};

/** Encodes an inode. Returns the number of bytes written, at most INODE_BYTES_MAX. */
size_t inode_encode(const struct inode *in, uint8_t buf[INODE_BYTES_MAX]);
/**
 * Decodes an inode and fills all of *in. Returns -EINVAL if the bytes are corrupt. Any
 * bytes are safe.
 */
int inode_decode(struct inode *in, uint64_t ino, const uint8_t *buf, size_t len);

/**
 * Returns the number of blocks of a file without holes: for old records, and for clients
 * that do not report blocks.
 */
uint64_t inode_blocks_of_size(const struct inode *in);

static inline bool inode_is_dir(const struct inode *in)
{
    return S_ISDIR(in->mode);
}
static inline bool inode_is_file(const struct inode *in)
{
    return S_ISREG(in->mode);
}
/** Returns quorum_read() of a file. */
static inline unsigned inode_quorum_read(const struct inode *in)
{
    return quorum_read(codec_layout(in->layout), in->n_storages,
                       (in->flags & INODE_FULL_QUORUM) != 0);
}
/** Returns true if storages may hold blocks of this file. */
static inline bool inode_may_have_data(const struct inode *in)
{
    return (in->flags & (INODE_HAS_DATA | INODE_MAY_HAVE_DATA)) != 0;
}
/**
 * Returns true if the inode must keep its names, attributes and xattrs (chattr +i or +a).
 */
static inline bool inode_is_fixed(const struct inode *in)
{
    return (in->flags & (INODE_IMMUTABLE | INODE_APPEND)) != 0;
}
/**
 * Returns -EPERM if nothing may be added: no data, and no names in a directory (chattr
 * +i).
 */
static inline int inode_may_grow(const struct inode *in)
{
    return (in->flags & INODE_IMMUTABLE) != 0 ? -EPERM : 0;
}
/** Returns the size that users see, also while growth waits for a truncate. */
static inline uint64_t inode_final_size(const struct inode *in)
{
    return in->wanted_size > in->size ? in->wanted_size : in->size;
}

#endif
