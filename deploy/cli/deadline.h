/*
 * deadline.h - a deadline that becomes shorter once the user presses ^C.
 */
#ifndef ROZO_DEPLOY_CLI_DEADLINE_H
#define ROZO_DEPLOY_CLI_DEADLINE_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct deadline {
    uint64_t end_ms;   /* clock_ms() */
    uint32_t hurry_ms; /* once *stop is not 0: it ends within this time, or sooner */
    const volatile sig_atomic_t *stop; /* NULL: cannot be shortened */
    bool hurried;
};

/**
 * Returns whether the deadline is over. Call it often (every 100 ms or so) while waiting.
 */
bool deadline_is_over(struct deadline *p);

#endif
