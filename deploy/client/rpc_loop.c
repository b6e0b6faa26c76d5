/*
 * rpc_loop.c - a private loop, the node key, and channels.
 *
 * In:     admin.c, storage_clients.c.
 * Out:    rpc channels on a libuv loop that runs only while a verb waits.
 */
#include "deploy/client/rpc_loop.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/group/exportd_list.h"

static void on_timer(uv_timer_t *timer)
{
    struct rpc_loop *w = timer->data;

    if (w->tick != NULL)
        w->tick(w->tick_arg);
}

static int loop_open(struct rpc_loop *w)
{
    int rc = uv_loop_init(&w->loop);

    if (rc != 0)
        return rc;
    rc = env_uv_init(&w->env, &w->loop);
    if (rc != 0)
        uv_loop_close(&w->loop);
    return rc;
}

int rpc_loop_open(const char *node_key, struct rpc_loop **out, struct err *err)
{
    struct rpc_loop *w = calloc(1, sizeof(*w));
    int rc;

    if (w == NULL)
        return err_wrap(err, -ENOMEM, "make an event loop");
    rc = rpc_keys_load(&w->keys, true, node_key, err);
    if (rc == 0) {
        rc = loop_open(w);
        if (rc != 0)
            err_wrap(err, rc, "make an event loop");
    }
    if (rc != 0) {
        free(w);
        return rc;
    }
    uv_timer_init(&w->loop, &w->timer);
    w->timer.data = w;
    *out = w;
    return 0;
}

void rpc_loop_close(struct rpc_loop *w)
{
    if (w == NULL)
        return;
    uv_close((uv_handle_t *)&w->timer, NULL);
    env_uv_close(&w->env);
    while (uv_run(&w->loop, UV_RUN_DEFAULT) != 0)
        ;
    uv_loop_close(&w->loop);
    free(w);
}

int rpc_loop_connect(struct rpc_loop *w, const char *const *addrs, unsigned n_addrs,
                     struct rpc_channel **out, struct err *err)
{
    struct rpc_channel_config config = {
        .keys = &w->keys,
        .role = RPC_ROLE_NODE,
        .name = "rozo",
        .addrs = addrs,
        .n_addrs = n_addrs,
    };

    return rpc_tcp_channel_open(&w->env, &config, out, err);
}

static void on_closed(void *arg)
{
    struct rpc_loop *w = arg;

    w->closed = true;
}

void rpc_loop_disconnect(struct rpc_loop *w, struct rpc_channel *ch)
{
    if (ch == NULL)
        return;
    w->closed = false;
    rpc_tcp_channel_close(ch, on_closed, w);
    while (!w->closed)
        uv_run(&w->loop, UV_RUN_ONCE);
}

int rpc_loop_link(struct rpc_loop *w, const char *addrs, struct exportd_link **out,
                  struct err *err)
{
    const char *list[RPC_ADDR_MAX]; /* more are counted, and refused below */
    struct exportd_link_config config = {
        .keys = &w->keys, .role = RPC_ROLE_NODE, .name = "rozo", .addrs = list
    };
    char *copy = strdup(addrs);
    int rc;

    if (copy == NULL)
        return err_wrap(err, -ENOMEM, "connect to exportd");
    config.n_addrs = exportd_addrs_split(copy, list, RPC_ADDR_MAX);
    rc = exportd_link_open(&w->env, &config, out, err);
    free(copy);
    return rc;
}

void rpc_loop_unlink(struct rpc_loop *w, struct exportd_link *l)
{
    if (l == NULL)
        return;
    w->closed = false;
    exportd_link_close(l, on_closed, w);
    while (!w->closed)
        uv_run(&w->loop, UV_RUN_ONCE);
}

void rpc_loop_run(struct rpc_loop *w, const bool *done, void (*tick)(void *arg),
                  void *arg)
{
    w->tick = tick;
    w->tick_arg = arg;
    uv_timer_start(&w->timer, on_timer, RPC_LOOP_TICK_MS, RPC_LOOP_TICK_MS);
    while (!*done)
        uv_run(&w->loop, UV_RUN_ONCE);
    uv_timer_stop(&w->timer);
}
