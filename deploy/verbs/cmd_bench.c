/*
 * cmd_bench.c - `rozo bench codec`: measures how fast this machine codes, beside other
 * libraries that are installed. bench_codec.c describes the method.
 */
#include <stdlib.h>
#include <string.h>

#include "deploy/bench/bench_codec.h"
#include "deploy/cli/progress.h"
#include "deploy/verbs/verbs.h"

enum { ROUNDS = 31, LAYOUTS_ALL = 3 };

struct bench_args {
    unsigned layout; /* LAYOUTS_ALL: each of them */
    unsigned block_bytes;
    bool l2, cycles, isas, json;
};

static void tick(void *arg)
{
    progress_tick(arg);
}

static int bench_layouts(struct cli *cli, const struct bench_args *args,
                         const struct bench_codes *codes, struct bench_results *results)
{
    struct progress progress;
    json_t *all = json_array();
    struct err err = { 0 };
    int rc = 0;

    progress_start(&progress, args->layout != LAYOUTS_ALL ? 1 : 3);
    for (unsigned l = 0; codec_layout(l) != NULL && rc == 0; l++) {
        const struct codec_layout *layout = codec_layout(l);
        struct bench_case what = { .k = layout->k,
                                   .n = layout->n,
                                   .block_bytes = args->block_bytes,
                                   .run_blocks = 1,
                                   .l2 = args->l2,
                                   .decode = true,
                                   .n_rounds = ROUNDS };
        char text[BENCH_TEXT_MAX];

        if (args->layout != LAYOUTS_ALL && args->layout != l)
            continue;
        progress_at(&progress, args->layout != LAYOUTS_ALL ? 0 : l,
                    bench_case_text(&what, text));
        rc = bench_run(codes, &what, tick, &progress, results, &err);
        progress_end(&progress);
        if (rc != 0) {
            bench_results_free(results);
            break;
        }
        if (args->json) {
            json_array_append_new(all, bench_json(codes, &what, results));
        } else {
            bench_print(codes, &what, results, args->cycles ? BENCH_CYCLES : BENCH_GBS,
                        stdout);
            if (args->layout == LAYOUTS_ALL && codec_layout(l + 1) != NULL)
                putchar('\n');
        }
        bench_results_free(results);
    }
    if (rc != 0) {
        json_decref(all);
        return cli_fail(cli, "%s", err.text);
    }
    if (args->json)
        return cli_print_json(cli, all);
    json_decref(all);
    return cli_finish(cli);
}

int cmd_bench_codec(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "layout", 0, "L", "only layout L: 0, 1 or 2",
          ARGS_NUMBER(struct bench_args, layout, 0, 2) },
        { "block-bytes", 0, "N", "blocks of 4096 or 8192 bytes (8192)",
          ARGS_CALL(struct bench_args, block_bytes, cli_block_arg) },
        { "l2", 0, NULL, "1 MiB of blocks in turn, instead of one block that stays in L1",
          ARGS_FLAG(struct bench_args, l2) },
        { "cycles", 0, NULL, "print core cycles of one block, not GB/s",
          ARGS_FLAG(struct bench_args, cycles) },
        { "isas", 0, NULL, "lesser instruction sets of this machine too",
          ARGS_FLAG(struct bench_args, isas) },
        { "json", 'j', NULL, "print JSON: a list with an object for each layout",
          ARGS_FLAG(struct bench_args, json) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Measure how fast one core of this machine codes: rozo's erasure codes, "
            "ISA-L and Jerasure where they are installed, and memcpy, all on the same "
            "buffers in turn. ENCODE makes the parities, +ROWS copies the data as well; "
            "READ copies all rows; LOST 1, 2, ... remakes so many lost rows, the mean "
            "over which ones; WORST is the slowest of those. GB/s are of user data."
    };
    struct bench_args args = { .layout = LAYOUTS_ALL, .block_bytes = 8192 };
    struct bench_codes codes = { 0 };
    struct bench_results *results;
    int rc;

    args_parse(&syntax, argc, argv, &args);
    results = calloc(1, sizeof(*results));
    if (results == NULL)
        return cli_fail(cli, "out of memory");
    bench_add_ours(&codes, args.isas);
    bench_add_rivals(&codes, args.isas);
    rc = bench_layouts(cli, &args, &codes, results);
    free(results);
    bench_codes_free(&codes);
    return rc;
}
