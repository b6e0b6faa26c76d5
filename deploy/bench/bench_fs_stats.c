/*
 * bench_fs_stats.c - medians, spreads and percentiles.
 */
#include "deploy/bench/bench_fs_stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the bucket of a value. Below FSB_HIST_STEPS each value has one; above, each
 * power of two has FSB_HIST_STEPS. */
static unsigned bucket_of(uint64_t ns)
{
    unsigned octave, bucket;

    if (ns < FSB_HIST_STEPS)
        return (unsigned)ns;
    octave = 63 - (unsigned)__builtin_clzll(ns) - 5 + 1;
    bucket = octave * FSB_HIST_STEPS + (unsigned)(ns >> (octave - 1)) % FSB_HIST_STEPS;
    return bucket < FSB_HIST_BUCKETS ? bucket : FSB_HIST_BUCKETS - 1;
}

/* Returns the highest value of a bucket. */
static uint64_t bucket_end(unsigned bucket)
{
    unsigned octave = bucket / FSB_HIST_STEPS, step = bucket % FSB_HIST_STEPS;

    if (octave == 0)
        return step;
    return ((uint64_t)(FSB_HIST_STEPS + step + 1) << (octave - 1)) - 1;
}

void fsb_hist_add(struct fsb_hist *h, uint64_t ns)
{
    h->count[bucket_of(ns)]++;
    h->n++;
    if (ns > h->max_ns)
        h->max_ns = ns;
}

void fsb_hist_merge(struct fsb_hist *to, const struct fsb_hist *from)
{
    for (unsigned i = 0; i < FSB_HIST_BUCKETS; i++)
        to->count[i] += from->count[i];
    to->n += from->n;
    if (from->max_ns > to->max_ns)
        to->max_ns = from->max_ns;
}

uint64_t fsb_hist_share(const struct fsb_hist *h, double share)
{
    uint64_t wanted = (uint64_t)(share * (double)h->n + 0.5), seen = 0;

    for (unsigned i = 0; i < FSB_HIST_BUCKETS && h->n > 0; i++) {
        seen += h->count[i];
        if (seen >= wanted && seen > 0)
            return bucket_end(i) < h->max_ns ? bucket_end(i) : h->max_ns;
    }
    return h->max_ns;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

double fsb_median(double *values, unsigned n)
{
    if (n == 0)
        return 0;
    qsort(values, n, sizeof(*values), by_value);
    return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

double fsb_spread(double *values, unsigned n)
{
    double median = fsb_median(values, n);

    return median > 0 ? (values[n - 1] - values[0]) / median : 0;
}

const char *fsb_time_text(char text[FSB_TIME_TEXT], double us)
{
    static const char *const units[] = { "us", "ms", "s" };
    unsigned unit = 0;

    while (us >= 999.5 && unit < 2) {
        us /= 1000;
        unit++;
    }
    snprintf(text, FSB_TIME_TEXT, us < 9.95 && unit > 0 ? "%.1f %s" : "%.0f %s", us,
             units[unit]);
    return text;
}

const char *fsb_bar(char *text, unsigned width, double value, double most)
{
    double share = most > 0 && value > 0 ? value / most : 0;
    unsigned n = share >= 1 ? width : (unsigned)(share * width + 0.5);

    memset(text, '=', n);
    text[n] = '\0';
    return text;
}
