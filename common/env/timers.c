/*
 * timers.c - a binary heap of env_timers.
 *
 * In:     timers_start(), timers_stop(), from an env's ops. Thread: the env's.
 * Out:    timers_pop_due(). Knows no clock: times come from outside.
 * Keeps:  heap[timer->heap_index] == timer for every running timer.
 */
#include "common/env/timers.h"

#include <assert.h>
#include <stdlib.h>

static bool is_before(const struct env_timer *a, const struct env_timer *b)
{
    if (a->expires_ns != b->expires_ns)
        return a->expires_ns < b->expires_ns;
    return a->order < b->order;
}

static void put(struct timers *t, uint32_t i, struct env_timer *timer)
{
    t->heap[i] = timer;
    timer->heap_index = i;
}

static void sift_up(struct timers *t, uint32_t i, struct env_timer *timer)
{
    while (i > 0 && is_before(timer, t->heap[(i - 1) / 2])) {
        put(t, i, t->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    put(t, i, timer);
}

static void sift_down(struct timers *t, uint32_t i, struct env_timer *timer)
{
    for (;;) {
        uint32_t child = 2 * i + 1;

        if (child >= t->n)
            break;
        if (child + 1 < t->n && is_before(t->heap[child + 1], t->heap[child]))
            child++;
        if (!is_before(t->heap[child], timer))
            break;
        put(t, i, t->heap[child]);
        i = child;
    }
    put(t, i, timer);
}

static void heap_grow(struct timers *t)
{
    t->n_max = t->n_max == 0 ? 64 : t->n_max * 2;
    t->heap = realloc(t->heap, t->n_max * sizeof(t->heap[0]));
    if (t->heap == NULL)
        abort();
}

void timers_free(struct timers *t)
{
    assert(t->n == 0);
    free(t->heap);
    t->heap = NULL;
    t->n_max = 0;
}

void timers_start(struct timers *t, struct env_timer *timer, uint64_t expires_ns)
{
    timers_stop(t, timer);
    if (t->n == t->n_max)
        heap_grow(t);
    timer->expires_ns = expires_ns;
    timer->order = t->order++;
    sift_up(t, t->n++, timer);
}

void timers_stop(struct timers *t, struct env_timer *timer)
{
    uint32_t i = timer->heap_index;
    struct env_timer *last;

    if (!env_timer_is_running(timer))
        return;
    assert(i < t->n && t->heap[i] == timer);
    timer->heap_index = ENV_TIMER_IDLE;
    last = t->heap[--t->n];
    if (last == timer)
        return;
    if (i > 0 && is_before(last, t->heap[(i - 1) / 2]))
        sift_up(t, i, last);
    else
        sift_down(t, i, last);
}

uint64_t timers_next_ns(const struct timers *t)
{
    return t->n == 0 ? UINT64_MAX : t->heap[0]->expires_ns;
}

struct env_timer *timers_pop_due(struct timers *t, uint64_t now_ns, uint64_t before_order)
{
    struct env_timer *timer;

    if (t->n == 0)
        return NULL;
    timer = t->heap[0];
    if (timer->expires_ns > now_ns || timer->order >= before_order)
        return NULL;
    timers_stop(t, timer);
    return timer;
}
