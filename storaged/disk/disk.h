/*
 * disk.h - the data directory as the core sees it: one request, one callback.
 *
 * The shell has a real one (disk_uv.h), tests have one in memory that fails, tears and forgets.
 * A disk belongs to one thread, that of its env. Paths are relative to the data directory.
 */
#ifndef ROZO_STORAGED_DISK_DISK_H
#define ROZO_STORAGED_DISK_DISK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "common/env/env.h"

struct disk;
struct disk_file; /* an open file; the disk's */

enum disk_op {
    DISK_OPEN, /* path, create -> file, size. Makes missing parents when it creates. With `to`: when
                    that is -ENOENT, is something called so? -> aside */
    DISK_READ,  /* file, offset, iov -> n_read; short only at the end of the file */
    DISK_WRITE, /* file, offset, iov; all of it, or an error and nobody knows how much */
    DISK_SYNC,  /* file: its data and size are on stable storage */
    DISK_SYNC_NAME, /* path: the name and all directories above it are */
    DISK_TRUNCATE, /* file, offset: the new size; a larger one only where a write failed */
    DISK_ALLOCATE, /* file, offset, len: reserve space. grow: the size grows to hold it, else
                    it stays. With iov, which has room for some struct disk_range: the ranges
                    that had no space -> n_read bytes of them, the first ones if they are too
                    many; these are given back on failure. */
    DISK_GIVE_BACK, /* file, offset, len: free what is reserved and holds no data */
    DISK_MAPPED, /* file, offset, len -> next, mapped: has what is at offset its space? The
                    same is true up to next. */
    DISK_PUNCH,  /* file, offset, len: reads as zeros, the size stays */
    DISK_NEXT_DATA, /* file, offset -> next: first byte >= offset that may not be a hole */
    DISK_STAT,      /* file -> size, allocated */
    DISK_WARM, /* file, offset, len: into the page cache, so that sending does not wait; -EIO
                    when the file is shorter */
    DISK_REMOVE, /* path, n_names: remove path + "0" .. path + "n_names - 1", and path +
                    "damaged"; n_names 0: path itself */
    DISK_RENAME, /* path, to: what was called so is gone */
    DISK_SPACE,  /* -> total, free: bytes of the file system, what writers may use */
    DISK_SAVE_IDENTITY, /* iov: replace the identity file, on stable storage when done */
    DISK_LIST, /* offset: number of a directory objects/XX/YY, path: a name in it or NULL, iov
                    -> names of it behind that one, ascending, each with its zero byte, n_read
                    bytes of whole ones; is there none, those of the next directory that has
                    any. directory: whose they are; more: there was no room for all.
                    -ENODATA: none is left. Not while names are made or removed in the same
                    turn: what comes or goes meanwhile may be there or not */
};
enum { DISK_DIRECTORIES = 65536, DISK_NAME_MAX = 64 }; /* with its zero byte */

struct disk_req;

/* Bytes [from, to) of a file. */
struct disk_range {
    uint64_t from, to;
};

/**
 * Exactly once, never inside disk_submit(). rc is 0 or one of -ENOENT (OPEN, REMOVE: no such
 * name), -ENODATA (NEXT_DATA: only holes), -ENOSPC, -EFBIG, -ENOMEM, -EMFILE; any other
 * failure is -EIO.
 */
typedef void disk_done_cb(struct disk_req *req, int rc);

/* One request. Owned by its caller and embedded there; all it points at is borrowed until done. */
struct disk_req {
    enum disk_op op;
    bool create;
    bool grow;
    bool more, aside, mapped; /* out */
    bool
        anew; /* WRITE: what cannot be read of the pages at its ends may be given up (bad_page_disk.h) */
    struct disk_file *file; /* in; OPEN: out */
    const char *path, *to;
    unsigned n_names;
    uint64_t offset, len;
    const struct iovec *iov;
    unsigned n_iov;
    disk_done_cb *done;
    void *arg;
    struct env_task task; /* the disk's */
    int rc;               /* the disk's */
    unsigned n_lost; /* out, bad_page_disk.h: pages that turned out to be unreadable */
    unsigned
        n_unread; /* out, of a READ, bad_page_disk.h: pages that could not be read now */
    void *above;  /* bad_page_disk.h's, as the next */
    disk_done_cb *above_done;
    union {
        uint64_t n_read, size, next, total;
    };
    union {
        uint64_t allocated, free, directory;
    };
};

enum { DISK_RESERVE_MAX = 64 << 20 };
/** What is left to others of a file system of `total` bytes. configured: UINT64_MAX: 1 %, at most DISK_RESERVE_MAX. */
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
/** No request on it may be under way. */
static inline void disk_close(struct disk *disk, struct disk_file *file)
{
    disk->ops->close(disk, file);
}
/** For the file segments of an answer (rpc.h); valid until disk_close(). */
static inline int disk_fd(struct disk *disk, const struct disk_file *file)
{
    return disk->ops->fd(disk, file);
}

#endif
