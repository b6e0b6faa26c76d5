/*
 * bufpool.h - reused payload buffers: the first touch of fresh pages costs more than
 * receiving into them. One thread; bounded.
 */
#ifndef ROZO_COMMON_BASE_BUFPOOL_H
#define ROZO_COMMON_BASE_BUFPOOL_H

#include <stddef.h>

enum {
    BUFPOOL_ALIGN = 4096,
    BUFPOOL_CLASSES = 48, /* four sizes per power of two, from 4 KiB */
};

/* Zero-initialise, then set idle_max_bytes. */
struct bufpool {
    void *idle[BUFPOOL_CLASSES]; /* owned; linked through their first bytes */
    size_t idle_bytes;
    size_t idle_max_bytes; /* above it buffers go back to the system */
};

/** Returns len bytes (1..2^24) at BUFPOOL_ALIGN, not cleared; NULL without memory. */
void *bufpool_get(struct bufpool *pool, size_t len);
/** Gives back a buffer of bufpool_get(pool, len). NULL is fine. */
void bufpool_put(struct bufpool *pool, void *buf, size_t len);
/** Frees all idle buffers. */
void bufpool_trim(struct bufpool *pool);

#endif
