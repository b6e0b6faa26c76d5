/*
 * env_uv.c - a struct env on a libuv loop.
 *
 * In:     env ops, from the loop's thread; env_mailbox_post(), from any.
 * Out:    timers, tasks and mail, all on the loop's thread.
 * Keeps:  one uv_timer for all env_timers; tasks posted by I/O run in the same turn;
 *         env_now_ns() is sampled once a turn, when first asked for after the loop
 *         waited.
 * Yours:  TASKS_PER_DRAIN.
 */
#include "common/env/env_uv.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <time.h>

#include "common/base/units.h"
#include "common/env/timers.h"

enum {
    N_HANDLES = 5,
    TASKS_PER_DRAIN = 4096, /* then sockets and timers get their turn */
};

/* Bytes asked of the kernel at a time: choosing storages needs 8 bytes, many times. */
enum { CHANCE_BYTES = 256 };

struct env_uv_impl {
    struct timers timers;
    struct tasks tasks, last;        /* tasks in `last` wait until `tasks` is empty */
    uint64_t now_ns;                 /* 0: ask the clock */
    uint64_t armed_ns;               /* expiry of uv_timer; UINT64_MAX: stopped */
    _Atomic(struct env_mail *) mail; /* newest first; any thread pushes */
    uv_timer_t timer;
    uv_idle_t idle; /* runs while tasks are queued: the loop neither waits nor ends */
    uv_prepare_t prepare;
    uv_check_t check;
    uv_async_t async;
    unsigned n_handles;           /* not closed yet */
    uint8_t chance[CHANCE_BYTES]; /* random; unused from `chance_used` on */
    size_t chance_used;
};

static struct env_uv_impl *env_impl(struct env *env)
{
    return ((struct env_uv *)env)->impl;
}

static uint64_t uv_env_now_ns(struct env *env)
{
    struct env_uv_impl *impl = env_impl(env);

    if (impl->now_ns == 0)
        impl->now_ns = uv_hrtime();
    return impl->now_ns;
}

static int64_t uv_env_wall_ns(struct env *env)
{
    struct timespec now;

    (void)env;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)timespec_to_ns(now);
}

static void on_uv_timer(uv_timer_t *handle);

/* Makes the uv_timer wait for the earliest env_timer. */
static void timer_arm(struct env_uv_impl *impl)
{
    uint64_t next_ns = timers_next_ns(&impl->timers);
    uint64_t now_ns = uv_hrtime();

    if (next_ns == impl->armed_ns)
        return;
    impl->armed_ns = next_ns;
    if (next_ns == UINT64_MAX) {
        uv_timer_stop(&impl->timer);
        return;
    }
    uv_update_time(impl->timer.loop); /* the loop's clock may be a long turn old */
    uv_timer_start(&impl->timer, on_uv_timer,
                   next_ns <= now_ns ? 0 : ns_to_ms_up(next_ns - now_ns), 0);
}

static void on_uv_timer(uv_timer_t *handle)
{
    struct env_uv_impl *impl = handle->data;
    uint64_t before_order = impl->timers.order;
    struct env_timer *timer;

    impl->armed_ns = UINT64_MAX;
    impl->now_ns = uv_hrtime(); /* a new turn */
    while ((timer = timers_pop_due(&impl->timers, impl->now_ns, before_order)) != NULL)
        timer->fn(timer);
    timer_arm(impl);
}

static void uv_env_timer_start(struct env *env, struct env_timer *timer,
                               uint64_t after_ms)
{
    struct env_uv_impl *impl = env_impl(env);
    uint64_t now_ns = uv_env_now_ns(env);

    if (after_ms > ns_to_ms(UINT64_MAX / 4))
        after_ms = ns_to_ms(UINT64_MAX / 4);
    timers_start(&impl->timers, timer, now_ns + ms_to_ns(after_ms));
    /* If it is later than the armed time, on_uv_timer() will arm again. Waking early
     * costs less than moving the uv_timer for each of thousands of deadlines that never
     * fire. */
    if (timers_next_ns(&impl->timers) < impl->armed_ns)
        timer_arm(impl);
}

static void uv_env_timer_stop(struct env *env, struct env_timer *timer)
{
    struct env_uv_impl *impl = env_impl(env);

    timers_stop(&impl->timers, timer);
    if (impl->timers.n == 0)
        timer_arm(impl); /* an armed uv_timer would keep an idle loop from ending */
}

static void on_idle(uv_idle_t *handle)
{
    (void)handle;
}

static bool has_tasks(const struct env_uv_impl *impl)
{
    return impl->tasks.head != NULL || impl->last.head != NULL;
}

static void post_to(struct env_uv_impl *impl, struct tasks *queue, struct env_task *task)
{
    if (!has_tasks(impl))
        uv_idle_start(&impl->idle, on_idle);
    tasks_push(queue, task);
}

static void uv_env_post(struct env *env, struct env_task *task)
{
    struct env_uv_impl *impl = env_impl(env);

    post_to(impl, &impl->tasks, task);
}

void env_uv_post_last(struct env_uv *e, struct env_task *task)
{
    struct env_uv_impl *impl = e->impl;

    post_to(impl, &impl->last, task);
}

static void random_bytes(uint8_t *p, size_t len_bytes)
{
    while (len_bytes > 0) {
        ssize_t n = getrandom(p, len_bytes < 256 ? len_bytes : 256, 0);

        if (n < 0 && errno != EINTR)
            abort(); /* no secret can be made any more */
        if (n > 0) {
            p += n;
            len_bytes -= (size_t)n;
        }
    }
}

static void uv_env_random(struct env *env, void *buf, size_t len_bytes)
{
    struct env_uv_impl *impl = env_impl(env);

    if (len_bytes > sizeof(impl->chance) / 4) {
        random_bytes(buf, len_bytes);
        return;
    }
    if (len_bytes > sizeof(impl->chance) - impl->chance_used) {
        random_bytes(impl->chance, sizeof(impl->chance));
        impl->chance_used = 0;
    }
    memcpy(buf, impl->chance + impl->chance_used, len_bytes);
    /* used bytes are not left in memory */
    memset(impl->chance + impl->chance_used, 0, len_bytes);
    impl->chance_used += len_bytes;
}

static const struct env_ops uv_env_ops = {
    .now_ns = uv_env_now_ns,
    .wall_ns = uv_env_wall_ns,
    .timer_start = uv_env_timer_start,
    .timer_stop = uv_env_timer_stop,
    .post = uv_env_post,
    .random = uv_env_random,
};

static void tasks_drain(struct env_uv_impl *impl)
{
    struct env_task *task;

    for (unsigned i = 0; i < TASKS_PER_DRAIN; i++) {
        task = tasks_pop(&impl->tasks);
        if (task == NULL)
            task = tasks_pop(&impl->last);
        if (task == NULL) {
            uv_idle_stop(&impl->idle);
            return;
        }
        task->fn(task);
    }
}

/* Runs tasks posted by timers and closed handles, before the loop waits. */
static void on_prepare(uv_prepare_t *handle)
{
    struct env_uv_impl *impl = handle->data;

    tasks_drain(impl);
    impl->now_ns = 0;
}

/* Runs tasks posted by sockets, after the loop has waited and served them. */
static void on_check(uv_check_t *handle)
{
    tasks_drain(handle->data);
}

static void on_async(uv_async_t *handle)
{
    struct env_uv_impl *impl = handle->data;
    struct env_mail *newest =
        atomic_exchange_explicit(&impl->mail, NULL, memory_order_acquire);
    struct env_mail *oldest = NULL;

    while (newest != NULL) {
        struct env_mail *next = newest->next;

        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest != NULL) {
        struct env_mail *mail = oldest;

        oldest = mail->next; /* fn may free it */
        mail->fn(mail);
    }
}

void env_mailbox_post(struct env_uv *e, struct env_mail *mail)
{
    struct env_uv_impl *impl = e->impl;
    struct env_mail *head = atomic_load_explicit(&impl->mail, memory_order_relaxed);

    do {
        mail->next = head;
    } while (!atomic_compare_exchange_weak_explicit(
        &impl->mail, &head, mail, memory_order_release, memory_order_relaxed));
    if (head == NULL) /* otherwise a wake-up is under way already */
        uv_async_send(&impl->async);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct env_uv_impl *impl = handle->data;

    if (--impl->n_handles == 0)
        free(impl);
}

bool env_uv_frees_fds(struct env_uv *e, int error)
{
    struct rlimit limit = { .rlim_cur = RLIM_INFINITY };

    if ((error != EMFILE && error != ENFILE) || e->close_idle == NULL)
        return false;
    if (error == EMFILE) /* the limit may have been lowered meanwhile */
        getrlimit(RLIMIT_NOFILE, &limit);
    return e->close_idle(e->close_idle_arg,
                         limit.rlim_cur < UINT_MAX ? (unsigned)limit.rlim_cur : UINT_MAX);
}

int env_uv_init(struct env_uv *e, uv_loop_t *loop)
{
    struct env_uv_impl *impl = calloc(1, sizeof(*impl));
    int rc;

    if (impl == NULL)
        return -ENOMEM;
    rc = uv_async_init(loop, &impl->async, on_async); /* the only one that can fail */
    if (rc != 0) {
        free(impl);
        return rc;
    }
    impl->armed_ns = UINT64_MAX;
    impl->chance_used = sizeof(impl->chance);
    uv_timer_init(loop, &impl->timer);
    uv_idle_init(loop, &impl->idle);
    uv_prepare_init(loop, &impl->prepare);
    uv_check_init(loop, &impl->check);
    impl->timer.data = impl->idle.data = impl->prepare.data = impl->check.data = impl;
    impl->async.data = impl;
    uv_prepare_start(&impl->prepare, on_prepare);
    uv_check_start(&impl->check, on_check);
    uv_unref((uv_handle_t *)&impl->prepare);
    uv_unref((uv_handle_t *)&impl->check);
    impl->n_handles = N_HANDLES;
    e->env.ops = &uv_env_ops;
    e->loop = loop;
    e->impl = impl;
    e->close_idle = NULL;
    return 0;
}

void env_uv_close(struct env_uv *e)
{
    struct env_uv_impl *impl = e->impl;

    assert(!has_tasks(impl));
    assert(atomic_load(&impl->mail) == NULL);
    timers_free(&impl->timers);
    uv_close((uv_handle_t *)&impl->timer, on_handle_closed);
    uv_close((uv_handle_t *)&impl->idle, on_handle_closed);
    uv_close((uv_handle_t *)&impl->prepare, on_handle_closed);
    uv_close((uv_handle_t *)&impl->check, on_handle_closed);
    uv_close((uv_handle_t *)&impl->async, on_handle_closed);
    e->impl = NULL;
}
