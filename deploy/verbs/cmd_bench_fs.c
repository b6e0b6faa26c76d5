/*
 * cmd_bench_fs.c - `rozo bench fs`: measures how fast a mounted file system is, rozo or
 * any other.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deploy/bench/bench_fs.h"
#include "deploy/cli/fsutil.h"
#include "deploy/verbs/verbs.h"

struct fs_args {
    struct fsb_wish wish;
    const char *path;
    char *mounts;
    unsigned size_mib; /* 0: not given */
    const char *vs, *cluster[FSB_SIDES];
    const char *json; /* NULL: none; "-": standard output, and no table */
    const char *plot; /* path of an SVG; NULL: none */
    bool list, quick, iozone;
};

static void mounts_arg(struct argp_state *state, char *text, void *to)
{
    (void)state;
    *(char **)to = text;
}

static void report_arg(struct argp_state *state, char *text, void *to)
{
    if (strcmp(text, "iozone") != 0)
        argp_error(state, "--report is iozone, not '%s'", text);
    *(bool *)to = true;
}

static void only_arg(struct argp_state *state, char *text, void *to)
{
    struct fsb_wish *wish = to;

    if (wish->n_only == FSB_ONLY_MAX)
        argp_error(state, "more than %d --only", FSB_ONLY_MAX);
    wish->only[wish->n_only++] = text;
}

static void check(struct argp_state *state, void *arg)
{
    const struct fs_args *args = arg;

    if (args->path == NULL && !args->list)
        argp_error(state, "PATH is missing: a folder of the file system to measure");
    if (args->cluster[FSB_THERE] != NULL && args->vs == NULL)
        argp_error(state, "--vs-cluster is for --vs");
    if (args->iozone &&
        (args->vs != NULL || args->mounts != NULL || args->wish.n_only > 0 ||
         args->json != NULL || args->plot != NULL))
        argp_error(state, "--report iozone needs a single PATH and no other report");
}

/* Fills in what the options left open. */
static void wish_complete(struct fs_args *args)
{
    struct fsb_wish *wish = &args->wish;

    wish->size_bytes = (uint64_t)args->size_mib << 20;
    if (wish->size_bytes == 0 && args->iozone)
        wish->size_bytes = (uint64_t)(args->quick ? 4 : 64) << 20;
    if (wish->size_bytes == 0)
        wish->size_bytes = (uint64_t)(args->quick ? 64 : 512) << 20;
    if (wish->seconds == 0)
        wish->seconds = args->quick ? 1 : 3;
    if (wish->n_files == 0)
        wish->n_files = args->quick ? 1000 : 10000;
    if (wish->n_rounds == 0)
        wish->n_rounds = args->quick || args->iozone ? 1 : 5;
}

static int cluster_load(const char *dir, struct fsb_place *place, struct err *err)
{
    char path[PATH_MAX];
    int rc = path_absolute(dir, path, err);

    place->cluster = calloc(1, sizeof(*place->cluster));
    if (rc == 0 && place->cluster == NULL)
        rc = err_wrap(err, -ENOMEM, "look at the cluster");
    if (rc == 0)
        rc = dev_plan_load(path, place->cluster, err);
    return rc == -ENOENT ? err_set(err, rc, "%s holds no cluster of rozo dev", dir) : rc;
}

static int places_open(struct fs_args *args, struct fsb_place place[FSB_SIDES],
                       struct err *err)
{
    int rc = 0;

    place[FSB_HERE].mount[0] = args->path;
    place[FSB_HERE].n_mounts = 1;
    rc = fsb_place_add(&place[FSB_HERE], args->mounts, FSB_MOUNTS_MAX, err);
    if (args->vs != NULL) {
        place[FSB_THERE].mount[0] = args->vs;
        place[FSB_THERE].n_mounts = 1;
    }
    for (unsigned s = 0; s < FSB_SIDES && rc == 0; s++) {
        if (args->cluster[s] != NULL)
            rc = cluster_load(args->cluster[s], &place[s], err);
    }
    for (unsigned s = 0; s < FSB_SIDES && rc == 0; s++) {
        if (place[s].n_mounts > 0)
            rc = fsb_place_open(&place[s], err);
    }
    return rc;
}

/* Writes text to path and frees it; NULL: it reports that memory was short. */
static int text_write(struct cli *cli, char *text, const char *path)
{
    struct err err = { 0 };
    int rc = text == NULL ? err_wrap(&err, -ENOMEM, "write %s", path)
                          : file_replace(path, 0644, text, strlen(text), &err);

    free(text);
    return rc == 0 ? CLI_DONE : cli_fail(cli, "%s", err.text);
}

static int report(struct cli *cli, const struct fs_args *args,
                  const struct fsb_results *results, const struct fsb_place *place)
{
    bool to_stdout = args->json != NULL && strcmp(args->json, "-") == 0;
    int status = CLI_DONE;
    json_t *json;

    if (!to_stdout)
        fsb_print(results, args->vs != NULL, args->cluster[FSB_HERE] != NULL, stdout);
    if (args->plot != NULL)
        status = text_write(cli, fsb_plot(results, place), args->plot);
    if (args->json == NULL || status != CLI_DONE)
        return status == CLI_DONE ? cli_finish(cli) : status;
    json = fsb_json(results, &args->wish, place);
    if (to_stdout)
        return cli_print_json(cli, json);
    status = text_write(cli, json == NULL ? NULL : json_dumps(json, JSON_INDENT(2)),
                        args->json);
    json_decref(json);
    return status == CLI_DONE ? cli_finish(cli) : status;
}

static bool has_figures(const struct fsb_results *results)
{
    for (unsigned i = 0; i < results->n_rows; i++) {
        if (results->rows[i].n_samples[FSB_HERE] + results->rows[i].n_samples[FSB_THERE] >
            0)
            return true;
    }
    return false;
}

static int bench(struct cli *cli, struct fs_args *args, struct fsb_place *place,
                 struct fsb_results *results)
{
    struct err err = { 0 }, left = { 0 };
    int rc = places_open(args, place, &err), status;

    if (rc == 0 && args->iozone) {
        rc = fsb_iozone(place, &args->wish, stdout, &err);
    } else if (rc == 0) {
        results->n_rows =
            fsb_loads(&args->wish, place[FSB_HERE].n_mounts, results->loads);
        for (unsigned i = 0; i < results->n_rows; i++)
            results->rows[i].load = &results->loads[i];
        if (results->n_rows == 0)
            rc = err_set(&err, -ENOENT, "no load has such a name; --list prints them");
    }
    if (rc == 0 && !args->iozone)
        rc = fsb_measure(place, &args->wish, results, &err);
    status = has_figures(results) ? report(cli, args, results, place) : cli_finish(cli);
    for (unsigned s = 0; s < FSB_SIDES; s++) {
        if (fsb_place_close(&place[s], &left) != 0)
            status = cli_fail(cli, "%s", left.text);
    }
    if (rc == -EINTR)
        return cli_fail(cli, "interrupted%s",
                        has_figures(results) ? "; these are the figures so far" : "");
    return rc != 0 ? cli_fail(cli, "%s", err.text) : status;
}

static int list_loads(struct cli *cli, const struct fs_args *args)
{
    struct fsb_load loads[FSB_LOADS_MAX];
    unsigned n = fsb_loads(&args->wish, FSB_MOUNTS_MAX, loads);

    for (unsigned i = 0; i < n; i++) {
        if (loads[i].n_mounts <= 1)
            printf("%-8s %s\n", loads[i].group, loads[i].name);
    }
    return cli_finish(cli);
}

int cmd_bench_fs(struct cli *cli, int argc, char **argv)
{
    static const struct args_option options[] = {
        { "cluster", 0, "DIR",
          "PATH is of this cluster of rozo dev: count the CPU time of its processes",
          ARGS_TEXT(struct fs_args, cluster[FSB_HERE]) },
        { "vs", 0, "PATH", "measure that in turn; prints the ratio",
          ARGS_TEXT(struct fs_args, vs) },
        { "vs-cluster", 0, "DIR", "the same for --vs",
          ARGS_TEXT(struct fs_args, cluster[FSB_THERE]) },
        { "mounts", 0, "PATH,...",
          "up to 3 further mounts of the same file system: how it scales with clients",
          ARGS_CALL(struct fs_args, mounts, mounts_arg) },
        { "only", 0, "WORD",
          "loads with WORD in their name, or of the group WORD; may come again",
          ARGS_CALL(struct fs_args, wish, only_arg) },
        { "list", 0, NULL, "print the groups and names of all loads",
          ARGS_FLAG(struct fs_args, list) },
        { "rounds", 0, "N", "of all loads; medians are printed (5)",
          ARGS_NUMBER(struct fs_args, wish.n_rounds, 1, FSB_ROUNDS_MAX) },
        { "size", 0, "MIB", "of what is streamed; a quarter for random I/O (512)",
          ARGS_NUMBER(struct fs_args, size_mib, 1, 1 << 20) },
        { "seconds", 0, "N", "of random I/O and fsync (3)",
          ARGS_NUMBER(struct fs_args, wish.seconds, 1, 3600) },
        { "files", 0, "N", "for metadata; a quarter for small files (10000)",
          ARGS_NUMBER(struct fs_args, wish.n_files, 1, 9999999) },
        { "tree", 0, "DIR", "what is copied in (" FSB_TREE ")",
          ARGS_TEXT(struct fs_args, wish.tree) },
        { "quick", 0, NULL, "1 round, 64 MiB, 1 s, 1000 files",
          ARGS_FLAG(struct fs_args, quick) },
        { "json", 0, "FILE", "write all figures there; -: to standard output",
          ARGS_TEXT(struct fs_args, json) },
        { "report", 0, "iozone",
          "instead of all that: rates over record size and file size, in the form of "
          "iozone -R",
          ARGS_CALL(struct fs_args, iozone, report_arg) },
        { "plot", 0, "FILE", "draw them as an SVG", ARGS_TEXT(struct fs_args, plot) },
        { NULL, 0, "PATH", NULL, ARGS_TEXT(struct fs_args, path), .optional = true },
        { 0 },
    };
    static const struct args_syntax syntax = {
        .options = options,
        .doc =
            "Measure the file system that PATH lies in, rozo or any other: streams, "
            "random I/O, fsync, metadata, small files, a tree. It works in a folder of "
            "its own, which it removes, and compares all it reads with what it wrote. "
            "Reads are cold at this client: the kernel has forgotten the contents and, "
            "if root runs it, the names.",
        .check = check
    };
    struct fs_args args = { .wish.tree = FSB_TREE };
    struct fsb_place *place = calloc(FSB_SIDES, sizeof(*place));
    struct fsb_results *results = calloc(1, sizeof(*results));
    int rc;

    if (place == NULL || results == NULL)
        return cli_fail(cli, "out of memory");
    args_parse(&syntax, argc, argv, &args);
    wish_complete(&args);
    fsb_catch_signals();
    rc = args.list ? list_loads(cli, &args) : bench(cli, &args, place, results);
    fsb_results_free(results);
    free(place);
    return rc;
}
