/*
 * rpc_channel.c - all links to one peer: connect, prove, balance, send again, watch the health.
 *
 * In:     rpc_send() from cores; bytes of the peer (I8: an answer is checked before it is placed).
 * Out:    rpc_done_cb, exactly once a request. Thread: the env's loop. This is shell.
 * Keeps:  every request ends by its deadline; memory of a request that ended is not touched
 *         again; at most queue_max bytes are with the links, the rest waits in order.
 * Yours:  the limits below; how links are chosen (link_choose()).
 */
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/bufpool.h"
#include "common/hello.h"
#include "common/list.h"
#include "common/log.h"
#include "common/rpc_conn.h"
#include "common/rpc_tcp.h"

enum {
    PROBE_MS_DEFAULT = 500,
    QUEUE_MAX_DEFAULT = 64 << 20,
    RETRY_MS_MIN = 50,
    RETRY_MS_MAX = 2000,
    HELLO_MS = 5000,        /* from connect() to the end of Hello */
    DEAD_PROBES = 20,       /* x probe_ms of silence close a link */
    DEAD_PROBES_BETTER = 4, /* when another link hears the peer */
    REQUEST_OVERHEAD = 512, /* bytes a request counts besides its own */
    N_BUCKETS = 256,
    POOL_IDLE_MAX = 16 << 20,
    ERROR_TEXT_MAX = 256,
};

struct channel;
struct link;

enum sent_state {
    SENT_WAITING, /* in channel->waiting */
    SENT_ON_LINK, /* in link->sent: queued, partly out, or out and not answered */
    SENT_FAILED,  /* in channel->failed: done() is posted */
};

/* A request of ours, from rpc_send() to done or rpc_cancel(). rq->impl points at it. */
struct sent {
    struct rpc_request *rq; /* borrowed, the user's */
    struct channel *ch;
    struct link *link;     /* when SENT_ON_LINK */
    struct list_node node; /* where state says */
    struct sent *hash_next;
    enum sent_state state;
    bool is_out;     /* the request has left, out is not in link->conn.out */
    bool has_placed; /* place() was asked: no second answer can be taken */
    int rc;          /* SENT_FAILED, or what place() said */
    uint64_t id;     /* the same for every attempt, so that the peer recognises it */
    uint64_t order;  /* of arrival */
    uint64_t bytes;  /* counted against queue_max */
    struct env_timer deadline;
    struct conn_out out;
    uint8_t head[]; /* header and message */
};

enum link_state { LINK_IDLE, LINK_RESOLVING, LINK_HELLO, LINK_UP, LINK_CLOSING };

/* One TCP connection, again and again. */
struct link {
    struct conn conn;
    struct channel *ch;
    unsigned addr; /* index */
    enum link_state state;
    struct env_timer timer; /* IDLE: try again; HELLO: it took too long */
    uint32_t retry_ms;
    char error[ERROR_TEXT_MAX]; /* last one logged; "" once up */
    uv_getaddrinfo_t resolve;
    struct hello hello;
    struct conn_out hello_out, ping_out;
    uint8_t hello_bytes[FRAME_HEADER_BYTES + HELLO_MSG_MAX];
    uint8_t ping_bytes[FRAME_HEADER_BYTES];
    bool hello_busy;
    bool ping_busy;   /* ping_out is in conn.out */
    bool ping_is_out; /* the pong has not come */
    uint64_t ping_id;
    struct list_node sent; /* requests on this link, oldest first */
    uint64_t bytes;        /* of them */
    uint64_t owed_ns;      /* since when the peer owes us something; 0: it does not */
    uint64_t awake_ns;     /* its silence counts from here: we slept for a part of it */
    struct sent *rx;       /* whose payload is being received */
    bool rx_in_head;       /* into rx->rq->recv_head, place() not asked yet */
    uint8_t *rx_msg;       /* copy of the answer's message; owned, grows */
    size_t rx_msg_max;
    struct iovec rx_iov[RPC_IOV_MAX];
};

struct channel {
    struct rpc_channel base; /* first */
    struct env_uv *e;
    const struct rpc_keys *keys;
    enum rpc_role role;
    char name[HELLO_NAME_MAX + 1];
    uint8_t cluster_id[RPC_CLUSTER_ID_BYTES];
    char (*addrs)[RPC_ADDR_TEXT_MAX]; /* owned */
    unsigned n_addrs;
    struct link *links; /* owned array */
    unsigned n_links, n_up;
    unsigned last_link; /* for turns among equals */
    uint32_t probe_ms;
    uint64_t queue_max, bytes; /* with the links */
    uint64_t session, next_order;
    uint64_t next_id; /* begins anywhere: channels of one session do not share ids */
    struct list_node waiting; /* by order */
    struct list_node failed;
    struct sent *buckets[N_BUCKETS]; /* requests on links by id */
    struct env_timer tick;
    uint64_t tick_due_ns; /* when the tick should have come */
    struct env_task task; /* failed requests, end */
    struct bufpool pool;
    char last_error[ERROR_TEXT_MAX];
    void (*on_up)(void *arg);
    void *on_up_arg;
    bool is_closing;
    unsigned n_busy; /* conns and resolves that libuv still knows */
    void (*closed)(void *arg);
    void *closed_arg;
};

static void channel_dispatch(struct channel *ch);
static void link_connect(struct link *l);

static struct channel *channel_of(struct rpc_channel *base)
{
    return container_of(base, struct channel, base);
}

static uint64_t now_of(struct channel *ch)
{
    return env_now_ns(&ch->e->env);
}

/* ---- requests by id ---- */

static void hash_add(struct channel *ch, struct sent *s)
{
    struct sent **bucket = &ch->buckets[s->id % N_BUCKETS];

    s->hash_next = *bucket;
    *bucket = s;
}

static void hash_remove(struct channel *ch, struct sent *s)
{
    struct sent **at = &ch->buckets[s->id % N_BUCKETS];

    while (*at != s)
        at = &(*at)->hash_next;
    *at = s->hash_next;
}

static struct sent *hash_find(struct channel *ch, uint64_t id)
{
    struct sent *s = ch->buckets[id % N_BUCKETS];

    while (s != NULL && s->id != id)
        s = s->hash_next;
    return s;
}

/* ---- health ---- */

static uint64_t latest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Since when the peer owes us a byte and has not given one; 0: it owes nothing. */
static uint64_t link_silent_since(const struct link *l)
{
    if (l->owed_ns == 0)
        return 0;
    return latest(latest(l->owed_ns, l->conn.heard_ns),
                  latest(l->awake_ns, l->conn.out_blocked ? l->conn.drained_ns : 0));
}

static bool link_is_suspect(const struct link *l, uint64_t now_ns)
{
    uint64_t since = link_silent_since(l);

    return since != 0 && now_ns - since >= l->ch->probe_ms * 1000000ull;
}

/*
 * Was it us who slept? Then what peers sent meanwhile has not been read yet, and the time does not
 * count as their silence. What they were silent before does, unless we slept for long: on a machine
 * where we are always late, a hung peer is found later, but it is found.
 */
static void channel_note_sleep(struct channel *ch, uint64_t now_ns)
{
    uint64_t slept_ns;

    if (ch->tick_due_ns == 0 || now_ns <= ch->tick_due_ns + ch->probe_ms * 500000ull)
        return;
    slept_ns = now_ns - ch->tick_due_ns;
    ch->tick_due_ns = now_ns;
    for (unsigned i = 0; i < ch->n_links; i++) {
        struct link *l = &ch->links[i];
        uint64_t since = link_silent_since(l);

        if (since != 0 && slept_ns < ch->probe_ms * 1000000ull)
            l->awake_ns = since + slept_ns < now_ns ? since + slept_ns : now_ns;
        else
            l->awake_ns = now_ns;
    }
}

static enum rpc_health channel_health(struct rpc_channel *base)
{
    struct channel *ch = channel_of(base);
    uint64_t now_ns = now_of(ch);

    if (ch->n_up == 0)
        return RPC_DOWN;
    channel_note_sleep(ch, now_ns);
    for (unsigned i = 0; i < ch->n_links; i++) {
        if (ch->links[i].state == LINK_UP && !link_is_suspect(&ch->links[i], now_ns))
            return RPC_UP;
    }
    return RPC_SUSPECT;
}

/* Something is out, or all is answered: does the peer owe us anything? */
static void link_update_owed(struct link *l)
{
    bool owes = l->ping_is_out || !list_is_empty(&l->sent);

    if (!owes)
        l->owed_ns = 0;
    else if (l->owed_ns == 0)
        l->owed_ns = now_of(l->ch);
}

static void link_error(struct link *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void link_error(struct link *l, const char *fmt, ...)
{
    struct channel *ch = l->ch;
    char text[ERROR_TEXT_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    if (strcmp(text, l->error) != 0) /* trying again for hours is one line */
        log_info("rpc: %s", text);
    memcpy(l->error, text, sizeof(text));
    memcpy(ch->last_error, text, sizeof(text));
}

/* ---- the end of a request ---- */

static void payload_free(struct sent *s)
{
    struct rpc_request *rq = s->rq;

    if (rq->answer_payload != NULL)
        bufpool_put(&s->ch->pool, rq->answer_payload, rq->answer_payload_len);
    rq->answer_payload = NULL;
}

/* Take it off its link: nothing of the user's is pointed at by the connection afterwards. */
static void sent_unlink(struct sent *s)
{
    struct link *l = s->link;

    hash_remove(s->ch, s);
    list_remove(&s->node);
    l->bytes -= s->bytes;
    s->ch->bytes -= s->bytes;
    if (l->rx == s) {
        l->rx = NULL;
        conn_discard(&l->conn);
    }
    if (!s->is_out && !l->conn.is_closed && conn_unsend(&l->conn, &s->out) != 0) {
        /* No memory for a copy of the rest: this connection cannot be used any more. */
        conn_close(&l->conn);
        l->state = LINK_CLOSING;
        l->ch->n_up--;
    }
    if (l->conn.is_closed && !s->is_out)
        list_remove(&s->out.node);
    payload_free(s);
    s->link = NULL;
    link_update_owed(l);
}

/* Take it from wherever it is. */
static void sent_remove(struct sent *s)
{
    if (s->state == SENT_ON_LINK)
        sent_unlink(s);
    else
        list_remove(&s->node);
    env_timer_stop(&s->ch->e->env, &s->deadline);
}

/* For good; done() may do anything, also close the channel. */
static void sent_done(struct sent *s, int rc)
{
    struct rpc_request *rq = s->rq;

    rq->impl = NULL;
    free(s);
    rq->done(rq, rc);
}

static void sent_fail_later(struct sent *s, int rc)
{
    sent_remove(s);
    s->state = SENT_FAILED;
    s->rc = rc;
    list_add_tail(&s->ch->failed, &s->node);
    env_post(&s->ch->e->env, &s->ch->task);
}

static void on_deadline(struct env_timer *timer)
{
    struct sent *s = container_of(timer, struct sent, deadline);
    struct channel *ch = s->ch;
    int rc = ch->n_up == 0 && s->state == SENT_WAITING ? -ENOTCONN : -ETIMEDOUT;

    sent_remove(s);
    channel_dispatch(ch); /* before done(), which may close the channel */
    sent_done(s, rc);
}

static void channel_cancel(struct rpc_channel *base, struct rpc_request *rq)
{
    struct sent *s = rq->impl;

    assert(s != NULL && s->rq == rq); /* else it is done already */
    sent_remove(s);
    rq->impl = NULL;
    free(s);
    channel_dispatch(channel_of(base));
}

/* ---- the beginning of a request ---- */

static void on_request_sent(struct conn *c, struct conn_out *out)
{
    (void)c;
    container_of(out, struct sent, out)->is_out = true;
}

/* The link for the next request; NULL: none is up. */
static struct link *link_choose(struct channel *ch)
{
    uint64_t now_ns = now_of(ch);
    struct link *best = NULL;
    bool best_suspect = true;

    channel_note_sleep(ch, now_ns);
    for (unsigned i = 1; i <= ch->n_links; i++) {
        struct link *l = &ch->links[(ch->last_link + i) % ch->n_links];
        bool suspect;

        if (l->state != LINK_UP)
            continue;
        suspect = ch->n_up > 1 && link_is_suspect(l, now_ns);
        if (best == NULL || (best_suspect && !suspect) ||
            (best_suspect == suspect && l->bytes < best->bytes)) {
            best = l;
            best_suspect = suspect;
        }
    }
    return best;
}

static void sent_start(struct sent *s, struct link *l)
{
    struct channel *ch = s->ch;
    struct rpc_request *rq = s->rq;
    struct frame frame = {
        .kind = FRAME_REQUEST,
        .op = rq->op,
        .id = s->id,
        .session = ch->session,
        .msg_len = (uint32_t)rq->msg_len,
    };

    for (unsigned i = 0; i < rq->n_payload; i++)
        frame.payload_len += (uint32_t)rq->payload[i].iov_len;
    frame_build(s->head, &frame, s->head + FRAME_HEADER_BYTES);
    list_remove(&s->node);
    list_add_tail(&l->sent, &s->node);
    s->state = SENT_ON_LINK;
    s->link = l;
    s->is_out = false;
    s->out = (struct conn_out){
        .head = s->head,
        .head_len = FRAME_HEADER_BYTES + rq->msg_len,
        .iov = rq->payload,
        .n_iov = rq->n_payload,
        .sent = on_request_sent,
    };
    hash_add(ch, s);
    l->bytes += s->bytes;
    ch->bytes += s->bytes;
    ch->last_link = (unsigned)(l - ch->links);
    conn_send(&l->conn, &s->out, false);
    link_update_owed(l);
}

/* Give waiting requests to links while there is room. */
static void channel_dispatch(struct channel *ch)
{
    while (!ch->is_closing && !list_is_empty(&ch->waiting)) {
        struct sent *s = container_of(ch->waiting.next, struct sent, node);
        struct link *l;

        if (ch->bytes != 0 && ch->bytes + s->bytes > ch->queue_max)
            return;
        l = link_choose(ch);
        if (l == NULL)
            return;
        sent_start(s, l);
    }
}

/* Back to those that wait, at the place of its arrival. */
static void sent_again(struct sent *s)
{
    struct channel *ch = s->ch;
    struct list_node *at = ch->waiting.next;

    sent_unlink(s);
    while (at != &ch->waiting && container_of(at, struct sent, node)->order < s->order)
        at = at->next;
    list_add_after(at->prev, &s->node);
    s->state = SENT_WAITING;
}

static void channel_send(struct rpc_channel *base, struct rpc_request *rq)
{
    struct channel *ch = channel_of(base);
    struct sent *s = malloc(sizeof(*s) + FRAME_HEADER_BYTES + rq->msg_len);
    uint64_t payload_len = 0;

    assert(s != NULL);
    assert(rq->deadline_ms != 0 && rq->msg_len <= RPC_MSG_MAX &&
           rq->n_payload <= RPC_IOV_MAX);
    assert(rq->recv_head_len == 0 || rq->place != NULL);
    memset(s, 0, sizeof(*s));
    for (unsigned i = 0; i < rq->n_payload; i++)
        payload_len += rq->payload[i].iov_len;
    assert(payload_len <= RPC_PAYLOAD_MAX);
    if (rq->msg_len != 0)
        memcpy(s->head + FRAME_HEADER_BYTES, rq->msg, rq->msg_len);
    rq->impl = s;
    rq->answer_msg = NULL;
    rq->answer_msg_len = 0;
    rq->answer_payload = NULL;
    rq->answer_payload_len = 0;
    s->rq = rq;
    s->ch = ch;
    s->id = ++ch->next_id;
    s->order = ch->next_order++;
    s->bytes = REQUEST_OVERHEAD + rq->msg_len + payload_len;
    env_timer_init(&s->deadline, on_deadline);
    s->state = SENT_WAITING;
    list_add_tail(&ch->waiting, &s->node);
    if (ch->is_closing) {
        sent_fail_later(s, -ENOTCONN);
        return;
    }
    env_timer_start(&ch->e->env, &s->deadline, rq->deadline_ms);
    channel_dispatch(ch);
}

static const struct rpc_channel_ops channel_ops = {
    .send = channel_send,
    .cancel = channel_cancel,
    .health = channel_health,
};

/* ---- answers ---- */

/* The answer is complete. */
static void answer_done(struct sent *s)
{
    struct channel *ch = s->ch;
    struct rpc_request *rq = s->rq;
    struct link *l = s->link;
    uint8_t *payload = rq->answer_payload;
    size_t payload_len = rq->answer_payload_len;
    int rc = s->rc;

    l->rx = NULL;
    rq->answer_payload = NULL; /* sent_unlink() must not free it yet */
    sent_remove(s);
    channel_dispatch(ch);
    rq->answer_payload = payload;
    sent_done(
        s, rc); /* rq may be gone or in use again afterwards, ch closed but not freed */
    bufpool_put(&ch->pool, payload, payload_len);
}

/* Keep the message until the payload is here. */
static int msg_keep(struct link *l, struct rpc_request *rq, const uint8_t *msg,
                    size_t len)
{
    if (len > l->rx_msg_max) {
        uint8_t *bigger = realloc(l->rx_msg, len);

        if (bigger == NULL)
            return -ENOMEM;
        l->rx_msg = bigger;
        l->rx_msg_max = len;
    }
    if (len != 0)
        memcpy(l->rx_msg, msg, len);
    rq->answer_msg = l->rx_msg;
    return 0;
}

/* The head is full (or there is none): ask where the rest goes. */
static void answer_place(struct link *l, struct sent *s)
{
    size_t rest = l->conn.payload_left;
    int n;

    l->rx_in_head = false;
    s->has_placed = true;
    n = s->rq->place(s->rq, rest, l->rx_iov);
    if (l->rx != s)
        return; /* it was cancelled in there; the rest is thrown away already */
    if (n < 0) {
        s->rc = n;
        conn_discard(&l->conn);
        return;
    }
    assert(n > 0 && n <= RPC_IOV_MAX);
    conn_receive(&l->conn, l->rx_iov, (unsigned)n);
    {
        size_t sum = 0;

        for (unsigned i = 0; i < l->conn.n_dst; i++)
            sum += l->conn.dst[i].iov_len;
        assert(sum == rest);
    }
}

static int answer_receive(struct link *l, struct sent *s)
{
    struct rpc_request *rq = s->rq;
    size_t len = l->conn.frame.payload_len;

    l->rx = s;
    if (rq->place == NULL) {
        rq->answer_payload = bufpool_get(&l->ch->pool, len);
        if (rq->answer_payload == NULL)
            return -ENOMEM;
        l->rx_iov[0] = (struct iovec){ rq->answer_payload, len };
        conn_receive(&l->conn, l->rx_iov, 1);
        return 0;
    }
    if (rq->recv_head_len == 0) {
        answer_place(l, s);
        return 0;
    }
    l->rx_in_head = true;
    l->rx_iov[0] = (struct iovec){ rq->recv_head,
                                   len < rq->recv_head_len ? len : rq->recv_head_len };
    conn_receive(&l->conn, l->rx_iov, 1);
    return 0;
}

static int on_answer(struct link *l, const uint8_t *msg)
{
    const struct frame *f = &l->conn.frame;
    struct sent *s = hash_find(l->ch, f->id);
    struct rpc_request *rq;

    if (s == NULL || s->link != l) { /* was cancelled, or has gone another way */
        if (f->payload_len != 0)
            conn_discard(&l->conn);
        return 0;
    }
    rq = s->rq;
    if (f->op != rq->op || !s->is_out)
        return -EBADMSG;
    rq->status = f->status;
    rq->answer_msg = msg;
    rq->answer_msg_len = f->msg_len;
    rq->answer_payload_len = f->payload_len;
    if (f->payload_len == 0) {
        answer_done(s);
        return 0;
    }
    if (msg_keep(l, rq, msg, f->msg_len) != 0)
        return -ENOMEM;
    return answer_receive(l, s);
}

/* ---- Hello ---- */

static void link_fail(struct link *l);

static void on_hello_out(struct conn *c, struct conn_out *out)
{
    (void)out;
    container_of(c, struct link, conn)->hello_busy = false;
}

static void link_hello_send(struct link *l, size_t len)
{
    struct frame frame = { .kind = FRAME_HELLO, .msg_len = (uint32_t)len };

    frame_build(l->hello_bytes, &frame, l->hello_bytes + FRAME_HEADER_BYTES);
    l->hello_out = (struct conn_out){
        .head = l->hello_bytes,
        .head_len = FRAME_HEADER_BYTES + len,
        .sent = on_hello_out,
    };
    l->hello_busy = true;
    conn_send(&l->conn, &l->hello_out, false);
}

static void link_up(struct link *l)
{
    struct channel *ch = l->ch;

    l->state = LINK_UP;
    l->error[0] = '\0';
    l->owed_ns = 0;
    env_timer_stop(&ch->e->env, &l->timer);
    log_debug("rpc: link to %s (%s) is up", ch->addrs[l->addr], l->hello.peer_name);
    if (ch->n_up++ == 0) {
        if (!env_timer_is_running(&ch->tick)) {
            ch->tick_due_ns = now_of(ch) + 1000000;
            env_timer_start(&ch->e->env, &ch->tick, 1);
        }
        if (ch->on_up != NULL)
            ch->on_up(ch->on_up_arg);
    }
    channel_dispatch(ch);
}

static int link_on_hello(struct link *l, const uint8_t *msg)
{
    struct hello *h = &l->hello;
    size_t len;

    if (l->hello_busy || l->state != LINK_HELLO)
        return -EBADMSG;
    hello_step(h, msg, l->conn.frame.msg_len, l->hello_bytes + FRAME_HEADER_BYTES, &len);
    if (h->state == HELLO_FAILED) {
        link_error(l, "connect to %s: %s", l->ch->addrs[l->addr], h->error);
        link_fail(l);
        return 0;
    }
    if (len != 0)
        link_hello_send(l, len);
    if (h->state == HELLO_DONE)
        link_up(l);
    return 0;
}

/* ---- what the connection tells ---- */

static int link_on_header(struct conn *c)
{
    struct link *l = container_of(c, struct link, conn);
    unsigned kind = c->frame.kind;

    if (l->state == LINK_HELLO)
        return kind == FRAME_HELLO ? 0 : -EBADMSG;
    return kind == FRAME_ANSWER || kind == FRAME_PONG ? 0 : -EBADMSG;
}

static int link_on_frame(struct conn *c, const uint8_t *msg)
{
    struct link *l = container_of(c, struct link, conn);

    if (c->frame.kind == FRAME_HELLO)
        return link_on_hello(l, msg);
    l->retry_ms = RETRY_MS_MIN; /* it serves; Hello alone would not say so */
    if (c->frame.kind == FRAME_PONG) {
        if (c->frame.id == l->ping_id && !l->ping_busy) {
            l->ping_is_out = false;
            link_update_owed(l);
        }
        return 0;
    }
    return on_answer(l, msg);
}

static int link_on_filled(struct conn *c)
{
    struct link *l = container_of(c, struct link, conn);

    assert(l->rx != NULL && l->rx_in_head);
    answer_place(l, l->rx);
    return 0;
}

static int link_on_payload(struct conn *c)
{
    struct link *l = container_of(c, struct link, conn);

    if (l->rx != NULL)
        answer_done(l->rx);
    return 0;
}

static void link_on_broken(struct conn *c, int rc, const char *why)
{
    struct link *l = container_of(c, struct link, conn);

    (void)rc;
    link_error(l, "%s %s: %s", l->state == LINK_HELLO ? "connect to" : "link to",
               l->ch->addrs[l->addr], why);
    link_fail(l);
}

/* ---- the life of a link ---- */

static void channel_end_if_idle(struct channel *ch)
{
    if (ch->is_closing)
        env_post(&ch->e->env, &ch->task);
}

static void link_retry_later(struct link *l)
{
    uint32_t chance;

    l->state = LINK_IDLE;
    if (l->ch->is_closing)
        return;
    /* A quarter less at most: all clients of a server that was restarted do not come at once. */
    env_random(&l->ch->e->env, &chance, sizeof(chance));
    env_timer_start(&l->ch->e->env, &l->timer,
                    l->retry_ms - chance % (l->retry_ms / 4 + 1));
    l->retry_ms = l->retry_ms * 2 < RETRY_MS_MAX ? l->retry_ms * 2 : RETRY_MS_MAX;
}

/* Its requests go to other links, or wait; but no answer can be placed twice. */
static void link_give_back(struct link *l)
{
    LIST_FOREACH_SAFE(node, &l->sent) {
        struct sent *s = container_of(node, struct sent, node);

        if (s->has_placed)
            sent_fail_later(s, -ENOTCONN);
        else
            sent_again(s);
    }
}

/* The connection is of no more use. */
static void link_fail(struct link *l)
{
    struct channel *ch = l->ch;

    if (l->state == LINK_CLOSING || l->state == LINK_IDLE)
        return;
    if (l->state == LINK_UP)
        ch->n_up--;
    l->state = LINK_CLOSING;
    env_timer_stop(&ch->e->env, &l->timer);
    conn_close(&l->conn);
    link_give_back(l);
    channel_dispatch(ch);
}

static void link_on_closed(struct conn *c)
{
    struct link *l = container_of(c, struct link, conn);

    /* Rests of cancelled requests are their own owners. Hello and ping are ours, requests have
     * all been taken off. */
    LIST_FOREACH_SAFE(node, &c->out) {
        struct conn_out *out = container_of(node, struct conn_out, node);

        list_remove(node);
        out->sent(c, out);
    }
    link_give_back(
        l); /* sent_unlink() without memory closes a link in the middle of things */
    l->ch->n_busy--;
    link_retry_later(l);
    channel_dispatch(l->ch);
    channel_end_if_idle(l->ch);
}

static const struct conn_ops link_conn_ops = {
    .on_header = link_on_header,
    .on_frame = link_on_frame,
    .on_filled = link_on_filled,
    .on_payload = link_on_payload,
    .on_broken = link_on_broken,
    .on_closed = link_on_closed,
};

static void link_connect_to(struct link *l, const struct sockaddr *sa, socklen_t sa_len)
{
    struct channel *ch = l->ch;
    uint8_t nonce[HELLO_NONCE_BYTES];
    size_t len;
    int rc = 0;
    int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd >= 0) {
        socket_tune(fd);
        rc = connect(fd, sa, sa_len) == 0 || errno == EINPROGRESS ? 0 : -errno;
        memset(&l->conn, 0, sizeof(l->conn));
        if (rc == 0)
            rc = conn_open(&l->conn, ch->e, fd, true, &link_conn_ops);
        if (rc != 0)
            close(fd);
    } else {
        rc = -errno;
    }
    if (rc != 0) {
        link_error(l, "connect to %s: %s", ch->addrs[l->addr], strerror(-rc));
        link_retry_later(l);
        return;
    }
    ch->n_busy++;
    l->state = LINK_HELLO;
    l->hello_busy = l->ping_busy = l->ping_is_out = false;
    l->owed_ns = 0;
    env_timer_start(&ch->e->env, &l->timer, HELLO_MS);
    env_random(&ch->e->env, nonce, sizeof(nonce));
    hello_init(&l->hello, false, ch->keys, ch->role, ch->name, ch->cluster_id, nonce);
    hello_step(&l->hello, NULL, 0, l->hello_bytes + FRAME_HEADER_BYTES, &len);
    link_hello_send(l, len);
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *ai)
{
    struct link *l = container_of(req, struct link, resolve);
    struct channel *ch = l->ch;

    ch->n_busy--;
    if (ch->is_closing) {
        l->state = LINK_IDLE;
    } else if (status != 0) {
        link_error(l, "look up %s: %s", ch->addrs[l->addr], uv_strerror(status));
        link_retry_later(l);
    } else {
        link_connect_to(l, ai->ai_addr, ai->ai_addrlen);
    }
    uv_freeaddrinfo(ai);
    channel_end_if_idle(ch);
}

static void link_connect(struct link *l)
{
    struct channel *ch = l->ch;
    struct addrinfo hints = {
        .ai_socktype = SOCK_STREAM,
        .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST,
    };
    struct addrinfo *ai;
    char host[RPC_ADDR_TEXT_MAX], port[8];
    int rc = addr_split(ch->addrs[l->addr], host, port, NULL);

    assert(rc == 0);                                 /* rpc_tcp_channel_open() looked */
    if (getaddrinfo(host, port, &hints, &ai) == 0) { /* numbers: no waiting */
        link_connect_to(l, ai->ai_addr, ai->ai_addrlen);
        freeaddrinfo(ai);
        return;
    }
    hints.ai_flags = AI_NUMERICSERV;
    l->state = LINK_RESOLVING;
    rc = uv_getaddrinfo(ch->e->loop, &l->resolve, on_resolved, host, port, &hints);
    if (rc != 0) {
        link_error(l, "look up %s: %s", ch->addrs[l->addr], uv_strerror(rc));
        link_retry_later(l);
        return;
    }
    ch->n_busy++;
}

static void on_link_timer(struct env_timer *timer)
{
    struct link *l = container_of(timer, struct link, timer);

    if (l->state == LINK_IDLE) {
        link_connect(l);
        return;
    }
    assert(l->state == LINK_HELLO);
    link_error(l, "connect to %s: no Hello for %d s", l->ch->addrs[l->addr],
               HELLO_MS / 1000);
    link_fail(l);
}

/* ---- probes ---- */

static void on_ping_out(struct conn *c, struct conn_out *out)
{
    (void)out;
    container_of(c, struct link, conn)->ping_busy = false;
}

static void link_ping(struct link *l)
{
    struct frame frame = { .kind = FRAME_PING, .id = ++l->ch->next_id };

    l->ping_id = frame.id;
    frame_build(l->ping_bytes, &frame, NULL);
    l->ping_out = (struct conn_out){
        .head = l->ping_bytes,
        .head_len = FRAME_HEADER_BYTES,
        .sent = on_ping_out,
    };
    l->ping_busy = true;
    l->ping_is_out = true;
    conn_send(&l->conn, &l->ping_out, true);
    link_update_owed(l);
}

static void link_probe(struct link *l, uint64_t now_ns, bool others_hear)
{
    struct channel *ch = l->ch;
    uint64_t probe_ns = ch->probe_ms * 1000000ull;
    uint64_t since = link_silent_since(l);
    uint64_t dead_ns = probe_ns * (others_hear ? DEAD_PROBES_BETTER : DEAD_PROBES);

    if (since != 0 && now_ns - since >= dead_ns) {
        link_error(l, "link to %s: silent for %u ms", ch->addrs[l->addr],
                   (unsigned)((now_ns - since) / 1000000));
        link_fail(l);
        return;
    }
    if (l->ping_is_out)
        return;
    if (since != 0 ? now_ns - since >= probe_ns / 2
                   : now_ns - l->conn.heard_ns >= probe_ns)
        link_ping(l);
}

static void on_tick(struct env_timer *timer)
{
    struct channel *ch = container_of(timer, struct channel, tick);
    uint64_t now_ns = now_of(ch), probe_ns = ch->probe_ms * 1000000ull;
    unsigned n_hear = 0;

    if (ch->n_up == 0) {
        ch->tick_due_ns = 0;
        return; /* link_up() starts it again */
    }
    channel_note_sleep(ch, now_ns);
    for (unsigned i = 0; i < ch->n_links; i++)
        n_hear +=
            ch->links[i].state == LINK_UP && !link_is_suspect(&ch->links[i], now_ns);
    for (unsigned i = 0; i < ch->n_links; i++) {
        if (ch->links[i].state == LINK_UP)
            link_probe(&ch->links[i], now_ns, n_hear > 0);
    }
    ch->tick_due_ns = now_ns + probe_ns / 4;
    env_timer_start(&ch->e->env, timer, ch->probe_ms / 4 > 0 ? ch->probe_ms / 4 : 1);
}

/* ---- the life of a channel ---- */

static void channel_free(struct channel *ch)
{
    for (unsigned i = 0; ch->links != NULL && i < ch->n_links; i++)
        free(ch->links[i].rx_msg);
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

static int channel_check(const struct rpc_channel_config *config, struct err *err)
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
    ch->probe_ms = config->probe_ms != 0 ? config->probe_ms : PROBE_MS_DEFAULT;
    ch->queue_max = config->queue_max != 0 ? config->queue_max : QUEUE_MAX_DEFAULT;
    env_random(&ch->e->env, &ch->next_id, sizeof(ch->next_id));
    ch->pool.idle_max_bytes = POOL_IDLE_MAX;
    ch->task.fn = on_channel_task;
    list_init(&ch->waiting);
    list_init(&ch->failed);
    env_timer_init(&ch->tick, on_tick);
    ch->n_addrs = config->n_addrs;
    for (unsigned i = 0; i < ch->n_addrs; i++)
        snprintf(ch->addrs[i], RPC_ADDR_TEXT_MAX, "%s", config->addrs[i]);
    for (unsigned i = 0; i < ch->n_links; i++) {
        struct link *l = &ch->links[i];

        l->ch = ch;
        l->addr = i / links_per_addr;
        l->retry_ms = RETRY_MS_MIN;
        list_init(&l->sent);
        env_timer_init(&l->timer, on_link_timer);
    }
}

int rpc_tcp_channel_open(struct env_uv *env, const struct rpc_channel_config *config,
                         struct rpc_channel **out, struct err *err)
{
    unsigned links_per_addr = config->links_per_addr != 0 ? config->links_per_addr : 1;
    struct channel *ch;
    int rc = channel_check(config, err);

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
    channel_of(base)->on_up = fn;
    channel_of(base)->on_up_arg = arg;
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
