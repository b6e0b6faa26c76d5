/*
 * open_refs.c - a hash of (inode, count) behind a mutex.
 */
#include "rozomount/session/open_refs.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#include "common/base/hash.h"
#include "rozomount/options/xalloc.h"

struct ref {
    uint64_t ino;
    uint64_t count; /* not 0 */
    UT_hash_handle hh;
};

struct open_refs {
    pthread_mutex_t lock; /* guards by_ino */
    struct ref *by_ino;
};

struct open_refs *open_refs_new(void)
{
    struct open_refs *refs = xzalloc(sizeof(*refs));

    pthread_mutex_init(&refs->lock, NULL);
    return refs;
}

void open_refs_free(struct open_refs *refs)
{
    struct ref *ref, *next;

    if (refs == NULL)
        return;
    HASH_ITER(hh, refs->by_ino, ref, next)
    {
        HASH_DEL(refs->by_ino, ref);
        free(ref);
    }
    pthread_mutex_destroy(&refs->lock);
    free(refs);
}

void open_refs_add(struct open_refs *refs, uint64_t ino)
{
    struct ref *ref;

    pthread_mutex_lock(&refs->lock);
    ref = hash_find_or_make(refs->by_ino, ino, ino, xzalloc(sizeof(*ref)));
    ref->count++;
    pthread_mutex_unlock(&refs->lock);
}

void open_refs_remove(struct open_refs *refs, uint64_t ino, uint32_t n)
{
    struct ref *ref;

    if (n == 0)
        return;
    pthread_mutex_lock(&refs->lock);
    ref = hash_find(refs->by_ino, ino);
    assert(ref != NULL && ref->count >= n);
    ref->count -= n;
    if (ref->count == 0) {
        HASH_DEL(refs->by_ino, ref);
        free(ref);
    }
    pthread_mutex_unlock(&refs->lock);
}

uint64_t *open_refs_list(struct open_refs *refs, size_t *n)
{
    struct ref *ref, *next;
    uint64_t *list = NULL;
    size_t i = 0;

    pthread_mutex_lock(&refs->lock);
    *n = HASH_COUNT(refs->by_ino);
    if (*n != 0)
        list = xzalloc(*n * sizeof(*list));
    HASH_ITER(hh, refs->by_ino, ref, next)
    list[i++] = ref->ino;
    pthread_mutex_unlock(&refs->lock);
    return list;
}
