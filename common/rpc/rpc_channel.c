/*
 * rpc_channel.c - all links to one peer: the life of a channel.
 *
 * In:     rpc_tcp_channel_open() and _close(). Thread: the env's loop. This is shell.
 * Out:    links (rpc_link.c), which carry requests (rpc_request.c).
 * Keeps:  nothing of a channel is touched once closed() was called.
 */
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rpc/rpc_channel_in.h"

enum {
    PROBE_MS_DEFAULT = 500,
    QUEUE_MAX_DEFAULT = 64 << 20,
    POOL_IDLE_MAX = 16 << 20,
};

static void channel_free(struct channel *ch)
{
    for (unsigned i = 0; ch->links != NULL && i < ch->n_links; i++) {
        free(ch->links[i].rx_msg);
        if (ch->links[i].found != NULL)
            freeaddrinfo(ch->links[i].found);
    }
    bufpool_trim(&ch->pool);
    free(ch->links);
    free(ch->addrs);
    free(ch);
}

static void on_channel_task(struct env_task *task)
{
    struct channel *ch = container_of(task, struct channel, task);
    void (*closed)(void *arg) = ch->closed;
    void *arg = ch->closed_arg;

    while (!list_is_empty(&ch->failed)) {
        struct sent *s = container_of(ch->failed.next, struct sent, node);

        list_remove(&s->node);
        sent_done(s, s->rc);
    }
    if (!ch->is_closing || ch->n_busy != 0 || ch->task.queued)
        return;
    closed = ch->closed; /* a done() may have closed the channel just now */
    arg = ch->closed_arg;
    channel_free(ch);
    if (closed != NULL)
        closed(arg);
}

int rpc_tcp_channel_check(const struct rpc_channel_config *config, struct err *err)
{
    char host[RPC_ADDR_TEXT_MAX], port[8];

    if (config->n_addrs == 0 || config->n_addrs > RPC_ADDR_MAX)
        return err_set(err, -EINVAL, "expected 1 to %d addresses, got %u",
                       (int)RPC_ADDR_MAX, config->n_addrs);
    for (unsigned i = 0; i < config->n_addrs; i++) {
        int rc = addr_split(config->addrs[i], host, port, err);

        if (rc == 0 && strlen(config->addrs[i]) >= RPC_ADDR_TEXT_MAX)
            rc = err_set(err, -EINVAL, "address \"%s\" is too long", config->addrs[i]);
        if (rc != 0)
            return rc;
    }
    if (config->role == RPC_ROLE_NODE ? !config->keys->has_node
                                      : !config->keys->has_client)
        return err_set(err, -EINVAL, "the %s key is missing",
                       config->role == RPC_ROLE_NODE ? "node" : "client");
    return 0;
}

static void channel_init(struct channel *ch, struct env_uv *env,
                         const struct rpc_channel_config *config, unsigned links_per_addr)
{
    ch->base.ops = &channel_ops;
    ch->e = env;
    ch->keys = config->keys;
    ch->role = config->role;
    snprintf(ch->name, sizeof(ch->name), "%s", config->name);
    if (config->cluster_id != NULL)
        memcpy(ch->cluster_id, config->cluster_id, sizeof(ch->cluster_id));
    if (config->incarnation != NULL)
        memcpy(ch->incarnation, config->incarnation, sizeof(ch->incarnation));
    ch->probe_ms = config->probe_ms != 0 ? config->probe_ms : PROBE_MS_DEFAULT;
    ch->queue_max = config->queue_max != 0 ? config->queue_max : QUEUE_MAX_DEFAULT;
    env_random(&ch->e->env, &ch->next_id, sizeof(ch->next_id));
    ch->next_id &= ~RPC_ID_CHOSEN;
    ch->pool.idle_max_bytes = POOL_IDLE_MAX;
    ch->task.fn = on_channel_task;
    list_init(&ch->waiting);
    list_init(&ch->failed);
    env_timer_init(&ch->tick, on_channel_tick);
    ch->n_addrs = config->n_addrs;
    for (unsigned i = 0; i < ch->n_addrs; i++)
        snprintf(ch->addrs[i], RPC_ADDR_TEXT_MAX, "%s", config->addrs[i]);
    for (unsigned i = 0; i < ch->n_links; i++) {
        link_init(&ch->links[i], ch, i / links_per_addr);
    }
}

int rpc_tcp_channel_open(struct env_uv *env, const struct rpc_channel_config *config,
                         struct rpc_channel **out, struct err *err)
{
    unsigned links_per_addr = config->links_per_addr != 0 ? config->links_per_addr : 1;
    struct channel *ch;
    int rc = rpc_tcp_channel_check(config, err);

    if (rc != 0)
        return rc;
    ch = calloc(1, sizeof(*ch));
    if (ch == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    ch->n_links = config->n_addrs * links_per_addr;
    ch->addrs = calloc(config->n_addrs, sizeof(ch->addrs[0]));
    ch->links = calloc(ch->n_links, sizeof(ch->links[0]));
    if (ch->addrs == NULL || ch->links == NULL) {
        channel_free(ch);
        return err_set(err, -ENOMEM, "out of memory");
    }
    channel_init(ch, env, config, links_per_addr);
    for (unsigned i = 0; i < ch->n_links; i++)
        link_connect(&ch->links[i]);
    *out = &ch->base;
    return 0;
}

void rpc_tcp_channel_close(struct rpc_channel *base, void (*closed)(void *arg), void *arg)
{
    struct channel *ch = channel_of(base);

    assert(!ch->is_closing);
    ch->is_closing = true;
    ch->closed = closed;
    ch->closed_arg = arg;
    env_timer_stop(&ch->e->env, &ch->tick);
    for (unsigned i = 0; i < ch->n_links; i++) {
        struct link *l = &ch->links[i];

        env_timer_stop(&ch->e->env, &l->timer);
        if (l->state == LINK_RESOLVING)
            uv_cancel((uv_req_t *)&l->resolve);
        if (l->state == LINK_HELLO || l->state == LINK_UP)
            link_fail(l);
    }
    while (!list_is_empty(&ch->waiting))
        sent_fail_later(container_of(ch->waiting.next, struct sent, node), -ENOTCONN);
    env_post(&ch->e->env, &ch->task);
}

void rpc_tcp_channel_set_session(struct rpc_channel *base, uint64_t session)
{
    channel_of(base)->session = session;
}

void rpc_tcp_channel_on_up(struct rpc_channel *base, void (*fn)(void *arg), void *arg)
{
    channel_of(base)->on_up = (struct channel_watch){ fn, arg };
}

void rpc_tcp_channel_on_down(struct rpc_channel *base, void (*fn)(void *arg), void *arg)
{
    channel_of(base)->on_down = (struct channel_watch){ fn, arg };
}

void rpc_tcp_channel_on_refused(struct rpc_channel *base, void (*fn)(void *arg),
                                void *arg)
{
    channel_of(base)->on_refused = (struct channel_watch){ fn, arg };
}

const char *rpc_tcp_channel_last_error(const struct rpc_channel *base)
{
    return ((const struct channel *)base)->last_error;
}

void rpc_tcp_channel_links(const struct rpc_channel *base, unsigned *n_up,
                           unsigned *n_all)
{
    const struct channel *ch = (const struct channel *)base;

    *n_up = ch->n_up;
    *n_all = ch->n_links;
}
