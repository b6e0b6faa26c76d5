/*
 * env_virtual.c - a struct env on a virtual clock.
 *
 * In:     a seed; calls such as env_virtual_advance_ms().
 * Out:    timers and tasks in an order that depends only on the calls and the seed.
 */
#include "tests/lib/env_virtual.h"

#include <assert.h>
#include <string.h>

enum { TASKS_IN_A_MOMENT_MAX = 10 * 1000 * 1000 }; /* more tasks mean an endless loop */

static const int64_t wall_start_ns = 1767225600ll * 1000000000; /* 2026-01-01 */

static uint64_t virtual_now_ns(struct env *env)
{
    return ((struct env_virtual *)env)->now_ns;
}

static int64_t virtual_wall_ns(struct env *env)
{
    return wall_start_ns + (int64_t)((struct env_virtual *)env)->now_ns;
}

static void virtual_timer_start(struct env *env, struct env_timer *timer,
                                uint64_t after_ms)
{
    struct env_virtual *v = (struct env_virtual *)env;

    timers_start(&v->timers, timer, v->now_ns + after_ms * 1000000);
}

static void virtual_timer_stop(struct env *env, struct env_timer *timer)
{
    timers_stop(&((struct env_virtual *)env)->timers, timer);
}

static void virtual_post(struct env *env, struct env_task *task)
{
    tasks_push(&((struct env_virtual *)env)->tasks, task);
}

/* A Weyl sequence through a 64-bit finaliser (Steele, Lea, Flood, OOPSLA 2014). */
static uint64_t random_next(struct env_virtual *v)
{
    uint64_t x = v->random_state += 0x9e3779b97f4a7c15;

    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static void virtual_random(struct env *env, void *buf, size_t len_bytes)
{
    uint8_t *p = buf;

    while (len_bytes > 0) {
        uint64_t x = random_next((struct env_virtual *)env);
        size_t n = len_bytes < sizeof(x) ? len_bytes : sizeof(x);

        memcpy(p, &x, n);
        p += n;
        len_bytes -= n;
    }
}

static const struct env_ops virtual_ops = {
    .now_ns = virtual_now_ns,
    .wall_ns = virtual_wall_ns,
    .timer_start = virtual_timer_start,
    .timer_stop = virtual_timer_stop,
    .post = virtual_post,
    .random = virtual_random,
};

void env_virtual_init(struct env_virtual *v, uint64_t seed)
{
    *v = (struct env_virtual){
        .env = { .ops = &virtual_ops },
        .now_ns = 1000000000,
        .random_state = seed,
    };
}

void env_virtual_close(struct env_virtual *v)
{
    assert(v->tasks.head == NULL);
    timers_free(&v->timers);
}

void env_virtual_run_posted(struct env_virtual *v)
{
    struct env_task *task;
    unsigned n = 0;

    while ((task = tasks_pop(&v->tasks)) != NULL) {
        assert(++n < TASKS_IN_A_MOMENT_MAX);
        task->fn(task);
    }
}

/* Fires the timers due by target_ns, earliest first. Returns false if there is none. */
static bool fire_one_moment(struct env_virtual *v, uint64_t target_ns)
{
    uint64_t next_ns = timers_next_ns(&v->timers);
    uint64_t before_order = v->timers.order;
    struct env_timer *timer;

    if (next_ns > target_ns)
        return false;
    if (next_ns > v->now_ns)
        v->now_ns = next_ns;
    while ((timer = timers_pop_due(&v->timers, v->now_ns, before_order)) != NULL) {
        timer->fn(timer);
        env_virtual_run_posted(v);
    }
    return true;
}

void env_virtual_advance_ms(struct env_virtual *v, uint64_t ms)
{
    uint64_t target_ns = v->now_ns + ms * 1000000;
    unsigned n = 0;

    env_virtual_run_posted(v);
    while (fire_one_moment(v, target_ns))
        assert(++n < TASKS_IN_A_MOMENT_MAX);
    v->now_ns = target_ns;
}

bool env_virtual_run_next_timer(struct env_virtual *v)
{
    env_virtual_run_posted(v);
    return fire_one_moment(v, UINT64_MAX - 1);
}

bool env_virtual_run_until_idle(struct env_virtual *v, uint64_t max_ms)
{
    uint64_t limit_ns = v->now_ns + max_ms * 1000000;
    unsigned n = 0;

    env_virtual_run_posted(v);
    while (fire_one_moment(v, limit_ns))
        assert(++n < TASKS_IN_A_MOMENT_MAX);
    return v->timers.n == 0;
}

uint64_t env_virtual_below(struct env_virtual *v, uint64_t bound)
{
    assert(bound != 0);
    return random_next(v) % bound;
}
