/*
 * open_dirs.c - a hash of open directories behind a mutex.
 */
#include "rozomount/inode/open_dirs.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/base/hash.h"
#include "rozomount/options/xalloc.h"
#include "rozomount/session/md_decode.h"

struct opendir {
    uint64_t ino;
    unsigned n;          /* number of opens, at least 1 */
    struct md_attr attr; /* ino 0: not known */
    UT_hash_handle hh;
};

struct open_dirs {
    pthread_mutex_t lock; /* guards by_ino */
    struct opendir *by_ino;
    atomic_uint n; /* number of entries in by_ino */
};

struct open_dirs *open_dirs_new(void)
{
    struct open_dirs *dirs = xzalloc(sizeof(*dirs));

    pthread_mutex_init(&dirs->lock, NULL);
    return dirs;
}

static void opendir_free(struct open_dirs *dirs, struct opendir *d)
{
    HASH_DEL(dirs->by_ino, d);
    free(d);
    atomic_fetch_sub(&dirs->n, 1);
}

void open_dirs_free(struct open_dirs *dirs)
{
    struct opendir *d, *next;

    if (dirs == NULL)
        return;
    HASH_ITER(hh, dirs->by_ino, d, next)
    opendir_free(dirs, d);
    pthread_mutex_destroy(&dirs->lock);
    free(dirs);
}

void open_dirs_add(struct open_dirs *dirs, uint64_t ino, const struct md_attr *attr)
{
    struct opendir *d;

    pthread_mutex_lock(&dirs->lock);
    d = hash_find_or_make(dirs->by_ino, ino, ino, xzalloc(sizeof(*d)));
    if (d->n++ == 0)
        atomic_fetch_add(&dirs->n, 1);
    if (attr != NULL)
        d->attr = *attr;
    pthread_mutex_unlock(&dirs->lock);
}

void open_dirs_remove(struct open_dirs *dirs, uint64_t ino)
{
    struct opendir *d;

    pthread_mutex_lock(&dirs->lock);
    d = hash_find(dirs->by_ino, ino);
    assert(d != NULL);
    if (--d->n == 0)
        opendir_free(dirs, d);
    pthread_mutex_unlock(&dirs->lock);
}

void open_dirs_note(struct open_dirs *dirs, const struct md_attr *attr)
{
    struct opendir *d;

    if (!S_ISDIR(attr->mode) || atomic_load(&dirs->n) == 0)
        return;
    pthread_mutex_lock(&dirs->lock);
    d = hash_find(dirs->by_ino, attr->ino);
    if (d != NULL && attr->change >= d->attr.change)
        d->attr = *attr;
    pthread_mutex_unlock(&dirs->lock);
}

bool open_dirs_last(struct open_dirs *dirs, uint64_t ino, struct md_attr *out)
{
    const struct opendir *d;
    bool known;

    pthread_mutex_lock(&dirs->lock);
    d = hash_find(dirs->by_ino, ino);
    known = d != NULL && d->attr.ino != 0;
    if (known) {
        *out = d->attr;
        out->nlink = 0;
        out->token = TOKEN_NONE;
    }
    pthread_mutex_unlock(&dirs->lock);
    return known;
}
