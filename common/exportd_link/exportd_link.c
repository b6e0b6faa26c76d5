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
#include "common/base/log.h"
#include "common/group/rpc_group.h"

enum {
    WHY_MAX = 512, /* bytes of an error text */
    NAME_BYTES = 64,
};

struct link_member {
    struct exportd_link *l;
    struct rpc_channel *channel; /* owned; NULL: the group has no such member */
    char addr[EXPORTD_ADDR_BYTES];
};

struct exportd_link {
    struct env_uv *env;                       /* borrowed */
    struct rpc_channel_config config;         /* the addresses are left out */
    char name[NAME_BYTES];                    /* config.name */
    struct link_member members[RPC_ADDR_MAX]; /* by number in the group */
    struct rpc_group *group;                  /* owned; NULL: not open, or closed */
    struct exportd_list list;                 /* the newest list of a leader */
    struct exportd_list coming;               /* from all lists: link_look() adds them */
    struct env_task task;                     /* link_look(), and the end */
    void (*is_up)(void *arg);
    void *arg;
    char why[WHY_MAX];
    bool is_closing;
    void (*closed)(void *arg);
    void *closed_arg;
    unsigned n_open; /* channels that have not closed */
};

static_assert((int)RPC_ADDR_MAX == (int)RPC_GROUP_MAX, "a member for each address");
static_assert((int)RPC_ADDR_TEXT_MAX == (int)EXPORTD_ADDR_BYTES, "one length");

static void look_soon(struct exportd_link *l)
{
    if (!l->is_closing)
        env_post(&l->env->env, &l->task);
}

static void link_is_up(void *arg)
{
    struct exportd_link *l = arg;

    look_soon(l);
    if (l->is_up != NULL)
        l->is_up(l->arg);
}

static void on_member_up(void *arg)
{
    struct link_member *m = arg;
    struct exportd_link *l = m->l;

    if (m->channel != NULL && rpc_group_leads(l->group, (unsigned)(m - l->members)))
        link_is_up(l);
}

static void on_member_down(void *arg)
{
    struct link_member *m = arg;

    if (m->channel == NULL)
        return;
    rpc_group_down(m->l->group, (unsigned)(m - m->l->members));
    look_soon(m->l);
}

/* ---- addresses that members tell ---- */

static void on_told(void *arg, const struct exportd_list *list, bool leads)
{
    struct exportd_link *l = arg;

    for (unsigned i = 0; i < list->n; i++)
        exportd_list_add(&l->coming, list->addrs[i]);
    if (leads)
        l->list = *list;
    look_soon(l);
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

    if (--l->n_open == 0 && l->group == NULL)
        env_post(&l->env->env, &l->task);
}

static void member_close(struct link_member *m)
{
    struct rpc_channel *channel = m->channel;

    m->channel = NULL;
    rpc_tcp_channel_close(channel, on_channel_closed, m->l);
}

/* Opens a channel to an address. Returns NULL if it is not valid. */
static struct rpc_channel *channel_open(struct exportd_link *l, const char *addr)
{
    struct rpc_channel_config config = l->config;
    struct rpc_channel *channel;
    struct err err = { 0 };

    config.addrs = &addr;
    config.n_addrs = 1;
    if (rpc_tcp_channel_open(l->env, &config, &channel, &err) != 0)
        return NULL;
    l->n_open++;
    return channel;
}

static void member_take(struct exportd_link *l, unsigned i, struct rpc_channel *channel,
                        const char *addr)
{
    struct link_member *m = &l->members[i];
    size_t len = strnlen(addr, sizeof(m->addr) - 1);

    m->l = l;
    m->channel = channel;
    memcpy(m->addr, addr, len);
    m->addr[len] = '\0';
    rpc_tcp_channel_on_up(channel, on_member_up, m);
    rpc_tcp_channel_on_down(channel, on_member_down, m);
}

static bool link_has(const struct exportd_link *l, const char *addr)
{
    for (unsigned i = 0; i < RPC_ADDR_MAX; i++) {
        if (l->members[i].channel != NULL && strcmp(l->members[i].addr, addr) == 0)
            return true;
    }
    return false;
}

/* Returns whether one of the addresses in the leader's list leads. */
static bool list_leads(const struct exportd_link *l)
{
    for (unsigned i = 0; i < RPC_ADDR_MAX; i++) {
        if (l->members[i].channel != NULL && rpc_group_leads(l->group, i) &&
            rpc_channel_health(l->members[i].channel) == RPC_UP &&
            exportd_list_has(&l->list, l->members[i].addr))
            return true;
    }
    return false;
}

/* Closes links that do not work to addresses that the leader does not name. */
static void links_drop(struct exportd_link *l)
{
    if (!list_leads(l))
        return;
    for (unsigned i = 0; i < RPC_ADDR_MAX; i++) {
        struct link_member *m = &l->members[i];

        if (m->channel == NULL || exportd_list_has(&l->list, m->addr) ||
            rpc_channel_health(m->channel) > RPC_CONNECTING)
            continue;
        log_debug("exportd at %s is no member any more", m->addr);
        rpc_group_remove(l->group, i);
        member_close(m);
    }
}

static void link_add(struct exportd_link *l, const char *addr)
{
    struct rpc_channel *channel = link_has(l, addr) ? NULL : channel_open(l, addr);
    int i;

    if (channel == NULL)
        return;
    i = rpc_group_add(l->group, channel);
    if (i < 0) { /* there are too many */
        rpc_tcp_channel_close(channel, on_channel_closed, l);
        return;
    }
    log_debug("exportd is reached at %s as well", addr);
    member_take(l, (unsigned)i, channel, addr);
}

static void link_look(struct env_task *task)
{
    struct exportd_link *l = container_of(task, struct exportd_link, task);

    if (l->is_closing) {
        if (l->group == NULL && l->n_open == 0)
            link_free(l);
        return;
    }
    links_drop(l);
    for (unsigned i = 0; i < l->coming.n; i++)
        link_add(l, l->coming.addrs[i]);
    l->coming.n = 0;
}

/* ---- life ---- */

static void on_group_closed(void *arg)
{
    struct exportd_link *l = arg;

    l->group = NULL;
    for (unsigned i = 0; i < RPC_ADDR_MAX; i++) {
        if (l->members[i].channel != NULL)
            member_close(&l->members[i]);
    }
}

static void link_open_members(struct exportd_link *l, const char *const *addrs,
                              unsigned n_addrs)
{
    struct rpc_channel *channels[RPC_ADDR_MAX];
    struct rpc_group_config config = { .members = channels,
                                       .n_members = n_addrs,
                                       .moved = link_is_up,
                                       .told = on_told,
                                       .arg = l };
    int rc;

    for (unsigned i = 0; i < n_addrs; i++) {
        channels[i] = channel_open(l, addrs[i]);
        assert(channels[i] != NULL); /* out of memory */
    }
    rc = rpc_group_new(&l->env->env, &config, &l->group);
    assert(rc == 0); /* out of memory */
    for (unsigned i = 0; i < n_addrs; i++)
        member_take(l, i, channels[i], addrs[i]);
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
    l->env = env;
    l->config = channel;
    snprintf(l->name, sizeof(l->name), "%s", config->name);
    l->config.name = l->name;
    l->task.fn = link_look;
    l->is_up = config->is_up;
    l->arg = config->arg;
    link_open_members(l, config->addrs, config->n_addrs);
    *out = l;
    return 0;
}

void exportd_link_close(struct exportd_link *l, void (*closed)(void *arg), void *arg)
{
    l->is_closing = true;
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
    for (unsigned i = 0; i < RPC_ADDR_MAX; i++) {
        struct rpc_channel *ch = l->members[i].channel;

        if (ch == NULL)
            continue;
        n_leads += rpc_group_leads(l->group, i);
        if (rpc_channel_health(ch) >= RPC_SUSPECT)
            n_up++;
        else if (rpc_tcp_channel_last_error(ch)[0] != '\0')
            why_add(l, rpc_tcp_channel_last_error(ch));
    }
    if (n_up > 0 && n_leads == 0)
        why_add(l, "none of these leads: does a majority run?");
    return l->why;
}

bool exportd_link_key_is_refused(struct exportd_link *l)
{
    bool refused = false;

    for (unsigned i = 0; i < RPC_ADDR_MAX; i++) {
        struct rpc_channel *ch = l->members[i].channel;

        if (ch == NULL)
            continue;
        if (rpc_channel_health(ch) != RPC_DOWN)
            return false;
        refused |= strstr(rpc_tcp_channel_last_error(ch), "key") != NULL;
    }
    return refused;
}
