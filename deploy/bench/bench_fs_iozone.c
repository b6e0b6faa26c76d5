/*
 * bench_fs_iozone.c - rates by record size and file size, in the form of `iozone -R`.
 *
 * In:     a place, a wish whose size is that of the largest file.
 * Out:    a report for each kind of access: KiB per second, a row per file size, a column
 *         per record size.
 * Keeps:  writers end with fsync, within their time; readers find nothing in the kernel's
 *         cache, re-readers all of it: as `iozone -a -e -U` does.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "deploy/bench/bench_fs.h"

enum {
    FILE_MIN = 64 << 10,
    RECORD_MIN = 4 << 10,
    N_RECORDS = 9, /* 4 KiB to 1 MiB */
    N_SIZES = 20,
    N_REPORTS = 6,
};

static const struct {
    const char *name;
    unsigned flags;
} reports[N_REPORTS] = {
    { "Writer", FSB_ONCE | FSB_NEW },
    { "Re-writer", FSB_ONCE },
    { "Reader", FSB_ONCE | FSB_READS },
    { "Re-Reader", FSB_ONCE | FSB_READS | FSB_WARM },
    { "Random Read", FSB_ONCE | FSB_READS | FSB_RANDOM },
    { "Random Write", FSB_ONCE | FSB_RANDOM },
};

struct iozone {
    double mib_s[N_REPORTS][N_SIZES][N_RECORDS]; /* 0: not measured */
    unsigned n_sizes;
};

static void rows_fill(struct fsb_results *results, uint64_t file_bytes)
{
    memset(results, 0, sizeof(*results));
    for (unsigned i = 0; i < N_RECORDS * N_REPORTS; i++) {
        uint32_t record_bytes = (uint32_t)RECORD_MIN << i / N_REPORTS;
        struct fsb_load *load = &results->loads[results->n_rows];

        if (record_bytes > file_bytes)
            break;
        *load = (struct fsb_load){ .name = reports[i % N_REPORTS].name,
                                   .group = "iozone",
                                   .unit = FSB_MIB,
                                   .prepare = fsb_data_prepare,
                                   .work = fsb_data_work,
                                   .check = fsb_data_check,
                                   .n_jobs = 1,
                                   .record_bytes = record_bytes,
                                   .flags = reports[i % N_REPORTS].flags };
        results->rows[results->n_rows++].load = load;
    }
}

/* Measures all record sizes for one file size. */
static int size_measure(struct fsb_place place[FSB_SIDES], const struct fsb_wish *wish,
                        struct iozone *out, struct err *err)
{
    struct fsb_results *results = calloc(1, sizeof(*results));
    int rc;

    if (results == NULL)
        return err_wrap(err, -ENOMEM, "measure");
    rows_fill(results, wish->size_bytes);
    rc = fsb_measure(place, wish, results, err);
    for (unsigned i = 0; i < results->n_rows; i++) {
        const struct fsb_row *row = &results->rows[i];
        struct fsb_summary s = { 0 };

        if (row->n_samples[FSB_HERE] > 0)
            fsb_summary(row, FSB_HERE, &s);
        out->mib_s[i % N_REPORTS][out->n_sizes][i / N_REPORTS] = s.median;
    }
    out->n_sizes++;
    fsb_results_free(results);
    return rc;
}

static void report_print(const struct iozone *z, unsigned report, FILE *to)
{
    char name[16];

    fprintf(to, "\"%s report\"\n%8s", reports[report].name, "");
    for (unsigned r = 0; r < N_RECORDS; r++) {
        snprintf(name, sizeof(name), "\"%u\"", (RECORD_MIN << r) / 1024);
        fprintf(to, " %8s", name);
    }
    fputc('\n', to);
    for (unsigned s = 0; s < z->n_sizes; s++) {
        snprintf(name, sizeof(name), "\"%u\"", (FILE_MIN >> 10) << s);
        fprintf(to, "%-8s", name);
        for (unsigned r = 0; r < N_RECORDS && z->mib_s[report][s][r] > 0; r++)
            fprintf(to, " %8.0f", z->mib_s[report][s][r] * 1024);
        fputc('\n', to);
    }
    fputc('\n', to);
}

int fsb_iozone(struct fsb_place place[FSB_SIDES], const struct fsb_wish *wish, FILE *to,
               struct err *err)
{
    struct iozone *z = calloc(1, sizeof(*z));
    int rc = z == NULL ? err_wrap(err, -ENOMEM, "measure") : 0;

    for (unsigned s = 0; s < N_SIZES && rc == 0; s++) {
        struct fsb_wish one = *wish;

        one.size_bytes = (uint64_t)FILE_MIN << s;
        if (one.size_bytes > wish->size_bytes)
            break;
        rc = size_measure(place, &one, z, err);
    }
    if (z != NULL && z->mib_s[0][0][0] > 0) {
        fprintf(to,
                "KiB/s; rows: size of the file in KiB, columns: of a record. Writers\n"
                "end with fsync, readers are cold, re-readers are not.\n\n");
        for (unsigned i = 0; i < N_REPORTS; i++)
            report_print(z, i, to);
    }
    free(z);
    return rc;
}
