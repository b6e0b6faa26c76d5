/*
 * quorum_node.c - one member: kv, mailboxes between two threads, core, and its end.
 *
 * In:     requests of clients; news of the member, as mail.
 * Out:    questions to the member's thread; the core on the kv.
 * Keeps:  a member whose kv fails ends the process: others have what it lacks.
 */
#include "exportd/daemon/quorum_node.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/log.h"
#include "common/wire/status.h"
#include "exportd/daemon/quorum_status.h"
#include "exportd/daemon/quorum_thread.h"
#include "exportd/datadir/quorum_store.h"
#include "exportd/leader/leader.h"
#include "exportd/quorum/kv_quorum.h"
#include "exportd/quorum/member_port.h"

enum node_state { NODE_STARTS, NODE_RUNS, NODE_STOPS };

struct quorum_node {
    struct quorum_node_config config;
    struct quorum_identity identity;
    int dir_fd; /* DATA/quorum */
    enum node_state state;
    int start_rc;
    bool is_thread_stopped, is_leader_stopped;
    struct kv_quorum_hooks kv_hooks;
    struct kv_quorum *kv; /* owned */
    struct member_port port;
    struct quorum_thread *thread; /* owned */
    struct leader *leader;        /* owned */
    struct exportd_list clients;  /* where clients reach the members */
    unsigned n_asks;              /* questions of clients to the member, under way */

    /* The stop. */
    struct quorum_ask hand_over;
    struct env_task stop_task; /* again until nothing is under way */
    void (*stopped)(void *arg, int rc);
    void *stopped_arg;
};

/* Question of a client to the member. */
struct node_ask {
    struct quorum_ask ask;
    struct quorum_node *n;
    struct rpc_call *call; /* owned */
};

/* ---- questions about the quorum ---- */

static struct node_ask *node_ask_new(struct quorum_node *n, struct rpc_call *call,
                                     void (*done)(struct quorum_ask *ask))
{
    struct node_ask *a = calloc(1, sizeof(*a));

    if (a == NULL) {
        rpc_reply_status(call, ROZO__STATUS__NO_MEMORY);
        return NULL;
    }
    a->ask.done = done;
    a->n = n;
    a->call = call;
    n->n_asks++;
    return a;
}

/* Ends a question whose call has been answered. */
static void node_ask_free(struct node_ask *a)
{
    a->n->n_asks--;
    free(a);
}

static void on_status(struct quorum_ask *ask)
{
    struct node_ask *a = container_of(ask, struct node_ask, ask);

    quorum_status_answer(a->call, &ask->status,
                         ask->status.leads && leader_serves(a->n->leader));
    node_ask_free(a);
}

static void on_transferred(struct quorum_ask *ask)
{
    struct node_ask *a = container_of(ask, struct node_ask, ask);
    int rc = ask->rc == -EINVAL ? -ENOENT : ask->rc;

    rpc_reply_status(a->call, status_from_errno(rc));
    node_ask_free(a);
}

static void on_added(struct quorum_ask *ask)
{
    struct node_ask *a = container_of(ask, struct node_ask, ask);
    Rozo__AdMetaAddResp resp = ROZO__AD_META_ADD_RESP__INIT;
    uint8_t msg[ERR_TEXT_MAX + 32];

    resp.id = ask->change.id;
    resp.error = ask->change.err.text;
    rpc_reply(a->call, status_from_errno(ask->rc), msg,
              rozo__ad_meta_add_resp__pack(&resp, msg), NULL, 0, NULL, NULL);
    node_ask_free(a);
}

static void on_removed(struct quorum_ask *ask)
{
    struct node_ask *a = container_of(ask, struct node_ask, ask);
    Rozo__AdMetaRemoveResp resp = ROZO__AD_META_REMOVE_RESP__INIT;
    uint8_t msg[ERR_TEXT_MAX + 32];

    resp.error = ask->change.err.text;
    rpc_reply(a->call, status_from_errno(ask->rc), msg,
              rozo__ad_meta_remove_resp__pack(&resp, msg), NULL, 0, NULL, NULL);
    node_ask_free(a);
}

static void meta_status(struct quorum_node *n, struct rpc_call *call)
{
    struct node_ask *a = node_ask_new(n, call, on_status);

    if (a != NULL)
        quorum_thread_ask_status(n->thread, &a->ask);
}

static void meta_transfer(struct quorum_node *n, struct rpc_call *call)
{
    Rozo__AdMetaTransferReq *req =
        rozo__ad_meta_transfer_req__unpack(NULL, call->msg_len, call->msg);
    struct node_ask *a;

    if (req == NULL) {
        rpc_reply_status(call, ROZO__STATUS__BAD_REQUEST);
        return;
    }
    a = node_ask_new(n, call, on_transferred);
    if (a != NULL) {
        a->ask.to = req->to;
        quorum_thread_ask_transfer(n->thread, &a->ask);
    }
    rozo__ad_meta_transfer_req__free_unpacked(req, NULL);
}

static void meta_add(struct quorum_node *n, struct rpc_call *call)
{
    Rozo__AdMetaAddReq *req =
        rozo__ad_meta_add_req__unpack(NULL, call->msg_len, call->msg);
    struct node_ask *a;

    if (req == NULL || strlen(req->address) > RAFT_ADDRESS_MAX) {
        rpc_reply_status(call, ROZO__STATUS__BAD_REQUEST);
    } else if ((a = node_ask_new(n, call, on_added)) != NULL) {
        a->ask.change.kind = MEMBER_CHANGE_ADD;
        a->ask.change.replaces = req->replaces;
        a->ask.change.is_witness = req->witness;
        memcpy(a->ask.change.address, req->address, strlen(req->address) + 1);
        if (quorum_section_is_address(req->address)) {
            quorum_thread_ask_change(n->thread, &a->ask);
        } else {
            a->ask.rc = err_set(&a->ask.change.err, -EINVAL,
                                "\"%s\" is no HOST:PORT by which other members reach the "
                                "new one",
                                req->address);
            on_added(&a->ask);
        }
    }
    if (req != NULL)
        rozo__ad_meta_add_req__free_unpacked(req, NULL);
}

static void meta_remove(struct quorum_node *n, struct rpc_call *call)
{
    Rozo__AdMetaRemoveReq *req =
        rozo__ad_meta_remove_req__unpack(NULL, call->msg_len, call->msg);
    struct node_ask *a;

    if (req == NULL) {
        rpc_reply_status(call, ROZO__STATUS__BAD_REQUEST);
        return;
    }
    a = node_ask_new(n, call, on_removed);
    if (a != NULL) {
        a->ask.change.kind = MEMBER_CHANGE_REMOVE;
        a->ask.change.id = req->id;
        a->ask.change.is_forced = req->force;
        quorum_thread_ask_change(n->thread, &a->ask);
    }
    rozo__ad_meta_remove_req__free_unpacked(req, NULL);
}

/* Carries out a request about the quorum. Returns false if it is another request. */
static bool meta_handle(struct quorum_node *n, struct rpc_call *call)
{
    static const struct {
        uint16_t op;
        void (*fn)(struct quorum_node *n, struct rpc_call *call);
    } ops[] = {
        { ROZO__OP__AD_META_STATUS, meta_status },
        { ROZO__OP__AD_META_TRANSFER, meta_transfer },
        { ROZO__OP__AD_META_ADD, meta_add },
        { ROZO__OP__AD_META_REMOVE, meta_remove },
    };

    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (ops[i].op != call->op)
            continue;
        if (call->role != RPC_ROLE_NODE)
            rpc_reply_status(call, ROZO__STATUS__DENIED);
        else
            ops[i].fn(n, call);
        return true;
    }
    return false;
}

void quorum_node_handle(void *arg, struct rpc_call *call)
{
    struct quorum_node *n = arg;

    if (n->state != NODE_RUNS)
        rpc_reply_status(call, ROZO__STATUS__NOT_LEADER);
    else if (!meta_handle(n, call))
        leader_handle(n->leader, call);
    if (n->state == NODE_RUNS)
        quorum_thread_core_works(n->thread);
}

void quorum_node_conn_closed(void *arg, uint64_t conn_id)
{
    leader_conn_closed(((struct quorum_node *)arg)->leader, conn_id);
}

/* ---- news of the member ---- */

static void post_core(void *arg, struct env_mail *mail)
{
    env_mailbox_post(((struct quorum_node *)arg)->config.env, mail);
}

static void post_member(void *arg, struct env_mail *mail)
{
    quorum_thread_post(((struct quorum_node *)arg)->thread, mail);
}

static void on_lead(void *arg, uint64_t term)
{
    struct quorum_node *n = arg;

    if (n->state != NODE_STOPS)
        leader_lead(n->leader, term);
}

static void on_depose(void *arg)
{
    struct quorum_node *n = arg;

    leader_depose(n->leader);
}

static void on_serves(void *arg, bool serves)
{
    quorum_thread_core_serves(((struct quorum_node *)arg)->thread, serves);
}

static void on_clients(void *arg, const struct exportd_list *list)
{
    struct quorum_node *n = arg;

    n->clients = *list;
    leader_clients(n->leader);
}

static void on_end_conns(void *arg)
{
    const struct quorum_node *n = arg;

    n->config.end_conns(n->config.arg);
}

/* This process cannot go on. A damaged store is not opened again by the next one. */
static void on_failed(void *arg, int rc, const char *text)
{
    const struct quorum_node *n = arg;

    if (kv_quorum_error(n->kv) == -ROZO_EDAMAGED)
        quorum_store_is_damaged(n->dir_fd);
    quorum_thread_failed(NULL, rc, text);
}

/* Returns whether the list of members, as far as it is applied, has no other voter. A
 * change of the list would go through this member. */
static bool is_alone(void *arg)
{
    const struct quorum_node *n = arg;

    return raft_config_n_voters(&kv_quorum_place(n->kv)->members) == 1;
}

static void on_member_started(void *arg, int rc)
{
    struct quorum_node *n = arg;

    n->start_rc = rc;
    n->state = NODE_RUNS;
}

/* ---- start ---- */

static int identity_load(struct quorum_node *n, struct err *err)
{
    const struct quorum_section *section = n->config.section;
    const char *data = n->config.data;
    int rc = quorum_identity_read(data, &n->identity, err);

    if (rc == -ENOENT)
        return err_set(
            err, -ROZO_EDAMAGED,
            "%s/quorum/identity is missing: this member does not know any more "
            "which quorum it belongs to, and must not vote. If its disk is "
            "mounted, its data are lost",
            data);
    if (rc == 0 && section->id != 0 && n->identity.member != section->id)
        return err_set(err, -EINVAL,
                       "%s belongs to member %u, and the config says quorum: id: %u: one "
                       "of both is another machine's",
                       data, n->identity.member, section->id);
    if (rc == 0 && n->identity.is_witness != section->witness)
        return err_set(err, -EINVAL,
                       n->identity.is_witness
                           ? "%s belongs to a witness, which has no metadata, and the "
                             "config does not say `witness: true` in its section "
                             "`quorum`: write it there. A witness never becomes a member "
                             "with metadata: for that add another one, with an empty "
                             "data directory"
                           : "%s belongs to a member with metadata, and the config says "
                             "`witness: true`: take it out. To make this machine a "
                             "witness remove the member, and add a witness with an empty "
                             "data directory",
                       data);
    return rc;
}

/* Refuses a store whose list of members does not go with the identity. */
static int kind_check(const struct quorum_node *n, struct err *err)
{
    const struct raft_config *list = &kv_quorum_place(n->kv)->members;
    uint64_t id = n->identity.member;

    if (raft_config_find(list, id) == NULL ||
        raft_config_is_witness(list, id) == n->identity.is_witness)
        return 0;
    return err_set(err, -ROZO_EDAMAGED,
                   "%s/kv and %s/quorum/identity do not go together: one is a witness's",
                   n->config.data, n->config.data);
}

static int kv_open(struct quorum_node *n, struct err *err)
{
    struct kv_quorum_config config = {
        .env = &n->config.env->env,
        .below = n->config.below,
        .hooks = &n->kv_hooks,
        .is_witness = n->identity.is_witness,
    };
    const struct kv_quorum_place *place;
    int rc = kv_quorum_open(&config, &n->kv, err);

    if (rc == -ROZO_EDAMAGED)
        quorum_store_is_damaged(n->dir_fd);
    if (rc != 0)
        return rc;
    place = kv_quorum_place(n->kv);
    if (place->applied == 0 && place->seed.doubt == SEED_NONE)
        return err_set(err, -ROZO_EDAMAGED,
                       "%s/kv is not the store of a member of a quorum", n->config.data);
    return kind_check(n, err);
}

/* Says when the config lists other members than the quorum has. */
static void members_compare(const struct quorum_node *n)
{
    const struct quorum_section *section = n->config.section;
    const struct raft_config *members = &kv_quorum_place(n->kv)->members;
    bool differs = members->n != section->members_count;

    if (members->n == 0 || section->members_count == 0)
        return; /* an empty store, before it is copied; or no list */
    for (unsigned i = 0; i < section->members_count; i++) {
        const struct raft_member *m = raft_config_find(members, section->members[i].id);

        differs =
            differs || m == NULL || strcmp(m->address, section->members[i].address) != 0;
    }
    if (differs)
        log_warn("quorum: members: the list in the config is not that of the quorum; the "
                 "quorum's counts");
}

static int leader_make(struct quorum_node *n)
{
    struct leader_config config = {
        .env = &n->config.env->env,
        .kv = kv_quorum_kv(n->kv),
        .exportd = n->config.core,
        .failed = on_failed,
        .is_alone = is_alone,
        .serves = on_serves,
        .end_conns = on_end_conns,
        .arg = n,
        .clients = &n->clients,
    };

    return leader_open(&config, &n->leader);
}

/* Returns the addresses at which this exportd listens for clients: the first ones. */
static struct member_clients clients_of(const struct quorum_node_config *config)
{
    struct member_clients clients = { .n = 0 };

    for (unsigned i = 0; i < config->listen_count && clients.n < MEMBER_CLIENTS_MAX;
         i++) {
        if (strlen(config->listen[i]) < EXPORTD_ADDR_BYTES)
            strcpy(clients.addrs[clients.n++], config->listen[i]);
    }
    return clients;
}

static int thread_make(struct quorum_node *n, struct err *err)
{
    const struct quorum_section *section = n->config.section;
    const struct member_clients clients = clients_of(&n->config);
    struct raft_config sources = kv_quorum_place(n->kv)->members;
    struct quorum_thread_config config = {
        .keys = n->config.keys,
        .listen = (const char *const *)section->listen,
        .n_listen = section->listen_count,
        .is_lazy = section->acknowledge == ACKNOWLEDGE_MEMORY,
        .clients = &clients,
        .dir_fd = n->dir_fd,
        .section = section,
        .sources = &sources,
        .identity = &n->identity,
        .place = kv_quorum_place(n->kv),
        .core = n->config.env,
        .port = &n->port,
    };

    quorum_store_sources(n->dir_fd, section, &sources);
    return quorum_thread_open(&config, &n->thread, err);
}

static int member_begin(struct quorum_node *n, struct err *err)
{
    int rc = quorum_thread_start(n->thread, err, on_member_started, n);

    while (rc == 0 && n->state == NODE_STARTS)
        uv_run(n->config.env->loop, UV_RUN_ONCE);
    return rc != 0 ? rc : n->start_rc;
}

static void on_undo_thread_stopped(void *arg)
{
    ((struct quorum_node *)arg)->is_thread_stopped = true;
}

static void on_undo_leader_stopped(void *arg)
{
    ((struct quorum_node *)arg)->is_leader_stopped = true;
}

/* Undoes quorum_node_open(), however far it came. */
static void node_undo(struct quorum_node *n)
{
    if (n->state != NODE_STARTS) { /* the thread runs, with a member that has failed */
        n->state = NODE_STOPS;
        quorum_thread_stop(n->thread, on_undo_thread_stopped, n);
        while (!n->is_thread_stopped)
            uv_run(n->config.env->loop, UV_RUN_ONCE);
    }
    if (n->leader != NULL)
        leader_stop(n->leader, on_undo_leader_stopped, n);
    while (n->leader != NULL && !n->is_leader_stopped)
        uv_run(n->config.env->loop, UV_RUN_ONCE);
    quorum_node_close(n);
}

int quorum_node_open(const struct quorum_node_config *config, struct quorum_node **out,
                     struct err *err)
{
    struct quorum_node *n = calloc(1, sizeof(*n));
    int rc;

    if (n == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    n->config = *config;
    n->dir_fd = -1;
    n->port = (struct member_port){ .post_member = post_member,
                                    .post_core = post_core,
                                    .post_arg = n,
                                    .lead = on_lead,
                                    .depose = on_depose,
                                    .failed = on_failed,
                                    .clients = on_clients,
                                    .arg = n };
    n->kv_hooks = member_port_kv_hooks(&n->port);
    rc = identity_load(n, err);
    if (rc == 0) {
        n->config.core.cluster_id = n->identity.cluster_id;
        n->dir_fd = quorum_folder_open(config->data, err);
        rc = n->dir_fd < 0 ? n->dir_fd : kv_open(n, err);
    }
    if (rc == 0) {
        n->port.kv = n->kv;
        members_compare(n);
        rc = leader_make(n);
    }
    if (rc == 0)
        rc = thread_make(n, err);
    if (rc == 0)
        rc = member_begin(n, err);
    if (rc == 0)
        *out = n;
    else
        node_undo(n);
    return rc;
}

const uint8_t *quorum_node_cluster_id(const struct quorum_node *n)
{
    return n->identity.cluster_id;
}

bool quorum_node_is_witness(const struct quorum_node *n)
{
    return n->identity.is_witness;
}

uint32_t quorum_node_group(const struct quorum_node *n)
{
    return n->identity.group;
}

void quorum_node_tell(const struct quorum_node *n)
{
    for (unsigned i = 0; i < n->config.section->listen_count; i++)
        log_info("member %u of a quorum%s, listening for others on %s (port %u)",
                 n->identity.member, n->identity.is_witness ? ", a witness" : "",
                 n->config.section->listen[i], quorum_thread_port(n->thread, i));
}

/* ---- stop: hand over, member, core, kv ---- */

static void on_stop_task(struct env_task *task)
{
    struct quorum_node *n = container_of(task, struct quorum_node, stop_task);

    if (n->n_asks > 0 || !kv_quorum_is_idle(n->kv))
        env_post(&n->config.env->env, task);
    else
        n->stopped(n->stopped_arg, 0);
}

static void on_leader_stopped(void *arg)
{
    struct quorum_node *n = arg;

    n->stop_task.fn = on_stop_task;
    env_post(&n->config.env->env, &n->stop_task);
}

/* No mail of the member comes after this. */
static void on_thread_stopped(void *arg)
{
    struct quorum_node *n = arg;

    leader_stop(n->leader, on_leader_stopped, n);
}

static void on_handed_over(struct quorum_ask *ask)
{
    struct quorum_node *n = container_of(ask, struct quorum_node, hand_over);

    if (ask->rc == 0)
        log_info("quorum: leadership is handed over");
    else if (ask->rc != -ROZO_ENOT_LEADER)
        log_info("quorum: no other member takes over");
    quorum_thread_stop(n->thread, on_thread_stopped, n);
}

void quorum_node_stop(struct quorum_node *n, void (*done)(void *arg, int rc), void *arg)
{
    assert(n->state == NODE_RUNS);
    n->state = NODE_STOPS;
    n->stopped = done;
    n->stopped_arg = arg;
    n->hand_over.done = on_handed_over;
    quorum_thread_ask_transfer(n->thread, &n->hand_over);
}

void quorum_node_close(struct quorum_node *n)
{
    if (n == NULL)
        return;
    quorum_thread_close(n->thread);
    leader_close(n->leader);
    kv_quorum_close(n->kv);
    if (n->dir_fd >= 0)
        close(n->dir_fd);
    free(n);
}
