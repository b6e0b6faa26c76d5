/*
 * patience.h - how long to wait, and how much longer once somebody has pressed ^C.
 */
#ifndef ROZO_DEPLOY_CLI_PATIENCE_H
#define ROZO_DEPLOY_CLI_PATIENCE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct patience {
    uint64_t end_ms;   /* clock_ms() */
    uint32_t hurry_ms; /* it ends so soon, or sooner, once *stop is not 0 */
    const volatile sig_atomic_t *stop; /* NULL: nobody can hurry it */
    bool hurried;
};

/** Is it over? Ask often (each 100 ms or so) while waiting. */
bool patience_is_over(struct patience *p);

#endif
