/*
 * codec.c - the table of codecs, and the public calls that look things up in it.
 *
 * In:     all rooms. Thread: any. A codec and its ways are made under one lock, once, and
 *         never written again.
 * Out:    the functions of one struct codec_ops, or a straight line from kernel.h if
 *         there is one.
 * Keeps:  numbers and names of kinds and layouts: inodes carry them.
 * Yours:  how the tables are built.
 * Ask:    codec.h.
 */
#include "codec/codec.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec_impl.h"

enum {
    N_LAYOUTS = 3,
    N_SIZES = 2,
    HOT_BLOCKS = 3, /* fit into L1 with their projections; more are taken to be in L2 */
};

static const struct codec_layout layouts[N_LAYOUTS] = {
    { .layout = 0, .k = 2, .n = 3, .safe = 4 },
    { .layout = 1, .k = 4, .n = 6, .safe = 8 },
    { .layout = 2, .k = 8, .n = 12, .safe = 16 },
};

static const uint32_t sizes[N_SIZES] = { 4096, 8192 };

static const struct codec_ops *const kinds[] = { &mojette_ops, &mojette_nonsystematic_ops,
                                                 &mojette_finite_ops, &rs_ops };

enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

/* Every codec, NULL until its first use. */
static _Atomic(struct codec *) codecs[CODEC_ISA_COUNT][N_KINDS][CODEC_K_MAX][CODEC_M_MAX]
                                     [N_SIZES];
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

/* ---- names and numbers ---- */

const struct codec_layout *codec_layout(unsigned layout)
{
    return layout < N_LAYOUTS ? &layouts[layout] : NULL;
}

unsigned codec_kind_at(unsigned i)
{
    return i < N_KINDS ? kinds[i]->kind : 0;
}

const char *codec_kind_name(unsigned kind)
{
    for (unsigned i = 0; i < N_KINDS; i++) {
        if (kinds[i]->kind == kind)
            return kinds[i]->name;
    }
    return NULL;
}

unsigned codec_kind_by_name(const char *name)
{
    for (unsigned i = 0; i < N_KINDS; i++) {
        if (strcmp(kinds[i]->name, name) == 0)
            return kinds[i]->kind;
    }
    return 0;
}

/* ---- making a codec ---- */

/* choose[n][k]: n over k. Filled under the lock, before the first codec exists. */
static uint32_t choose[CODEC_N_MAX + 1][CODEC_N_MAX + 1];

static void choose_fill(void)
{
    if (choose[0][0] != 0)
        return;
    for (unsigned n = 0; n <= CODEC_N_MAX; n++) {
        choose[n][0] = 1;
        for (unsigned k = 1; k <= n; k++)
            choose[n][k] = choose[n - 1][k - 1] + choose[n - 1][k];
    }
}

static void straight_lines_find(struct codec *c)
{
    for (unsigned i = 0; i < c->kernels->n_encodes; i++) {
        const struct kernel_encode *e = &c->kernels->encodes[i];

        if (e->kind != c->ops->kind || e->k != c->k || e->n != c->n ||
            e->row_bytes != c->full_row_bytes)
            continue;
        *(e->copies ? &c->encode_all
          : e->far  ? &c->encode_far
                    : &c->encode_coded) = e->run;
    }
}

static struct codec *codec_new(const struct codec_ops *ops, unsigned k, unsigned n,
                               uint32_t block_bytes, const struct kernels *kernels)
{
    size_t bytes = (sizeof(struct codec) + ops->codec_bytes + CODEC_ALIGN - 1) /
                   CODEC_ALIGN * CODEC_ALIGN;
    struct codec *c = aligned_alloc(CODEC_ALIGN, bytes);

    if (c == NULL)
        return NULL;
    memset(c, 0, bytes);
    c->ops = ops;
    c->kernels = kernels;
    c->k = k;
    c->n = n;
    c->block_bytes = block_bytes;
    c->n_plain = ops->systematic ? k : 0;
    c->coded = ((1u << n) - 1) & ~((1u << c->n_plain) - 1);
    c->way_bytes = (sizeof(struct codec_way) + ops->way_bytes + CODEC_ALIGN - 1) /
                   CODEC_ALIGN * CODEC_ALIGN;
    /* pages are touched with the ways in them */
    c->ways = calloc(choose[n][k] + 1, c->way_bytes);
    if (c->ways == NULL) {
        free(c);
        return NULL;
    }
    c->ways += -(uintptr_t)c->ways % CODEC_ALIGN; /* lives for ever: never freed */
    ops->geometry(c);
    c->full_row_bytes = (uint32_t)codec_row_bytes(c, block_bytes);
    straight_lines_find(c);
    if (c->encode_far == NULL)
        c->encode_far = c->encode_coded;
    return c;
}

const struct codec *codec_open_isa(unsigned kind, unsigned k, unsigned n,
                                   size_t block_bytes, enum codec_isa isa)
{
    const struct kernels *kernels = kernels_of(isa);
    unsigned at = 0, size = 0;
    _Atomic(struct codec *) *place;
    struct codec *c;

    while (at < N_KINDS && kinds[at]->kind != kind)
        at++;
    while (size < N_SIZES && sizes[size] != block_bytes)
        size++;
    if (at == N_KINDS || size == N_SIZES || kernels == NULL || k < 1 || k > CODEC_K_MAX ||
        n <= k || n - k > CODEC_M_MAX) {
        errno = EINVAL;
        return NULL;
    }
    place = &codecs[isa][at][k - 1][n - k - 1][size];
    c = atomic_load_explicit(place, memory_order_acquire);
    if (c != NULL)
        return c;
    pthread_mutex_lock(&making);
    choose_fill();
    c = atomic_load_explicit(place, memory_order_relaxed);
    if (c == NULL)
        c = codec_new(kinds[at], k, n, sizes[size], kernels);
    atomic_store_explicit(place, c, memory_order_release);
    pthread_mutex_unlock(&making);
    if (c == NULL)
        errno = ENOMEM;
    return c;
}

const struct codec *codec_open(unsigned kind, unsigned k, unsigned n, size_t block_bytes)
{
    return codec_open_isa(kind, k, n, block_bytes, codec_isa_default());
}

const struct codec *codec_get(unsigned kind, unsigned layout, size_t block_bytes)
{
    if (layout >= N_LAYOUTS)
        return NULL;
    return codec_open(kind, layouts[layout].k, layouts[layout].n, block_bytes);
}

/* ---- what it is ---- */

unsigned codec_k(const struct codec *c)
{
    return c->k;
}

unsigned codec_n(const struct codec *c)
{
    return c->n;
}

size_t codec_block_bytes(const struct codec *c)
{
    return c->block_bytes;
}

size_t codec_row_unit(const struct codec *c)
{
    return c->row_unit;
}

bool codec_is_systematic(const struct codec *c)
{
    return c->ops->systematic;
}

size_t codec_row_bytes(const struct codec *c, size_t user_bytes)
{
    size_t units_bytes = (size_t)c->k * c->row_unit;

    assert(user_bytes <= c->block_bytes);
    return (user_bytes + units_bytes - 1) / units_bytes * c->row_unit;
}

size_t codec_overhang_bytes(const struct codec *c, unsigned i)
{
    assert(i < c->n);
    return c->projections[i].overhang_bytes;
}

static void row_bytes_check(const struct codec *c, size_t row_bytes)
{
    assert(row_bytes - 1 < c->full_row_bytes && (row_bytes & (c->row_unit - 1)) == 0);
}

/* ---- encode ---- */

static uint32_t wanted_of(const struct codec *c, uint8_t *const body[])
{
    uint32_t wanted = 0;

    for (unsigned i = 0; i < c->n; i++)
        wanted |= (uint32_t)(body[i] != NULL) << i;
    return wanted;
}

/* Returns true for the usual case: all projections but the rows, which are sent from
 * their places. */
static bool is_coded_wanted(const struct codec *c, uint8_t *const body[])
{
    uint8_t *const *coded = body + c->n_plain, *const *end = body + c->n;

    for (; body < coded; body++) {
        if (*body != NULL)
            return false;
    }
    for (; body < end; body++) {
        if (*body == NULL)
            return false;
    }
    return true;
}

/* Encodes the wanted projections. full: encodes the coded projections of a full block;
 * NULL: nothing special. */
static void encode_wanted(const struct codec *c, kernel_encode_fn *full,
                          const uint8_t *data, size_t row_bytes, uint32_t wanted,
                          uint8_t *const body[], uint8_t *const overhang[])
{
    bool is_full = row_bytes == c->full_row_bytes && (wanted & c->coded) == c->coded;

    if (is_full && c->encode_all != NULL && wanted == (1u << c->n) - 1) {
        c->encode_all(data, body, overhang);
        return;
    }
    if (is_full && full != NULL)
        full(data, body, overhang);
    else if ((wanted & c->coded) != 0)
        c->ops->encode(c, data, row_bytes, body, overhang);
    for (uint32_t rows = wanted & ~c->coded; rows != 0; rows &= rows - 1) {
        unsigned row = (unsigned)__builtin_ctz(rows);

        memcpy(body[row], data + row * row_bytes, row_bytes);
    }
}

/* Handles all cases but the fast one. Separate, so that codec_encode() is a few compares
 * and a jump: full blocks take 100 cycles. */
static __attribute__((noinline)) void encode_any(const struct codec *c,
                                                 const uint8_t *data, size_t row_bytes,
                                                 uint8_t *const body[],
                                                 uint8_t *const overhang[])
{
    row_bytes_check(c, row_bytes);
    encode_wanted(c, c->encode_coded, data, row_bytes, wanted_of(c, body), body,
                  overhang);
}

void codec_encode(const struct codec *c, const uint8_t *data, size_t row_bytes,
                  uint8_t *const body[], uint8_t *const overhang[])
{
    if (c->encode_coded != NULL && row_bytes == c->full_row_bytes &&
        is_coded_wanted(c, body))
        c->encode_coded(data, body, overhang);
    else
        encode_any(c, data, row_bytes, body, overhang);
}

void codec_encode_run(const struct codec *c, const struct codec_run *run,
                      const uint8_t *data, uint8_t *const body[],
                      uint8_t *const overhang[])
{
    uint32_t wanted = wanted_of(c, body);
    kernel_encode_fn *full = run->n_blocks > HOT_BLOCKS ? c->encode_far : c->encode_coded;
    uint8_t *body_at[CODEC_N_MAX] = { NULL }, *overhang_at[CODEC_N_MAX] = { NULL };

    row_bytes_check(c, run->row_bytes);
    for (size_t b = 0; b < run->n_blocks; b++) {
        for (uint32_t left = wanted; left != 0; left &= left - 1) {
            unsigned i = (unsigned)__builtin_ctz(left);

            body_at[i] = body[i] + b * run->body_stride;
            if (c->projections[i].overhang_bytes != 0)
                overhang_at[i] = overhang[i] + b * run->overhang_stride[i];
        }
        encode_wanted(c, full, data + b * run->data_stride, run->row_bytes, wanted,
                      body_at, overhang_at);
    }
}

void codec_update(const struct codec *c, unsigned row, size_t from, size_t len,
                  const uint8_t *delta, size_t row_bytes, uint8_t *const body[],
                  uint8_t *const overhang[])
{
    row_bytes_check(c, row_bytes);
    assert(row < c->k && from <= row_bytes && len <= row_bytes - from);
    if (c->ops->systematic && body[row] != NULL)
        c->kernels->add(body[row] + from, delta, len);
    c->ops->update(c, row, from, len, delta, row_bytes, body, overhang);
}

/* ---- plans ---- */

/* Returns the lowest `count` set bits of `bits`; all of them when there are fewer. */
static uint32_t lowest_bits(uint32_t bits, unsigned count)
{
    uint32_t lowest = 0;

    while (bits != 0 && count-- > 0) {
        lowest |= bits & -bits;
        bits &= bits - 1;
    }
    return lowest;
}

/* Returns the rank of a set among those of equal size: sum of (bit over its place in the
 * set). */
static size_t rank(uint32_t set)
{
    size_t sum = 0;

    for (unsigned i = 1; set != 0; i++, set &= set - 1)
        sum += choose[__builtin_ctz(set)][i];
    return sum;
}

/* Sorts the projections by slope, as Mojette codes need. Other codes have no slopes. */
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

static void way_make(const struct codec *c, uint32_t uses, struct codec_way *way)
{
    uint32_t rows = (1u << c->k) - 1, via;

    way->uses = uses;
    way->kept = uses & rows & ~c->coded;
    via = uses & ~way->kept;
    for (uint32_t lost = rows & ~way->kept; lost != 0; lost &= lost - 1, via &= via - 1) {
        way->lost[way->n_lost] = (uint8_t)__builtin_ctz(lost);
        way->via[way->n_lost++] = (uint8_t)__builtin_ctz(via);
    }
    via_sort(c, way);
    c->ops->plan(c, way);
    for (unsigned i = 0; i < c->kernels->n_decodes; i++) {
        const struct kernel_decode *d = &c->kernels->decodes[i];

        if (d->kind == c->ops->kind && d->k == c->k && d->n == c->n && d->uses == uses &&
            d->row_bytes == c->full_row_bytes)
            way->full = d->run;
    }
}

static const struct codec_way *way_of(const struct codec *c, uint32_t uses)
{
    struct codec_way *way = (struct codec_way *)(c->ways + rank(uses) * c->way_bytes);

    if (atomic_load_explicit(&way->is_made, memory_order_acquire))
        return way;
    pthread_mutex_lock(&making);
    if (!atomic_load_explicit(&way->is_made, memory_order_relaxed))
        way_make(c, uses, way);
    atomic_store_explicit(&way->is_made, true, memory_order_release);
    pthread_mutex_unlock(&making);
    return way;
}

int codec_plan(const struct codec *c, uint32_t present, uint32_t wanted,
               struct codec_plan *plan)
{
    uint32_t known = present & ((1u << c->n) - 1), uses;

    if (wanted >> c->n != 0)
        return -EINVAL;
    if (wanted != 0 && (wanted & ~known) == 0) {
        *plan = (struct codec_plan){ .codec = c, .reads = wanted, .wanted = wanted };
        return 0;
    }
    if ((unsigned)__builtin_popcount(known) < c->k)
        return -EINVAL;
    uses = lowest_bits(known, c->k);
    *plan = (struct codec_plan){ c, way_of(c, uses), uses, wanted };
    return 0;
}

void codec_plan_reads(const struct codec_plan *plan, unsigned i, size_t row_bytes,
                      struct codec_reads *reads)
{
    const struct codec *c = plan->codec;

    row_bytes_check(c, row_bytes);
    assert(i < c->n);
    *reads = (struct codec_reads){ 0 };
    if ((plan->reads >> i & 1) == 0)
        return;
    reads->body_to = (uint32_t)row_bytes;
    reads->overhang_to = c->projections[i].overhang_bytes;
    if (plan->way != NULL && (c->coded >> i & 1) != 0 && c->ops->reads != NULL)
        c->ops->reads(c, plan->way, i, row_bytes, reads);
}

/* ---- decode ---- */

static bool is_full_line(const struct codec_plan *plan, size_t row_bytes)
{
    return plan->way->full != NULL && row_bytes == plan->codec->full_row_bytes;
}

/* Returns true if the kept rows are in place in data. */
static bool is_in_place(const struct codec *c, uint32_t kept, const uint8_t *const body[],
                        size_t row_bytes, const uint8_t *data)
{
#pragma GCC unroll 4
    for (unsigned row = 0; row < c->n_plain; row++, data += row_bytes) {
        if (body[row] != data && (kept >> row & 1) != 0)
            return false;
    }
    return true;
}

/* Rebuilds the lost rows in place in data. */
static void lost_rows_make(const struct codec_plan *plan, const uint8_t *const body[],
                           const uint8_t *const overhang[], size_t row_bytes,
                           uint8_t *data)
{
    const struct codec_way *way = plan->way;
    uint8_t *rows[CODEC_K_MAX]; /* only those that are lost */

    if (is_full_line(plan, row_bytes)) {
        way->full(body, overhang, data);
        return;
    }
    if (way->n_lost == 0)
        return;
    for (unsigned i = 0; i < way->n_lost; i++)
        rows[way->lost[i]] = data + way->lost[i] * row_bytes;
    plan->codec->ops->decode(plan->codec, way, body, overhang, row_bytes, rows);
}

/* Handles all cases but the fast one. Separate, as encode_any() is. */
static __attribute__((noinline)) void decode_any(const struct codec_plan *plan,
                                                 const uint8_t *const body[],
                                                 const uint8_t *const overhang[],
                                                 size_t row_bytes, uint8_t *data)
{
    row_bytes_check(plan->codec, row_bytes);
    assert(plan->wanted == 0);
    lost_rows_make(plan, body, overhang, row_bytes, data);
    for (unsigned row = 0; row < plan->codec->n_plain; row++, data += row_bytes) {
        if (body[row] != data && (plan->way->kept >> row & 1) != 0)
            memcpy(data, body[row], row_bytes);
    }
}

void codec_decode(const struct codec_plan *plan, const uint8_t *const body[],
                  const uint8_t *const overhang[], size_t row_bytes, uint8_t *data)
{
    if (plan->wanted == 0 && is_full_line(plan, row_bytes) &&
        is_in_place(plan->codec, plan->way->kept, body, row_bytes, data))
        plan->way->full(body, overhang, data);
    else
        decode_any(plan, body, overhang, row_bytes, data);
}

void codec_decode_run(const struct codec_plan *plan, const struct codec_run *run,
                      const uint8_t *const body[], const uint8_t *const overhang[],
                      uint8_t *data)
{
    const struct codec *c = plan->codec;
    const uint8_t *body_at[CODEC_N_MAX] = { NULL }, *overhang_at[CODEC_N_MAX] = { NULL };

    for (size_t b = 0; b < run->n_blocks; b++) {
        for (uint32_t left = plan->reads; left != 0; left &= left - 1) {
            unsigned i = (unsigned)__builtin_ctz(left);
            bool stays =
                (plan->way->kept >> i & 1) != 0 && body[i] == data + i * run->row_bytes;

            body_at[i] = body[i] + b * (stays ? run->data_stride : run->body_stride);
            if (c->projections[i].overhang_bytes != 0)
                overhang_at[i] = overhang[i] + b * run->overhang_stride[i];
        }
        codec_decode(plan, body_at, overhang_at, run->row_bytes,
                     data + b * run->data_stride);
    }
}

static void copy_wanted(const struct codec_plan *plan, const uint8_t *const body[],
                        const uint8_t *const overhang[], size_t row_bytes,
                        uint8_t *const out_body[], uint8_t *const out_overhang[])
{
    for (uint32_t left = plan->wanted; left != 0; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctz(left);
        size_t overhang_bytes = plan->codec->projections[i].overhang_bytes;

        memcpy(out_body[i], body[i], row_bytes);
        if (overhang_bytes != 0)
            memcpy(out_overhang[i], overhang[i], overhang_bytes);
    }
}

/* Writes the wanted projections that are not rows, from k rows anywhere; data has room
 * for these. */
static void coded_make(const struct codec *c, uint32_t wanted,
                       const uint8_t *const rows[], size_t row_bytes, uint8_t *data,
                       uint8_t *const body[], uint8_t *const overhang[])
{
    uint8_t *wanted_body[CODEC_N_MAX] = { NULL };

    for (uint32_t left = wanted & c->coded; left != 0; left &= left - 1) {
        unsigned i = (unsigned)__builtin_ctz(left);

        wanted_body[i] = body[i];
        if (c->ops->project != NULL)
            c->ops->project(c, i, rows, row_bytes, body[i], overhang);
    }
    if (c->ops->project != NULL || (wanted & c->coded) == 0)
        return;
    for (unsigned row = 0; row < c->k; row++) {
        if (rows[row] != data + row * row_bytes)
            memcpy(data + row * row_bytes, rows[row], row_bytes);
    }
    codec_encode(c, data, row_bytes, wanted_body, overhang);
}

void codec_repair(const struct codec_plan *plan, const uint8_t *const body[],
                  const uint8_t *const overhang[], size_t row_bytes,
                  uint8_t *const out_body[], uint8_t *const out_overhang[])
{
    const struct codec *c = plan->codec;
    _Alignas(CODEC_ALIGN) uint8_t data[CODEC_DATA_MAX];
    const uint8_t *rows[CODEC_K_MAX];

    row_bytes_check(c, row_bytes);
    assert(plan->wanted != 0);
    if (plan->way == NULL) {
        copy_wanted(plan, body, overhang, row_bytes, out_body, out_overhang);
        return;
    }
    lost_rows_make(plan, body, overhang, row_bytes, data);
    for (unsigned row = 0; row < c->k; row++) {
        rows[row] = plan->way->kept >> row & 1 ? body[row] : data + row * row_bytes;
        if ((plan->wanted & ~c->coded) >> row & 1)
            memcpy(out_body[row], rows[row], row_bytes);
    }
    coded_make(c, plan->wanted, rows, row_bytes, data, out_body, out_overhang);
}
