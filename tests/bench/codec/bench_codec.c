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
    unsigned long k, n, block_kb, rounds, seconds;
    bool goals, isas, quick, l2;
};

enum {
    KEY_ONLY = 256,
    KEY_OP,
    KEY_K,
    KEY_N,
    KEY_BLOCK,
    KEY_L2,
    KEY_SECONDS,
    KEY_ROUNDS,
    KEY_QUICK
};

static void number(struct argp_state *state, const char *text, unsigned long max,
                   unsigned long *out)
{
    if (cli_number(text, 1, max, out) != 0)
        argp_error(state, "'%s' is not a number from 1 to %lu", text, max);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *args = state->input;

    switch (key) {
    case 'j':
        args->json = arg;
        return 0;
    case 'g':
        args->goals = true;
        return 0;
    case 'i':
        args->isas = true;
        return 0;
    case KEY_ONLY:
        args->only = arg;
        return 0;
    case KEY_OP:
        args->op = arg;
        return 0;
    case KEY_L2:
        args->l2 = true;
        return 0;
    case KEY_QUICK:
        args->quick = true;
        return 0;
    case KEY_K:
        number(state, arg, CODEC_K_MAX, &args->k);
        return 0;
    case KEY_N:
        number(state, arg, CODEC_N_MAX, &args->n);
        return 0;
    case KEY_BLOCK:
        number(state, arg, 8, &args->block_kb);
        return 0;
    case KEY_SECONDS:
        number(state, arg, 3600, &args->seconds);
        return 0;
    case KEY_ROUNDS:
        number(state, arg, BENCH_ROUNDS_MAX, &args->rounds);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option options[] = {
    { "json", 'j', "FILE", 0, "write all figures there, for plot.py", 0 },
    { "goals", 'g', NULL, 0, "compare the figures with the goals of the project", 0 },
    { "isas", 'i', NULL, 0, "also older instruction sets", 0 },
    { "quick", KEY_QUICK, NULL, 0, "blocks of 8 KB in L1 only", 0 },
    { "rounds", KEY_ROUNDS, "N", 0, "rounds of each case (31)", 0 },
    { "k", KEY_K, "K", 0, "only the layout with K rows: 2, 4 or 8; with --n any code",
      0 },
    { "n", KEY_N, "N", 0, "with --k: the code (N, K)", 0 },
    { "only", KEY_ONLY, "NAME", 0, "only codes whose name begins so", 0 },
    { "op", KEY_OP, "OP", 0,
      "with --only and --k: repeat OP, for a profiler: encode, read, or lost1 to lost4; "
      "OP+rows also copies the rows",
      0 },
    { "block", KEY_BLOCK, "KB", 0, "with --op: blocks of 4 or 8 KB (8)", 0 },
    { "l2", KEY_L2, NULL, 0, "with --op: 1 MiB of blocks in turn", 0 },
    { "seconds", KEY_SECONDS, "N", 0, "with --op: for so long (5)", 0 },
    { 0 },
};

/* Returns the i-th requested (n, k): --k with
 * --n, or the layouts. False past the last. */
static bool code_at(const struct args *args, unsigned i, unsigned *k, unsigned *n)
{
    if (args->n != 0) {
        *k = (unsigned)args->k;
        *n = (unsigned)args->n;
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
                                            .n_rounds = (unsigned)args->rounds };
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
    rc = goals_check((unsigned)args->rounds, tick, &progress, &err);
    if (rc < 0)
        return cli_fail(cli, "%s", err.text);
    return rc > 0 ? CLI_FAILED : cli_finish(cli);
}

int main(int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .doc = "Measure rozo's erasure codes beside those of others on the same buffers."
    };
    struct cli cli = { .verb = "bench_codec" };
    struct args args = { .rounds = 31, .seconds = 5, .block_kb = 8 };
    struct bench_codes codes = { 0 };
    int status;

    cli_parse(&argp, argc, argv, &args);
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
