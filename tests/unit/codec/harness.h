/*
 * harness.h - what the tests of the codecs share: every codec in turn, blocks in buffers between
 * unreadable pages, and a check that says where it failed.
 *
 * One thread only. Everything lives until the process ends.
 */
#ifndef ROZO_CODEC_HARNESS_H
#define ROZO_CODEC_HARNESS_H

#include <stdbool.h>

#include "codec/codec.h"
#include "tests/unit/unit.h"

/* One in HARNESS_STEP bytes is tried alone, and under sanitizers there are fewer short
 * lengths; never fewer patterns. */
#if defined(__SANITIZE_THREAD__)
enum { HARNESS_IS_SLOW = 1, HARNESS_STEP = 61, HARNESS_SHORT = 2 };
#elif defined(__SANITIZE_ADDRESS__)
enum { HARNESS_IS_SLOW = 1, HARNESS_STEP = 7, HARNESS_SHORT = 4 };
#else
enum { HARNESS_IS_SLOW = 0, HARNESS_STEP = 3, HARNESS_SHORT = 9 };
#endif

enum {
    N_LAYOUTS = 3,
    JUNK = 0xA7, /* fills what is lost, and what is not written yet */
};

/* Which codec it is; codec.h tells the rest. */
struct which {
    unsigned kind;
    unsigned layout; /* N_LAYOUTS: none of them */
    enum codec_isa isa;
};

/* Where a buffer ends hard at an unreadable page; the other end has canaries. */
enum side { AT_FRONT, AT_END, N_SIDES };

/* Bytes between two unreadable pages. */
struct guarded {
    uint8_t *map;
    size_t inner; /* readable bytes */
    uint8_t *bytes;
    size_t len;
    uint8_t *canary;
};

/* One block (or some in a row), its projections in buffers of exactly the declared sizes, and a place to decode. */
struct block {
    const struct codec *c;
    unsigned n_blocks;
    size_t row_bytes, data_bytes; /* of one block */
    struct guarded data, out;
    struct guarded junk; /* stands for what is lost: readable, and nobody should */
    struct guarded body[CODEC_N_MAX], overhang[CODEC_N_MAX];
    uint8_t *bodies[CODEC_N_MAX];    /* for codec_encode() */
    uint8_t *overhangs[CODEC_N_MAX]; /* NULL where there is none */
    struct block *next;              /* free ones */
};

typedef void codec_test(const struct codec *c, const struct which *which);

/** Run fn for every kind, layout, block size and instruction set there is here. */
void for_each_codec(codec_test *fn);
/** The same for the default instruction set only. */
void for_each_code(codec_test *fn);
/** Run fn for every kind and some k and n that are no layout, for every instruction set. */
void for_some_k_and_n(codec_test *fn);

/** The same bytes for the same seed, for ever: frozen checksums depend on it. */
void fill_random(uint8_t *buf, size_t len, uint64_t seed);
/** The next number from *state: xorshift, below `below`. */
size_t random_below(uint64_t *state, size_t below);

/** The i-th row length worth a test: the full one, short ones; 0 past the last. All lengths if `all`. */
size_t row_bytes_at(const struct codec *c, unsigned i, bool all);

/** The next set of exactly k of n bits after `pattern` (0: the first); 0 past the last. */
uint32_t pattern_next(const struct codec *c, uint32_t pattern);

/** A random block, not encoded: junk in its projections. */
struct block *block_new(const struct codec *c, size_t row_bytes, enum side side);
/** The same of n_blocks blocks without gaps: a run of them. */
struct block *blocks_new(const struct codec *c, size_t row_bytes, enum side side,
                         unsigned n_blocks);
struct codec_run blocks_run(const struct block *b);
/** Checks the canaries. */
void block_free(struct block *b);
void block_encode(struct block *b);

/** Decode from the projections in `have`, the others being junk; does the block come back? */
bool block_decodes(struct block *b, uint32_t have);
/** The same; projections not in `have` are NULL, surviving rows are where they belong already. */
bool block_decodes_in_place(struct block *b, uint32_t have);

/** As assert_true(), and says which codec it was about. */
#define check(expr)                                  \
    do {                                             \
        if (!(expr))                                 \
            check_failed(#expr, __FILE__, __LINE__); \
    } while (0)

void check_failed(const char *expr, const char *file, int line);

#endif
