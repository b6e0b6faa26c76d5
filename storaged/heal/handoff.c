/*
 * handoff.c - hints for writes that we hold for other storages, since those were down.
 *
 * In:     healer_handoff(), from our own storage; a timer. Thread: the healer's.
 * Out:    the hint log.
 * Keeps:  a client that dies before it reports which storages missed its writes leaves no
 *         gap that only a scrub would find. The client's own report is better (it knows
 *         the range exactly and comes soon), so it is waited for. Bounded: STOOD_IN_MAX
 *         ranges; above that the oldest is logged at once.
 */
#include <assert.h>
#include <stdlib.h>

#include "common/base/units.h"
#include "storaged/heal/healer_int.h"

enum {
    STOOD_IN_MAX = 4096,
    TICK_MS = 500,
    WAIT_MS = 4000, /* clients report within a second */
    JOIN_LOOK = 8,  /* number of newest ranges searched for one to join */
};

struct handoff {
    struct list_node link; /* in h->parts->handoffs.list */
    struct storcli_target target;
    uint32_t home;
    uint64_t first, end, version;
    uint64_t at_ns; /* time of the oldest part */
};

static void handoff_end(struct healer *h, struct handoff *s)
{
    assert(h->parts->handoffs.n > 0 && s->first < s->end);
    if (!hint_log_has(h->hints, s->home, &s->target.id, s->first, s->end, s->version))
        hint_log_note(h->hints, s->home, &s->target, s->first, s->end, s->version);
    list_remove(&s->link);
    h->parts->handoffs.n--;
    free(s);
}

static struct handoff *oldest(const struct healer *h)
{
    assert(!list_is_empty(&h->parts->handoffs.list));
    return container_of(h->parts->handoffs.list.next, struct handoff, link);
}

static bool joins(const struct handoff *s, const struct storcli_target *t, uint32_t home,
                  uint64_t first, uint64_t end)
{
    return s->home == home && file_id_equal(&s->target.id, &t->id) && first <= s->end &&
           end >= s->first;
}

static struct handoff *find_to_join(const struct healer *h,
                                    const struct storcli_target *target, uint32_t home,
                                    uint64_t first, uint64_t end)
{
    unsigned n = 0;

    for (struct list_node *node = h->parts->handoffs.list.prev;
         node != &h->parts->handoffs.list && n < JOIN_LOOK; node = node->prev, n++) {
        struct handoff *s = container_of(node, struct handoff, link);

        if (joins(s, target, home, first, end))
            return s;
    }
    return NULL;
}

void healer_handoff(struct healer *h, const struct storcli_target *target, uint32_t home,
                    uint64_t first, uint64_t end, uint64_t version)
{
    struct handoff *s;

    assert(first < end);
    if (h->stopping)
        return;
    s = find_to_join(h, target, home, first, end);
    if (s != NULL) {
        s->first = first < s->first ? first : s->first;
        s->end = end > s->end ? end : s->end;
        s->version = version > s->version ? version : s->version;
        return;
    }
    while (h->parts->handoffs.n >= STOOD_IN_MAX)
        handoff_end(h, oldest(h));
    assert(h->parts->handoffs.n < STOOD_IN_MAX);
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return; /* the client reports it, or a scrub finds it */
    s->target = *target;
    s->home = home;
    s->first = first;
    s->end = end;
    s->version = version;
    s->at_ns = env_now_ns(h->env);
    list_add_tail(&h->parts->handoffs.list, &s->link);
    h->parts->handoffs.n++;
}

static void on_timer(struct env_timer *timer)
{
    struct healer *h = container_of(timer, struct heal_parts, handoffs.timer)->h;
    uint64_t now = env_now_ns(h->env);

    env_timer_start(h->env, &h->parts->handoffs.timer, TICK_MS);
    while (!list_is_empty(&h->parts->handoffs.list) &&
           now - oldest(h)->at_ns >= ms_to_ns(WAIT_MS))
        handoff_end(h, oldest(h));
}

void handoff_init(struct healer *h)
{
    list_init(&h->parts->handoffs.list);
}

void handoff_start(struct healer *h)
{
    env_timer_init(&h->parts->handoffs.timer, on_timer);
    env_timer_start(h->env, &h->parts->handoffs.timer, TICK_MS);
}

/* Logs all waiting ranges now, since no report may come any more. */
void handoff_stop(struct healer *h)
{
    if (h->started)
        env_timer_stop(h->env, &h->parts->handoffs.timer);
    while (!list_is_empty(&h->parts->handoffs.list))
        handoff_end(h, oldest(h));
}
