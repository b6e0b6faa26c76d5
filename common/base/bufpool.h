/*
 * bufpool.h - reused buffers: the first touch of a fresh page costs several times the
 * copy into it. One thread; bounded.
 */
#ifndef ROZO_COMMON_BASE_BUFPOOL_H
#define ROZO_COMMON_BASE_BUFPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    BUFPOOL_ALIGN = 4096,
    BUFPOOL_DENSE_ALIGN = 64, /* small buffers of a dense pool */
    BUFPOOL_CLASSES = 49,     /* four sizes for each power of two, from 4 KiB to 16 MiB */
};

/* Zero-initialise, then set the three members that say how it works. */
struct bufpool {
    /* Idle buffers above this go back to the system, those of the size first that was not
     * wanted for longest. */
    size_t idle_max_bytes;
    /* Buffers above idle_max_bytes stay while lent and idle ones are together at most
     * this. */
    size_t all_max_bytes;
    /* Sizes are powers of two, and small buffers are not on pages of their own. */
    bool dense;

    void *idle[BUFPOOL_CLASSES];      /* owned; linked through their first bytes */
    uint64_t wanted[BUFPOOL_CLASSES]; /* last use of the size, by clock */
    uint64_t clock;
    size_t idle_bytes, lent_bytes; /* by the sizes of the buffers */
    size_t freed_bytes; /* small ones, since the system got the pages of the heap */
};

/**
 * Returns len bytes (1..2^24), not cleared; NULL without memory. They are aligned to
 * BUFPOOL_ALIGN; in a dense pool small ones are aligned to BUFPOOL_DENSE_ALIGN.
 */
void *bufpool_get(struct bufpool *pool, size_t len);
/** Gives back a buffer of bufpool_get(pool, len). NULL is fine. */
void bufpool_put(struct bufpool *pool, void *buf, size_t len);
/** Frees all idle buffers. */
void bufpool_trim(struct bufpool *pool);

#endif
