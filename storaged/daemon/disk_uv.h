/*
 * disk_uv.h - a struct disk on a real directory. Shell code; one per loop.
 *
 * What only touches the page cache is done at once on the loop; what waits for a device goes to
 * libuv's pool of workers.
 */
#ifndef ROZO_STORAGED_DAEMON_DISK_UV_H
#define ROZO_STORAGED_DAEMON_DISK_UV_H

#include <stdatomic.h>

#include "common/env/env_uv.h"
#include "storaged/daemon/disk_ahead.h"
#include "storaged/daemon/disk_names.h"
#include "storaged/disk/disk.h"

enum { DISK_DIRS = 65536 };

/* How long pieces of projection files are written. */
enum disk_io {
    DISK_IO_CACHED, /* into the kernel's pages, which stay for who reads them */
    DISK_IO_UNCACHED, /* the same, and the pages go when they are written out (Linux 6.14) */
    DISK_IO_DIRECT, /* past the pages (O_DIRECT), where they lie on whole pages in memory, too */
};

struct disk_uv {
    struct disk disk;   /* first */
    struct env_uv *env; /* borrowed */
    int dir_fd;         /* borrowed; the data directory */
    enum disk_io io;
    atomic_bool no_uncached; /* the kernel or the file system does not do it */
    struct disk_ahead ahead;
    unsigned n_inflight; /* requests not done yet */
    unsigned n_pushes;   /* write-outs being begun; the loop ends after them */
    uint8_t
        dir_synced[DISK_DIRS / 8]; /* directories whose own names are on stable storage */
    struct disk_names names;       /* the loop's alone */
};

/** Set d->io afterwards, unless it is DISK_IO_CACHED. */
void disk_uv_init(struct disk_uv *d, struct env_uv *env, int dir_fd);

#endif
