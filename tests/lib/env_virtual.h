/*
 * env_virtual.h - a struct env on a virtual clock, for tests.
 *
 * Waiting costs no real time, and the same seed gives the same run.
 *
 *     struct env_virtual v;
 *     env_virtual_init(&v, 1);
 *     thing_start(&v.env, ...);
 *     env_virtual_advance_ms(&v, 500);
 *     env_virtual_close(&v);
 */
#ifndef ROZO_TESTS_LIB_ENV_VIRTUAL_H
#define ROZO_TESTS_LIB_ENV_VIRTUAL_H

#include "common/env/env.h"
#include "common/env/timers.h"

struct env_virtual {
    struct env env; /* must be the first member */
    uint64_t now_ns;
    uint64_t random_state;
    struct timers timers;
    struct tasks tasks;
};

void env_virtual_init(struct env_virtual *v, uint64_t seed);
/** Closes the env; no task may be posted any more (asserted). */
void env_virtual_close(struct env_virtual *v);
/** Runs the posted tasks, and those that they post,
 * until none is left. The clock stands still. */
void env_virtual_run_posted(struct env_virtual *v);
/** Runs the posted tasks, then advances the clock by
 * ms: timers fire in order, each with its posts. */
void env_virtual_advance_ms(struct env_virtual *v, uint64_t ms);
/** Runs the posted tasks, then advances to the next
 * timer and fires all of that time. False: none. */
bool env_virtual_run_next_timer(struct env_virtual *v);
/** Runs tasks and timers until none is left.
 * Returns false if a timer is left after max_ms. */
bool env_virtual_run_until_idle(struct env_virtual *v, uint64_t max_ms);
/** Returns a random number in 0..bound - 1 from the seed; bound must not be 0. */
uint64_t env_virtual_below(struct env_virtual *v, uint64_t bound);

#endif
