/*
 * test_bench_fs.c - the statistics, contents and reports of the benchmark of file
 * systems.
 */
#include <stdio.h>
#include <stdlib.h>

#include "deploy/bench/bench_fs.h"
#include "tests/unit/unit.h"

static void medians_and_spreads(void **state)
{
    double odd[] = { 5, 1, 3 }, even[] = { 4, 1, 2, 3 }, one[] = { 7 };

    (void)state;
    assert_true(fsb_median(odd, 3) == 3);
    assert_true(fsb_median(even, 4) == 2.5);
    assert_true(fsb_median(one, 1) == 7);
    assert_true(fsb_median(one, 0) == 0);
    assert_true(fsb_spread(odd, 3) == 4.0 / 3);
    assert_true(fsb_spread(one, 1) == 0);
}

static void percentiles_are_3_percent_right(void **state)
{
    struct fsb_hist *h = calloc(1, sizeof(*h)), *more = calloc(1, sizeof(*more));

    (void)state;
    assert_int_equal(fsb_hist_share(h, 0.5), 0);
    for (uint64_t us = 1; us <= 1000; us++)
        fsb_hist_add(us % 2 == 0 ? h : more, us * 1000);
    fsb_hist_merge(h, more);
    assert_int_equal(h->n, 1000);
    assert_in_range(fsb_hist_share(h, 0.5), 500000, 516000);
    assert_in_range(fsb_hist_share(h, 0.99), 990000, 1000000);
    assert_int_equal(fsb_hist_share(h, 1), 1000000);
    fsb_hist_add(h, UINT64_MAX); /* longer than any bucket covers */
    assert_true(fsb_hist_share(h, 1) > 1000000);
    memset(more, 0, sizeof(*more));
    fsb_hist_add(more, 0);
    fsb_hist_add(more, 31);
    assert_int_equal(fsb_hist_share(more, 0.5), 0);
    assert_int_equal(fsb_hist_share(more, 1), 31);
    free(h);
    free(more);
}

static void times_and_bars_read_well(void **state)
{
    static const struct {
        double us;
        const char *text;
    } times[] = { { 0.4, "0 us" },      { 85, "85 us" },   { 999, "999 us" },
                  { 1500, "1.5 ms" },   { 9990, "10 ms" }, { 999400, "999 ms" },
                  { 1500000, "1.5 s" }, { 6e8, "600 s" } };
    char text[FSB_TIME_TEXT], bar[11];

    (void)state;
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++)
        assert_string_equal(fsb_time_text(text, times[i].us), times[i].text);
    assert_string_equal(fsb_bar(bar, 10, 5, 10), "=====");
    assert_string_equal(fsb_bar(bar, 10, 50, 10), "==========");
    assert_string_equal(fsb_bar(bar, 10, 0, 10), "");
    assert_string_equal(fsb_bar(bar, 10, 1, 0), "");
}

/* Any difference from the bytes written last is found: a bit, another place, another
 * version. */
static void other_bytes_are_found(void **state)
{
    uint8_t *buf = aligned_alloc(FSB_PAGE, FSB_RECORD_MAX), *old = malloc(8192);
    struct fsb_place *place = calloc(1, sizeof(*place));
    struct fsb_file *file = fsb_file_get(place, "random", 4 << 20);
    struct fsb_file *other = fsb_file_get(place, "other", 4 << 20);

    (void)state;
    fsb_buffer_init(buf);
    assert_non_null(file);
    assert_ptr_equal(fsb_file_get(place, "random", 4 << 20), file);
    fsb_file_fill(file, buf, 1 << 20, FSB_RECORD_MAX);
    assert_int_equal(fsb_file_compare(file, buf, 1 << 20, FSB_RECORD_MAX),
                     FSB_RECORD_MAX);
    assert_int_equal(fsb_file_compare(file, buf + 8192, (1 << 20) + 8192, 4096), 4096);
    assert_int_not_equal(fsb_file_compare(file, buf, (1 << 20) + 4096, 4096), 4096);
    fsb_file_fill(other, buf + 4096, 1 << 20, 4096);
    assert_int_not_equal(fsb_file_compare(file, buf + 4096, 1 << 20, 4096), 4096);

    fsb_file_fill(file, buf, 16384, 8192);
    memcpy(old, buf, 8192);
    fsb_file_fill(file, buf, 20480, 4096); /* the second page is written again */
    assert_int_equal(fsb_file_compare(file, old, 16384, 8192), 4096);
    memcpy(old + 4096, buf, 4096);
    assert_int_equal(fsb_file_compare(file, old, 16384, 8192), 8192);
    for (unsigned bit = 0; bit < 8192 * 8; bit += 1021) {
        old[bit / 8] ^= 1 << bit % 8;
        assert_int_equal(fsb_file_compare(file, old, 16384, 8192), bit / 8 / 512 * 512);
        old[bit / 8] ^= 1 << bit % 8;
    }
    for (unsigned i = 0; i < 600; i++) /* versions wrap around, and are never 0 */
        fsb_file_fill(file, buf, 0, 4096);
    assert_int_equal(fsb_file_compare(file, buf, 0, 4096), 4096);
    assert_int_not_equal(file->versions[0], 0);
    free(file->versions);
    free(other->versions);
    free(place);
    free(old);
    free(buf);
}

static void words_select_loads(void **state)
{
    struct fsb_load *loads = calloc(FSB_LOADS_MAX, sizeof(*loads));
    struct fsb_wish wish = { 0 };
    unsigned n_all = fsb_loads(&wish, 1, loads), n;

    (void)state;
    assert_in_range(n_all, 40, FSB_LOADS_MAX);
    assert_in_range(fsb_loads(&wish, FSB_MOUNTS_MAX, loads), n_all + 1, FSB_LOADS_MAX);
    for (unsigned i = 0; i < n_all; i++)
        assert_true(loads[i].n_jobs <= FSB_JOBS_MAX && strlen(loads[i].name) < 20);
    wish.only[0] = "8K fsync";
    wish.only[1] = "tree";
    wish.n_only = 2;
    n = fsb_loads(&wish, 1, loads);
    assert_int_equal(n, 6); /* fsync of 1, of 16, of 16 in one file; 3 of the tree */
    assert_string_equal(loads[0].name, "write 8K fsync");
    wish.n_only = 1;
    wish.only[0] = "no such";
    assert_int_equal(fsb_loads(&wish, 4, loads), 0);
    free(loads);
}

/* Makes results up for all loads, with some large figures. */
static struct fsb_results *made_up(bool vs)
{
    struct fsb_results *results = calloc(1, sizeof(*results));
    struct fsb_wish wish = { 0 };

    results->n_rows = fsb_loads(&wish, FSB_MOUNTS_MAX, results->loads);
    for (unsigned i = 0; i < results->n_rows; i++) {
        struct fsb_row *row = &results->rows[i];

        row->load = &results->loads[i];
        for (unsigned s = 0; s < (vs ? 2 : 1); s++) {
            row->n_samples[s] = 3;
            row->samples[s] = calloc(3, sizeof(*row->samples[s]));
            for (unsigned r = 0; r < 3; r++)
                row->samples[s][r] = (struct fsb_sample){
                    .figure = (s == 0 ? 3000.0 : 1000.0) * (r + 1) + i,
                    .n_ops = 1000,
                    .n_bytes = 1 << 30,
                    .p50_us = 999,
                    .p99_us = 9999,
                    .max_us = 99999999,
                    .cpu.user_s[FSB_STORAGED] = 2.5,
                    .cpu.sys_s[FSB_STORAGED] = 1.5 * r,
                };
        }
    }
    return results;
}

static void tables_fit_80_columns(void **state)
{
    (void)state;
    for (unsigned vs = 0; vs < 2; vs++) {
        struct fsb_results *results = made_up(vs);
        char *text = NULL, *line, *save;
        unsigned n_lines = 0;
        size_t len = 0;
        FILE *to = open_memstream(&text, &len);

        assert_non_null(to);
        fsb_print(results, vs, true, to);
        fclose(to);
        for (line = strtok_r(text, "\n", &save); line != NULL;
             line = strtok_r(NULL, "\n", &save), n_lines++) {
            if (strlen(line) > 80)
                fail_msg("%zu columns: %s", strlen(line), line);
        }
        assert_in_range(n_lines, 2 * results->n_rows + 2, 2 * results->n_rows + 8);
        free(text);
        fsb_results_free(results);
    }
}

static void summaries_and_ratios_are_medians_of_rounds(void **state)
{
    struct fsb_results *results = made_up(true);
    struct fsb_row *row = &results->rows[0];
    struct fsb_summary s;

    (void)state;
    fsb_summary(row, FSB_HERE, &s);
    assert_true(s.median == 6000 && s.best == 9000 && s.spread == 1);
    assert_true(s.cpu.user_s[FSB_STORAGED] == 2.5 && s.cpu.sys_s[FSB_STORAGED] == 1.5);
    assert_true(s.cpu_daemons == 4);
    assert_true(fsb_ratio(row) == 3);
    row->samples[FSB_THERE][0].figure = 1; /* one bad round does not change it */
    assert_true(fsb_ratio(row) == 3);
    row->n_samples[FSB_THERE] = 0;
    assert_true(fsb_ratio(row) == 0);
    fsb_results_free(results);
}

static void json_tells_every_round(void **state)
{
    struct fsb_results *results = made_up(true);
    struct fsb_place *place = calloc(2, sizeof(*place));
    struct fsb_wish wish = { .size_bytes = 1 << 30, .n_rounds = 3 };
    json_t *json, *test, *cpu;

    (void)state;
    place[0].mount[0] = "/mnt/\xff"; /* a name may have any bytes */
    place[1].mount[0] = "/tmp";
    json = fsb_json(results, &wish, place);
    assert_non_null(json);
    assert_int_equal(json_array_size(json_object_get(json, "tests")),
                     2 * results->n_rows);
    test = json_array_get(json_object_get(json, "tests"), 1);
    assert_string_equal(json_string_value(json_object_get(test, "place")), "vs");
    assert_int_equal(json_array_size(json_object_get(test, "rounds")), 3);
    cpu = json_object_get(json_object_get(test, "cpu"), "storaged");
    assert_true(json_number_value(json_object_get(cpu, "sys")) == 1.5);
    assert_true(json_number_value(
                    json_object_get(json_object_get(json, "ratios"), "write 1M")) == 3);
    json_decref(json);
    free(place);
    fsb_results_free(results);
}

static unsigned count(const char *text, const char *what)
{
    unsigned n = 0;

    for (; (text = strstr(text, what)) != NULL; text++)
        n++;
    return n;
}

static void plot_has_a_bar_for_each_row_and_lines_for_clients(void **state)
{
    struct fsb_results *results = made_up(true);
    struct fsb_place *place = calloc(2, sizeof(*place));
    struct fsb_wish wish = { 0 };
    unsigned n_bars = fsb_loads(&wish, 1, results->loads);
    char *text;

    (void)state;
    fsb_loads(&wish, FSB_MOUNTS_MAX, results->loads);
    place[0].mount[0] = "/a<b>&\xff";
    place[1].mount[0] = "/tmp";
    place[0].n_mounts = FSB_MOUNTS_MAX;
    place[1].n_mounts = 1;
    text = fsb_plot(results, place);
    assert_non_null(text);
    assert_non_null(strstr(text, ">/a&#60;b&#62;&#38;?<"));
    /* background, legend, bars */
    assert_int_equal(count(text, "<rect"), 1 + 2 + 2 * n_bars);
    assert_int_equal(count(text, "<polyline"), 4);
    assert_int_equal(count(text, "<circle"), 4 * FSB_MOUNTS_MAX);
    assert_int_equal(count(text, "nan") + count(text, "inf"), 0);
    free(text);
    free(place);
    fsb_results_free(results);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(medians_and_spreads),
        cmocka_unit_test(percentiles_are_3_percent_right),
        cmocka_unit_test(times_and_bars_read_well),
        cmocka_unit_test(other_bytes_are_found),
        cmocka_unit_test(words_select_loads),
        cmocka_unit_test(tables_fit_80_columns),
        cmocka_unit_test(summaries_and_ratios_are_medians_of_rounds),
        cmocka_unit_test(json_tells_every_round),
        cmocka_unit_test(plot_has_a_bar_for_each_row_and_lines_for_clients),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
