/*
 * frame_clock.h - the times of a stream's frames: when each may be begun, and when it is
 * late. Takes the time as a number, so that tests can make it up.
 *
 * A player that has read-ahead in memory begins a frame as soon as there is room for it,
 * which is `ahead_ns` before the frame is shown. A recorder has a frame as soon as the
 * camera made it, and its memory is full `ahead_ns` later. One clock serves both.
 */
#ifndef ROZO_DEPLOY_BENCH_FRAME_CLOCK_H
#define ROZO_DEPLOY_BENCH_FRAME_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "deploy/bench/bench_fs_stats.h"

/* One stream. Set the first group, zeros otherwise. */
struct frame_clock {
    uint64_t start_ns;    /* frame 0 may be begun */
    uint64_t frame_bytes; /* > 0 */
    uint64_t rate;        /* bytes per second, > 0 */
    uint64_t ahead_ns;    /* from when a frame may be begun until it is late */
    uint64_t n_frames;    /* length of the stream */

    uint64_t n_done;    /* the next frame has this number */
    uint64_t n_skipped; /* frames done that were late before they were begun */
    uint64_t n_late;    /* frames done that ended after their time, or failed */
    uint64_t n_failed;  /* late ones whose call failed */
    uint64_t spare_ns;  /* shortest time from an end to when the frame was due; 0: late */
    struct fsb_hist took;
};

/** Returns the time from which the frame may be begun. */
uint64_t frame_begin_ns(const struct frame_clock *c, uint64_t frame);
/** Returns the time at which the frame must be there. */
uint64_t frame_due_ns(const struct frame_clock *c, uint64_t frame);
/** Returns when the last frame must be there. */
uint64_t frame_clock_end_ns(const struct frame_clock *c);
/**
 * Passes over frames whose time is over: nobody waits for them any more. They are late.
 * Returns how many.
 */
uint64_t frame_clock_skip(struct frame_clock *c, uint64_t now_ns);
/** Returns how long the next frame must still wait before it may be begun. */
uint64_t frame_clock_wait_ns(const struct frame_clock *c, uint64_t now_ns);
/** Counts the next frame, which was begun at begun_ns and ended at now_ns. */
void frame_clock_done(struct frame_clock *c, uint64_t begun_ns, uint64_t now_ns, bool ok);
/**
 * Returns how many frames are late at that time: those that were, and those whose time
 * has passed while they are not there.
 */
uint64_t frame_clock_late(const struct frame_clock *c, uint64_t now_ns);
/* The search for the highest number of streams that hold. */
struct stream_find {
    unsigned n;     /* number to try now */
    unsigned held;  /* highest that held; 0: none yet */
    unsigned broke; /* lowest that did not; 0: none yet */
    unsigned max;   /* highest that may be tried */
};

/**
 * Takes the outcome of a trial of n streams, and sets the next n. Returns false when the
 * search has ended: held and broke are then neighbours, or 5 % apart.
 */
bool stream_find_next(struct stream_find *find, bool held);

#endif
