/*
 * bench_fs_report.c - tables and JSON of the results of bench_fs.c.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "deploy/bench/bench_fs.h"
#include "deploy/cli/cli.h"
#include "deploy/cli/text_table.h"

enum { BAR_WIDTH = 12, RATIO_WIDTH = 10, RATIO_ONE = 5 };

/* Returns the median of the figure that pick() takes from each sample. */
static double median_of(const struct fsb_row *row, unsigned side,
                        double (*pick)(const struct fsb_sample *, unsigned), unsigned arg)
{
    double values[FSB_ROUNDS_MAX];

    for (unsigned i = 0; i < row->n_samples[side]; i++)
        values[i] = pick(&row->samples[side][i], arg);
    return fsb_median(values, row->n_samples[side]);
}

static double pick_figure(const struct fsb_sample *s, unsigned arg)
{
    (void)arg;
    return s->figure;
}

static double pick_latency(const struct fsb_sample *s, unsigned arg)
{
    return arg == 50 ? s->p50_us : s->p99_us;
}

/* CPU time by amount of work, in both units, since the unit of the row is not known
 * here. */
static double per(const struct fsb_sample *s, double cpu_s, bool gib)
{
    if (gib)
        return s->n_bytes == 0 ? 0 : cpu_s / ((double)s->n_bytes / (1 << 30));
    return s->n_ops == 0 ? 0 : cpu_s / (double)s->n_ops * 1e6;
}

enum { CPU_SYS = 16, CPU_GIB = 32, CPU_DAEMONS = 15 }; /* flags beside the kind */

static double pick_cpu(const struct fsb_sample *s, unsigned arg)
{
    unsigned kind = arg & 15;
    double cpu_s = 0;

    if (kind == CPU_DAEMONS) {
        for (unsigned k = 0; k < FSB_SELF; k++)
            cpu_s += s->cpu.user_s[k] + s->cpu.sys_s[k];
    } else {
        cpu_s = arg & CPU_SYS ? s->cpu.sys_s[kind] : s->cpu.user_s[kind];
    }
    return per(s, cpu_s, arg & CPU_GIB);
}

void fsb_summary(const struct fsb_row *row, unsigned side, struct fsb_summary *out)
{
    unsigned n = row->n_samples[side], gib = row->load->unit == FSB_MIB ? CPU_GIB : 0;
    double values[FSB_ROUNDS_MAX];

    memset(out, 0, sizeof(*out));
    for (unsigned i = 0; i < n; i++) {
        const struct fsb_sample *s = &row->samples[side][i];

        values[i] = s->figure;
        if (s->max_us > out->max_us)
            out->max_us = s->max_us;
    }
    out->spread = fsb_spread(values, n); /* sorts the values */
    out->best = values[n - 1];
    out->median = fsb_median(values, n);
    out->p50_us = median_of(row, side, pick_latency, 50);
    out->p99_us = median_of(row, side, pick_latency, 99);
    for (unsigned k = 0; k < FSB_KINDS; k++) {
        out->cpu.user_s[k] = median_of(row, side, pick_cpu, k | gib);
        out->cpu.sys_s[k] = median_of(row, side, pick_cpu, k | gib | CPU_SYS);
    }
    out->cpu_daemons = median_of(row, side, pick_cpu, CPU_DAEMONS | gib);
}

double fsb_ratio(const struct fsb_row *row)
{
    unsigned n = row->n_samples[FSB_HERE] < row->n_samples[FSB_THERE]
                     ? row->n_samples[FSB_HERE]
                     : row->n_samples[FSB_THERE];
    double values[FSB_ROUNDS_MAX];

    for (unsigned i = 0; i < n; i++) {
        double there = pick_figure(&row->samples[FSB_THERE][i], 0);

        values[i] = there > 0 ? pick_figure(&row->samples[FSB_HERE][i], 0) / there : 0;
    }
    return fsb_median(values, n);
}

static const char *row_name(const struct fsb_row *row, char out[FSB_NAME_MAX])
{
    if (row->load->n_mounts > 0)
        snprintf(out, FSB_NAME_MAX, "%s, %u", row->load->name, row->load->n_mounts);
    else
        snprintf(out, FSB_NAME_MAX, "%s", row->load->name);
    return out;
}

static void figure_cell(struct text_table *t, const struct fsb_row *row, unsigned side,
                        double figure)
{
    if (row->n_samples[side] == 0)
        text_table_cell(t, "-");
    else
        text_table_cell(t, figure < 99.5 ? "%.1f %s" : "%.0f %s", figure,
                        row->load->unit == FSB_MIB ? "MiB/s" : "/s");
}

static void time_cell(struct text_table *t, double us)
{
    char text[FSB_TIME_TEXT];

    text_table_cell(t, "%s", us > 0 ? fsb_time_text(text, us) : "-");
}

static void cpu_cell(struct text_table *t, const struct fsb_row *row, double cpu)
{
    if (cpu <= 0)
        text_table_cell(t, "-");
    else if (row->load->unit == FSB_MIB)
        text_table_cell(t, "%.2f s", cpu);
    else
        text_table_cell(t, "%.0f us", cpu);
}

/* Returns the largest median of rows that are drawn to one scale. */
static double most_of(const struct fsb_results *results, const struct fsb_row *like)
{
    double most = 0;

    for (unsigned i = 0; i < results->n_rows; i++) {
        const struct fsb_row *row = &results->rows[i];
        double median = median_of(row, FSB_HERE, pick_figure, 0);

        if (row->load->unit == like->load->unit &&
            strcmp(row->load->group, like->load->group) == 0 && median > most)
            most = median;
    }
    return most;
}

static void print_alone(const struct fsb_results *results, bool cpu, FILE *to)
{
    static const char *const heads[] = { "LOAD", ">RATE", "",    ">P50",
                                         ">P99", ">MAX",  ">CPU" };
    struct text_table t;

    text_table_init(&t, heads, cpu ? 7 : 6);
    for (unsigned i = 0; i < results->n_rows; i++) {
        const struct fsb_row *row = &results->rows[i];
        struct fsb_summary s = { 0 };
        char bar[BAR_WIDTH + 1], name[FSB_NAME_MAX];

        if (row->n_samples[FSB_HERE] > 0)
            fsb_summary(row, FSB_HERE, &s);
        else if (!row->impossible[FSB_HERE])
            continue;
        text_table_cell(&t, "%s", row_name(row, name));
        figure_cell(&t, row, FSB_HERE, s.median);
        text_table_cell(&t, "%-*s", BAR_WIDTH,
                        fsb_bar(bar, BAR_WIDTH, s.median, most_of(results, row)));
        time_cell(&t, s.p50_us);
        time_cell(&t, s.p99_us);
        time_cell(&t, s.max_us);
        if (cpu)
            cpu_cell(&t, row, s.cpu_daemons);
    }
    text_table_print(&t, to);
    text_table_free(&t);
}

static void print_vs(const struct fsb_results *results, bool cpu, FILE *to)
{
    static const char *const heads[] = { "LOAD",    ">HERE", ">THERE", ">RATIO",
                                         ">SPREAD", "",      ">CPU" };
    struct text_table t;

    text_table_init(&t, heads, cpu ? 7 : 6);
    for (unsigned i = 0; i < results->n_rows; i++) {
        const struct fsb_row *row = &results->rows[i];
        struct fsb_summary here = { 0 }, there = { 0 };
        double ratio = fsb_ratio(row);
        char bar[RATIO_WIDTH + 1], name[FSB_NAME_MAX];

        if (row->n_samples[FSB_HERE] > 0)
            fsb_summary(row, FSB_HERE, &here);
        if (row->n_samples[FSB_THERE] > 0)
            fsb_summary(row, FSB_THERE, &there);
        if (row->n_samples[FSB_HERE] + row->n_samples[FSB_THERE] == 0)
            continue;
        text_table_cell(&t, "%s", row_name(row, name));
        figure_cell(&t, row, FSB_HERE, here.median);
        figure_cell(&t, row, FSB_THERE, there.median);
        text_table_cell(&t, ratio > 0 ? "%.2f" : "-", ratio);
        text_table_cell(&t, here.spread + there.spread > 0 ? "%.0f %%" : "-",
                        100 * (here.spread > there.spread ? here.spread : there.spread));
        fsb_bar(bar, RATIO_WIDTH, ratio, (double)RATIO_WIDTH / RATIO_ONE);
        if (strlen(bar) >= RATIO_ONE)
            bar[RATIO_ONE - 1] = '|';
        text_table_cell(&t, "%-*s", RATIO_WIDTH, bar);
        if (cpu)
            cpu_cell(&t, row, here.cpu_daemons);
    }
    text_table_print(&t, to);
    text_table_free(&t);
}

static void cpu_pair_cell(struct text_table *t, const struct fsb_row *row, double user,
                          double sys)
{
    if (row->load->unit == FSB_MIB)
        text_table_cell(t, "%.2f+%.2f s", user, sys);
    else if (user < 9999.5 && sys < 9999.5)
        text_table_cell(t, "%.0f+%.0f us", user, sys);
    else
        text_table_cell(t, "%.0f+%.0f ms", user / 1000, sys / 1000);
}

/* Prints user and system time of each kind. */
static void print_cpu(const struct fsb_results *results, FILE *to)
{
    static const char *const heads[] = { "CPU, user+system", ">exportd", ">storaged",
                                         ">mount", ">this program" };
    struct text_table t;

    text_table_init(&t, heads, 5);
    for (unsigned i = 0; i < results->n_rows; i++) {
        const struct fsb_row *row = &results->rows[i];
        struct fsb_summary s;
        char name[FSB_NAME_MAX];

        if (row->n_samples[FSB_HERE] == 0)
            continue;
        fsb_summary(row, FSB_HERE, &s);
        text_table_cell(&t, "%s", row_name(row, name));
        for (unsigned k = 0; k < FSB_KINDS; k++)
            cpu_pair_cell(&t, row, s.cpu.user_s[k], s.cpu.sys_s[k]);
    }
    text_table_print(&t, to);
    text_table_free(&t);
}

static void print_peaks(const struct fsb_results *results, FILE *to)
{
    char text[HUMAN_BYTES_TEXT];

    fprintf(to, "Most memory of one process, ever:");
    for (unsigned k = 0; k < FSB_SELF; k++)
        fprintf(to, "%s %s %s", k == 0 ? "" : ",", fsb_kind_name(k),
                human_bytes(text, results->peak_bytes[FSB_HERE][k]));
    fprintf(to, ".\n");
}

void fsb_print(const struct fsb_results *results, bool vs, bool cpu, FILE *to)
{
    bool impossible = false;

    if (vs)
        print_vs(results, cpu, to);
    else
        print_alone(results, cpu, to);
    if (cpu) {
        fputc('\n', to);
        print_cpu(results, to);
        fprintf(to, "\nCPU: of all processes of the cluster; s for a GiB, us for an "
                    "operation.\n");
        print_peaks(results, to);
    }
    if (vs)
        fprintf(
            to,
            "SPREAD: (most - least) / median of the rounds, the larger one. Bar: | is "
            "1.\n");
    for (unsigned i = 0; i < results->n_rows; i++)
        impossible |= results->rows[i].impossible[FSB_HERE];
    if (impossible)
        fprintf(to, "-: that cannot be done there: no O_DIRECT, or no " FSB_TREE ".\n");
    if (results->warm_names)
        fprintf(to,
                "Names were looked up warm: only root can drop the kernel's entries.\n");
}

static json_t *cpu_json(const struct fsb_cpu *cpu, double scale)
{
    json_t *json = json_object();

    for (unsigned k = 0; k < FSB_KINDS; k++)
        json_object_set_new(json, fsb_kind_name(k),
                            json_pack("{s:f, s:f}", "user", cpu->user_s[k] * scale, "sys",
                                      cpu->sys_s[k] * scale));
    return json;
}

static json_t *side_json(const struct fsb_row *row, unsigned side, const char *path)
{
    json_t *rounds = json_array();
    struct fsb_summary sum;
    char name[FSB_NAME_MAX];

    fsb_summary(row, side, &sum);
    for (unsigned i = 0; i < row->n_samples[side]; i++) {
        const struct fsb_sample *s = &row->samples[side][i];

        json_array_append_new(
            rounds,
            json_pack("{s:f, s:f, s:I, s:I, s:f, s:f, s:f, s:o}", "figure", s->figure,
                      "seconds", s->wall_s, "operations", (json_int_t)s->n_ops, "bytes",
                      (json_int_t)s->n_bytes, "p50_us", s->p50_us, "p99_us", s->p99_us,
                      "max_us", s->max_us, "cpu_s", cpu_json(&s->cpu, 1)));
    }
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:o, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:f, s:o, "
        "s:o}",
        "test", row_name(row, name), "group", row->load->group, "unit",
        row->load->unit == FSB_MIB ? "MiB/s" : "1/s", "place",
        side == FSB_HERE ? "path" : "vs", "path", cli_json_path(path), "clients",
        (int)(row->load->n_mounts > 0 ? row->load->n_mounts : 1), "best", sum.best,
        "median", sum.median, "spread", sum.spread, "p50_us", sum.p50_us, "p99_us",
        sum.p99_us, "max_us", sum.max_us, "cpu_unit",
        row->load->unit == FSB_MIB ? "s/GiB" : "us", "cpu_daemons", sum.cpu_daemons,
        "cpu", cpu_json(&sum.cpu, 1), "rounds", rounds);
}

static json_t *peaks_json(const uint64_t peak[FSB_KINDS])
{
    json_t *json = json_object();

    for (unsigned k = 0; k < FSB_SELF; k++)
        json_object_set_new(json, fsb_kind_name(k), json_integer((json_int_t)peak[k]));
    return json;
}

json_t *fsb_json(const struct fsb_results *results, const struct fsb_wish *wish,
                 const struct fsb_place place[FSB_SIDES])
{
    json_t *tests = json_array(), *ratios = json_object();
    struct utsname un = { 0 };
    char name[FSB_NAME_MAX];

    uname(&un);
    for (unsigned i = 0; i < results->n_rows; i++) {
        const struct fsb_row *row = &results->rows[i];

        for (unsigned s = 0; s < FSB_SIDES; s++) {
            if (row->n_samples[s] > 0)
                json_array_append_new(tests, side_json(row, s, place[s].mount[0]));
        }
        if (row->n_samples[FSB_HERE] > 0 && row->n_samples[FSB_THERE] > 0)
            json_object_set_new(ratios, row_name(row, name), json_real(fsb_ratio(row)));
    }
    return json_pack(
        "{s:{s:I, s:s}, s:{s:I, s:i, s:i, s:i, s:s}, s:b, s:{s:o, s:o}, s:o, s:o}",
        "machine", "cpus", (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "kernel",
        un.release, "parameters", "size_bytes", (json_int_t)wish->size_bytes, "seconds",
        (int)wish->seconds, "files", (int)wish->n_files, "rounds", (int)wish->n_rounds,
        "version", ROZO_VERSION, "cold_names", !results->warm_names, "peak_bytes", "path",
        peaks_json(results->peak_bytes[FSB_HERE]), "vs",
        peaks_json(results->peak_bytes[FSB_THERE]), "ratios", ratios, "tests", tests);
}
