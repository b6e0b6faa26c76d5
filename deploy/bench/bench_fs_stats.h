/*
 * bench_fs_stats.h - medians, spreads and percentiles.
 */
#ifndef ROZO_DEPLOY_BENCH_BENCH_FS_STATS_H
#define ROZO_DEPLOY_BENCH_BENCH_FS_STATS_H

#include <stdint.h>

enum {
    FSB_HIST_STEPS = 32,   /* of each power of two: percentiles are 3 % right */
    FSB_HIST_OCTAVES = 40, /* up to 18 minutes */
    FSB_HIST_BUCKETS = FSB_HIST_STEPS * FSB_HIST_OCTAVES,
};

/* How long operations took. Zero-initialise. */
struct fsb_hist {
    uint64_t count[FSB_HIST_BUCKETS];
    uint64_t n, max_ns;
};

void fsb_hist_add(struct fsb_hist *h, uint64_t ns);
void fsb_hist_merge(struct fsb_hist *to, const struct fsb_hist *from);
/** Nanoseconds that a share (0..1) of them did not exceed; 0 without any. Never more than the longest. */
uint64_t fsb_hist_share(const struct fsb_hist *h, double share);

/** Of n values, which are sorted by it. 0 without any. */
double fsb_median(double *values, unsigned n);
/** (most - least) / median of n values, sorted by it. 0 without any. */
double fsb_spread(double *values, unsigned n);

enum { FSB_TIME_TEXT = 12 };
/** "85 us", "12 ms", "1.5 s": at most six characters below 1000 s. Returns text. */
const char *fsb_time_text(char text[FSB_TIME_TEXT], double us);
/** A bar of `=`, `width` long when value is most, never longer. text has room for it. Returns text. */
const char *fsb_bar(char *text, unsigned width, double value, double most);

#endif
