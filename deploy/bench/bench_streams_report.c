/*
 * bench_streams_report.c - tables and JSON of `rozo bench streams`.
 */
#include "deploy/bench/bench_streams.h"
#include "deploy/cli/cli.h"
#include "deploy/cli/text_table.h"

static const char
    *const kinds[] = { [STREAMS_READ] = "read", [STREAMS_WRITE] = "written" };

const struct streams_trial *streams_best(const struct streams_results *results)
{
    const struct streams_trial *best = NULL;

    for (unsigned i = 0; i < results->n_trials; i++) {
        const struct streams_trial *trial = &results->trial[i];

        if (trial->held && (best == NULL || trial->n_reads > best->n_reads))
            best = trial;
    }
    return best;
}

static void row(struct text_table *table, const struct streams_trial *trial,
                enum streams_kind kind)
{
    const struct streams_sum *sum = &trial->of[kind];
    unsigned n = kind == STREAMS_READ ? trial->n_reads : trial->n_writes;
    char text[FSB_TIME_TEXT];

    if (n == 0)
        return;
    text_table_cell(table, "%u %s", n, kinds[kind]);
    text_table_cell(table, "%llu", (unsigned long long)sum->n_frames);
    text_table_cell(table, "%llu", (unsigned long long)sum->n_late);
    text_table_cell(table, "%llu", (unsigned long long)sum->n_failed);
    text_table_cell(table, "%s", fsb_time_text(text, sum->p50_us));
    text_table_cell(table, "%s", fsb_time_text(text, sum->p99_us));
    text_table_cell(table, "%s", fsb_time_text(text, sum->max_us));
    text_table_cell(table, "%.2f s", sum->spare_s);
}

void streams_print(const struct streams_results *results, const struct streams_wish *wish,
                   FILE *to)
{
    static const char *const heads[] = { "STREAMS", ">FRAMES", ">LATE", ">FAILED",
                                         ">P50",    ">P99",    ">MAX",  ">SPARE" };
    const struct streams_trial *best = streams_best(results);
    char frame[HUMAN_BYTES_TEXT];
    struct text_table table = { 0 };

    fprintf(to, "%g MB/s each, frames of %s, read-ahead of %g s\n\n",
            (double)wish->rate / 1e6, human_bytes(frame, wish->frame_bytes),
            (double)wish->ahead_ms / 1e3);
    text_table_init(&table, heads, 8);
    for (unsigned i = 0; i < results->n_trials; i++) {
        for (unsigned k = 0; k < STREAMS_KINDS; k++)
            row(&table, &results->trial[i], k);
    }
    text_table_print(&table, to);
    text_table_free(&table);
    if (!wish->find)
        return;
    if (best == NULL)
        fprintf(to, "\nNo number of streams holds.\n");
    else
        fprintf(to, "\n%u streams read and %u written hold: %g MB/s and %g MB/s.\n",
                best->n_reads, best->n_writes, best->n_reads * (double)wish->rate / 1e6,
                best->n_writes * (double)wish->rate / 1e6);
}

static json_t *sum_json(const struct streams_sum *sum)
{
    return json_pack("{s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "frames",
                     (json_int_t)sum->n_frames, "late", (json_int_t)sum->n_late, "failed",
                     (json_int_t)sum->n_failed, "p50_us", sum->p50_us, "p99_us",
                     sum->p99_us, "max_us", sum->max_us, "spare_s", sum->spare_s);
}

json_t *streams_json(const struct streams_results *results,
                     const struct streams_wish *wish, const struct fsb_place *place)
{
    const struct streams_trial *best = streams_best(results);
    json_t *trials = json_array(), *mounts = json_array();

    for (unsigned i = 0; i < place->n_mounts; i++)
        json_array_append_new(mounts, cli_json_path(place->mount[i]));
    for (unsigned i = 0; i < results->n_trials; i++) {
        const struct streams_trial *trial = &results->trial[i];

        json_array_append_new(
            trials, json_pack("{s:i, s:i, s:b, s:o, s:o}", "streams", trial->n_reads,
                              "write", trial->n_writes, "held", trial->held, "read",
                              sum_json(&trial->of[STREAMS_READ]), "written",
                              sum_json(&trial->of[STREAMS_WRITE])));
    }
    return json_pack(
        "{s:o, s:f, s:I, s:f, s:i, s:o, s:o}", "mounts", mounts, "rate_mb",
        (double)wish->rate / 1e6, "frame_bytes", (json_int_t)wish->frame_bytes,
        "read_ahead_s", (double)wish->ahead_ms / 1e3, "seconds", wish->seconds, "trials",
        trials, "holds", best == NULL ? json_null() : json_integer(best->n_reads));
}
