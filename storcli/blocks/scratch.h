/*
 * scratch.h - reused buffers for what an operation codes, receives and seals.
 *
 * The first touch of a fresh page costs several times the copy into it, so buffers go round:
 * power-of-two classes, the last one given back first, a bounded number of bytes kept for the next one.
 */
#ifndef ROZO_STORCLI_BLOCKS_SCRATCH_H
#define ROZO_STORCLI_BLOCKS_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

enum {
    SCRATCH_ALIGN = 64,         /* large ones: pages */
    SCRATCH_CLASSES = 12,       /* 4 KiB .. 8 MiB */
    SCRATCH_KEPT_MAX = 8 << 20, /* bytes kept for reuse, at least */
};

/* Zero-initialise. Thread: the engine's. */
struct scratch {
    void *kept[SCRATCH_CLASSES];      /* lists through their first word */
    uint64_t wanted[SCRATCH_CLASSES]; /* when last, by clock */
    uint64_t clock;
    uint64_t kept_bytes;
    uint64_t freed_bytes; /* of small ones, since the system got its pages back */
    uint64_t lent_bytes;  /* out at the moment, by class size */
    uint64_t
        all_max; /* the owner's: what is kept may be more while all is less than this */
};

/** size_bytes (1..8 MiB) of uninitialised memory at SCRATCH_ALIGN; NULL when there is none. */
void *scratch_get(struct scratch *s, size_t size_bytes);
/** Give back what scratch_get(s, size_bytes) gave, same size. NULL is fine. */
void scratch_put(struct scratch *s, void *buf, size_t size_bytes);
/** Free what is kept; nothing may be lent (asserted). */
void scratch_free(struct scratch *s);

#endif
