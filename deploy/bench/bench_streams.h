/*
 * bench_streams.h - plays an editor on a mounted file system: streams of frames that have
 * to be there in time; shared by the files of `rozo bench streams`.
 */
#ifndef ROZO_DEPLOY_BENCH_BENCH_STREAMS_H
#define ROZO_DEPLOY_BENCH_BENCH_STREAMS_H

#include <jansson.h>
#include <stdio.h>

#include "deploy/bench/bench_fs.h"
#include "deploy/bench/frame_clock.h"

enum {
    STREAMS_MAX = 512, /* read and written together */
    STREAM_FRAME_MAX = 64 << 20,
    STREAM_FILE_MAX = 256 << 20, /* by default */
    /* By default. A mount of rozo has up to 16 MiB of a file in its own memory, which no
     * posix_fadvise() drops. */
    STREAM_FILE_MIN = 64 << 20,
    STREAM_TRIALS_MAX = 32,
};

/* Options of the user. */
struct streams_wish {
    unsigned n_reads, n_writes; /* streams, over all mounts */
    uint64_t rate;              /* bytes per second of each */
    uint64_t frame_bytes;       /* multiple of FSB_PAGE */
    uint64_t ahead_ms;
    unsigned seconds;    /* length of each trial */
    uint64_t file_bytes; /* size of each file, which is read in a circle */
    bool find;           /* search for the highest n_reads that holds */
};

enum streams_kind { STREAMS_READ, STREAMS_WRITE, STREAMS_KINDS };

/* All streams of one kind together. */
struct streams_sum {
    uint64_t n_frames, n_late, n_failed;
    double p50_us, p99_us, max_us;
    double spare_s; /* shortest time by which a frame was early */
};

/* One run with a number of streams. */
struct streams_trial {
    unsigned n_reads, n_writes;
    bool held; /* played to its end without a late frame */
    struct streams_sum of[STREAMS_KINDS];
};

struct streams_results {
    struct streams_trial trial[STREAM_TRIALS_MAX];
    unsigned n_trials;
};

/**
 * Plays, or searches. Prints a line for each second to `live` (NULL: none). Draws a bar.
 * @param place open; its files of streams are made as they are needed.
 * @param results zeros.
 * @return 0, also when frames were late; -EINTR: interrupted, the last trial is as far as
 * it came; -EIO: read other bytes than were written; other -errno with a message.
 */
int streams_measure(const struct fsb_place *place, const struct streams_wish *wish,
                    FILE *live, struct streams_results *results, struct err *err);

/* bench_streams_report.c */

/** Returns the trial with the most streams that held; NULL: none did. */
const struct streams_trial *streams_best(const struct streams_results *results);
/** Prints a table, 80 columns wide, and what it means. */
void streams_print(const struct streams_results *results, const struct streams_wish *wish,
                   FILE *to);
/** Returns all figures; docs/OPERATIONS.md has the form. NULL: out of memory. */
json_t *streams_json(const struct streams_results *results,
                     const struct streams_wish *wish, const struct fsb_place *place);

#endif
