/*
 * kv.c - a struct kv that outlives its process.
 *
 * In:     kv calls of a core. Out: calls of kv_memory, which belongs to the world;
 *         delayed callbacks.
 * Keeps:  acknowledged commits survive the process; synced ones survive a power cut.
 */
#include "tests/sim/cluster/world/kv.h"

#include <assert.h>
#include <stdlib.h>

#include "common/base/list.h"
#include "exportd/store/key.h"
#include "tests/lib/kv_memory.h"
#include "tests/sim/cluster/state.h"

/* One commit or sync that its process waits for. */
struct kv_wait {
    struct kv_wait *next; /* in the order of the requests */
    struct kv_done *theirs;
    bool is_commit;
};

struct sim_kv {
    struct kv kv; /* must be the first member */
    struct proc *proc;
    struct kv_memory *memory;
    struct kv_wait *head, *tail;
    unsigned n_commits_waiting;
    uint32_t more_us;   /* by which a request takes longer at most */
    uint64_t synced_ns; /* start of the last sync */
    bool is_of_witness; /* no metadata may come here */
    struct env_timer timer;
};

/* Frees kv_memory's own callback, which is called in the world. */
static void on_ignored(struct kv_done *done, int rc)
{
    (void)rc;
    free(done);
}

static struct kv_done *ignored_new(void)
{
    struct kv_done *done = calloc(1, sizeof(*done));

    assert(done != NULL);
    done->fn = on_ignored;
    return done;
}

static int sim_get(struct kv *kv, const void *key, size_t key_len, void **val,
                   size_t *val_len)
{
    return kv_get(kv_memory_kv(((struct sim_kv *)kv)->memory), key, key_len, val,
                  val_len);
}

static int sim_iter_open(struct kv *kv, struct kv_iter **out)
{
    return kv_iter_open(kv_memory_kv(((struct sim_kv *)kv)->memory), out);
}

static void on_timer(struct env_timer *timer)
{
    struct sim_kv *k = container_of(timer, struct sim_kv, timer);
    struct kv_wait *w = k->head;
    struct kv_done *theirs = w->theirs;
    struct proc *before;

    if (k->proc->hung) {
        world_timer_start_us(timer, 10000);
        return;
    }
    k->head = w->next;
    if (k->head == NULL)
        k->tail = NULL;
    else
        world_timer_start_us(timer, world_below(100 + k->more_us));
    k->n_commits_waiting -= w->is_commit;
    free(w);
    before = proc_enter(k->proc);
    theirs->fn(theirs, 0);
    proc_leave(before);
}

/* Queues a callback of the process. Runs in the world. */
static void wait_add(struct sim_kv *k, struct kv_done *theirs, bool is_commit)
{
    struct kv_wait *w = calloc(1, sizeof(*w));

    assert(w != NULL);
    w->theirs = theirs;
    w->is_commit = is_commit;
    k->n_commits_waiting += is_commit;
    if (k->tail == NULL) {
        k->head = w;
        world_timer_start_us(&k->timer, 10 + world_below(300 + k->more_us));
    } else {
        k->tail->next = w;
    }
    k->tail = w;
}

static void sim_commit(struct kv *kv, const struct kv_item *items, size_t n_items,
                       struct kv_done *done)
{
    struct sim_kv *k = (struct sim_kv *)kv;
    struct proc *before = proc_enter(&world_clock.world);

    assert(before == k->proc);
    for (size_t i = 0; k->is_of_witness && i < n_items; i++) {
        if (*(const uint8_t *)items[i].key != KEY_QUORUM)
            wrong("%s is a witness, and keeps a key of metadata", k->proc->name);
    }
    kv_commit(kv_memory_kv(k->memory), items, n_items, ignored_new());
    wait_add(k, done, true);
    world_trace(n_items);
    proc_leave(before);
}

static void sim_sync(struct kv *kv, struct kv_done *done)
{
    struct sim_kv *k = (struct sim_kv *)kv;
    struct proc *before = proc_enter(&world_clock.world);

    kv_sync(kv_memory_kv(k->memory), ignored_new());
    k->synced_ns = world_clock.now_ns;
    wait_add(k, done, false);
    proc_leave(before);
}

static uint64_t sim_free_bytes(struct kv *kv)
{
    (void)kv;
    return UINT64_MAX;
}

static const struct kv_ops sim_kv_ops = {
    .get = sim_get,
    .iter_open = sim_iter_open,
    .commit = sim_commit,
    .sync = sim_sync,
    .free_bytes = sim_free_bytes,
};

static void memory_make(struct sim_kv *k)
{
    int rc = kv_memory_open(&world_clock.world.env, &k->memory);

    assert(rc == 0);
}

struct sim_kv *sim_kv_new(struct proc *proc)
{
    struct sim_kv *k = calloc(1, sizeof(*k));

    assert(k != NULL);
    k->kv.ops = &sim_kv_ops;
    k->proc = proc;
    env_timer_init(&k->timer, on_timer);
    memory_make(k);
    return k;
}

void sim_kv_slow(struct sim_kv *k, uint32_t more_us)
{
    k->more_us = more_us;
}

void sim_kv_is_of_witness(struct sim_kv *k)
{
    k->is_of_witness = true;
}

void sim_kv_wipe(struct sim_kv *k)
{
    assert(k->head == NULL);
    memory_make(k); /* world_end() frees the old one: callbacks of it may be under way */
}

void sim_kv_free(struct sim_kv *k)
{
    (void)k; /* world_end() frees the world's memory */
}

struct kv *sim_kv_kv(struct sim_kv *k)
{
    return &k->kv;
}

/* Takes back the newest n commits, as a restart finds the store. */
static void lose(struct sim_kv *k, uint64_t n)
{
    uint64_t most = kv_memory_n_unsynced(k->memory);

    kv_memory_power_cut(k->memory, n < most ? n : most);
}

void sim_kv_proc_died(struct sim_kv *k)
{
    uint64_t lost = world_below(k->n_commits_waiting + 1);

    while (k->head != NULL) {
        struct kv_wait *w = k->head;

        k->head = w->next;
        free(w);
    }
    k->tail = NULL;
    k->n_commits_waiting = 0;
    timers_stop(&world_clock.world.timers, &k->timer);
    lose(k, lost);
}

void sim_kv_power_cut(struct sim_kv *k)
{
    uint64_t most = kv_memory_n_unsynced(k->memory);
    uint64_t lost = world_chance(300000) ? most : world_below(most + 1);

    lose(k, lost);
    /* a restart reads only stable data */
    kv_sync(kv_memory_kv(k->memory), ignored_new());
}

uint64_t sim_kv_n_unsynced(const struct sim_kv *k)
{
    return kv_memory_n_unsynced(k->memory);
}

uint64_t sim_kv_synced_ns(const struct sim_kv *k)
{
    return k->synced_ns;
}
