/*
 * bench_report.c - tables and JSON of the results of bench_codec.c.
 */
#include "deploy/bench/bench_codec.h"
#include "deploy/cli/text_table.h"

const char *bench_case_text(const struct bench_case *what, char text[BENCH_TEXT_MAX])
{
    char block[HUMAN_BYTES_TEXT], run[HUMAN_BYTES_TEXT];

    human_bytes(block, what->block_bytes);
    human_bytes(run, what->block_bytes * what->run_blocks);
    if (what->run_blocks > 1)
        snprintf(text, BENCH_TEXT_MAX, "(%u, %u), runs of %s of %s blocks", what->n,
                 what->k, run, block);
    else
        snprintf(text, BENCH_TEXT_MAX, "(%u, %u), blocks of %s, %s", what->n, what->k,
                 block, what->l2 ? "1 MiB of them in turn" : "hot in L1");
    return text;
}

static void figure_cell(struct text_table *t, const struct bench_figure *f,
                        enum bench_unit unit)
{
    if (f->n_patterns == 0)
        text_table_cell(t, "-");
    else if (unit == BENCH_GBS && f->gbs > 0)
        text_table_cell(t, f->gbs < 9.95 ? "%.1f" : "%.0f", f->gbs);
    else if (unit == BENCH_GBS)
        text_table_cell(t, "-"); /* nothing was done */
    else
        text_table_cell(t, "%.0f", f->cycles);
}

void bench_print(const struct bench_codes *codes, const struct bench_case *what,
                 const struct bench_results *results, enum bench_unit unit, FILE *to)
{
    static const char *const heads[] = { "CODE", ">ENCODE", ">+ROWS", ">READ", ">LOST 1",
                                         ">2",   ">3",      ">4",     ">WORST" };
    unsigned m = what->decode ? what->n - what->k : 0;
    unsigned n_heads = what->decode ? 4 + m + 1 : 3;
    const char *head[9];
    char text[BENCH_TEXT_MAX];
    struct text_table t;

    for (unsigned i = 0; i < n_heads; i++)
        head[i] = i + 1 == n_heads && what->decode ? heads[8] : heads[i];
    fprintf(to, "%s: %s at %.2f GHz\n", bench_case_text(what, text),
            unit == BENCH_CYCLES ? "core cycles a block" : "GB/s", results->ghz);
    text_table_init(&t, head, n_heads);
    for (unsigned c = 0; c < codes->n_codes; c++) {
        const struct bench_figure *figure = results->figure[c];
        struct bench_figure worst = { 0 };

        if (figure[BENCH_ENCODE].n_patterns == 0)
            continue;
        text_table_cell(&t, "%s", codes->code[c].name);
        figure_cell(&t, &figure[BENCH_ENCODE], unit);
        figure_cell(&t, &figure[bench_op(BENCH_ENCODE, true)], unit);
        if (!what->decode)
            continue;
        figure_cell(&t, &figure[bench_op(BENCH_DECODE, true)], unit);
        for (unsigned lost = 1; lost <= m; lost++) {
            const struct bench_figure *f = &figure[BENCH_DECODE + lost];

            figure_cell(&t, f, unit);
            if (f->worst > worst.cycles) {
                worst = *f;
                worst.cycles = f->worst;
            }
        }
        worst.gbs = worst.cycles > 0
                        ? (double)what->block_bytes * results->ghz / worst.cycles
                        : 0;
        figure_cell(&t, &worst, unit);
    }
    text_table_print(&t, to);
    text_table_free(&t);
}

static json_t *figure_json(const char *code, unsigned op, const struct bench_figure *f)
{
    bool copy = op >= BENCH_OPS / 2;
    unsigned plain = copy ? op - BENCH_OPS / 2 : op;

    return json_pack("{s:s, s:s, s:i, s:b, s:f, s:f, s:f, s:f, s:i}", "code", code, "op",
                     plain == BENCH_ENCODE ? "encode" : "decode", "lost",
                     plain == BENCH_ENCODE ? 0 : (int)(plain - BENCH_DECODE), "copy",
                     copy, "cycles", f->cycles, "best", f->best, "worst", f->worst,
                     "gb_s", f->gbs, "patterns", (int)f->n_patterns);
}

json_t *bench_json(const struct bench_codes *codes, const struct bench_case *what,
                   const struct bench_results *results)
{
    json_t *figures = json_array();

    for (unsigned c = 0; c < codes->n_codes; c++) {
        for (unsigned op = 0; op < BENCH_OPS; op++) {
            const struct bench_figure *f = &results->figure[c][op];

            if (f->n_patterns > 0)
                json_array_append_new(figures, figure_json(codes->code[c].name, op, f));
        }
    }
    return json_pack("{s:i, s:i, s:I, s:I, s:s, s:f, s:o}", "k", (int)what->k, "n",
                     (int)what->n, "block_bytes", (json_int_t)what->block_bytes,
                     "run_bytes", (json_int_t)(what->block_bytes * what->run_blocks),
                     "place", what->l2 ? "l2" : "l1", "core_ghz", results->ghz, "figures",
                     figures);
}
