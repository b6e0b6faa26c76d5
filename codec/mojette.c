/*
 * mojette.c - the Mojette codecs: geometry, encoding, and decoding in one sweep.
 *
 * In:     codec.c, through struct codec_ops. Thread: any. Allocates nothing.
 * Out:    kernel.h.
 * Keeps:  which bins a projection has, and which of them are body and which overhang:
 *         disks carry them. Frozen vectors in tests/unit/codec check them.
 * Yours:  how they are computed.
 * Ask:    docs/CODEC.md, which has the pictures and the proofs.
 *
 * Terms. A grid has k rows of P columns; its pixels are 16 or 64 bytes. Direction (p, 1)
 * sums the pixels f(column, row) of equal
 *
 *     t = column - row * p     (t = -b in M(p, q) f(b) = sum of f(k, l) [b = -k q + l p])
 *
 * A projection keeps the bins t = first_bin .. first_bin + P + w - 1, where w is a
 * constant of (codec, layout, projection). The first P are its body, the last w its
 * overhang.
 *
 * Let rows l[0] < l[1] < ... be unknown and p[0] < p[1] < ... be as many projections that
 * are present. Row l[i] is rebuilt from projection p[i] alone: its pixel in column c from
 * bin t = c - l[i] p[i], so that P bins of the projection are read. The other pixels of
 * that bin are in the unknown rows l[j] at column c + (l[j] - l[i]) p[i]. Let row i run
 * behind the sweep by
 *
 *     delay[0] = 0,  delay[i + 1] = delay[i] - (l[i + 1] - l[i]) p[i]
 *
 * (step s rebuilds column s - delay[i] of each row, rows in descending order). Then each
 * of those pixels is outside the grid or was rebuilt before, since the slopes ascend:
 *   j > i: delay[j] - delay[i] = -sum of (l[m+1] - l[m]) p[m] over m = i..j-1, which is
 *          <= -(l[j] - l[i]) p[i], and equal only for j = i + 1: earlier in this step;
 *   j < i: delay[j] - delay[i] = sum of (l[m+1] - l[m]) p[m] over m = j..i-1, which is
 *          < (l[i] - l[j]) p[i].
 */
#include <assert.h>
#include <string.h>

#include "codec/codec_impl.h"
#include "codec/kernel.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    SKEW_ROW_MAX = 4096, /* bytes */
    MARGIN_MAX = 2432,   /* sweep reads so far beyond a row's ends: 15 rows of slope 10 */
    /* 16 rows with margins */
    SCRATCH_BYTES = CODEC_BLOCK_MAX + (CODEC_K_MAX + 1) * MARGIN_MAX,
};

_Static_assert(SCRATCH_BYTES + CODEC_DATA_MAX <= 61 * 1024,
               "codec_repair() promises a small stack");

/* ---- geometry ---- */

/* Keeps of projection i the bins that rebuild any of the rows first_row..last_row. */
static void projection_init(struct codec *c, unsigned i, int p, int first_row,
                            int last_row)
{
    struct codec_projection *projection = &c->projections[i];
    int n_overhang = (p < 0 ? -p : p) * (last_row - first_row);

    projection->p = (int16_t)p;
    projection->first_bin = (int16_t)(-p * (p < 0 ? first_row : last_row));
    projection->overhang_bytes = (uint16_t)(n_overhang * (int)c->row_unit);
    assert(n_overhang * (int)c->row_unit <= CODEC_OVERHANG_MAX);
}

/* Sets the k rows, then n - k projections. Each of them may have to rebuild any row: all
 * bins stay. */
static void systematic_geometry(struct codec *c)
{
    static const int8_t directions[CODEC_M_MAX] = { 0, 1, -1, 2 };
    unsigned k = c->k;

    c->row_unit = k <= 4 ? 64 : 16;
    for (unsigned i = 0; i < k; i++)
        projection_init(c, i, 0, (int)i, (int)i);
    for (unsigned i = k; i < c->n; i++)
        projection_init(c, i, directions[i - k], 0, (int)k - 1);
}

/* Sets n projections in ascending slope. Of any k of them the one of rank r rebuilds
 * row r, so projection i, with i before it and n - 1 - i after it, can only have some
 * ranks. */
static void nonsystematic_geometry(struct codec *c)
{
    int k = (int)c->k, n = (int)c->n;

    c->row_unit = 16;
    for (int i = 0; i < n; i++) {
        int first_rank = i > n - k ? i - (n - k) : 0;
        int last_rank = i < k ? i : k - 1;

        projection_init(c, (unsigned)i, i - n / 2, first_rank, last_rank);
    }
}

/* ---- sums of shifted rows ---- */

/* Starts an empty sum. */
static void sum_init(struct kernel_sum *sum, const struct codec *c, size_t row_bytes)
{
    sum->n_rows = 0;
    sum->is_whole = c->row_unit == 64;
    sum->row_bytes = (ptrdiff_t)row_bytes;
}

/* Adds a row of the grid to a sum. Rows come by ascending start: the last row of the grid
 * first if p is positive. */
static void sum_add(struct kernel_sum *sum, const uint8_t *row, ptrdiff_t start)
{
    sum->start[sum->n_rows++] = start;
    sum->src[sum->n_rows] = row - start;
}

/* ---- encode ---- */

/* Projection being written. */
struct projecting {
    const struct codec *codec;
    const uint8_t *const *row; /* the row that begins first */
    ptrdiff_t next;            /* from there to the next one: 1, or -1 if p is positive */
    /* bytes: start of the first row in the kept bins; distance of the others */
    ptrdiff_t first, step;
    ptrdiff_t row_bytes;
    struct kernel_part parts[2]; /* body, overhang */
    unsigned n_parts;
};

/* Returns true if adding short rows of small pixels one after the other is faster: most
 * of their pixels are near an end, which the skewed sum need not treat. */
static bool skew_pays(const struct projecting *to)
{
    const struct codec *c = to->codec;
    ptrdiff_t spread = to->step * (ptrdiff_t)(c->k - 1);

    return (to->step == 16 || to->step == 32) && to->row_bytes <= SKEW_ROW_MAX &&
           to->row_bytes <= c->kernels->skew_pays * spread;
}

static void skewed_write(const struct projecting *to)
{
    const struct kernel_part *last = &to->parts[to->n_parts - 1];
    const struct codec *c = to->codec;
    _Alignas(CODEC_ALIGN)
        uint8_t sum[SKEW_ROW_MAX + 32 * CODEC_K_MAX + KERNEL_SKEW_SPILL];
    const uint8_t *rows[CODEC_K_MAX], *const *row = to->row;

    assert(to->first <= 0 &&
           last->to - to->first <= (ptrdiff_t)sizeof(sum) - KERNEL_SKEW_SPILL);
    for (unsigned i = 0; i < c->k; i++, row += to->next)
        rows[i] = *row;
    c->kernels->skew(sum, rows, c->k, (size_t)to->step, (size_t)to->row_bytes,
                     (size_t)(last->to - to->first));
    for (const struct kernel_part *part = to->parts; part <= last; part++)
        c->kernels->xor_rows(part->dst,
                             (const uint8_t *[]){ sum + (part->from - to->first) }, 1,
                             (size_t)(part->to - part->from));
}

static void summed_write(const struct projecting *to)
{
    const uint8_t *const *row = to->row;
    ptrdiff_t start = to->first;
    struct kernel_sum sum;

    sum_init(&sum, to->codec, (size_t)to->row_bytes);
    for (unsigned n = to->codec->k; n > 0; n--, row += to->next, start += to->step)
        sum_add(&sum, *row, start);
    to->codec->kernels->sum(&sum, to->parts, to->n_parts);
}

static void mojette_project(const struct codec *c, unsigned i,
                            const uint8_t *const rows[], size_t row_bytes, uint8_t *body,
                            uint8_t *const overhang[])
{
    const struct codec_projection *projection = &c->projections[i];
    ptrdiff_t pitch = projection->p * (ptrdiff_t)c->row_unit;
    ptrdiff_t in_body = (ptrdiff_t)row_bytes, all = in_body + projection->overhang_bytes;
    ptrdiff_t first_row = pitch > 0 ? (ptrdiff_t)c->k - 1 : 0;
    struct projecting to = {
        .codec = c,
        .row = rows + first_row,
        .next = pitch > 0 ? -1 : 1,
        .first = -projection->first_bin * (ptrdiff_t)c->row_unit - first_row * pitch,
        .step = pitch < 0 ? -pitch : pitch,
        .row_bytes = in_body,
        .parts = { { 0, in_body, NULL, body } },
        .n_parts = 1,
    };

    if (all > in_body)
        to.parts[to.n_parts++] = (struct kernel_part){ in_body, all, NULL, overhang[i] };
    if (skew_pays(&to))
        skewed_write(&to);
    else
        summed_write(&to);
}

static void mojette_encode(const struct codec *c, const uint8_t *data, size_t row_bytes,
                           uint8_t *const body[], uint8_t *const overhang[])
{
    const uint8_t *rows[CODEC_K_MAX];

    for (unsigned row = 0; row < c->k; row++)
        rows[row] = data + row * row_bytes;
    for (uint32_t coded = c->coded; coded != 0; coded &= coded - 1) {
        unsigned i = (unsigned)__builtin_ctz(coded);

        if (body[i] != NULL)
            mojette_project(c, i, rows, row_bytes, body[i], overhang);
    }
}

/* ---- update ---- */

/* XORs the delta into one projection: bytes of row `row` from `from` on. */
static void update_projection(const struct codec *c, unsigned i, unsigned row,
                              size_t from, size_t len, const uint8_t *delta,
                              size_t row_bytes, uint8_t *const body[],
                              uint8_t *const overhang[])
{
    const struct codec_projection *projection = &c->projections[i];
    ptrdiff_t bin = -(ptrdiff_t)row * projection->p - projection->first_bin;
    /* place of delta[0] in the bins */
    ptrdiff_t at = bin * (ptrdiff_t)c->row_unit + (ptrdiff_t)from;
    ptrdiff_t end = at + (ptrdiff_t)len, in_body = (ptrdiff_t)row_bytes;
    /* the body ends here, or the delta */
    ptrdiff_t split = end < in_body ? end : in_body;

    delta -= at;
    if (at < 0)
        at = 0;
    if (at < split)
        c->kernels->add(body[i] + at, delta + at, (size_t)(split - at));
    if (at < in_body)
        at = in_body;
    if (end > in_body + projection->overhang_bytes)
        end = in_body + projection->overhang_bytes;
    if (at < end)
        c->kernels->add(overhang[i] + (at - in_body), delta + at, (size_t)(end - at));
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

/* Sweep of a way's lost rows; in its extra bytes. */
struct mojette_way {
    int16_t delay[CODEC_K_MAX]; /* columns that row lost[i] is behind the sweep */
    uint16_t margin;            /* columns that the sweep may read beyond a row's ends */
    uint16_t stride;            /* columns that the sweep makes at once */
    uint8_t n_kept;             /* rows that are present */
    uint8_t kept[CODEC_K_MAX];  /* ascending */
};

static struct mojette_way *sweep_of(struct codec_way *way)
{
    return (struct mojette_way *)way->extra;
}

/* Returns the steps since lost row j got the pixel that lost row i needs of it. */
static int steps_behind(const struct codec *c, const struct codec_way *way, unsigned i,
                        unsigned j)
{
    const int16_t *delay = ((const struct mojette_way *)way->extra)->delay;
    int shift = (way->lost[j] - way->lost[i]) * c->projections[way->via[i]].p;

    return delay[i] - delay[j] - shift;
}

/* Returns the distance between lost rows in the scratch, a multiple of the fastest
 * alignment. */
static size_t margin_bytes(const struct codec *c, unsigned columns)
{
    size_t bytes = (size_t)columns * c->row_unit;

    return (bytes + CODEC_ALIGN - 1) / CODEC_ALIGN * CODEC_ALIGN;
}

/* Returns the size of the scratch: the lost rows with margins before, between and after
 * them. */
static size_t scratch_bytes(const struct codec *c, const struct codec_way *way,
                            size_t row_bytes)
{
    const struct mojette_way *plan = (const struct mojette_way *)way->extra;
    size_t margin = margin_bytes(c, plan->margin);

    return margin + way->n_lost * (margin + row_bytes);
}

static void mojette_plan(const struct codec *c, struct codec_way *way)
{
    struct mojette_way *sweep = sweep_of(way);
    int margin = 0, distances = 0;

    for (uint32_t kept = way->kept; kept != 0; kept &= kept - 1)
        sweep->kept[sweep->n_kept++] = (uint8_t)__builtin_ctz(kept);
    for (unsigned i = 0; i + 1 < way->n_lost; i++) {
        int down = (way->lost[i + 1] - way->lost[i]) * c->projections[way->via[i]].p;

        sweep->delay[i + 1] = (int16_t)(sweep->delay[i] - down);
    }
    for (unsigned i = 0; i < way->n_lost; i++) {
        for (unsigned j = 0; j < way->n_lost; j++) {
            int reach = (way->lost[j] - way->lost[i]) * c->projections[way->via[i]].p;
            int behind = steps_behind(c, way, i, j);

            reach = reach < 0 ? -reach : reach;
            margin = reach > margin ? reach : margin;
            if (j != i && j != i + 1)
                distances |= behind;
        }
    }
    sweep->margin = (uint16_t)margin;
    /* Steps that make many pixels at once must not need parts of earlier ones: a machine
     * forwards a store to a load only as a whole. So the stride divides all distances. */
    sweep->stride = (uint16_t)(distances & -distances);
    assert(margin_bytes(c, sweep->margin) <= MARGIN_MAX);
    assert(scratch_bytes(c, way, c->full_row_bytes) <= SCRATCH_BYTES);
}

/* One block being decoded. Everything is borrowed from the caller of codec_decode(). */
struct mojette_decoding {
    const struct codec *codec;
    const struct codec_way *way;
    const uint8_t *const *body;
    const uint8_t *const *overhang;
    ptrdiff_t row_bytes;
};

/* Returns the first byte of the projection's bins that rebuilds row lost[i]. */
static ptrdiff_t bins_skipped(const struct codec *c, const struct codec_way *way,
                              unsigned i)
{
    const struct codec_projection *projection = &c->projections[way->via[i]];
    ptrdiff_t skip =
        (-way->lost[i] * projection->p - projection->first_bin) * (ptrdiff_t)c->row_unit;

    assert(skip >= 0 && skip <= projection->overhang_bytes);
    return skip;
}

/* Writes lost row i less the other lost rows: the bins that rebuild it plus the kept
 * rows. The first of those bins are in the body, the last beyond. */
static void residual_write(const struct mojette_decoding *d, unsigned i,
                           uint8_t *residual)
{
    unsigned via = d->way->via[i];
    int p = d->codec->projections[via].p;
    ptrdiff_t skip = bins_skipped(d->codec, d->way, i);
    ptrdiff_t in_body = d->row_bytes > skip ? d->row_bytes - skip : 0;
    ptrdiff_t pitch = p * (ptrdiff_t)d->codec->row_unit;
    const struct mojette_way *plan = (const struct mojette_way *)d->way->extra;
    struct kernel_part parts[2];
    unsigned n_parts = 0;
    struct kernel_sum sum;

    sum_init(&sum, d->codec, (size_t)d->row_bytes);
    for (unsigned n = plan->n_kept, at = p > 0 ? n - 1 : 0; n > 0; n--) {
        ptrdiff_t row = plan->kept[at];

        sum_add(&sum, d->body[row], (d->way->lost[i] - row) * pitch);
        at += p > 0 ? -1u : 1;
    }
    if (in_body > 0)
        parts[n_parts++] =
            (struct kernel_part){ 0, in_body, d->body[via] + skip, residual };
    if (in_body < d->row_bytes)
        parts[n_parts++] =
            (struct kernel_part){ in_body, d->row_bytes,
                                  d->overhang[via] + in_body + skip - d->row_bytes,
                                  residual + in_body };
    d->codec->kernels->sum(&sum, parts, n_parts);
}

/* Converts the way to bytes: lost row i is in the scratch at first_row + i * spacing. */
static void sweep_init(struct kernel_sweep *sweep, const struct mojette_decoding *d,
                       ptrdiff_t first_row, ptrdiff_t spacing)
{
    const struct codec_way *way = d->way;
    const struct mojette_way *plan = (const struct mojette_way *)way->extra;
    unsigned pixel_bytes = d->codec->row_unit;
    unsigned stride_bytes = plan->stride * pixel_bytes;

    sweep->n_rows = way->n_lost;
    sweep->pixel_bytes = pixel_bytes;
    sweep->stride_bytes = stride_bytes >= 64 ? 64 : stride_bytes >= 32 ? 32 : 16;
    sweep->row_bytes = d->row_bytes;
    for (unsigned i = 0; i < way->n_lost; i++) {
        int p = d->codec->projections[way->via[i]].p;

        sweep->delay[i] = plan->delay[i] * (ptrdiff_t)pixel_bytes;
        for (unsigned j = 0; j < way->n_lost; j++) {
            ptrdiff_t shift = (way->lost[j] - way->lost[i]) * p - plan->delay[i];

            sweep->from[i][j] =
                (int32_t)(first_row + j * spacing + shift * (ptrdiff_t)pixel_bytes);
        }
    }
}

/* Rebuilds two or more lost rows: writes residuals into a scratch with zeros between the
 * rows, so that the sweep may read beyond their ends, sweeps there, and copies the
 * result. */
static void rows_sweep(const struct mojette_decoding *d, uint8_t *const rows[])
{
    const struct mojette_way *plan = (const struct mojette_way *)d->way->extra;
    _Alignas(CODEC_ALIGN) uint8_t scratch[SCRATCH_BYTES];
    ptrdiff_t margin = (ptrdiff_t)margin_bytes(d->codec, plan->margin);
    ptrdiff_t spacing = margin + d->row_bytes;
    struct kernel_sweep sweep;

    memset(scratch, 0, (size_t)margin);
    for (unsigned i = 0; i < d->way->n_lost; i++) {
        uint8_t *row = scratch + margin + i * spacing;

        residual_write(d, i, row);
        memset(row + d->row_bytes, 0, (size_t)margin);
    }
    sweep_init(&sweep, d, margin, spacing);
    d->codec->kernels->sweep(&sweep, scratch);
    for (unsigned i = 0; i < d->way->n_lost; i++)
        memcpy(rows[d->way->lost[i]], scratch + margin + i * spacing,
               (size_t)d->row_bytes);
}

static void mojette_decode(const struct codec *c, const struct codec_way *way,
                           const uint8_t *const body[], const uint8_t *const overhang[],
                           size_t row_bytes, uint8_t *const rows[])
{
    struct mojette_decoding d = { c, way, body, overhang, (ptrdiff_t)row_bytes };

    if (way->n_lost == 1)
        residual_write(&d, 0, rows[way->lost[0]]);
    else
        rows_sweep(&d, rows);
}

/* Returns the P bins of each projection that rebuild its row. */
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
    .project = mojette_project,
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
    .project = mojette_project,
    .plan = mojette_plan,
    .decode = mojette_decode,
    .update = mojette_update,
    .reads = mojette_reads,
};
