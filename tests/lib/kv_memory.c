/*
 * kv_memory.c - the kv in memory: an ordered map, and an undo list for power cuts.
 *
 * In:     kv calls, kv_memory_kill() and the like. Thread: one.
 * Out:    callbacks from a posted task, in order.
 */
#include "tests/lib/kv_memory.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/list.h"
#include "common/env/key_map.h"

/* The old value of one key, to undo a change. */
struct undo {
    uint64_t commit;
    uint8_t *key, *val; /* owned; val NULL: the key did not exist */
    size_t key_len, val_len;
};

struct kv_memory {
    struct kv kv; /* must be the first member */
    struct env *env;
    struct key_map map;
    struct undo *undos; /* owned; oldest first, all newer than the last sync */
    size_t n_undos, undos_room;
    uint64_t n_commits, n_synced;
    bool dead;
    uint64_t free_bytes;
    struct env_task task; /* calls the finished kv_done callbacks */
    struct kv_done *done_head, *done_tail;
    uint64_t sync_ms; /* duration of a sync */
    struct env_timer sync_timer;
    struct kv_done *syncing; /* sync in progress; NULL: none */
    uint64_t sync_to;        /* last commit that `syncing` covers */
};

struct memory_iter {
    struct kv_iter it; /* must be the first member */
    struct kv_memory *m;
    struct key_map_node *at;
};

static void *copy(const void *p, size_t len)
{
    void *q = malloc(len + 1);

    assert(q != NULL);
    if (len > 0)
        memcpy(q, p, len);
    return q;
}

static void undo_push(struct kv_memory *m, const void *key, size_t key_len,
                      const struct key_map_node *old)
{
    struct undo *u;

    if (m->n_undos == m->undos_room) {
        m->undos_room = m->undos_room * 2 + 64;
        m->undos = realloc(m->undos, m->undos_room * sizeof(*m->undos));
        assert(m->undos != NULL);
    }
    u = &m->undos[m->n_undos++];
    u->commit = m->n_commits;
    u->key = copy(key, key_len);
    u->key_len = key_len;
    u->val = old == NULL ? NULL : copy(old->val, old->val_len);
    u->val_len = old == NULL ? 0 : old->val_len;
}

static void item_apply(struct kv_memory *m, const struct kv_item *item, bool remember)
{
    struct key_map_node *n = key_map_get(&m->map, item->key, item->key_len);

    if (remember)
        undo_push(m, item->key, item->key_len, n);
    if (item->val != NULL) {
        n = key_map_put(&m->map, item->key, item->key_len, item->val, item->val_len);
        assert(n != NULL);
    } else if (n != NULL) {
        key_map_remove(&m->map, n);
    }
}

static void on_done_task(struct env_task *task)
{
    struct kv_memory *m = container_of(task, struct kv_memory, task);

    while (m->done_head != NULL) {
        struct kv_done *done = m->done_head;

        m->done_head = done->next;
        if (m->done_head == NULL)
            m->done_tail = NULL;
        done->fn(done, done->rc);
    }
}

static void done_post(struct kv_memory *m, struct kv_done *done, int rc)
{
    done->rc = rc;
    done->next = NULL;
    if (m->done_tail == NULL)
        m->done_head = done;
    else
        m->done_tail->next = done;
    m->done_tail = done;
    env_post(m->env, &m->task);
}

static int memory_get(struct kv *kv, const void *key, size_t key_len, void **val,
                      size_t *val_len)
{
    struct kv_memory *m = (struct kv_memory *)kv;
    struct key_map_node *n = key_map_get(&m->map, key, key_len);

    if (n == NULL)
        return -ENOENT;
    *val = copy(n->val, n->val_len);
    *val_len = n->val_len;
    return 0;
}

static void memory_commit(struct kv *kv, const struct kv_item *items, size_t n_items,
                          struct kv_done *done)
{
    struct kv_memory *m = (struct kv_memory *)kv;

    if (!m->dead) {
        m->n_commits++;
        for (size_t i = 0; i < n_items; i++)
            item_apply(m, &items[i], true);
    }
    done_post(m, done, m->dead ? -EIO : 0);
}

/* Drops the undo records of all commits up to this one: a sync covers them. */
static void undos_drop(struct kv_memory *m, uint64_t commit)
{
    size_t n = 0;

    for (; n < m->n_undos && m->undos[n].commit <= commit; n++) {
        free(m->undos[n].key);
        free(m->undos[n].val);
    }
    m->n_undos -= n;
    if (m->n_undos > 0)
        memmove(m->undos, m->undos + n, m->n_undos * sizeof(m->undos[0]));
}

static void sync_end(struct kv_memory *m, uint64_t commit, struct kv_done *done)
{
    if (!m->dead) {
        m->n_synced = commit;
        undos_drop(m, commit);
    }
    done_post(m, done, m->dead ? -EIO : 0);
}

static void on_sync_timer(struct env_timer *timer)
{
    struct kv_memory *m = container_of(timer, struct kv_memory, sync_timer);
    struct kv_done *done = m->syncing;

    m->syncing = NULL;
    sync_end(m, m->sync_to, done);
}

static void memory_sync(struct kv *kv, struct kv_done *done)
{
    struct kv_memory *m = (struct kv_memory *)kv;

    if (m->sync_ms == 0 || m->dead) {
        sync_end(m, m->n_commits, done);
        return;
    }
    m->syncing = done;
    m->sync_to = m->n_commits;
    env_timer_start(m->env, &m->sync_timer, m->sync_ms);
}

static uint64_t memory_free_bytes(struct kv *kv)
{
    return ((struct kv_memory *)kv)->free_bytes;
}

static void iter_seek(struct kv_iter *it, const void *key, size_t key_len)
{
    struct memory_iter *mi = (struct memory_iter *)it;

    mi->at = key_map_seek(&mi->m->map, key, key_len);
}

static bool iter_valid(struct kv_iter *it)
{
    return ((struct memory_iter *)it)->at != NULL;
}

static void iter_next(struct kv_iter *it)
{
    struct memory_iter *mi = (struct memory_iter *)it;

    mi->at = mi->at->next[0];
}

static const void *iter_key(struct kv_iter *it, size_t *len_bytes)
{
    struct memory_iter *mi = (struct memory_iter *)it;

    *len_bytes = mi->at->key_len;
    return mi->at->key;
}

static const void *iter_val(struct kv_iter *it, size_t *len_bytes)
{
    struct memory_iter *mi = (struct memory_iter *)it;

    *len_bytes = mi->at->val_len;
    return mi->at->val;
}

static int iter_error(struct kv_iter *it)
{
    (void)it;
    return 0;
}

static void iter_close(struct kv_iter *it)
{
    free(it);
}

static const struct kv_iter_ops iter_ops = {
    .seek = iter_seek,
    .valid = iter_valid,
    .next = iter_next,
    .key = iter_key,
    .val = iter_val,
    .error = iter_error,
    .close = iter_close,
};

static int memory_iter_open(struct kv *kv, struct kv_iter **out)
{
    struct memory_iter *mi = calloc(1, sizeof(*mi));

    if (mi == NULL)
        return -ENOMEM;
    mi->it.ops = &iter_ops;
    mi->m = (struct kv_memory *)kv;
    *out = &mi->it;
    return 0;
}

static const struct kv_ops memory_ops = {
    .get = memory_get,
    .iter_open = memory_iter_open,
    .commit = memory_commit,
    .sync = memory_sync,
    .free_bytes = memory_free_bytes,
};

int kv_memory_open(struct env *env, struct kv_memory **out)
{
    struct kv_memory *m = calloc(1, sizeof(*m));

    if (m == NULL)
        return -ENOMEM;
    if (key_map_init(&m->map) != 0) {
        free(m);
        return -ENOMEM;
    }
    m->kv.ops = &memory_ops;
    m->env = env;
    m->free_bytes = UINT64_MAX;
    m->task.fn = on_done_task;
    env_timer_init(&m->sync_timer, on_sync_timer);
    *out = m;
    return 0;
}

void kv_memory_close(struct kv_memory *m)
{
    if (m == NULL)
        return;
    assert(m->done_head == NULL);
    key_map_free(&m->map);
    undos_drop(m, UINT64_MAX);
    free(m->undos);
    free(m);
}

struct kv *kv_memory_kv(struct kv_memory *m)
{
    return &m->kv;
}

uint64_t kv_memory_n_commits(const struct kv_memory *m)
{
    return m->n_commits;
}

uint64_t kv_memory_n_unsynced(const struct kv_memory *m)
{
    return m->n_commits - m->n_synced;
}

size_t kv_memory_n_keys(const struct kv_memory *m)
{
    return m->map.n_keys;
}

void kv_memory_kill(struct kv_memory *m)
{
    m->dead = true;
    if (m->syncing == NULL)
        return;
    env_timer_stop(m->env, &m->sync_timer);
    on_sync_timer(&m->sync_timer);
}

void kv_memory_set_sync_ms(struct kv_memory *m, uint64_t ms)
{
    m->sync_ms = ms;
}

void kv_memory_revive(struct kv_memory *m)
{
    m->dead = false;
}

void kv_memory_power_cut(struct kv_memory *m, uint64_t n_lost)
{
    assert(n_lost <= kv_memory_n_unsynced(m));
    while (m->n_undos > 0 && m->undos[m->n_undos - 1].commit > m->n_commits - n_lost) {
        struct undo *u = &m->undos[--m->n_undos];
        struct kv_item item = { u->key, u->key_len, u->val, u->val_len };

        item_apply(m, &item, false);
        free(u->key);
        free(u->val);
    }
    m->n_commits -= n_lost;
    m->dead = false;
}

void kv_memory_set_free(struct kv_memory *m, uint64_t free_bytes)
{
    m->free_bytes = free_bytes;
}
