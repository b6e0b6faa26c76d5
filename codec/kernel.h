/*
 * kernel.h - the inner loops of the Mojette codecs. Private to codec/.
 *
 * Pointers may have any alignment, 64 is fastest; lengths are multiples of 16 bytes. gcc
 * builds carry each kernel for AVX-512, AVX2 and plain x86-64 and the loader picks one.
 */
#ifndef ROZO_CODEC_KERNEL_H
#define ROZO_CODEC_KERNEL_H

#include <stddef.h>
#include <stdint.h>

enum {
    KERNEL_SOURCES_MAX = 8, /* of one kernel_xor() */
    KERNEL_SWEEP_MAX = 8,   /* rows of one sweep */
};

/**
 * dst[x] = XOR of sources[0..n_sources-1][x] for len bytes; 1..KERNEL_SOURCES_MAX
 * sources, none of which overlaps dst.
 */
void kernel_xor(uint8_t *dst, const uint8_t *const sources[], unsigned n_sources,
                size_t len);

/*
 * A sweep over unknown rows; mojette.c tells why it works. In step s, for i from the last
 * row down to 0, if 0 <= s - delay[i] < n_cols: the pixel at rows + from[i][i] + s * pixel
 * becomes the XOR of those at rows + from[i][j] + s * pixel over all j, and is copied to
 * out + to[i] + s * pixel.
 *
 * from[i][i + 1] == from[i + 1][i + 1]: row i looks at the pixel that row i + 1 just got.
 */
struct kernel_sweep {
    unsigned n_rows; /* 1..KERNEL_SWEEP_MAX */
    ptrdiff_t n_cols;
    ptrdiff_t delay[KERNEL_SWEEP_MAX];                  /* columns */
    ptrdiff_t from[KERNEL_SWEEP_MAX][KERNEL_SWEEP_MAX]; /* bytes from rows */
    ptrdiff_t to[KERNEL_SWEEP_MAX];                     /* bytes from out */
};

/** Run the sweep. pixel_bytes is 16 or 64. */
void kernel_sweep(const struct kernel_sweep *sweep, unsigned pixel_bytes, uint8_t *rows,
                  uint8_t *out);

#endif
