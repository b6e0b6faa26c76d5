/*
 * core_watch.c - see core_watch.h.
 *
 * In:     questions, answers, looks. Out: how long the core has hung.
 * Keeps:  a core that takes calls does not hang, however long one turn of its loop is.
 */
#include "exportd/quorum/core_watch.h"

#include <assert.h>

void core_watch_asked(struct core_watch *w, uint64_t now_ns)
{
    assert(!w->is_asked);
    w->is_asked = true;
    w->alive_ns = now_ns;
}

void core_watch_answered(struct core_watch *w)
{
    assert(w->is_asked);
    w->is_asked = false;
}

uint64_t core_watch_look(struct core_watch *w, uint64_t now_ns)
{
    uint64_t n_calls = w->n_calls, since_ns = w->serves_since_ns;

    if (n_calls != w->n_seen)
        w->alive_ns = now_ns;
    w->n_seen = n_calls;
    if (!w->is_asked || since_ns == 0)
        return 0;
    if (since_ns < w->alive_ns)
        since_ns = w->alive_ns;
    return now_ns > since_ns ? now_ns - since_ns : 0;
}
