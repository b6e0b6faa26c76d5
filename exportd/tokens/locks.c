/*
 * locks.c - see locks.h.
 *
 * In:     md.c's lock operations; sessions that end.
 * Out:    `granted` of waiters.
 * Keeps:  I10: no two owners have ranges that exclude each other; a session's locks end
 *         with it.
 */
#include "exportd/tokens/locks.h"

#include <assert.h>
#include <errno.h>

/* Locks of one owner on one inode, of one kind. */
struct lock_owner {
    struct list_node link;        /* in inode->owners */
    struct list_node holder_link; /* in holder->owned */
    struct lock_inode *inode;
    struct lock_holder *holder;
    enum lock_kind kind;
    uint64_t owner;
    uint32_t pid;
    struct range_map ranges; /* values of enum lock_mode */
};

struct lock_inode {
    uint64_t ino; /* key */
    struct list_node owners, waits;
    UT_hash_handle hh;
};

void locks_init(struct locks *l)
{
    *l = (struct locks){ 0 };
    list_init(&l->granted);
}

void lock_holder_init(struct lock_holder *holder)
{
    list_init(&holder->owned);
    list_init(&holder->waits);
}

/* ---- locks held ---- */

static struct lock_inode *inode_make(struct locks *l, uint64_t ino)
{
    struct lock_inode *i = hash_find(l->inodes, ino);

    if (i != NULL)
        return i;
    i = calloc(1, sizeof(*i));
    if (i == NULL)
        return NULL;
    i->ino = ino;
    list_init(&i->owners);
    list_init(&i->waits);
    hash_add(l->inodes, ino, i);
    return i;
}

static void inode_free_if_empty(struct locks *l, struct lock_inode *i)
{
    if (!list_is_empty(&i->owners) || !list_is_empty(&i->waits))
        return;
    HASH_DEL(l->inodes, i);
    free(i);
}

static bool is_owner(const struct lock_owner *o, const struct lock *lock)
{
    return o->holder == lock->holder && o->owner == lock->owner && o->kind == lock->kind;
}

static struct lock_owner *owner_find(const struct lock_inode *i, const struct lock *lock)
{
    LIST_FOREACH(node, &i->owners) {
        struct lock_owner *o = container_of(node, struct lock_owner, link);

        if (is_owner(o, lock))
            return o;
    }
    return NULL;
}

static struct lock_owner *owner_make(struct lock_inode *i, const struct lock *lock)
{
    struct lock_owner *o = owner_find(i, lock);

    if (o != NULL)
        return o;
    o = calloc(1, sizeof(*o));
    if (o == NULL)
        return NULL;
    assert(lock->holder != NULL && lock->mode != LOCK_NONE);
    o->inode = i;
    o->holder = lock->holder;
    o->kind = lock->kind;
    o->owner = lock->owner;
    list_add_tail(&i->owners, &o->link);
    list_add_tail(&lock->holder->owned, &o->holder_link);
    return o;
}

static void owner_free(struct locks *l, struct lock_owner *o)
{
    assert(l->n_ranges >= o->ranges.n && !list_is_empty(&o->link));
    l->n_ranges -= o->ranges.n;
    list_remove(&o->link);
    list_remove(&o->holder_link);
    range_map_free(&o->ranges);
    free(o);
}

/* Returns true if this owner's locks conflict with the lock. */
static bool is_in_way(const struct lock_owner *o, const struct lock *lock)
{
    unsigned most;

    if (lock->mode == LOCK_NONE || o->kind != lock->kind || is_owner(o, lock))
        return false;
    most = range_map_most(&o->ranges, lock->from, lock->to);
    return most == LOCK_WRITE || (most == LOCK_READ && lock->mode == LOCK_WRITE);
}

static bool is_free(const struct lock_inode *i, const struct lock *lock)
{
    LIST_FOREACH(node, &i->owners) {
        if (is_in_way(container_of(node, struct lock_owner, link), lock))
            return false;
    }
    return true;
}

/* Records a lock that is free. -ENOLCK: nothing has changed. */
static int lock_put(struct locks *l, struct lock_inode *i, const struct lock *lock)
{
    struct lock_owner *o =
        lock->mode == LOCK_NONE ? owner_find(i, lock) : owner_make(i, lock);
    size_t n;
    int rc;

    if (o == NULL)
        return lock->mode == LOCK_NONE ? 0 : -ENOLCK;
    n = o->ranges.n;
    rc = lock->mode != LOCK_NONE && l->n_ranges >= LOCKS_MAX
             ? -ENOLCK
             : range_map_put(&o->ranges, lock->from, lock->to, lock->mode);
    assert(o->inode == i && l->n_ranges >= n);
    l->n_ranges += o->ranges.n - n;
    if (rc == 0 && lock->mode != LOCK_NONE)
        o->pid = lock->pid;
    if (o->ranges.n == 0)
        owner_free(l, o);
    return rc == 0 ? 0 : -ENOLCK;
}

/* ---- waiters ---- */

static void tell(struct locks *l)
{
    if (l->notifying)
        return;
    l->notifying = true;
    while (!list_is_empty(&l->granted)) {
        struct lock_wait *wait = container_of(l->granted.next, struct lock_wait, link);

        list_remove(&wait->link);
        assert(list_is_empty(&wait->holder_link));
        wait->granted(wait, wait->rc);
    }
    l->notifying = false;
}

/* Grants what can be granted after a release, in order of arrival. */
static void inode_released(struct locks *l, struct lock_inode *i)
{
    LIST_FOREACH_SAFE(node, &i->waits) {
        struct lock_wait *wait = container_of(node, struct lock_wait, link);

        assert(wait->lock.ino == i->ino);
        if (!is_free(i, &wait->lock))
            continue;
        wait->rc = lock_put(l, i, &wait->lock);
        list_remove(&wait->link);
        list_remove(&wait->holder_link);
        list_add_tail(&l->granted, &wait->link);
    }
    inode_free_if_empty(l, i);
}

/* Adds the unvisited waits of all owners that conflict with this lock to the search. */
static void search_behind(struct locks *l, const struct lock *lock,
                          struct list_node *search)
{
    const struct lock_inode *i = hash_find(l->inodes, lock->ino);

    LIST_FOREACH(node, &i->owners) {
        const struct lock_owner *o = container_of(node, struct lock_owner, link);

        if (!is_in_way(o, lock))
            continue;
        LIST_FOREACH(other, &o->holder->waits) {
            struct lock_wait *w = container_of(other, struct lock_wait, holder_link);

            if (!is_owner(o, &w->lock) || w->search == l->n_searches)
                continue;
            w->search = l->n_searches;
            list_add_tail(search, &w->search_link);
        }
    }
}

/* Returns true if waiting for this lock would close a ring of waits. */
static bool is_deadlock(struct locks *l, const struct lock *lock)
{
    struct list_node search;

    l->n_searches++;
    list_init(&search);
    search_behind(l, lock, &search);
    while (!list_is_empty(&search)) {
        const struct lock_wait *w =
            container_of(search.next, struct lock_wait, search_link);
        const struct lock_inode *i = hash_find(l->inodes, w->lock.ino);

        list_remove(search.next);
        LIST_FOREACH(node, &i->owners) {
            const struct lock_owner *o = container_of(node, struct lock_owner, link);

            if (is_owner(o, lock) && is_in_way(o, &w->lock)) {
                while (!list_is_empty(&search))
                    list_remove(search.next);
                return true;
            }
        }
        search_behind(l, &w->lock, &search);
    }
    return false;
}

/* ---- requests of md.c ---- */

int locks_set(struct locks *l, const struct lock *lock)
{
    struct lock_inode *i = inode_make(l, lock->ino);
    int rc = i == NULL ? -ENOLCK : 0;

    assert(lock->from < lock->to);
    if (rc != 0)
        return rc;
    rc = is_free(i, lock) ? lock_put(l, i, lock) : -EAGAIN;
    inode_released(l, i); /* a lock that replaces another one may be weaker */
    tell(l);
    return rc;
}

int locks_wait(struct locks *l, struct lock_wait *wait)
{
    int rc = locks_set(l, &wait->lock);

    if (rc != -EAGAIN)
        return rc;
    assert(wait->granted != NULL && wait->lock.mode != LOCK_NONE);
    if (wait->lock.kind == LOCK_POSIX && is_deadlock(l, &wait->lock))
        return -EDEADLK;
    list_add_tail(&hash_find(l->inodes, wait->lock.ino)->waits, &wait->link);
    list_add_tail(&wait->lock.holder->waits, &wait->holder_link);
    return -EINPROGRESS;
}

void locks_cancel(struct locks *l, struct lock_wait *wait)
{
    struct lock_inode *i = hash_find(l->inodes, wait->lock.ino);

    assert(!list_is_empty(&wait->link));
    list_remove(&wait->link);
    list_remove(&wait->holder_link);
    if (i != NULL)
        inode_free_if_empty(l, i);
}

bool locks_are_of_others(const struct locks *l, uint64_t ino, enum lock_kind kind,
                         const struct lock_holder *holder)
{
    const struct lock_inode *i = hash_find(l->inodes, ino);

    if (i == NULL)
        return false;
    LIST_FOREACH(node, &i->owners) {
        const struct lock_owner *o = container_of(node, struct lock_owner, link);

        if (o->kind == kind && o->holder != holder)
            return true;
    }
    LIST_FOREACH(node, &i->waits) {
        const struct lock_wait *w = container_of(node, struct lock_wait, link);

        if (w->lock.kind == kind && w->lock.holder != holder)
            return true;
    }
    return false;
}

bool locks_test(const struct locks *l, const struct lock *lock, struct lock *out)
{
    const struct lock_inode *i = hash_find(l->inodes, lock->ino);
    const struct lock_owner *who = NULL;
    const struct mapped_range *where = NULL;

    if (i == NULL)
        return false;
    LIST_FOREACH(node, &i->owners) {
        const struct lock_owner *o = container_of(node, struct lock_owner, link);
        const struct mapped_range *s;

        if (!is_in_way(o, lock))
            continue;
        s = range_map_find(&o->ranges, lock->from);
        while (lock->mode == LOCK_READ && s->value == LOCK_READ)
            s++;
        if (where == NULL || s->from < where->from) {
            who = o;
            where = s;
        }
    }
    if (where == NULL)
        return false;
    *out = (struct lock){
        .ino = lock->ino,
        .kind = lock->kind,
        .holder = who->holder,
        .owner = who->owner,
        .pid = who->pid,
        .from = where->from,
        .to = where->to,
        .mode = (enum lock_mode)where->value,
    };
    return true;
}

void locks_drop(struct locks *l, uint64_t ino, enum lock_kind kind,
                struct lock_holder *holder, uint64_t owner)
{
    const struct lock all = { .ino = ino,
                              .kind = kind,
                              .holder = holder,
                              .owner = owner,
                              .to = SPAN_END,
                              .mode = LOCK_NONE };
    struct lock_inode *i = hash_find(l->inodes, ino);
    struct lock_owner *o = i == NULL ? NULL : owner_find(i, &all);

    if (o == NULL)
        return;
    owner_free(l, o);
    inode_released(l, i);
    tell(l);
}

void lock_holder_each(struct lock_holder *holder,
                      void (*fn)(void *arg, const struct lock *lock), void *arg)
{
    LIST_FOREACH(node, &holder->owned) {
        const struct lock_owner *o = container_of(node, struct lock_owner, holder_link);

        for (size_t i = 0; i < o->ranges.n; i++) {
            const struct mapped_range *r = &o->ranges.list[i];
            const struct lock lock = { .ino = o->inode->ino,
                                       .kind = o->kind,
                                       .holder = holder,
                                       .owner = o->owner,
                                       .pid = o->pid,
                                       .from = r->from,
                                       .to = r->to,
                                       .mode = (enum lock_mode)r->value };

            fn(arg, &lock);
        }
    }
}

void lock_holder_end(struct locks *l, struct lock_holder *holder)
{
    assert(list_is_empty(&holder->waits));
    while (!list_is_empty(&holder->owned)) {
        struct lock_owner *o =
            container_of(holder->owned.next, struct lock_owner, holder_link);
        struct lock_inode *i = o->inode;

        assert(o->holder == holder);
        owner_free(l, o);
        inode_released(l, i);
    }
    tell(l);
}

void locks_free(struct locks *l)
{
    struct lock_inode *i, *next;

    HASH_ITER(hh, l->inodes, i, next)
    {
        assert(list_is_empty(&i->waits));
        LIST_FOREACH_SAFE(node, &i->owners)
            owner_free(l, container_of(node, struct lock_owner, link));
        inode_free_if_empty(l, i);
    }
}
