/*
 * test_codec.c - the table of codecs: kinds, layouts, sizes, instruction sets, and the
 * geometry of each.
 */
#include <errno.h>

#include "harness.h"
#include "mojette_ref.h"

/* ---- the table ---- */

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

static void test_instruction_sets_have_names(void **state)
{
    (void)state;
    assert_string_equal(codec_isa_name(CODEC_ISA_REF), "ref");
    assert_null(codec_isa_name(CODEC_ISA_COUNT));
    assert_true(codec_isa_usable(CODEC_ISA_REF));
    assert_false(codec_isa_usable(CODEC_ISA_COUNT));
    assert_true(codec_isa_usable(codec_isa_default()));
}

static void check_same(const struct codec *c, const struct which *which)
{
    check(codec_open_isa(which->kind, codec_k(c), codec_n(c), codec_block_bytes(c),
                         which->isa) == c);
    if (which->isa != codec_isa_default())
        return;
    check(codec_open(which->kind, codec_k(c), codec_n(c), codec_block_bytes(c)) == c);
    if (which->layout < N_LAYOUTS)
        check(codec_get(which->kind, which->layout, codec_block_bytes(c)) == c);
}

static void test_the_same_arguments_give_the_same_codec(void **state)
{
    (void)state;
    for_each_codec(check_same);
    for_some_k_and_n(check_same);
}

static void check_refused(unsigned kind, unsigned k, unsigned n, size_t block_bytes,
                          unsigned isa)
{
    errno = 0;
    assert_null(codec_open_isa(kind, k, n, block_bytes, isa));
    assert_int_equal(errno, EINVAL);
}

static void test_open_refuses_what_it_does_not_know(void **state)
{
    static const size_t bad_sizes[] = { 0, 1, 4095, 4097, 8191, 16384, SIZE_MAX };

    (void)state;
    check_refused(0, 4, 6, 8192, CODEC_ISA_REF);
    check_refused(99, 4, 6, 8192, CODEC_ISA_REF);
    check_refused(~0u, 4, 6, 8192, CODEC_ISA_REF);
    for (unsigned i = 0; codec_kind_at(i) != 0; i++) {
        unsigned kind = codec_kind_at(i);

        for (size_t s = 0; s < sizeof(bad_sizes) / sizeof(bad_sizes[0]); s++)
            check_refused(kind, 4, 6, bad_sizes[s], CODEC_ISA_REF);
        for (unsigned k = 0; k < 40; k++) {
            for (unsigned n = 0; n < 40; n++) {
                if (k < 1 || k > CODEC_K_MAX || n <= k || n - k > CODEC_M_MAX)
                    check_refused(kind, k, n, 8192, CODEC_ISA_REF);
            }
        }
        check_refused(kind, 4, ~0u, 8192, CODEC_ISA_REF);
        check_refused(kind, ~0u, 3, 8192, CODEC_ISA_REF);
        check_refused(kind, ~0u, ~0u, 8192, CODEC_ISA_REF);
        check_refused(kind, 4, 6, 8192, CODEC_ISA_COUNT);
        check_refused(kind, 4, 6, 8192, ~0u);
        assert_null(codec_get(kind, N_LAYOUTS, 8192));
        assert_null(codec_get(kind, ~0u, 8192));
    }
    assert_null(codec_get(0, 0, 8192));
    assert_null(codec_get(CODEC_MOJETTE, 0, 8191));
}

/* ---- geometry ---- */

/* Bins beyond the row length, as listed in docs/CODEC.md; other kinds have none. */
static const uint8_t overhang_bins[3][N_LAYOUTS][12] = {
    [CODEC_MOJETTE] = { { 0, 0, 0 },
                        { 0, 0, 0, 0, 0, 3 },
                        { 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 7, 14 } },
    [CODEC_MOJETTE_NONSYSTEMATIC] = { { 0, 0, 0 },
                                      { 0, 2, 2, 0, 1, 0 },
                                      { 0, 5, 8, 9, 8, 4, 0, 4, 6, 6, 4, 0 } },
};

static size_t unit_of(const struct which *which)
{
    switch (which->kind) {
    case CODEC_MOJETTE:
        return which->layout < 2 ? 64 : 16;
    case CODEC_MOJETTE_NONSYSTEMATIC:
        return 16;
    case CODEC_MOJETTE_FINITE:
        return 256;
    default:
        return 64;
    }
}

static void check_geometry(const struct codec *c, const struct which *which)
{
    size_t unit = unit_of(which);

    check(codec_k(c) == codec_layout(which->layout)->k);
    check(codec_n(c) == codec_layout(which->layout)->n);
    check(codec_is_systematic(c) == (which->kind != CODEC_MOJETTE_NONSYSTEMATIC));
    check(codec_row_unit(c) == unit);
    check(codec_row_bytes(c, codec_block_bytes(c)) == codec_block_bytes(c) / codec_k(c));
    for (unsigned i = 0; i < codec_n(c); i++) {
        bool is_slanted = which->kind <= CODEC_MOJETTE_NONSYSTEMATIC;
        size_t bins = is_slanted ? overhang_bins[which->kind][which->layout][i] : 0;

        check(codec_overhang_bytes(c, i) == bins * unit);
        if (is_slanted)
            check((int)bins == ref_projection(which->kind, which->layout, i).n_overhang);
    }
}

static void test_geometry_is_the_documented_one(void **state)
{
    (void)state;
    for_each_codec(check_geometry);
}

static void check_row_bytes(const struct codec *c, const struct which *which)
{
    size_t unit = codec_row_unit(c), k = codec_k(c);

    (void)which;
    check(unit >= 16 && unit <= 256 && (unit & (unit - 1)) == 0);
    check(codec_row_bytes(c, 0) == 0);
    check(codec_row_bytes(c, codec_block_bytes(c)) * k <= CODEC_DATA_MAX);
    for (size_t user = 1; user <= codec_block_bytes(c); user++) {
        size_t row = codec_row_bytes(c, user);

        check(row % unit == 0);
        check(row * k >= user && (row - unit) * k < user);
    }
    for (unsigned i = 0; i < codec_n(c); i++)
        check(codec_overhang_bytes(c, i) <= CODEC_OVERHANG_MAX);
}

static void test_row_bytes_are_just_enough(void **state)
{
    (void)state;
    for_each_code(check_row_bytes);
    for_some_k_and_n(check_row_bytes);
}

/* ---- tools of the tests ---- */

static unsigned n_patterns(const struct codec *c)
{
    unsigned n = 0;

    for (uint32_t p = pattern_next(c, 0); p != 0; p = pattern_next(c, p)) {
        assert_int_equal(__builtin_popcount(p), codec_k(c));
        n++;
    }
    return n;
}

static void test_all_patterns_are_gone_through(void **state)
{
    (void)state;
    assert_int_equal(n_patterns(codec_get(CODEC_MOJETTE, 0, 8192)), 3);
    assert_int_equal(n_patterns(codec_get(CODEC_MOJETTE, 1, 8192)), 15);
    assert_int_equal(n_patterns(codec_get(CODEC_MOJETTE, 2, 8192)), 495);
    assert_int_equal(n_patterns(codec_open(CODEC_RS, 16, 20, 8192)), 4845);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts_are_those_of_the_papers),
        cmocka_unit_test(test_kinds_have_numbers_and_names),
        cmocka_unit_test(test_instruction_sets_have_names),
        cmocka_unit_test(test_the_same_arguments_give_the_same_codec),
        cmocka_unit_test(test_open_refuses_what_it_does_not_know),
        cmocka_unit_test(test_geometry_is_the_documented_one),
        cmocka_unit_test(test_row_bytes_are_just_enough),
        cmocka_unit_test(test_all_patterns_are_gone_through),
    };

    return cmocka_run_group_tests_name("codec", tests, NULL, NULL);
}
