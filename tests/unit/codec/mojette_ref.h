/*
 * mojette_ref.h - the Mojette codecs again, slow and obvious, to hold codec/ against.
 *
 * Nothing here is shared with codec/: directions are written down, sums follow the
 * definition
 *
 *     M(p, q) f(b) = sum over columns k and rows l of f(k, l) [b = -k q + l p],   q = 1
 *
 * and which bins are kept is found by going through all reconstructions there are.
 */
#ifndef ROZO_MOJETTE_REF_H
#define ROZO_MOJETTE_REF_H

#include <stddef.h>
#include <stdint.h>

/* One projection of one code. */
struct ref_projection {
    unsigned k; /* rows of the grid */
    unsigned pixel_bytes;
    int row;        /* the row it is, of a systematic code; else -1 */
    int p;          /* direction (p, 1) */
    int first_t;    /* kept bins: t = -b from first_t ... */
    int n_overhang; /* ... to first_t + columns + n_overhang - 1 */
};

/** Projection i of n, as in codec.h, for any k and n; slow when n is great. */
struct ref_projection ref_projection_of(unsigned kind, unsigned k, unsigned n,
                                        unsigned i);
/** The same for a layout. */
struct ref_projection ref_projection(unsigned kind, unsigned layout, unsigned i);

/** Kept bins of a grid of k rows at data: bins takes row_bytes + n_overhang *
 * pixel_bytes. */
void ref_encode(const struct ref_projection *r, const uint8_t *data, size_t row_bytes,
                uint8_t *bins);

#endif
