/*
 * lock_table.c - ranges by (inode, kind, owner) behind a mutex.
 */
#include "rozomount/session/lock_table.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/range_map.h"
#include "rozomount/options/xalloc.h"

/* Compared as bytes: zeroed before it is filled. */
struct held_key {
    uint64_t ino, owner, flock;
};

struct held_owner {
    struct held_key key;
    uint32_t pid;
    struct range_map ranges;
    bool has_lost; /* one of them, and counts in held->lost */
    UT_hash_handle hh;
};

/* Number of owners that have lost a lock on an inode. */
struct held_inode {
    uint64_t ino;
    unsigned n_owners; /* at least one */
    UT_hash_handle hh;
};

/* Inode with fcntl locks, or with calls that may change them. */
struct busy_inode {
    uint64_t ino;
    unsigned n; /* owners and calls; at least one */
    UT_hash_handle hh;
};

struct lock_table {
    pthread_mutex_t lock; /* guards all members below */
    struct held_owner *owners;
    struct busy_inode *busy;
    struct held_inode *lost;
    uint64_t era;
    atomic_bool any_lost; /* lost is not empty */
};

enum {
    MODE_RELEASED = 3, /* mode of a range whose unlock is under way, or has failed */
    MODE_LOST = 4,     /* mode of a lost range */
};

void lock_table_to_wire(const struct table_lock *lock, Rozo__Lock *msg)
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

struct lock_table *lock_table_new(void)
{
    struct lock_table *lock_table = xzalloc(sizeof(*lock_table));

    pthread_mutex_init(&lock_table->lock, NULL);
    return lock_table;
}

static unsigned owner_bits(const struct held_owner *o)
{
    unsigned bits = 0;

    for (size_t i = 0; o != NULL && i < o->ranges.n; i++)
        bits |= o->ranges.list[i].value == MODE_LOST ? LOCK_TABLE_LOST : LOCK_TABLE_SOME;
    return bits;
}

static void inode_count(struct lock_table *lock_table, uint64_t ino, bool more)
{
    struct held_inode *in =
        hash_find_or_make(lock_table->lost, ino, ino, xzalloc(sizeof(*in)));

    in->n_owners += more ? 1 : -1u;
    if (in->n_owners == 0) {
        HASH_DEL(lock_table->lost, in);
        free(in);
    }
    atomic_store(&lock_table->any_lost, lock_table->lost != NULL);
}

/* Updates the count of lost locks after a change of the owner's ranges. */
static void owner_count(struct lock_table *lock_table, struct held_owner *o)
{
    bool has_lost = (owner_bits(o) & LOCK_TABLE_LOST) != 0;

    if (has_lost != o->has_lost)
        inode_count(lock_table, o->key.ino, has_lost);
    o->has_lost = has_lost;
}

static void busy_count(struct lock_table *lock_table, uint64_t ino, bool more)
{
    struct busy_inode *in =
        hash_find_or_make(lock_table->busy, ino, ino, xzalloc(sizeof(*in)));

    assert(more || in->n > 0);
    in->n += more ? 1 : -1u;
    if (in->n == 0) {
        HASH_DEL(lock_table->busy, in);
        free(in);
    }
}

void lock_table_call_begins(struct lock_table *lock_table, uint64_t ino)
{
    pthread_mutex_lock(&lock_table->lock);
    busy_count(lock_table, ino, true);
    pthread_mutex_unlock(&lock_table->lock);
}

void lock_table_call_ends(struct lock_table *lock_table, uint64_t ino)
{
    pthread_mutex_lock(&lock_table->lock);
    busy_count(lock_table, ino, false);
    pthread_mutex_unlock(&lock_table->lock);
}

bool lock_table_is_busy(struct lock_table *lock_table, uint64_t ino)
{
    bool busy;

    pthread_mutex_lock(&lock_table->lock);
    busy = hash_find(lock_table->busy, ino) != NULL;
    pthread_mutex_unlock(&lock_table->lock);
    return busy;
}

static void owner_free(struct lock_table *lock_table, struct held_owner *o)
{
    HASH_DEL(lock_table->owners, o);
    if (!o->key.flock)
        busy_count(lock_table, o->key.ino, false);
    range_map_free(&o->ranges);
    owner_count(lock_table, o);
    free(o);
}

void lock_table_free(struct lock_table *lock_table)
{
    struct held_owner *o, *next;

    if (lock_table == NULL)
        return;
    HASH_ITER(hh, lock_table->owners, o, next)
    owner_free(lock_table, o); /* the last one empties lock_table->lost */
    pthread_mutex_destroy(&lock_table->lock);
    free(lock_table);
}

uint64_t lock_table_era(struct lock_table *lock_table)
{
    uint64_t era;

    pthread_mutex_lock(&lock_table->lock);
    era = lock_table->era;
    pthread_mutex_unlock(&lock_table->lock);
    return era;
}

static void owner_put(struct held_owner *o, uint64_t from, uint64_t to, unsigned mode)
{
    if (range_map_put(&o->ranges, from, to, mode) != 0)
        abort(); /* out of memory, as in xzalloc() */
}

static int set_locked(struct lock_table *lock_table, const struct table_lock *lock)
{
    const struct held_key key = { lock->ino, lock->owner, lock->flock };
    struct held_owner *o = hash_find(lock_table->owners, key);
    int rc = 0;

    if (lock->era != lock_table->era)
        return -EAGAIN;
    if (o == NULL && lock->mode == 0)
        return 0;
    if (o == NULL && !lock->flock)
        busy_count(lock_table, lock->ino, true);
    o = hash_find_or_make(lock_table->owners, key, key, xzalloc(sizeof(*o)));
    if (range_map_most(&o->ranges, lock->from, lock->to) == MODE_LOST)
        rc = -EIO;
    owner_put(o, lock->from, lock->to, lock->mode);
    owner_count(lock_table, o);
    o->pid = lock->pid;
    if (o->ranges.n == 0)
        owner_free(lock_table, o);
    return rc;
}

int lock_table_set(struct lock_table *lock_table, const struct table_lock *lock)
{
    int rc;

    pthread_mutex_lock(&lock_table->lock);
    rc = set_locked(lock_table, lock);
    pthread_mutex_unlock(&lock_table->lock);
    return rc;
}

unsigned lock_table_take(struct lock_table *lock_table, uint64_t ino, bool flock,
                         uint64_t owner)
{
    const struct held_key key = { ino, owner, flock };
    struct held_owner *o;
    unsigned bits;

    pthread_mutex_lock(&lock_table->lock);
    o = hash_find(lock_table->owners, key);
    bits = owner_bits(o);
    if (o != NULL)
        owner_free(lock_table, o);
    pthread_mutex_unlock(&lock_table->lock);
    return bits;
}

unsigned lock_table_look(struct lock_table *lock_table, uint64_t ino, uint64_t owner)
{
    struct held_key key = { ino, owner, false };
    unsigned bits;

    pthread_mutex_lock(&lock_table->lock);
    bits = owner_bits(hash_find(lock_table->owners, key));
    key.flock = true;
    bits |= owner_bits(hash_find(lock_table->owners, key));
    pthread_mutex_unlock(&lock_table->lock);
    return bits;
}

bool lock_table_is_lost(struct lock_table *lock_table, uint64_t ino)
{
    bool lost;

    if (!atomic_load(&lock_table->any_lost))
        return false;
    pthread_mutex_lock(&lock_table->lock);
    lost = hash_find(lock_table->lost, ino) != NULL;
    pthread_mutex_unlock(&lock_table->lock);
    return lost;
}

struct table_lock *lock_table_list(struct lock_table *lock_table, size_t *n)
{
    struct held_owner *o, *next;
    struct table_lock *list = NULL;
    size_t room = 0;

    *n = 0;
    pthread_mutex_lock(&lock_table->lock);
    lock_table->era++;
    HASH_ITER(hh, lock_table->owners, o, next)
    room += o->ranges.n;
    if (room != 0)
        list = xzalloc(room * sizeof(*list));
    HASH_ITER(hh, lock_table->owners, o, next)
    {
        for (size_t k = 0; k < o->ranges.n; k++) {
            const struct mapped_range *s = &o->ranges.list[k];

            if (s->value >= MODE_RELEASED)
                continue;
            list[(*n)++] = (struct table_lock){ .ino = o->key.ino,
                                                .flock = o->key.flock != 0,
                                                .owner = o->key.owner,
                                                .pid = o->pid,
                                                .from = s->from,
                                                .to = s->to,
                                                .mode = s->value };
        }
    }
    pthread_mutex_unlock(&lock_table->lock);
    if (*n == 0) {
        free(list);
        list = NULL;
    }
    return list;
}

uint64_t *lock_table_inodes(struct lock_table *lock_table, size_t *n)
{
    struct held_owner *o, *next;
    uint64_t *list = NULL;

    *n = 0;
    pthread_mutex_lock(&lock_table->lock);
    if (lock_table->owners != NULL)
        list = xzalloc(HASH_COUNT(lock_table->owners) * sizeof(*list));
    HASH_ITER(hh, lock_table->owners, o, next)
    list[(*n)++] = o->key.ino;
    pthread_mutex_unlock(&lock_table->lock);
    return list;
}

/* Returns the first range of the owner in [from, to) that is still held. */
static const struct mapped_range *owner_find_held(const struct held_owner *o,
                                                  uint64_t from, uint64_t to)
{
    for (size_t i = 0; i < o->ranges.n; i++) {
        const struct mapped_range *s = &o->ranges.list[i];

        if (s->from < to && from < s->to && s->value < MODE_RELEASED)
            return s;
    }
    return NULL;
}

/* Gives what is still held of this range another mode. Returns false if nothing is. */
static bool range_mark(struct lock_table *lock_table, const struct table_lock *lock,
                       unsigned mode)
{
    const struct held_key key = { lock->ino, lock->owner, lock->flock };
    const struct mapped_range *s;
    struct held_owner *o;
    bool any = false;

    assert(mode >= MODE_RELEASED);
    pthread_mutex_lock(&lock_table->lock);
    o = hash_find(lock_table->owners, key);
    while (o != NULL && (s = owner_find_held(o, lock->from, lock->to)) != NULL) {
        any = true;
        owner_put(o, s->from > lock->from ? s->from : lock->from,
                  s->to < lock->to ? s->to : lock->to, mode);
    }
    if (any)
        owner_count(lock_table, o);
    pthread_mutex_unlock(&lock_table->lock);
    return any;
}

bool lock_table_lose(struct lock_table *lock_table, const struct table_lock *lock)
{
    return range_mark(lock_table, lock, MODE_LOST);
}

bool lock_table_weaken(struct lock_table *lock_table, const struct table_lock *lock)
{
    const struct held_key key = { lock->ino, lock->owner, lock->flock };
    struct held_owner *o;
    bool weakens;

    assert(lock->mode == ROZO__LOCK__MODE__READ);
    pthread_mutex_lock(&lock_table->lock);
    o = hash_find(lock_table->owners, key);
    weakens = o != NULL &&
              range_map_least(&o->ranges, lock->from, lock->to) >= lock->mode &&
              range_map_most(&o->ranges, lock->from, lock->to) == ROZO__LOCK__MODE__WRITE;
    if (weakens)
        owner_put(o, lock->from, lock->to, lock->mode);
    pthread_mutex_unlock(&lock_table->lock);
    return weakens;
}

void lock_table_release(struct lock_table *lock_table, const struct table_lock *unlock)
{
    range_mark(lock_table, unlock, MODE_RELEASED);
}
