/*
 * rpc_link.c - one link of a channel: connects, proves its key, receives, probes, breaks,
 * tries again.
 *
 * In:     bytes of the peer (I8), timers. Thread: the env's loop. This is shell.
 * Out:    answers to rpc_request.c, whether the peer is up or suspect.
 * Keeps:  requests of a link that broke go back; no answer is placed twice.
 * Yours:  the limits below.
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

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/rpc/rpc_channel_in.h"

enum {
    RETRY_MS_MAX = 2000,
    HELLO_MS = 5000,        /* from connect() to the end of Hello */
    STALE_MS = 1000,        /* an attempt that lasts so long is not waited for */
    DEAD_PROBES = 20,       /* times probe_ms without a byte: the link is closed */
    DEAD_PROBES_BETTER = 4, /* when another link hears the peer */
};

/* ---- health ---- */

static uint64_t latest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Returns since when the peer owes us a byte and has sent none; 0: it owes nothing. */
static uint64_t link_silent_since(const struct link *l)
{
    if (l->owed_ns == 0)
        return 0;
    return latest(latest(l->owed_ns, l->conn.heard_ns),
                  latest(l->awake_ns, l->conn.out_blocked ? l->conn.drained_ns : 0));
}

bool link_is_suspect(const struct link *l, uint64_t now_ns)
{
    uint64_t since = link_silent_since(l);

    return since != 0 && now_ns - since >= ms_to_ns(l->ch->probe_ms);
}

/* Detects that this process slept. Bytes that peers sent meanwhile are not read yet, so
 * that time does not count against them. The time before does, unless we slept for long:
 * on a machine where we are always late, a hung peer is found later, but it is found. */
void channel_note_sleep(struct channel *ch, uint64_t now_ns)
{
    uint64_t slept_ns;

    if (ch->tick_due_ns == 0 || now_ns <= ch->tick_due_ns + ch->probe_ms * 500000ull)
        return;
    slept_ns = now_ns - ch->tick_due_ns;
    ch->tick_due_ns = now_ns;
    for (unsigned i = 0; i < ch->n_links; i++) {
        struct link *l = &ch->links[i];
        uint64_t since = link_silent_since(l);

        if (since != 0 && slept_ns < ms_to_ns(ch->probe_ms))
            l->awake_ns = since + slept_ns < now_ns ? since + slept_ns : now_ns;
        else
            l->awake_ns = now_ns;
    }
}

/* Returns true if a link is at its first attempt. */
static bool is_connecting(const struct channel *ch)
{
    for (unsigned i = 0; i < ch->n_links; i++) {
        const struct link *l = &ch->links[i];

        bool trying = l->state == LINK_RESOLVING || l->state == LINK_HELLO ||
                      (l->state == LINK_CLOSING && l->next != NULL);

        if (trying && l->error[0] == '\0')
            return true;
    }
    return false;
}

enum rpc_health channel_health(struct rpc_channel *base)
{
    struct channel *ch = channel_of(base);
    uint64_t now_ns = now_of(ch);

    if (ch->n_up == 0)
        return is_connecting(ch) ? RPC_CONNECTING : RPC_DOWN;
    channel_note_sleep(ch, now_ns);
    for (unsigned i = 0; i < ch->n_links; i++) {
        if (ch->links[i].state == LINK_UP && !link_is_suspect(&ch->links[i], now_ns))
            return RPC_UP;
    }
    return RPC_SUSPECT;
}

/* Computes owed_ns again: the peer owes us a byte while a ping or request is out. */
void link_update_owed(struct link *l)
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
    if (strcmp(text, l->error) != 0) /* repeated attempts for hours make one line */
        log_info("rpc: %s", text);
    memcpy(l->error, text, sizeof(text));
    memcpy(ch->last_error, text, sizeof(text));
}

/* Notes why the present address failed; reports it when no other one is left to try.
 * rc: of connect(), or another error. */
static void link_connect_error(struct link *l, int rc, const char *why)
{
    const char *addr = l->ch->addrs[l->addr];
    size_t len = strlen(l->tried);

    l->other_failure |= rc != -ECONNREFUSED;
    if (strcmp(l->where, addr) == 0)
        snprintf(l->tried, sizeof(l->tried), "%s", why);
    else
        snprintf(l->tried + len, sizeof(l->tried) - len, "%s%s: %s", len == 0 ? "" : "; ",
                 l->where, why);
    if (l->next == NULL)
        link_error(l, "connect to %s: %s", addr, l->tried);
}

/* ---- Hello ---- */

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

static void channel_tell(const struct channel_watch *w)
{
    if (w->fn != NULL)
        w->fn(w->arg);
}

static void link_up(struct link *l)
{
    struct channel *ch = l->ch;

    l->state = LINK_UP;
    l->next = NULL;
    l->error[0] = l->tried[0] = '\0';
    l->owed_ns = 0;
    env_timer_stop(&ch->e->env, &l->timer);
    log_debug("rpc: link to %s (%s) is up", ch->addrs[l->addr], l->hello.peer_name);
    if (ch->n_up++ == 0) {
        if (!env_timer_is_running(&ch->tick)) {
            ch->tick_due_ns = now_of(ch) + NS_PER_MS;
            env_timer_start(&ch->e->env, &ch->tick, 1);
        }
        channel_tell(&ch->on_up);
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
        link_connect_error(l, -EPROTO, h->error);
        link_fail(l);
        return 0;
    }
    if (len != 0)
        link_hello_send(l, len);
    if (h->state == HELLO_DONE)
        link_up(l);
    return 0;
}

/* ---- events of the connection ---- */

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
    /* the peer serves requests; Hello alone does not show that */
    l->retry_ms = RETRY_MS_MIN;
    if (c->frame.kind == FRAME_PONG) {
        if (c->frame.id == l->ping_id && !l->ping_busy) {
            l->ping_is_out = false;
            link_update_owed(l);
        }
        return 0;
    }
    return answer_message(l, msg);
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

    if (l->state == LINK_HELLO)
        link_connect_error(l, rc, why);
    else
        link_error(l, "link to %s: %s", l->where, why);
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
    /* A quarter less at most, so that all clients of a restarted server do not come at
     * once. */
    env_random(&l->ch->e->env, &chance, sizeof(chance));
    env_timer_start(&l->ch->e->env, &l->timer,
                    l->retry_ms - chance % (l->retry_ms / 4 + 1));
    l->retry_ms = l->retry_ms * 2 < RETRY_MS_MAX ? l->retry_ms * 2 : RETRY_MS_MAX;
}

/* Gives its requests to other links, or lets them wait; but no answer can be placed
 * twice. */
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

void link_fail(struct link *l)
{
    struct channel *ch = l->ch;
    bool was_up = l->state == LINK_UP;

    if (l->state == LINK_CLOSING || l->state == LINK_IDLE)
        return;
    if (was_up)
        ch->n_up--;
    l->state = LINK_CLOSING;
    env_timer_stop(&ch->e->env, &l->timer);
    conn_close(&l->conn);
    link_give_back(l);
    channel_dispatch(ch);
    if (was_up && ch->n_up == 0 && !ch->is_closing)
        channel_tell(&ch->on_down);
}

static void link_connect_next(struct link *l);

static void link_on_closed(struct conn *c)
{
    struct link *l = container_of(c, struct link, conn);

    /* Rests of cancelled requests own themselves. Hello and ping are ours, requests have
     * all been taken off. */
    LIST_FOREACH_SAFE(node, &c->out) {
        struct conn_out *out = container_of(node, struct conn_out, node);

        list_remove(node);
        out->sent(c, out);
    }
    /* sent_unlink() without memory closes a link in the middle of an operation */
    link_give_back(l);
    l->ch->n_busy--;
    link_connect_next(l);
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

static int link_socket(struct link *l, int family)
{
    int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0 && env_uv_frees_fds(l->ch->e, errno))
        fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    return fd;
}

static int link_connect_to(struct link *l, const struct sockaddr *sa, socklen_t sa_len)
{
    struct channel *ch = l->ch;
    uint8_t nonce[HELLO_NONCE_BYTES];
    size_t len;
    int rc = 0;
    int fd = link_socket(l, sa->sa_family);

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
    if (rc != 0)
        return rc;
    ch->n_busy++;
    l->state = LINK_HELLO;
    l->hello_busy = l->ping_busy = l->ping_is_out = false;
    l->owed_ns = 0;
    env_timer_start(&ch->e->env, &l->timer, HELLO_MS);
    env_random(&ch->e->env, nonce, sizeof(nonce));
    hello_init(&l->hello, false, ch->keys, ch->role, ch->name, ch->cluster_id,
               ch->incarnation, nonce);
    hello_step(&l->hello, NULL, 0, l->hello_bytes + FRAME_HEADER_BYTES, &len);
    link_hello_send(l, len);
    return 0;
}

/* Tries the next address of the name; after the last one, all of them again later. */
static void link_connect_next(struct link *l)
{
    bool is_refused;

    while (l->next != NULL && !l->ch->is_closing) {
        const struct addrinfo *ai = l->next;
        int rc;

        l->next = ai->ai_next;
        addr_format(ai->ai_addr, l->where);
        rc = link_connect_to(l, ai->ai_addr, ai->ai_addrlen);
        if (rc == 0)
            return;
        link_connect_error(l, rc, error_text(rc));
    }
    is_refused = l->next == NULL && l->tried[0] != '\0' && !l->other_failure;
    link_retry_later(l);
    if (is_refused && !l->ch->is_closing)
        channel_tell(&l->ch->on_refused);
}

/* Takes the present addresses of its name. */
static void link_found(struct link *l, struct addrinfo *ai)
{
    if (l->found != NULL)
        freeaddrinfo(l->found);
    l->found = ai;
    l->next = ai;
    l->tried[0] = '\0';
    l->other_failure = false;
    link_connect_next(l);
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *ai)
{
    struct link *l = container_of(req, struct link, resolve);
    struct channel *ch = l->ch;

    ch->n_busy--;
    if (ch->is_closing) {
        l->state = LINK_IDLE;
        uv_freeaddrinfo(ai);
    } else if (status != 0) {
        link_error(l, "look up %s: %s", ch->addrs[l->addr], uv_strerror(status));
        link_retry_later(l);
    } else {
        link_found(l, ai); /* libuv's is libc's */
    }
    channel_end_if_idle(ch);
}

void link_connect(struct link *l)
{
    struct channel *ch = l->ch;
    struct addrinfo hints = {
        .ai_socktype = SOCK_STREAM,
        .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST,
    };
    struct addrinfo *ai;
    char host[RPC_ADDR_TEXT_MAX], port[8];
    int rc = addr_split(ch->addrs[l->addr], host, port, NULL);

    l->tried_ns = now_of(ch);
    assert(rc == 0); /* checked by rpc_tcp_channel_open() */
    if (getaddrinfo(host, port, &hints, &ai) == 0) { /* numbers: no waiting */
        link_found(l, ai);
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
    char why[32];

    if (l->state == LINK_IDLE) {
        link_connect(l);
        return;
    }
    assert(l->state == LINK_HELLO);
    snprintf(why, sizeof(why), "no Hello for %d s", HELLO_MS / 1000);
    link_connect_error(l, -ETIMEDOUT, why);
    link_fail(l);
}

/* Tries again at the next turn, or when the last attempt is RETRY_MS_MIN ago. */
static void link_connect_now(struct link *l)
{
    struct channel *ch = l->ch;
    uint64_t age_ms = ns_to_ms(now_of(ch) - l->tried_ns);

    l->retry_ms = RETRY_MS_MIN;
    if (l->state == LINK_IDLE) {
        env_timer_start(&ch->e->env, &l->timer,
                        age_ms < RETRY_MS_MIN ? RETRY_MS_MIN - (uint32_t)age_ms : 0);
    } else if (l->state == LINK_HELLO && age_ms >= STALE_MS) {
        /* The machine was down: TCP repeats its packets late. */
        link_connect_error(l, -ETIMEDOUT, "no answer");
        link_fail(l);
    }
}

void channel_connect_now(struct rpc_channel *base)
{
    struct channel *ch = channel_of(base);

    for (unsigned i = 0; i < ch->n_links && !ch->is_closing; i++) {
        if (ch->links[i].state != LINK_UP)
            link_connect_now(&ch->links[i]);
    }
}

void link_init(struct link *l, struct channel *ch, unsigned addr)
{
    l->ch = ch;
    l->addr = addr;
    l->retry_ms = RETRY_MS_MIN;
    list_init(&l->sent);
    env_timer_init(&l->timer, on_link_timer);
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
    uint64_t probe_ns = ms_to_ns(ch->probe_ms);
    uint64_t since = link_silent_since(l);
    uint64_t dead_ns = probe_ns * (others_hear ? DEAD_PROBES_BETTER : DEAD_PROBES);

    if (since != 0 && now_ns - since >= dead_ns) {
        link_error(l, "link to %s: no data for %u ms", ch->addrs[l->addr],
                   (unsigned)ns_to_ms(now_ns - since));
        link_fail(l);
        return;
    }
    if (l->ping_is_out)
        return;
    if (since != 0 ? now_ns - since >= probe_ns / 2
                   : now_ns - l->conn.heard_ns >= probe_ns)
        link_ping(l);
}

void on_channel_tick(struct env_timer *timer)
{
    struct channel *ch = container_of(timer, struct channel, tick);
    uint64_t now_ns = now_of(ch), probe_ns = ms_to_ns(ch->probe_ms);
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
