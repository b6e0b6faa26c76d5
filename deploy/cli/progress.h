/*
 * progress.h - a bar on the terminal for work that takes longer than a moment.
 */
#ifndef ROZO_DEPLOY_CLI_PROGRESS_H
#define ROZO_DEPLOY_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* Drawn on stderr, only if that is a terminal, and only after PROGRESS_DELAY_MS. */
struct progress {
    bool terminal;
    bool drawn;
    uint64_t start_ms;
    unsigned n_done, n_all;
    char what[64];
};

enum { PROGRESS_DELAY_MS = 700 };

/** Starts a bar of n_all steps. */
void progress_start(struct progress *p, unsigned n_all);
/**
 * Sets the current step and its description; it may be drawn later by progress_tick().
 */
void progress_at(struct progress *p, unsigned n_done, const char *what);
/** Redraws the bar. Call it often (every 100 ms or so) while waiting. */
void progress_tick(struct progress *p);
/** Wipes the bar. Call it before anything else is printed. */
void progress_end(struct progress *p);

/** Returns milliseconds of the monotonic clock. */
uint64_t clock_ms(void);

#endif
