/*
 * test_rs.c - the Reed-Solomon codec is the one of docs/CODEC.md, for all k and n.
 *
 * Method: comparison with rs_ref.c, which multiplies polynomials bit by bit, with every
 * loop that isa-l has for this machine and with the one in plain C.
 */
#include <stdlib.h>

#include "codec/codec.h"
#include "rs_ref.h"
#include "tests/unit/unit.h"

enum { ROW_BYTES = 192 };

/* Fills data so that every byte value meets every coefficient in use. */
static void fill(uint8_t *data, size_t len)
{
    for (size_t x = 0; x < len; x++)
        data[x] = (uint8_t)(x * 151 + (x >> 8) * 77 + 1);
}

static void check(const struct codec *c)
{
    static uint8_t data[CODEC_K_MAX * ROW_BYTES], out[CODEC_K_MAX * ROW_BYTES];
    static uint8_t bodies[CODEC_N_MAX][ROW_BYTES], want[ROW_BYTES];
    uint8_t *body[CODEC_N_MAX];
    unsigned k = codec_k(c), n = codec_n(c);
    struct codec_plan plan;

    fill(data, sizeof(data));
    for (unsigned i = 0; i < n; i++)
        body[i] = bodies[i];
    codec_encode(c, data, ROW_BYTES, body, NULL);
    for (unsigned i = 0; i < n; i++) {
        rs_ref_encode(k, i, data, ROW_BYTES, want);
        assert_memory_equal(bodies[i], want, ROW_BYTES);
        assert_int_equal(codec_overhang_bytes(c, i), 0);
    }
    for (uint32_t lost = 0; lost < 1u << n; lost++) {
        if ((unsigned)__builtin_popcount(lost) != n - k)
            continue;
        if (codec_k(c) > 8 && lost % 7 != 0)
            continue; /* one in seven patterns of large k */
        assert_int_equal(codec_plan(c, ~lost, 0, &plan), 0);
        memset(out, 0xA7, sizeof(out));
        codec_decode(&plan, (const uint8_t *const *)body, NULL, ROW_BYTES, out);
        assert_memory_equal(out, data, k * ROW_BYTES);
    }
}

static void test_every_k_and_n_equals_the_definition(void **state)
{
    (void)state;
    for (unsigned isa = 0; isa < CODEC_ISA_COUNT; isa++) {
        if (!codec_isa_usable(isa))
            continue;
        for (unsigned k = 1; k <= CODEC_K_MAX; k++) {
            for (unsigned m = 1; m <= CODEC_M_MAX; m++) {
                const struct codec *c = codec_open_isa(CODEC_RS, k, k + m, 8192, isa);

                assert_non_null(c);
                assert_true(codec_row_unit(c) == 64 && codec_is_systematic(c));
                check(c);
            }
        }
    }
}

/* Some products that can be checked by hand, and the meaning of 1 / x. */
static void test_the_field_is_the_one_of_0x11d(void **state)
{
    (void)state;
    assert_int_equal(rs_ref_multiply(0x80, 2), 0x1d);
    assert_int_equal(rs_ref_multiply(3, 3), 5);
    assert_int_equal(rs_ref_coefficient(2, 2, 0), 0x8e); /* 1 / 2 */
    assert_int_equal(rs_ref_multiply(0x8e, 2), 1);
    assert_int_equal(rs_ref_coefficient(2, 2, 1), 0xf4); /* 1 / 3 */
    assert_int_equal(rs_ref_multiply(0xf4, 3), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_field_is_the_one_of_0x11d),
        cmocka_unit_test(test_every_k_and_n_equals_the_definition),
    };

    return cmocka_run_group_tests_name("codec.rs", tests, NULL, NULL);
}
