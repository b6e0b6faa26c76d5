/*
 * unsynced_inodes.c - two hashes of inodes behind a mutex: unsynced ones and lost ones.
 *
 * In:     answers of exportd, from any loop. Out: whether an fsync must fail.
 * Keeps:  memory is bounded; above the limit every inode counts as changed.
 */
#include "rozomount/session/unsynced_inodes.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/base/hash.h"
#include "rozomount/options/xalloc.h"

struct unsynced_change {
    uint64_t ino;
    uint64_t no; /* number of its newest change */
    UT_hash_handle hh;
};

struct unsynced_inodes {
    pthread_mutex_t lock;          /* guards all members below */
    struct unsynced_change *noted; /* sorted by `no` */
    struct unsynced_change *lost;  /* not reported by an fsync yet */
    uint64_t last_no;              /* number of changes noted */
    /* not 0: any inode may have been changed up to this number */
    uint64_t everything_no;
    bool everything_lost; /* the next caller of take_lost gets true */
    uint32_t losses;
};

struct unsynced_inodes *unsynced_inodes_new(void)
{
    struct unsynced_inodes *u = xzalloc(sizeof(*u));

    pthread_mutex_init(&u->lock, NULL);
    return u;
}

static void change_free(struct unsynced_change **set, struct unsynced_change *c)
{
    HASH_DEL(*set, c);
    free(c);
}

void unsynced_inodes_free(struct unsynced_inodes *u)
{
    struct unsynced_change *c, *next;

    if (u == NULL)
        return;
    HASH_ITER(hh, u->noted, c, next)
    change_free(&u->noted, c);
    HASH_ITER(hh, u->lost, c, next)
    change_free(&u->lost, c);
    pthread_mutex_destroy(&u->lock);
    free(u);
}

/* Adds or moves ino to the end of the set. */
static void change_put(struct unsynced_change **set, uint64_t ino, uint64_t no)
{
    struct unsynced_change *c = hash_find(*set, ino);

    if (c == NULL)
        c = xzalloc(sizeof(*c));
    else
        HASH_DEL(*set, c);
    c->ino = ino;
    c->no = no;
    hash_add(*set, ino, c);
}

void unsynced_inodes_note(struct unsynced_inodes *u, uint64_t ino, uint32_t losses)
{
    bool is_lost, room;

    pthread_mutex_lock(&u->lock);
    is_lost = losses != u->losses; /* the change may precede the latest loss */
    room = (is_lost ? HASH_COUNT(u->lost) : HASH_COUNT(u->noted)) < UNSTABLE_MAX;
    u->last_no++;
    if (room)
        change_put(is_lost ? &u->lost : &u->noted, ino, u->last_no);
    else if (is_lost)
        u->everything_lost = true;
    else
        u->everything_no = u->last_no;
    pthread_mutex_unlock(&u->lock);
}

void unsynced_inodes_note_any(struct unsynced_inodes *u)
{
    pthread_mutex_lock(&u->lock);
    u->everything_no = ++u->last_no;
    pthread_mutex_unlock(&u->lock);
}

uint64_t unsynced_inodes_begin(struct unsynced_inodes *u)
{
    uint64_t no;

    pthread_mutex_lock(&u->lock);
    no = u->last_no;
    pthread_mutex_unlock(&u->lock);
    return no;
}

void unsynced_inodes_synced(struct unsynced_inodes *u, uint64_t no)
{
    pthread_mutex_lock(&u->lock);
    while (u->noted != NULL && u->noted->no <= no) {
        struct unsynced_change *oldest = u->noted;

        change_free(&u->noted, oldest);
    }
    if (u->everything_no <= no)
        u->everything_no = 0;
    pthread_mutex_unlock(&u->lock);
}

bool unsynced_inodes_is_empty(struct unsynced_inodes *u)
{
    bool empty;

    pthread_mutex_lock(&u->lock);
    empty = u->noted == NULL && u->everything_no == 0;
    pthread_mutex_unlock(&u->lock);
    return empty;
}

void unsynced_inodes_lost(struct unsynced_inodes *u, uint32_t losses)
{
    pthread_mutex_lock(&u->lock);
    if (u->losses != losses) {
        struct unsynced_change *c, *next;

        u->losses = losses;
        HASH_ITER(hh, u->noted, c, next)
        {
            if (HASH_COUNT(u->lost) < UNSTABLE_MAX)
                change_put(&u->lost, c->ino, c->no);
            else
                u->everything_lost = true;
            change_free(&u->noted, c);
        }
        u->everything_lost |= u->everything_no != 0;
        u->everything_no = 0;
    }
    pthread_mutex_unlock(&u->lock);
}

bool unsynced_inodes_take_lost(struct unsynced_inodes *u, uint64_t ino)
{
    struct unsynced_change *c;
    bool lost;

    pthread_mutex_lock(&u->lock);
    c = hash_find(u->lost, ino);
    lost = c != NULL || u->everything_lost;
    if (c != NULL)
        change_free(&u->lost, c);
    u->everything_lost = false;
    pthread_mutex_unlock(&u->lock);
    return lost;
}
