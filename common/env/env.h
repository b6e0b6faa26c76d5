/*
 * env.h - the world as a core sees it: time, timers, posted tasks, random bytes.
 *
 * A core never includes uv.h and never calls time() or rand(): it has a struct env. The
 * shell makes one per libuv loop (env_uv.h), tests make one on a virtual clock
 * (env_virtual.h). An env belongs to one thread; only env_mailbox_post() (env_uv.h) may
 * come from another.
 */
#ifndef ROZO_COMMON_ENV_ENV_H
#define ROZO_COMMON_ENV_ENV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct env;

/* One moment in the future. Owned by its user, embedded; zero-initialise, then
 * env_timer_init(). */
struct env_timer {
    /* on the env's thread, never inside env_timer_start() */
    void (*fn)(struct env_timer *timer);
    uint64_t expires_ns; /* on env_now_ns()'s clock */
    uint64_t order;      /* the env's: equal times fire in order of starting */
    uint32_t heap_index; /* the env's; ENV_TIMER_IDLE when not running */
};
enum { ENV_TIMER_IDLE = UINT32_MAX };

/* Task to run later in this turn of the loop, in order of posting. Owned by its user. */
struct env_task {
    void (*fn)(struct env_task *task);
    struct env_task *next; /* the env's */
    bool queued;           /* the env's; posting a queued task again does nothing */
};

/* Task for another thread's env. Owned by its sender until fn runs. */
struct env_mail {
    void (*fn)(struct env_mail *mail);
    struct env_mail *next; /* the mailbox's */
};

struct env_ops {
    uint64_t (*now_ns)(struct env *env);
    int64_t (*wall_ns)(struct env *env);
    void (*timer_start)(struct env *env, struct env_timer *timer, uint64_t after_ms);
    void (*timer_stop)(struct env *env, struct env_timer *timer);
    void (*post)(struct env *env, struct env_task *task);
    void (*random)(struct env *env, void *buf, size_t len_bytes);
};
struct env {
    const struct env_ops *ops;
};

/**
 * Returns monotonic nanoseconds; they start anywhere, and stay constant during one turn
 * of the loop.
 */
static inline uint64_t env_now_ns(struct env *env)
{
    return env->ops->now_ns(env);
}
/**
 * Returns nanoseconds since 1970 by this machine's clock. For stamps people read; decides
 * nothing (I11).
 */
static inline int64_t env_wall_ns(struct env *env)
{
    return env->ops->wall_ns(env);
}
static inline void env_timer_init(struct env_timer *timer, void (*fn)(struct env_timer *))
{
    timer->fn = fn;
    timer->heap_index = ENV_TIMER_IDLE;
}
static inline bool env_timer_is_running(const struct env_timer *timer)
{
    return timer->heap_index != (uint32_t)ENV_TIMER_IDLE;
}
/**
 * Fires once in after_ms (at the earliest in the next turn). A running timer is moved.
 */
static inline void env_timer_start(struct env *env, struct env_timer *timer,
                                   uint64_t after_ms)
{
    env->ops->timer_start(env, timer, after_ms);
}
/** Stops a timer: fn does not come any more. Stopping an idle timer is fine. */
static inline void env_timer_stop(struct env *env, struct env_timer *timer)
{
    env->ops->timer_stop(env, timer);
}
static inline void env_post(struct env *env, struct env_task *task)
{
    env->ops->post(env, task);
}
/** Fills buf with random bytes: cryptographic in the shell, seeded in tests. */
static inline void env_random(struct env *env, void *buf, size_t len_bytes)
{
    env->ops->random(env, buf, len_bytes);
}

#endif
