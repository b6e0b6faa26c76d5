/*
 * dir_places.c - a table with one slot per hash of the inode number, behind a mutex.
 *
 * In:     answers that name directories, from any loop. Out: whether the kernel may have
 *         a dentry in another place.
 */
#include "rozomount/kcache/dir_places.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/table.h"
#include "common/base/units.h"
#include "rozomount/options/xalloc.h"
#include "rozomount/tokens/token_cache.h"

struct dir_slot {
    uint64_t ino; /* 0: free */
    uint64_t dir;
    uint64_t place;    /* hash of dir and name */
    uint64_t stuck_ns; /* 0: not stuck */
    pid_t stuck_pid;
};

struct untokened {
    uint64_t dir;
    struct kernel_name *name; /* owned; NULL: free */
};

struct dir_places {
    pthread_mutex_t lock; /* guards all members below */
    struct dir_slot slots[DIRPLACES_MAX];
    struct untokened
        untokened[DIRPLACES_UNTOKENED_MAX]; /* by hash of directory and name */
};

struct dir_places *dir_places_new(void)
{
    struct dir_places *p = xzalloc(sizeof(*p));

    pthread_mutex_init(&p->lock, NULL);
    return p;
}

void dir_places_free(struct dir_places *p)
{
    if (p == NULL)
        return;
    for (unsigned i = 0; i < DIRPLACES_UNTOKENED_MAX; i++)
        free(p->untokened[i].name);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static struct dir_slot *slot_of(struct dir_places *p, uint64_t ino)
{
    return &p->slots[(ino * 0x9e3779b97f4a7c15u >> 40) % DIRPLACES_MAX];
}

static uint64_t place_of(const struct dir_place *at)
{
    return table_hash(at->name, strlen(at->name)) ^ at->dir * 0x9e3779b97f4a7c15u;
}

static bool is_retry(const struct dir_slot *s, pid_t pid, uint64_t now_ns)
{
    return s->stuck_ns != 0 && s->stuck_pid == pid &&
           now_ns < s->stuck_ns + ms_to_ns(DIRPLACES_RETRY_MS);
}

enum dir_place_verdict dir_places_found(struct dir_places *p, const struct dir_place *at,
                                        pid_t pid, uint64_t now_ns)
{
    struct dir_slot *s = slot_of(p, at->ino);
    enum dir_place_verdict verdict = DIR_PLACE_SAME;
    uint64_t place = place_of(at);

    pthread_mutex_lock(&p->lock);
    if (s->ino != at->ino)
        verdict = DIR_PLACE_UNKNOWN;
    else if (s->place != place)
        verdict = DIR_PLACE_MOVED;
    else if (is_retry(s, pid, now_ns))
        verdict = DIR_PLACE_RETRY;
    *s = (struct dir_slot){ .ino = at->ino, .dir = at->dir, .place = place };
    pthread_mutex_unlock(&p->lock);
    return verdict;
}

void dir_places_stuck(struct dir_places *p, uint64_t ino, pid_t pid, uint64_t now_ns)
{
    struct dir_slot *s = slot_of(p, ino);

    pthread_mutex_lock(&p->lock);
    if (s->ino == ino) {
        s->stuck_ns = now_ns;
        s->stuck_pid = pid;
    }
    pthread_mutex_unlock(&p->lock);
}

static void slot_set(struct dir_places *p, const struct dir_place *at, bool only_known)
{
    struct dir_slot *s = slot_of(p, at->ino);

    pthread_mutex_lock(&p->lock);
    if (!only_known || s->ino == at->ino)
        *s = (struct dir_slot){ .ino = at->ino, .dir = at->dir, .place = place_of(at) };
    pthread_mutex_unlock(&p->lock);
}

void dir_places_note(struct dir_places *p, const struct dir_place *at)
{
    slot_set(p, at, false);
}

void dir_places_renamed(struct dir_places *p, const struct dir_place *to)
{
    slot_set(p, to, true);
}

/* A directory and its depth below the top of the search. */
struct below {
    uint64_t ino;
    unsigned depth;
};

static bool is_below(struct dir_places *p, const struct dir_slot *s, uint64_t top,
                     unsigned *depth)
{
    for (unsigned d = 1; s->ino != 0 && d <= DIRPLACES_DEPTH_MAX; d++) {
        uint64_t dir = s->dir;

        *depth = d;
        if (dir == top)
            return true;
        s = slot_of(p, dir);
        if (s->ino != dir)
            return false;
    }
    return false;
}

static int by_depth(const void *a, const void *b)
{
    unsigned x = ((const struct below *)a)->depth, y = ((const struct below *)b)->depth;

    return (x < y) - (x > y);
}

uint64_t *dir_places_below(struct dir_places *p, uint64_t ino, size_t *n)
{
    struct below *list = xzalloc((DIRPLACES_MAX + 1) * sizeof(*list));
    uint64_t *inos;
    unsigned depth;
    size_t k = 0;

    pthread_mutex_lock(&p->lock);
    for (size_t i = 0; i < DIRPLACES_MAX; i++) {
        const struct dir_slot *s = &p->slots[i];

        if (s->ino != ino && is_below(p, s, ino, &depth))
            list[k++] = (struct below){ s->ino, depth };
    }
    pthread_mutex_unlock(&p->lock);
    list[k++] = (struct below){ ino, 0 };
    qsort(list, k, sizeof(*list), by_depth);
    inos = xzalloc(k * sizeof(*inos));
    for (size_t i = 0; i < k; i++)
        inos[i] = list[i].ino;
    free(list);
    *n = k;
    return inos;
}

void dir_places_note_untokened(struct dir_places *p, uint64_t dir, const char *name,
                               bool is_dir)
{
    const struct dir_place at = { .dir = dir, .name = name };
    struct untokened *l = &p->untokened[place_of(&at) % DIRPLACES_UNTOKENED_MAX];
    size_t room = strlen(name) + 1;

    pthread_mutex_lock(&p->lock);
    if (l->name == NULL || l->dir != dir || strcmp(l->name->name, name) != 0) {
        free(l->name);
        l->dir = dir;
        l->name = xzalloc(sizeof(*l->name) + room);
        memcpy(l->name->name, name, room);
    }
    l->name->is_dir = is_dir;
    pthread_mutex_unlock(&p->lock);
}

struct kernel_name *dir_places_take_untokened(struct dir_places *p, uint64_t dir)
{
    struct kernel_name *list = NULL;

    pthread_mutex_lock(&p->lock);
    for (unsigned i = 0; i < DIRPLACES_UNTOKENED_MAX; i++) {
        struct untokened *l = &p->untokened[i];

        if (l->name == NULL || l->dir != dir)
            continue;
        l->name->next = list;
        list = l->name;
        l->name = NULL;
    }
    pthread_mutex_unlock(&p->lock);
    return list;
}
