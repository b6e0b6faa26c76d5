/*
 * rpc_server.c - listens, admits peers that prove a key, turns frames into rpc_calls,
 * sends the answers.
 *
 * In:     connections from anywhere (I8), rpc_reply() from handlers.
 * Out:    config.handler(), one call per request. Thread: the env's loop. This is shell.
 * Keeps:  memory of requests and unsent answers below memory_max plus one frame a
 *         connection (I9); strangers get HELLO_MS, little memory and HELLO_CONNS_MAX
 *         places, of which the oldest is closed when a place is needed.
 * Yours:  the limits below.
 */
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/bufpool.h"
#include "common/base/err.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/rpc/hello.h"
#include "common/rpc/rpc_conn.h"
#include "common/rpc/rpc_tcp.h"

enum {
    CONNS_MAX_DEFAULT = 4096,
    MEMORY_MAX_DEFAULT = 256 << 20,
    HELLO_CONNS_MAX = 256, /* connections that have proved no key yet */
    HELLO_MS = 5000,
    STALL_MS = 30000,     /* limit of a peer without progress in the middle of a frame */
    STALL_FULL_MS = 5000, /* limit while its answers keep others waiting for memory */
    SWEEP_MS = 1000,      /* period of these checks */
    BUSY_PONG_MS = 100,   /* period of pongs to peers that we do not read from */
    ACCEPTS_PER_TURN = 64,
    PORT_TRIES_MAX = 16, /* to find a port that is free on all addresses of a name */
    CALL_OVERHEAD = 512, /* bytes charged for a request besides its own */
    WARNINGS_MAX = 20,   /* per WARNINGS_MS */
    WARNINGS_MS = 10000,
    POOL_IDLE_MAX = 64 << 20,
};

struct listener {
    struct rpc_server *server;
    unsigned addr; /* index of the address that it is for; a name may have several */
    int fd;
    uint16_t port;
    bool is_open; /* poll is initialised */
    uv_poll_t poll;
    bool is_short; /* the last accept lacked descriptors or memory */
};

struct rpc_server {
    struct rpc_server_config config;
    uint8_t cluster_id[RPC_CLUSTER_ID_BYTES];
    uint8_t incarnation[RPC_INCARNATION_BYTES];
    struct env_uv *e;
    struct listener *listeners; /* owned; in the order of the addresses */
    unsigned n_listeners;
    struct list_node conns; /* server_conns, until their sockets' handles are closed */
    struct list_node strangers; /* connections that have proved no key, oldest first */
    unsigned n_conns, n_strangers;
    unsigned n_paused;
    unsigned n_handles; /* listeners whose handles are not closed yet */
    unsigned n_calls;   /* with handlers */
    uint64_t memory_used;
    struct bufpool pool;
    struct list_node finished; /* answers whose connection was gone, for sent() */
    struct env_task task;      /* finished, resume, end */
    struct env_timer sweep, busy;
    uint64_t warnings_from_ns;
    unsigned n_warnings;
    bool is_closing, is_closed;
    void (*closed)(void *arg);
    void *closed_arg;
};

struct server_conn {
    struct conn conn;
    struct list_node node; /* in server->conns */
    struct list_node stranger_node;
    bool is_stranger; /* in server->strangers */
    struct rpc_server *server;
    uint64_t id;
    uint64_t opened_ns;
    struct hello hello;
    bool is_refused;        /* closes as soon as the refusal is sent */
    bool is_ending;         /* reads nothing more; closes when all calls are answered */
    struct list_node calls; /* unanswered */
    /* request whose payload is being received; owned, not in calls */
    struct server_call *rx;
    struct iovec rx_iov;
    struct conn_out hello_out, pong_out;
    bool hello_busy, pong_busy; /* frame is in conn.out */
    uint8_t hello_bytes[FRAME_HEADER_BYTES + HELLO_MSG_MAX];
    uint8_t pong_bytes[FRAME_HEADER_BYTES];
    uint64_t charged; /* bytes of answers in conn.out */
};

/* Request with its handler. */
struct server_call {
    struct rpc_call call;
    struct rpc_server *server;
    struct server_conn *sc; /* NULL: the connection is gone */
    struct list_node node;  /* in sc->calls */
    uint64_t id;
    uint64_t charged;
    uint8_t msg[];
};

/* Answer on its way. */
struct rpc_answer {
    struct conn_out out;
    struct rpc_server *server;
    struct list_node node; /* in server->finished */
    void (*sent)(void *arg);
    void *arg;
    uint64_t charged;
    struct rpc_seg *segs; /* behind head */
    uint8_t head[];
};

static void server_end_if_idle(struct rpc_server *server);

/* ---- log lines ---- */

static void server_warn(struct rpc_server *server, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Logs a line about a peer; strangers must not be able to fill the disk with them. */
static void server_warn(struct rpc_server *server, const char *fmt, ...)
{
    uint64_t now_ns = env_now_ns(&server->e->env);
    char text[512];
    va_list ap;

    if (now_ns - server->warnings_from_ns > ms_to_ns(WARNINGS_MS)) {
        if (server->n_warnings > WARNINGS_MAX)
            log_warn("rpc: %u more warnings about peers were not written",
                     server->n_warnings - WARNINGS_MAX);
        server->warnings_from_ns = now_ns;
        server->n_warnings = 0;
    }
    if (server->n_warnings++ >= WARNINGS_MAX)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    log_warn("rpc: %s", text);
}

/* ---- memory ---- */

static void server_charge(struct rpc_server *server, uint64_t bytes)
{
    server->memory_used += bytes;
}

static bool server_is_full(const struct rpc_server *server)
{
    return server->memory_used > server->config.memory_max;
}

static void server_release(struct rpc_server *server, uint64_t bytes)
{
    assert(bytes <= server->memory_used);
    server->memory_used -= bytes;
    if (server->n_paused > 0)
        env_post(&server->e->env, &server->task);
}

/* Returns true if this connection may go on reading. */
static bool conn_may_read(const struct server_conn *sc)
{
    return !server_is_full(sc->server) &&
           sc->charged <= sc->server->config.memory_max / 4;
}

static void server_resume(struct rpc_server *server)
{
    LIST_FOREACH_SAFE(node, &server->conns) {
        struct server_conn *sc = container_of(node, struct server_conn, node);

        if (server->n_paused == 0 ||
            server->memory_used > server->config.memory_max / 4 * 3)
            return;
        if (sc->conn.is_paused && !sc->conn.is_closed && !sc->is_ending &&
            conn_may_read(sc)) {
            server->n_paused--;
            conn_resume(&sc->conn);
            list_remove(node); /* next time the others are first */
            list_add_tail(&server->conns, node);
        }
    }
}

/* ---- calls and answers ---- */

static void call_free(struct server_call *call)
{
    struct rpc_server *server = call->server;

    bufpool_put(&server->pool, call->call.payload, call->call.payload_len);
    server_release(server, call->charged);
    free(call);
}

static void answer_end(struct rpc_answer *answer)
{
    struct rpc_server *server = answer->server;
    void (*sent)(void *arg) = answer->sent;
    void *arg = answer->arg;

    server_release(server, answer->charged);
    free(answer);
    if (sent != NULL)
        sent(arg);
}

/* Closes a connection that ends, once its calls are answered and the answers sent. */
static void conn_end_look(struct server_conn *sc)
{
    if (sc->is_ending && list_is_empty(&sc->calls) && list_is_empty(&sc->conn.out))
        conn_close(&sc->conn);
}

static void on_answer_sent(struct conn *c, struct conn_out *out)
{
    struct rpc_answer *answer = container_of(out, struct rpc_answer, out);
    struct server_conn *sc = container_of(c, struct server_conn, conn);

    sc->charged -= answer->charged;
    answer_end(answer);
    conn_end_look(sc);
}

static struct rpc_answer *answer_new(const struct server_call *call, uint16_t status,
                                     const void *msg, size_t msg_len,
                                     const struct rpc_seg *segs, unsigned n_segs)
{
    size_t head_len = FRAME_HEADER_BYTES + msg_len;
    size_t segs_at = (head_len + 15) & ~(size_t)15;
    struct rpc_answer *answer =
        malloc(sizeof(*answer) + segs_at + n_segs * sizeof(segs[0]) + 16);
    struct frame frame = {
        .kind = FRAME_ANSWER,
        .op = call->call.op,
        .status = status,
        .id = call->id,
        .msg_len = (uint32_t)msg_len,
    };
    uint64_t charged = CALL_OVERHEAD + msg_len, payload_len = 0;

    assert(answer != NULL);
    memset(answer, 0, sizeof(*answer));
    answer->segs =
        (struct rpc_seg *)(((uintptr_t)answer->head + head_len + 15) & ~(uintptr_t)15);
    for (unsigned i = 0; i < n_segs; i++) {
        answer->segs[i] = segs[i];
        payload_len += segs[i].len;
        charged += segs[i].base != NULL ? segs[i].len : 0;
    }
    assert(payload_len <= RPC_PAYLOAD_MAX && msg_len <= RPC_MSG_MAX);
    frame.payload_len = (uint32_t)payload_len;
    if (msg_len != 0)
        memcpy(answer->head + FRAME_HEADER_BYTES, msg, msg_len);
    frame_build(answer->head, &frame, answer->head + FRAME_HEADER_BYTES);
    answer->server = call->server;
    answer->charged = charged;
    answer->out.head = answer->head;
    answer->out.head_len = head_len;
    answer->out.segs = answer->segs;
    answer->out.n_segs = n_segs;
    answer->out.sent = on_answer_sent;
    return answer;
}

static void server_reply(struct rpc_call *rpc_call, uint16_t status, const void *msg,
                         size_t msg_len, const struct rpc_seg *segs, unsigned n_segs,
                         void (*sent)(void *arg), void *arg)
{
    struct server_call *call = container_of(rpc_call, struct server_call, call);
    struct rpc_server *server = call->server;
    struct server_conn *sc = call->sc;
    struct rpc_answer *answer = answer_new(call, status, msg, msg_len, segs, n_segs);

    assert(sent != NULL || n_segs == 0);
    answer->sent = sent;
    answer->arg = arg;
    server_charge(server, answer->charged);
    if (sc != NULL)
        list_remove(&call->node);
    if (sc != NULL && !sc->conn.is_closed) { /* closed and gone are two turns */
        sc->charged += answer->charged;
        conn_send(&sc->conn, &answer->out, false);
    } else {
        list_add_tail(&server->finished, &answer->node);
        env_post(&server->e->env, &server->task);
    }
    call_free(call);
    server->n_calls--;
    server_end_if_idle(server);
}

static const struct rpc_call_ops call_ops = { .reply = server_reply };

static struct server_call *call_new(struct server_conn *sc, const uint8_t *msg)
{
    const struct frame *f = &sc->conn.frame;
    struct server_call *call = malloc(sizeof(*call) + f->msg_len);

    if (call == NULL)
        return NULL;
    *call = (struct server_call){
        .call = {
            .ops = &call_ops,
            .op = f->op,
            .role = sc->hello.role,
            .session = f->session,
            .id = f->id,
            .start = f->start,
            .conn_id = sc->id,
            .msg = call->msg,
            .msg_len = f->msg_len,
            .payload_len = f->payload_len,
        },
        .server = sc->server,
        .sc = sc,
        .id = f->id,
        .charged = CALL_OVERHEAD + f->msg_len + f->payload_len,
    };
    if (f->msg_len != 0)
        memcpy(call->msg, msg, f->msg_len);
    if (f->payload_len != 0) {
        call->call.payload = bufpool_get(&sc->server->pool, f->payload_len);
        if (call->call.payload == NULL) {
            free(call);
            return NULL;
        }
    }
    return call;
}

/* Gives a complete request to the handler. */
static void call_start(struct server_conn *sc, struct server_call *call)
{
    struct rpc_server *server = sc->server;

    list_add_tail(&sc->calls, &call->node);
    server->n_calls++;
    server->config.handler(server->config.arg, &call->call);
}

/* ---- Hello, pings ---- */

static void on_hello_sent(struct conn *c, struct conn_out *out)
{
    struct server_conn *sc = container_of(c, struct server_conn, conn);

    (void)out;
    sc->hello_busy = false;
    if (sc->is_refused)
        conn_close(c);
    conn_end_look(sc);
}

static void hello_send(struct server_conn *sc, size_t len)
{
    struct frame frame = { .kind = FRAME_HELLO, .msg_len = (uint32_t)len };

    frame_build(sc->hello_bytes, &frame, sc->hello_bytes + FRAME_HEADER_BYTES);
    sc->hello_out.head = sc->hello_bytes;
    sc->hello_out.head_len = FRAME_HEADER_BYTES + len;
    sc->hello_out.sent = on_hello_sent;
    sc->hello_busy = true;
    conn_send(&sc->conn, &sc->hello_out, false);
}

static void stranger_forget(struct server_conn *sc)
{
    if (!sc->is_stranger)
        return;
    sc->is_stranger = false;
    list_remove(&sc->stranger_node);
    sc->server->n_strangers--;
}

static int on_hello_msg(struct server_conn *sc, const uint8_t *msg)
{
    struct hello *h = &sc->hello;
    size_t len;

    if (sc->hello_busy)
        return -EBADMSG; /* the peer spoke before it was answered */
    hello_step(h, msg, sc->conn.frame.msg_len, sc->hello_bytes + FRAME_HEADER_BYTES,
               &len);
    if (h->state == HELLO_DONE) {
        stranger_forget(sc);
        log_debug("rpc: %s is %s (%s)", sc->conn.peer, h->peer_name,
                  h->role == RPC_ROLE_NODE ? "node" : "client");
        if (sc->server->config.conn_opened != NULL)
            sc->server->config.conn_opened(sc->server->config.arg, sc->id);
    } else if (h->state == HELLO_FAILED) {
        server_warn(sc->server, "refused %s (%s): %s", sc->conn.peer,
                    h->peer_name[0] == '\0' ? "no name" : h->peer_name,
                    h->is_wrong_key ? "it does not know our key" : h->error);
        sc->is_refused = true;
        if (len == 0)
            return -EBADMSG;
    }
    if (len != 0)
        hello_send(sc, len);
    return 0;
}

static void on_pong_sent(struct conn *c, struct conn_out *out)
{
    struct server_conn *sc = container_of(c, struct server_conn, conn);

    (void)out;
    sc->pong_busy = false;
    conn_end_look(sc);
}

static void pong_send(struct server_conn *sc, uint64_t id)
{
    struct frame frame = { .kind = FRAME_PONG, .id = id };

    if (sc->pong_busy)
        return; /* the pong under way shows the peer all that another one would */
    frame_build(sc->pong_bytes, &frame, NULL);
    sc->pong_out.head = sc->pong_bytes;
    sc->pong_out.head_len = FRAME_HEADER_BYTES;
    sc->pong_out.sent = on_pong_sent;
    sc->pong_busy = true;
    conn_send(&sc->conn, &sc->pong_out, true);
}

/* Shows peers that we do not read from that we are alive. */
static void on_busy_timer(struct env_timer *timer)
{
    struct rpc_server *server = container_of(timer, struct rpc_server, busy);

    LIST_FOREACH(node, &server->conns) {
        struct server_conn *sc = container_of(node, struct server_conn, node);

        if (sc->conn.is_paused && !sc->conn.is_closed)
            pong_send(sc, 0);
    }
    if (server->n_paused > 0)
        env_timer_start(&server->e->env, timer, BUSY_PONG_MS);
}

static void paused_add(struct rpc_server *server)
{
    if (server->n_paused++ == 0)
        env_timer_start(&server->e->env, &server->busy, BUSY_PONG_MS);
}

/* ---- a connection ---- */

static int server_on_header(struct conn *c)
{
    struct server_conn *sc = container_of(c, struct server_conn, conn);
    const struct frame *f = &c->frame;

    if (sc->is_refused)
        return -EBADMSG;
    if (sc->hello.state != HELLO_DONE)
        return f->kind == FRAME_HELLO ? 0 : -EBADMSG;
    if (f->kind == FRAME_PING)
        return 0;
    if (f->kind != FRAME_REQUEST)
        return -EBADMSG;
    if (!conn_may_read(sc)) {
        paused_add(sc->server);
        return -EAGAIN;
    }
    return 0;
}

static int server_on_frame(struct conn *c, const uint8_t *msg)
{
    struct server_conn *sc = container_of(c, struct server_conn, conn);
    struct server_call *call;

    if (c->frame.kind == FRAME_HELLO)
        return on_hello_msg(sc, msg);
    if (c->frame.kind == FRAME_PING) {
        pong_send(sc, c->frame.id);
        return 0;
    }
    call = call_new(sc, msg);
    if (call == NULL)
        return -ENOMEM;
    server_charge(sc->server, call->charged);
    if (call->call.payload_len == 0) {
        call_start(sc, call);
        return 0;
    }
    sc->rx = call;
    sc->rx_iov = (struct iovec){ call->call.payload, call->call.payload_len };
    conn_receive(c, &sc->rx_iov, 1);
    return 0;
}

static int server_on_filled(struct conn *c)
{
    (void)c;
    assert(!"the payload buffer holds all of the payload");
    return -EIO;
}

static int server_on_payload(struct conn *c)
{
    struct server_conn *sc = container_of(c, struct server_conn, conn);
    struct server_call *call = sc->rx;

    sc->rx = NULL;
    call_start(sc, call);
    return 0;
}

static void server_on_broken(struct conn *c, int rc, const char *why)
{
    struct server_conn *sc = container_of(c, struct server_conn, conn);

    if (rc == -ROZO_EUNKNOWN_FORMAT || rc == -EBADMSG || rc == -ENODATA) {
        if (!sc->is_refused) /* the refusal was logged already */
            server_warn(sc->server, "closed %s: %s", c->peer, why);
    } else {
        log_debug("rpc: closed %s: %s", c->peer, why);
    }
    conn_close(c);
}

/* Handles the end of a socket: calls stay with their handlers, answers end. */
static void server_on_closed(struct conn *c)
{
    struct server_conn *sc = container_of(c, struct server_conn, conn);
    struct rpc_server *server = sc->server;

    LIST_FOREACH_SAFE(node, &sc->calls) {
        container_of(node, struct server_call, node)->sc = NULL;
        list_remove(node);
    }
    LIST_FOREACH_SAFE(node, &c->out) {
        struct conn_out *out = container_of(node, struct conn_out, node);

        list_remove(node);
        if (out->sent == on_answer_sent)
            list_add_tail(&server->finished,
                          &container_of(out, struct rpc_answer, out)->node);
    }
    if (sc->rx != NULL)
        call_free(sc->rx);
    if (c->is_paused)
        server->n_paused--;
    stranger_forget(sc);
    if (sc->hello.state == HELLO_DONE && server->config.conn_closed != NULL)
        server->config.conn_closed(server->config.arg, sc->id);
    server->n_conns--;
    list_remove(&sc->node);
    free(sc);
    env_post(&server->e->env, &server->task);
}

static const struct conn_ops server_conn_ops = {
    .on_header = server_on_header,
    .on_frame = server_on_frame,
    .on_filled = server_on_filled,
    .on_payload = server_on_payload,
    .on_broken = server_on_broken,
    .on_closed = server_on_closed,
};

/* Closes the oldest stranger when all their places are taken, so that strangers cannot
 * keep friends out. A peer that knows a key needs its place for two round trips only. */
static void stranger_make_room(struct rpc_server *server)
{
    struct server_conn *sc;

    if (server->n_strangers < HELLO_CONNS_MAX)
        return;
    sc = container_of(server->strangers.next, struct server_conn, stranger_node);
    server_warn(server, "closed %s: no Hello yet, and others wait", sc->conn.peer);
    stranger_forget(sc);
    conn_close(&sc->conn);
}

static void server_accept(struct rpc_server *server, int fd)
{
    static atomic_uint_fast64_t last_id;
    struct server_conn *sc;
    uint8_t nonce[HELLO_NONCE_BYTES];

    if (server->n_conns >= server->config.conns_max) {
        server_warn(server, "refused a connection: %u are open, %u of them without Hello",
                    server->n_conns, server->n_strangers);
        close(fd);
        return;
    }
    stranger_make_room(server);
    socket_tune(fd);
    sc = calloc(1, sizeof(*sc));
    if (sc == NULL || conn_open(&sc->conn, server->e, fd, false, &server_conn_ops) != 0) {
        free(sc);
        close(fd);
        return;
    }
    sc->server = server;
    sc->id = atomic_fetch_add(&last_id, 1) + 1;
    sc->opened_ns = env_now_ns(&server->e->env);
    list_init(&sc->calls);
    list_add_tail(&server->conns, &sc->node);
    server->n_conns++;
    sc->is_stranger = true;
    list_add_tail(&server->strangers, &sc->stranger_node);
    server->n_strangers++;
    env_random(&server->e->env, nonce, sizeof(nonce));
    hello_init(&sc->hello, true, server->config.keys, 0, server->config.name,
               server->cluster_id, server->incarnation, nonce);
}

/* ---- listening ---- */

static int listener_accept(struct listener *l)
{
    int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0 && env_uv_frees_fds(l->server->e, errno))
        fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    return fd;
}

static void on_listener(uv_poll_t *handle, int status, int events)
{
    struct listener *l = handle->data;

    (void)events;
    if (status < 0)
        return;
    for (unsigned i = 0; i < ACCEPTS_PER_TURN; i++) {
        int fd = listener_accept(l);

        if (fd >= 0) {
            l->is_short = false;
            server_accept(l->server, fd);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
            if (!l->is_short) /* one line until an accept succeeds */
                server_warn(l->server, "accept: %s", strerror(errno));
            l->is_short = true;
            uv_poll_stop(handle); /* the sweep starts it again */
        }
        return;
    }
}

static const char *conn_stall(const struct server_conn *sc, uint64_t now_ns)
{
    const struct conn *c = &sc->conn;
    bool in_frame = c->rx != CONN_RX_HEADER || c->in_len != c->in_pos;
    bool in_the_way = sc->charged != 0 && server_is_full(sc->server);
    uint64_t out_ms = in_the_way ? STALL_FULL_MS : STALL_MS;

    if (sc->hello.state != HELLO_DONE)
        return now_ns - sc->opened_ns > ms_to_ns(HELLO_MS) ? "no Hello in time" : NULL;
    if (c->out_bytes != 0 && now_ns - c->drained_ns > ms_to_ns(out_ms))
        return "it does not receive its answers";
    if (in_frame && !c->is_paused && now_ns - c->heard_ns > ms_to_ns(STALL_MS))
        return "it stopped in the middle of a request";
    return NULL;
}

static void on_sweep_timer(struct env_timer *timer)
{
    struct rpc_server *server = container_of(timer, struct rpc_server, sweep);
    uint64_t now_ns = env_now_ns(&server->e->env);

    LIST_FOREACH(node, &server->conns) {
        struct server_conn *sc = container_of(node, struct server_conn, node);
        const char *why = sc->conn.is_closed ? NULL : conn_stall(sc, now_ns);

        if (why != NULL) {
            server_warn(server, "closed %s: %s", sc->conn.peer, why);
            conn_close(&sc->conn);
        }
    }
    for (unsigned i = 0; i < server->n_listeners; i++)
        uv_poll_start(&server->listeners[i].poll, UV_READABLE, on_listener);
    env_timer_start(&server->e->env, timer, SWEEP_MS);
}

static void sockaddr_set_port(struct sockaddr_storage *sa, uint16_t port)
{
    if (sa->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)sa)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)sa)->sin_port = htons(port);
}

/* Binds a listener. port: 0 for the one that ai has. v6_only: [::] leaves IPv4 to another
 * listener. */
static int listener_bind(struct listener *l, const struct addrinfo *ai, uint16_t port,
                         int v6_only)
{
    struct sockaddr_storage sa;
    socklen_t sa_len = sizeof(sa);
    int on = 1;

    l->fd = socket(ai->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (l->fd < 0)
        return -errno;
    setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (ai->ai_family == AF_INET6)
        setsockopt(l->fd, IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof(v6_only));
    memcpy(&sa, ai->ai_addr, ai->ai_addrlen);
    if (port != 0)
        sockaddr_set_port(&sa, port);
    if (bind(l->fd, (struct sockaddr *)&sa, ai->ai_addrlen) != 0 ||
        listen(l->fd, 512) != 0 ||
        getsockname(l->fd, (struct sockaddr *)&sa, &sa_len) != 0)
        return -errno;
    l->port = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
                                             : ((struct sockaddr_in *)&sa)->sin_port);
    return 0;
}

static struct listener *listener_add(struct rpc_server *server, unsigned addr)
{
    size_t n = server->n_listeners + 1;
    struct listener *list = realloc(server->listeners, n * sizeof(*list));

    if (list == NULL)
        return NULL;
    server->listeners = list;
    list[n - 1] = (struct listener){ .server = server, .addr = addr, .fd = -1 };
    server->n_listeners++;
    return &list[n - 1];
}

static void listener_drop_last(struct rpc_server *server)
{
    struct listener *l = &server->listeners[--server->n_listeners];

    if (l->fd >= 0)
        close(l->fd);
}

/* Returns true if this machine does not have that address, though its name does. */
static bool is_elsewhere(int rc)
{
    return rc == -EADDRNOTAVAIL || rc == -EAFNOSUPPORT;
}

/* Returns true for a repeated address: getaddrinfo() gives one twice if /etc/hosts
 * does. */
static bool is_repeated(const struct addrinfo *found, const struct addrinfo *ai)
{
    for (const struct addrinfo *x = found; x != ai; x = x->ai_next) {
        if (x->ai_addrlen == ai->ai_addrlen &&
            memcmp(x->ai_addr, ai->ai_addr, ai->ai_addrlen) == 0)
            return true;
    }
    return false;
}

/* Binds all addresses of a name that this machine has, with one port. On failure `at` is
 * the address that the error is about. */
static int listeners_bind(struct rpc_server *server, unsigned addr,
                          const struct addrinfo *found, char at[RPC_ADDR_TEXT_MAX])
{
    unsigned n_before = server->n_listeners;
    int rc = 0, elsewhere = -EADDRNOTAVAIL;
    uint16_t port = 0;

    for (const struct addrinfo *ai = found; ai != NULL; ai = ai->ai_next) {
        struct listener *l;

        if (is_repeated(found, ai))
            continue;
        l = listener_add(server, addr);
        rc = l == NULL ? -ENOMEM : listener_bind(l, ai, port, found->ai_next != NULL);
        if (rc == 0) {
            port = l->port;
            continue;
        }
        addr_format(ai->ai_addr, at);
        if (l != NULL)
            listener_drop_last(server);
        if (!is_elsewhere(rc))
            break;
        elsewhere = rc;
        rc = 0;
    }
    if (rc == 0 && server->n_listeners == n_before)
        rc = elsewhere;
    while (rc != 0 && server->n_listeners > n_before)
        listener_drop_last(server);
    return rc;
}

static int listeners_open(struct rpc_server *server, unsigned addr, const char *text,
                          struct err *err)
{
    const struct addrinfo hints = {
        .ai_socktype = SOCK_STREAM,
        .ai_flags = AI_PASSIVE | AI_NUMERICSERV,
    };
    char host[RPC_ADDR_TEXT_MAX], port[8], at[RPC_ADDR_TEXT_MAX] = "";
    struct addrinfo *found = NULL;
    int rc = addr_split(text, host, port, err);

    if (rc != 0)
        return err_wrap(err, rc, "listen");
    rc = getaddrinfo(strcmp(host, "*") == 0 ? NULL : host, port, &hints, &found);
    if (rc != 0)
        return err_set(err, -EINVAL, "listen on %s: %s", text, gai_strerror(rc));
    /* tried again if some other process has that port */
    for (unsigned i = 0; i < PORT_TRIES_MAX; i++) {
        rc = listeners_bind(server, addr, found, at);
        if (rc != -EADDRINUSE || atoi(port) != 0)
            break;
    }
    freeaddrinfo(found);
    if (rc == 0)
        return 0;
    return strcmp(at, text) == 0 || at[0] == '\0'
               ? err_set(err, rc, "listen on %s: %s", text, error_text(rc))
               : err_set(err, rc, "listen on %s: %s: %s", text, at, error_text(rc));
}

/* Starts a listener. All sockets are bound: from here on only a lack of memory can
 * fail. */
static int listener_start(struct rpc_server *server, struct listener *l)
{
    int rc = uv_poll_init(server->e->loop, &l->poll, l->fd);

    if (rc != 0)
        return rc;
    l->is_open = true;
    l->poll.data = l;
    server->n_handles++;
    uv_poll_start(&l->poll, UV_READABLE, on_listener);
    return 0;
}

/* ---- life ---- */

static void server_free(struct rpc_server *server)
{
    bufpool_trim(&server->pool);
    free(server->listeners);
    free(server);
}

/* Posts the next step of closing: closed() once sockets are gone, free once handlers have
 * answered, too. */
static void server_end_if_idle(struct rpc_server *server)
{
    if (server->is_closing &&
        (server->is_closed ? server->n_calls == 0
                           : server->n_conns + server->n_handles == 0))
        env_post(&server->e->env, &server->task);
}

static void server_end(struct rpc_server *server)
{
    if (!server->is_closing || server->n_conns != 0 || server->n_handles != 0)
        return;
    if (!server->is_closed) {
        server->is_closed = true;
        env_timer_stop(&server->e->env, &server->busy);
        if (server->closed != NULL)
            server->closed(server->closed_arg);
    }
    if (server->n_calls == 0 && list_is_empty(&server->finished) && !server->task.queued)
        server_free(server);
}

static void on_server_task(struct env_task *task)
{
    struct rpc_server *server = container_of(task, struct rpc_server, task);

    while (!list_is_empty(&server->finished)) {
        struct rpc_answer *answer =
            container_of(server->finished.next, struct rpc_answer, node);

        list_remove(&answer->node);
        answer_end(answer);
    }
    server_resume(server);
    server_end(server);
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct rpc_server *server = ((struct listener *)handle->data)->server;

    server->n_handles--;
    server_end_if_idle(server);
}

static void listeners_close(struct rpc_server *server)
{
    for (unsigned i = 0; i < server->n_listeners; i++) {
        struct listener *l = &server->listeners[i];

        if (l->is_open)
            uv_close((uv_handle_t *)&l->poll, on_listener_closed);
        if (l->fd >= 0)
            close(l->fd);
    }
}

static struct rpc_server *server_new(struct env_uv *env,
                                     const struct rpc_server_config *config)
{
    struct rpc_server *server = calloc(1, sizeof(*server));

    if (server == NULL)
        return NULL;
    server->config = *config;
    if (server->config.conns_max == 0)
        server->config.conns_max = CONNS_MAX_DEFAULT;
    if (server->config.memory_max == 0)
        server->config.memory_max = MEMORY_MAX_DEFAULT;
    server->e = env;
    server->pool.idle_max_bytes = POOL_IDLE_MAX;
    server->task.fn = on_server_task;
    list_init(&server->conns);
    list_init(&server->strangers);
    list_init(&server->finished);
    env_timer_init(&server->sweep, on_sweep_timer);
    env_timer_init(&server->busy, on_busy_timer);
    rpc_server_set_cluster_id(server, config->cluster_id);
    if (config->incarnation != NULL)
        memcpy(server->incarnation, config->incarnation, sizeof(server->incarnation));
    return server;
}

int rpc_server_open(struct env_uv *env, const struct rpc_server_config *config,
                    const char *const *addrs, unsigned n_addrs, struct rpc_server **out,
                    struct err *err)
{
    struct rpc_server *server;
    int rc = 0;

    if (!config->keys->has_node || !config->keys->has_client)
        return err_set(err, -EINVAL, "a server needs the node key and the client key");
    if (n_addrs == 0)
        return err_set(err, -EINVAL, "no address to listen on");
    server = server_new(env, config);
    if (server == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    for (unsigned i = 0; rc == 0 && i < n_addrs; i++)
        rc = listeners_open(server, i, addrs[i], err);
    if (rc != 0) { /* libuv has no handle of it yet */
        listeners_close(server);
        server_free(server);
        return rc;
    }
    for (unsigned i = 0; rc == 0 && i < server->n_listeners; i++)
        rc = listener_start(server, &server->listeners[i]);
    if (rc != 0) {
        rpc_server_close(server, NULL, NULL);
        return err_set(err, rc, "listen: %s", error_text(rc));
    }
    env_timer_start(&env->env, &server->sweep, SWEEP_MS);
    *out = server;
    return 0;
}

uint16_t rpc_server_port(const struct rpc_server *server, unsigned addr_index)
{
    for (unsigned i = 0; i < server->n_listeners; i++) {
        if (server->listeners[i].addr == addr_index)
            return server->listeners[i].port;
    }
    abort(); /* each address has a listener */
}

void rpc_server_set_cluster_id(struct rpc_server *server, const uint8_t *cluster_id)
{
    if (cluster_id != NULL)
        memcpy(server->cluster_id, cluster_id, sizeof(server->cluster_id));
}

void rpc_server_set_conns_max(struct rpc_server *server, unsigned conns_max)
{
    server->config.conns_max = conns_max;
}

void rpc_server_end_conns(struct rpc_server *server)
{
    LIST_FOREACH(node, &server->conns) {
        struct server_conn *sc = container_of(node, struct server_conn, node);

        if (sc->conn.is_closed || sc->is_ending)
            continue;
        sc->is_ending = true;
        if (!sc->conn.is_paused)
            paused_add(server);
        conn_pause(&sc->conn);
        conn_end_look(sc);
    }
}

void rpc_server_close(struct rpc_server *server, void (*closed)(void *arg), void *arg)
{
    assert(!server->is_closing);
    server->is_closing = true;
    server->closed = closed;
    server->closed_arg = arg;
    env_timer_stop(&server->e->env, &server->sweep);
    listeners_close(server);
    LIST_FOREACH(node, &server->conns)
        conn_close(&container_of(node, struct server_conn, node)->conn);
    env_post(&server->e->env, &server->task);
}
