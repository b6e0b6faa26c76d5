/*
 * mojette_ref.h - a slow and obvious second implementation of the Mojette codecs, for
 * comparison with codec/.
 *
 * It shares no code with codec/: directions are written down, sums follow the definition
 *
 *     M(p, q) f(b) = sum over columns k and rows l of f(k, l) [b = -k q + l p],   q = 1
 *
 * and the bins that are kept are found by a search through all sets of projections that
 * can give a block back.
 */
#ifndef ROZO_MOJETTE_REF_H
#define ROZO_MOJETTE_REF_H

#include <stddef.h>
#include <stdint.h>

/* A projection of a code. */
struct ref_projection {
    unsigned k; /* rows of the grid */
    unsigned pixel_bytes;
    /* index of the row that it is, if the code is systematic; otherwise -1 */
    int row;
    int p;          /* direction (p, 1) */
    int first_t;    /* first kept bin, t = -b */
    int n_overhang; /* last kept bin: first_t + columns + n_overhang - 1 */
};

/** Returns projection i of n, as in codec.h, for any k and n. Slow if n is large. */
struct ref_projection ref_projection_of(unsigned kind, unsigned k, unsigned n,
                                        unsigned i);
/** Returns projection i of a layout. */
struct ref_projection ref_projection(unsigned kind, unsigned layout, unsigned i);

/** Makes the kept bins of a grid of k rows at data: row_bytes + n_overhang * pixel_bytes
 * bytes. */
void ref_encode(const struct ref_projection *r, const uint8_t *data, size_t row_bytes,
                uint8_t *bins);

#endif
