/*
 * bad_page_disk.h - a disk above a disk that bears with pages that cannot be read.
 *
 * A sector that a disk cannot read any more costs its page, not the request: every page is read by itself and
 * tried again, and what stays unreadable reads as BAD_PAGE_FILL bytes, which no crc of ours accepts. So above
 * this it is damage like any other: answered as that, decoded from elsewhere, written anew. Disks put another
 * sector in the place of one that is written; but who writes a part of a page needs the rest of it first. A
 * request that may give up that rest (disk_req.anew) writes the page whole, with BAD_PAGE_FILL around.
 *
 * Many errors in a short time are no bad pages, but a device, or its cable, that fails: then nothing is
 * declared unreadable, and requests end with -EIO as they do below.
 *
 * Core; one thread, that of the env and of the disk below.
 */
#ifndef ROZO_STORAGED_DISK_BAD_PAGE_DISK_H
#define ROZO_STORAGED_DISK_BAD_PAGE_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/env/env.h"
#include "storaged/disk/disk.h"

enum {
    BAD_PAGE_PAGE = 4096,
    BAD_PAGE_FILL = 0xff,
    BAD_PAGE_TRIES = 5,       /* of a page, after the request that it spoiled ... */
    BAD_PAGE_TRY_MS = 5000,   /* ... while no more time has gone by */
    BAD_PAGE_KNOWN_MAX = 256, /* pages remembered; then the oldest are tried anew */
    BAD_PAGE_KNOWN_S = 60,    /* so long a page is not tried again */
    /* The device fails when in BAD_PAGE_WINDOW_S to twice that more requests (and pages read by themselves) failed, and
     * more than one for so many that went well. */
    BAD_PAGE_ERRORS_MAX = 64,
    BAD_PAGE_ERRORS_SHARE = 4,
    BAD_PAGE_WINDOW_S = 10,
};

/* A page that could not be read, of a file that is open. */
struct bad_page {
    const struct disk_file *file;
    uint64_t index;
    uint64_t until_ns;
};

struct bad_page_disk {
    struct disk disk;   /* first: this one */
    struct disk *below; /* borrowed */
    struct env *env;    /* borrowed */
    struct bad_page known[BAD_PAGE_KNOWN_MAX];
    unsigned n_known;
    uint64_t window_ns;                     /* when it began */
    unsigned n_errors[2], n_well[2];        /* in this window, in the one before */
    uint64_t n_read_errors, n_write_errors; /* since the start */
};

/** Nothing to be freed; every request must be over, and every file closed, before d goes. */
void bad_page_disk_init(struct bad_page_disk *d, struct env *env, struct disk *below);
/** Does the device as a whole fail, rather than a few of its pages? */
bool bad_page_disk_is_failing(const struct bad_page_disk *d);

#endif
