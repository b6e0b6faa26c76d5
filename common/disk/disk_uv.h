/*
 * disk_uv.h - a struct disk on a real directory. Shell code; one per loop.
 *
 * Requests that only touch the page cache are done at once on the loop; those that may
 * wait for a device go to libuv's pool of workers.
 */
#ifndef ROZO_COMMON_DISK_DISK_UV_H
#define ROZO_COMMON_DISK_DISK_UV_H

#include <stdatomic.h>

#include "common/disk/disk_ahead.h"
#include "common/disk/disk_names.h"
#include "common/env/disk.h"
#include "common/env/env_uv.h"

enum { DISK_DIRS = 65536 };

/* How long pieces of projection files are written. */
enum disk_io {
    DISK_IO_CACHED,   /* into the page cache, where readers find them */
    DISK_IO_UNCACHED, /* as cached, but pages are dropped once written out (Linux 6.14) */
    /* Past the page cache (O_DIRECT), if the memory is page-aligned, too. */
    DISK_IO_DIRECT,
};

struct disk_uv {
    struct disk disk;   /* first */
    struct env_uv *env; /* borrowed */
    int dir_fd;         /* borrowed; the data directory */
    enum disk_io io;
    atomic_bool no_uncached; /* the kernel or the file system does not support it */
    struct disk_ahead ahead;
    unsigned n_inflight; /* requests not done yet */
    unsigned n_pushes;   /* write-outs being started; the loop ends after them */
    /* Directories whose own names are on stable storage. */
    uint8_t dir_synced[DISK_DIRS / 8];
    struct disk_names names; /* used by the loop only */
};

/** Initialises the disk. Set d->io afterwards, unless it is DISK_IO_CACHED. */
void disk_uv_init(struct disk_uv *d, struct env_uv *env, int dir_fd);

#endif
