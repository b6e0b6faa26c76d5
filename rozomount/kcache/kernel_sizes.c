/*
 * kernel_sizes.c - a hash of sizes that exportd last reported for files the kernel knows,
 * behind a mutex.
 *
 * Keeps:  memory is bounded by the kernel's own inode cache: FORGET removes an entry.
 */
#include "rozomount/kcache/kernel_sizes.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/base/hash.h"
#include "rozomount/options/xalloc.h"

struct kernel_size_entry {
    uint64_t ino;
    uint64_t size, change; /* as exportd reported after our last change */
    bool unsure;
    bool stale;
    UT_hash_handle hh;
};

struct kernel_sizes {
    pthread_mutex_t lock; /* guards by_ino */
    struct kernel_size_entry *by_ino;
};

struct kernel_sizes *kernel_sizes_new(void)
{
    struct kernel_sizes *sizes = xzalloc(sizeof(*sizes));

    pthread_mutex_init(&sizes->lock, NULL);
    return sizes;
}

void kernel_sizes_free(struct kernel_sizes *sizes)
{
    struct kernel_size_entry *e, *next;

    if (sizes == NULL)
        return;
    HASH_ITER(hh, sizes->by_ino, e, next)
    {
        HASH_DEL(sizes->by_ino, e);
        free(e);
    }
    pthread_mutex_destroy(&sizes->lock);
    free(sizes);
}

static void entry_set(struct kernel_size_entry *e, const struct kernel_size *said)
{
    e->size = said->size;
    e->change = said->change;
    e->unsure = false;
}

void kernel_sizes_note(struct kernel_sizes *sizes, const struct kernel_size *said)
{
    struct kernel_size_entry *e;

    pthread_mutex_lock(&sizes->lock);
    if (hash_find(sizes->by_ino, said->ino) == NULL) {
        e = xzalloc(sizeof(*e));
        e->ino = said->ino;
        entry_set(e, said);
        hash_add(sizes->by_ino, ino, e);
    }
    pthread_mutex_unlock(&sizes->lock);
}

void kernel_sizes_own(struct kernel_sizes *sizes, const struct kernel_size *said)
{
    struct kernel_size_entry *e;

    pthread_mutex_lock(&sizes->lock);
    e = hash_find(sizes->by_ino, said->ino);
    if (e != NULL && said->change > e->change)
        entry_set(e, said);
    pthread_mutex_unlock(&sizes->lock);
}

bool kernel_sizes_wrote(struct kernel_sizes *sizes, const struct kernel_size *said,
                        uint64_t longest)
{
    struct kernel_size_entry *e;
    bool stale = false;

    pthread_mutex_lock(&sizes->lock);
    e = hash_find(sizes->by_ino, said->ino);
    if (e != NULL && said->change > e->change) {
        if (said->change > e->change + 1 && !e->unsure) /* others changed it, too */
            e->stale |= said->size > longest || said->size < e->size;
        entry_set(e, said);
    }
    stale = e != NULL && e->stale;
    pthread_mutex_unlock(&sizes->lock);
    return stale;
}

void kernel_sizes_unsure(struct kernel_sizes *sizes, uint64_t ino)
{
    struct kernel_size_entry *e;

    pthread_mutex_lock(&sizes->lock);
    e = hash_find(sizes->by_ino, ino);
    if (e != NULL)
        e->unsure = true;
    pthread_mutex_unlock(&sizes->lock);
}

bool kernel_sizes_is_stale(struct kernel_sizes *sizes, const struct kernel_size *said)
{
    struct kernel_size_entry *e;
    bool stale;

    pthread_mutex_lock(&sizes->lock);
    e = hash_find(sizes->by_ino, said->ino);
    if (e != NULL && (said->change > e->change || e->unsure)) {
        e->stale |= !e->unsure && said->size != e->size;
        entry_set(e, said);
    }
    stale = e != NULL && e->stale;
    pthread_mutex_unlock(&sizes->lock);
    return stale;
}

void kernel_sizes_forget(struct kernel_sizes *sizes, uint64_t ino)
{
    struct kernel_size_entry *e;

    pthread_mutex_lock(&sizes->lock);
    e = hash_find(sizes->by_ino, ino);
    if (e != NULL) {
        HASH_DEL(sizes->by_ino, e);
        free(e);
    }
    pthread_mutex_unlock(&sizes->lock);
}
