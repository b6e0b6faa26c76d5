/*
 * name_inval.c - a list of what is being dropped behind a mutex, and a count of listings by hash of their directory.
 *
 * In:     recalls, changes of names that exportd sends back, listings; any loop. Out: what need not be waited for.
 * Keeps:  I5, our half: names that the kernel may still believe, or come to believe, are not taken for old.
 */
#include "rozomount/kcache/name_inval.h"

#include <pthread.h>
#include <stdlib.h>

#include "rozomount/options/xalloc.h"
#include "rozomount/tokens/token_cache.h"

enum { LISTING_SLOTS = 1024 };

struct dropping {
    pthread_mutex_t lock; /* guards all below; after that of the tokens */
    struct list_node drops;
    unsigned listings[LISTING_SLOTS]; /* on their way, by hash of the directory */
};

/* What is made old, and what not. */
struct old {
    const struct dropping *dropping;
    const uint64_t *locked;
};

struct dropping *dropping_new(void)
{
    struct dropping *dropping = mem_new(sizeof(*dropping));

    pthread_mutex_init(&dropping->lock, NULL);
    list_init(&dropping->drops);
    return dropping;
}

void dropping_free(struct dropping *dropping)
{
    if (dropping == NULL)
        return;
    pthread_mutex_destroy(&dropping->lock);
    free(dropping);
}

static unsigned slot_of(uint64_t dir)
{
    return (dir * 0x9e3779b97f4a7c15u >> 40) % LISTING_SLOTS;
}

static bool is_locked(const uint64_t *locked, uint64_t dir)
{
    for (unsigned i = 0; i < DROPPING_LOCKED_MAX; i++) {
        if (locked[i] == dir)
            return true;
    }
    return false;
}

void dropping_begin(struct dropping *dropping, struct dropped_names *drop, uint64_t dir,
                    uint64_t now_ns)
{
    *drop = (struct dropped_names){ .dir = dir, .since_ns = now_ns };
    pthread_mutex_lock(&dropping->lock);
    list_add_tail(&dropping->drops, &drop->link);
    pthread_mutex_unlock(&dropping->lock);
}

void dropping_end(struct dropping *dropping, struct dropped_names *drop)
{
    pthread_mutex_lock(&dropping->lock);
    list_remove(&drop->link);
    pthread_mutex_unlock(&dropping->lock);
}

bool dropping_is_old(struct dropping *dropping, const struct dropped_names *drop)
{
    bool is_old;

    pthread_mutex_lock(&dropping->lock);
    is_old = drop->is_old;
    pthread_mutex_unlock(&dropping->lock);
    return is_old;
}

bool dropping_needs_lock(struct dropping *dropping, const uint64_t *locked,
                         uint64_t now_ns)
{
    bool need = false;

    pthread_mutex_lock(&dropping->lock);
    LIST_FOREACH(link, &dropping->drops) {
        const struct dropped_names *drop = container_of(link, struct dropped_names, link);

        need |= is_locked(locked, drop->dir) ||
                now_ns >= drop->since_ns + DROPPING_LONG_MS * 1000000ull;
    }
    pthread_mutex_unlock(&dropping->lock);
    return need;
}

void dropping_listing_goes(struct dropping *dropping, uint64_t dir)
{
    pthread_mutex_lock(&dropping->lock);
    dropping->listings[slot_of(dir)]++;
    pthread_mutex_unlock(&dropping->lock);
}

void dropping_listing_came(struct dropping *dropping, uint64_t dir)
{
    pthread_mutex_lock(&dropping->lock);
    dropping->listings[slot_of(dir)]--;
    pthread_mutex_unlock(&dropping->lock);
}

static bool is_old(void *arg, uint64_t dir)
{
    const struct old *old = arg;

    return is_locked(old->locked, dir) || old->dropping->listings[slot_of(dir)] == 0;
}

void dropping_made_old(struct dropping *dropping, struct tokens *tokens,
                       const uint64_t *locked)
{
    struct old old = { dropping, locked };

    pthread_mutex_lock(&dropping->lock);
    tokens_forget_names(tokens, is_old, &old);
    LIST_FOREACH_SAFE(link, &dropping->drops) {
        struct dropped_names *drop = container_of(link, struct dropped_names, link);

        if (!is_old(&old, drop->dir))
            continue;
        drop->is_old = true;
        list_remove(link);
    }
    pthread_mutex_unlock(&dropping->lock);
}
