/*
 * wal_list.h - the segment files of one loop, opened, in the order of their numbers.
 *
 * Core; for wal_start.c and wal_scan.c only. One thread.
 */
#ifndef ROZO_COMMON_WAL_WAL_LIST_H
#define ROZO_COMMON_WAL_WAL_LIST_H

#include "common/wal/wal.h"

enum {
    /* segments of this run, and old ones that wait to be erased */
    WAL_FILES_MAX = 2 * WAL_SLOTS_MAX,
    WAL_PATH_MAX = 40,
};

struct wal_list {
    struct disk *disk; /* borrowed */
    unsigned loop;
    /* called once; unless rc is 0 no file is open */
    void (*done)(struct wal_list *l, int rc);
    unsigned n;
    struct wal_found {
        unsigned slot;
        int rc; /* result of segment_header_get() */
        struct segment_header h;
        struct disk_file *file; /* open; the caller closes it */
        uint64_t size;
    } found[WAL_FILES_MAX]; /* sorted by number; corrupt and erased ones first */
    /* The rest is private. */
    unsigned slot;
    bool is_back, has_back;
    char path[WAL_PATH_MAX];
    uint8_t front[SEGMENT_HEADER_BYTES], back[SEGMENT_HEADER_BYTES];
    struct iovec iov;
    struct disk_req dr;
};

/** Writes "journal/LOOP.SLOT" into path. */
void wal_path(char path[WAL_PATH_MAX], unsigned loop, unsigned slot);
/** Starts the list. disk, loop and done must be set. */
void wal_list_start(struct wal_list *l);
void wal_list_close(struct wal_list *l);

#endif
