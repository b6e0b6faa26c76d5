/*
 * kernel.h - the inner loops of the codecs, once for each instruction set. Private to
 * codec/.
 *
 * Pointers may have any alignment, 64 is fastest; lengths are multiples of 16 bytes
 * unless it says otherwise.
 *
 * There are two sorts: loops for any geometry (kernel.c, kernel_ref.c), and straight
 * lines for one (kind, k, n, row length, lost rows) each, written by codec/gen at build
 * time. Where there is no straight line, a loop is used.
 */
#ifndef ROZO_CODEC_KERNEL_H
#define ROZO_CODEC_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/codec.h"

enum {
    KERNEL_SOURCES_MAX = CODEC_K_MAX + 1, /* sources of one XOR */
    KERNEL_SWEEP_MAX = CODEC_K_MAX,       /* rows of one sweep */
    KERNEL_SKEW_SPILL = 256, /* bytes that skew() may write beyond its result */
};

/* A sum of shifted rows: byte x of it is the XOR of src[1 + i][x] over all i with
 * start[i] <= x < start[i] + row_bytes. start is ascending. Do not zero it before filling
 * it: that would cost more than some sums. */
struct kernel_sum {
    unsigned n_rows; /* 0..CODEC_K_MAX */
    bool is_whole; /* rows and parts begin and end at multiples of 64 bytes of the sum */
    ptrdiff_t row_bytes;
    ptrdiff_t start[CODEC_K_MAX];           /* bytes */
    const uint8_t *src[KERNEL_SOURCES_MAX]; /* src[0] is the kernel's own */
};

/* Bytes [from, to) of a sum, XORed with those at base unless that is NULL, go to dst. */
struct kernel_part {
    ptrdiff_t from, to;
    const uint8_t *base;
    uint8_t *dst;
};

/* A sweep over unknown rows; mojette.c explains why it works. All numbers are bytes,
 * multiples of a pixel. At step s (from the least delay on, pixel by pixel), for i from
 * the last row down to 0, if 0 <= s - delay[i] < row_bytes: the pixel at rows +
 * from[i][i] + s becomes the XOR of those at rows + from[i][j] + s over all j. Outside of
 * its row_bytes a row reads as zero for the others.
 *
 * from[i][i + 1] == from[i + 1][i + 1]: row i uses the pixel that row i + 1 just got. All
 * other pixels that a row uses are at least stride_bytes behind, so that many can be made
 * at once. */
struct kernel_sweep {
    unsigned n_rows;       /* 2..KERNEL_SWEEP_MAX */
    unsigned pixel_bytes;  /* 16, or 64 of up to 4 rows */
    unsigned stride_bytes; /* 16, 32 or 64, not less than a pixel */
    ptrdiff_t row_bytes;
    ptrdiff_t delay[KERNEL_SWEEP_MAX];
    int32_t from[KERNEL_SWEEP_MAX][KERNEL_SWEEP_MAX]; /* from `rows` */
};

/* Pixels of the code with bins modulo 17; finite.c explains them. A ring is RING_PIXELS
 * pixels in a row; a source that has only the first RING_PIXELS - 1 of them ends with a
 * zero. */
enum { RING_PIXELS = 17, RING_SOURCES_MAX = CODEC_K_MAX + 8 };

struct kernel_turn {
    const uint8_t *from;
    uint8_t turn;    /* 0..16: pixel x of the sum takes its pixel (x + turn) mod 17 */
    uint8_t is_ring; /* all 17 pixels are there */
};

/* One straight line that encodes full blocks: codec_encode() for exactly the coded
 * projections (or all n). */
typedef void kernel_encode_fn(const uint8_t *data, uint8_t *const body[],
                              uint8_t *const overhang[]);
/* One straight line that rebuilds the lost rows of a full block, in place in data, for
 * one set of k projections. */
typedef void kernel_decode_fn(const uint8_t *const body[],
                              const uint8_t *const overhang[], uint8_t *data);

struct kernel_encode {
    uint8_t kind, k, n;
    bool copies; /* writes the rows as well */
    bool far;    /* prefetches its output: for blocks that are not in L1 */
    uint16_t row_bytes;
    kernel_encode_fn *run;
};

struct kernel_decode {
    uint8_t kind, k, n;
    uint16_t row_bytes;
    uint32_t uses; /* projections that it reads, k bits */
    kernel_decode_fn *run;
};

struct kernels {
    /* skew() is faster than sum() for rows up to this many times the distance between the
     * beginnings of the first and the last row. */
    int skew_pays;
    /* dst[x] = XOR of sources[0..n_sources-1][x] for len bytes; 1..KERNEL_SOURCES_MAX
     * sources, none of which overlaps dst. */
    void (*xor_rows)(uint8_t *dst, const uint8_t *const sources[], unsigned n_sources,
                     size_t len);
    /* dst ^= src; any number of bytes, without overlap. */
    void (*add)(uint8_t *dst, const uint8_t *src, size_t len);
    /* Writes some parts of a sum, ascending. No dst overlaps anything else. */
    void (*sum)(struct kernel_sum *sum, const struct kernel_part *parts,
                unsigned n_parts);
    /* dst[x] = XOR of rows[i][x - i * shift] over all i whose row has such a byte, for x
     * < len, and perhaps KERNEL_SKEW_SPILL bytes more. 1..CODEC_K_MAX rows; shift is 16
     * or 32. */
    void (*skew)(uint8_t *dst, const uint8_t *const rows[], unsigned n_rows, size_t shift,
                 size_t row_bytes, size_t len);
    /* Runs the sweep. */
    void (*sweep)(const struct kernel_sweep *sweep, uint8_t *rows);
    /* dst = XOR of 1..RING_SOURCES_MAX sources, turned: 17 pixels of pixel_bytes, a
     * multiple of 16. If it folds, pixel 16 is XORed into the others, and those 16 are
     * written. None overlaps dst. */
    void (*ring_sum)(uint8_t *dst, bool folds, const struct kernel_turn turns[],
                     unsigned n_turns, size_t pixel_bytes);
    /* Makes the ring x with x[16] = 0 for which x[at] ^ x[at + step] is from[at + turn],
     * up to a constant, for all at; indices modulo 17, step 1..16, turn 0..16. If `also`
     * is not NULL, from is the XOR of both. None overlaps the ring. */
    void (*ring_divide)(uint8_t *ring, const uint8_t *from, const uint8_t *also,
                        unsigned turn, unsigned step, size_t pixel_bytes);
    const struct kernel_encode *encodes; /* n_encodes of them, any order */
    const struct kernel_decode *decodes;
    unsigned n_encodes, n_decodes;
};

/**
 * Returns the loops of an instruction set; NULL if this build or machine does not have
 * it.
 */
const struct kernels *kernels_of(enum codec_isa isa);

#endif
