/*
 * definition.c - the codes from their definitions. This file must stay slow and obvious.
 */
#include "definition.h"

#include "mojette_ref.h"
#include "rs_ref.h"

/* Returns the cached projection: ref_projection() goes through all sets, which is
 * slow. */
static const struct ref_projection *projection_of(const struct which *which, unsigned i)
{
    static struct ref_projection known[CODEC_MOJETTE_NONSYSTEMATIC + 1][N_LAYOUTS]
                                      [CODEC_N_MAX];
    struct ref_projection *r = &known[which->kind][which->layout][i];

    if (r->k == 0)
        *r = ref_projection(which->kind, which->layout, i);
    return r;
}

/* Lists bin t = column - row * p if it is one of the kept bins. */
static unsigned mojette_terms(const struct ref_projection *r, size_t row_bytes,
                              unsigned row, size_t x, uint8_t value, struct term *term)
{
    int pixel = (int)r->pixel_bytes, column = (int)x / pixel;
    int bin = column - (int)row * r->p - r->first_t;

    *term = (struct term){ x, value };
    if (r->row >= 0)
        return (unsigned)r->row == row;
    if (bin < 0 || bin >= (int)row_bytes / pixel + r->n_overhang)
        return 0;
    term->at = (size_t)(bin * pixel) + x % r->pixel_bytes;
    return 1;
}

/* Lists the terms of a pixel of the finite code: (column, row) is in bin column - row * p
 * modulo 17; bin 16 is added to all others and not kept. */
static unsigned finite_terms(unsigned k, unsigned i, size_t row_bytes, unsigned row,
                             size_t x, uint8_t value, struct term terms[TERMS_MAX])
{
    static const int slopes[CODEC_M_MAX] = { 0, 1, -1, 2 };
    size_t pixel_bytes = row_bytes / 16;
    int t;

    terms[0] = (struct term){ x, value };
    if (i < k)
        return i == row;
    t = (int)(x / pixel_bytes) - (int)row * slopes[i - k] + 17 * CODEC_K_MAX * 2;
    t %= 17;
    terms[0].at = (size_t)t * pixel_bytes + x % pixel_bytes;
    if (t < 16)
        return 1;
    for (unsigned bin = 0; bin < 16; bin++)
        terms[bin] = (struct term){ bin * pixel_bytes + x % pixel_bytes, value };
    return 16;
}

static unsigned rs_terms(unsigned k, unsigned i, unsigned row, size_t x, uint8_t value,
                         struct term *term)
{
    static uint8_t products[CODEC_K_MAX + 1][CODEC_N_MAX][CODEC_K_MAX][256];
    uint8_t *product = products[k][i][row]; /* zeros: not computed yet */

    if (i < k && i != row)
        return 0;
    if (product[1] == 0) {
        for (unsigned byte = 0; byte < 256; byte++)
            product[byte] = rs_ref_multiply(rs_ref_coefficient(k, i, row), (uint8_t)byte);
    }
    *term = (struct term){ x, product[value] };
    return 1;
}

unsigned definition_terms(const struct codec *c, const struct which *which, unsigned i,
                          size_t row_bytes, unsigned row, size_t x, uint8_t value,
                          struct term terms[TERMS_MAX])
{
    switch (which->kind) {
    case CODEC_MOJETTE:
    case CODEC_MOJETTE_NONSYSTEMATIC:
        return mojette_terms(projection_of(which, i), row_bytes, row, x, value, terms);
    case CODEC_MOJETTE_FINITE:
        return finite_terms(codec_k(c), i, row_bytes, row, x, value, terms);
    case CODEC_RS:
        return rs_terms(codec_k(c), i, row, x, value, terms);
    default:
        fail_msg("nobody has told the tests what kind %u is", which->kind);
        return 0;
    }
}

void definition_encode(const struct codec *c, const struct which *which, unsigned i,
                       const uint8_t *data, size_t row_bytes, uint8_t *bins)
{
    struct term terms[TERMS_MAX];

    memset(bins, 0, row_bytes + codec_overhang_bytes(c, i));
    for (unsigned row = 0; row < codec_k(c); row++) {
        for (size_t x = 0; x < row_bytes; x++) {
            uint8_t byte = data[row * row_bytes + x];
            unsigned n = definition_terms(c, which, i, row_bytes, row, x, byte, terms);

            for (unsigned t = 0; t < n; t++)
                bins[terms[t].at] ^= terms[t].value;
        }
    }
}
