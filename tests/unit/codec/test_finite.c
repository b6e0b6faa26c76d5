/*
 * test_finite.c - the code with bins modulo 17 is the one of docs/CODEC.md, for all k and
 * n.
 *
 * Goal:   projections follow the definition; any k of them give the block back; the proof
 *         of that in docs/CODEC.md has no gap; an update gives the projections that
 *         encoding the new block would give.
 * Method: comparison with the definition, pixel by pixel, with every instruction set of
 *         this machine; all patterns of the layouts and of small k, one in seven of the
 *         others; all minors, as polynomials.
 */
#include <stdio.h>
#include <stdlib.h>

#include "codec/codec.h"
#include "tests/unit/unit.h"

enum {
    N_COLUMNS = 17,
    N_PIXELS = 16,
    ROW_UNIT = 256,
    ROW_MAX = 8192,
    JUNK = 0xA7,
};

static const int slopes[CODEC_M_MAX] = { 0, 1, -1, 2 };

/* ---- the definition ---- */

/* Makes projection i of k rows: bin t is the sum of the pixels f(column, row) with column
 * - row * p = t modulo 17; bin 16 is added to all others, which are kept. */
static void ref_encode(unsigned k, unsigned i, const uint8_t *data, size_t row_bytes,
                       uint8_t *body)
{
    static uint8_t bins[N_COLUMNS][ROW_MAX / N_PIXELS];
    size_t pixel_bytes = row_bytes / N_PIXELS;

    if (i < k) {
        memcpy(body, data + i * row_bytes, row_bytes);
        return;
    }
    memset(bins, 0, sizeof(bins));
    for (int row = 0; row < (int)k; row++) {
        for (int column = 0; column < N_PIXELS; column++) {
            int t = column - row * slopes[i - k];

            while (t < 0)
                t += N_COLUMNS;
            for (size_t x = 0; x < pixel_bytes; x++)
                bins[t % N_COLUMNS][x] ^=
                    data[(size_t)row * row_bytes + (size_t)column * pixel_bytes + x];
        }
    }
    for (size_t t = 0; t < N_PIXELS; t++) {
        for (size_t x = 0; x < pixel_bytes; x++)
            body[t * pixel_bytes + x] = bins[t][x] ^ bins[N_PIXELS][x];
    }
}

/* ---- helpers ---- */

static void fill_random(uint8_t *buf, size_t len, uint64_t seed)
{
    for (size_t i = 0; i < len; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        buf[i] = (uint8_t)(seed >> 56);
    }
}

/* Runs fn for every instruction set, k, n and block size. */
static void for_each_codec(void (*fn)(const struct codec *c))
{
    for (unsigned isa = 0; isa < CODEC_ISA_COUNT; isa++) {
        if (!codec_isa_usable(isa))
            continue;
        for (unsigned k = 1; k <= CODEC_K_MAX; k++) {
            for (unsigned m = 1; m <= CODEC_M_MAX; m++) {
                for (size_t bytes = 4096; bytes <= 8192; bytes *= 2) {
                    const struct codec *c =
                        codec_open_isa(CODEC_MOJETTE_FINITE, k, k + m, bytes, isa);

                    assert_non_null(c);
                    fn(c);
                }
            }
        }
    }
}

static size_t full_row(const struct codec *c)
{
    return codec_row_bytes(c, codec_block_bytes(c));
}

struct block {
    uint8_t data[CODEC_DATA_MAX];
    uint8_t bodies[CODEC_N_MAX][ROW_MAX];
    uint8_t *body[CODEC_N_MAX];
};

/* Returns a random block, encoded by the reference. */
static const struct block *block_of(const struct codec *c, size_t row_bytes)
{
    static struct block b;

    fill_random(b.data, sizeof(b.data), row_bytes);
    for (unsigned i = 0; i < codec_n(c); i++) {
        ref_encode(codec_k(c), i, b.data, row_bytes, b.bodies[i]);
        b.body[i] = b.bodies[i];
    }
    return &b;
}

/* ---- geometry and encode ---- */

static void check_geometry(const struct codec *c)
{
    size_t blocks_rows = codec_block_bytes(c) / codec_k(c);

    assert_true(codec_is_systematic(c));
    assert_int_equal(codec_row_unit(c), ROW_UNIT);
    assert_int_equal(full_row(c), (blocks_rows + ROW_UNIT - 1) / ROW_UNIT * ROW_UNIT);
    for (unsigned i = 0; i < codec_n(c); i++)
        assert_int_equal(codec_overhang_bytes(c, i), 0);
}

static void test_projections_are_as_long_as_rows(void **state)
{
    (void)state;
    for_each_codec(check_geometry);
}

static void check_encode(const struct codec *c)
{
    static uint8_t made[CODEC_N_MAX][ROW_MAX + 1]; /* projections, each with a canary */
    uint8_t *body[CODEC_N_MAX];

    for (size_t row_bytes = full_row(c); row_bytes != 0;
         row_bytes = row_bytes / 2 / ROW_UNIT * ROW_UNIT) {
        const struct block *b = block_of(c, row_bytes);

        memset(made, JUNK, sizeof(made));
        for (unsigned i = 0; i < codec_n(c); i++)
            body[i] = made[i];
        codec_encode(c, b->data, row_bytes, body, NULL);
        for (unsigned i = 0; i < codec_n(c); i++)
            assert_memory_equal(made[i], b->body[i], row_bytes);
        memset(made, JUNK, sizeof(made)); /* each projection alone */
        for (unsigned i = 0; i < codec_n(c); i++) {
            memset(body, 0, sizeof(body));
            body[i] = made[i];
            codec_encode(c, b->data, row_bytes, body, NULL);
            assert_memory_equal(made[i], b->body[i], row_bytes);
            assert_int_equal(made[i][row_bytes], JUNK);
        }
    }
}

static void test_encode_equals_the_definition(void **state)
{
    (void)state;
    for_each_codec(check_encode);
}

/* ---- decode ---- */

static void check_pattern(const struct codec *c, const struct block *b, size_t row_bytes,
                          uint32_t have)
{
    static uint8_t out[CODEC_DATA_MAX], junk[ROW_MAX];
    const uint8_t *body[CODEC_N_MAX];
    struct codec_plan plan;

    memset(out, JUNK, sizeof(out));
    memset(junk, JUNK, sizeof(junk));
    for (unsigned i = 0; i < codec_n(c); i++)
        body[i] = have >> i & 1 ? b->body[i] : junk;
    assert_int_equal(codec_plan(c, have, 0, &plan), 0);
    assert_int_equal(plan.reads, have);
    codec_decode(&plan, body, NULL, row_bytes, out);
    assert_memory_equal(out, b->data, codec_k(c) * row_bytes);
}

static void check_decode(const struct codec *c)
{
    unsigned k = codec_k(c), n = codec_n(c);
    size_t sizes[] = { full_row(c), ROW_UNIT };

    for (unsigned s = 0; s < 2; s++) {
        const struct block *b = block_of(c, sizes[s]);
        uint32_t one_in = k > 8 ? 7 : 1;

        for (uint32_t have = 0; have < 1u << n; have++) {
            if ((unsigned)__builtin_popcount(have) == k && have % one_in == 0)
                check_pattern(c, b, sizes[s], have);
        }
    }
}

static void test_any_k_projections_give_the_block_back(void **state)
{
    (void)state;
    for_each_codec(check_decode);
}

/* ---- update ---- */

static void check_update(const struct codec *c)
{
    static uint8_t changed[CODEC_DATA_MAX], delta[ROW_MAX], made[CODEC_N_MAX][ROW_MAX];
    static uint8_t want[ROW_MAX];
    size_t row_bytes = full_row(c);
    const struct block *b = block_of(c, row_bytes);
    uint8_t *body[CODEC_N_MAX];

    for (unsigned row = 0; row < codec_k(c); row++) {
        size_t from = row * 53 % row_bytes;
        size_t len = row % 3 == 0 ? row_bytes - from : 97 % (row_bytes - from);

        fill_random(delta, len, row + 1);
        memcpy(changed, b->data, sizeof(changed));
        for (size_t x = 0; x < len; x++)
            changed[row * row_bytes + from + x] ^= delta[x];
        for (unsigned i = 0; i < codec_n(c); i++) {
            memcpy(made[i], b->body[i], row_bytes);
            body[i] = made[i];
        }
        codec_update(c, row, from, len, delta, row_bytes, body, NULL);
        for (unsigned i = 0; i < codec_n(c); i++) {
            ref_encode(codec_k(c), i, changed, row_bytes, want);
            assert_memory_equal(made[i], want, row_bytes);
        }
    }
}

static void test_update_equals_encoding_again(void **state)
{
    (void)state;
    for_each_codec(check_update);
}

/* ---- the proof ---- */

/* Elements of GF(2)[z] / (1 + z + ... + z^16): bit x is z^x; an element and its
 * complement are equal. */
static const uint32_t all = (1u << N_COLUMNS) - 1;

static uint32_t times(uint32_t a, uint32_t b)
{
    uint32_t product = 0;

    for (unsigned s = 0; s < N_COLUMNS; s++)
        product ^= b >> s & 1 ? (a << s | a >> (N_COLUMNS - s)) & all : 0;
    return product;
}

/* Returns whether a has no factor in common with 1 + z + ... + z^16 (Euclid's
 * algorithm). */
static bool is_unit(uint32_t a)
{
    uint32_t b = all;

    while (a != 0) {
        while (b != 0 && __builtin_clz(b) <= __builtin_clz(a))
            b ^= a << (__builtin_clz(a) - __builtin_clz(b));
        uint32_t rest = b;
        b = a;
        a = rest;
    }
    return b == 1;
}

/* Returns the determinant of z^(-row * slope) over these rows and slopes, expanded by the
 * first row. */
static uint32_t minor(const int p[CODEC_M_MAX], uint32_t rows, uint32_t of_slopes)
{
    uint32_t sum = 0;
    int row;

    if (rows == 0)
        return 1;
    row = __builtin_ctz(rows);
    for (unsigned i = 0; i < CODEC_M_MAX; i++) {
        int power = -row * p[i] + 2 * N_COLUMNS;

        if (of_slopes >> i & 1)
            sum ^= times(1u << power % N_COLUMNS,
                         minor(p, rows & (rows - 1), of_slopes & ~(1u << i)));
    }
    return sum;
}

static void test_every_minor_is_a_unit(void **state)
{
    unsigned n_minors = 0;

    (void)state;
    assert_true(is_unit(1) && is_unit(3) && is_unit(7) && !is_unit(all));
    assert_false(is_unit(0x139)); /* 1 + z^3 + z^4 + z^5 + z^8, a factor */
    assert_false(is_unit(0x1d7)); /* 1 + z + z^2 + z^4 + z^6 + z^7 + z^8, the other one */
    assert_int_equal(times(0x139, 0x1d7), all);
    for (uint32_t rows = 1; rows < 1u << CODEC_K_MAX; rows++) {
        for (uint32_t of = 1; of < 1u << CODEC_M_MAX; of++) {
            if (__builtin_popcount(rows) != __builtin_popcount(of))
                continue;
            assert_true(is_unit(minor(slopes, rows, of)));
            n_minors++;
        }
    }
    assert_int_equal(n_minors, 16 * 4 + 120 * 6 + 560 * 4 + 1820);
}

/* The check above can fail: with these slopes 208 sets of four of 16 rows would be
 * lost. */
static void test_not_any_slopes_would_do(void **state)
{
    static const int others[CODEC_M_MAX] = { -2, -1, 1, 2 };
    unsigned n_bad = 0;

    (void)state;
    for (uint32_t rows = 1; rows < 1u << CODEC_K_MAX; rows++) {
        if (__builtin_popcount(rows) == CODEC_M_MAX)
            n_bad += !is_unit(minor(others, rows, (1u << CODEC_M_MAX) - 1));
    }
    assert_int_equal(n_bad, 208);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_projections_are_as_long_as_rows),
        cmocka_unit_test(test_encode_equals_the_definition),
        cmocka_unit_test(test_any_k_projections_give_the_block_back),
        cmocka_unit_test(test_update_equals_encoding_again),
        cmocka_unit_test(test_every_minor_is_a_unit),
        cmocka_unit_test(test_not_any_slopes_would_do),
    };

    return cmocka_run_group_tests_name("codec.finite", tests, NULL, NULL);
}
