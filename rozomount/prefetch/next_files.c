/*
 * next_files.c - chain of small files for each listing, and a program's position in it.
 *
 * In:     listings as they arrive, files as they are opened. Out: the files to read next.
 * Keeps:  memory is bounded; a wrong guess costs an unneeded read and nothing else.
 * Yours:  the numbers in next_files.h, and the growth of the window.
 */
#include "rozomount/prefetch/next_files.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/base/hash.h"
#include "rozomount/options/xalloc.h"

/* One file and its successor in the listing. */
struct noted {
    uint64_t ino, next; /* next is 0 if unknown */
    uint32_t size;
    uint32_t run; /* files opened in a row before this one */
    bool begun;   /* a prefetch of it was started */
    UT_hash_handle hh;
};

struct next_files {
    unsigned run_min;
    pthread_mutex_t lock; /* guards all below */
    struct noted *by_ino; /* in order of insertion */
    /* End of the part listed last, where the next part continues. */
    uint64_t dir, to, last;
};

struct next_files *next_files_new(unsigned run_min)
{
    struct next_files *all = xzalloc(sizeof(*all));

    pthread_mutex_init(&all->lock, NULL);
    all->run_min = run_min;
    return all;
}

static void noted_free(struct next_files *all, struct noted *f)
{
    HASH_DEL(all->by_ino, f);
    free(f);
}

void next_files_free(struct next_files *all)
{
    struct noted *f, *next;

    if (all == NULL)
        return;
    HASH_ITER(hh, all->by_ino, f, next)
    noted_free(all, f);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

static struct noted *noted_get(struct next_files *all, uint64_t ino)
{
    struct noted *f = hash_find(all->by_ino, ino);

    if (f != NULL)
        return f;
    if (HASH_COUNT(all->by_ino) >= NEXT_FILES_NOTED_MAX)
        noted_free(all, all->by_ino);
    f = xzalloc(sizeof(*f));
    f->ino = ino;
    hash_add(all->by_ino, ino, f);
    return f;
}

void next_files_listed(struct next_files *all, uint64_t dir, uint64_t after, uint64_t to,
                       const struct next_file *files, size_t n)
{
    struct noted *f, *before;

    pthread_mutex_lock(&all->lock);
    if (dir != all->dir || after != all->to)
        all->last = 0;
    for (size_t i = 0; i < n; i++) {
        f = noted_get(all, files[i].ino);
        f->size = (uint32_t)files[i].size;
        before = hash_find(all->by_ino, all->last);
        if (before != NULL)
            before->next = f->ino;
        all->last = f->ino;
    }
    all->dir = dir;
    all->to = to;
    pthread_mutex_unlock(&all->lock);
}

/* Returns the files to prefetch: many at a time so that wake-ups are few, and the next
 * batch when half of the window is used up. */
static unsigned begin_next(const struct next_files *all, struct noted *f, unsigned window,
                           uint64_t inos[NEXT_FILES_MAX])
{
    uint64_t bytes = 0;
    unsigned n = 0;

    for (unsigned i = 0; f != NULL && i < window;
         i++, f = hash_find(all->by_ino, f->next)) {
        bytes += f->size;
        if (bytes > NEXT_FILES_BYTES_MAX || (n == 0 && !f->begun && i > window / 2))
            break;
        if (!f->begun)
            inos[n++] = f->ino;
        f->begun = true;
    }
    return n;
}

unsigned next_files_opened(struct next_files *all, uint64_t ino,
                           uint64_t inos[NEXT_FILES_MAX])
{
    struct noted *f, *next;
    unsigned window, n = 0;

    pthread_mutex_lock(&all->lock);
    f = hash_find(all->by_ino, ino);
    next = f == NULL ? NULL : hash_find(all->by_ino, f->next);
    if (next != NULL) {
        if (next->run <= f->run)
            next->run = f->run + 1;
        window = f->run < all->run_min ? 0 : 2 * f->run + 2;
        if (window > NEXT_FILES_MAX)
            window = NEXT_FILES_MAX;
        n = begin_next(all, next, window, inos);
    }
    if (f != NULL) {
        f->run = 0;
        f->begun = false;
    }
    pthread_mutex_unlock(&all->lock);
    return n;
}
