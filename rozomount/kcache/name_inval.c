/*
 * name_inval.c - a list of names being dropped, and a count of listings by hash of their
 * directory, behind a mutex.
 *
 * In:     recalls, changes of names that exportd defers, listings; any loop.
 * Out:    drops that need no wait.
 * Keeps:  I5, our half: names that the kernel may still cache, or come to cache, do not
 *         count as invalidated.
 */
#include "rozomount/kcache/name_inval.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/base/units.h"
#include "rozomount/options/xalloc.h"
#include "rozomount/tokens/token_cache.h"

enum { LISTING_SLOTS = 1024 };

struct name_inval {
    pthread_mutex_t lock; /* guards all below; after that of the tokens */
    struct list_node drops;
    /* listings on their way, by hash of the directory */
    unsigned listings[LISTING_SLOTS];
};

/* Arguments of is_old(). */
struct old {
    const struct name_inval *name_inval;
    const uint64_t *locked;
};

struct name_inval *name_inval_new(void)
{
    struct name_inval *name_inval = xzalloc(sizeof(*name_inval));

    pthread_mutex_init(&name_inval->lock, NULL);
    list_init(&name_inval->drops);
    return name_inval;
}

void name_inval_free(struct name_inval *name_inval)
{
    if (name_inval == NULL)
        return;
    pthread_mutex_destroy(&name_inval->lock);
    free(name_inval);
}

static unsigned slot_of(uint64_t dir)
{
    return (dir * 0x9e3779b97f4a7c15u >> 40) % LISTING_SLOTS;
}

static bool is_locked(const uint64_t *locked, uint64_t dir)
{
    for (unsigned i = 0; i < NAME_INVAL_LOCKED_MAX; i++) {
        if (locked[i] == dir)
            return true;
    }
    return false;
}

void name_inval_begin(struct name_inval *name_inval, struct dropped_names *drop,
                      uint64_t dir, uint64_t now_ns)
{
    *drop = (struct dropped_names){ .dir = dir, .since_ns = now_ns };
    pthread_mutex_lock(&name_inval->lock);
    list_add_tail(&name_inval->drops, &drop->link);
    pthread_mutex_unlock(&name_inval->lock);
}

void name_inval_end(struct name_inval *name_inval, struct dropped_names *drop)
{
    pthread_mutex_lock(&name_inval->lock);
    list_remove(&drop->link);
    pthread_mutex_unlock(&name_inval->lock);
}

bool name_inval_is_old(struct name_inval *name_inval, const struct dropped_names *drop)
{
    bool is_old;

    pthread_mutex_lock(&name_inval->lock);
    is_old = drop->is_old;
    pthread_mutex_unlock(&name_inval->lock);
    return is_old;
}

bool name_inval_needs_lock(struct name_inval *name_inval, const uint64_t *locked,
                           uint64_t now_ns)
{
    bool need = false;

    pthread_mutex_lock(&name_inval->lock);
    LIST_FOREACH(link, &name_inval->drops) {
        const struct dropped_names *drop = container_of(link, struct dropped_names, link);

        need |= is_locked(locked, drop->dir) ||
                now_ns >= drop->since_ns + ms_to_ns(NAME_INVAL_LONG_MS);
    }
    pthread_mutex_unlock(&name_inval->lock);
    return need;
}

void name_inval_listing_goes(struct name_inval *name_inval, uint64_t dir)
{
    pthread_mutex_lock(&name_inval->lock);
    name_inval->listings[slot_of(dir)]++;
    pthread_mutex_unlock(&name_inval->lock);
}

void name_inval_listing_came(struct name_inval *name_inval, uint64_t dir)
{
    pthread_mutex_lock(&name_inval->lock);
    name_inval->listings[slot_of(dir)]--;
    pthread_mutex_unlock(&name_inval->lock);
}

static bool is_old(void *arg, uint64_t dir)
{
    const struct old *old = arg;

    return is_locked(old->locked, dir) || old->name_inval->listings[slot_of(dir)] == 0;
}

void name_inval_made_old(struct name_inval *name_inval, struct token_cache *tokens,
                         const uint64_t *locked)
{
    struct old old = { name_inval, locked };

    pthread_mutex_lock(&name_inval->lock);
    token_cache_forget_names(tokens, is_old, &old);
    LIST_FOREACH_SAFE(link, &name_inval->drops) {
        struct dropped_names *drop = container_of(link, struct dropped_names, link);

        if (!is_old(&old, drop->dir))
            continue;
        drop->is_old = true;
        list_remove(link);
    }
    pthread_mutex_unlock(&name_inval->lock);
}
