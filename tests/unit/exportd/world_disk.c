/*
 * world_disk.c - the world's kv on LevelDB.
 */
#include "tests/unit/exportd/world_disk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <uv.h>

#include "common/kv/kv_leveldb.h"
#include "common/system/fds.h"

/* Kv that forwards to LevelDB until it is killed. */
struct world_disk {
    struct kv kv; /* must stay first */
    struct world *w;
    uv_loop_t loop;
    struct kv_leveldb *ldb;
    char dir[64];
    bool dead;
    struct env_task task; /* ends requests that came after the kill */
    struct kv_done *head, **tail;
};

static struct kv *under(struct kv *kv)
{
    return kv_leveldb_kv(((struct world_disk *)kv)->ldb);
}

static int disk_get(struct kv *kv, const void *key, size_t key_len, void **val,
                    size_t *val_len)
{
    return kv_get(under(kv), key, key_len, val, val_len);
}

static int disk_iter_open(struct kv *kv, struct kv_iter **out)
{
    return kv_iter_open(under(kv), out);
}

static void on_dead(struct env_task *task)
{
    struct world_disk *d = container_of(task, struct world_disk, task);

    while (d->head != NULL) {
        struct kv_done *done = d->head;

        d->head = done->next;
        if (d->head == NULL)
            d->tail = &d->head;
        done->fn(done, -EIO);
    }
}

static void dead_end(struct world_disk *d, struct kv_done *done)
{
    done->next = NULL;
    *d->tail = done;
    d->tail = &done->next;
    env_post(&d->w->env.env, &d->task);
}

static void disk_commit(struct kv *kv, const struct kv_item *items, size_t n_items,
                        struct kv_done *done)
{
    struct world_disk *d = (struct world_disk *)kv;

    if (d->dead)
        dead_end(d, done);
    else
        kv_commit(under(kv), items, n_items, done);
}

static void disk_sync(struct kv *kv, struct kv_done *done)
{
    struct world_disk *d = (struct world_disk *)kv;

    if (d->dead)
        dead_end(d, done);
    else
        kv_sync(under(kv), done);
}

static uint64_t disk_free_bytes(struct kv *kv)
{
    return kv_free_bytes(under(kv));
}

static const struct kv_ops disk_ops = {
    .get = disk_get,
    .iter_open = disk_iter_open,
    .commit = disk_commit,
    .sync = disk_sync,
    .free_bytes = disk_free_bytes,
};

static void ldb_open(struct world_disk *d)
{
    struct err err = { 0 };

    if (kv_leveldb_open(&d->w->env.env, &d->loop, d->dir, true, FDS_KV_MIN, &d->ldb,
                        &err) != 0)
        fail_msg("%s", err.text);
}

struct kv *world_disk_open(struct world *w)
{
    struct world_disk *d = calloc(1, sizeof(*d));

    assert_non_null(d);
    d->kv.ops = &disk_ops;
    d->w = w;
    d->task.fn = on_dead;
    d->tail = &d->head;
    snprintf(d->dir, sizeof(d->dir), "/tmp/rozo-test-kv.XXXXXX");
    assert_non_null(mkdtemp(d->dir));
    assert_int_equal(uv_loop_init(&d->loop), 0);
    ldb_open(d);
    w->disk = d;
    return &d->kv;
}

void world_disk_close(struct world *w)
{
    struct world_disk *d = w->disk;
    char command[128];

    if (d == NULL)
        return;
    kv_leveldb_close(d->ldb);
    assert_int_equal(uv_loop_close(&d->loop), 0);
    snprintf(command, sizeof(command), "rm -rf %s", d->dir);
    assert_int_equal(system(command), 0);
    free(d);
}

void world_disk_run(struct world *w)
{
    if (w->disk == NULL)
        return;
    uv_run(&w->disk->loop, UV_RUN_ONCE); /* waits for a worker, if one works */
    env_virtual_run_posted(&w->env);
}

void world_disk_kill(struct world *w)
{
    if (w->disk != NULL)
        w->disk->dead = true;
}

void world_disk_revive(struct world *w)
{
    if (w->disk == NULL)
        return;
    kv_leveldb_close(w->disk->ldb);
    ldb_open(w->disk);
    w->disk->dead = false;
}
