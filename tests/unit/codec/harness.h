/*
 * harness.h - shared by the tests of the codecs: a loop over all codecs, blocks in
 * buffers between unreadable pages, and a check that reports the codec that failed.
 *
 * One thread only. All memory lives until the process ends.
 */
#ifndef ROZO_CODEC_HARNESS_H
#define ROZO_CODEC_HARNESS_H

#include <stdbool.h>

#include "codec/codec.h"
#include "tests/unit/unit.h"

/* Only one in HARNESS_STEP bytes is tried alone, and sanitizer builds try fewer short
 * lengths; the number of patterns never changes. */
#if defined(__SANITIZE_THREAD__)
enum { HARNESS_IS_SLOW = 1, HARNESS_STEP = 61, HARNESS_SHORT = 2 };
#elif defined(__SANITIZE_ADDRESS__)
enum { HARNESS_IS_SLOW = 1, HARNESS_STEP = 7, HARNESS_SHORT = 4 };
#else
enum { HARNESS_IS_SLOW = 0, HARNESS_STEP = 3, HARNESS_SHORT = 9 };
#endif

enum {
    N_LAYOUTS = 3,
    JUNK = 0xA7, /* byte that fills lost projections and buffers not written yet */
};

/* The codec under test; codec.h describes the rest. */
struct which {
    unsigned kind;
    unsigned layout; /* N_LAYOUTS if it is no layout */
    enum codec_isa isa;
};

/* The side of a buffer that touches an unreadable page; canaries are at the other
 * side. */
enum side { AT_FRONT, AT_END, N_SIDES };

/* Bytes between two unreadable pages. */
struct guarded {
    uint8_t *map;
    size_t inner; /* readable bytes */
    uint8_t *bytes;
    size_t len;
    uint8_t *canary;
};

/* One block, or a run of several; its projections in buffers of exactly the declared
 * sizes; and a buffer to decode into. */
struct block {
    const struct codec *c;
    unsigned n_blocks;
    size_t row_bytes, data_bytes; /* bytes of one block */
    struct guarded data, out;
    /* given in place of a lost projection: readable, but no codec should read it */
    struct guarded junk;
    struct guarded body[CODEC_N_MAX], overhang[CODEC_N_MAX];
    uint8_t *bodies[CODEC_N_MAX];    /* bodies as codec_encode() takes them */
    uint8_t *overhangs[CODEC_N_MAX]; /* overhangs; NULL for a projection that has none */
    struct block *next;              /* next free block */
};

typedef void codec_test(const struct codec *c, const struct which *which);

/** Runs fn for every kind, layout, block size and instruction set that this machine
 * has. */
void for_each_codec(codec_test *fn);
/** Runs fn for every kind, layout and block size with the default instruction set. */
void for_each_code(codec_test *fn);
/** Runs fn for every kind and some k and n that are no layout, for every instruction
 * set. */
void for_some_k_and_n(codec_test *fn);

/** Fills buf with bytes that are the same for the same seed, for ever: frozen checksums
 * depend on it. */
void fill_random(uint8_t *buf, size_t len, uint64_t seed);
/** Returns the next random number from *state (xorshift), less than `below`. */
size_t random_below(uint64_t *state, size_t below);

/** Returns the i-th row length to test: the full one, then short ones; 0 after the last.
 * All lengths if `all`. */
size_t row_bytes_at(const struct codec *c, unsigned i, bool all);

/** Returns the next set of exactly k of n bits after `pattern` (0: the first); 0 after
 * the last. */
uint32_t pattern_next(const struct codec *c, uint32_t pattern);

/** Makes a random block that is not encoded: its projections are junk. */
struct block *block_new(const struct codec *c, size_t row_bytes, enum side side);
/** Makes a run of n_blocks random blocks without gaps, not encoded. */
struct block *blocks_new(const struct codec *c, size_t row_bytes, enum side side,
                         unsigned n_blocks);
struct codec_run blocks_run(const struct block *b);
/** Checks the canaries, and frees the block for reuse. */
void block_free(struct block *b);
void block_encode(struct block *b);

/** Decodes from the projections in `have`, with junk for the others. Returns whether the
 * block comes back. */
bool block_decodes(struct block *b, uint32_t have);
/** Decodes in place: projections not in `have` are NULL, and surviving rows are already
 * in their place. Returns whether the block comes back. */
bool block_decodes_in_place(struct block *b, uint32_t have);

/** Asserts as assert_true() does, and reports the codec under test. */
#define check(expr)                                  \
    do {                                             \
        if (!(expr))                                 \
            check_failed(#expr, __FILE__, __LINE__); \
    } while (0)

void check_failed(const char *expr, const char *file, int line);

#endif
