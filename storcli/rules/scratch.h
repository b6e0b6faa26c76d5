/*
 * scratch.h - reused buffers for the data that an operation encodes, receives and seals.
 *
 * The first touch of a fresh page costs several times the copy into it, so buffers are
 * reused: power-of-two classes, the last one given back first, a bounded number of bytes
 * kept.
 */
#ifndef ROZO_STORCLI_RULES_SCRATCH_H
#define ROZO_STORCLI_RULES_SCRATCH_H

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
    uint64_t wanted[SCRATCH_CLASSES]; /* last use of the class, by clock */
    uint64_t clock;
    uint64_t kept_bytes;
    uint64_t freed_bytes; /* small buffers, since the system got its pages back */
    uint64_t lent_bytes;  /* bytes lent at the moment, by class size */
    /* set by the owner: more may be kept while lent and kept together are less than
     * this */
    uint64_t all_max;
};

/**
 * Returns size_bytes (1..8 MiB) of uninitialised memory aligned to SCRATCH_ALIGN; NULL:
 * out of memory.
 */
void *scratch_get(struct scratch *s, size_t size_bytes);
/** Gives back a buffer of scratch_get(s, size_bytes), with equal size. NULL is fine. */
void scratch_put(struct scratch *s, void *buf, size_t size_bytes);
/** Frees the kept buffers; none may be lent (asserted). */
void scratch_free(struct scratch *s);

#endif
