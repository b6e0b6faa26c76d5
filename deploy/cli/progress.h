/*
 * progress.h - a bar on the terminal for what takes longer than a moment.
 */
#ifndef ROZO_DEPLOY_CLI_PROGRESS_H
#define ROZO_DEPLOY_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* On stderr, only when that is a terminal, and only after PROGRESS_DELAY_MS. */
struct progress {
    bool terminal;
    bool drawn;
    uint64_t start_ms;
    unsigned n_done, n_all;
    char what[64];
};

enum { PROGRESS_DELAY_MS = 700 };

/** n_all steps to come. */
void progress_start(struct progress *p, unsigned n_all);
/** What is being waited for now; may be drawn later by progress_tick(). */
void progress_at(struct progress *p, unsigned n_done, const char *what);
/** Call often (each 100 ms or so) while waiting. */
void progress_tick(struct progress *p);
/** Wipe the bar. Before anything else is printed. */
void progress_end(struct progress *p);

/** Milliseconds of the monotonic clock. */
uint64_t clock_ms(void);

#endif
