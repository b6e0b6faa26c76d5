/*
 * bench_codec.c - micro-benchmark of rozo's erasure codes and of other libraries' codes.
 *
 * Measures all layouts, block sizes and places (L1, L2), checks goals, and runs loops for
 * a profiler.
 *
 *     apt-get install nasm cargo libjerasure2  # for the next line; and Jerasure, to
 *     compare with tests/bench/codec/get-isal.sh            # a newer ISA-L than
 *     Debian's, once bench_codec --json codec.json && tests/bench/codec/plot.py
 *     codec.json docs/img bench_codec --goals                      # exit status 1 if a
 *     goal is missed perf stat bench_codec --only mojette --op encode --k 4
 *
 * deploy/bench/bench_codec.c describes the method; `rozo bench codec` uses the same core.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/cli/cli.h"
#include "deploy/cli/progress.h"
#include "tests/bench/codec/goals.h"

struct args {
    const char *json, *only, *op;
    unsigned k, n, block_kb, rounds, seconds;
    bool goals, isas, quick, l2;
};

static const struct args_option options[] = {
    { "json", 'j', "FILE", "write all figures there, for plot.py",
      ARGS_TEXT(struct args, json) },
    { "goals", 'g', NULL, "compare the figures with the goals of the project",
      ARGS_FLAG(struct args, goals) },
    { "isas", 'i', NULL, "also older instruction sets", ARGS_FLAG(struct args, isas) },
    { "quick", 0, NULL, "blocks of 8 KB in L1 only", ARGS_FLAG(struct args, quick) },
    { "rounds", 0, "N", "rounds of each case (31)",
      ARGS_NUMBER(struct args, rounds, 1, BENCH_ROUNDS_MAX) },
    { "k", 0, "K", "only the layout with K rows: 2, 4 or 8; with --n any code",
      ARGS_NUMBER(struct args, k, 1, CODEC_K_MAX) },
    { "n", 0, "N", "with --k: the code (N, K)",
      ARGS_NUMBER(struct args, n, 1, CODEC_N_MAX) },
    { "only", 0, "NAME", "only codes whose name begins so",
      ARGS_TEXT(struct args, only) },
    { "op", 0, "OP",
      "with --only and --k: repeat OP, for a profiler: encode, read, or lost1 to lost4; "
      "OP+rows also copies the rows",
      ARGS_TEXT(struct args, op) },
    { "block", 0, "KB", "with --op: blocks of 4 or 8 KB (8)",
      ARGS_NUMBER(struct args, block_kb, 1, 8) },
    { "l2", 0, NULL, "with --op: 1 MiB of blocks in turn", ARGS_FLAG(struct args, l2) },
    { "seconds", 0, "N", "with --op: for so long (5)",
      ARGS_NUMBER(struct args, seconds, 1, 3600) },
    { 0 },
};

/* Returns the i-th requested (n, k): --k with
 * --n, or the layouts. False past the last. */
static bool code_at(const struct args *args, unsigned i, unsigned *k, unsigned *n)
{
    if (args->n != 0) {
        *k = args->k;
        *n = args->n;
        return i == 0;
    }
    for (unsigned l = 0; codec_layout(l) != NULL; l++) {
        *k = codec_layout(l)->k;
        *n = codec_layout(l)->n;
        if ((args->k == 0 || args->k == *k) && i-- == 0)
            return true;
    }
    return false;
}

static int loop(struct cli *cli, const struct args *args, const struct bench_codes *codes)
{
    struct bench_case what = { .block_bytes = args->block_kb << 10,
                               .run_blocks = 1,
                               .l2 = args->l2,
                               .n_rounds = 1,
                               .decode = true };
    bool copy = strstr(args->op, "+rows") != NULL;
    struct err err = { 0 };
    double cycles;
    unsigned op;

    if (strncmp(args->op, "encode", 6) == 0)
        op = BENCH_ENCODE;
    else if (strncmp(args->op, "read", 4) == 0)
        op = BENCH_DECODE;
    else if (strncmp(args->op, "lost", 4) == 0 && args->op[4] >= '1' &&
             args->op[4] <= '4')
        op = BENCH_DECODE + (unsigned)(args->op[4] - '0');
    else
        return cli_usage(cli, "there is no operation '%s'", args->op);
    if (args->only == NULL || args->k == 0 || !code_at(args, 0, &what.k, &what.n))
        return cli_usage(cli, "--op wants --only, and --k 2, 4 or 8 or with --n");
    if (op > BENCH_DECODE + what.n - what.k)
        return cli_usage(cli, "(%u, %u) can lose %u", what.n, what.k, what.n - what.k);
    if (bench_loop(codes, &what, op, copy, (double)args->seconds, &cycles, &err) != 0)
        return cli_fail(cli, "%s", err.text);
    printf("%s, %s: %.0f cycles a block\n", codes->code[0].name, args->op, cycles);
    return cli_finish(cli);
}

static void tick(void *arg)
{
    progress_tick(arg);
}

/* Lists all cases, the most important first; returns their number. */
static unsigned cases_list(const struct args *args, struct bench_case cases[],
                           unsigned max)
{
    static const struct {
        size_t block_bytes, run_blocks;
        bool l2;
    } kinds[] = { { 8192, 1, false }, { 4096, 1, false }, { 8192, 1, true },
                  { 4096, 1, true },  { 8192, 8, true },  { 8192, 128, true } };
    unsigned n = 0;

    for (unsigned i = 0; i < (args->quick ? 1 : sizeof(kinds) / sizeof(kinds[0])); i++) {
        for (unsigned c = 0; n < max && code_at(args, c, &cases[n].k, &cases[n].n); c++) {
            cases[n] = (struct bench_case){ .k = cases[n].k,
                                            .n = cases[n].n,
                                            .block_bytes = kinds[i].block_bytes,
                                            .run_blocks = kinds[i].run_blocks,
                                            .l2 = kinds[i].l2,
                                            .decode = true,
                                            .n_rounds = args->rounds };
            n++;
        }
    }
    return n;
}

static int measure(struct cli *cli, const struct args *args,
                   const struct bench_codes *codes)
{
    enum { CASES_MAX = 32 };
    struct bench_case cases[CASES_MAX];
    unsigned n_cases = cases_list(args, cases, CASES_MAX);
    struct bench_results *results = calloc(1, sizeof(*results));
    json_t *all = json_array();
    struct progress progress;
    struct err err = { 0 };
    char text[BENCH_TEXT_MAX];
    int rc = 0;

    if (results == NULL || all == NULL)
        return cli_fail(cli, "out of memory");
    progress_start(&progress, n_cases);
    for (unsigned i = 0; i < n_cases && rc == 0; i++) {
        progress_at(&progress, i, bench_case_text(&cases[i], text));
        rc = bench_run(codes, &cases[i], tick, &progress, results, &err);
        progress_end(&progress);
        if (rc != 0)
            break;
        bench_print(codes, &cases[i], results, BENCH_CYCLES, stdout);
        putchar('\n');
        fflush(stdout);
        json_array_append_new(all, bench_json(codes, &cases[i], results));
        bench_results_free(results);
    }
    if (rc == 0 && args->json != NULL &&
        json_dump_file(all, args->json, JSON_INDENT(1)) != 0)
        rc = err_set(&err, -EIO, "cannot write %s", args->json);
    json_decref(all);
    free(results);
    return rc != 0 ? cli_fail(cli, "%s", err.text) : cli_finish(cli);
}

static int goals(struct cli *cli, const struct args *args)
{
    struct progress progress;
    struct err err = { 0 };
    int rc;

    progress_start(&progress, 1);
    progress_at(&progress, 0, "goals");
    rc = goals_check(args->rounds, tick, &progress, &err);
    if (rc < 0)
        return cli_fail(cli, "%s", err.text);
    return rc > 0 ? CLI_FAILED : cli_finish(cli);
}

int main(int argc, char **argv)
{
    static const struct args_syntax syntax = {
        .options = options,
        .doc = "Measure rozo's erasure codes beside those of others on the same buffers."
    };
    struct cli cli = { .verb = "bench_codec" };
    struct args args = { .rounds = 31, .seconds = 5, .block_kb = 8 };
    struct bench_codes codes = { 0 };
    int status;

    args_parse(&syntax, argc, argv, &args);
    if (args.goals)
        return goals(&cli, &args);
    if (args.n != 0 && args.k == 0)
        return cli_usage(&cli, "--n wants --k");
    bench_add_ours(&codes, args.isas);
    bench_add_rivals(&codes, args.isas);
    if (args.only != NULL)
        bench_keep(&codes, args.only);
    status = args.op != NULL ? loop(&cli, &args, &codes) : measure(&cli, &args, &codes);
    bench_codes_free(&codes);
    return status;
}
