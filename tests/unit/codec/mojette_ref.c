/*
 * mojette_ref.c - the Mojette codecs from their definition. This file must stay slow and
 * obvious.
 */
#include "mojette_ref.h"

#include <stdbool.h>
#include <string.h>

#include "codec/codec.h"

enum { N_LAYOUTS = 3 };

static const unsigned layout_k[N_LAYOUTS] = { 2, 4, 8 };
static const unsigned layout_n[N_LAYOUTS] = { 3, 6, 12 };

static const int systematic_p[] = { 0, 1, -1, 2 };

/* Returns a bit for each row that projection i may have to rebuild: of k projections in
 * ascending slope the i-th rebuilds row i. All sets of k projections are tried. In a
 * systematic code any row may be the only lost one. */
static unsigned rows_rebuilt(bool systematic, unsigned k, unsigned n, unsigned i)
{
    unsigned rows = 0;

    if (systematic)
        return (1u << k) - 1;
    for (unsigned set = 0; set < 1u << n; set++) {
        unsigned before = set & ((1u << i) - 1);

        if ((set >> i & 1) && (unsigned)__builtin_popcount(set) == k)
            rows |= 1u << __builtin_popcount(before);
    }
    return rows;
}

struct ref_projection ref_projection_of(unsigned kind, unsigned k, unsigned n, unsigned i)
{
    bool systematic = kind == CODEC_MOJETTE;
    unsigned rows = rows_rebuilt(systematic, k, n, i);
    struct ref_projection r = { .k = k, .row = -1 };
    bool any = false;
    int last_t = 0;

    r.pixel_bytes = systematic && k <= 4 ? 64 : 16;
    if (systematic && i < r.k) {
        r.row = (int)i;
        return r;
    }
    r.p = systematic ? systematic_p[i - r.k] : (int)i - (int)(n / 2);
    for (unsigned row = 0; row < r.k; row++) {
        int t = -(int)row * r.p; /* column 0 of that row */

        if ((rows >> row & 1) == 0)
            continue;
        r.first_t = !any || t < r.first_t ? t : r.first_t;
        last_t = !any || t > last_t ? t : last_t;
        any = true;
    }
    r.n_overhang = last_t - r.first_t;
    return r;
}

struct ref_projection ref_projection(unsigned kind, unsigned layout, unsigned i)
{
    return ref_projection_of(kind, layout_k[layout], layout_n[layout], i);
}

void ref_encode(const struct ref_projection *r, const uint8_t *data, size_t row_bytes,
                uint8_t *bins)
{
    int n_columns = (int)(row_bytes / r->pixel_bytes);
    int n_bins = n_columns + r->n_overhang;

    if (r->row >= 0) {
        memcpy(bins, data + (size_t)r->row * row_bytes, row_bytes);
        return;
    }
    memset(bins, 0, (size_t)n_bins * r->pixel_bytes);
    for (int l = 0; l < (int)r->k; l++) {
        for (int k = 0; k < n_columns; k++) {
            int b = -k + l * r->p;
            int at = -b - r->first_t;
            const uint8_t *pixel =
                data + (size_t)l * row_bytes + (size_t)k * r->pixel_bytes;

            for (unsigned x = 0; at >= 0 && at < n_bins && x < r->pixel_bytes; x++)
                bins[(size_t)at * r->pixel_bytes + x] ^= pixel[x];
        }
    }
}
