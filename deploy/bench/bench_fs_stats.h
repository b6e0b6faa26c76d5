/*
 * bench_fs_stats.h - medians, spreads and percentiles.
 */
#ifndef ROZO_DEPLOY_BENCH_BENCH_FS_STATS_H
#define ROZO_DEPLOY_BENCH_BENCH_FS_STATS_H

#include <stdint.h>

enum {
    FSB_HIST_STEPS = 32,   /* per power of two: percentiles are accurate to 3 % */
    FSB_HIST_OCTAVES = 40, /* up to 18 minutes */
    FSB_HIST_BUCKETS = FSB_HIST_STEPS * FSB_HIST_OCTAVES,
};

/* A histogram of durations. Zero-initialise. */
struct fsb_hist {
    uint64_t count[FSB_HIST_BUCKETS];
    uint64_t n, max_ns;
};

void fsb_hist_add(struct fsb_hist *h, uint64_t ns);
void fsb_hist_merge(struct fsb_hist *to, const struct fsb_hist *from);
/**
 * Returns the nanoseconds that a share (0..1) of them did not exceed, the longest at
 * most; 0 if there are none.
 */
uint64_t fsb_hist_share(const struct fsb_hist *h, double share);

/** Returns the median of n values, and sorts them; 0 if there are none. */
double fsb_median(double *values, unsigned n);
/** Returns (most - least) / median of n values, and sorts them; 0 if there are none. */
double fsb_spread(double *values, unsigned n);

enum { FSB_TIME_TEXT = 12 };
/**
 * Writes "85 us", "12 ms", "1.5 s": at most six characters below 1000 s. Returns text.
 */
const char *fsb_time_text(char text[FSB_TIME_TEXT], double us);
/**
 * Writes a bar of `=`, `width` long if value is most, never longer. text has room for it.
 * Returns text.
 */
const char *fsb_bar(char *text, unsigned width, double value, double most);

#endif
