/*
 * harness.c - see harness.h. The buffers of a block are mapped once and used again; they
 * only grow.
 */
#include "harness.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    CANARY_BYTES = 64,
    CANARY = 0xC5,
};

static const size_t sizes[] = { 8192, 4096 };

/* The codec under test and its row length, for failure messages. */
static const struct codec *now_codec;
static struct which now;
static size_t now_row_bytes;

/* ---- every codec ---- */

void check_failed(const char *expr, const char *file, int line)
{
    if (now_codec != NULL)
        print_error("%s (%u,%u), %zu byte blocks, %s, rows of %zu bytes\n",
                    codec_kind_name(now.kind), codec_k(now_codec), codec_n(now_codec),
                    codec_block_bytes(now_codec), codec_isa_name(now.isa), now_row_bytes);
    print_error("failed: %s\n", expr);
    _fail(file, line);
}

static void run(codec_test *fn, unsigned kind, unsigned layout, unsigned k, unsigned n,
                size_t size, enum codec_isa isa)
{
    const struct codec *c = codec_open_isa(kind, k, n, size, isa);

    now_codec = c;
    now = (struct which){ kind, layout, isa };
    now_row_bytes = 0;
    check(c != NULL);
    fn(c, &now);
    now_codec = NULL;
}

static void run_layouts(codec_test *fn, enum codec_isa isa)
{
    for (unsigned i = 0; codec_kind_at(i) != 0; i++) {
        for (unsigned layout = 0; layout < N_LAYOUTS; layout++) {
            const struct codec_layout *l = codec_layout(layout);

            for (unsigned size = 0; size < 2; size++)
                run(fn, codec_kind_at(i), layout, l->k, l->n, sizes[size], isa);
        }
    }
}

void for_each_codec(codec_test *fn)
{
    for (unsigned isa = 0; isa < CODEC_ISA_COUNT; isa++) {
        if (codec_isa_usable(isa))
            run_layouts(fn, isa);
    }
}

void for_each_code(codec_test *fn)
{
    run_layouts(fn, codec_isa_default());
}

void for_some_k_and_n(codec_test *fn)
{
    static const uint8_t some[][2] = { { 1, 2 },  { 1, 5 },   { 2, 6 },   { 3, 4 },
                                       { 3, 7 },  { 5, 7 },   { 6, 9 },   { 7, 8 },
                                       { 9, 12 }, { 10, 14 }, { 13, 15 }, { 16, 20 } };

    for (unsigned isa = 0; isa < CODEC_ISA_COUNT; isa++) {
        for (unsigned i = 0; codec_kind_at(i) != 0 && codec_isa_usable(isa); i++) {
            for (size_t s = 0; s < sizeof(some) / sizeof(some[0]); s++)
                run(fn, codec_kind_at(i), N_LAYOUTS, some[s][0], some[s][1], sizes[s % 2],
                    isa);
        }
    }
}

/* ---- numbers ---- */

/* The generator is splitmix64 by Sebastiano Vigna. */
void fill_random(uint8_t *buf, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++) {
        uint64_t z = (seed += 0x9E3779B97F4A7C15);

        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
        z = (z ^ z >> 27) * 0x94D049BB133111EB;
        buf[i] = (uint8_t)(z ^ z >> 31);
    }
}

size_t random_below(uint64_t *state, size_t below)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return (*state >> 11) % below;
}

size_t row_bytes_at(const struct codec *c, unsigned i, bool all)
{
    size_t unit = codec_row_unit(c), full = codec_row_bytes(c, codec_block_bytes(c));
    size_t units = i == 0 ? full / unit : i;

    if (i > 0 && !all) {
        static const uint8_t some[] = { 1, 2, 3, 5, 8, 11, 15, 17, 24 };

        _Static_assert(HARNESS_SHORT <= sizeof(some), "one each");
        if (i > HARNESS_SHORT)
            return 0;
        units = some[i - 1];
    }
    return i > 0 && units * unit >= full ? 0 : units * unit;
}

uint32_t pattern_next(const struct codec *c, uint32_t pattern)
{
    uint32_t low = pattern & -pattern, next = pattern + low;

    if (pattern == 0)
        return (1u << codec_k(c)) - 1;
    next |= ((next ^ pattern) >> 2) / low;
    return next < 1u << codec_n(c) ? next : 0;
}

/* ---- buffers between unreadable pages ---- */

/* Makes room for len bytes. */
static void guarded_map(struct guarded *g, size_t len)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *map;

    if (g->map != NULL)
        assert_int_equal(munmap(g->map - page, g->inner + 2 * page), 0);
    g->inner = (len + CANARY_BYTES + page - 1) / page * page;
    map = mmap(NULL, g->inner + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    g->map = map + page;
    assert_int_equal(mprotect(g->map, g->inner, PROT_READ | PROT_WRITE), 0);
}

/* Returns a buffer of len bytes that touches the page at that side, filled with junk. */
static uint8_t *guarded_place(struct guarded *g, size_t len, enum side side)
{
    if (len + CANARY_BYTES > g->inner)
        guarded_map(g, len);
    g->len = len;
    g->bytes = g->map + (side == AT_END ? g->inner - len : 0);
    g->canary = side == AT_END ? g->bytes - CANARY_BYTES : g->bytes + len;
    memset(g->canary, CANARY, CANARY_BYTES);
    memset(g->bytes, JUNK, len);
    return g->bytes;
}

static void guarded_check(const struct guarded *g)
{
    static uint8_t canaries[CANARY_BYTES];

    memset(canaries, CANARY, sizeof(canaries));
    check(memcmp(g->canary, canaries, CANARY_BYTES) == 0);
}

/* ---- blocks ---- */

static struct block *free_blocks;

struct block *blocks_new(const struct codec *c, size_t row_bytes, enum side side,
                         unsigned n_blocks)
{
    struct block *b = free_blocks != NULL ? free_blocks : calloc(1, sizeof(*b));

    assert_non_null(b);
    free_blocks = b->next;
    b->c = c;
    b->n_blocks = n_blocks;
    b->row_bytes = now_row_bytes = row_bytes;
    b->data_bytes = row_bytes * codec_k(c);
    guarded_place(&b->data, n_blocks * b->data_bytes, side);
    guarded_place(&b->out, n_blocks * b->data_bytes, side);
    guarded_place(&b->junk, row_bytes, side);
    for (unsigned i = 0; i < codec_n(c); i++) {
        size_t overhang_bytes = codec_overhang_bytes(c, i);

        b->bodies[i] = guarded_place(&b->body[i], n_blocks * row_bytes, side);
        guarded_place(&b->overhang[i], n_blocks * overhang_bytes, side);
        b->overhangs[i] = overhang_bytes == 0 ? NULL : b->overhang[i].bytes;
    }
    fill_random(b->data.bytes, n_blocks * b->data_bytes,
                row_bytes / codec_row_unit(c) + 1);
    return b;
}

struct block *block_new(const struct codec *c, size_t row_bytes, enum side side)
{
    return blocks_new(c, row_bytes, side, 1);
}

struct codec_run blocks_run(const struct block *b)
{
    struct codec_run run = {
        b->n_blocks, b->row_bytes, b->data_bytes, b->row_bytes, { 0 }
    };

    for (unsigned i = 0; i < codec_n(b->c); i++)
        run.overhang_stride[i] = codec_overhang_bytes(b->c, i);
    return run;
}

void block_free(struct block *b)
{
    guarded_check(&b->data);
    guarded_check(&b->out);
    guarded_check(&b->junk);
    for (unsigned i = 0; i < codec_n(b->c); i++) {
        guarded_check(&b->body[i]);
        guarded_check(&b->overhang[i]);
    }
    b->next = free_blocks;
    free_blocks = b;
}

void block_encode(struct block *b)
{
    codec_encode(b->c, b->data.bytes, b->row_bytes, b->bodies, b->overhangs);
}

bool block_decodes(struct block *b, uint32_t have)
{
    const uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
    struct codec_plan plan;

    check(codec_plan(b->c, have, 0, &plan) == 0);
    check(plan.reads == have);
    for (unsigned i = 0; i < codec_n(b->c); i++) {
        body[i] = have >> i & 1 ? b->bodies[i] : b->junk.bytes;
        overhang[i] = have >> i & 1 ? b->overhangs[i] : b->junk.bytes;
    }
    memset(b->out.bytes, JUNK, b->data_bytes);
    codec_decode(&plan, body, overhang, b->row_bytes, b->out.bytes);
    return memcmp(b->out.bytes, b->data.bytes, b->data_bytes) == 0;
}

bool block_decodes_in_place(struct block *b, uint32_t have)
{
    const uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
    struct codec_plan plan;

    check(codec_plan(b->c, have, 0, &plan) == 0);
    memset(b->out.bytes, JUNK, b->data_bytes);
    for (unsigned i = 0; i < codec_n(b->c); i++) {
        body[i] = have >> i & 1 ? b->bodies[i] : NULL;
        overhang[i] = have >> i & 1 ? b->overhangs[i] : NULL;
        if (i < codec_k(b->c) && codec_is_systematic(b->c) && body[i] != NULL) {
            body[i] = b->out.bytes + i * b->row_bytes;
            memcpy(b->out.bytes + i * b->row_bytes, b->bodies[i], b->row_bytes);
        }
    }
    codec_decode(&plan, body, overhang, b->row_bytes, b->out.bytes);
    return memcmp(b->out.bytes, b->data.bytes, b->data_bytes) == 0;
}
