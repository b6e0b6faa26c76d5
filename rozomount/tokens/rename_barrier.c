/*
 * rename_barrier.c - two short lists behind a mutex.
 *
 * In:     renames of this mount, recalls; any loop. Out: recalls that may go on.
 * Keeps:  I5, our half: a name that the kernel caches through a rename is noted before a
 *         recall looks for it.
 */
#include "rozomount/tokens/rename_barrier.h"

#include <pthread.h>
#include <stdlib.h>

#include "rozomount/options/xalloc.h"

struct rename_barrier {
    pthread_mutex_t lock; /* guards all members below */
    struct list_node under_way, waiters;
};

struct rename_barrier *rename_barrier_new(void)
{
    struct rename_barrier *r = xzalloc(sizeof(*r));

    pthread_mutex_init(&r->lock, NULL);
    list_init(&r->under_way);
    list_init(&r->waiters);
    return r;
}

void rename_barrier_free(struct rename_barrier *r)
{
    if (r == NULL)
        return;
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void rename_barrier_begin(struct rename_barrier *r, struct rename_under_way *u,
                          uint64_t dir, uint64_t dir2)
{
    u->dirs[0] = dir;
    u->dirs[1] = dir2;
    u->is_noted = true;
    pthread_mutex_lock(&r->lock);
    list_add_tail(&r->under_way, &u->link);
    pthread_mutex_unlock(&r->lock);
}

/* Needs the lock. */
static bool any_in(const struct rename_barrier *r, uint64_t dir)
{
    LIST_FOREACH(link, &r->under_way) {
        const struct rename_under_way *u =
            container_of(link, struct rename_under_way, link);

        if (u->dirs[0] == dir || u->dirs[1] == dir)
            return true;
    }
    return false;
}

void rename_barrier_end(struct rename_barrier *r, struct rename_under_way *u,
                        struct list_node *ready)
{
    if (!u->is_noted)
        return;
    u->is_noted = false;
    pthread_mutex_lock(&r->lock);
    list_remove(&u->link);
    LIST_FOREACH_SAFE(link, &r->waiters) {
        if (any_in(r, container_of(link, struct rename_waiter, link)->dir))
            continue;
        list_remove(link);
        list_add_tail(ready, link);
    }
    pthread_mutex_unlock(&r->lock);
}

bool rename_barrier_wait(struct rename_barrier *r, struct rename_waiter *w)
{
    bool waits;

    pthread_mutex_lock(&r->lock);
    waits = any_in(r, w->dir);
    if (waits)
        list_add_tail(&r->waiters, &w->link);
    pthread_mutex_unlock(&r->lock);
    return waits;
}
