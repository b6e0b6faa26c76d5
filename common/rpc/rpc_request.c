/*
 * rpc_request.c - a request of a channel: waits, is sent, perhaps repeatedly; its answer
 * is placed.
 *
 * In:     rpc_send(), rpc_cancel() from cores; answers, from rpc_link.c (I8: checked
 *         before placed).
 * Out:    rpc_done_cb, exactly once a request. Thread: the env's loop. This is shell.
 * Keeps:  every request ends by its deadline; memory of a request that ended is not
 *         touched again; at most queue_max bytes are with the links, the rest waits in
 *         order.
 * Yours:  how links are chosen (link_choose()).
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/rpc/rpc_channel_in.h"

enum { REQUEST_OVERHEAD = 512 }; /* bytes a request counts besides its own */

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

/* ---- the end of a request ---- */

static void payload_free(struct sent *s)
{
    struct rpc_request *rq = s->rq;

    if (rq->answer_payload != NULL)
        bufpool_put(&s->ch->pool, rq->answer_payload, rq->answer_payload_len);
    rq->answer_payload = NULL;
}

/* Takes a request off its link: afterwards the connection does not use memory of the user
 * any more. */
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
        /* No memory for a copy of the rest: this connection is unusable. */
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

/* Takes a request from wherever it is. */
static void sent_remove(struct sent *s)
{
    if (s->state == SENT_ON_LINK)
        sent_unlink(s);
    else
        list_remove(&s->node);
    env_timer_stop(&s->ch->e->env, &s->deadline);
}

/* Ends a request; done() may do anything, also close the channel. */
void sent_done(struct sent *s, int rc)
{
    struct rpc_request *rq = s->rq;

    rq->impl = NULL;
    free(s);
    rq->done(rq, rc);
}

void sent_fail_later(struct sent *s, int rc)
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

    assert(s != NULL && s->rq == rq); /* a request that is done has none */
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

/* Returns the link for the next request; NULL: none is up. */
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
        .session = rq->session,
        .start = (l->hello.features & HELLO_STARTS) != 0 ? rq->start : 0,
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

/* Gives waiting requests to links while there is room. */
void channel_dispatch(struct channel *ch)
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

/* Puts a request back among the waiting ones, at the place of its arrival. */
void sent_again(struct sent *s)
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
    if (rq->session == 0)
        rq->session = ch->session;
    rq->impl = s;
    rq->answer_msg = NULL;
    rq->answer_msg_len = 0;
    rq->answer_payload = NULL;
    rq->answer_payload_len = 0;
    s->rq = rq;
    s->ch = ch;
    s->id = rq->again != 0 ? rq->again : ++ch->next_id;
    rq->id = s->id;
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

const struct rpc_channel_ops channel_ops = {
    .send = channel_send,
    .cancel = channel_cancel,
    .health = channel_health,
    .connect_now = channel_connect_now,
};

/* ---- answers ---- */

/* Ends a request whose answer is complete. */
void answer_done(struct sent *s)
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
    /* rq may be gone or in use again afterwards, ch closed but not freed */
    sent_done(s, rc);
    bufpool_put(&ch->pool, payload, payload_len);
}

/* Keeps the message until the payload is here. */
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

/* Asks for the places of the rest, once the head is full (or there is none). */
void answer_place(struct link *l, struct sent *s)
{
    size_t rest = l->conn.payload_left;
    int n;

    l->rx_in_head = false;
    s->has_placed = true;
    n = s->rq->place(s->rq, rest, l->rx_iov);
    if (l->rx != s)
        return; /* cancelled by place(); the rest is discarded already */
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

int answer_message(struct link *l, const uint8_t *msg)
{
    const struct frame *f = &l->conn.frame;
    struct sent *s = hash_find(l->ch, f->id);
    struct rpc_request *rq;

    if (s == NULL || s->link != l) { /* cancelled, or sent on another link since */
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
