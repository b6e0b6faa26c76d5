/*
 * bad_page_disk.h - a disk above a disk that tolerates pages that cannot be read.
 *
 * A sector that a disk cannot read any more costs its page, not the request: every page
 * is read by itself and tried again, and a page that stays unreadable reads as
 * BAD_PAGE_FILL bytes, which no crc accepts. Above this disk that is damage like any
 * other: it is reported, decoded from other storages, and written again. Disks replace
 * such a sector when it is written; but a write of a part of a page needs the rest of the
 * page first. If a request may lose that rest (see struct disk_req), the page is
 * written whole, with BAD_PAGE_FILL around.
 *
 * Many errors in a short time mean a failing device or cable, not bad pages: then no page
 * is declared unreadable, and requests end with -EIO.
 *
 * Core; one thread, that of the env and of the disk below.
 */
#ifndef ROZO_STORAGED_DISK_BAD_PAGE_DISK_H
#define ROZO_STORAGED_DISK_BAD_PAGE_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/env/disk.h"
#include "common/env/env.h"

enum {
    BAD_PAGE_PAGE = 4096,
    BAD_PAGE_FILL = 0xff,
    BAD_PAGE_TRIES = 5,       /* reads of one page after a failed request, at most */
    BAD_PAGE_TRY_MS = 5000,   /* ms for all reads of one page, at most */
    BAD_PAGE_KNOWN_MAX = 256, /* pages remembered; above it the oldest are forgotten */
    BAD_PAGE_KNOWN_S = 60,    /* time in which a page is not tried again */
    /*
     * The device fails if, in the last BAD_PAGE_WINDOW_S to twice that, more requests and
     * single pages than MAX failed, and more than one for SHARE that succeeded.
     */
    BAD_PAGE_ERRORS_MAX = 64,
    BAD_PAGE_ERRORS_SHARE = 4,
    BAD_PAGE_WINDOW_S = 10,
};

/* A page of an open file that could not be read. */
struct bad_page {
    const struct disk_file *file;
    uint64_t index;
    uint64_t until_ns;
};

struct bad_page_disk {
    struct disk disk;   /* must be first; the disk that callers use */
    struct disk *below; /* borrowed */
    struct env *env;    /* borrowed */
    struct bad_page known[BAD_PAGE_KNOWN_MAX];
    unsigned n_known;
    uint64_t window_ns;              /* start of this window, ns */
    unsigned n_errors[2], n_well[2]; /* [0] in this window, [1] in the window before */
    uint64_t n_read_errors, n_write_errors; /* counts since the start */
};

/**
 * Initialises d; there is nothing to free. Every request must have ended and every file
 * be closed before d goes.
 */
void bad_page_disk_init(struct bad_page_disk *d, struct env *env, struct disk *below);
/** True if the device as a whole fails, rather than a few of its pages. */
bool bad_page_disk_is_failing(const struct bad_page_disk *d);

#endif
