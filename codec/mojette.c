/*
 * mojette.c - the Mojette codecs: geometry, encoding, and decoding in one sweep.
 *
 * In:     codec.c, through struct codec_ops. Thread: any. Allocates nothing.
 * Out:    kernel.h.
 * Keeps:  which bins a projection has, and which of them are body and which overhang:
 *         disks carry them. Frozen vectors in tests/unit/codec hold it.
 * Yours:  how they are computed.
 * Ask:    docs/CODEC.md, which has the pictures and the proofs.
 *
 * Words. A grid has k rows of P columns; its pixels are 16 or 64 bytes. Direction (p, 1)
 * sums the pixels f(column, row) of equal
 *
 *     t = column - row * p     (t = -b in M(p, q) f(b) = sum of f(k, l) [b = -k q + l p])
 *
 * A projection keeps the bins t = first_bin .. first_bin + P + w - 1, where w is a
 * constant of (codec, layout, projection). The first P are its body, the last w its
 * overhang.
 *
 * Let rows l[0] < l[1] < ... be unknown and p[0] < p[1] < ... be the projections at hand,
 * as many. Row l[i] is rebuilt from projection p[i] alone: its pixel in column c from bin
 * t = c - l[i] p[i], so that P bins of the projection are looked at. The other pixels of
 * that bin lie in the unknown rows l[j] at column c + (l[j] - l[i]) p[i]. Let row i run
 * behind the sweep by
 *
 *     delay[0] = 0,  delay[i + 1] = delay[i] - (l[i + 1] - l[i]) p[i]
 *
 * (step s rebuilds column s - delay[i] of each row, rows in descending order). Then each
 * of those pixels is outside the grid or was rebuilt before, since the slopes ascend:
 *   j > i: delay[j] - delay[i] = -sum of (l[m+1] - l[m]) p[m] over m = i..j-1, which is
 *          <= -(l[j] - l[i]) p[i], and equal only for j = i + 1: earlier in the same step;
 *   j < i: delay[j] - delay[i] = sum of (l[m+1] - l[m]) p[m] over m = j..i-1, which is
 *          < (l[i] - l[j]) p[i].
 */
#include <assert.h>
#include <string.h>

#include "codec/codec_impl.h"
#include "codec/kernel.h"

enum {
    MARGIN_MAX = 2400, /* bytes; the sweep looks this far beyond a row's ends */
    SCRATCH_BYTES = CODEC_DATA_MAX + (CODEC_K_MAX + 1) * MARGIN_MAX,
};

_Static_assert(SCRATCH_BYTES <= 56 * 1024, "codec_decode() promises a small stack");

/* ---- geometry ---- */

/* Keep of projection i the bins that rebuild any of the rows first_row..last_row. */
static void projection_init(struct codec *c, unsigned i, int p, int first_row,
                            int last_row)
{
    struct codec_projection *projection = &c->projections[i];
    int n_overhang = (p < 0 ? -p : p) * (last_row - first_row);

    projection->p = (int16_t)p;
    projection->first_bin = (int16_t)(-p * (p < 0 ? first_row : last_row));
    projection->overhang_bytes = (uint16_t)(n_overhang * (int)c->pixel_bytes);
    assert(n_overhang * (int)c->pixel_bytes <= CODEC_OVERHANG_MAX);
}

/* The k rows, then n - k projections. Each of them may have to rebuild any row: all
 * bins stay. */
static void systematic_geometry(struct codec *c)
{
    static const int8_t directions[CODEC_M_MAX] = { 0, 1, -1, 2 };
    unsigned k = c->k;

    c->pixel_bytes = c->row_unit = k <= 4 ? 64 : 16;
    for (unsigned i = 0; i < k; i++)
        projection_init(c, i, 0, (int)i, (int)i);
    for (unsigned i = k; i < c->n; i++)
        projection_init(c, i, directions[i - k], 0, (int)k - 1);
}

/*
 * n projections in ascending slope. Of any k of them the one of rank r rebuilds row r,
 * and projection i, which has i before it and n - 1 - i behind it, can only be of some
 * ranks.
 */
static void nonsystematic_geometry(struct codec *c)
{
    int k = (int)c->k, n = (int)c->n;

    c->pixel_bytes = c->row_unit = 16;
    for (int i = 0; i < n; i++) {
        int first_rank = i > n - k ? i - (n - k) : 0;
        int last_rank = i < k ? i : k - 1;

        projection_init(c, (unsigned)i, i - n / 2, first_rank, last_rank);
    }
}

/* ---- sums of shifted rows ---- */

/* Bytes that go into dst[from..to). */
struct span {
    const uint8_t *src;
    ptrdiff_t from;
    ptrdiff_t to;
};

/* What is XORed into one stretch of len bytes. */
struct sum {
    ptrdiff_t len;
    unsigned n_spans;
    struct span spans[KERNEL_SOURCES_MAX];
};

/* Add `bytes` bytes at src whose first one belongs to dst[start]; start may be
 * negative. */
static void sum_add(struct sum *sum, const uint8_t *src, ptrdiff_t start, ptrdiff_t bytes)
{
    ptrdiff_t from = start > 0 ? start : 0;
    ptrdiff_t to = start + bytes < sum->len ? start + bytes : sum->len;

    if (from >= to)
        return;
    assert(sum->n_spans < KERNEL_SOURCES_MAX);
    sum->spans[sum->n_spans++] = (struct span){ src + (from - start), from, to };
}

static void xor_into(uint8_t *dst, const uint8_t *src, ptrdiff_t len)
{
    typedef uint64_t bin __attribute__((vector_size(16), aligned(1), may_alias));

    for (ptrdiff_t x = 0; x < len; x += (ptrdiff_t)sizeof(bin))
        *(bin *)(dst + x) ^= *(const bin *)(src + x);
}

/* Write dst[0..lo) and dst[hi..len), span by span. */
static void ends_write(const struct sum *sum, uint8_t *dst, ptrdiff_t lo, ptrdiff_t hi)
{
    memset(dst, 0, (size_t)lo);
    memset(dst + hi, 0, (size_t)(sum->len - hi));
    for (unsigned i = 0; i < sum->n_spans; i++) {
        const struct span *span = &sum->spans[i];
        ptrdiff_t from = span->from > hi ? span->from : hi;

        xor_into(dst + span->from, span->src, lo - span->from);
        xor_into(dst + from, span->src + (from - span->from), span->to - from);
    }
}

/* Write the sum: where all spans meet in one pass, the ends span by span. */
static void sum_write(const struct kernels *kernels, const struct sum *sum, uint8_t *dst)
{
    const uint8_t *sources[KERNEL_SOURCES_MAX];
    ptrdiff_t lo = 0, hi = sum->len;

    for (unsigned i = 0; i < sum->n_spans; i++) {
        lo = sum->spans[i].from > lo ? sum->spans[i].from : lo;
        hi = sum->spans[i].to < hi ? sum->spans[i].to : hi;
    }
    if (sum->n_spans == 0 || lo >= hi)
        lo = hi = 0;
    for (unsigned i = 0; i < sum->n_spans; i++)
        sources[i] = sum->spans[i].src + (lo - sum->spans[i].from);
    if (lo < hi)
        kernels->xor_rows(dst + lo, sources, sum->n_spans, (size_t)(hi - lo));
    if (hi - lo < sum->len)
        ends_write(sum, dst, lo, hi);
}

/* ---- encode ---- */

/* Write `len` bytes of a projection, from byte `skip` of its kept bins on. */
static void project(const struct codec *c, const struct codec_projection *projection,
                    const uint8_t *data, size_t row_bytes, ptrdiff_t skip, size_t len,
                    uint8_t *bins)
{
    struct sum sum = { .len = (ptrdiff_t)len };

    for (int row = 0; row < (int)c->k; row++) {
        ptrdiff_t bin = -row * projection->p - projection->first_bin;

        sum_add(&sum, data + (size_t)row * row_bytes, bin * c->pixel_bytes - skip,
                (ptrdiff_t)row_bytes);
    }
    sum_write(c->kernels, &sum, bins);
}

static void mojette_encode(const struct codec *c, const uint8_t *data, size_t row_bytes,
                           uint8_t *const body[], uint8_t *const overhang[])
{
    for (uint32_t coded = c->coded; coded != 0; coded &= coded - 1) {
        unsigned i = (unsigned)__builtin_ctz(coded);
        const struct codec_projection *projection = &c->projections[i];

        if (body[i] == NULL)
            continue;
        project(c, projection, data, row_bytes, 0, row_bytes, body[i]);
        if (projection->overhang_bytes != 0)
            project(c, projection, data, row_bytes, (ptrdiff_t)row_bytes,
                    projection->overhang_bytes, overhang[i]);
    }
}

/* ---- update ---- */

/* XOR the delta into one projection: bytes of row `row` from `from` on. */
static void update_projection(const struct codec *c, unsigned i, unsigned row,
                              size_t from, size_t len, const uint8_t *delta,
                              size_t row_bytes, uint8_t *const body[],
                              uint8_t *const overhang[])
{
    const struct codec_projection *projection = &c->projections[i];
    ptrdiff_t bin = -(ptrdiff_t)row * projection->p - projection->first_bin;
    ptrdiff_t at =
        bin * (ptrdiff_t)c->pixel_bytes + (ptrdiff_t)from; /* of delta[0] in the bins */
    ptrdiff_t in_body = (ptrdiff_t)row_bytes, end = in_body + projection->overhang_bytes;

    for (ptrdiff_t x = at < 0 ? -at : 0; x < (ptrdiff_t)len && at + x < end; x++) {
        if (at + x < in_body)
            body[i][at + x] ^= delta[x];
        else
            overhang[i][at + x - in_body] ^= delta[x];
    }
}

static void mojette_update(const struct codec *c, unsigned row, size_t from, size_t len,
                           const uint8_t *delta, size_t row_bytes, uint8_t *const body[],
                           uint8_t *const overhang[])
{
    for (uint32_t coded = c->coded; coded != 0; coded &= coded - 1) {
        unsigned i = (unsigned)__builtin_ctz(coded);

        if (body[i] != NULL)
            update_projection(c, i, row, from, len, delta, row_bytes, body, overhang);
    }
}

/* ---- decode ---- */

/* How a way's lost rows are swept; in its extra bytes. */
struct mojette_way {
    int16_t delay[CODEC_K_MAX]; /* columns that row lost[i] runs behind the sweep */
    uint16_t margin;            /* columns that the sweep may look beyond a row's ends */
};

static struct mojette_way *sweep_of(struct codec_way *way)
{
    return (struct mojette_way *)way->extra;
}

/* Bring the projections in order of slope: the i-th lost row is rebuilt from the i-th. */
static void via_sort(const struct codec *c, struct codec_way *way)
{
    for (unsigned n = 1; n < way->n_lost; n++) {
        uint8_t via = way->via[n];
        unsigned at = n;

        for (; at > 0 && c->projections[way->via[at - 1]].p > c->projections[via].p; at--)
            way->via[at] = way->via[at - 1];
        way->via[at] = via;
    }
}

static void mojette_plan(const struct codec *c, struct codec_way *way)
{
    struct mojette_way *sweep = sweep_of(way);

    via_sort(c, way);
    for (unsigned i = 0; i < way->n_lost; i++) {
        int p = c->projections[way->via[i]].p;
        int reach_down = (way->lost[way->n_lost - 1] - way->lost[i]) * (p < 0 ? -p : p);
        int reach_up = (way->lost[i] - way->lost[0]) * (p < 0 ? -p : p);

        if (i + 1 < way->n_lost)
            sweep->delay[i + 1] =
                (int16_t)(sweep->delay[i] - (way->lost[i + 1] - way->lost[i]) * p);
        sweep->margin =
            (uint16_t)(reach_down > sweep->margin ? reach_down : sweep->margin);
        sweep->margin = (uint16_t)(reach_up > sweep->margin ? reach_up : sweep->margin);
    }
    assert(sweep->margin * c->pixel_bytes <= MARGIN_MAX);
}

/* One block being decoded. Everything is borrowed from the caller of codec_decode(). */
struct decoding {
    const struct codec *codec;
    const struct codec_way *way;
    const uint8_t *const *body;
    const uint8_t *const *overhang;
    ptrdiff_t row_bytes;
};

/* Write bytes [from, to) of lost row i less the other lost rows: bins[from..to) plus
 * kept rows. */
static void residual_part(const struct decoding *d, unsigned i, const uint8_t *bins,
                          ptrdiff_t from, ptrdiff_t to, uint8_t *residual)
{
    int p = d->codec->projections[d->way->via[i]].p;
    struct sum sum = { .len = to - from };

    if (from >= to)
        return;
    sum_add(&sum, bins, 0, to - from);
    for (uint32_t kept = d->way->kept; kept != 0; kept &= kept - 1) {
        int row = __builtin_ctz(kept);
        ptrdiff_t shift = (row - d->way->lost[i]) * p * (ptrdiff_t)d->codec->pixel_bytes;

        sum_add(&sum, d->body[row], -shift - from, d->row_bytes);
    }
    sum_write(d->codec->kernels, &sum, residual + from);
}

/* The first byte of the projection's bins that rebuilds row lost[i]. */
static ptrdiff_t bins_skipped(const struct codec *c, const struct codec_way *way,
                              unsigned i)
{
    const struct codec_projection *projection = &c->projections[way->via[i]];
    ptrdiff_t skip = (-way->lost[i] * projection->p - projection->first_bin) *
                     (ptrdiff_t)c->pixel_bytes;

    assert(skip >= 0 && skip <= projection->overhang_bytes);
    return skip;
}

/* Write lost row i less the other lost rows. Its first bins lie in the body, the last
 * beyond. */
static void residual_write(const struct decoding *d, unsigned i, uint8_t *residual)
{
    unsigned via = d->way->via[i];
    ptrdiff_t skip = bins_skipped(d->codec, d->way, i);
    ptrdiff_t in_body = d->row_bytes > skip ? d->row_bytes - skip : 0;

    if (in_body > 0)
        residual_part(d, i, d->body[via] + skip, 0, in_body, residual);
    if (in_body < d->row_bytes)
        residual_part(d, i, d->overhang[via] + (in_body + skip - d->row_bytes), in_body,
                      d->row_bytes, residual);
}

/* The way in bytes: lost row i stands in the scratch at first_row + i * stride. */
static void sweep_init(struct kernel_sweep *sweep, const struct decoding *d,
                       ptrdiff_t first_row, ptrdiff_t stride, uint8_t *const rows[])
{
    const struct codec_way *way = d->way;
    const struct mojette_way *plan = (const struct mojette_way *)way->extra;
    ptrdiff_t pixel_bytes = d->codec->pixel_bytes;

    sweep->n_rows = way->n_lost;
    sweep->n_cols = d->row_bytes / pixel_bytes;
    for (unsigned i = 0; i < way->n_lost; i++) {
        int p = d->codec->projections[way->via[i]].p;

        sweep->delay[i] = plan->delay[i];
        sweep->to[i] = rows[way->lost[i]];
        for (unsigned j = 0; j < way->n_lost; j++) {
            ptrdiff_t shift = (way->lost[j] - way->lost[i]) * p - plan->delay[i];

            sweep->from[i][j] = first_row + j * stride + shift * pixel_bytes;
        }
    }
}

/* Two or more lost rows: residuals into a scratch where zeros lie between the rows, so
 * that the sweep may look beyond their ends, then sweep from there into the rows. */
static void rows_sweep(const struct decoding *d, uint8_t *const rows[])
{
    const struct mojette_way *plan = (const struct mojette_way *)d->way->extra;
    _Alignas(CODEC_ALIGN) uint8_t scratch[SCRATCH_BYTES];
    ptrdiff_t margin = plan->margin * (ptrdiff_t)d->codec->pixel_bytes;
    ptrdiff_t stride = margin + d->row_bytes;
    struct kernel_sweep sweep;

    memset(scratch, 0, (size_t)margin);
    for (unsigned i = 0; i < d->way->n_lost; i++) {
        uint8_t *row = scratch + margin + i * stride;

        residual_write(d, i, row);
        memset(row + d->row_bytes, 0, (size_t)margin);
    }
    sweep_init(&sweep, d, margin, stride, rows);
    d->codec->kernels->sweep(&sweep, d->codec->pixel_bytes, scratch);
}

static void mojette_decode(const struct codec *c, const struct codec_way *way,
                           const uint8_t *const body[], const uint8_t *const overhang[],
                           size_t row_bytes, uint8_t *const rows[])
{
    struct decoding d = { c, way, body, overhang, (ptrdiff_t)row_bytes };

    if (way->n_lost == 1)
        residual_write(&d, 0, rows[way->lost[0]]);
    else
        rows_sweep(&d, rows);
}

/* P bins of each projection, those of the row it rebuilds. */
static void mojette_reads(const struct codec *c, const struct codec_way *way, unsigned i,
                          size_t row_bytes, struct codec_reads *reads)
{
    for (unsigned lost = 0; lost < way->n_lost; lost++) {
        size_t skip;

        if (way->via[lost] != i)
            continue;
        skip = (size_t)bins_skipped(c, way, lost);
        *reads = (struct codec_reads){
            .body_from = (uint32_t)(skip < row_bytes ? skip : row_bytes),
            .body_to = (uint32_t)row_bytes,
            .overhang_from = (uint32_t)(skip < row_bytes ? 0 : skip - row_bytes),
            .overhang_to = (uint32_t)skip,
        };
    }
}

const struct codec_ops mojette_ops = {
    .kind = CODEC_MOJETTE,
    .name = "mojette",
    .systematic = true,
    .way_bytes = sizeof(struct mojette_way),
    .geometry = systematic_geometry,
    .encode = mojette_encode,
    .plan = mojette_plan,
    .decode = mojette_decode,
    .update = mojette_update,
    .reads = mojette_reads,
};

const struct codec_ops mojette_nonsystematic_ops = {
    .kind = CODEC_MOJETTE_NONSYSTEMATIC,
    .name = "mojette-nonsystematic",
    .systematic = false,
    .way_bytes = sizeof(struct mojette_way),
    .geometry = nonsystematic_geometry,
    .encode = mojette_encode,
    .plan = mojette_plan,
    .decode = mojette_decode,
    .update = mojette_update,
    .reads = mojette_reads,
};
