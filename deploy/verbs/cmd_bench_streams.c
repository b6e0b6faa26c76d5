/*
 * cmd_bench_streams.c - `rozo bench streams`: plays an editor on a mounted file system,
 * rozo or any other, and counts frames that are late.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/bench/bench_streams.h"
#include "deploy/cli/fsutil.h"
#include "deploy/verbs/verbs.h"

enum { SECONDS = 30, FIND_SECONDS = 10, AHEAD_MS_MAX = 600000 };

struct streams_args {
    struct streams_wish wish;
    const char *path;
    char *clients;
    unsigned file_mib; /* 0: not given */
    const char *json;  /* NULL: none; "-": standard output, and no table */
    bool live;
};

static void clients_arg(struct argp_state *state, char *text, void *to)
{
    (void)state;
    *(char **)to = text;
}

/* Parses a number that one of the units may follow; returns the factor of the unit, 0 if
 * it is none of them. */
static double unit_number(const char *text, const char *const *units,
                          const double *factors, unsigned n_units, double *out)
{
    char *end;

    *out = strtod(text, &end);
    if (end == text || !isfinite(*out) || !isdigit((unsigned char)text[0]))
        return 0;
    for (unsigned i = 0; i < n_units; i++) {
        if (strcmp(end, units[i]) == 0)
            return factors[i];
    }
    return 0;
}

static void rate_arg(struct argp_state *state, char *text, void *to)
{
    static const char *const units[] = { "", "MB", "MB/s" };
    static const double factors[] = { 1e6, 1e6, 1e6 };
    double number = 0, factor = unit_number(text, units, factors, 3, &number);

    if (factor == 0 || number * factor < 1000 || number > 100000)
        argp_error(state, "--rate wants MB per second, 0.001 to 100000, not '%s'", text);
    *(uint64_t *)to = (uint64_t)(number * factor + 0.5);
}

static void frame_arg(struct argp_state *state, char *text, void *to)
{
    static const char *const units[] = { "", "K", "M" };
    static const double factors[] = { 1, 1 << 10, 1 << 20 };
    double number = 0, factor = unit_number(text, units, factors, 3, &number);
    double n_bytes = number * factor;

    if (factor == 0 || n_bytes < FSB_PAGE || n_bytes > STREAM_FRAME_MAX ||
        (uint64_t)n_bytes % FSB_PAGE != 0)
        argp_error(state, "--frame wants a size of 4K to 64M, a multiple of 4K, not '%s'",
                   text);
    *(uint64_t *)to = (uint64_t)n_bytes;
}

static void ahead_arg(struct argp_state *state, char *text, void *to)
{
    static const char *const units[] = { "", "s", "ms" };
    static const double factors[] = { 1000, 1000, 1 };
    double number = 0, factor = unit_number(text, units, factors, 3, &number);

    if (factor == 0 || number * factor < 1 || number * factor > AHEAD_MS_MAX)
        argp_error(state, "--read-ahead wants a time such as 2s or 500ms, not '%s'",
                   text);
    *(uint64_t *)to = (uint64_t)(number * factor + 0.5);
}

static void check(struct argp_state *state, void *arg)
{
    const struct streams_args *args = arg;
    const struct streams_wish *wish = &args->wish;

    if (wish->n_reads + wish->n_writes == 0)
        argp_error(state, "neither --streams nor --write: nothing to play");
    if (wish->n_reads + wish->n_writes > STREAMS_MAX)
        argp_error(state, "more than %d streams", STREAMS_MAX);
    if (wish->find && wish->n_reads == 0)
        argp_error(state, "--find needs at least one of --streams");
    if (args->live && args->json != NULL && strcmp(args->json, "-") == 0)
        argp_error(state, "--live and --json - both print to standard output");
}

/* Fills in what the options left open. */
static void wish_complete(struct streams_args *args)
{
    struct streams_wish *wish = &args->wish;
    uint64_t given = (uint64_t)args->file_mib << 20;

    if (wish->seconds == 0)
        wish->seconds = wish->find ? FIND_SECONDS : SECONDS;
    wish->file_bytes = wish->rate * wish->seconds;
    if (wish->file_bytes < STREAM_FILE_MIN)
        wish->file_bytes = STREAM_FILE_MIN;
    if (wish->file_bytes > STREAM_FILE_MAX)
        wish->file_bytes = STREAM_FILE_MAX;
    if (given != 0)
        wish->file_bytes = given;
    if (wish->file_bytes < 4 * wish->frame_bytes)
        wish->file_bytes = 4 * wish->frame_bytes;
    wish->file_bytes -= wish->file_bytes % wish->frame_bytes;
}

static int report(struct cli *cli, const struct streams_args *args,
                  const struct streams_results *results, const struct fsb_place *place)
{
    bool to_stdout = args->json != NULL && strcmp(args->json, "-") == 0;
    struct err err = { 0 };
    char *text = NULL;
    json_t *json;
    int rc;

    if (!to_stdout) {
        if (args->live)
            putchar('\n');
        streams_print(results, &args->wish, stdout);
    }
    if (args->json == NULL)
        return cli_finish(cli);
    json = streams_json(results, &args->wish, place);
    if (to_stdout)
        return cli_print_json(cli, json);
    text = json == NULL ? NULL : json_dumps(json, JSON_INDENT(2));
    json_decref(json);
    rc = text == NULL ? err_wrap(&err, -ENOMEM, "write %s", args->json)
                      : file_replace(args->json, 0644, text, strlen(text), &err);
    free(text);
    return rc == 0 ? cli_finish(cli) : cli_fail(cli, "%s", err.text);
}

/* Returns the exit status: frames that were late are a failure, unless a search found a
 * number that holds. */
static int judge(struct cli *cli, const struct streams_args *args,
                 const struct streams_results *results)
{
    const struct streams_trial *last = &results->trial[results->n_trials - 1];
    uint64_t n_late = last->of[STREAMS_READ].n_late + last->of[STREAMS_WRITE].n_late;
    uint64_t n = last->of[STREAMS_READ].n_frames + last->of[STREAMS_WRITE].n_frames;

    if (args->wish.find)
        return streams_best(results) != NULL
                   ? CLI_DONE
                   : cli_fail(cli, "%s: no number of streams holds", args->path);
    return n_late == 0 ? CLI_DONE
                       : cli_fail(cli, "%s: %llu of %llu frames were late", args->path,
                                  (unsigned long long)n_late, (unsigned long long)n);
}

static int play(struct cli *cli, const struct streams_args *args, struct fsb_place *place,
                struct streams_results *results)
{
    struct err err = { 0 }, left = { 0 };
    int rc, status = CLI_DONE;

    place->mount[0] = args->path;
    place->n_mounts = 1;
    rc = fsb_place_add(place, args->clients, FSB_PLACE_MOUNTS_MAX, &err);
    if (rc == 0)
        rc = fsb_place_open(place, &err);
    if (rc == 0)
        rc = streams_measure(place, &args->wish, args->live ? stdout : NULL, results,
                             &err);
    if (results->n_trials > 0 && (rc == 0 || rc == -EINTR))
        status = report(cli, args, results, place);
    if (fsb_place_close(place, &left) != 0)
        status = cli_fail(cli, "%s", left.text);
    if (rc == -EINTR)
        return cli_fail(cli, "interrupted; these are the figures so far");
    if (rc != 0)
        return cli_fail(cli, "%s", err.text);
    return status != CLI_DONE ? status : judge(cli, args, results);
}

int cmd_bench_streams(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "streams", 0, "N", "streams that are read, over all mounts together (5)",
          ARGS_NUMBER(struct streams_args, wish.n_reads, 0, STREAMS_MAX) },
        { "write", 0, "N", "streams that are written, over all mounts together (1)",
          ARGS_NUMBER(struct streams_args, wish.n_writes, 0, STREAMS_MAX) },
        { "rate", 0, "MB", "of each stream in a second; 1 MB is 1000000 bytes (25)",
          ARGS_CALL(struct streams_args, wish.rate, rate_arg) },
        { "frame", 0, "SIZE", "bytes of a frame, such as 512K (1M)",
          ARGS_CALL(struct streams_args, wish.frame_bytes, frame_arg) },
        { "read-ahead", 0, "TIME",
          "what a player has in memory, such as 500ms: a frame is late when it takes "
          "longer than that (2s)",
          ARGS_CALL(struct streams_args, wish.ahead_ms, ahead_arg) },
        { "seconds", 0, "N", "how long it plays (30; with --find 10 for each trial)",
          ARGS_NUMBER(struct streams_args, wish.seconds, 1, 86400) },
        { "file-size", 0, "MIB",
          "of each file, which is read in a circle (what is played, 64 to 256)",
          ARGS_NUMBER(struct streams_args, file_mib, 1, 1 << 20) },
        { "clients", 0, "PATH,...",
          "up to 15 further mounts of the same file system, which play in turn",
          ARGS_CALL(struct streams_args, clients, clients_arg) },
        { "find", 0, NULL,
          "search for the highest number of streams, from --streams on, that plays "
          "without a late frame",
          ARGS_FLAG(struct streams_args, wish.find) },
        { "live", 0, NULL, "print a line for each second while it plays",
          ARGS_FLAG(struct streams_args, live) },
        { "json", 0, "FILE", "write all figures there; -: to standard output",
          ARGS_TEXT(struct streams_args, json) },
        { NULL, 0, "PATH", "PATH is missing: a folder of the file system to play from",
          ARGS_TEXT(struct streams_args, path) },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Play an editor on the file system that PATH lies in, rozo or any other: "
            "streams of frames that must be there in time. A frame is late when it is "
            "not there at its time, or its read or write fails. It works in a folder of "
            "its own, which it removes, and compares all it reads with what it wrote. "
            "The status is 1 when a frame was late. SPARE is the shortest time by which "
            "a frame was early.",
        .check = check
    };
    struct streams_args args = { .wish = { .n_reads = 5,
                                           .n_writes = 1,
                                           .rate = 25000000,
                                           .frame_bytes = 1 << 20,
                                           .ahead_ms = 2000 } };
    struct fsb_place *place = calloc(1, sizeof(*place));
    struct streams_results *results = calloc(1, sizeof(*results));
    int rc;

    if (place == NULL || results == NULL)
        return cli_fail(cli, "out of memory");
    args_parse(&syntax, argc, argv, &args);
    wish_complete(&args);
    fsb_catch_signals();
    rc = play(cli, &args, place, results);
    free(results);
    free(place);
    return rc;
}
