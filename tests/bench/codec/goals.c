/*
 * goals.c - goals of the codec, compared with measurements.
 *
 * In:     the tables below. A goal is a ratio: the rival's cycles divided by ours, 8 KB
 *         blocks.
 * Keeps:  both figures of a ratio come from the same run on the same buffers.
 * Yours:  goals may rise. "newer" is the newest ISA-L on the machine.
 */
#include "tests/bench/codec/goals.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { GOAL_FORMS_MAX = 2 };

/* A row of the table. */
struct goal {
    unsigned k, n;
    unsigned op; /* bench_op() */
    bool l2;
    const char *ours[GOAL_FORMS_MAX]; /* the faster one counts */
    const char *rival;                /* prefix of a name; "isa-l" is the newest */
    double at_least;
    const char *what;
};

#define MOJETTE         \
    {                   \
        "mojette", NULL \
    }
#define FASTER                      \
    {                               \
        "mojette", "mojette-finite" \
    }
#define ENC     BENCH_ENCODE
#define ROWS    (BENCH_ENCODE + BENCH_OPS / 2)
#define READ    (BENCH_DECODE + BENCH_OPS / 2)
#define PLACE   BENCH_DECODE
#define LOST(e) (BENCH_DECODE + (e))

static const struct goal goals[] = {
    { 4, 6, ENC, false, MOJETTE, "isa-l", 3.0, "encode" },
    { 4, 6, LOST(1), false, MOJETTE, "isa-l", 3.0, "1 lost" },
    { 4, 6, LOST(2), false, MOJETTE, "isa-l", 2.5, "2 lost" },
    { 4, 6, ENC, false, MOJETTE, "isa-l 2.30", 7, "encode" },
    { 4, 6, LOST(1), false, MOJETTE, "isa-l 2.30", 6, "1 lost" },
    { 4, 6, LOST(2), false, MOJETTE, "isa-l 2.30", 7, "2 lost" },
    { 8, 12, ENC, false, FASTER, "isa-l", 2.3, "encode" },
    { 8, 12, LOST(1), false, FASTER, "isa-l", 2.5, "1 lost" },
    { 8, 12, LOST(2), false, FASTER, "isa-l", 2.5, "2 lost" },
    { 8, 12, LOST(3), false, FASTER, "isa-l", 1.5, "3 lost" },
    { 8, 12, LOST(4), false, FASTER, "isa-l", 1.3, "4 lost" },
    { 8, 12, ENC, false, FASTER, "isa-l 2.30", 7, "encode" },
    { 8, 12, LOST(1), false, FASTER, "isa-l 2.30", 6, "1 lost" },
    { 8, 12, LOST(2), false, FASTER, "isa-l 2.30", 6, "2 lost" },
    { 8, 12, LOST(3), false, FASTER, "isa-l 2.30", 4, "3 lost" },
    { 8, 12, LOST(4), false, FASTER, "isa-l 2.30", 4, "4 lost" },
    { 2, 3, ENC, false, MOJETTE, "isa-l", 3.0, "encode" },
    { 2, 3, ENC, false, MOJETTE, "raid", 1.2, "encode, xor_gen" },
    { 2, 3, ENC, true, MOJETTE, "isa-l", 0.95, "encode, in L2" },
    { 4, 6, ENC, true, MOJETTE, "isa-l", 1.1, "encode, in L2" },
    { 8, 12, ENC, true, FASTER, "isa-l", 1.3, "encode, in L2" },
    { 2, 3, ROWS, false, MOJETTE, "memcpy", 1 / 1.15, "encode + rows, of n" },
    { 4, 6, ROWS, false, MOJETTE, "memcpy", 1 / 1.15, "encode + rows, of n" },
    { 8, 12, ROWS, false, FASTER, "memcpy", 1 / 1.15, "encode + rows, of n" },
    { 2, 3, READ, false, MOJETTE, "memcpy", 1 / 1.25, "healthy read, of k" },
    { 4, 6, READ, false, MOJETTE, "memcpy", 1 / 1.25, "healthy read, of k" },
    { 8, 12, READ, false, MOJETTE, "memcpy", 1 / 1.25, "healthy read, of k" },
    { 2, 3, PLACE, false, MOJETTE, "memcpy", 3, "healthy, in place" },
    { 4, 6, PLACE, false, MOJETTE, "memcpy", 3, "healthy, in place" },
    { 8, 12, PLACE, false, MOJETTE, "memcpy", 3, "healthy, in place" },
    { 2, 3, ENC, false, { "mojette avx2", NULL }, "avx2", 4, "encode" },
    { 4, 6, ENC, false, { "mojette avx2", NULL }, "avx2", 4, "encode" },
    { 8, 12, ENC, false, { "mojette avx2", "mojette-finite avx2" }, "avx2", 4, "encode" },
    { 2, 3, ENC, false, { "mojette sse2", NULL }, "sse", 4, "encode" },
    { 4, 6, ENC, false, { "mojette sse2", NULL }, "sse", 4, "encode" },
    { 8, 12, ENC, false, { "mojette sse2", "mojette-finite sse2" }, "sse", 4, "encode" },
};

/* Returns the code with this name (short for rivals). -1: not on this machine. */
static int code_find(const struct bench_codes *codes, const char *name)
{
    for (unsigned c = 0; c < codes->n_codes; c++) {
        const char *have = codes->code[c].name;
        const char *tail = strrchr(have, ' ');

        if (strcmp(have, name) == 0)
            return (int)c;
        if (strncmp(have, "isa-l ", 6) != 0)
            continue;
        if (strcmp(name, "isa-l") == 0 && tail == have + 5)
            return (int)c; /* the newest comes first */
        if (strncmp(name, "isa-l", 5) != 0 && tail != NULL && strcmp(tail + 1, name) == 0)
            return (int)c; /* "avx2", "raid" */
    }
    return -1;
}

/* Prints one row. Returns true if the goal is met. */
static bool goal_check(const struct goal *goal, const struct bench_codes *codes,
                       const struct bench_results *results, FILE *to)
{
    int rival = code_find(codes, goal->rival), ours = -1;
    const char *name = goal->ours[0];
    double reached;

    for (unsigned i = 0; i < GOAL_FORMS_MAX && goal->ours[i] != NULL; i++) {
        int c = code_find(codes, goal->ours[i]);

        if (c >= 0 && results->figure[c][goal->op].n_patterns > 0 &&
            (ours < 0 || results->figure[c][goal->op].cycles <
                             results->figure[ours][goal->op].cycles)) {
            ours = c;
            name = goal->ours[i];
        }
    }
    fprintf(to, "(%2u,%u) %-19s %-19.19s", goal->n, goal->k, goal->what, name);
    if (ours < 0 || rival < 0 || results->figure[rival][goal->op].n_patterns == 0) {
        fprintf(to, " no %s here: NOT MEASURED\n", ours < 0 ? name : goal->rival);
        return false;
    }
    reached = bench_ratio(results, (unsigned)rival, (unsigned)ours, goal->op);
    fprintf(to, " %5.0f %5.0f %-10.10s %5.2f %5.2f %s\n",
            results->figure[ours][goal->op].cycles,
            results->figure[rival][goal->op].cycles, codes->code[rival].name, reached,
            goal->at_least, reached >= goal->at_least ? "ok" : "MISS");
    return reached >= goal->at_least;
}

int goals_check(unsigned n_rounds, bench_tick_cb *tick, void *arg, struct err *err)
{
    static const unsigned layouts[][2] = { { 2, 3 }, { 4, 6 }, { 8, 12 } };
    enum {
        N = sizeof(layouts) / sizeof(layouts[0]),
        L2_RUN_BLOCKS = 64, /* 800 KB with the projections */
    };
    struct bench_codes codes = { 0 };
    struct bench_results *results = calloc(2 * N, sizeof(*results));
    unsigned n_missed = 0;
    int rc = results == NULL ? err_set(err, -ENOMEM, "out of memory") : 0;

    bench_add_ours(&codes, true);
    bench_add_rivals(&codes, true);
    for (unsigned i = 0; i < 2 * N && rc == 0; i++) {
        struct bench_case what = {
            .k = layouts[i / 2][0],
            .n = layouts[i / 2][1],
            .block_bytes = 8192,
            .run_blocks = i % 2 == 1 ? L2_RUN_BLOCKS : 1,
            .l2 = i % 2 == 1,
            .decode = i % 2 == 0,
            .n_rounds = n_rounds,
        };

        if (what.l2 && n_rounds * 3 <= BENCH_ROUNDS_MAX)
            what.n_rounds *= 3; /* L2 is shared with other programs: more rounds */
        rc = bench_run(&codes, &what, tick, arg, &results[i], err);
    }
    if (rc == 0)
        printf("%-54s %5s %-10s %5s %5s\n", "goal (8 KB blocks)  cycles:  ours", "rival",
               "", "ratio", "goal");
    for (unsigned g = 0; rc == 0 && g < sizeof(goals) / sizeof(goals[0]); g++) {
        for (unsigned i = 0; i < 2 * N; i++) {
            if (layouts[i / 2][0] == goals[g].k && (i % 2 == 1) == goals[g].l2 &&
                !goal_check(&goals[g], &codes, &results[i], stdout))
                n_missed++;
        }
    }
    if (rc == 0)
        printf("%zu goals, %u missed\n", sizeof(goals) / sizeof(goals[0]), n_missed);
    for (unsigned i = 0; results != NULL && i < 2 * N; i++)
        bench_results_free(&results[i]);
    free(results);
    bench_codes_free(&codes);
    return rc != 0 ? rc : n_missed > 0;
}
