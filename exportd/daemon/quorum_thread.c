/*
 * quorum_thread.c - a member on its own libuv loop.
 *
 * In:     requests of other members; mail from the core.
 * Out:    channels of role NODE to other members; the log in DATA/quorum; mail to the
 *         core.
 * Keeps:  a member that cannot go on ends the process, also while the core hangs.
 * Yours:  the times.
 */
#include "exportd/daemon/quorum_thread.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/log.h"
#include "common/base/units.h"
#include "common/disk/disk_uv.h"
#include "common/system/boot_id.h"
#include "exportd/daemon/quorum_status.h"
#include "exportd/quorum/core_watch.h"
#include "exportd/quorum/raft/raft_core.h"

enum {
    LOOK_MS = 500,         /* pause between looks at the core and at channels */
    TRANSFER_LOOK_MS = 10, /* pause between looks at a transfer */
    /* the core of the quorum gives a transfer up after an election timeout */
    TRANSFER_MAX_MS = 2 * RAFT_ELECTION_MS,
    CONNS_OF_MEMBERS = 4 * RAFT_SERVERS_MAX,
};

/* Channel to another member. */
struct quorum_link {
    struct list_node link;
    struct quorum_thread *t;
    struct rpc_channel *channel; /* owned */
    char address[RAFT_ADDRESS_MAX + 1];
    char told[256]; /* why it does not work, as the log has it; "": it works, or new */
};

/* Core's side: config, thread, mails. Of the member's thread while it runs: the rest. */
struct quorum_thread {
    struct quorum_thread_config config;
    pthread_t thread;
    bool runs;
    uv_loop_t loop;
    struct env_uv env;
    struct disk_uv disk;
    struct rpc_server *server;
    struct member *member; /* owned */
    struct list_node links;
    unsigned n_closing; /* channels */
    bool is_stopping, is_over;

    struct env_timer look;
    struct env_mail look_mail; /* at the core while the watch has asked */
    struct core_watch watch;

    struct list_node transfers; /* asks under way */
    struct env_timer transfer_timer;

    struct env_mail start_mail, stop_mail, end_mail;
    struct err *err; /* the starter's */
    int start_rc;
    void (*started)(void *arg, int rc);
    void *started_arg;
    void (*stopped)(void *arg);
    void *stopped_arg;
};

static uint64_t lease_clock(void *arg)
{
    struct timespec now;

    (void)arg;
    clock_gettime(CLOCK_BOOTTIME, &now);
    return timespec_to_ns(now);
}

static bool leads(const struct quorum_thread *t)
{
    struct member_status s;

    member_status(t->member, &s);
    return s.leads;
}

/* ---- links to other members ---- */

static void on_link_refused(void *arg)
{
    struct quorum_link *l = arg;

    member_refused(l->t->member, l->channel);
}

static struct rpc_channel *link_open(void *arg, const char *address)
{
    struct quorum_thread *t = arg;
    struct rpc_channel_config config = {
        .keys = t->config.keys,
        .role = RPC_ROLE_NODE,
        .name = "exportd",
        .addrs = &address,
        .n_addrs = 1,
        .cluster_id = t->config.identity->cluster_id,
    };
    struct quorum_link *l = calloc(1, sizeof(*l));
    struct err err = { 0 };

    if (l != NULL && rpc_tcp_channel_open(&t->env, &config, &l->channel, &err) == 0) {
        l->t = t;
        snprintf(l->address, sizeof(l->address), "%s", address);
        list_add_tail(&t->links, &l->link);
        rpc_tcp_channel_on_refused(l->channel, on_link_refused, l);
        return l->channel;
    }
    log_warn("quorum: channel to %s: %s", address,
             l == NULL ? "out of memory" : err.text);
    free(l);
    return NULL;
}

static void on_link_closed(void *arg)
{
    ((struct quorum_thread *)arg)->n_closing--;
}

static void link_close(void *arg, struct rpc_channel *ch)
{
    struct quorum_thread *t = arg;

    LIST_FOREACH_SAFE(node, &t->links) {
        struct quorum_link *l = container_of(node, struct quorum_link, link);

        if (l->channel != ch)
            continue;
        list_remove(&l->link);
        free(l);
    }
    t->n_closing++;
    rpc_tcp_channel_close(ch, on_link_closed, t);
}

static const char *link_last_error(void *arg, struct rpc_channel *ch)
{
    (void)arg;
    return rpc_tcp_channel_last_error(ch);
}

/* Says once in the log why another member is not reached. */
static void link_look(struct quorum_link *l)
{
    const char *why = rpc_tcp_channel_last_error(l->channel);

    switch (rpc_channel_health(l->channel)) {
    case RPC_UP:
        if (l->told[0] != '\0')
            log_info("quorum: the member at %s is reached again", l->address);
        l->told[0] = '\0';
        break;
    case RPC_DOWN:
        if (why[0] == '\0' || strncmp(l->told, why, sizeof(l->told) - 1) == 0)
            break;
        snprintf(l->told, sizeof(l->told), "%s", why);
        log_warn("quorum: the member at %s is not reached: %s", l->address, why);
        break;
    default:
        break;
    }
}

/* ---- the core ---- */

static void on_core_looked(struct env_mail *mail)
{
    struct quorum_thread *t = container_of(mail, struct quorum_thread, look_mail);

    core_watch_answered(&t->watch);
}

/* On the core's thread. */
static void on_core_look(struct env_mail *mail)
{
    struct quorum_thread *t = container_of(mail, struct quorum_thread, look_mail);

    mail->fn = on_core_looked;
    env_mailbox_post(&t->env, mail);
}

void quorum_thread_core_serves(struct quorum_thread *t, bool serves)
{
    t->watch.serves_since_ns = serves ? env_now_ns(&t->config.core->env) : 0;
}

void quorum_thread_core_works(struct quorum_thread *t)
{
    t->watch.n_calls++;
}

/* Looks whether the core's loop turns, or calls are handled. */
static void core_look(struct quorum_thread *t)
{
    uint64_t now_ns = env_now_ns(&t->env.env);
    uint64_t hangs_ns = core_watch_look(&t->watch, now_ns);

    if (!t->watch.is_asked) {
        core_watch_asked(&t->watch, now_ns);
        t->look_mail.fn = on_core_look;
        env_mailbox_post(t->config.core, &t->look_mail);
    } else if (hangs_ns >= ms_to_ns(CORE_STALL_MS) && leads(t) &&
               member_transfer(t->member, 0) == 0) {
        log_warn(
            "quorum: exportd has not answered its own question for %llu ms: it hangs; "
            "another member takes over",
            (unsigned long long)ns_to_ms(hangs_ns));
    }
}

static void on_look(struct env_timer *timer)
{
    struct quorum_thread *t = container_of(timer, struct quorum_thread, look);

    LIST_FOREACH(node, &t->links)
        link_look(container_of(node, struct quorum_link, link));
    core_look(t);
    env_timer_start(&t->env.env, &t->look, LOOK_MS);
}

/* ---- asks ---- */

static struct member_status status_get(const struct quorum_thread *t)
{
    struct member_status s;

    member_status(t->member, &s);
    s.losses = kv_quorum_losses(t->config.port->kv);
    return s;
}

static void on_ask_done(struct env_mail *mail)
{
    struct quorum_ask *ask = container_of(mail, struct quorum_ask, mail);

    ask->done(ask);
}

static void ask_end(struct quorum_ask *ask, int rc)
{
    ask->rc = rc;
    ask->mail.fn = on_ask_done;
    env_mailbox_post(ask->t->config.core, &ask->mail);
}

static void on_ask_status(struct env_mail *mail)
{
    struct quorum_ask *ask = container_of(mail, struct quorum_ask, mail);

    ask->status = status_get(ask->t);
    ask_end(ask, 0);
}

/* Ends transfers that are over, one way or the other. */
static void on_transfer_timer(struct env_timer *timer)
{
    struct quorum_thread *t = container_of(timer, struct quorum_thread, transfer_timer);
    uint64_t now_ns = env_now_ns(&t->env.env);
    bool still_leads = leads(t);

    LIST_FOREACH_SAFE(node, &t->transfers) {
        struct quorum_ask *ask = container_of(node, struct quorum_ask, link);

        if (still_leads && now_ns < ask->end_ns)
            continue;
        list_remove(&ask->link);
        ask_end(ask, still_leads ? -ETIMEDOUT : 0);
    }
    if (!list_is_empty(&t->transfers))
        env_timer_start(&t->env.env, &t->transfer_timer, TRANSFER_LOOK_MS);
}

static bool reaches_any(const struct quorum_thread *t)
{
    LIST_FOREACH(node, &t->links) {
        struct quorum_link *l = container_of(node, struct quorum_link, link);

        if (rpc_channel_health(l->channel) >= RPC_SUSPECT)
            return true;
    }
    return false;
}

static int transfer_begin(struct quorum_thread *t, uint64_t to)
{
    if (t->is_stopping || !leads(t))
        return -ROZO_ENOT_LEADER;
    if (!reaches_any(t))
        return -ETIMEDOUT; /* no member would hear of it */
    return member_transfer(t->member, to);
}

static void on_ask_transfer(struct env_mail *mail)
{
    struct quorum_ask *ask = container_of(mail, struct quorum_ask, mail);
    struct quorum_thread *t = ask->t;
    int rc = transfer_begin(t, ask->to);

    if (rc != 0 && rc != -EBUSY) {
        ask_end(ask, rc);
        return;
    }
    ask->end_ns = env_now_ns(&t->env.env) + ms_to_ns(TRANSFER_MAX_MS);
    list_add_tail(&t->transfers, &ask->link);
    env_timer_start(&t->env.env, &t->transfer_timer, TRANSFER_LOOK_MS);
}

static void on_changed(struct member_change *c, int rc)
{
    ask_end(container_of(c, struct quorum_ask, change), rc);
}

static void on_ask_change(struct env_mail *mail)
{
    struct quorum_ask *ask = container_of(mail, struct quorum_ask, mail);

    ask->change.done = on_changed;
    member_change(ask->t->member, &ask->change);
}

static void ask_post(struct quorum_thread *t, struct quorum_ask *ask,
                     void (*fn)(struct env_mail *mail))
{
    ask->t = t;
    ask->mail.fn = fn;
    env_mailbox_post(&t->env, &ask->mail);
}

void quorum_thread_ask_status(struct quorum_thread *t, struct quorum_ask *ask)
{
    ask_post(t, ask, on_ask_status);
}

void quorum_thread_ask_transfer(struct quorum_thread *t, struct quorum_ask *ask)
{
    ask_post(t, ask, on_ask_transfer);
}

void quorum_thread_ask_change(struct quorum_thread *t, struct quorum_ask *ask)
{
    ask_post(t, ask, on_ask_change);
}

/* ---- life ---- */

/* Connects at once to members that are away: one of them has just connected to us. */
static void on_conn_opened(void *arg, uint64_t conn_id)
{
    struct quorum_thread *t = arg;

    (void)conn_id;
    LIST_FOREACH(node, &t->links) {
        struct quorum_link *l = container_of(node, struct quorum_link, link);

        if (rpc_channel_health(l->channel) <= RPC_CONNECTING)
            rpc_connect_now(l->channel);
    }
}

static void on_call(void *arg, struct rpc_call *call)
{
    struct quorum_thread *t = arg;
    struct member_status s;

    if (call->op == ROZO__OP__AD_META_STATUS) {
        s = status_get(t);
        quorum_status_answer(call, &s, t->watch.serves_since_ns != 0);
    } else {
        member_handle(t->member, call);
    }
}

void quorum_thread_failed(void *arg, int rc, const char *text)
{
    (void)arg;
    log_error("%s: %s; this member of the quorum cannot go on", text, error_text(rc));
    _exit(1);
}

static void *thread_run(void *arg)
{
    struct quorum_thread *t = arg;

    while (!t->is_over)
        uv_run(&t->loop, UV_RUN_ONCE);
    return NULL;
}

static void on_started_mail(struct env_mail *mail)
{
    struct quorum_thread *t = container_of(mail, struct quorum_thread, start_mail);

    t->started(t->started_arg, t->start_rc);
}

static void on_member_started(void *arg, int rc)
{
    struct quorum_thread *t = arg;

    t->start_rc = rc;
    t->start_mail.fn = on_started_mail;
    env_mailbox_post(t->config.core, &t->start_mail);
    if (rc == 0)
        env_timer_start(&t->env.env, &t->look, LOOK_MS);
}

static void on_start(struct env_mail *mail)
{
    struct quorum_thread *t = container_of(mail, struct quorum_thread, start_mail);

    member_start(t->member, t->err, on_member_started, t);
}

int quorum_thread_start(struct quorum_thread *t, struct err *err,
                        void (*started)(void *arg, int rc), void *arg)
{
    int rc;

    assert(!t->runs);
    t->err = err;
    t->started = started;
    t->started_arg = arg;
    rc = -pthread_create(&t->thread, NULL, thread_run, t);
    if (rc != 0)
        return err_set(err, rc, "start a thread: %s", error_text(rc));
    t->runs = true;
    t->start_mail.fn = on_start;
    env_mailbox_post(&t->env, &t->start_mail);
    return 0;
}

void quorum_thread_post(struct quorum_thread *t, struct env_mail *mail)
{
    env_mailbox_post(&t->env, mail);
}

static void on_stopped_mail(struct env_mail *mail)
{
    struct quorum_thread *t = container_of(mail, struct quorum_thread, stop_mail);

    t->stopped(t->stopped_arg);
}

static void on_member_stopped(void *arg)
{
    struct quorum_thread *t = arg;

    t->stop_mail.fn = on_stopped_mail;
    env_mailbox_post(t->config.core, &t->stop_mail);
}

static void on_stop(struct env_mail *mail)
{
    struct quorum_thread *t = container_of(mail, struct quorum_thread, stop_mail);

    t->is_stopping = true;
    env_timer_stop(&t->env.env, &t->look);
    env_timer_stop(&t->env.env, &t->transfer_timer);
    LIST_FOREACH_SAFE(node, &t->transfers) {
        struct quorum_ask *ask = container_of(node, struct quorum_ask, link);

        list_remove(&ask->link);
        ask_end(ask, -ROZO_ENOT_LEADER);
    }
    member_stop(t->member, on_member_stopped, t);
}

void quorum_thread_stop(struct quorum_thread *t, void (*stopped)(void *arg), void *arg)
{
    assert(t->runs);
    t->stopped = stopped;
    t->stopped_arg = arg;
    t->stop_mail.fn = on_stop;
    env_mailbox_post(&t->env, &t->stop_mail);
}

static void on_end(struct env_mail *mail)
{
    container_of(mail, struct quorum_thread, end_mail)->is_over = true;
}

static void on_server_closed(void *arg)
{
    ((struct quorum_thread *)arg)->server = NULL;
}

void quorum_thread_close(struct quorum_thread *t)
{
    if (t == NULL)
        return;
    if (t->runs) {
        t->end_mail.fn = on_end;
        env_mailbox_post(&t->env, &t->end_mail);
        pthread_join(t->thread, NULL);
    }
    t->is_over = true;
    if (t->server != NULL)
        rpc_server_close(t->server, on_server_closed, t);
    while (t->server != NULL || t->n_closing > 0)
        uv_run(&t->loop, UV_RUN_ONCE);
    member_free(t->member);
    if (t->env.impl != NULL)
        env_uv_close(&t->env);
    uv_run(&t->loop, UV_RUN_DEFAULT);
    uv_loop_close(&t->loop);
    free(t);
}

uint16_t quorum_thread_port(const struct quorum_thread *t, unsigned at)
{
    return rpc_server_port(t->server, at);
}

static int member_make(struct quorum_thread *t)
{
    const struct quorum_identity *id = t->config.identity;
    const struct quorum_section *section = t->config.section;
    struct member_config config = {
        .env = &t->env.env,
        .disk = &t->disk.disk,
        .hooks = member_port_member_hooks(t->config.port),
        .peers = { link_open, link_close, t, link_last_error },
        .id = id->member,
        .place = t->config.place,
        .now_ns = lease_clock,
        .keep_bytes = (uint64_t)section->log_keep_mb << 20,
        .seed_rate = (uint64_t)section->seed_rate_mb << 20,
        .sources = t->config.sources,
        .is_lazy = t->config.is_lazy,
        .is_witness = id->is_witness,
        .boot = boot_number(),
        .clients = *t->config.clients,
    };

    memcpy(config.group.cluster_id, id->cluster_id, sizeof(id->cluster_id));
    config.group.number = id->group;
    config.hooks.failed = quorum_thread_failed; /* at once, not by mail */
    return member_open(&config, &t->member);
}

static int server_make(struct quorum_thread *t, struct err *err)
{
    struct rpc_server_config config = {
        .keys = t->config.keys,
        .name = "exportd",
        .conns_max = CONNS_OF_MEMBERS,
        .handler = on_call,
        .conn_opened = on_conn_opened,
        .arg = t,
        .cluster_id = t->config.identity->cluster_id,
    };
    int rc = rpc_server_open(&t->env, &config, t->config.listen, t->config.n_listen,
                             &t->server, err);

    return rc == 0 ? 0 : err_wrap(err, rc, "quorum");
}

int quorum_thread_open(const struct quorum_thread_config *config,
                       struct quorum_thread **out, struct err *err)
{
    struct quorum_thread *t = calloc(1, sizeof(*t));
    int rc = t == NULL ? -ENOMEM : uv_loop_init(&t->loop);

    if (rc != 0) {
        free(t);
        return err_wrap(err, rc, "make an event loop");
    }
    t->config = *config;
    list_init(&t->links);
    list_init(&t->transfers);
    env_timer_init(&t->look, on_look);
    env_timer_init(&t->transfer_timer, on_transfer_timer);
    rc = env_uv_init(&t->env, &t->loop);
    if (rc == 0) {
        disk_uv_init(&t->disk, &t->env, config->dir_fd);
        config->port->now_ns = lease_clock;
        rc = member_make(t);
    }
    if (rc != 0)
        err_wrap(err, rc, "make a member of the quorum");
    if (rc == 0)
        rc = server_make(t, err);
    if (rc != 0) {
        quorum_thread_close(t);
        return rc;
    }
    config->port->member = t->member;
    *out = t;
    return 0;
}
