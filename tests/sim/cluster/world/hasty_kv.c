/*
 * hasty_kv.c - a kv that leaves out what makes answers of a quorum true.
 */
#include "tests/sim/cluster/world/hasty_kv.h"

#include <assert.h>
#include <stdlib.h>

#include "common/base/list.h"

static struct hasty_kv *of_kv(struct kv *kv)
{
    return (struct hasty_kv *)kv;
}

static void on_task(struct env_task *task)
{
    struct hasty_kv *h = container_of(task, struct hasty_kv, task);

    while (h->ended != NULL) {
        struct kv_done *done = h->ended;

        h->ended = done->next;
        if (h->ended == NULL)
            h->last = &h->ended;
        done->fn(done, 0);
    }
}

static void on_ignored(struct kv_done *done, int rc)
{
    (void)rc;
    free(done);
}

/* Ends a request soon. Returns the callback for the kv below. */
static struct kv_done *end_early(struct hasty_kv *h, struct kv_done *done)
{
    struct kv_done *ignored = calloc(1, sizeof(*ignored));

    assert(ignored != NULL);
    ignored->fn = on_ignored;
    done->next = NULL;
    *h->last = done;
    h->last = &done->next;
    env_post(h->env, &h->task);
    return ignored;
}

static int hasty_get(struct kv *kv, const void *key, size_t key_len, void **val,
                     size_t *val_len)
{
    return kv_get(of_kv(kv)->below, key, key_len, val, val_len);
}

static int hasty_iter_open(struct kv *kv, struct kv_iter **out)
{
    return kv_iter_open(of_kv(kv)->below, out);
}

static void hasty_commit(struct kv *kv, const struct kv_item *items, size_t n_items,
                         struct kv_done *done)
{
    struct hasty_kv *h = of_kv(kv);

    kv_commit(h->below, items, n_items, h->is_early ? end_early(h, done) : done);
}

/* An early one asks nobody: the kv below takes one sync at a time. */
static void hasty_sync(struct kv *kv, struct kv_done *done)
{
    struct hasty_kv *h = of_kv(kv);

    if (h->is_early)
        free(end_early(h, done));
    else
        kv_sync(h->below, done);
}

static bool hasty_confirm(struct kv *kv, struct kv_done *done)
{
    struct hasty_kv *h = of_kv(kv);
    bool holds = h->confirms_all || kv_confirm(h->below, done);

    if (holds && h->confirmed != NULL)
        h->confirmed(h->arg);
    return holds;
}

static int64_t hasty_stamp_ns(struct kv *kv, int64_t wall_ns)
{
    return kv_stamp_ns(of_kv(kv)->below, wall_ns);
}

static uint64_t hasty_free_bytes(struct kv *kv)
{
    return kv_free_bytes(of_kv(kv)->below);
}

static const struct kv_ops ops = {
    .get = hasty_get,
    .iter_open = hasty_iter_open,
    .commit = hasty_commit,
    .sync = hasty_sync,
    .confirm = hasty_confirm,
    .stamp_ns = hasty_stamp_ns,
    .free_bytes = hasty_free_bytes,
};

void hasty_kv_init(struct hasty_kv *h, struct env *env, struct kv *below)
{
    *h = (struct hasty_kv){ .kv.ops = &ops, .below = below, .env = env };
    h->last = &h->ended;
    h->task.fn = on_task;
}
