/*
 * disk_ahead.h - space of streams is reserved ahead of them, so that ext4 has not to look for it page by page.
 *
 * A file that grows in one long sequence gets AHEAD_MAX bytes behind its end, in one piece; its size stays. What was not
 * used is given back when the file is closed, when others stream, and when the file system gets full. Shell code; one per
 * loop, on its thread.
 */
#ifndef ROZO_STORAGED_DAEMON_DISK_AHEAD_H
#define ROZO_STORAGED_DAEMON_DISK_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"

enum {
    AHEAD_MAX = 4 << 20,   /* bytes behind the end of one file */
    AHEAD_FROM = 1 << 20,  /* bytes of a stream until it counts */
    AHEAD_FILES_MAX = 8,   /* that have something reserved so */
    AHEAD_FREE_MIN = 2048, /* MiB: with less free than that nothing is reserved */
};

struct disk_ahead {
    struct list_node files; /* that have something reserved, last used first */
    unsigned n_files;
    uint64_t clock; /* writes of streams */
};

/* Of one open file. Zero-initialise. */
struct ahead_file {
    struct list_node link; /* in files while end is not 0 */
    int fd;                /* borrowed, of that time */
    uint64_t end;          /* reserved by us up to here; 0: nothing */
    uint64_t used;         /* by the clock */
    unsigned n_sizing;     /* requests under way elsewhere that may change its size */
    bool looked;
    bool
        never; /* somebody else's space lies behind its end, or the file system does not do it */
};

void ahead_init(struct disk_ahead *a);
/** A stream of `streamed` bytes so far has written up to `to`, on this thread or another. */
void ahead_streamed(struct disk_ahead *a, struct ahead_file *f, int fd, uint64_t to,
                    uint64_t streamed);
/** What lies behind its end from now on is to stay: a user has reserved it. */
void ahead_never(struct disk_ahead *a, struct ahead_file *f);
/** It is truncated, and with that all behind its end goes. */
void ahead_forget(struct disk_ahead *a, struct ahead_file *f);
/** Before it is closed. While n_sizing is not 0 the space stays with the file. */
void ahead_give_back(struct disk_ahead *a, struct ahead_file *f);
void ahead_give_back_all(struct disk_ahead *a);
/** Bytes that we have reserved behind `size`, where the file ends. */
uint64_t ahead_bytes(const struct ahead_file *f, uint64_t size);

#endif
