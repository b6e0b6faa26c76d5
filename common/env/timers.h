/*
 * timers.h - the heap of running env_timers and the queue of posted env_tasks, shared by
 * all envs. For implementations of an env; cores use env.h.
 */
#ifndef ROZO_COMMON_ENV_TIMERS_H
#define ROZO_COMMON_ENV_TIMERS_H

#include "common/env/env.h"

/* Binary heap, earliest first, equal times in order of starting. Belongs to its env's
 * thread. */
struct timers {
    struct env_timer **heap; /* owned array of borrowed timers */
    uint32_t n, n_max;
    uint64_t order; /* order of the next timer started */
};

/** Frees the array; no timer may be running. A struct timers starts zeroed. */
void timers_free(struct timers *t);
/**
 * Starts or moves a timer. O(log n). Out of memory ends the process, as no wait could
 * ever end.
 */
void timers_start(struct timers *t, struct env_timer *timer, uint64_t expires_ns);
/** Stops a timer; an idle one is fine. O(log n). */
void timers_stop(struct timers *t, struct env_timer *timer);
/** Returns when the earliest timer expires; UINT64_MAX when none is running. */
uint64_t timers_next_ns(const struct timers *t);
/**
 * Takes the earliest timer that is due at now_ns and was started before `before_order`
 * (take t->order at the beginning of a turn: timers started during the turn wait for the
 * next). NULL: there is none. The caller calls fn.
 */
struct env_timer *timers_pop_due(struct timers *t, uint64_t now_ns,
                                 uint64_t before_order);

/* Posted tasks, first in, first out. Zero-initialise. */
struct tasks {
    struct env_task *head, *tail;
};

static inline void tasks_push(struct tasks *q, struct env_task *task)
{
    if (task->queued)
        return;
    task->queued = true;
    task->next = NULL;
    if (q->head == NULL)
        q->head = task;
    else
        q->tail->next = task;
    q->tail = task;
}
/**
 * Takes the first task; NULL when empty. The task may be posted again, or freed, from its
 * own fn.
 */
static inline struct env_task *tasks_pop(struct tasks *q)
{
    struct env_task *task = q->head;

    if (task != NULL) {
        q->head = task->next;
        task->queued = false;
    }
    return task;
}

#endif
