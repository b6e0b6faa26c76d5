/*
 * disk_ahead.h - reserves space ahead of streams, so that ext4 need not search for it
 * page by page.
 *
 * A file that grows in one long sequence gets up to AHEAD_MAX bytes behind its end, in
 * one piece; its size stays. Unused space is freed when the file is closed, when other
 * files stream, and when the file system gets full. Shell code; one per loop, on its
 * thread.
 */
#ifndef ROZO_COMMON_DISK_DISK_AHEAD_H
#define ROZO_COMMON_DISK_DISK_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/list.h"

enum {
    AHEAD_MAX = 4 << 20,   /* bytes beyond the end of one file */
    AHEAD_FROM = 1 << 20,  /* bytes of a stream before space is reserved */
    AHEAD_FILES_MAX = 8,   /* files with reserved space */
    AHEAD_FREE_MIN = 2048, /* MiB: with less free space nothing is reserved */
};

struct disk_ahead {
    struct list_node files; /* files with reserved space, last used first */
    unsigned n_files;
    uint64_t clock; /* number of writes of streams */
};

/* Reserved space of one open file. Zero-initialise. */
struct ahead_file {
    struct list_node link; /* in files while end is not 0 */
    int fd;                /* borrowed, at the time of the reservation */
    uint64_t end;          /* we have reserved up to here; 0: nothing */
    uint64_t used;         /* value of the clock at the last write */
    unsigned n_sizing;     /* requests under way in workers that may change the size */
    bool looked;
    bool never; /* space beyond the end is a user's, or the file system cannot reserve */
};

void ahead_init(struct disk_ahead *a);
/**
 * Notes that a stream of `streamed` bytes so far has written up to `to`, on this thread
 * or another.
 */
void ahead_streamed(struct disk_ahead *a, struct ahead_file *f, int fd, uint64_t to,
                    uint64_t streamed);
/**
 * Keeps all space beyond the end of the file from now on, since a user has reserved it.
 */
void ahead_never(struct disk_ahead *a, struct ahead_file *f);
/** Forgets the reservation, as a truncate frees all beyond the end of the file. */
void ahead_forget(struct disk_ahead *a, struct ahead_file *f);
/**
 * Frees the reserved space, before the file is closed. While n_sizing is not 0 the space
 * stays.
 */
void ahead_give_back(struct disk_ahead *a, struct ahead_file *f);
void ahead_give_back_all(struct disk_ahead *a);
/** Returns the bytes that we have reserved beyond `size`, the end of the file. */
uint64_t ahead_bytes(const struct ahead_file *f, uint64_t size);

#endif
