/*
 * offline.c - waits of commands that run while exportd does not.
 */
#include "exportd/offline/offline.h"

#include "common/base/list.h"
#include "common/system/fds.h"
#include "exportd/datadir/datadir.h"
#include "exportd/datadir/kv_call.h"

enum { LOOK_MS = 3000, LOOK_PAUSE_MS = 20 };

static void on_tick(struct env_timer *timer)
{
    container_of(timer, struct offline, tick)->is_due = true;
}

static void on_channel_closed(void *arg)
{
    ((struct offline *)arg)->is_done = true;
}

int offline_open(struct offline *o, const struct exportd_settings *config,
                 struct err *err)
{
    int rc;

    *o = (struct offline){ .config = config };
    rc = rpc_keys_load(&o->keys, true, config->cluster.node_key, err);
    if (rc == 0) {
        rc = uv_loop_init(&o->loop);
        if (rc != 0)
            err_wrap(err, rc, "make an event loop");
    }
    if (rc != 0)
        return rc;
    rc = env_uv_init(&o->env, &o->loop);
    if (rc != 0) {
        uv_loop_close(&o->loop);
        return err_wrap(err, rc, "make an event loop");
    }
    env_timer_init(&o->tick, on_tick);
    return 0;
}

void offline_close(struct offline *o)
{
    env_timer_stop(&o->env.env, &o->tick);
    env_uv_close(&o->env);
    uv_run(&o->loop, UV_RUN_DEFAULT);
    uv_loop_close(&o->loop);
}

void offline_wait(struct offline *o)
{
    while (!o->is_done)
        uv_run(&o->loop, UV_RUN_ONCE);
    o->is_done = false;
}

uint32_t offline_chance(struct offline *o)
{
    uint32_t chance;

    env_random(&o->env.env, &chance, sizeof(chance));
    return chance;
}

/* ---- the store ---- */

int offline_commit(struct offline *o, struct kv *kv, const struct kv_item *items,
                   size_t n_items, struct err *err)
{
    struct kv_call call;

    kv_call_init(&call, &o->loop);
    kv_commit(kv, items, n_items, &call.done);
    return kv_call_wait(&call, err);
}

int offline_sync(struct offline *o, struct kv *kv, struct err *err)
{
    struct kv_call call;

    kv_call_init(&call, &o->loop);
    return kv_call_sync(&call, kv, err);
}

int offline_store_open(struct offline *o, const char *name, bool may_create,
                       struct kv_leveldb **out, struct err *err)
{
    return datadir_store_open(&o->env, o->config->exportd.data, name, may_create,
                              FDS_KV_MIN, out, err);
}

/* ---- does another member run? ---- */

static void turn(struct offline *o)
{
    o->is_due = false;
    env_timer_start(&o->env.env, &o->tick, LOOK_PAUSE_MS);
    while (!o->is_due)
        uv_run(&o->loop, UV_RUN_ONCE);
}

bool offline_member_answers(struct offline *o, const char *address)
{
    struct rpc_channel_config config = {
        .keys = &o->keys,
        .role = RPC_ROLE_NODE,
        .name = "exportd",
        .addrs = &address,
        .n_addrs = 1,
    };
    struct rpc_channel *ch;
    bool answers = false;

    if (rpc_tcp_channel_open(&o->env, &config, &ch, NULL) != 0)
        return false;
    for (unsigned i = 0; i < LOOK_MS / LOOK_PAUSE_MS && !answers; i++) {
        turn(o);
        answers = rpc_channel_health(ch) == RPC_UP;
        if (rpc_channel_health(ch) == RPC_DOWN &&
            rpc_tcp_channel_last_error(ch)[0] != '\0')
            break;
    }
    o->is_done = false;
    rpc_tcp_channel_close(ch, on_channel_closed, o);
    offline_wait(o);
    return answers;
}
