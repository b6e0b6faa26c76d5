/*
 * env_virtual.h - a struct env on a virtual clock, for tests: nothing in it takes time, and the
 * same seed gives the same run.
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
    struct env env; /* first */
    uint64_t now_ns;
    uint64_t random_state;
    struct timers timers;
    struct tasks tasks;
};

void env_virtual_init(struct env_virtual *v, uint64_t seed);
/** Nothing may be running or posted any more (asserted). */
void env_virtual_close(struct env_virtual *v);
/** Run what is posted, and what that posts, until nothing is. Time stands still. */
void env_virtual_run_posted(struct env_virtual *v);
/** Run what is posted, then let ms pass: timers fire at their time, each followed by its posts. */
void env_virtual_advance_ms(struct env_virtual *v, uint64_t ms);
/** Run what is posted, then jump to the next timer and fire all of that moment; false: none ran. */
bool env_virtual_run_next_timer(struct env_virtual *v);
/** Run posts and timers until neither is left; false when that took more than max_ms of its time. */
bool env_virtual_run_until_idle(struct env_virtual *v, uint64_t max_ms);
/** 0..bound - 1, from the env's random numbers; bound not 0. */
uint64_t env_virtual_below(struct env_virtual *v, uint64_t bound);

#endif
