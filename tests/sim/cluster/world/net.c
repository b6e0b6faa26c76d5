/*
 * net.c - a simulated network: channels of one process, calls at another.
 *
 * In:     rpc_send(), rpc_cancel(), rpc_reply() of cores. Thread: one.
 * Out:    the same messages at the other end, at times and in an order that the seed
 *         decides.
 * Keeps:  a payload is read only while its owner must keep it; a dead process gets no
 *         callback.
 */
#include "tests/sim/cluster/world/net.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/bytes.h"
#include "common/base/list.h"
#include "tests/sim/cluster/world/tell.h"

enum {
    RESEND_MS = 60,
    SUSPECT_MS = 500,
    LINK_LOST_MS = 10000,
    LATE_MS = 12000, /* longer than a lease */
};

/* A channel of a process, in that process's memory. */
struct net_channel {
    struct rpc_channel ch; /* must be the first member */
    struct host *from, *to;
    enum rpc_role role;
    uint8_t incarnation[16]; /* required incarnation; zeros: any */
    uint64_t session;
    uint64_t conn_id;
    uint64_t owed_since_ns; /* time of the oldest unanswered request
                             * since the last message; 0: none */
    unsigned n_waiting;
    bool closing; /* freed with its last request */
    void (*broke)(void *arg);
    void *arg;
};

/* Bytes shared by copies of a message. */
struct net_bytes {
    unsigned n_refs;
    size_t len;
    uint8_t *bytes;
};

/* A request, from rpc_send() until nothing refers to it. */
struct net_exchange {
    struct net_exchange *prev, *next;
    unsigned n_refs;        /* by its caller, its messages, its calls */
    struct rpc_request *rq; /* NULL: the caller's part is over */
    struct net_channel *ch; /* NULL if rq is NULL */
    unsigned from_life;
    struct host *from, *to;
    uint16_t op;
    enum rpc_role role;
    uint8_t incarnation[16]; /* required by the channel */
    uint64_t id, session;
    uint32_t start;
    bool sent;      /* an attempt is in progress */
    bool forgotten; /* the server lost its power, and the caller does not know */
    struct env_timer again, deadline;
    struct net_bytes *msg;
};

/* A message in transit. */
struct net_flight {
    struct net_flight *prev, *next;
    struct net_exchange *x;
    bool is_answer;
    unsigned from_life;
    struct env_timer timer;
    struct net_bytes *msg, *payload;
    uint64_t session, conn_id;
    uint16_t status;
};

/* A request at its server. */
struct net_call {
    struct rpc_call call; /* must be the first member */
    struct net_call *prev, *next;
    struct host *host;
    struct net_exchange *x;
    uint64_t conn_id;
    struct net_bytes *msg;
    void *payload; /* aligned */
    /* While the answer waits to be sent. */
    struct env_timer timer;
    uint16_t status;
    struct net_bytes *answer_msg;
    struct rpc_seg *segs;
    unsigned n_segs;
    void (*sent)(void *arg);
    void *sent_arg;
};

struct net net;

static struct net_bytes *bytes_new(const void *from, size_t len)
{
    struct net_bytes *b = malloc(sizeof(*b) + len + 1);

    assert(b != NULL);
    b->n_refs = 1;
    b->len = len;
    b->bytes = (uint8_t *)(b + 1);
    if (len > 0 && from != NULL)
        memcpy(b->bytes, from, len);
    return b;
}

static struct net_bytes *bytes_ref(struct net_bytes *b)
{
    b->n_refs++;
    return b;
}

static void bytes_unref(struct net_bytes *b)
{
    if (b != NULL && --b->n_refs == 0)
        free(b);
}

/* ---- exchanges ---- */

static void exchange_unref(struct net_exchange *x)
{
    if (--x->n_refs != 0)
        return;
    if (x->prev != NULL)
        x->prev->next = x->next;
    else
        net.exchanges = x->next;
    if (x->next != NULL)
        x->next->prev = x->prev;
    bytes_unref(x->msg);
    free(x);
}

static void world_timer_stop(struct env_timer *timer)
{
    struct proc *before = proc_enter(&world_clock.world);

    env_timer_stop(&world_clock.world.env, timer);
    proc_leave(before);
}

/* Detaches the caller, who does not wait any more. */
static void exchange_let_go(struct net_exchange *x)
{
    assert(x->rq != NULL);
    x->rq = NULL;
    if (x->ch != NULL) {
        x->ch->n_waiting--;
        if (x->ch->n_waiting == 0)
            x->ch->owed_since_ns = 0;
        if (x->ch->n_waiting == 0 && x->ch->closing)
            free(x->ch);
        x->ch = NULL;
    }
    world_timer_stop(&x->again);
    world_timer_stop(&x->deadline);
}

/* ---- reachability ---- */

static bool is_listening(const struct host *h)
{
    return h->power && h->proc->alive && h->handler != NULL;
}

/* Tells whether the host has the required disk; hello.c refuses others. */
static bool is_wanted(const struct host *h, const uint8_t incarnation[16])
{
    return bytes_are_zero(incarnation, 16) || bytes_are_zero(h->incarnation, 16) ||
           memcmp(incarnation, h->incarnation, 16) == 0;
}

static bool is_cut(const struct host *a, const struct host *b)
{
    return net.cut[a->index][b->index];
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Returns the time since when `from` gets no answer from `to`; 0: reachable. */
static uint64_t silent_since(const struct host *from, const struct host *to)
{
    uint64_t since = to->unreached_since;

    if (is_cut(from, to))
        since = later(since, net.cut_since[from->index][to->index]);
    if (is_cut(to, from))
        since = later(since, net.cut_since[to->index][from->index]);
    return since;
}

/* Returns a transit time; late_ppm: share of long ones.
 * Messages to exportd keep their order, as on one link. */
static uint64_t flight_us(uint16_t op, uint32_t late_ppm)
{
    if (op < ROZO__OP__MD_OPEN_SESSION && world_chance(late_ppm))
        return world_below(LATE_MS * 1000);
    return 20 + world_below(net.weather.delay_us + 1);
}

static void flight_free(struct net_flight *f)
{
    if (f->prev != NULL)
        f->prev->next = f->next;
    else
        net.flights = f->next;
    if (f->next != NULL)
        f->next->prev = f->prev;
    bytes_unref(f->msg);
    bytes_unref(f->payload);
    exchange_unref(f->x);
    free(f);
}

static void on_flight(struct env_timer *timer);

static struct net_flight *flight_new(struct net_exchange *x, bool is_answer,
                                     struct net_bytes *msg, struct net_bytes *payload)
{
    struct net_flight *f = calloc(1, sizeof(*f));

    assert(f != NULL);
    f->x = x;
    x->n_refs++;
    f->is_answer = is_answer;
    f->msg = bytes_ref(msg);
    f->payload = bytes_ref(payload);
    f->next = net.flights;
    if (f->next != NULL)
        f->next->prev = f;
    net.flights = f;
    env_timer_init(&f->timer, on_flight);
    return f;
}

/* ---- the caller's side ---- */

/* Sends an unanswered request again after its link broke. */
static void exchange_again(struct net_exchange *x)
{
    if (x->rq == NULL)
        return;
    net.n_lost++;
    x->sent = false;
    x->ch->conn_id = ++net.last_id;
    world_timer_start_us(&x->again, 1000 * (RESEND_MS / 2 + world_below(RESEND_MS)));
    if (x->ch->broke != NULL) {
        struct net_channel *ch = x->ch;
        struct proc *before = proc_enter(ch->from->proc);

        ch->broke(ch->arg);
        proc_leave(before);
    }
}

static struct net_bytes *payload_gather(const struct rpc_request *rq)
{
    struct net_bytes *b;
    size_t len = 0, at = 0;

    assert(rq->n_payload <= RPC_IOV_MAX);
    for (unsigned i = 0; i < rq->n_payload; i++)
        len += rq->payload[i].iov_len;
    assert(len <= RPC_PAYLOAD_MAX);
    b = bytes_new(NULL, len);
    for (unsigned i = 0; i < rq->n_payload; i++) {
        memcpy(b->bytes + at, rq->payload[i].iov_base, rq->payload[i].iov_len);
        at += rq->payload[i].iov_len;
    }
    return b;
}

/* Requests of clients that exportd commits. */
static bool changes_names(uint16_t op)
{
    return op == ROZO__OP__MD_CREATE || op == ROZO__OP__MD_UNLINK ||
           op == ROZO__OP__MD_RENAME || op == ROZO__OP__MD_LINK ||
           op == ROZO__OP__MD_SETATTR || op == ROZO__OP__MD_WROTE;
}

static void watch(struct host *h, uint16_t op, bool is_at_server)
{
    if (net.watched[h->index] && (op == ROZO__OP__ST_WRITE || op == ROZO__OP__ST_MARK ||
                                  op == ROZO__OP__ST_COMMIT || op == ROZO__OP__ST_SYNC ||
                                  (is_at_server && changes_names(op))))
        net.on_watched(h);
}

static void exchange_transmit(struct net_exchange *x)
{
    unsigned n = world_chance(net.weather.twice_ppm) ? 2 : 1;
    struct net_bytes *payload;
    uint64_t us = 0;

    if ((!is_listening(x->to) || !is_wanted(x->to, x->incarnation)) &&
        x->to->power) { /* refused; retry */
        world_timer_start_us(&x->again, 1000 * (RESEND_MS / 2 + world_below(RESEND_MS)));
        return;
    }
    x->sent = true;
    watch(x->from, x->op, false);
    net.n_sent++;
    net.n_twice += n - 1;
    payload = payload_gather(x->rq);
    for (unsigned i = 0; i < n; i++) {
        struct net_flight *f = flight_new(x, false, x->msg, payload);

        f->session = x->session;
        f->conn_id = x->ch->conn_id;
        if (i == 0 || x->op < ROZO__OP__MD_OPEN_SESSION)
            us = flight_us(x->op,
                           i == 0 ? net.weather.late_ppm : net.weather.twice_late_ppm);
        world_timer_start_us(&f->timer, us + i);
    }
    bytes_unref(payload);
    if (x->ch->owed_since_ns == 0)
        x->ch->owed_since_ns = world_clock.now_ns;
}

static void on_again(struct env_timer *timer)
{
    struct net_exchange *x = container_of(timer, struct net_exchange, again);

    if (x->from->proc->hung) /* a hung process sends nothing */
        world_timer_start_us(&x->again, 10000);
    else
        exchange_transmit(x);
}

static void answer_scatter(const uint8_t *from, const struct iovec *iov, unsigned n_iov,
                           size_t len)
{
    size_t at = 0;

    for (unsigned i = 0; i < n_iov; i++) {
        assert(at + iov[i].iov_len <= len);
        memcpy(iov[i].iov_base, from + at, iov[i].iov_len);
        at += iov[i].iov_len;
    }
    assert(at == len); /* place() must describe exactly the whole answer */
}

static int answer_receive(struct rpc_request *rq, const struct net_bytes *payload)
{
    size_t head = payload->len < rq->recv_head_len ? payload->len : rq->recv_head_len;
    struct iovec iov[RPC_IOV_MAX];
    int n;

    rq->answer_payload_len = payload->len;
    rq->answer_payload = NULL;
    if (rq->place == NULL) {
        rq->answer_payload = payload->bytes;
        return 0;
    }
    if (head > 0)
        memcpy(rq->recv_head, payload->bytes, head);
    if (payload->len == head)
        return 0;
    n = rq->place(rq, payload->len - head, iov);
    if (n < 0)
        return n;
    answer_scatter(payload->bytes + head, iov, (unsigned)n, payload->len - head);
    return 0;
}

/* Calls the caller's callback, in its process. */
static void exchange_end(struct net_exchange *x, int rc, const struct net_flight *f)
{
    struct rpc_request *rq = x->rq;
    struct proc *before;

    assert(rq != NULL && x->from->proc->alive && x->from->proc->life == x->from_life);
    exchange_let_go(x);
    before = proc_enter(x->from->proc);
    world_trace(x->op ^ (uint64_t)rc << 32);
    if (f != NULL) {
        rq->status = f->status;
        rq->answer_msg = f->msg->bytes;
        rq->answer_msg_len = f->msg->len;
        rc = answer_receive(rq, f->payload);
    }
    rq->done(rq, rc);
    proc_leave(before);
    exchange_unref(x);
}

static void on_deadline(struct env_timer *timer)
{
    struct net_exchange *x = container_of(timer, struct net_exchange, deadline);

    if (x->from->proc->hung) {
        world_timer_start_us(&x->deadline, 10000);
        return;
    }
    exchange_end(x, x->sent && !x->ch->closing ? -ETIMEDOUT : -ENOTCONN, NULL);
}

static void channel_send(struct rpc_channel *rch, struct rpc_request *rq)
{
    struct net_channel *ch = container_of(rch, struct net_channel, ch);
    struct proc *before = proc_enter(&world_clock.world);
    struct net_exchange *x = calloc(1, sizeof(*x));

    assert(x != NULL && rq->deadline_ms != 0 && before == ch->from->proc);
    x->n_refs = 1;
    x->rq = rq;
    x->ch = ch;
    x->from = ch->from;
    x->from_life = ch->from->proc->life;
    x->to = ch->to;
    x->op = rq->op;
    x->role = ch->role;
    memcpy(x->incarnation, ch->incarnation, sizeof(x->incarnation));
    x->id = rq->again != 0 ? rq->again : ++net.last_id;
    rq->id = x->id;
    if (rq->session == 0)
        rq->session = ch->session;
    x->session = rq->session;
    x->start = rq->start;
    x->msg = bytes_new(rq->msg, rq->msg_len);
    x->next = net.exchanges;
    if (x->next != NULL)
        x->next->prev = x;
    net.exchanges = x;
    rq->impl = x;
    ch->n_waiting++;
    env_timer_init(&x->again, on_again);
    env_timer_init(&x->deadline, on_deadline);
    world_timer_start_us(&x->deadline, (uint64_t)rq->deadline_ms * 1000);
    world_timer_start_us(&x->again, world_below(50));
    proc_leave(before);
}

static void channel_cancel(struct rpc_channel *rch, struct rpc_request *rq)
{
    struct net_exchange *x = rq->impl;
    struct proc *before = proc_enter(&world_clock.world);

    assert(x->rq == rq && &x->ch->ch == rch);
    exchange_let_go(x); /* the copy in transit still arrives */
    exchange_unref(x);
    proc_leave(before);
}

static enum rpc_health channel_health(struct rpc_channel *rch)
{
    struct net_channel *ch = container_of(rch, struct net_channel, ch);
    uint64_t since = silent_since(ch->from, ch->to), now = world_clock.now_ns;

    if (ch->to->power && since == 0 &&
        (!is_listening(ch->to) || !is_wanted(ch->to, ch->incarnation)))
        return RPC_DOWN;
    if (since == 0)
        return RPC_UP;
    if (now - since > (uint64_t)LINK_LOST_MS * 1000000)
        return RPC_DOWN;
    since = later(since, ch->owed_since_ns);
    if (ch->owed_since_ns != 0 && now - since > (uint64_t)SUSPECT_MS * 1000000)
        return RPC_SUSPECT;
    return RPC_UP;
}

static const struct rpc_channel_ops channel_ops = {
    .send = channel_send,
    .cancel = channel_cancel,
    .health = channel_health,
};

struct rpc_channel *net_channel_new(struct host *from, struct host *to,
                                    enum rpc_role role, const uint8_t *incarnation,
                                    void (*broke)(void *arg), void *arg)
{
    struct net_channel *ch = calloc(1, sizeof(*ch));

    assert(ch != NULL && proc_current == from->proc);
    ch->ch.ops = &channel_ops;
    ch->from = from;
    ch->to = to;
    ch->role = role;
    if (incarnation != NULL)
        memcpy(ch->incarnation, incarnation, sizeof(ch->incarnation));
    ch->conn_id = ++net.last_id;
    ch->broke = broke;
    ch->arg = arg;
    return &ch->ch;
}

void net_channel_free(struct rpc_channel *rch)
{
    struct net_channel *ch = container_of(rch, struct net_channel, ch);

    assert(ch->n_waiting == 0);
    free(ch);
}

void net_channel_close(struct rpc_channel *rch)
{
    struct net_channel *ch = container_of(rch, struct net_channel, ch);

    ch->closing = true;
    for (struct net_exchange *x = net.exchanges; x != NULL; x = x->next) {
        if (x->ch == ch)
            world_timer_start_us(&x->deadline, 0);
    }
    if (ch->n_waiting == 0)
        free(ch);
}

void net_channel_set_session(struct rpc_channel *rch, uint64_t session)
{
    container_of(rch, struct net_channel, ch)->session = session;
}

/* ---- the server's side ---- */

static void call_free(struct net_call *c)
{
    if (c->prev != NULL)
        c->prev->next = c->next;
    else
        c->host->calls = c->next;
    if (c->next != NULL)
        c->next->prev = c->prev;
    world_timer_stop(&c->timer);
    bytes_unref(c->msg);
    bytes_unref(c->answer_msg);
    free(c->payload);
    free(c->segs);
    exchange_unref(c->x);
    free(c);
}

/* Sends the answer; only now reads files. */
static void on_call_sent(struct env_timer *timer)
{
    struct net_call *c = container_of(timer, struct net_call, timer);
    struct host *h = c->host;
    struct net_bytes *payload;
    struct net_flight *f;
    size_t len = 0, at = 0;

    if (h->proc->hung) {
        world_timer_start_us(&c->timer, 10000);
        return;
    }
    for (unsigned i = 0; i < c->n_segs; i++)
        len += c->segs[i].len;
    payload = bytes_new(NULL, len);
    for (unsigned i = 0; i < c->n_segs; i++) {
        const struct rpc_seg *s = &c->segs[i];

        if (s->base != NULL)
            memcpy(payload->bytes + at, s->base, s->len);
        else
            h->read_fd(h->read_fd_arg, s->fd, (uint64_t)s->offset, payload->bytes + at,
                       s->len);
        at += s->len;
    }
    f = flight_new(c->x, true, c->answer_msg, payload);
    f->status = c->status;
    f->conn_id = c->conn_id;
    f->from_life = h->proc->life;
    world_timer_start_us(&f->timer, flight_us(c->x->op, 0));
    bytes_unref(payload);
    if (c->sent != NULL) {
        struct proc *before = proc_enter(h->proc);

        c->sent(c->sent_arg);
        proc_leave(before);
    }
    call_free(c);
}

static void call_reply(struct rpc_call *call, uint16_t status, const void *msg,
                       size_t msg_len, const struct rpc_seg *segs, unsigned n_segs,
                       void (*sent)(void *arg), void *arg)
{
    struct net_call *c = container_of(call, struct net_call, call);
    struct proc *before = proc_enter(&world_clock.world);

    assert(before == c->host->proc && c->answer_msg == NULL);
    assert(sent != NULL || n_segs == 0);
    c->status = status;
    c->answer_msg = bytes_new(msg, msg_len);
    c->n_segs = n_segs;
    if (n_segs > 0) {
        c->segs = malloc(n_segs * sizeof(c->segs[0]));
        assert(c->segs != NULL);
        memcpy(c->segs, segs, n_segs * sizeof(c->segs[0]));
    }
    c->sent = sent;
    c->sent_arg = arg;
    bytes_unref(c->msg); /* the request must not be used after the reply */
    free(c->payload);
    c->msg = NULL;
    c->payload = NULL;
    world_trace((uint64_t)status << 32 ^ c->x->op);
    if (net.tells)
        tell_answer(c->host->proc->name, c->x->from->proc->name, c->x->op, status, msg,
                    msg_len);
    world_timer_start_us(&c->timer, world_below(60));
    proc_leave(before);
}

static const struct rpc_call_ops call_ops = { .reply = call_reply };

static void request_arrives(struct net_flight *f)
{
    struct host *h = f->x->to;
    struct net_call *c = calloc(1, sizeof(*c));
    struct proc *before;

    assert(c != NULL);
    c->host = h;
    c->x = f->x;
    f->x->n_refs++;
    c->conn_id = f->conn_id;
    c->msg = bytes_new(f->msg->bytes, f->msg->len);
    if (posix_memalign(&c->payload, 4096, f->payload->len + 1) != 0)
        abort();
    memcpy(c->payload, f->payload->bytes, f->payload->len);
    c->call = (struct rpc_call){
        .ops = &call_ops,
        .op = f->x->op,
        .role = f->x->role,
        .session = f->session,
        .id = f->x->id,
        .start = f->x->start,
        .conn_id = f->conn_id,
        .msg = c->msg->bytes,
        .msg_len = c->msg->len,
        .payload = c->payload,
        .payload_len = f->payload->len,
    };
    env_timer_init(&c->timer, on_call_sent);
    c->next = h->calls;
    if (c->next != NULL)
        c->next->prev = c;
    h->calls = c;
    if (net.tells)
        tell_request(f->x->from->proc->name, h->proc->name, f->x->op, f->msg->bytes,
                     f->msg->len, f->payload->bytes, f->payload->len);
    watch(h, f->x->op, true);
    if (net.on_request != NULL)
        net.on_request(f->x->from, f->x->from_life, h, &c->call);
    before = proc_enter(h->proc);
    if (net.drops_missed && f->x->op == ROZO__OP__ST_MISSED)
        rpc_reply_status(&c->call, ROZO__STATUS__OK);
    else if (f->x->op == ROZO__OP__ST_LIST && f->x->from == net.no_lists_for)
        rpc_reply_status(&c->call, ROZO__STATUS__UNKNOWN_OP);
    else
        h->handler(h->handler_arg, &c->call);
    proc_leave(before);
}

static void answer_arrives(struct net_flight *f)
{
    struct net_exchange *x = f->x;

    if (x->rq == NULL || x->ch->closing)
        return;
    x->ch->owed_since_ns = x->ch->n_waiting > 1 ? world_clock.now_ns : 0;
    exchange_end(x, 0, f);
}

static void on_flight(struct env_timer *timer)
{
    struct net_flight *f = container_of(timer, struct net_flight, timer);
    struct net_exchange *x = f->x;
    struct host *from = f->is_answer ? x->to : x->from;
    struct host *to = f->is_answer ? x->from : x->to;
    bool lost = world_chance(net.weather.loss_ppm);

    if (to->power && to->proc->hung) { /* stays in its socket */
        world_timer_start_us(timer, 5000 + world_below(10000));
        return;
    }
    if (is_cut(from, to) || !to->power) {
        if (!world_chance(100000)) { /* TCP retries */
            world_timer_start_us(timer, 100000 + world_below(300000));
            return;
        }
        lost = true;
    }
    if (!to->proc->alive ||
        (!f->is_answer && (to->handler == NULL || !is_wanted(to, x->incarnation))))
        lost = true;
    if (lost)
        exchange_again(x);
    else if (f->is_answer)
        answer_arrives(f);
    else
        request_arrives(f);
    flight_free(f);
}

/* ---- hosts ---- */

void net_begin(void)
{
    memset(&net, 0, sizeof(net));
    net.weather.delay_us = 300;
}

struct host *net_add_host(struct proc *proc)
{
    struct host *h = &net.hosts[net.n_hosts];

    assert(net.n_hosts < HOSTS_MAX);
    h->proc = proc;
    h->index = net.n_hosts++;
    h->power = true;
    return h;
}

void net_host_died(struct host *h, uint32_t lost_ppm)
{
    uint64_t late_us =
        net.weather.dead_late_ppm != 0 && world_chance(net.weather.dead_late_ppm)
            ? world_below(LATE_MS * 1000)
            : 0;
    struct net_exchange *x, *next;

    for (struct net_flight *f = net.flights, *after; f != NULL; f = after) {
        after = f->next;
        if (f->is_answer || f->x->from != h)
            continue;
        if (world_chance(lost_ppm)) {
            timers_stop(&world_clock.world.timers, &f->timer);
            flight_free(f);
        } else if (late_us != 0 && f->x->op < ROZO__OP__MD_OPEN_SESSION) {
            world_timer_start_us(&f->timer, late_us + world_below(200000));
        }
    }

    h->handler = NULL;
    while (h->calls != NULL) {
        struct net_exchange *asked = h->calls->x;

        asked->n_refs++;
        call_free(h->calls);
        if (h->power) /* the host's kernel reports it to the caller */
            exchange_again(asked);
        else
            asked->forgotten = true;
        exchange_unref(asked);
    }
    for (x = net.exchanges; x != NULL; x = next) {
        next = x->next;
        if (x->from == h && x->rq != NULL) {
            exchange_let_go(x);
            exchange_unref(x); /* messages in transit still hold it */
        }
    }
}

static struct net_exchange *forgotten_by(const struct host *h)
{
    struct net_exchange *x = net.exchanges;

    while (x != NULL && (x->to != h || !x->forgotten || x->rq == NULL))
        x = x->next;
    return x;
}

void net_host_is_back(struct host *h)
{
    struct net_exchange *x;

    while ((x = forgotten_by(h)) != NULL) {
        x->forgotten = false;
        exchange_again(x);
    }
}

void net_cut(unsigned from, unsigned to, bool cut)
{
    if (net.cut[from][to] == cut)
        return;
    net.cut[from][to] = cut;
    net.cut_since[from][to] = world_clock.now_ns;
}

void net_host_reachable(struct host *h, bool reachable)
{
    h->unreached_since = reachable ? 0 : world_clock.now_ns;
}

unsigned net_n_strays(const struct host *to)
{
    unsigned n = 0;

    for (const struct net_flight *f = net.flights; f != NULL; f = f->next)
        n += !f->is_answer && f->x->to == to && f->x->rq == NULL;
    for (const struct net_call *c = to->calls; c != NULL; c = c->next)
        n += c->x->rq == NULL && c->answer_msg == NULL;
    return n;
}
