/*
 * finite.c - the Mojette code with bins modulo 17: projections are exactly as long as
 * rows.
 *
 * In:     codec.c, through struct codec_ops. Thread: any. Allocates nothing.
 * Out:    kernel.h.
 * Keeps:  17 columns, the slopes and their order, which bin is folded: disks carry them.
 *         Frozen vectors in tests/unit/codec check them.
 * Yours:  how they are computed.
 * Ask:    docs/CODEC.md, which has the definition and the proofs.
 *
 * Terms. A row is 16 pixels and, in column 16, one that is always zero: a *ring* of 17
 * pixels. Read as a polynomial in z, it is an element of GF(2)[z] / (1 + z + ... + z^16):
 * a ring is equivalent to one with any pixel added to all of its pixels; it is *folded*
 * when its pixel 16 is zero. To multiply by z^-s is to turn: pixel x becomes the old
 * pixel x + s, modulo 17. Projection p of rows f(l) is the sum of y(l)^p f(l) with y(l) =
 * z^-l, folded.
 *
 * For lost rows l[0..e-1] and projections of slopes p[0..e-1], less the known rows: b(j)
 * = sum over i of y(i)^p[j] f(i). If slopes go up in equal steps g, then with Y(i) =
 * y(i)^g and h(i) = y(i)^p[0] f(i) we have b(j) = sum of Y(i)^j h(i), j = 0 .. e-1: a
 * Vandermonde system, solved by Newton's divided differences. The only divisors are Y(i)
 * + Y(j): a walk around the ring. Only if three slopes of -1, 0, 1, 2 are used can one in
 * the middle be missing; then its b is made first, see gap_fill().
 */
#include <assert.h>
#include <string.h>

#include "codec/codec_impl.h"
#include "codec/kernel.h"

enum {
    ROW_UNIT = 256, /* RING_PIXELS - 1 pixels of at least 16 bytes */
    N_PIXELS = RING_PIXELS - 1,
    TERMS_MAX = 7,     /* 3 + 3 + 1 */
    FIELD_ORDER = 255, /* x to this power is one for every unit x: see inverse() */
    FAR_BELOW = 8 * CODEC_K_MAX * RING_PIXELS, /* below any sum of turns */
    SCRATCH_BYTES = /* a ring for each lost row, and one more */
    (CODEC_DATA_MAX + CODEC_BLOCK_MAX / 2) / N_PIXELS * RING_PIXELS,
};

/* Part of an earlier difference in a divided difference. */
struct finite_term {
    uint8_t ring;
    uint8_t turn;
};

/* In way->extra. */
struct finite_way {
    uint8_t step; /* step between the present slopes, ascending */
    uint8_t gap;  /* three lost rows: the missing slope, less the least one; 0: none */
    uint32_t gap_factor; /* bit x: z^x; factor used by gap_fill() */
    /* Turns of the known rows, ascending, and then of the bins themselves, for via[i]:
     * only by the rows' own slant, or, with one lost row, as if that were row 0. */
    uint8_t turns[CODEC_M_MAX][CODEC_K_MAX + 1];
    struct finite_term terms[CODEC_M_MAX][TERMS_MAX]; /* see difference() */
    uint8_t n_terms[CODEC_M_MAX];
};

/* Returns x modulo 17, for numbers that are not far below zero. */
static unsigned modulo(int x)
{
    return (unsigned)(x + FAR_BELOW) % RING_PIXELS;
}

static void geometry(struct codec *c)
{
    static const int8_t slopes[CODEC_M_MAX] = { 0, 1, -1, 2 };

    c->row_unit = ROW_UNIT;
    for (unsigned i = c->k; i < c->n; i++)
        c->projections[i].p = slopes[i - c->k];
}

/* ---- encode ---- */

/* Returns a row, or a projection, with its pixels moved `turn` to the left. */
static struct kernel_turn row_turned(const uint8_t *from, int turn)
{
    return (struct kernel_turn){ from, (uint8_t)modulo(turn), false };
}

static void encode(const struct codec *c, const uint8_t *data, size_t row_bytes,
                   uint8_t *const body[], uint8_t *const overhang[])
{
    struct kernel_turn turns[CODEC_K_MAX];
    const uint8_t *rows[CODEC_K_MAX];

    (void)overhang; /* there is none */
    for (unsigned i = c->k; i < c->n; i++) {
        int p = c->projections[i].p;

        if (body[i] == NULL)
            continue;
        for (unsigned row = 0; row < c->k; row++) {
            rows[row] = data + row * row_bytes;
            turns[row] = row_turned(rows[row], (int)row * p);
        }
        if (p == 0)
            c->kernels->xor_rows(body[i], rows, c->k, row_bytes);
        else
            c->kernels->ring_sum(body[i], true, turns, c->k, row_bytes / N_PIXELS);
    }
}

/* ---- update ---- */

/* XORs len bytes of a pixel, from its byte `at` on, into bin t; bin 16 is part of all
 * others. */
static void bin_update(const struct codec *c, uint8_t *body, unsigned t,
                       size_t pixel_bytes, size_t at, const uint8_t *delta, size_t len)
{
    unsigned first = t < N_PIXELS ? t : 0, last = t < N_PIXELS ? t : N_PIXELS - 1;

    for (unsigned bin = first; bin <= last; bin++)
        c->kernels->add(body + bin * pixel_bytes + at, delta, len);
}

static void update(const struct codec *c, unsigned row, size_t from, size_t len,
                   const uint8_t *delta, size_t row_bytes, uint8_t *const body[],
                   uint8_t *const overhang[])
{
    size_t pixel_bytes = row_bytes / N_PIXELS, piece;

    (void)overhang;
    for (size_t x = 0; x < len; x += piece) {
        size_t column = (from + x) / pixel_bytes, at = (from + x) % pixel_bytes;

        piece = pixel_bytes - at < len - x ? pixel_bytes - at : len - x;
        for (unsigned i = c->k; i < c->n; i++) {
            unsigned t = modulo((int)column - (int)row * c->projections[i].p);

            if (body[i] != NULL)
                bin_update(c, body[i], t, pixel_bytes, at, delta + x, piece);
        }
    }
}

/* ---- plans ---- */

/* Multiplies ring elements whose pixels are single bits. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    const uint32_t all = (1u << RING_PIXELS) - 1;
    uint32_t product = 0;

    for (unsigned s = 0; s < RING_PIXELS; s++) {
        if ((b >> s & 1) != 0)
            product ^= (a << s | a >> (RING_PIXELS - s)) & all;
    }
    return product;
}

/* Returns 1 / a in at most 8 bits. The ring is two fields of 256 elements, so a^255 =
 * 1. */
static uint32_t inverse(uint32_t a)
{
    uint32_t power = a;

    for (unsigned i = 2; i < FIELD_ORDER; i++)
        power = multiply(power, a);
    if (__builtin_popcount(power) > N_PIXELS / 2)
        power ^= (1u << RING_PIXELS) - 1; /* an equal element */
    return power;
}

static void turns_fill(const struct codec *c, const struct codec_way *way,
                       struct finite_way *how)
{
    for (unsigned i = 0; i < way->n_lost; i++) {
        int p = c->projections[way->via[i]].p,
            first = way->n_lost == 1 ? way->lost[0] : 0;
        unsigned n = 0;

        for (uint32_t kept = way->kept; kept != 0; kept &= kept - 1)
            how->turns[i][n++] = (uint8_t)modulo((__builtin_ctz(kept) - first) * p);
        how->turns[i][n] = (uint8_t)modulo(-first * p);
    }
}

/* Adds to difference i all products of n of Y(0) .. Y(last) times difference j; `turn` is
 * the product begun. */
static void products(const struct codec_way *way, struct finite_way *how, unsigned i,
                     unsigned j, unsigned n, unsigned last, int turn)
{
    if (n == 0) {
        assert(how->n_terms[i] < TERMS_MAX);
        how->terms[i][how->n_terms[i]++] =
            (struct finite_term){ (uint8_t)j, (uint8_t)modulo(turn) };
        return;
    }
    for (unsigned y = 0; y <= last; y++)
        products(way, how, i, j, n - 1, y, turn + way->lost[y] * how->step);
}

static void plan(const struct codec *c, struct codec_way *way)
{
    struct finite_way *how = (struct finite_way *)way->extra;
    const uint8_t *l = way->lost;
    int p[CODEC_M_MAX] = { 0 };

    turns_fill(c, way, how);
    for (unsigned i = 0; i < way->n_lost; i++)
        p[i] = c->projections[way->via[i]].p;
    how->step = (uint8_t)(way->n_lost == 2 ? p[1] - p[0] : 1);
    for (unsigned i = 1; i < way->n_lost; i++) {
        for (unsigned j = 0; j < i; j++)
            products(way, how, i, j, i - j, j, 0);
    }
    if (way->n_lost != CODEC_M_MAX - 1 || p[2] - p[0] == 2)
        return;
    how->gap = (uint8_t)(p[1] - p[0] == 1 ? 2 : 1);
    if (how->gap == 2) /* 1 / (y0 + y1 + y2) */
        how->gap_factor =
            inverse(1u << modulo(-l[0]) ^ 1u << modulo(-l[1]) ^ 1u << modulo(-l[2]));
    else /* 1 / (y0 y1 + y0 y2 + y1 y2) */
        how->gap_factor =
            inverse(1u << modulo(-l[0] - l[1]) ^ 1u << modulo(-l[0] - l[2]) ^
                    1u << modulo(-l[1] - l[2]));
}

/* ---- decode ---- */

/* One block being decoded. Everything is borrowed from the caller of codec_decode(). */
struct finite_decoding {
    const struct codec *codec;
    const struct codec_way *way;
    const struct finite_way *how;
    const uint8_t *const *body;
    size_t pixel_bytes;
    uint8_t *ring[CODEC_M_MAX]; /* b(j), then better and better */
    uint8_t *spare;             /* a ring for the next result */
};

/* Makes the spare, with the new result, the i-th ring; its old place is the spare now. */
static void ring_replace(struct finite_decoding *d, unsigned i)
{
    uint8_t *old = d->ring[i];

    d->ring[i] = d->spare;
    d->spare = old;
}

static struct kernel_turn ring_turned(const struct finite_decoding *d, unsigned i,
                                      int turn)
{
    return (struct kernel_turn){ d->ring[i], (uint8_t)modulo(turn), true };
}

/* Collects the sources of the i-th projection less the known rows; returns their
 * number. */
static unsigned residual(const struct finite_decoding *d, unsigned i,
                         struct kernel_turn turns[])
{
    unsigned n = 0;

    for (uint32_t uses = d->way->kept; uses != 0; uses &= uses - 1) {
        turns[n] = (struct kernel_turn){ d->body[__builtin_ctz(uses)],
                                         d->how->turns[i][n], false };
        n++;
    }
    turns[n] =
        (struct kernel_turn){ d->body[d->way->via[i]], d->how->turns[i][n], false };
    return n + 1;
}

static void one_row(const struct finite_decoding *d, uint8_t *row)
{
    struct kernel_turn turns[CODEC_K_MAX + 1];
    const uint8_t *sources[CODEC_K_MAX + 1];
    unsigned n = residual(d, 0, turns);

    for (unsigned i = 0; i < n; i++)
        sources[i] = turns[i].from;
    if (d->codec->projections[d->way->via[0]].p == 0)
        d->codec->kernels->xor_rows(row, sources, n, d->pixel_bytes * N_PIXELS);
    else
        d->codec->kernels->ring_sum(row, true, turns, n, d->pixel_bytes);
}

/* Fills the gap: of the slopes 0, 1, 2, 3 (less the least one) of three lost rows, 2 or 1
 * is missing. Each y(i) is a zero of (y + y(0)) (y + y(1)) (y + y(2)) = y^3 + e1 y^2 + e2
 * y + e3, so b(3) + e1 b(2) + e2 b(1) + e3 b(0) = 0. */
static void gap_fill(struct finite_decoding *d)
{
    const uint8_t *l = d->way->lost;
    int sum = l[0] + l[1] + l[2]; /* e3 turns by this, e2 by this less one, e1 by one */
    struct kernel_turn turns[RING_SOURCES_MAX];
    uint8_t *made;
    unsigned n = 0;

    turns[n++] = ring_turned(d, 2, 0);
    turns[n++] = ring_turned(d, 0, sum);
    for (unsigned i = 0; i < d->way->n_lost; i++)
        turns[n++] = ring_turned(d, 1, d->how->gap == 2 ? sum - l[i] : l[i]);
    d->codec->kernels->ring_sum(d->spare, false, turns, n, d->pixel_bytes);
    ring_replace(d, 2);
    n = 0;
    for (uint32_t left = d->how->gap_factor; left != 0; left &= left - 1)
        turns[n++] = ring_turned(d, 2, -__builtin_ctz(left));
    d->codec->kernels->ring_sum(d->spare, false, turns, n, d->pixel_bytes);
    ring_replace(d, 2);
    made = d->ring[2];
    d->ring[2] = d->how->gap == 2 ? made : d->ring[1];
    d->ring[1] = d->how->gap == 2 ? d->ring[1] : made;
}

/* Turns b(i) into its i-th divided difference, up to the division: the first n_turns
 * sources, which make b(i), plus all products of i - j of Y(0) .. Y(j) times the
 * difference j, for all j below i. */
static void difference(struct finite_decoding *d, unsigned i, struct kernel_turn turns[],
                       unsigned n_turns)
{
    const struct finite_term *terms = d->how->terms[i];

    for (unsigned t = 0; t < d->how->n_terms[i]; t++)
        turns[n_turns++] =
            (struct kernel_turn){ d->ring[terms[t].ring], terms[t].turn, true };
    d->codec->kernels->ring_sum(d->spare, false, turns, n_turns, d->pixel_bytes);
    ring_replace(d, i);
}

static void differences(struct finite_decoding *d)
{
    struct kernel_turn turns[RING_SOURCES_MAX];

    if (d->how->gap == 0) {
        for (unsigned i = 0; i < d->way->n_lost; i++)
            difference(d, i, turns, residual(d, i, turns));
        return;
    }
    for (unsigned i = 0; i < d->way->n_lost; i++) {
        unsigned n_turns = residual(d, i, turns);

        d->codec->kernels->ring_sum(d->ring[i], false, turns, n_turns, d->pixel_bytes);
    }
    gap_fill(d);
    for (unsigned i = 1; i < d->way->n_lost; i++) {
        turns[0] = ring_turned(d, i, 0);
        difference(d, i, turns, 1);
    }
}

/* Solves from differences to b(j) = sum of Y(i)^j h(i), but for the last sums: h(i) =
 * ring[i] + ring[i + 1]. */
static void back(struct finite_decoding *d)
{
    unsigned n = d->way->n_lost;
    int turn[CODEC_M_MAX]; /* turn of Y(i) */

    for (unsigned i = 0; i < n; i++)
        turn[i] = d->way->lost[i] * d->how->step;
    for (unsigned k = n - 1; k-- > 0;) {
        /* division by Y(i) + Y(j) = Y(i) (1 + Y(j) / Y(i)) */
        for (unsigned i = k + 1; i < n; i++) {
            unsigned j = i - k - 1;
            /* a sum left to do by the round before */
            bool is_sum = k + 2 < n && i + 1 < n;

            d->codec->kernels->ring_divide(
                d->spare, d->ring[i], is_sum ? d->ring[i + 1] : NULL, modulo(-turn[i]),
                modulo(turn[j] - turn[i]), d->pixel_bytes);
            ring_replace(d, i);
        }
    }
}

static void rows_write(const struct finite_decoding *d, uint8_t *const rows[])
{
    int least = d->codec->projections[d->way->via[0]].p;

    for (unsigned i = 0; i < d->way->n_lost; i++) {
        struct kernel_turn turns[2];
        unsigned n = 0;

        for (unsigned j = i; j < d->way->n_lost && j <= i + 1; j++)
            turns[n++] = ring_turned(d, j, -d->way->lost[i] * least);
        d->codec->kernels->ring_sum(rows[d->way->lost[i]], true, turns, n,
                                    d->pixel_bytes);
    }
}

static void decode(const struct codec *c, const struct codec_way *way,
                   const uint8_t *const body[], const uint8_t *const overhang[],
                   size_t row_bytes, uint8_t *const rows[])
{
    _Alignas(CODEC_ALIGN) uint8_t scratch[SCRATCH_BYTES];
    struct finite_decoding d = { .codec = c, .way = way, .body = body };
    size_t ring_bytes;

    (void)overhang;
    d.how = (const struct finite_way *)way->extra;
    d.pixel_bytes = row_bytes / N_PIXELS;
    ring_bytes = RING_PIXELS * d.pixel_bytes;
    if (way->n_lost == 1) {
        one_row(&d, rows[way->lost[0]]);
        return;
    }
    assert((way->n_lost + 1) * ring_bytes <= sizeof(scratch));
    d.spare = scratch + way->n_lost * ring_bytes;
    for (unsigned i = 0; i < way->n_lost; i++)
        d.ring[i] = scratch + i * ring_bytes;
    differences(&d);
    back(&d);
    rows_write(&d, rows);
}

const struct codec_ops mojette_finite_ops = {
    .kind = CODEC_MOJETTE_FINITE,
    .name = "mojette-finite",
    .systematic = true,
    .way_bytes = sizeof(struct finite_way),
    .geometry = geometry,
    .encode = encode,
    .plan = plan,
    .decode = decode,
    .update = update,
};
