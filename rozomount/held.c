/*
 * held.c - ranges by (inode, kind, owner) behind a mutex.
 */
#include "rozomount/held.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

#include "common/spans.h"
#include "rozomount/mem.h"

/* Compared as bytes: zeroed before it is filled. */
struct held_key {
    uint64_t ino, owner, flock;
};

struct held_owner {
    struct held_key key;
    uint32_t pid;
    struct spans ranges;
    UT_hash_handle hh;
};

struct held {
    pthread_mutex_t lock; /* guards owners */
    struct held_owner *owners;
};

void held_to_wire(const struct held_lock *lock, Rozo__Lock *msg)
{
    rozo__lock__init(msg);
    msg->ino = lock->ino;
    msg->flock = lock->flock;
    msg->owner = lock->owner;
    msg->pid = lock->pid;
    msg->from = lock->from;
    msg->to = lock->to;
    msg->mode = (Rozo__Lock__Mode)lock->mode;
}

struct held *held_new(void)
{
    struct held *held = mem_new(sizeof(*held));

    pthread_mutex_init(&held->lock, NULL);
    return held;
}

static void owner_free(struct held *held, struct held_owner *o)
{
    HASH_DEL(held->owners, o);
    spans_free(&o->ranges);
    free(o);
}

void held_free(struct held *held)
{
    struct held_owner *o, *next;

    if (held == NULL)
        return;
    HASH_ITER(hh, held->owners, o, next)
    owner_free(held, o);
    pthread_mutex_destroy(&held->lock);
    free(held);
}

static struct held_owner *owner_find(struct held *held, const struct held_key *key)
{
    struct held_owner *o;

    HASH_FIND(hh, held->owners, key, sizeof(*key), o);
    return o;
}

void held_set(struct held *held, const struct held_lock *lock)
{
    const struct held_key key = { lock->ino, lock->owner, lock->flock };
    struct held_owner *o;

    pthread_mutex_lock(&held->lock);
    o = owner_find(held, &key);
    if (o == NULL && lock->mode != 0) {
        o = mem_new(sizeof(*o));
        o->key = key;
        HASH_ADD(hh, held->owners, key, sizeof(key), o);
    }
    if (o != NULL) {
        if (spans_put(&o->ranges, lock->from, lock->to, lock->mode) != 0)
            abort(); /* as mem_new() */
        o->pid = lock->pid;
        if (o->ranges.n == 0)
            owner_free(held, o);
    }
    pthread_mutex_unlock(&held->lock);
}

bool held_take(struct held *held, uint64_t ino, bool flock, uint64_t owner)
{
    const struct held_key key = { ino, owner, flock };
    struct held_owner *o;

    pthread_mutex_lock(&held->lock);
    o = owner_find(held, &key);
    if (o != NULL)
        owner_free(held, o);
    pthread_mutex_unlock(&held->lock);
    return o != NULL;
}

struct held_lock *held_list(struct held *held, size_t *n)
{
    struct held_owner *o, *next;
    struct held_lock *list = NULL;
    size_t i = 0;

    *n = 0;
    pthread_mutex_lock(&held->lock);
    HASH_ITER(hh, held->owners, o, next)
    *n += o->ranges.n;
    if (*n != 0)
        list = mem_new(*n * sizeof(*list));
    HASH_ITER(hh, held->owners, o, next)
    {
        for (size_t k = 0; k < o->ranges.n; k++) {
            const struct span *s = &o->ranges.list[k];

            list[i++] = (struct held_lock){ .ino = o->key.ino,
                                            .flock = o->key.flock != 0,
                                            .owner = o->key.owner,
                                            .pid = o->pid,
                                            .from = s->from,
                                            .to = s->to,
                                            .mode = s->value };
        }
    }
    pthread_mutex_unlock(&held->lock);
    return list;
}
