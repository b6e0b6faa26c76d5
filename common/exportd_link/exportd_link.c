/*
 * exportd_link.c - a channel for each address of exportd, and a group over them.
 *
 * In:     rozomount, rozo. Thread: the env's loop. This is shell.
 * Out:    rpc_tcp.h, rpc_group.h.
 */
#include "common/exportd_link/exportd_link.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/list.h"
#include "common/group/rpc_group.h"

enum { WHY_MAX = 512 }; /* bytes of an error text */

struct link_member {
    struct exportd_link *l;
    struct rpc_channel *channel; /* owned */
};

struct exportd_link {
    struct link_member members[RPC_ADDR_MAX];
    unsigned n_members;
    struct rpc_group *group; /* owned */
    void (*is_up)(void *arg);
    void *arg;
    char why[WHY_MAX];
    void (*closed)(void *arg);
    void *closed_arg;
    unsigned n_open; /* channels that have not closed */
};

static_assert((int)RPC_ADDR_MAX == (int)RPC_GROUP_MAX, "a member for each address");

static void link_is_up(void *arg)
{
    struct exportd_link *l = arg;

    if (l->is_up != NULL)
        l->is_up(l->arg);
}

static void on_member_up(void *arg)
{
    struct link_member *m = arg;
    struct exportd_link *l = m->l;

    if (rpc_group_leads(l->group, (unsigned)(m - l->members)))
        link_is_up(l);
}

static void on_member_down(void *arg)
{
    struct link_member *m = arg;

    rpc_group_down(m->l->group, (unsigned)(m - m->l->members));
}

static void link_free(struct exportd_link *l)
{
    void (*closed)(void *arg) = l->closed;
    void *arg = l->closed_arg;

    free(l);
    if (closed != NULL)
        closed(arg);
}

static void on_channel_closed(void *arg)
{
    struct exportd_link *l = arg;

    if (--l->n_open == 0)
        link_free(l);
}

static void on_group_closed(void *arg)
{
    struct exportd_link *l = arg;

    l->n_open = l->n_members;
    for (unsigned i = 0; i < l->n_members; i++)
        rpc_tcp_channel_close(l->members[i].channel, on_channel_closed, l);
}

static void link_open_members(struct exportd_link *l, struct env_uv *env,
                              const struct rpc_channel_config *config)
{
    struct rpc_channel_config one = *config;

    one.n_addrs = 1;
    for (unsigned i = 0; i < config->n_addrs; i++) {
        struct link_member *m = &l->members[l->n_members++];
        int rc;

        one.addrs = &config->addrs[i];
        m->l = l;
        rc = rpc_tcp_channel_open(env, &one, &m->channel, NULL);
        assert(rc == 0); /* out of memory */
    }
}

static void link_open_group(struct exportd_link *l, struct env_uv *env)
{
    struct rpc_channel *channels[RPC_ADDR_MAX];
    struct rpc_group_config config = {
        .members = channels, .n_members = l->n_members, .moved = link_is_up, .arg = l
    };
    int rc;

    for (unsigned i = 0; i < l->n_members; i++)
        channels[i] = l->members[i].channel;
    rc = rpc_group_new(&env->env, &config, &l->group);
    assert(rc == 0); /* out of memory */
    for (unsigned i = 0; i < l->n_members; i++) {
        struct link_member *m = &l->members[i];

        rpc_tcp_channel_on_up(m->channel, on_member_up, m);
        rpc_tcp_channel_on_down(m->channel, on_member_down, m);
    }
}

int exportd_link_open(struct env_uv *env, const struct exportd_link_config *config,
                      struct exportd_link **out, struct err *err)
{
    struct rpc_channel_config channel = {
        .keys = config->keys,
        .role = config->role,
        .name = config->name,
        .addrs = config->addrs,
        .n_addrs = config->n_addrs,
    };
    struct exportd_link *l;
    int rc = rpc_tcp_channel_check(&channel, err);

    if (rc != 0)
        return rc;
    l = calloc(1, sizeof(*l));
    if (l == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    l->is_up = config->is_up;
    l->arg = config->arg;
    link_open_members(l, env, &channel);
    link_open_group(l, env);
    *out = l;
    return 0;
}

void exportd_link_close(struct exportd_link *l, void (*closed)(void *arg), void *arg)
{
    l->closed = closed;
    l->closed_arg = arg;
    rpc_group_close(l->group, on_group_closed, l);
}

struct rpc_channel *exportd_link_channel(struct exportd_link *l)
{
    return rpc_group_channel(l->group);
}

void exportd_link_set_session(struct exportd_link *l, uint64_t session, uint64_t start)
{
    rpc_group_set_session(l->group, session);
    rpc_group_at_least(l->group, start);
}

uint64_t exportd_link_start(const struct exportd_link *l)
{
    return rpc_group_start(l->group);
}

/* Adds to the text; what does not fit is left out. */
static void why_add(struct exportd_link *l, const char *text)
{
    size_t len = strlen(l->why);

    snprintf(l->why + len, sizeof(l->why) - len, "%s%s", len == 0 ? "" : "; ", text);
}

const char *exportd_link_last_error(struct exportd_link *l)
{
    unsigned n_up = 0, n_leads = 0;

    l->why[0] = '\0';
    for (unsigned i = 0; i < l->n_members; i++) {
        struct rpc_channel *ch = l->members[i].channel;

        n_leads += rpc_group_leads(l->group, i);
        if (rpc_channel_health(ch) >= RPC_SUSPECT)
            n_up++;
        else if (rpc_tcp_channel_last_error(ch)[0] != '\0')
            why_add(l, rpc_tcp_channel_last_error(ch));
    }
    if (n_up > 0 && n_leads == 0)
        why_add(l,
                "none of these leads: does a majority run, and is each of them named?");
    return l->why;
}

bool exportd_link_key_is_refused(struct exportd_link *l)
{
    bool refused = false;

    for (unsigned i = 0; i < l->n_members; i++) {
        struct rpc_channel *ch = l->members[i].channel;

        if (rpc_channel_health(ch) != RPC_DOWN)
            return false;
        refused |= strstr(rpc_tcp_channel_last_error(ch), "key") != NULL;
    }
    return refused;
}
