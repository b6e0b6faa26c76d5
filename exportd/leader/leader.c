/*
 * leader.c - starts, abandons and stops cores as the member leads or does not.
 *
 * In:     leader_lead() and leader_depose(), from the member; requests; the core's end.
 * Out:    exportd_open(), exportd_handle(), exportd_abandon(); NOT_LEADER.
 * Keeps:  at most one core at a time: the next one starts when the last one has been
 *         freed. A call is given to a core that is ready, or answered here. No request
 *         that was sent to another core reaches this one. I9: calls are held
 *         for LEADER_WAIT_MS at most, and counted.
 */
#include "exportd/leader/leader.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/bytes.h"
#include "common/base/err.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/store/key.h"

enum {
    /* packed list of members: each address has two bytes before it */
    LIST_ANSWER_BYTES = EXPORTD_ADDRS_MAX * (EXPORTD_ADDR_BYTES + 2) + 32,
};

enum leader_state {
    LEADER_IDLE,   /* no core */
    LEADER_STARTS, /* the core is not ready */
    LEADER_SERVES,
    LEADER_STOPS,     /* exportd_stop() is under way */
    LEADER_ABANDONED, /* exportd_abandon() is under way */
    LEADER_FAILED,    /* no core can start here */
};

/* MD_WAIT_LEADER that waits. */
struct held {
    struct list_node link;
    struct rpc_call *call; /* owned */
    uint64_t until_ns;
    bool wants_list;
    uint64_t list; /* number of the list that it has */
};

struct leader {
    struct leader_config config;
    enum leader_state state;
    bool leads; /* as the member said last */
    /* News of the core: it is ready; a storage knows a later start; it has ended. */
    bool is_ready, is_outrun, has_ended;
    uint64_t start_known;  /* by a storage, when a core was outrun */
    struct exportd *core;  /* owned */
    struct env_task task;  /* takes the news of the core */
    struct list_node held; /* in order of arrival */
    unsigned n_held;
    struct env_timer timer; /* end of the oldest one */
    bool is_stopping;
    void (*stopped)(void *arg); /* NULL: has been called */
    void *stopped_arg;
};

/* ---- calls that wait for a leader ---- */

static struct held *held_first(const struct leader *l)
{
    return list_is_empty(&l->held) ? NULL : container_of(l->held.next, struct held, link);
}

static struct rpc_call *held_take(struct leader *l, struct held *h)
{
    struct rpc_call *call = h->call;

    list_remove(&h->link);
    free(h);
    l->n_held--;
    return call;
}

static void timer_set(struct leader *l)
{
    const struct held *h = held_first(l);
    uint64_t now_ns = env_now_ns(l->config.env);

    if (h == NULL)
        env_timer_stop(l->config.env, &l->timer);
    else
        env_timer_start(l->config.env, &l->timer,
                        h->until_ns > now_ns ? ns_to_ms_up(h->until_ns - now_ns) : 0);
}

static void on_timer(struct env_timer *timer)
{
    struct leader *l = container_of(timer, struct leader, timer);
    uint64_t now_ns = env_now_ns(l->config.env);

    while (held_first(l) != NULL && held_first(l)->until_ns <= now_ns)
        rpc_reply_status(held_take(l, held_first(l)), ROZO__STATUS__NOT_LEADER);
    timer_set(l);
}

/* Answers NOT_LEADER with the list of members, if the question wants it and has another
 * one. Returns false if it does not. */
static bool list_answer(const struct leader *l, struct rpc_call *call,
                        const Rozo__MdWaitLeaderReq *req)
{
    struct exportd_list_answer a;
    uint8_t msg[LIST_ANSWER_BYTES];

    if (!exportd_list_answer(l->config.clients, req, &a))
        return false;
    assert(rozo__md_wait_leader_resp__get_packed_size(&a.resp) <= sizeof(msg));
    rpc_reply(call, ROZO__STATUS__NOT_LEADER, msg,
              rozo__md_wait_leader_resp__pack(&a.resp, msg), NULL, 0, NULL, NULL);
    return true;
}

void leader_clients(struct leader *l)
{
    LIST_FOREACH_SAFE(node, &l->held) {
        struct held *h = container_of(node, struct held, link);
        Rozo__MdWaitLeaderReq req = ROZO__MD_WAIT_LEADER_REQ__INIT;

        req.wants_list = h->wants_list;
        req.list = h->list;
        if (list_answer(l, h->call, &req))
            held_take(l, h);
    }
    timer_set(l);
}

static void call_hold(struct leader *l, struct rpc_call *call,
                      const Rozo__MdWaitLeaderReq *req)
{
    struct held *h = l->n_held < LEADER_HELD_MAX ? malloc(sizeof(*h)) : NULL;

    if (h == NULL) {
        rpc_reply_status(call, ROZO__STATUS__BUSY);
        return;
    }
    h->call = call;
    h->wants_list = req->wants_list;
    h->list = req->list;
    h->until_ns = env_now_ns(l->config.env) + ms_to_ns(LEADER_WAIT_MS);
    list_add_tail(&l->held, &h->link);
    if (l->n_held++ == 0)
        timer_set(l);
}

static void held_refuse_all(struct leader *l)
{
    while (held_first(l) != NULL)
        rpc_reply_status(held_take(l, held_first(l)), ROZO__STATUS__NOT_LEADER);
    timer_set(l);
}

void leader_conn_closed(struct leader *l, uint64_t conn_id)
{
    LIST_FOREACH_SAFE(node, &l->held) {
        struct held *h = container_of(node, struct held, link);

        if (h->call->conn_id == conn_id)
            rpc_reply_status(held_take(l, h), ROZO__STATUS__NOT_LEADER);
    }
    timer_set(l);
}

/* The core answers them with the number of its start. */
static void held_give_all(struct leader *l)
{
    while (held_first(l) != NULL)
        exportd_handle(l->core, held_take(l, held_first(l)));
    timer_set(l);
}

/* Returns whether a request is meant for the core that runs now. One that was on its way,
 * or lay unread, while others led may have been done in their time as another request. */
static bool is_for_core(const struct leader *l, const struct rpc_call *call)
{
    return call->start == 0 || call->start == exportd_start(l->core);
}

/* Handles MD_WAIT_LEADER while no core serves. */
static void wait_handle(struct leader *l, struct rpc_call *call)
{
    Rozo__MdWaitLeaderReq *req =
        rozo__md_wait_leader_req__unpack(NULL, call->msg_len, call->msg);

    if (req == NULL) {
        rpc_reply_status(call, ROZO__STATUS__BAD_REQUEST);
    } else if (!list_answer(l, call, req)) {
        if (l->is_stopping)
            rpc_reply_status(call, ROZO__STATUS__NOT_LEADER);
        else
            call_hold(l, call, req);
    }
    if (req != NULL)
        rozo__md_wait_leader_req__free_unpacked(req, NULL);
}

void leader_handle(void *arg, struct rpc_call *call)
{
    struct leader *l = arg;

    if (l->state == LEADER_SERVES && is_for_core(l, call))
        exportd_handle(l->core, call);
    else if (l->state == LEADER_SERVES)
        rpc_reply_status(call, ROZO__STATUS__NOT_LEADER);
    else if (call->op == ROZO__OP__MD_WAIT_LEADER)
        wait_handle(l, call);
    else
        rpc_reply_status(call, ROZO__STATUS__NOT_LEADER);
}

/* ---- the core ---- */

static void on_core_ready(void *arg)
{
    struct leader *l = arg;

    l->is_ready = true;
    env_post(l->config.env, &l->task);
}

static void on_core_outrun(void *arg)
{
    struct leader *l = arg;

    l->is_outrun = true;
    l->start_known = exportd_start_known(l->core);
    env_post(l->config.env, &l->task);
}

static void on_core_ended(void *arg, int rc)
{
    struct leader *l = arg;

    (void)rc; /* calls whose changes failed have been answered with the error */
    l->has_ended = true;
    env_post(l->config.env, &l->task);
}

/* Reads the number of the last loss of power of a majority; 0: there was none. */
static int losses_read(struct leader *l, uint64_t *losses)
{
    const uint8_t key = KEY_LOSSES;
    void *val;
    size_t len;
    int rc = kv_get(l->config.kv, &key, 1, &val, &len);

    *losses = 0;
    if (rc != 0)
        return rc == -ENOENT ? 0 : rc;
    if (len == sizeof(*losses))
        *losses = get_le64(val);
    else
        rc = -ROZO_EDAMAGED;
    free(val);
    return rc;
}

static void core_start(struct leader *l)
{
    struct exportd_config config = l->config.exportd;
    struct err err = { 0 };
    int rc;

    config.clients = l->config.clients;
    config.ready = on_core_ready;
    config.ready_arg = l;
    config.deposed = on_core_outrun;
    config.deposed_arg = l;
    if (l->config.is_alone != NULL && l->config.is_alone(l->config.arg))
        config.starts_min = l->start_known;
    l->is_ready = l->is_outrun = l->has_ended = false;
    rc = losses_read(l, &config.boot);
    if (rc != 0)
        err_set(&err, rc, "read the losses of power: %s", error_text(rc));
    else
        rc = exportd_open(l->config.env, l->config.kv, &config, &l->core, &err);
    if (rc != 0) {
        l->state = LEADER_FAILED;
        log_error("cannot serve: %s", err.text);
        l->config.failed(l->config.arg, rc, "start the metadata core");
        return;
    }
    l->state = LEADER_STARTS;
}

static void state_set(struct leader *l, enum leader_state state)
{
    bool served = l->state == LEADER_SERVES, serves = state == LEADER_SERVES;

    l->state = state;
    if (served != serves && l->config.serves != NULL)
        l->config.serves(l->config.arg, serves);
}

static void core_abandon(struct leader *l)
{
    if (l->core == NULL || l->state == LEADER_ABANDONED || l->has_ended)
        return;
    state_set(l, LEADER_ABANDONED);
    exportd_abandon(l->core, on_core_ended, l);
}

static void core_free(struct leader *l)
{
    bool was_abandoned = l->state == LEADER_ABANDONED;

    exportd_close(l->core);
    l->core = NULL;
    l->state = LEADER_IDLE;
    if (!was_abandoned)
        return;
    held_refuse_all(l); /* a connection lasts as long as a call of it */
    if (l->config.end_conns != NULL)
        l->config.end_conns(l->config.arg);
}

static void leader_step(struct leader *l)
{
    if (l->is_outrun)
        core_abandon(l);
    if (l->has_ended && l->core != NULL)
        core_free(l);
    if (l->is_stopping) {
        if (l->core == NULL && l->stopped != NULL) {
            void (*stopped)(void *arg) = l->stopped;

            l->stopped = NULL;
            stopped(l->stopped_arg);
        }
        return;
    }
    if (l->state == LEADER_IDLE && l->leads)
        core_start(l);
    if (l->state == LEADER_STARTS && l->is_ready) {
        state_set(l, LEADER_SERVES);
        log_info("this member serves metadata");
        held_give_all(l);
    }
}

static void on_task(struct env_task *task)
{
    leader_step(container_of(task, struct leader, task));
}

/* ---- news of the member ---- */

void leader_lead(struct leader *l, uint64_t term)
{
    assert(!l->leads);
    log_info("this member leads the quorum in term %llu", (unsigned long long)term);
    l->leads = true;
    env_post(l->config.env, &l->task);
}

void leader_depose(struct leader *l)
{
    l->leads = false;
    core_abandon(l);
}

/* ---- life ---- */

bool leader_serves(const struct leader *l)
{
    return l->state == LEADER_SERVES;
}

const struct exportd *leader_core(const struct leader *l)
{
    return leader_serves(l) ? l->core : NULL;
}

void leader_stop(struct leader *l, void (*done)(void *arg), void *arg)
{
    assert(!l->is_stopping && done != NULL);
    l->is_stopping = true;
    l->stopped = done;
    l->stopped_arg = arg;
    held_refuse_all(l);
    if (l->state == LEADER_STARTS || l->state == LEADER_SERVES) {
        state_set(l, LEADER_STOPS);
        exportd_stop(l->core, on_core_ended, l);
    }
    env_post(l->config.env, &l->task);
}

int leader_open(const struct leader_config *config, struct leader **out)
{
    struct leader *l = calloc(1, sizeof(*l));

    if (l == NULL)
        return -ENOMEM;
    l->config = *config;
    list_init(&l->held);
    env_timer_init(&l->timer, on_timer);
    l->task.fn = on_task;
    *out = l;
    return 0;
}

void leader_close(struct leader *l)
{
    assert(l == NULL || (l->is_stopping && l->core == NULL && l->stopped == NULL));
    free(l);
}
