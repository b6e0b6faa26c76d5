/*
 * quorum_wait.c - RF_ADOPT: an exportd without data becomes a member.
 *
 * In:     RF_ADOPT of the leader of a quorum; AD_META_STATUS; clients.
 * Out:    DATA/kv, DATA/quorum/identity, DATA/format, in this order.
 * Keeps:  a directory with a format is whole. The leader is answered OK when all is on
 *         stable storage; from then on no other quorum can have this exportd.
 */
#include "exportd/daemon/quorum_wait.h"

#include <errno.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "common/system/fds.h"
#include "common/system/systemd.h"
#include "exportd/daemon/quorum_status.h"
#include "exportd/datadir/datadir.h"
#include "exportd/datadir/first_member.h"
#include "exportd/datadir/kv_call.h"
#include "exportd/datadir/quorum_identity.h"
#include "exportd/leader/leader.h"
#include "exportd/quorum/seed_store.h"

enum { CONNS_OF_MEMBERS = 4 * RAFT_SERVERS_MAX };

struct waiting {
    struct quorum_wait_config config;
    struct rpc_server *members, *clients; /* owned */
    struct leader *leader;                /* owned: never leads, holds MD_WAIT_LEADER */
    bool is_leader_stopped;
    struct stop_signals signals;
    bool signals_open, is_over;
    struct rpc_call *call; /* owned: RF_ADOPT that makes this exportd a member */
    struct seed_adoption adoption;
};

static const char *data_of(const struct waiting *w)
{
    return w->config.settings->exportd.data;
}

/* ---- the directory ---- */

/* Makes a store of which nothing is copied yet, and whose member has no vote. */
static int store_make(struct waiting *w, struct err *err)
{
    struct kv_leveldb *kv;
    struct kv_call call;
    int rc =
        datadir_store_open(w->config.env, data_of(w), "kv", true, FDS_KV_MIN, &kv, err);

    if (rc != 0)
        return rc;
    kv_call_init(&call, w->config.env->loop);
    seed_store_adopt(kv_leveldb_kv(kv), &w->adoption, &call.done);
    rc = kv_call_wait_stable(&call, kv_leveldb_kv(kv), err);
    kv_leveldb_close(kv);
    return rc;
}

static int directory_make(struct waiting *w, struct err *err)
{
    struct quorum_identity id = { .member = (unsigned)w->adoption.id,
                                  .group = w->adoption.group.number,
                                  .is_witness = w->adoption.is_witness };
    int rc = store_make(w, err);

    memcpy(id.cluster_id, w->adoption.group.cluster_id, sizeof(id.cluster_id));
    if (rc == 0)
        rc = quorum_identity_write(data_of(w), &id, err);
    return rc != 0 ? rc : datadir_begin(data_of(w), true, err);
}

/* ---- requests ---- */

/* Refuses to become another kind of member than the config says. */
static int kind_check(const struct waiting *w, const struct seed_adoption *a,
                      struct err *err)
{
    if (a->is_witness == w->config.settings->quorum->witness)
        return 0;
    return err_set(err, -EINVAL,
                   a->is_witness
                       ? "this exportd is set up to keep metadata: for a witness write "
                         "`witness: true` into the section `quorum` of its config"
                       : "this exportd is set up as a witness (quorum: witness: true): "
                         "add it with --witness");
}

static void adopt(struct waiting *w, struct rpc_call *call)
{
    struct seed_adoption a;
    struct err err = { 0 };
    int rc = seed_adopt_decode(call->msg, call->msg_len, &a);

    if (rc == 0 && bytes_are_zero(a.group.cluster_id, sizeof(a.group.cluster_id)))
        rc = -EBADMSG;
    if (rc == 0)
        rc = kind_check(w, &a, &err);
    if (rc == 0 && w->call != NULL)
        rc = -EBUSY;
    if (rc == 0 && a.id != 0) {
        w->adoption = a;
        w->call = call; /* answered by become_member() */
    } else {
        seed_adopt_answer(call, rc, err.text);
    }
}

static void on_member_call(void *arg, struct rpc_call *call)
{
    const struct member_status none = { .id = 0 };

    if (call->role != RPC_ROLE_NODE)
        rpc_reply_status(call, ROZO__STATUS__DENIED);
    else if (call->op == ROZO__OP__AD_META_STATUS)
        quorum_status_answer(call, &none, false);
    else if (call->op == ROZO__OP__RF_ADOPT)
        adopt(arg, call);
    else /* for a member that was at this address before */
        rpc_reply_status(call, ROZO__STATUS__WRONG_STORAGE);
}

static void on_client_call(void *arg, struct rpc_call *call)
{
    const struct member_status none = { .id = 0 };
    struct waiting *w = arg;

    if (call->op == ROZO__OP__AD_META_STATUS)
        quorum_status_answer(call, &none, false);
    else
        leader_handle(w->leader, call);
}

/* ---- life ---- */

static int servers_open(struct waiting *w, struct err *err)
{
    const struct exportd_settings *s = w->config.settings;
    struct rpc_server_config members = {
        .keys = w->config.keys,
        .name = "exportd",
        .conns_max = CONNS_OF_MEMBERS,
        .handler = on_member_call,
        .arg = w,
    };
    struct rpc_server_config clients = {
        .keys = w->config.keys,
        .name = "exportd",
        .conns_max = w->config.conns_max,
        .handler = on_client_call,
        .arg = w,
    };
    int rc =
        rpc_server_open(w->config.env, &members, (const char *const *)s->quorum->listen,
                        s->quorum->listen_count, &w->members, err);

    if (rc != 0)
        return err_wrap(err, rc, "quorum");
    return rpc_server_open(w->config.env, &clients,
                           (const char *const *)s->exportd.listen,
                           s->exportd.listen_count, &w->clients, err);
}

static void on_members_closed(void *arg)
{
    ((struct waiting *)arg)->members = NULL;
}

static void on_clients_closed(void *arg)
{
    ((struct waiting *)arg)->clients = NULL;
}

static void on_leader_stopped(void *arg)
{
    ((struct waiting *)arg)->is_leader_stopped = true;
}

static void on_stop_signal(void *arg)
{
    sd_tell_stopping();
    ((struct waiting *)arg)->is_over = true;
}

static int signals_open(struct waiting *w, struct err *err)
{
    int rc = stop_signals_start(&w->signals, w->config.env->loop, on_stop_signal, w);

    w->signals_open = true;
    return rc == 0 ? 0 : err_wrap(err, rc, "watch signals");
}

static void waiting_end(struct waiting *w)
{
    if (w->signals_open) {
        stop_signals_close(&w->signals);
        uv_run(w->config.env->loop, UV_RUN_NOWAIT); /* lets go of the handles */
    }
    if (w->leader != NULL)
        leader_stop(w->leader, on_leader_stopped, w);
    while (w->leader != NULL && !w->is_leader_stopped)
        uv_run(w->config.env->loop, UV_RUN_ONCE);
    if (w->members != NULL)
        rpc_server_close(w->members, on_members_closed, w);
    if (w->clients != NULL)
        rpc_server_close(w->clients, on_clients_closed, w);
    while (w->members != NULL || w->clients != NULL)
        uv_run(w->config.env->loop, UV_RUN_ONCE);
    leader_close(w->leader);
}

static void waiting_tell(const struct waiting *w)
{
    const struct quorum_section *q = w->config.settings->quorum;

    for (unsigned i = 0; i < q->listen_count; i++)
        log_info(
            "%s is empty: waiting to be added to a quorum, on %s (port %u). On a "
            "machine with the node key of the cluster: `rozo meta add HOST:PORT%s`, or "
            "`rozo meta replace ID HOST:PORT`",
            data_of(w), q->listen[i], rpc_server_port(w->members, i),
            q->witness ? " --witness" : "");
    sd_tell_ready("waits to be added to a quorum");
}

static int become_member(struct waiting *w, struct err *err)
{
    int rc = directory_make(w, err);

    seed_adopt_answer(w->call, rc, rc == 0 ? "" : err->text);
    w->call = NULL;
    if (rc == 0)
        log_info(
            w->adoption.is_witness
                ? "this exportd is member %u of a quorum now, a witness: it copies the "
                  "metadata log of another member"
                : "this exportd is member %u of a quorum now: it copies the metadata "
                  "store of another member",
            (unsigned)w->adoption.id);
    return rc;
}

int quorum_wait(const struct quorum_wait_config *config, struct err *err)
{
    struct leader_config leader = { .env = &config->env->env };
    struct waiting w = { .config = *config };
    int rc = first_member_check(data_of(&w), err);

    if (rc == 0)
        rc = leader_open(&leader, &w.leader);
    if (rc == 0)
        rc = signals_open(&w, err);
    if (rc == 0)
        rc = servers_open(&w, err);
    if (rc == 0) {
        waiting_tell(&w);
        while (w.call == NULL && !w.is_over)
            uv_run(config->env->loop, UV_RUN_ONCE);
        rc = w.call == NULL ? -ECANCELED : become_member(&w, err);
    }
    waiting_end(&w);
    return rc;
}
