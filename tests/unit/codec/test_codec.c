/*
 * test_codec.c - the codecs keep what codec.h promises.
 *
 * Goal:   any k of n projections give the block back, for every kind, layout, size and
 *         erasure pattern; projections are what mojette_ref.c says, in exactly the
 *         declared bytes; what lies on disks today means the same tomorrow.
 * Method: exhaustion where it is cheap (all patterns, all row lengths), buffers that end
 *         at an unreadable page, frozen checksums, and controls that must fail.
 *         `unit.codec --print-frozen` prints the table of frozen checksums of this build.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "codec/codec.h"
#include "mojette_ref.h"
#include "tests/unit/unit.h"

enum {
    N_LAYOUTS = 3,
    N_SIZES = 2,
    N_THREADS = 8,
    CANARY_BYTES = 64,
    CANARY = 0xC5,
    JUNK = 0xA7,
};

static const size_t sizes[N_SIZES] = { 8192, 4096 };

/* ---- helpers ---- */

/* The kinds that mojette_ref.c knows; the others have a test of their own. */
static bool is_mojette(unsigned kind)
{
    return kind == CODEC_MOJETTE || kind == CODEC_MOJETTE_NONSYSTEMATIC;
}

/* Run fn for every codec there is. */
static void for_each_codec(void (*fn)(const struct codec *c, unsigned kind,
                                      unsigned layout))
{
    for (unsigned i = 0; codec_kind_at(i) != 0; i++) {
        for (unsigned layout = 0; layout < N_LAYOUTS; layout++) {
            for (unsigned size = 0; size < N_SIZES; size++) {
                const struct codec *c = codec_get(codec_kind_at(i), layout, sizes[size]);

                assert_non_null(c);
                fn(c, codec_kind_at(i), layout);
            }
        }
    }
}

/* splitmix64 by Sebastiano Vigna: the same bytes for ever, frozen checksums depend on
 * it. */
static void fill_random(uint8_t *buf, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++) {
        uint64_t z = (seed += 0x9E3779B97F4A7C15);

        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9;
        z = (z ^ z >> 27) * 0x94D049BB133111EB;
        buf[i] = (uint8_t)(z ^ z >> 31);
    }
}

/* Bytes between two unreadable pages, hard against one of them, canaries on the other
 * side. */
struct guarded {
    uint8_t *map;
    size_t map_bytes;
    uint8_t *bytes; /* the buffer */
    size_t len;
    uint8_t *canary;
};

static struct guarded guarded_new(size_t len, bool at_end)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t inner = (len + CANARY_BYTES + page - 1) / page * page;
    struct guarded g = { .map_bytes = inner + 2 * page, .len = len };

    g.map = mmap(NULL, g.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(g.map, MAP_FAILED);
    assert_int_equal(mprotect(g.map + page, inner, PROT_READ | PROT_WRITE), 0);
    g.bytes = g.map + page + (at_end ? inner - len : 0);
    g.canary = at_end ? g.bytes - CANARY_BYTES : g.bytes + len;
    memset(g.canary, CANARY, CANARY_BYTES);
    memset(g.bytes, JUNK, len);
    return g;
}

static void guarded_free(struct guarded *g)
{
    for (unsigned i = 0; i < CANARY_BYTES; i++)
        assert_int_equal(g->canary[i], CANARY);
    assert_int_equal(munmap(g->map, g->map_bytes), 0);
}

/* One block, its projections in buffers of exactly the declared sizes, and a place to
 * decode. */
struct block {
    const struct codec *c;
    size_t row_bytes;
    size_t data_bytes;
    struct guarded data;
    struct guarded out;
    struct guarded junk; /* stands for what is lost */
    struct guarded body[CODEC_N_MAX];
    struct guarded overhang[CODEC_N_MAX];
    uint8_t *bodies[CODEC_N_MAX];    /* for codec_encode() */
    uint8_t *overhangs[CODEC_N_MAX]; /* NULL where there is none */
};

/* A random block of n_columns columns of pixels, not yet encoded. */
static struct block *block_new(const struct codec *c, size_t n_columns, bool at_end)
{
    struct block *b = calloc(1, sizeof(*b));

    assert_non_null(b);
    b->c = c;
    b->row_bytes = n_columns * codec_row_unit(c);
    b->data_bytes = b->row_bytes * codec_k(c);
    b->data = guarded_new(b->data_bytes, at_end);
    b->out = guarded_new(b->data_bytes, at_end);
    b->junk = guarded_new(b->row_bytes, at_end);
    for (unsigned i = 0; i < codec_n(c); i++) {
        b->body[i] = guarded_new(b->row_bytes, at_end);
        b->bodies[i] = b->body[i].bytes;
        b->overhang[i] = guarded_new(codec_overhang_bytes(c, i), at_end);
        b->overhangs[i] = b->overhang[i].len == 0 ? NULL : b->overhang[i].bytes;
    }
    fill_random(b->data.bytes, b->data_bytes, n_columns + 1);
    return b;
}

static void block_encode(struct block *b)
{
    codec_encode(b->c, b->data.bytes, b->row_bytes, b->bodies, b->overhangs);
}

static void block_free(struct block *b)
{
    for (unsigned i = 0; i < codec_n(b->c); i++) {
        guarded_free(&b->body[i]);
        guarded_free(&b->overhang[i]);
    }
    guarded_free(&b->data);
    guarded_free(&b->out);
    guarded_free(&b->junk);
    free(b);
}

/* Decode from the projections in `have`, the others being junk; does the block come
 * back? */
static bool block_decodes(struct block *b, uint32_t have)
{
    const uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
    struct codec_plan plan;

    assert_int_equal(codec_plan(b->c, have, 0, &plan), 0);
    assert_int_equal(plan.reads, have);
    for (unsigned i = 0; i < codec_n(b->c); i++) {
        body[i] = have >> i & 1 ? b->bodies[i] : b->junk.bytes;
        overhang[i] = have >> i & 1 ? b->overhangs[i] : b->junk.bytes;
    }
    memset(b->out.bytes, JUNK, b->data_bytes);
    codec_decode(&plan, body, overhang, b->row_bytes, b->out.bytes);
    return memcmp(b->out.bytes, b->data.bytes, b->data_bytes) == 0;
}

/* The same, the surviving rows of a systematic code being where they belong already. */
static bool block_decodes_in_place(struct block *b, uint32_t have)
{
    const uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
    struct codec_plan plan;

    assert_int_equal(codec_plan(b->c, have, 0, &plan), 0);
    memset(b->out.bytes, JUNK, b->data_bytes);
    for (unsigned i = 0; i < codec_n(b->c); i++) {
        body[i] = have >> i & 1 ? b->bodies[i] : NULL;
        overhang[i] = have >> i & 1 ? b->overhangs[i] : NULL;
        if (i < codec_k(b->c) && body[i] != NULL) {
            body[i] = b->out.bytes + i * b->row_bytes;
            memcpy(b->out.bytes + i * b->row_bytes, b->bodies[i], b->row_bytes);
        }
    }
    codec_decode(&plan, body, overhang, b->row_bytes, b->out.bytes);
    return memcmp(b->out.bytes, b->data.bytes, b->data_bytes) == 0;
}

/* Patterns of exactly k projections: `for (p = first; p != 0; p = next)`. */
static uint32_t pattern_next(const struct codec *c, uint32_t pattern)
{
    while (++pattern < 1u << codec_n(c)) {
        if ((unsigned)__builtin_popcount(pattern) == codec_k(c))
            return pattern;
    }
    return 0;
}

static size_t columns_max(const struct codec *c)
{
    return codec_block_bytes(c) / codec_k(c) / codec_row_unit(c);
}

/* ---- the table ---- */

static pthread_barrier_t start;

static void *thread_get_all(void *arg)
{
    const struct codec **found = arg;

    pthread_barrier_wait(&start);
    for (unsigned i = 0; codec_kind_at(i) != 0; i++) {
        for (unsigned layout = 0; layout < N_LAYOUTS; layout++) {
            for (unsigned size = 0; size < N_SIZES; size++) {
                const struct codec *c = codec_get(codec_kind_at(i), layout, sizes[size]);

                if (codec_overhang_bytes(c, codec_n(c) - 1) <= CODEC_OVERHANG_MAX)
                    *found++ = c;
            }
        }
    }
    return NULL;
}

/* Stands first in main(), so that the threads race to build the table. */
static void test_get_from_many_threads(void **state)
{
    static const struct codec *found[N_THREADS][64];
    pthread_t threads[N_THREADS];

    (void)state;
    assert_int_equal(pthread_barrier_init(&start, NULL, N_THREADS), 0);
    for (unsigned i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, thread_get_all, found[i]), 0);
    for (unsigned i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    pthread_barrier_destroy(&start);
    assert_non_null(found[0][11]); /* 2 kinds, 3 layouts, 2 sizes at least */
    for (unsigned i = 1; i < N_THREADS; i++)
        assert_memory_equal(found[i], found[0], sizeof(found[0]));
}

static void test_layouts_are_those_of_the_papers(void **state)
{
    static const uint8_t want[N_LAYOUTS][3] = { { 2, 3, 4 }, { 4, 6, 8 }, { 8, 12, 16 } };

    (void)state;
    for (unsigned i = 0; i < N_LAYOUTS; i++) {
        const struct codec_layout *layout = codec_layout(i);

        assert_non_null(layout);
        assert_int_equal(layout->layout, i);
        assert_int_equal(layout->k, want[i][0]);
        assert_int_equal(layout->n, want[i][1]);
        assert_int_equal(layout->safe, want[i][2]);
    }
    assert_null(codec_layout(N_LAYOUTS));
    assert_null(codec_layout(~0u));
}

static void test_kinds_have_numbers_and_names(void **state)
{
    (void)state;
    assert_int_equal(codec_kind_by_name("mojette"), 1);
    assert_int_equal(codec_kind_by_name("mojette-nonsystematic"), 2);
    assert_int_equal(codec_kind_by_name("mojette-finite"), 3);
    assert_int_equal(codec_kind_by_name("rs"), 4);
    assert_int_equal(codec_kind_by_name("mojett"), 0);
    assert_int_equal(codec_kind_by_name(""), 0);
    assert_null(codec_kind_name(0));
    assert_null(codec_kind_name(~0u));
    assert_int_equal(codec_kind_at(~0u), 0);
    for (unsigned i = 0; codec_kind_at(i) != 0; i++)
        assert_int_equal(codec_kind_by_name(codec_kind_name(codec_kind_at(i))),
                         codec_kind_at(i));
}

static void test_get_refuses_what_it_does_not_know(void **state)
{
    (void)state;
    assert_null(codec_get(0, 0, 8192));
    assert_null(codec_get(99, 0, 8192));
    assert_null(codec_get(CODEC_MOJETTE, 3, 8192));
    assert_null(codec_get(CODEC_MOJETTE, 0, 0));
    assert_null(codec_get(CODEC_MOJETTE, 0, 8191));
    assert_null(codec_get(CODEC_MOJETTE, 0, 16384));
}

/* ---- geometry ---- */

/* Bins beyond the row length, as docs/CODEC.md has them. */
static const uint8_t overhang_bins[2][N_LAYOUTS][12] = {
    { { 0, 0, 0 }, { 0, 0, 0, 0, 0, 3 }, { 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 14 } },
    { { 0, 0, 0 }, { 0, 2, 2, 0, 1, 0 }, { 0, 5, 8, 9, 8, 4, 0, 4, 6, 6, 4, 0 } },
};

static void check_geometry(const struct codec *c, unsigned kind, unsigned layout)
{
    size_t pixel = codec_row_unit(c);

    assert_int_equal(codec_k(c), codec_layout(layout)->k);
    assert_int_equal(codec_n(c), codec_layout(layout)->n);
    assert_int_equal(codec_is_systematic(c), kind != CODEC_MOJETTE_NONSYSTEMATIC);
    assert_ptr_equal(codec_get(kind, layout, codec_block_bytes(c)), c);
    if (!is_mojette(kind))
        return;
    assert_int_equal(pixel, kind == CODEC_MOJETTE && layout < 2 ? 64 : 16);
    for (unsigned i = 0; i < codec_n(c); i++) {
        struct ref_projection r = ref_projection(kind, layout, i);

        assert_int_equal(codec_overhang_bytes(c, i),
                         overhang_bins[kind - 1][layout][i] * pixel);
        assert_int_equal(codec_overhang_bytes(c, i), (size_t)r.n_overhang * pixel);
    }
}

static void test_geometry_is_the_documented_one(void **state)
{
    (void)state;
    for_each_codec(check_geometry);
}

static void check_row_bytes(const struct codec *c, unsigned kind, unsigned layout)
{
    size_t pixel = codec_row_unit(c), k = codec_k(c);

    (void)kind, (void)layout;
    assert_int_equal(codec_row_bytes(c, codec_block_bytes(c)), codec_block_bytes(c) / k);
    for (size_t user = 0; user <= codec_block_bytes(c); user++) {
        size_t row = codec_row_bytes(c, user);

        assert_int_equal(row % pixel, 0);
        assert_true(row * k >= user);
        assert_true(row == 0 || (row - pixel) * k < user);
    }
}

static void test_row_bytes_are_just_enough(void **state)
{
    (void)state;
    for_each_codec(check_row_bytes);
}

/* ---- encode ---- */

static void check_encode(const struct codec *c, unsigned kind, unsigned layout)
{
    static uint8_t bins[CODEC_BLOCK_MAX + CODEC_OVERHANG_MAX];

    if (!is_mojette(kind))
        return;
    for (size_t columns = 1; columns <= columns_max(c); columns++) {
        struct block *b = block_new(c, columns, columns % 2 != 0);

        block_encode(b);
        for (unsigned i = 0; i < codec_n(c); i++) {
            struct ref_projection r = ref_projection(kind, layout, i);

            ref_encode(&r, b->data.bytes, b->row_bytes, bins);
            assert_memory_equal(b->bodies[i], bins, b->row_bytes);
            if (b->overhangs[i] != NULL)
                assert_memory_equal(b->overhangs[i], bins + b->row_bytes,
                                    b->overhang[i].len);
        }
        block_free(b);
    }
}

static void test_encode_equals_the_reference(void **state)
{
    (void)state;
    for_each_codec(check_encode);
}

/* Is `bit` the only one set of len bytes, or none is and bit is beyond them? */
static bool only_bit(const uint8_t *bytes, size_t len, size_t bit)
{
    for (size_t i = 0; i < len; i++) {
        if (bytes[i] != (bit / 8 == i ? 1 << bit % 8 : 0))
            return false;
    }
    return true;
}

/* One set bit of pixel (column, row) shows in one bin of each slanted projection, or
 * was trimmed away; here from the formula alone. The code is linear: this and random
 * data say it all. */
static void check_bit(struct block *b, unsigned kind, unsigned layout, size_t row,
                      size_t column, size_t bit)
{
    size_t pixel = codec_row_unit(b->c);

    memset(b->data.bytes, 0, b->data_bytes);
    b->data.bytes[row * b->row_bytes + column * pixel + bit / 8] =
        (uint8_t)(1 << bit % 8);
    block_encode(b);
    for (unsigned i = 0; i < codec_n(b->c); i++) {
        struct ref_projection r = ref_projection(kind, layout, i);
        int at =
            (int)column - (int)row * r.p - r.first_t; /* bin, from the first one kept */
        size_t want = at < 0 ? SIZE_MAX : (size_t)at * pixel * 8 + bit;
        size_t body_bits = b->row_bytes * 8;

        if (r.row >= 0)
            want = (size_t)r.row == row ? column * pixel * 8 + bit : SIZE_MAX;
        assert_true(only_bit(b->bodies[i], b->row_bytes, want));
        if (b->overhangs[i] != NULL)
            assert_true(only_bit(
                b->overhangs[i], b->overhang[i].len,
                want < body_bits || want == SIZE_MAX ? SIZE_MAX : want - body_bits));
    }
}

static void check_bits(const struct codec *c, unsigned kind, unsigned layout)
{
    static const size_t columns[] = { 1, 2, 5, 11 };

    if (codec_block_bytes(c) != 4096 || !is_mojette(kind))
        return;
    for (unsigned i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
        struct block *b = block_new(c, columns[i], true);

        for (size_t row = 0; row < codec_k(c); row++) {
            for (size_t column = 0; column < columns[i]; column++)
                check_bit(b, kind, layout, row, column,
                          (row * 37 + column * 11) % (codec_row_unit(c) * 8));
        }
        block_free(b);
    }
}

static void test_a_single_bit_goes_where_the_formula_says(void **state)
{
    (void)state;
    for_each_codec(check_bits);
}

static void check_unwanted(const struct codec *c, unsigned kind, unsigned layout)
{
    struct block *b = block_new(c, columns_max(c), true);
    static uint8_t zeros[CODEC_BLOCK_MAX], junk[CODEC_BLOCK_MAX];

    (void)kind, (void)layout;
    memset(junk, JUNK, sizeof(junk));
    memset(b->data.bytes, 0, b->data_bytes);
    for (unsigned wanted = 0; wanted < codec_n(c); wanted++) {
        uint8_t *body[CODEC_N_MAX] = { NULL };

        for (unsigned i = 0; i < codec_n(c); i++)
            memset(b->bodies[i], JUNK, b->row_bytes);
        body[wanted] = b->bodies[wanted];
        codec_encode(c, b->data.bytes, b->row_bytes, body, b->overhangs);
        for (unsigned i = 0; i < codec_n(c); i++)
            assert_memory_equal(b->bodies[i], i == wanted ? zeros : junk, b->row_bytes);
    }
    block_free(b);
}

static void test_encode_writes_what_is_wanted_only(void **state)
{
    (void)state;
    for_each_codec(check_unwanted);
}

/* ---- decode ---- */

static void check_round_trip(const struct codec *c, unsigned kind, unsigned layout)
{
    (void)kind, (void)layout;
    for (size_t columns = 1; columns <= columns_max(c); columns++) {
        struct block *b = block_new(c, columns, columns % 2 == 0);

        block_encode(b);
        for (uint32_t p = pattern_next(c, 0); p != 0; p = pattern_next(c, p)) {
            assert_true(block_decodes(b, p));
            if (codec_is_systematic(c))
                assert_true(block_decodes_in_place(b, p));
        }
        block_free(b);
    }
}

/* Every pattern, every row length. The bins that were trimmed away exist nowhere: each
 * buffer is as long as the kept ones and ends at an unreadable page. */
static void test_any_k_projections_give_the_block_back(void **state)
{
    (void)state;
    for_each_codec(check_round_trip);
}

/* Does some pattern read that byte, so that a flip of it shows? */
static bool matters(struct block *b, unsigned i, uint8_t *byte)
{
    bool shows = false;

    *byte ^= 0x10;
    for (uint32_t p = pattern_next(b->c, 0); p != 0 && !shows; p = pattern_next(b->c, p))
        shows = (p >> i & 1) && !block_decodes(b, p);
    *byte ^= 0x10;
    return shows;
}

static void check_no_bin_is_idle(const struct codec *c, unsigned kind, unsigned layout)
{
    struct block *b = block_new(c, columns_max(c) < 5 ? columns_max(c) : 5, true);

    (void)kind, (void)layout;
    block_encode(b);
    for (unsigned i = 0; i < codec_n(c); i++) {
        for (size_t x = 3; x < b->row_bytes; x += codec_row_unit(c))
            assert_true(matters(b, i, b->bodies[i] + x));
        for (size_t x = 3; x < b->overhang[i].len; x += codec_row_unit(c))
            assert_true(matters(b, i, b->overhangs[i] + x));
    }
    block_free(b);
}

/* A control that must fail, and the proof that nothing more can be trimmed. */
static void test_a_flipped_bit_of_any_bin_spoils_some_read(void **state)
{
    (void)state;
    for_each_codec(check_no_bin_is_idle);
}

static void check_swapped(const struct codec *c, unsigned kind, unsigned layout)
{
    struct block *b = block_new(c, columns_max(c), true);

    (void)kind, (void)layout;
    block_encode(b);
    for (unsigned i = 0; i + 1 < codec_n(c); i++) {
        uint32_t both = 3u << i;
        uint8_t *body = b->bodies[i];

        b->bodies[i] = b->bodies[i + 1];
        b->bodies[i + 1] = body;
        for (uint32_t p = pattern_next(c, 0); p != 0; p = pattern_next(c, p)) {
            if ((p & both) == both)
                assert_false(block_decodes(b, p));
        }
        b->bodies[i + 1] = b->bodies[i];
        b->bodies[i] = body;
    }
    block_free(b);
}

/* Another control that must fail. */
static void test_swapped_projections_give_another_block(void **state)
{
    (void)state;
    for_each_codec(check_swapped);
}

static void check_odd_addresses(const struct codec *c, unsigned kind, unsigned layout)
{
    static uint8_t data[CODEC_BLOCK_MAX + 64], out[CODEC_BLOCK_MAX + 64];
    static uint8_t bodies[CODEC_N_MAX][CODEC_BLOCK_MAX], overhangs[CODEC_N_MAX][2048];
    size_t row_bytes = codec_block_bytes(c) / codec_k(c);
    uint8_t *body[CODEC_N_MAX], *overhang[CODEC_N_MAX];
    struct codec_plan plan;

    (void)kind, (void)layout;
    for (unsigned i = 0; i < codec_n(c); i++) {
        body[i] = bodies[i] + 1 + i;
        overhang[i] = overhangs[i] + 3 + i;
    }
    fill_random(data + 5, codec_block_bytes(c), 5);
    codec_encode(c, data + 5, row_bytes, body, overhang);
    for (uint32_t p = pattern_next(c, 0); p != 0; p = pattern_next(c, p)) {
        assert_int_equal(codec_plan(c, p, 0, &plan), 0);
        codec_decode(&plan, (const uint8_t *const *)body,
                     (const uint8_t *const *)overhang, row_bytes, out + 7);
        assert_memory_equal(out + 7, data + 5, codec_block_bytes(c));
    }
}

static void test_any_alignment_will_do(void **state)
{
    (void)state;
    for_each_codec(check_odd_addresses);
}

static void check_plans(const struct codec *c, unsigned kind, unsigned layout)
{
    struct codec_plan plan, untouched;

    (void)kind, (void)layout;
    memset(&untouched, JUNK, sizeof(untouched));
    for (uint32_t have = 0; have < 1u << codec_n(c); have++) {
        uint32_t beyond = 0xffffffff << codec_n(c), want = have;

        plan = untouched;
        if ((unsigned)__builtin_popcount(have) < codec_k(c)) {
            assert_int_equal(codec_plan(c, have, 0, &plan), -EINVAL);
            assert_int_equal(codec_plan(c, have | beyond, 0, &plan), -EINVAL);
            assert_memory_equal(&plan, &untouched, sizeof(plan));
            continue;
        }
        while ((unsigned)__builtin_popcount(want) > codec_k(c))
            want &= ~(1u << (31 - __builtin_clz(want)));
        assert_int_equal(codec_plan(c, have, 0, &plan), 0);
        assert_int_equal(plan.reads, want);
        assert_int_equal(codec_plan(c, have | beyond, 0, &plan), 0);
        assert_int_equal(plan.reads, want);
    }
}

static void test_a_plan_uses_the_first_k_or_is_refused(void **state)
{
    (void)state;
    for_each_codec(check_plans);
}

/* ---- what disks carry ---- */

/* crc32c of body, then overhang, of each projection of frozen_columns columns of
 * random bytes. */
struct frozen {
    uint8_t kind;
    uint8_t layout;
    uint16_t block_bytes;
    uint16_t n_columns;
    uint32_t crcs[12];
};

/* clang-format off */
static const struct frozen frozen[] = {
    { 1, 0, 8192, 64,
      { 0xa0650420, 0xc17cff20, 0xf9e0ba89 } },
    { 1, 0, 8192, 1,
      { 0x8cf8bd7b, 0x48294eac, 0xc71918b0 } },
    { 1, 0, 8192, 5,
      { 0xaf3ebc53, 0xee4414ce, 0xbd50f551 } },
    { 1, 0, 4096, 32,
      { 0xcfcb2f0b, 0x14fd6386, 0x7fbfcfc2 } },
    { 1, 1, 8192, 32,
      { 0xcfcb2f0b, 0x14fd6386, 0x729486ca, 0xd1f36321, 0xdcd82a29, 0x09fb9fd4 } },
    { 1, 1, 8192, 1,
      { 0x8cf8bd7b, 0x48294eac, 0x8aa72e07, 0x2452e5e5, 0x69ecd352, 0xefc6cf47 } },
    { 1, 1, 8192, 5,
      { 0xaf3ebc53, 0xee4414ce, 0x56852b9d, 0x9608369c, 0x7ddde850, 0x693f9170 } },
    { 1, 1, 4096, 16,
      { 0x9b10d4fd, 0x794eba1b, 0x942d72bc, 0xbf78a876, 0x27a56a50, 0xbd4e8d81 } },
    { 1, 2, 8192, 64,
      { 0xa778d6d4, 0x24470d59, 0x91b0d1f5, 0x6f32ada2, 0x2d44cfa8, 0x72164a98,
        0x43e620d1, 0xe1d7cb9e, 0x6e7017d9, 0x465f7217, 0x5ed60661, 0x54fc8c98 } },
    { 1, 2, 8192, 1,
      { 0xed00b319, 0x195242b0, 0x1e99bb39, 0x6f30e885, 0x6203268d, 0x0e37756e,
        0xe891c465, 0x27d8de20, 0x64f67159, 0xd1795b7f, 0x522d0b9d, 0x10f93d58 } },
    { 1, 2, 8192, 5,
      { 0xd530e14e, 0xa64b48fd, 0xd1474b83, 0xc9c1c4ab, 0x16d192d3, 0xa510b1eb,
        0x3d24d362, 0x6d697335, 0xa84447e8, 0x7bc914e0, 0xc7587116, 0x3cb7b544 } },
    { 1, 2, 4096, 32,
      { 0x5502aafa, 0x64a87d8a, 0x941e36e3, 0x3ab5bc34, 0x449e624d, 0x571d5737,
        0x2daa1c3a, 0x2678e64e, 0xb7ac7f69, 0xf8a571db, 0x0e2b78c5, 0x3787ba13 } },
    { 2, 0, 8192, 256,
      { 0xdc13c732, 0xc7043163, 0xe454c17d } },
    { 2, 0, 8192, 1,
      { 0xed00b319, 0xb6226b43, 0x195242b0 } },
    { 2, 0, 8192, 5,
      { 0x6b26d7dc, 0x534e4baf, 0x7f48f98b } },
    { 2, 0, 4096, 128,
      { 0x43078923, 0xb94c2a57, 0x6e1914c8 } },
    { 2, 1, 8192, 128,
      { 0xc0b819c5, 0x4af5b05e, 0x412c6065, 0x9699c291, 0xaa9023fd, 0x28a1bd83 } },
    { 2, 1, 8192, 1,
      { 0xed00b319, 0x0e4d85b6, 0x1507a8ee, 0xc78b38ff, 0x3052fcbe, 0x6f30e885 } },
    { 2, 1, 8192, 5,
      { 0xa9bf2130, 0x974ce486, 0xffeb3935, 0x4bc8c487, 0x506dbe4b, 0x66ae6eb4 } },
    { 2, 1, 4096, 64,
      { 0x83455f7d, 0xa8b95aa6, 0x7b3bfde6, 0x931379a6, 0x976f117b, 0x3ac5aa78 } },
    { 2, 2, 8192, 64,
      { 0x01dec640, 0x2de147d5, 0xe3ac37bc, 0x204df7a7, 0x8b96c164, 0x88870f3a,
        0x6e7017d9, 0x0636778d, 0x8aaa6dc6, 0x697f350d, 0x8e75e35f, 0x7432bb37 } },
    { 2, 2, 8192, 1,
      { 0xed00b319, 0x6b348ca9, 0xab9f434a, 0xc3fccd75, 0x01143058, 0x10103084,
        0x64f67159, 0x7216030e, 0x4ae45a72, 0x1f5d8d2c, 0x39dce9f7, 0x27d8de20 } },
    { 2, 2, 8192, 5,
      { 0xd530e14e, 0x73932a35, 0xe1fa49cf, 0xf2677d8f, 0x1ee72ca0, 0xcfb63cb1,
        0xa84447e8, 0xeeacb5b9, 0x54d28eca, 0x0a116ab6, 0xcc23be6a, 0x6d697335 } },
    { 2, 2, 4096, 32,
      { 0xbfffdfee, 0x2c3c4272, 0xe79c7bb0, 0xcedcb7f6, 0x83c37a81, 0x11e5ac27,
        0xb7ac7f69, 0xf6b5b265, 0x06140590, 0x1aeb6e1d, 0x6f1486f5, 0xd6f74aad } },
    { 3, 0, 8192, 16,
      { 0x0c003219, 0x286f00fa, 0xbc96736a } },
    { 3, 0, 8192, 1,
      { 0x340112ec, 0x865c5994, 0x0a2ffae8 } },
    { 3, 0, 8192, 5,
      { 0xf51fe238, 0xf1206497, 0x894056bd } },
    { 3, 0, 4096, 8,
      { 0xe7e1256f, 0x8969cc55, 0xca016a75 } },
    { 3, 1, 8192, 8,
      { 0xe7e1256f, 0x8969cc55, 0xf731283e, 0xd60652a3, 0xeb3610e8, 0x9ba51183 } },
    { 3, 1, 8192, 1,
      { 0x340112ec, 0x865c5994, 0xd41b7d15, 0x2a2c44ac, 0xf418c351, 0xe25aacbb } },
    { 3, 1, 8192, 5,
      { 0xf51fe238, 0xf1206497, 0xfa9f17a5, 0x4fdaae12, 0x3c05ef0a, 0x45b0a109 } },
    { 3, 1, 4096, 4,
      { 0xbad05380, 0xede9781a, 0xf355d837, 0xebca49ef, 0xa108643e, 0x2f34a63f } },
    { 3, 2, 8192, 4,
      { 0xbad05380, 0xede9781a, 0xf355d837, 0xebca49ef, 0x1c16ef4b, 0x9b7aa609,
        0x6cd5880d, 0xeb11da58, 0xa1a07f29, 0xbee8fb5e, 0x43815e4e, 0x3e134026 } },
    { 3, 2, 8192, 1,
      { 0x340112ec, 0x865c5994, 0xd41b7d15, 0x2a2c44ac, 0x4b974f3d, 0xc76e1177,
        0x7728afa7, 0x06664b9f, 0x09af7923, 0x22d52681, 0xf3613d84, 0x69017aa2 } },
    { 3, 2, 8192, 3,
      { 0xbda84c2d, 0x1e965cbd, 0x8e49eaaa, 0xe511c21c, 0x62bc99c8, 0xb4dbb015,
        0x518d5944, 0xcd2b6e40, 0xb89c1bf9, 0x3d7e58cc, 0xc7d1f37c, 0x24ee3c35 } },
    { 3, 2, 4096, 2,
      { 0x489bcf58, 0x4856bfa3, 0x8b7714fd, 0x1df29cff, 0x0d3e93c6, 0x362b3665,
        0xe1f46403, 0xc75c2d09, 0xbb09f990, 0x0d12bb19, 0x0abaa2bd, 0x034c2685 } },
    { 4, 0, 8192, 64,
      { 0xa0650420, 0xc17cff20, 0xa7e9cd2d } },
    { 4, 0, 8192, 1,
      { 0x8cf8bd7b, 0x48294eac, 0xa707bbfb } },
    { 4, 0, 8192, 5,
      { 0xaf3ebc53, 0xee4414ce, 0x764bd837 } },
    { 4, 0, 4096, 32,
      { 0xcfcb2f0b, 0x14fd6386, 0x8b68e391 } },
    { 4, 1, 8192, 32,
      { 0xcfcb2f0b, 0x14fd6386, 0x729486ca, 0xd1f36321, 0x3a7dee7d, 0x9b258276 } },
    { 4, 1, 8192, 1,
      { 0x8cf8bd7b, 0x48294eac, 0x8aa72e07, 0x2452e5e5, 0xdb7d6adb, 0x76298320 } },
    { 4, 1, 8192, 5,
      { 0xaf3ebc53, 0xee4414ce, 0x56852b9d, 0x9608369c, 0xe9707b7f, 0x7e06b995 } },
    { 4, 1, 4096, 16,
      { 0x9b10d4fd, 0x794eba1b, 0x942d72bc, 0xbf78a876, 0xee884335, 0x7a6f9042 } },
    { 4, 2, 8192, 16,
      { 0x9b10d4fd, 0x794eba1b, 0x942d72bc, 0xbf78a876, 0x7b6f0b52, 0xc3e8177c,
        0x4f82c3db, 0xcd8be6eb, 0x506dd4ee, 0xad6215ca, 0x8cef3536, 0x6a604eb1 } },
    { 4, 2, 8192, 1,
      { 0x8cf8bd7b, 0x48294eac, 0x8aa72e07, 0x2452e5e5, 0x34c6e76b, 0xb50bb011,
        0x62b416c0, 0xf9e703b5, 0xc9f0eb60, 0x2b5874b1, 0x40347234, 0x9b7c3c33 } },
    { 4, 2, 8192, 5,
      { 0xaf3ebc53, 0xee4414ce, 0x56852b9d, 0x9608369c, 0x6212c9f2, 0x301d6262,
        0x4d5be6ad, 0xacf79238, 0x9318318d, 0x5a51d519, 0x528f8a76, 0x8fef0c70 } },
    { 4, 2, 4096, 8,
      { 0xd78f4e4e, 0x0d1bce87, 0x7dbfe92f, 0xa24222ff, 0x8d09042e, 0xf49b2999,
        0xc740d2a9, 0xe41bc99e, 0xcc05ed83, 0x6ddb1573, 0xb2b341fd, 0x55718ebb } },
};
/* clang-format on */

static void frozen_crcs(const struct codec *c, size_t n_columns, uint32_t *crcs)
{
    struct block *b = block_new(c, n_columns, true);

    block_encode(b);
    for (unsigned i = 0; i < codec_n(c); i++) {
        crcs[i] = codec_crc32c(0, b->bodies[i], b->row_bytes);
        crcs[i] = codec_crc32c(crcs[i], b->overhangs[i], b->overhang[i].len);
    }
    block_free(b);
}

/* Never change a line of that table: users' disks carry those bytes. New kinds add
 * lines. */
static void test_projections_are_those_on_the_disks(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(frozen) / sizeof(frozen[0]); i++) {
        const struct frozen *f = &frozen[i];
        const struct codec *c = codec_get(f->kind, f->layout, f->block_bytes);
        uint32_t crcs[CODEC_N_MAX] = { 0 };

        assert_non_null(c);
        frozen_crcs(c, f->n_columns, crcs);
        assert_memory_equal(crcs, f->crcs, codec_n(c) * sizeof(crcs[0]));
    }
}

static void print_frozen(const struct codec *c, unsigned kind, unsigned layout)
{
    const size_t columns[] = { columns_max(c), 1, columns_max(c) < 5 ? 3 : 5 };
    uint32_t crcs[CODEC_N_MAX];

    for (unsigned i = 0; i < sizeof(columns) / sizeof(columns[0]); i++) {
        if (i > 0 && codec_block_bytes(c) != 8192)
            break;
        frozen_crcs(c, columns[i], crcs);
        printf("    { %u, %u, %zu, %zu, { ", kind, layout, codec_block_bytes(c),
               columns[i]);
        for (unsigned x = 0; x < codec_n(c); x++)
            printf("0x%08x%s", crcs[x], x + 1 < codec_n(c) ? ", " : " } },\n");
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_get_from_many_threads),
        cmocka_unit_test(test_layouts_are_those_of_the_papers),
        cmocka_unit_test(test_kinds_have_numbers_and_names),
        cmocka_unit_test(test_get_refuses_what_it_does_not_know),
        cmocka_unit_test(test_geometry_is_the_documented_one),
        cmocka_unit_test(test_row_bytes_are_just_enough),
        cmocka_unit_test(test_encode_equals_the_reference),
        cmocka_unit_test(test_a_single_bit_goes_where_the_formula_says),
        cmocka_unit_test(test_encode_writes_what_is_wanted_only),
        cmocka_unit_test(test_any_k_projections_give_the_block_back),
        cmocka_unit_test(test_a_flipped_bit_of_any_bin_spoils_some_read),
        cmocka_unit_test(test_swapped_projections_give_another_block),
        cmocka_unit_test(test_any_alignment_will_do),
        cmocka_unit_test(test_a_plan_uses_the_first_k_or_is_refused),
        cmocka_unit_test(test_projections_are_those_on_the_disks),
    };

    if (argc == 2 && strcmp(argv[1], "--print-frozen") == 0) {
        for_each_codec(print_frozen);
        return 0;
    }
    return cmocka_run_group_tests_name("codec", tests, NULL, NULL);
}
