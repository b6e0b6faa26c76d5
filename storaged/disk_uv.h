/*
 * disk_uv.h - a struct disk on a real directory. Shell code; one per loop.
 *
 * What only touches the page cache is done at once on the loop; what waits for a device goes to
 * libuv's pool of workers.
 */
#ifndef ROZO_STORAGED_DISK_UV_H
#define ROZO_STORAGED_DISK_UV_H

#include "common/env_uv.h"
#include "storaged/core/disk.h"
#include "storaged/disk_names.h"

enum { DISK_DIRS = 65536 };

struct disk_uv {
    struct disk disk;    /* first */
    struct env_uv *env;  /* borrowed */
    int dir_fd;          /* borrowed; the data directory */
    unsigned n_inflight; /* requests not done yet */
    unsigned n_pushes;   /* write-outs being begun; the loop ends after them */
    uint8_t
        dir_synced[DISK_DIRS / 8]; /* directories whose own names are on stable storage */
    struct disk_names names;       /* the loop's alone */
};

void disk_uv_init(struct disk_uv *d, struct env_uv *env, int dir_fd);

#endif
