/*
 * wal_list.h - which segment files of one loop there are, opened, in the order of their numbers.
 *
 * Core; for wal_start.c and wal_scan.c only. One thread.
 */
#ifndef ROZO_STORAGED_WAL_WAL_LIST_H
#define ROZO_STORAGED_WAL_WAL_LIST_H

#include "storaged/wal/wal.h"

enum {
    WAL_FILES_MAX = 2 * WAL_SLOTS_MAX, /* while those of before wait to be forgotten */
    WAL_PATH_MAX = 40,
};

struct wal_list {
    struct disk *disk; /* borrowed */
    unsigned loop;
    void (*done)(struct wal_list *l, int rc); /* rc 0, or no file is open */
    unsigned n;
    struct wal_found {
        unsigned slot;
        int rc; /* segment_header_get()'s */
        struct segment_header h;
        struct disk_file *file; /* open; the taker closes it */
        uint64_t size;
    } found[WAL_FILES_MAX]; /* by number; those that cannot be read or are erased first */
    /* The rest is its own. */
    unsigned slot;
    bool is_back, has_back;
    char path[WAL_PATH_MAX];
    uint8_t front[SEGMENT_HEADER_BYTES], back[SEGMENT_HEADER_BYTES];
    struct iovec iov;
    struct disk_req dr;
};

/** "journal/LOOP.SLOT" */
void wal_path(char path[WAL_PATH_MAX], unsigned loop, unsigned slot);
/** disk, loop and done are set. */
void wal_list_start(struct wal_list *l);
void wal_list_close(struct wal_list *l);

#endif
