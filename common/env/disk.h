/*
 * disk.h - the data directory as the core sees it: one request, one callback.
 *
 * The shell has a real one (disk_uv.h); tests have one in memory that fails, tears and
 * forgets. A disk belongs to the thread of its env. Paths are relative to the data
 * directory. *Stable* means on stable storage: it survives a loss of power.
 */
#ifndef ROZO_COMMON_ENV_DISK_H
#define ROZO_COMMON_ENV_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/env/env.h"

struct disk;
struct disk_file; /* an open file, owned by the disk */

enum disk_op {
    /* path, create -> file, size. Creates missing parents, too. If path is missing,
     * `to` (may be NULL) is looked up: does it exist -> aside */
    DISK_OPEN,
    DISK_READ,  /* file, offset, iov -> n_read; short only at the end of the file */
    DISK_WRITE, /* file, offset, iov; all is written, or an unknown part if it fails */
    DISK_SYNC,  /* file: its data and size become stable */
    DISK_SYNC_NAME, /* path: the name and all directories above it become stable */
    DISK_TRUNCATE,  /* file, offset: the new size; larger only if a write failed */
    /* file, offset, len: reserves space. grow: the size grows to hold it, else it
     * stays. With iov, room for some struct disk_range: the ranges that had no space
     * before -> n_read bytes, the first ones if there are too many. They are freed
     * again on failure. */
    DISK_ALLOCATE,
    DISK_GIVE_BACK, /* file, offset, len: frees reserved space without data */
    /* file, offset, len -> mapped: is space reserved at offset; next: end of the bytes
     * for which the answer holds */
    DISK_MAPPED,
    DISK_PUNCH, /* file, offset, len: reads as zeros, the size stays */
    /* file, offset -> next: first byte >= offset that may not be a hole */
    DISK_NEXT_DATA,
    DISK_STAT, /* file -> size, allocated */
    /* file, offset, len: loads it into the page cache, so that sending does not block;
     * -EIO if the file is shorter */
    DISK_WARM,
    /* path, n_names: removes path + "0" .. path + "n_names - 1", and path + "damaged";
     * n_names 0: path itself */
    DISK_REMOVE,
    DISK_RENAME, /* path, to: replaces a file of that name */
    /* -> total, free: bytes of the file system, and those that writers may use */
    DISK_SPACE,
    /* path, one iov: replaces a small file, or makes it; whole and stable when done */
    DISK_REPLACE,
    /* offset: number of a directory objects/XX/YY; path: a name in it, or NULL; iov ->
     * the names behind that one, ascending, each with its zero byte, n_read bytes; if
     * there are none, those of the next directory that has any. directory: theirs;
     * more: not all fitted. -ENODATA: no names are left. Do not submit it in a turn
     * that makes or removes names; names made or removed later may be listed or not. */
    DISK_LIST,
};
/* DISK_NAME_MAX: bytes of a name with its zero byte */
enum { DISK_DIRECTORIES = 65536, DISK_NAME_MAX = 64 };

struct disk_req;

/* Bytes [from, to) of a file. */
struct disk_range {
    uint64_t from, to;
};

/**
 * Called exactly once, never inside disk_submit(). rc is 0 or one of -ENOENT (OPEN,
 * REMOVE: no such name), -ENODATA (NEXT_DATA: only holes), -ENOSPC, -EFBIG, -ENOMEM,
 * -EMFILE; any other failure is -EIO.
 */
typedef void disk_done_cb(struct disk_req *req, int rc);

/* One request, embedded in its caller. All that it points at is borrowed until done. */
struct disk_req {
    enum disk_op op;
    bool create;
    bool grow;
    bool more, quarantined, mapped; /* out */
    /* WRITE: unreadable parts of the pages at its ends may be lost (bad_page_disk.h) */
    bool salvages;
    struct disk_file *file; /* in; OPEN: out */
    const char *path, *to;
    unsigned n_names;
    uint64_t offset, len;
    const struct iovec *iov;
    unsigned n_iov;
    disk_done_cb *done;
    void *arg;
    struct env_task task; /* private to the disk */
    int rc;               /* private to the disk */
    unsigned n_lost;      /* out, bad_page_disk.h: pages newly found unreadable */
    unsigned n_unread; /* out, READ, bad_page_disk.h: pages that could not be read now */
    void *above;       /* private to bad_page_disk.h, with above_done */
    disk_done_cb *above_done;
    union {
        uint64_t n_read, size, next, total;
    };
    union {
        uint64_t allocated, free, directory;
    };
};

enum { DISK_RESERVE_MAX = 64 << 20 };
/**
 * Returns the bytes to be left free on a file system of `total` bytes. configured
 * UINT64_MAX: 1 %, at most DISK_RESERVE_MAX.
 */
static inline uint64_t disk_reserve(uint64_t configured, uint64_t total)
{
    if (configured != UINT64_MAX)
        return configured;
    return total / 100 < DISK_RESERVE_MAX ? total / 100 : DISK_RESERVE_MAX;
}

struct disk_ops {
    void (*submit)(struct disk *disk, struct disk_req *req);
    void (*close)(struct disk *disk, struct disk_file *file);
    int (*fd)(struct disk *disk, const struct disk_file *file);
};
struct disk {
    const struct disk_ops *ops;
};

static inline void disk_submit(struct disk *disk, struct disk_req *req)
{
    disk->ops->submit(disk, req);
}
/** Closes a file. No request on it may be under way. */
static inline void disk_close(struct disk *disk, struct disk_file *file)
{
    disk->ops->close(disk, file);
}
/**
 * Returns a descriptor for the file segments of an answer (rpc.h); valid until
 * disk_close().
 */
static inline int disk_fd(struct disk *disk, const struct disk_file *file)
{
    return disk->ops->fd(disk, file);
}

#endif
