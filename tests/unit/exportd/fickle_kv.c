/*
 * fickle_kv.c - a kv that can lose its right to write.
 */
#include "tests/unit/exportd/fickle_kv.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/list.h"
#include "tests/unit/unit.h"

/* Held commit, with copies of its items. */
struct fickle_commit {
    struct fickle_commit *next;
    struct kv_done *done;
    size_t n;
    struct kv_item items[];
};

static struct fickle_kv *of_kv(struct kv *kv)
{
    return (struct fickle_kv *)kv;
}

static void ended_add(struct fickle_kv *f, struct kv_done *done, int rc)
{
    done->rc = rc;
    done->next = NULL;
    *f->last_ended = done;
    f->last_ended = &done->next;
    env_post(f->env, &f->task);
}

static void on_task(struct env_task *task)
{
    struct fickle_kv *f = container_of(task, struct fickle_kv, task);

    while (f->ended != NULL) {
        struct kv_done *done = f->ended;

        f->ended = done->next;
        if (f->ended == NULL)
            f->last_ended = &f->ended;
        done->fn(done, done->rc);
    }
}

static void *copy(const void *p, size_t len)
{
    void *q = malloc(len + 1);

    assert_non_null(q);
    memcpy(q, p, len);
    return q;
}

static void commit_free(struct fickle_commit *c)
{
    for (size_t i = 0; i < c->n; i++) {
        free((void *)(uintptr_t)c->items[i].key);
        free((void *)(uintptr_t)c->items[i].val);
    }
    free(c);
}

static void commit_hold(struct fickle_kv *f, const struct kv_item *items, size_t n,
                        struct kv_done *done)
{
    struct fickle_commit *c = calloc(1, sizeof(*c) + n * sizeof(c->items[0])),
                         **last = &f->first;

    assert_non_null(c);
    c->done = done;
    c->n = n;
    for (size_t i = 0; i < n; i++) {
        c->items[i] = items[i];
        c->items[i].key = copy(items[i].key, items[i].key_len);
        if (items[i].val != NULL)
            c->items[i].val = copy(items[i].val, items[i].val_len);
    }
    while (*last != NULL)
        last = &(*last)->next;
    *last = c;
}

static void fickle_commit(struct kv *kv, const struct kv_item *items, size_t n_items,
                          struct kv_done *done)
{
    struct fickle_kv *f = of_kv(kv);

    if (f->deposed) {
        ended_add(f, done, -ROZO_ENOT_LEADER);
    } else if (f->holds) {
        commit_hold(f, items, n_items, done);
    } else {
        f->n_commits++;
        kv_commit(f->below, items, n_items, done);
    }
}

static void fickle_sync(struct kv *kv, struct kv_done *done)
{
    struct fickle_kv *f = of_kv(kv);

    if (f->deposed) {
        ended_add(f, done, -ROZO_ENOT_LEADER);
    } else if (f->holds) {
        assert_null(f->sync);
        f->sync = done;
    } else {
        f->n_syncs++;
        kv_sync(f->below, done);
    }
}

static bool fickle_confirm(struct kv *kv, struct kv_done *done)
{
    struct fickle_kv *f = of_kv(kv);

    if (!f->deposed && !f->no_lease)
        return true;
    if (done == NULL)
        return false;
    if (f->deposed) {
        ended_add(f, done, -ROZO_ENOT_LEADER);
        return false;
    }
    f->n_asked++;
    done->next = NULL;
    *f->last_ask = done;
    f->last_ask = &done->next;
    return false;
}

static int64_t fickle_stamp(struct kv *kv, int64_t wall_ns)
{
    struct fickle_kv *f = of_kv(kv);

    return wall_ns > f->stamp_ns ? wall_ns : f->stamp_ns;
}

static int fickle_get(struct kv *kv, const void *key, size_t key_len, void **val,
                      size_t *val_len)
{
    for (const struct fickle_commit *c = of_kv(kv)->first; c != NULL; c = c->next)
        for (size_t i = 0; i < c->n; i++) /* no test reads such a key */
            assert_false(c->items[i].key_len == key_len &&
                         memcmp(c->items[i].key, key, key_len) == 0);
    return kv_get(of_kv(kv)->below, key, key_len, val, val_len);
}

static int fickle_iter_open(struct kv *kv, struct kv_iter **out)
{
    return kv_iter_open(of_kv(kv)->below, out);
}

static uint64_t fickle_free_bytes(struct kv *kv)
{
    return kv_free_bytes(of_kv(kv)->below);
}

static const struct kv_ops ops = {
    .get = fickle_get,
    .iter_open = fickle_iter_open,
    .commit = fickle_commit,
    .sync = fickle_sync,
    .confirm = fickle_confirm,
    .stamp_ns = fickle_stamp,
    .free_bytes = fickle_free_bytes,
};

void fickle_kv_init(struct fickle_kv *f, struct env *env, struct kv *below)
{
    *f = (struct fickle_kv){ .kv.ops = &ops, .env = env, .below = below };
    f->last_ask = &f->asks;
    f->last_ended = &f->ended;
    f->task.fn = on_task;
}

static struct fickle_commit *commit_take(struct fickle_kv *f)
{
    struct fickle_commit *c = f->first;

    f->first = c->next;
    return c;
}

static struct kv_done *sync_take(struct fickle_kv *f)
{
    struct kv_done *done = f->sync;

    f->sync = NULL;
    return done;
}

void fickle_kv_let_go(struct fickle_kv *f)
{
    f->holds = false;
    while (f->first != NULL) {
        struct fickle_commit *c = commit_take(f);

        fickle_commit(&f->kv, c->items, c->n, c->done);
        commit_free(c);
    }
    if (f->sync != NULL)
        fickle_sync(&f->kv, sync_take(f));
}

static void asks_end(struct fickle_kv *f, int rc)
{
    while (f->asks != NULL) {
        struct kv_done *done = f->asks;

        f->asks = done->next;
        ended_add(f, done, rc);
    }
    f->last_ask = &f->asks;
}

void fickle_kv_confirm(struct fickle_kv *f)
{
    asks_end(f, 0);
}

void fickle_kv_depose(struct fickle_kv *f)
{
    f->deposed = true;
    fickle_kv_let_go(f);
    asks_end(f, -ROZO_ENOT_LEADER);
}
