/*
 * codec.c - the table of codecs, and the public calls that look things up in it.
 *
 * In:     everybody. Thread: any; the table is built once and never written again.
 * Out:    the functions of one struct codec_ops.
 * Keeps:  numbers and names of kinds and layouts: inodes carry them.
 * Yours:  how the table is built.
 * Ask:    codec.h.
 */
#include "codec/codec.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "codec/codec_impl.h"

enum {
    N_LAYOUTS = 3,
    N_SIZES = 2,
};

static const struct codec_layout layouts[N_LAYOUTS] = {
    { .layout = 0, .k = 2, .n = 3, .safe = 4 },
    { .layout = 1, .k = 4, .n = 6, .safe = 8 },
    { .layout = 2, .k = 8, .n = 12, .safe = 16 },
};

static const uint32_t sizes[N_SIZES] = { 4096, 8192 };

static const struct codec_ops *const kinds[] = { &mojette_ops,
                                                 &mojette_nonsystematic_ops };

enum { N_KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static struct codec codecs[N_KINDS][N_LAYOUTS][N_SIZES];
static pthread_once_t codecs_once = PTHREAD_ONCE_INIT;

static void codecs_build(void)
{
    for (unsigned kind = 0; kind < N_KINDS; kind++) {
        for (unsigned layout = 0; layout < N_LAYOUTS; layout++) {
            for (unsigned size = 0; size < N_SIZES; size++) {
                struct codec *c = &codecs[kind][layout][size];

                c->ops = kinds[kind];
                c->layout = &layouts[layout];
                c->block_bytes = sizes[size];
                c->ops->geometry(c);
            }
        }
    }
}

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

const struct codec *codec_get(unsigned kind, unsigned layout, size_t block_bytes)
{
    if (layout >= N_LAYOUTS)
        return NULL;
    pthread_once(&codecs_once, codecs_build);
    for (unsigned i = 0; i < N_KINDS; i++) {
        for (unsigned size = 0; size < N_SIZES; size++) {
            if (kinds[i]->kind == kind && sizes[size] == block_bytes)
                return &codecs[i][layout][size];
        }
    }
    return NULL;
}

unsigned codec_k(const struct codec *c)
{
    return c->layout->k;
}

unsigned codec_n(const struct codec *c)
{
    return c->layout->n;
}

size_t codec_block_bytes(const struct codec *c)
{
    return c->block_bytes;
}

size_t codec_pixel_bytes(const struct codec *c)
{
    return c->pixel_bytes;
}

bool codec_is_systematic(const struct codec *c)
{
    return c->ops->systematic;
}

size_t codec_row_bytes(const struct codec *c, size_t user_bytes)
{
    size_t column_bytes = (size_t)c->layout->k * c->pixel_bytes;

    assert(user_bytes <= c->block_bytes);
    return (user_bytes + column_bytes - 1) / column_bytes * c->pixel_bytes;
}

size_t codec_overhang_bytes(const struct codec *c, unsigned i)
{
    assert(i < c->layout->n);
    return c->projections[i].overhang_bytes;
}

static void row_bytes_check(const struct codec *c, size_t row_bytes)
{
    assert(row_bytes != 0 && row_bytes % c->pixel_bytes == 0);
    assert(row_bytes * c->layout->k <= c->block_bytes);
}

void codec_encode(const struct codec *c, const uint8_t *data, size_t row_bytes,
                  uint8_t *const body[], uint8_t *const overhang[])
{
    row_bytes_check(c, row_bytes);
    c->ops->encode(c, data, row_bytes, body, overhang);
}

/* The lowest `count` set bits of `bits`; all of them when there are fewer. */
static uint32_t lowest_bits(uint32_t bits, unsigned count)
{
    uint32_t lowest = 0;

    while (bits != 0 && count-- > 0) {
        lowest |= bits & -bits;
        bits &= bits - 1;
    }
    return lowest;
}

int codec_plan_init(const struct codec *c, uint32_t have, struct codec_plan *plan)
{
    uint32_t known = have & ((1u << c->layout->n) - 1);
    struct codec_plan_impl impl;

    if (__builtin_popcount(known) < c->layout->k)
        return -EINVAL;
    memset(&impl, 0, sizeof(impl));
    impl.codec = c;
    impl.uses = lowest_bits(known, c->layout->k);
    c->ops->plan(&impl);
    memcpy(plan->opaque, &impl, sizeof(impl));
    return 0;
}

uint32_t codec_plan_uses(const struct codec_plan *plan)
{
    struct codec_plan_impl impl;

    memcpy(&impl, plan->opaque, sizeof(impl));
    return impl.uses;
}

void codec_decode(const struct codec_plan *plan, const uint8_t *const body[],
                  const uint8_t *const overhang[], size_t row_bytes, uint8_t *data)
{
    struct codec_plan_impl impl;

    memcpy(&impl, plan->opaque, sizeof(impl));
    row_bytes_check(impl.codec, row_bytes);
    impl.codec->ops->decode(&impl, body, overhang, row_bytes, data);
}
