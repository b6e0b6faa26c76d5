/*
 * log_list.h - which segment files of one loop there are, opened, in the order of their numbers.
 *
 * Core; for log_start.c and log_scan.c only. One thread.
 */
#ifndef ROZO_STORAGED_WAL_LOG_LIST_H
#define ROZO_STORAGED_WAL_LOG_LIST_H

#include "storaged/wal/log.h"

enum {
    LOG_FILES_MAX = 2 * LOG_SLOTS_MAX, /* while those of before wait to be forgotten */
    LOG_PATH_MAX = 40,
};

struct log_list {
    struct disk *disk; /* borrowed */
    unsigned loop;
    void (*done)(struct log_list *l, int rc); /* rc 0, or no file is open */
    unsigned n;
    struct log_found {
        unsigned slot;
        int rc; /* segment_header_get()'s */
        struct segment_header h;
        struct disk_file *file; /* open; the taker closes it */
        uint64_t size;
    } found[LOG_FILES_MAX]; /* by number; those that cannot be read or are erased first */
    /* The rest is its own. */
    unsigned slot;
    bool is_back, has_back;
    char path[LOG_PATH_MAX];
    uint8_t front[SEGMENT_HEADER_BYTES], back[SEGMENT_HEADER_BYTES];
    struct iovec iov;
    struct disk_req dr;
};

/** "journal/LOOP.SLOT" */
void log_path(char path[LOG_PATH_MAX], unsigned loop, unsigned slot);
/** disk, loop and done are set. */
void log_list_start(struct log_list *l);
void log_list_close(struct log_list *l);

#endif
