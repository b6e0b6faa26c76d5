/*
 * test_bench.c - the benchmark of the codec measures what it reports, and detects wrong
 * codes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/bench/bench_codec.h"
#include "tests/unit/unit.h"

static const struct bench_case small = { .k = 4,
                                         .n = 6,
                                         .block_bytes = 4096,
                                         .run_blocks = 1,
                                         .decode = true,
                                         .n_rounds = 3 };

static void every_code_shows_that_it_decodes(void **state)
{
    static const struct bench_case cases[] = {
        { .k = 2,
          .n = 3,
          .block_bytes = 8192,
          .run_blocks = 1,
          .decode = true,
          .n_rounds = 1 },
        { .k = 8,
          .n = 12,
          .block_bytes = 4096,
          .run_blocks = 1,
          .decode = true,
          .n_rounds = 1 },
        { .k = 4,
          .n = 6,
          .block_bytes = 8192,
          .run_blocks = 8,
          .l2 = true,
          .decode = true,
          .n_rounds = 1 },
        { .k = 3,
          .n = 5,
          .block_bytes = 4096,
          .run_blocks = 2,
          .decode = true,
          .n_rounds = 1 },
        { .k = 16, .n = 20, .block_bytes = 8192, .run_blocks = 1, .n_rounds = 1 },
    };
    struct bench_results *results = calloc(1, sizeof(*results));
    struct bench_codes codes = { 0 };
    struct err err = { 0 };

    (void)state;
    assert_non_null(results);
    bench_add_ours(&codes, true);
    bench_add_rivals(&codes, true);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int rc = bench_run(&codes, &cases[i], NULL, NULL, results, &err);

        if (rc != 0)
            fail_msg("%s", err.text);
        bench_results_free(results);
    }
    free(results);
    bench_codes_free(&codes);
}

static void a_figure_for_every_operation(void **state)
{
    struct bench_results *results = calloc(1, sizeof(*results));
    struct bench_codes codes = { 0 };
    json_t *json;

    (void)state;
    assert_non_null(results);
    bench_add_ours(&codes, false);
    bench_keep(&codes, "mojette");
    assert_true(codes.n_codes >= 2);
    assert_int_equal(bench_run(&codes, &small, NULL, NULL, results, NULL), 0);
    for (unsigned lost = 1; lost <= 2; lost++) {
        const struct bench_figure *f = &results->figure[0][BENCH_DECODE + lost];

        assert_int_equal(f->n_patterns, lost == 1 ? 4 : 6);
        assert_true(f->cycles > 0 && f->worst >= f->cycles && f->gbs > 0);
    }
    assert_int_equal(results->figure[0][BENCH_DECODE + 3].n_patterns, 0);
    assert_true(bench_ratio(results, 0, 0, BENCH_ENCODE) == 1);
    json = bench_json(&codes, &small, results);
    assert_int_equal(json_integer_value(json_object_get(json, "n")), 6);
    assert_int_equal(json_array_size(json_object_get(json, "figures")),
                     8 * codes.n_codes);
    json_decref(json);
    bench_results_free(results);
    free(results);
    bench_codes_free(&codes);
}

/* Decodes like a code that encodes correctly and does not restore lost projections. */
static void forget(const void *state, const struct bench_call *call)
{
    (void)state;
    (void)call;
}

static void a_code_that_decodes_wrongly_is_found(void **state)
{
    struct bench_results *results = calloc(1, sizeof(*results));
    struct bench_codes codes = { 0 };
    struct bench_code_ops wrong;
    struct err err = { 0 };

    (void)state;
    assert_non_null(results);
    bench_add_ours(&codes, false);
    wrong = *codes.code[0].ops;
    wrong.decode = forget;
    codes.code[0].ops = &wrong;
    assert_int_equal(bench_run(&codes, &small, NULL, NULL, results, &err), -EIO);
    assert_non_null(strstr(err.text, "wrong"));
    free(results);
    bench_codes_free(&codes);
}

static void a_code_that_there_is_not_is_refused(void **state)
{
    struct bench_case none = small;
    struct bench_results *results = calloc(1, sizeof(*results));
    struct bench_codes codes = { 0 };

    (void)state;
    assert_non_null(results);
    bench_add_ours(&codes, false);
    none.n = 11;
    assert_int_equal(bench_run(&codes, &none, NULL, NULL, results, NULL), -EINVAL);
    none = small;
    none.k = 1;
    assert_int_equal(bench_run(&codes, &none, NULL, NULL, results, NULL), -EINVAL);
    free(results);
    bench_codes_free(&codes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_shows_that_it_decodes),
        cmocka_unit_test(a_figure_for_every_operation),
        cmocka_unit_test(a_code_that_decodes_wrongly_is_found),
        cmocka_unit_test(a_code_that_there_is_not_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
