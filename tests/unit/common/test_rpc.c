/*
 * test_rpc.c - server and channel over real loopback sockets, and peers that misbehave.
 *
 * Method: one loop drives both sides; every wait is for a condition, with a time limit.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/list.h"
#include "common/base/log.h"
#include "common/rpc/frame.h"
#include "common/rpc/hello.h"
#include "common/rpc/rpc_tcp.h"
#include "tests/unit/unit.h"

enum {
    WAIT_MS = 20000,
    /* Requests that the test server knows. */
    OP_ECHO = 1, /* message and payload come back, status 7 */
    OP_HOLD = 2, /* kept in fixture.held */
    OP_FILE =
        3, /* payload: 100 bytes of memory, then the file from 5000 on, then 10 bytes */
    OP_SHORT_FILE = 4, /* announces more bytes than the file has */
    OP_SUM = 5,        /* message: sum of the payload bytes */
    OP_BIG = 6,        /* payload of `session` bytes, pattern */
    /* answered by a task, so after the bytes received with it were parsed */
    OP_POSTED = 7,
};

static const struct rpc_keys keys = { true, true, { 1, 2, 3 }, { 4, 5, 6 } };
static const struct rpc_keys other_keys = { true, true, { 9 }, { 9 } };

enum { HELD_MAX = 64, FILE_BYTES = 300000 };

struct fixture {
    uv_loop_t loop;
    struct env_uv e;
    struct rpc_server *server;
    struct rpc_channel *ch;
    char addr[2][RPC_ADDR_TEXT_MAX];
    struct rpc_call *held[HELD_MAX];
    unsigned n_held, n_handled, n_conn_opened, n_conn_closed;
    bool ends_conns;            /* OP_HOLD ends all connections */
    unsigned n_down, n_refused; /* news of the channel */
    unsigned n_sent;            /* calls of rpc_reply()'s sent() */
    int fd;                     /* file with FILE_BYTES of pattern */
    uint8_t *big;
    bool server_closed, channel_closed;
    uint64_t last_conn;
    enum rpc_role last_role;
    struct rpc_call *posted; /* call that waits for posted_task */
    struct env_task posted_task;
    /* id for servers and channels opened from now on; NULL: unknown */
    const char *cluster_id;
    /* incarnation for servers and channels opened from now on; NULL: unknown */
    const uint8_t *incarnation;
};

/* The clock of the env may be moved forward: timers do not see it, comparisons of times
 * do. */
static const struct env_ops *real_ops;
static struct env_ops ahead_ops; /* real_ops with another now_ns */
static uint64_t ahead_ns;

static uint64_t ahead_now_ns(struct env *env)
{
    return real_ops->now_ns(env) + ahead_ns;
}

static uint8_t pattern(size_t i)
{
    return (uint8_t)(i * 7 + i / 251);
}

static void on_reply_sent(void *arg)
{
    ++*(unsigned *)arg;
}

static void reply_file(struct fixture *f, struct rpc_call *call, size_t len)
{
    const struct rpc_seg segs[] = {
        { .base = f->big, .len = 100 },
        { .fd = f->fd, .offset = 5000, .len = len },
        { .base = f->big + 7, .len = 10 },
    };

    rpc_reply(call, 0, "file", 4, segs, 3, on_reply_sent, &f->n_sent);
}

static void on_posted(struct env_task *task)
{
    struct fixture *f = container_of(task, struct fixture, posted_task);
    struct rpc_seg seg = { .base = f->big, .len = 1000 };

    rpc_reply(f->posted, 0, "late", 4, &seg, 1, on_reply_sent, &f->n_sent);
    f->posted = NULL;
}

static void on_call(void *arg, struct rpc_call *call)
{
    struct fixture *f = arg;
    uint32_t sum = 0;

    f->n_handled++;
    f->last_conn = call->conn_id;
    f->last_role = call->role;
    if (call->payload_len != 0)
        assert_int_equal((uintptr_t)call->payload % 4096, 0);
    switch (call->op) {
    case OP_ECHO: {
        struct rpc_seg seg = { .base = f->big, .len = call->payload_len };

        if (call->payload_len != 0) /* a pattern, so `big` has the same bytes */
            assert_memory_equal(call->payload, f->big, call->payload_len);
        rpc_reply(call, 7, call->msg, call->msg_len, &seg, call->payload_len != 0,
                  on_reply_sent, &f->n_sent);
        return;
    }
    case OP_HOLD:
        assert_true(f->n_held < HELD_MAX);
        f->held[f->n_held++] = call;
        if (f->ends_conns)
            rpc_server_end_conns(f->server);
        return;
    case OP_FILE:
        reply_file(f, call, FILE_BYTES - 5000);
        return;
    case OP_SHORT_FILE:
        reply_file(f, call, FILE_BYTES);
        return;
    case OP_SUM:
        for (size_t i = 0; i < call->payload_len; i++)
            sum += call->payload[i];
        rpc_reply(call, 0, &sum, sizeof(sum), NULL, 0, NULL, NULL);
        return;
    case OP_BIG: {
        struct rpc_seg seg = { .base = f->big, .len = call->session };

        rpc_reply(call, 0, NULL, 0, &seg, 1, on_reply_sent, &f->n_sent);
        return;
    }
    case OP_POSTED:
        f->posted = call;
        f->posted_task.fn = on_posted;
        env_post(&f->e.env, &f->posted_task);
        return;
    default:
        rpc_reply_status(call, 3);
    }
}

static void on_conn_opened(void *arg, uint64_t conn_id)
{
    (void)conn_id;
    ((struct fixture *)arg)->n_conn_opened++;
}

static void on_conn_closed(void *arg, uint64_t conn_id)
{
    (void)conn_id;
    ((struct fixture *)arg)->n_conn_closed++;
}

static void set_flag(void *arg)
{
    *(bool *)arg = true;
}

static void on_guard(uv_timer_t *t)
{
    (void)t;
}

/* Runs the loop for one turn, at most 5 ms. */
static void turn(struct fixture *f)
{
    uv_timer_t guard;

    uv_timer_init(&f->loop, &guard);
    uv_timer_start(&guard, on_guard, 5, 0);
    uv_run(&f->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&guard, NULL);
    uv_run(&f->loop, UV_RUN_NOWAIT);
}

#define WAIT_FOR(f, condition)                                                     \
    do {                                                                           \
        uint64_t wait_until = uv_hrtime() + WAIT_MS * 1000000ull;                  \
        while (!(condition)) {                                                     \
            if (uv_hrtime() > wait_until)                                          \
                fail_msg("line %d: waited in vain for: %s", __LINE__, #condition); \
            turn(f);                                                               \
        }                                                                          \
    } while (0)

static void pass_ms(struct fixture *f, unsigned ms)
{
    uint64_t until = uv_hrtime() + ms * 1000000ull;

    while (uv_hrtime() < until)
        turn(f);
}

static void server_open(struct fixture *f, uint64_t memory_max, uint16_t port)
{
    const struct rpc_server_config config = {
        .keys = &keys,
        .name = "server",
        .memory_max = memory_max,
        .handler = on_call,
        .arg = f,
        .conn_opened = on_conn_opened,
        .conn_closed = on_conn_closed,
        .cluster_id = (const uint8_t *)f->cluster_id,
        .incarnation = f->incarnation,
    };
    char first[32];
    const char *addrs[] = { first, "[::1]:0" };
    struct err err = { 0 };
    int rc;

    snprintf(first, sizeof(first), "127.0.0.1:%u", port);
    rc = rpc_server_open(&f->e, &config, addrs, 2, &f->server, &err);
    if (rc == -EADDRNOTAVAIL || rc == -EAFNOSUPPORT) { /* no IPv6 on this machine */
        addrs[1] = "127.0.0.1:0";
        rc = rpc_server_open(&f->e, &config, addrs, 2, &f->server, &err);
    }
    if (rc != 0)
        fail_msg("%s", err.text);
    snprintf(f->addr[0], sizeof(f->addr[0]), "127.0.0.1:%u",
             rpc_server_port(f->server, 0));
    snprintf(f->addr[1], sizeof(f->addr[1]),
             addrs[1][0] == '[' ? "[::1]:%u" : "127.0.0.1:%u",
             rpc_server_port(f->server, 1));
}

static struct rpc_channel *channel_open(struct fixture *f, const struct rpc_keys *with,
                                        unsigned n_addrs, unsigned links,
                                        uint32_t probe_ms)
{
    const char *addrs[] = { f->addr[0], f->addr[1] };
    const struct rpc_channel_config config = {
        .keys = with,
        .role = RPC_ROLE_CLIENT,
        .name = "client",
        .addrs = addrs,
        .n_addrs = n_addrs,
        .links_per_addr = links,
        .probe_ms = probe_ms,
        .queue_max = 16 << 20,
        .cluster_id = (const uint8_t *)f->cluster_id,
        .incarnation = f->incarnation,
    };
    struct rpc_channel *ch;
    struct err err = { 0 };

    if (rpc_tcp_channel_open(&f->e, &config, &ch, &err) != 0)
        fail_msg("%s", err.text);
    return ch;
}

static void setup_loop(struct fixture *f)
{
    FILE *file = tmpfile();

    memset(f, 0, sizeof(*f));
    assert_int_equal(uv_loop_init(&f->loop), 0);
    assert_int_equal(env_uv_init(&f->e, &f->loop), 0);
    if (ahead_ops.now_ns == NULL) {
        real_ops = f->e.env.ops;
        ahead_ops = *real_ops;
        ahead_ops.now_ns = ahead_now_ns;
    }
    ahead_ns = 0;
    f->e.env.ops = &ahead_ops;
    f->big = malloc(RPC_PAYLOAD_MAX);
    for (size_t i = 0; i < RPC_PAYLOAD_MAX; i++)
        f->big[i] = pattern(i);
    f->fd = dup(fileno(file));
    fclose(file);
    assert_int_equal(pwrite(f->fd, f->big, FILE_BYTES, 0), FILE_BYTES);
}

static void setup(struct fixture *f)
{
    setup_loop(f);
    server_open(f, 0, 0);
    f->ch = channel_open(f, &keys, 1, 1, 0);
}

static void channel_close(struct fixture *f)
{
    f->channel_closed = false;
    rpc_tcp_channel_close(f->ch, set_flag, &f->channel_closed);
    WAIT_FOR(f, f->channel_closed);
    f->ch = NULL;
}

static void server_close(struct fixture *f)
{
    f->server_closed = false;
    rpc_server_close(f->server, set_flag, &f->server_closed);
    WAIT_FOR(f, f->server_closed);
    f->server = NULL;
}

static void teardown(struct fixture *f)
{
    if (f->ch != NULL)
        channel_close(f);
    if (f->server != NULL)
        server_close(f);
    turn(f);
    env_uv_close(&f->e);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    close(f->fd);
    free(f->big);
}

/* A request that a test sends. */
struct ask {
    struct rpc_request rq;
    struct fixture *f;
    struct iovec iov[4];
    unsigned n_done;
    int rc;
    uint8_t *got; /* copy of answer_payload, owned */
    size_t got_len;
    char msg[64];
    size_t msg_len;
    /* memory for place() */
    uint8_t head[64];
    uint8_t *room;
    unsigned n_split, n_placed;
    int place_rc;
    struct ask *cancel_in_place;
};

static void on_done(struct rpc_request *rq, int rc)
{
    struct ask *a = rq->arg;

    a->n_done++;
    a->rc = rc;
    if (rc != 0)
        return;
    a->msg_len = rq->answer_msg_len;
    if (rq->answer_msg_len <= sizeof(a->msg) && rq->answer_msg_len != 0)
        memcpy(a->msg, rq->answer_msg, rq->answer_msg_len);
    a->got_len = rq->answer_payload_len;
    if (rq->answer_payload != NULL) {
        a->got = malloc(a->got_len);
        memcpy(a->got, rq->answer_payload, a->got_len);
    }
}

/* Gives the payload n_split pieces of uneven sizes, the first one empty. */
static int on_place(struct rpc_request *rq, size_t rest, struct iovec *iov)
{
    struct ask *a = rq->arg;
    size_t at = 0;
    unsigned n = 0;

    a->n_placed++;
    if (a->cancel_in_place != NULL)
        rpc_cancel(&a->cancel_in_place->rq);
    if (a->place_rc != 0)
        return a->place_rc;
    iov[n++] = (struct iovec){ a->room, 0 };
    while (at < rest) {
        size_t len = n + 1 >= a->n_split ? rest - at : (at * 31 + 1) % 4097 + 1;

        if (len > rest - at)
            len = rest - at;
        iov[n++] = (struct iovec){ a->room + at, len };
        at += len;
    }
    return (int)n;
}

static void ask_send(struct fixture *f, struct ask *a, uint16_t op, const char *msg,
                     size_t payload)
{
    a->f = f;
    a->n_done = 0;
    a->rq.op = op;
    if (a->rq.deadline_ms == 0)
        a->rq.deadline_ms = WAIT_MS;
    a->rq.msg = msg;
    a->rq.msg_len = msg == NULL ? 0 : strlen(msg);
    a->iov[0] = (struct iovec){ f->big, payload / 3 };
    a->iov[1] = (struct iovec){ f->big, 0 };
    a->iov[2] = (struct iovec){ f->big + payload / 3, payload - payload / 3 };
    a->rq.payload = a->iov;
    a->rq.n_payload = payload == 0 ? 0 : 3;
    a->rq.done = on_done;
    a->rq.arg = a;
    rpc_send(f->ch, &a->rq);
    assert_int_equal(a->n_done, 0); /* never called inside the call */
}

static void ask_wait(struct fixture *f, struct ask *a)
{
    WAIT_FOR(f, a->n_done != 0);
    assert_int_equal(a->n_done, 1);
}

static void ask_echo(struct fixture *f, size_t payload)
{
    struct ask a = { 0 };

    ask_send(f, &a, OP_ECHO, "hello", payload);
    ask_wait(f, &a);
    assert_int_equal(a.rc, 0);
    assert_int_equal(a.rq.status, 7);
    assert_int_equal(a.msg_len, 5);
    assert_memory_equal(a.msg, "hello", 5);
    assert_int_equal(a.got_len, payload);
    if (payload != 0)
        assert_memory_equal(a.got, f->big, payload);
    free(a.got);
}

static void request_and_answer(void **state)
{
    static const size_t sizes[] = { 0,     1,      100,     4096,    8144,   8192,
                                    65536, 100001, 1 << 20, 8191999, 8 << 20 };
    struct fixture f;

    (void)state;
    setup(&f);
    assert_int_equal(rpc_channel_health(f.ch), RPC_CONNECTING);
    for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        ask_echo(&f, sizes[i]);
    assert_int_equal(rpc_channel_health(f.ch), RPC_UP);
    assert_int_equal(f.last_role, RPC_ROLE_CLIENT);
    assert_string_equal(rpc_tcp_channel_last_error(f.ch), "");
    teardown(&f);
}

static void big_messages_pass(void **state)
{
    struct fixture f;
    struct ask a = { 0 };
    char *msg = malloc(RPC_MSG_MAX + 1);

    (void)state;
    setup(&f);
    memset(msg, 'x', RPC_MSG_MAX);
    msg[RPC_MSG_MAX] = '\0';
    ask_send(&f, &a, OP_ECHO, msg, 0);
    free(msg); /* the library has copied it */
    ask_wait(&f, &a);
    assert_int_equal(a.rc, 0);
    assert_int_equal(a.msg_len, RPC_MSG_MAX);
    ask_echo(&f, 10);
    teardown(&f);
}

static void many_small_ones_in_one_turn(void **state)
{
    enum { N = 500 };
    struct fixture f;
    struct ask *asks = calloc(N, sizeof(*asks));

    (void)state;
    setup(&f);
    for (unsigned i = 0; i < N; i++)
        ask_send(&f, &asks[i], OP_ECHO, "m", i % 3 == 0 ? 200 : 0);
    for (unsigned i = 0; i < N; i++) {
        ask_wait(&f, &asks[i]);
        assert_int_equal(asks[i].rc, 0);
        assert_int_equal(asks[i].got_len, i % 3 == 0 ? 200 : 0);
        free(asks[i].got);
    }
    free(asks);
    teardown(&f);
}

static void files_leave_by_sendfile(void **state)
{
    struct fixture f;
    struct ask a = { 0 };

    (void)state;
    setup(&f);
    ask_send(&f, &a, OP_FILE, NULL, 0);
    ask_wait(&f, &a);
    assert_int_equal(a.rc, 0);
    assert_int_equal(a.got_len, 110 + FILE_BYTES - 5000);
    assert_memory_equal(a.got, f.big, 100);
    assert_memory_equal(a.got + 100, f.big + 5000, FILE_BYTES - 5000);
    assert_memory_equal(a.got + 100 + FILE_BYTES - 5000, f.big + 7, 10);
    assert_int_equal(f.n_sent, 1);
    free(a.got);
    teardown(&f);
}

static void a_short_file_breaks_the_link_not_the_server(void **state)
{
    struct fixture f;
    struct ask a = { .rq.deadline_ms = 300 };

    (void)state;
    setup(&f);
    ask_send(&f, &a, OP_SHORT_FILE, NULL, 0);
    ask_wait(&f, &a);
    assert_int_not_equal(a.rc, 0); /* never answered in full, however often it was sent */
    WAIT_FOR(&f, f.n_sent == f.n_handled);
    ask_echo(&f, 100);
    teardown(&f);
}

static void answers_go_straight_to_their_places(void **state)
{
    static const struct {
        unsigned head, n_split;
        size_t payload;
    } cases[] = { { 0, 2, 1 },     { 0, 1000, 300000 }, { 10, 3, 5 },
                  { 10, 3, 10 },   { 10, 3, 11 },       { 64, 9, 8192 },
                  { 64, 2, 9000 }, { 1, 700, 1 << 20 }, { 64, 2, 8 << 20 } };
    struct fixture f;

    (void)state;
    setup(&f);
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ask a = { .n_split = cases[i].n_split };
        size_t head = cases[i].head < cases[i].payload ? cases[i].head : cases[i].payload;

        a.room = calloc(1, cases[i].payload + 1);
        a.rq.recv_head = a.head;
        a.rq.recv_head_len = cases[i].head;
        a.rq.place = on_place;
        ask_send(&f, &a, OP_ECHO, "x", cases[i].payload);
        ask_wait(&f, &a);
        assert_int_equal(a.rc, 0);
        assert_int_equal(a.got_len, cases[i].payload);
        assert_null(a.got);
        assert_int_equal(a.n_placed, cases[i].payload > cases[i].head);
        assert_memory_equal(a.head, f.big, head);
        assert_memory_equal(a.room, f.big + head, cases[i].payload - head);
        assert_int_equal(a.room[cases[i].payload], 0);
        assert_int_equal(a.msg[0], 'x');
        free(a.room);
    }
    teardown(&f);
}

static void place_may_refuse(void **state)
{
    struct fixture f;
    struct ask a = { .place_rc = -EFBIG };

    (void)state;
    setup(&f);
    a.rq.place = on_place;
    ask_send(&f, &a, OP_ECHO, NULL, 3 << 20);
    ask_wait(&f, &a);
    assert_int_equal(a.rc, -EFBIG);
    ask_echo(&f, 1000); /* on the same link, behind the discarded bytes */
    assert_int_equal(f.n_conn_closed, 0);
    teardown(&f);
}

/* Cancels after ever more turns of the loop, so at every stage. The memory is overwritten
 * and freed at once, which the sanitizers watch. */
static void cancel_at_every_stage(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    for (unsigned turns = 0; turns < unit_seeds(40); turns += UNIT_STEP) {
        struct ask *a = calloc(1, sizeof(*a));
        uint8_t *payload = malloc(6 << 20);

        memcpy(payload, f.big, 6 << 20);
        a->room = malloc(6 << 20);
        a->n_split = 3;
        if (turns % 2 == 0)
            a->rq.place = on_place;
        a->rq.op = OP_ECHO;
        a->rq.deadline_ms = WAIT_MS;
        a->iov[0] = (struct iovec){ payload, 6 << 20 };
        a->rq.payload = a->iov;
        a->rq.n_payload = 1;
        a->rq.done = on_done;
        a->rq.arg = a;
        rpc_send(f.ch, &a->rq);
        for (unsigned i = 0; i < turns && a->n_done == 0; i++)
            uv_run(&f.loop, UV_RUN_NOWAIT);
        if (a->n_done == 0)
            rpc_cancel(&a->rq);
        memset(payload, 0xee, 6 << 20); /* must not reach the server, which compares */
        free(payload);
        free(a->room);
        free(a->got);
        free(a);
    }
    ask_echo(&f, 1000);
    assert_int_equal(f.n_conn_closed, 0); /* all of it on one link */
    teardown(&f);
}

static void cancel_in_place_and_held(void **state)
{
    struct fixture f;
    struct ask a = { 0 }, held = { 0 };

    (void)state;
    setup(&f);
    a.rq.place = on_place;
    a.room = malloc(1 << 20);
    a.cancel_in_place = &a; /* cancels itself */
    ask_send(&f, &a, OP_ECHO, NULL, 1 << 20);
    WAIT_FOR(&f, a.n_placed == 1);
    ask_echo(&f, 5);
    assert_int_equal(a.n_done, 0);
    free(a.room);

    ask_send(&f, &held, OP_HOLD, NULL, 0);
    WAIT_FOR(&f, f.n_held == 1);
    rpc_cancel(&held.rq);
    rpc_reply_status(f.held[0], 0);
    ask_echo(&f, 5);
    assert_int_equal(held.n_done, 0);
    teardown(&f);
}

static void deadlines_are_kept(void **state)
{
    struct fixture f;
    struct ask a = { .rq.deadline_ms = 30 }, b = { .rq.deadline_ms = 30 };
    uint64_t start;

    (void)state;
    setup(&f);
    ask_echo(&f, 0);
    start = uv_hrtime();
    ask_send(&f, &a, OP_HOLD, NULL, 0);
    ask_wait(&f, &a);
    assert_int_equal(a.rc, -ETIMEDOUT);
    assert_true(uv_hrtime() - start >= 29 * 1000000ull);
    rpc_reply_status(f.held[0], 0); /* the answer is late: discarded */
    ask_echo(&f, 0);
    server_close(&f);
    WAIT_FOR(&f, rpc_channel_health(f.ch) == RPC_DOWN);
    ask_send(&f, &b, OP_ECHO, NULL, 0);
    ask_wait(&f, &b);
    assert_int_equal(b.rc, -ENOTCONN);
    teardown(&f);
}

static void requests_survive_a_restart_of_the_server(void **state)
{
    struct fixture f;
    struct ask a = { 0 }, b = { 0 };
    unsigned n_up = 0;
    uint64_t id;
    uint16_t port;
    bool up = false;

    (void)state;
    setup(&f);
    ask_echo(&f, 0);
    rpc_tcp_channel_on_up(f.ch, set_flag, &up);
    port = rpc_server_port(f.server, 0);
    rpc_tcp_channel_set_session(f.ch, 7);
    ask_send(&f, &a, OP_HOLD, "a", 500000);
    WAIT_FOR(&f, f.n_held == 1);
    id = f.held[0]->id;
    assert_true(f.held[0]->session == 7);
    rpc_tcp_channel_set_session(f.ch, 9);
    server_close(&f); /* the server still holds the call */
    ask_send(&f, &b, OP_ECHO, "b", 5000);
    pass_ms(&f, 20);
    assert_int_equal(a.n_done + b.n_done, 0);
    rpc_reply_status(f.held[0], 0); /* the answer goes nowhere, and the server is freed */
    assert_int_equal(rpc_channel_health(f.ch), RPC_DOWN);
    assert_string_not_equal(rpc_tcp_channel_last_error(f.ch), "");
    server_open(&f, 0, port);
    ask_wait(&f, &b);
    assert_int_equal(b.rc, 0);
    free(b.got);
    assert_true(up);
    WAIT_FOR(&f, f.n_held == 2); /* sent again */
    assert_true(f.held[1]->id == id && f.held[1]->session == 7);
    assert_int_equal(f.held[1]->payload_len, 500000);
    assert_memory_equal(f.held[1]->payload, f.big, 500000);
    rpc_reply_status(f.held[1], 0);
    ask_wait(&f, &a);
    assert_int_equal(a.rc, 0);
    rpc_tcp_channel_links(f.ch, &n_up, &(unsigned){ 0 });
    assert_int_equal(n_up, 1);
    teardown(&f);
}

static void links_share_the_load(void **state)
{
    struct fixture f;
    struct ask asks[8];
    unsigned n_up, n_all;
    uint64_t conns[8];

    (void)state;
    setup_loop(&f);
    server_open(&f, 0, 0);
    f.ch = channel_open(&f, &keys, 2, 2, 0);
    rpc_tcp_channel_links(f.ch, &n_up, &n_all);
    assert_int_equal(n_all, 4);
    WAIT_FOR(&f, (rpc_tcp_channel_links(f.ch, &n_up, &n_all), n_up == 4));
    memset(asks, 0, sizeof(asks));
    for (unsigned i = 0; i < 8; i++)
        ask_send(&f, &asks[i], OP_HOLD, NULL, 1000);
    WAIT_FOR(&f, f.n_held == 8);
    for (unsigned i = 0; i < 8; i++) {
        unsigned n_same = 0;

        conns[i] = f.held[i]->conn_id;
        for (unsigned j = 0; j < 8; j++)
            n_same += f.held[j]->conn_id == conns[i];
        assert_int_equal(n_same, 2); /* two on each of four links */
    }
    for (unsigned i = 0; i < 8; i++)
        rpc_reply_status(f.held[i], 0);
    for (unsigned i = 0; i < 8; i++)
        ask_wait(&f, &asks[i]);
    teardown(&f);
}

static void more_than_the_queue_waits_its_turn(void **state)
{
    enum { N = 12 };
    struct fixture f;
    struct ask asks[N];

    (void)state;
    setup(&f);
    memset(asks, 0, sizeof(asks));
    for (unsigned i = 0; i < N; i++) /* 48 MiB through a queue of 16 MiB */
        ask_send(&f, &asks[i], OP_SUM, NULL, 4 << 20);
    rpc_cancel(&asks[N - 1].rq);
    for (unsigned i = 0; i < N - 1; i++) {
        ask_wait(&f, &asks[i]);
        assert_int_equal(asks[i].rc, 0);
    }
    assert_int_equal(f.n_handled, N - 1);
    teardown(&f);
}

static void a_full_server_stops_reading_and_goes_on(void **state)
{
    enum { N = 6 };
    struct fixture f;
    struct ask asks[N];

    (void)state;
    setup_loop(&f);
    server_open(&f, 1 << 20, 0); /* 1 MiB for requests and answers */
    f.ch = channel_open(&f, &keys, 1, 1, 400);
    memset(asks, 0, sizeof(asks));
    for (unsigned i = 0; i < N; i++)
        ask_send(&f, &asks[i], OP_HOLD, NULL, 600 * 1024);
    WAIT_FOR(&f, f.n_held == 2); /* the second one exceeds 1 MiB */
    pass_ms(&f, 900);            /* longer than two probes */
    assert_int_equal(f.n_held, 2);
    /* the answered probes show that it lives */
    assert_int_equal(rpc_channel_health(f.ch), RPC_UP);
    for (unsigned i = 0; i < N; i++) {
        WAIT_FOR(&f, f.n_held > i);
        rpc_reply_status(f.held[i], 0);
        ask_wait(&f, &asks[i]);
        assert_int_equal(asks[i].rc, 0);
    }
    teardown(&f);
}

static void open_requests_end_when_the_channel_closes(void **state)
{
    struct fixture f;
    struct ask a = { 0 }, b = { 0 }, c = { 0 };

    (void)state;
    setup(&f);
    ask_echo(&f, 0);
    ask_send(&f, &a, OP_HOLD, NULL, 0);
    WAIT_FOR(&f, f.n_held == 1);
    ask_send(&f, &b, OP_ECHO, NULL, 8 << 20);
    uv_run(&f.loop, UV_RUN_NOWAIT);
    rpc_tcp_channel_close(f.ch, set_flag, &f.channel_closed);
    assert_int_equal(a.n_done + b.n_done, 0); /* never called inside the call */
    ask_send(&f, &c, OP_ECHO, NULL, 0);       /* sent after the close */
    WAIT_FOR(&f, f.channel_closed);
    f.ch = NULL;
    assert_int_equal(a.n_done, 1);
    assert_int_equal(b.n_done, 1);
    assert_int_equal(c.n_done, 1);
    assert_int_equal(a.rc, -ENOTCONN);
    assert_int_equal(c.rc, -ENOTCONN);
    WAIT_FOR(&f, f.n_conn_closed == 1);
    rpc_reply_status(f.held[0], 0);
    teardown(&f);
}

static void a_wrong_key_is_refused_with_words(void **state)
{
    struct fixture f;
    struct ask a = { .rq.deadline_ms = 200 };

    (void)state;
    setup_loop(&f);
    server_open(&f, 0, 0);
    f.ch = channel_open(&f, &other_keys, 1, 1, 0);
    ask_send(&f, &a, OP_ECHO, NULL, 0);
    ask_wait(&f, &a);
    assert_int_equal(a.rc, -ENOTCONN);
    assert_non_null(strstr(rpc_tcp_channel_last_error(f.ch), "peer refused our key"));
    assert_int_equal(f.n_handled, 0);
    assert_int_equal(rpc_channel_health(f.ch), RPC_DOWN);
    teardown(&f);
}

/* ---- raw sockets ---- */

static int raw_connect(struct fixture *f)
{
    struct sockaddr_in sa = { .sin_family = AF_INET };
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    sa.sin_port = htons(rpc_server_port(f->server, 0));
    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(connect(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

static void raw_wait_closed(struct fixture *f, int fd)
{
    char buf[4096];
    ssize_t n = -1;

    WAIT_FOR(f,
             ((n = read(fd, buf, sizeof(buf))) == 0) || (n < 0 && errno == ECONNRESET));
    close(fd);
}

static void raw_read(struct fixture *f, int fd, void *buf, size_t len)
{
    size_t got = 0;

    while (got < len) {
        ssize_t n = read(fd, (char *)buf + got, len - got);

        assert_int_not_equal(n, 0);
        if (n > 0)
            got += (size_t)n;
        else
            turn(f);
    }
}

/* Proves our key on fd, by hand. */
static void raw_shake(struct fixture *f, int fd)
{
    struct hello h;
    uint8_t buf[FRAME_HEADER_BYTES + HELLO_MSG_MAX], in[HELLO_MSG_MAX];
    uint8_t nonce[HELLO_NONCE_BYTES] = { 77 };
    struct frame frame = { 0 };
    size_t len = 0;

    hello_init(&h, false, &keys, RPC_ROLE_CLIENT, "raw", NULL, NULL, nonce);
    while (h.state != HELLO_DONE) {
        hello_step(&h, frame.msg_len != 0 ? in : NULL, frame.msg_len,
                   buf + FRAME_HEADER_BYTES, &len);
        assert_int_not_equal(h.state, HELLO_FAILED);
        if (h.state == HELLO_DONE)
            break;
        frame = (struct frame){ .kind = FRAME_HELLO, .msg_len = (uint32_t)len };
        frame_build(buf, &frame, buf + FRAME_HEADER_BYTES);
        assert_int_equal(write(fd, buf, FRAME_HEADER_BYTES + len),
                         FRAME_HEADER_BYTES + len);
        raw_read(f, fd, buf, FRAME_HEADER_BYTES);
        assert_int_equal(frame_parse(buf, &frame), 0);
        raw_read(f, fd, in, frame.msg_len);
        assert_int_equal(frame_check(&frame, in), 0);
    }
}

/* Connects a client that has proved its key. */
static int raw_hello(struct fixture *f)
{
    int fd = raw_connect(f);

    raw_shake(f, fd);
    return fd;
}

static void garbage_closes_only_its_connection(void **state)
{
    struct fixture f;
    uint8_t bytes[2000], header[FRAME_HEADER_BYTES + 4];
    struct frame frame = { .kind = FRAME_REQUEST, .op = OP_ECHO, .msg_len = 4 };

    (void)state;
    setup(&f);
    ask_echo(&f, 100);
    for (unsigned i = 0; i < 40; i++) { /* random bytes before Hello */
        int fd = raw_connect(&f);

        env_random(&f.e.env, bytes, sizeof(bytes));
        if (i % 2 == 1)
            memcpy(bytes, "ROZ1\1\0", 6);
        assert_true(write(fd, bytes, sizeof(bytes)) > 0);
        raw_wait_closed(&f, fd);
    }
    { /* a request without Hello */
        int fd = raw_connect(&f);

        memcpy(header + FRAME_HEADER_BYTES, "abcd", 4);
        frame_build(header, &frame, header + FRAME_HEADER_BYTES);
        assert_int_equal(write(fd, header, sizeof(header)), sizeof(header));
        raw_wait_closed(&f, fd);
    }
    for (unsigned i = 0; i < sizeof(header); i++) { /* one wrong bit after Hello */
        int fd = raw_hello(&f);

        memcpy(header + FRAME_HEADER_BYTES, "abcd", 4);
        frame_build(header, &frame, header + FRAME_HEADER_BYTES);
        header[i] ^= 0x20;
        assert_int_equal(write(fd, header, sizeof(header)), sizeof(header));
        if (i >= 32 && i < 35) /* the server waits for a longer frame: no error yet */
            close(fd);
        else
            raw_wait_closed(&f, fd);
    }
    { /* half a frame, then the end */
        int fd = raw_hello(&f);

        frame.payload_len = 100000;
        frame_build(header, &frame, header + FRAME_HEADER_BYTES);
        assert_int_equal(write(fd, header, sizeof(header)), sizeof(header));
        pass_ms(&f, 5);
        close(fd);
    }
    pass_ms(&f, 5);
    assert_int_equal(f.n_handled, 1); /* only the valid request */
    ask_echo(&f, 100);
    teardown(&f);
}

static void a_peer_that_does_not_read_holds_up_nobody(void **state)
{
    struct fixture f;
    struct frame frame = { .kind = FRAME_REQUEST, .op = OP_BIG, .session = 4 << 20 };
    uint8_t header[FRAME_HEADER_BYTES];
    unsigned n_before;
    int fd;

    (void)state;
    setup_loop(&f);
    server_open(&f, 64 << 20, 0);
    f.ch = channel_open(&f, &keys, 1, 1, 0);
    fd = raw_hello(&f);
    for (unsigned i = 0; i < 100; i++) { /* 400 MiB of answers, none of which is read */
        frame.id = i;
        frame_build(header, &frame, NULL);
        assert_int_equal(write(fd, header, sizeof(header)), sizeof(header));
    }
    WAIT_FOR(&f, f.n_handled >= 4);
    pass_ms(&f, 50);
    assert_true(f.n_handled <
                12); /* a quarter of memory_max, and the buffer of the socket */
    n_before = f.n_handled;
    for (unsigned i = 0; i < 10; i++)
        ask_echo(&f, 1 << 20);
    assert_int_equal(f.n_handled, n_before + 10);
    close(fd);
    WAIT_FOR(&f, f.n_sent == f.n_handled);
    teardown(&f);
}

/* Opens the listening socket of a server made by hand; f->addr[0] is its address. */
static int raw_listen(struct fixture *f)
{
    struct sockaddr_in sa = { .sin_family = AF_INET };
    socklen_t sa_len = sizeof(sa);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(listen(fd, 8), 0);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    getsockname(fd, (struct sockaddr *)&sa, &sa_len);
    snprintf(f->addr[0], sizeof(f->addr[0]), "127.0.0.1:%u", ntohs(sa.sin_port));
    return fd;
}

/* Accepts the next connection of the channel, and answers its Hello. */
static int raw_accept(struct fixture *f, int listener)
{
    uint8_t buf[FRAME_HEADER_BYTES + HELLO_MSG_MAX], in[HELLO_MSG_MAX];
    uint8_t nonce[HELLO_NONCE_BYTES] = { 78 };
    struct frame frame;
    struct hello h;
    size_t len;
    int fd = -1;

    WAIT_FOR(f, (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0);
    hello_init(&h, true, &keys, 0, "by hand", NULL, NULL, nonce);
    while (h.state != HELLO_DONE) {
        raw_read(f, fd, buf, FRAME_HEADER_BYTES);
        assert_int_equal(frame_parse(buf, &frame), 0);
        raw_read(f, fd, in, frame.msg_len);
        hello_step(&h, in, frame.msg_len, buf + FRAME_HEADER_BYTES, &len);
        frame = (struct frame){ .kind = FRAME_HELLO, .msg_len = (uint32_t)len };
        frame_build(buf, &frame, buf + FRAME_HEADER_BYTES);
        assert_int_equal(write(fd, buf, FRAME_HEADER_BYTES + len),
                         FRAME_HEADER_BYTES + len);
    }
    return fd;
}

/* Takes a request, and sends the header of its answer and some bytes of the payload. */
static void raw_answer(struct fixture *f, int fd, uint32_t payload_len, size_t n_bytes)
{
    uint8_t buf[FRAME_HEADER_BYTES];
    struct frame frame;

    do {
        raw_read(f, fd, buf, FRAME_HEADER_BYTES);
        assert_int_equal(frame_parse(buf, &frame), 0);
    } while (frame.kind != FRAME_REQUEST);
    assert_int_equal(frame.msg_len + frame.payload_len, 0);
    frame = (struct frame){
        .kind = FRAME_ANSWER, .op = frame.op, .id = frame.id, .payload_len = payload_len
    };
    frame_build(buf, &frame, NULL);
    assert_int_equal(write(fd, buf, sizeof(buf)), sizeof(buf));
    assert_int_equal(write(fd, f->big, n_bytes), n_bytes);
}

/* A link breaks in the middle of an answer's payload: the request is sent again if
 * place() was not called yet, otherwise it ends with an error. */
static void broken_answers_are_never_placed_twice(void **state)
{
    struct fixture f;
    struct ask a = { .n_split = 2 }, b = { .n_split = 2 };
    int listener, fd;

    (void)state;
    setup_loop(&f);
    listener = raw_listen(&f);
    f.ch = channel_open(&f, &keys, 1, 1, 0);
    a.rq.recv_head = a.head;
    a.rq.recv_head_len = 10;
    a.rq.place = on_place;
    a.room = calloc(1, 1000);
    ask_send(&f, &a, OP_ECHO, NULL, 0);
    fd = raw_accept(&f, listener);
    raw_answer(&f, fd, 100, 5); /* half of `head` */
    pass_ms(&f, 10);
    close(fd);
    fd = raw_accept(&f, listener);
    assert_int_equal(a.n_done + a.n_placed, 0);
    raw_answer(&f, fd, 100, 100);
    ask_wait(&f, &a);
    assert_int_equal(a.rc, 0);
    assert_int_equal(a.n_placed, 1);
    assert_memory_equal(a.room, f.big + 10, 90);

    b.rq.place = on_place;
    b.room = a.room;
    ask_send(&f, &b, OP_ECHO, NULL, 0);
    raw_answer(&f, fd, 100, 50);
    WAIT_FOR(&f, b.n_placed == 1);
    close(fd);
    ask_wait(&f, &b);
    assert_int_equal(b.rc, -ENOTCONN);
    close(listener);
    free(a.room);
    teardown(&f);
}

/* An answer to an unknown request is discarded; one with a wrong op ends the link. */
static void wrong_answers_are_not_taken(void **state)
{
    struct fixture f;
    struct ask a = { .rq.deadline_ms = 100 };
    struct frame frame = {
        .kind = FRAME_ANSWER, .op = OP_ECHO, .id = 999, .payload_len = 20000
    };
    uint8_t buf[FRAME_HEADER_BYTES];
    int listener, fd;

    (void)state;
    setup_loop(&f);
    listener = raw_listen(&f);
    f.ch = channel_open(&f, &keys, 1, 1, 0);
    ask_send(&f, &a, OP_ECHO, NULL, 0);
    fd = raw_accept(&f, listener);
    frame_build(buf, &frame, NULL);
    assert_int_equal(write(fd, buf, sizeof(buf)), sizeof(buf));
    assert_int_equal(write(fd, f.big, 20000), 20000);
    ask_wait(&f, &a);
    assert_int_equal(a.rc, -ETIMEDOUT);
    assert_int_equal(rpc_channel_health(f.ch), RPC_UP);
    memset(&a, 0, sizeof(a));
    raw_read(&f, fd, buf, sizeof(buf)); /* the request that has timed out */
    ask_send(&f, &a, OP_ECHO, NULL, 0);
    raw_read(&f, fd, buf, sizeof(buf));
    assert_int_equal(frame_parse(buf, &frame), 0);
    frame.kind = FRAME_ANSWER;
    frame.op = OP_SUM;
    frame_build(buf, &frame, NULL);
    assert_int_equal(write(fd, buf, sizeof(buf)), sizeof(buf));
    raw_wait_closed(&f, fd);
    assert_int_equal(a.n_done, 0);
    fd = raw_accept(&f, listener); /* sent again */
    raw_answer(&f, fd, 0, 0);
    ask_wait(&f, &a);
    assert_int_equal(a.rc, 0);
    close(fd);
    close(listener);
    teardown(&f);
}

static void a_silent_peer_turns_suspect_and_comes_back(void **state)
{
    struct fixture f;
    uint8_t buf[FRAME_HEADER_BYTES];
    struct frame frame;
    struct ask a = { .rq.deadline_ms = 300 };
    int listener, fd;

    (void)state;
    setup_loop(&f);
    listener = raw_listen(&f);
    f.ch = channel_open(&f, &keys, 1, 1, 100);
    fd = raw_accept(&f, listener);
    WAIT_FOR(&f, rpc_channel_health(f.ch) == RPC_UP);
    ask_send(&f, &a, OP_ECHO, NULL, 0);
    /* the probes stay unanswered */
    WAIT_FOR(&f, rpc_channel_health(f.ch) == RPC_SUSPECT);
    ask_wait(&f, &a);
    assert_int_equal(a.rc, -ETIMEDOUT);
    assert_int_equal(rpc_channel_health(f.ch), RPC_SUSPECT);
    /* any byte of the peer is a sign of life */
    frame = (struct frame){ .kind = FRAME_PONG };
    frame_build(buf, &frame, NULL);
    assert_int_equal(write(fd, buf, FRAME_HEADER_BYTES), FRAME_HEADER_BYTES);
    WAIT_FOR(&f, rpc_channel_health(f.ch) == RPC_UP);
    WAIT_FOR(&f, rpc_channel_health(f.ch) == RPC_SUSPECT);
    WAIT_FOR(&f, rpc_channel_health(f.ch) == RPC_DOWN); /* 20 x 100 ms */
    assert_non_null(strstr(rpc_tcp_channel_last_error(f.ch), "no data for"));
    close(fd);
    close(listener);
    teardown(&f);
}

/* A handler may answer after its connection was closed and before the socket is freed. */
static void a_call_whose_connection_was_just_closed_may_be_answered(void **state)
{
    struct fixture f;
    struct frame frame = { .kind = FRAME_REQUEST, .op = OP_POSTED };
    uint8_t bytes[2 * FRAME_HEADER_BYTES];
    int fd;

    (void)state;
    setup(&f);
    fd = raw_hello(&f);
    frame_build(bytes, &frame, NULL);
    /* closes the connection */
    memset(bytes + FRAME_HEADER_BYTES, 'x', FRAME_HEADER_BYTES);
    assert_int_equal(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
    raw_wait_closed(&f, fd);
    assert_int_equal(f.n_handled, 1);
    WAIT_FOR(&f, f.n_sent == 1 && f.n_conn_closed == 1);
    assert_null(f.posted);
    ask_echo(&f, 100);
    teardown(&f);
}

static void who_does_not_finish_hello_is_closed(void **state)
{
    struct fixture f;
    char byte;
    int fd, honest;

    (void)state;
    setup(&f);
    ask_echo(&f, 0);
    fd = raw_connect(&f);
    honest = raw_hello(&f);
    pass_ms(&f, 1100); /* time for a sweep */
    assert_int_equal(read(fd, &byte, 1), -1);
    assert_int_equal(errno, EAGAIN);
    ahead_ns = 5001 * 1000000ull;
    raw_wait_closed(&f, fd);
    assert_int_equal(read(honest, &byte, 1), -1); /* idle, but its key was proved */
    assert_int_equal(errno, EAGAIN);
    close(honest);
    assert_int_equal(f.n_conn_closed, 0); /* fd never counted as a connection */
    ask_echo(&f, 0);
    teardown(&f);
}

static void who_stops_half_way_is_closed(void **state)
{
    struct fixture f;
    struct frame big = { .kind = FRAME_REQUEST, .op = OP_BIG, .session = 8 << 20 };
    struct frame frame = { .kind = FRAME_REQUEST, .op = OP_ECHO, .payload_len = 1000 };
    uint8_t header[FRAME_HEADER_BYTES + 10] = { 0 };
    char byte;
    int in_header, in_payload, not_reading, idle;

    (void)state;
    setup_loop(&f);
    server_open(&f, 0, 0);
    idle = raw_hello(&f);
    in_header = raw_hello(&f);
    in_payload = raw_hello(&f);
    not_reading = raw_hello(&f);
    frame_build(header, &big, NULL);
    assert_int_equal(write(not_reading, header, FRAME_HEADER_BYTES), FRAME_HEADER_BYTES);
    frame_build(header, &frame, NULL);
    assert_int_equal(write(in_header, header, 10), 10);
    assert_int_equal(write(in_payload, header, sizeof(header)), sizeof(header));
    pass_ms(&f, 1100);
    assert_int_equal(f.n_conn_closed, 0);
    assert_int_equal(f.n_handled, 1);
    ahead_ns = 30001 * 1000000ull;
    WAIT_FOR(&f, f.n_conn_closed == 3);
    WAIT_FOR(&f, f.n_sent == 1); /* discarded, but its owner was notified */
    raw_wait_closed(&f, in_header);
    raw_wait_closed(&f, in_payload);
    close(not_reading);
    assert_int_equal(read(idle, &byte, 1), -1);
    assert_int_equal(errno, EAGAIN);
    close(idle);
    teardown(&f);
}

/* Unread answers that fill the server's memory are discarded sooner. */
static void who_stops_reading_keeps_nobody_waiting_for_long(void **state)
{
    enum { N = 2 };
    struct fixture f;
    struct frame big = { .kind = FRAME_REQUEST, .op = OP_BIG, .session = 8 << 20 };
    uint8_t header[FRAME_HEADER_BYTES];
    struct ask a = { 0 };
    int fds[N];

    (void)state;
    setup_loop(&f);
    server_open(&f, 16 << 20, 0);
    frame_build(header, &big, NULL);
    for (unsigned i = 0; i < N; i++) {
        fds[i] = raw_hello(&f);
        assert_int_equal(write(fds[i], header, sizeof(header)), sizeof(header));
    }
    WAIT_FOR(&f, f.n_handled == 2); /* the memory is full */
    f.ch = channel_open(&f, &keys, 1, 1, 0);
    ask_send(&f, &a, OP_ECHO, "x", 0);
    pass_ms(&f, 1100);
    assert_int_equal(a.n_done, 0);
    ahead_ns = 5001 * 1000000ull;
    ask_wait(&f, &a);
    assert_int_equal(a.rc, 0);
    for (unsigned i = 0; i < N; i++)
        close(fds[i]);
    teardown(&f);
}

/* A process without free descriptors goes on when some are free again. */
static void running_out_of_descriptors_passes(void **state)
{
    struct fixture f;
    struct rlimit old, none;
    int fd, waits;

    (void)state;
    setup(&f);
    ask_echo(&f, 0);
    waits = raw_connect(&f);
    pass_ms(&f, 5); /* accepted */
    close(waits);
    pass_ms(&f, 5);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    fd = dup(0);
    close(fd);
    waits = raw_connect(&f); /* takes fd; the server would need fd + 1 */
    none = (struct rlimit){ (rlim_t)waits + 1, old.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    pass_ms(&f, 1200); /* tried, paused, and tried again */
    ask_echo(&f, 100); /* connected clients are served in between */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    raw_shake(&f, waits);
    close(waits);
    teardown(&f);
}

static bool close_spare(void *arg, unsigned below)
{
    int *spare = arg;
    bool had_one = *spare >= 0 && (unsigned)*spare < below;

    if (had_one)
        close(*spare);
    *spare = -1;
    return had_one;
}

/* Idle files are closed at once for a connection that is accepted, and for one that is
 * made. */
static void idle_files_make_room_for_connections(void **state)
{
    struct fixture f;
    struct rlimit old, none;
    int spare, waits;

    (void)state;
    setup_loop(&f);
    server_open(&f, 0, 0);
    f.e.close_idle = close_spare;
    f.e.close_idle_arg = &spare;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    spare = dup(0);
    waits = raw_connect(&f);
    none = (struct rlimit){ (rlim_t)waits + 1, old.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    raw_shake(&f, waits);
    assert_int_equal(spare, -1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    spare = dup(0);
    while ((none.rlim_cur = (rlim_t)dup(0)) < (rlim_t)spare + 2)
        ; /* until all below it are in use, except one for the accept */
    close((int)none.rlim_cur - 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    f.ch = channel_open(&f, &keys, 1, 1, 0);
    ask_echo(&f, 100);
    assert_int_equal(spare, -1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    close(waits);
    teardown(&f);
}

static void strangers_do_not_lock_friends_out(void **state)
{
    enum { N = 300 }; /* more clients than places */
    struct fixture f;
    int fds[N], friend;

    (void)state;
    setup_loop(&f);
    server_open(&f, 0, 0);
    for (unsigned i = 0; i < N; i++) {
        fds[i] = raw_connect(&f);
        if (i % 50 == 49)
            pass_ms(&f, 5);
    }
    friend = raw_hello(&f);
    close(friend);
    for (unsigned i = 0; i < N; i++)
        close(fds[i]);
    teardown(&f);
}

static void another_cluster_is_refused_with_words(void **state)
{
    struct fixture f;
    struct ask a = { .rq.deadline_ms = 200 };
    const char ours[RPC_CLUSTER_ID_BYTES + 1] = "cluster number 1";
    const char theirs[RPC_CLUSTER_ID_BYTES + 1] = "cluster number 2";
    const uint8_t *id = (const uint8_t *)theirs;

    (void)state;
    setup_loop(&f);
    f.cluster_id = ours;
    server_open(&f, 0, 0);
    f.cluster_id = theirs;
    f.ch = channel_open(&f, &keys, 1, 1, 0);
    ask_send(&f, &a, OP_ECHO, NULL, 0);
    ask_wait(&f, &a);
    assert_int_equal(a.rc, -ENOTCONN);
    assert_int_equal(f.n_handled, 0);
    assert_non_null(strstr(rpc_tcp_channel_last_error(f.ch),
                           "different clusters: 636c7573746572206e756d6265722032 here, "
                           "636c7573746572206e756d6265722031 there"));
    channel_close(&f);
    f.cluster_id = NULL; /* a peer that does not know the id yet is accepted */
    f.ch = channel_open(&f, &keys, 1, 1, 0);
    ask_echo(&f, 10);
    channel_close(&f);
    rpc_server_set_cluster_id(f.server, id);
    f.cluster_id = theirs;
    f.ch = channel_open(&f, &keys, 1, 1, 0);
    ask_echo(&f, 10);
    teardown(&f);
}

/* The disk behind an address was replaced, or the former one is back: no request reaches
 * it. */
static void a_peer_of_another_incarnation_is_not_used(void **state)
{
    static const uint8_t ours[RPC_INCARNATION_BYTES] = { 1 };
    static const uint8_t theirs[RPC_INCARNATION_BYTES] = { 2 };
    struct fixture f;
    struct ask a = { .rq.deadline_ms = 200 };

    (void)state;
    setup_loop(&f);
    f.incarnation = theirs;
    server_open(&f, 0, 0);
    f.incarnation = ours;
    f.ch = channel_open(&f, &keys, 1, 1, 0);
    ask_send(&f, &a, OP_ECHO, NULL, 0);
    ask_wait(&f, &a);
    assert_int_equal(a.rc, -ENOTCONN);
    assert_int_equal(f.n_handled, 0);
    assert_int_equal(rpc_channel_health(f.ch), RPC_DOWN);
    assert_non_null(
        strstr(rpc_tcp_channel_last_error(f.ch), "another data directory answers"));
    channel_close(&f);
    f.incarnation = theirs;
    f.ch = channel_open(&f, &keys, 1, 1, 0);
    ask_echo(&f, 10);
    teardown(&f);
}

/* A server that shows its key and then hangs up is not retried twenty times a second. */
static void a_peer_that_never_serves_is_tried_less_and_less(void **state)
{
    struct fixture f;
    struct ask a = { .rq.deadline_ms = 1000 };
    unsigned n = 0;
    int listener;

    (void)state;
    setup_loop(&f);
    listener = raw_listen(&f);
    f.ch = channel_open(&f, &keys, 1, 1, 0);
    ask_send(&f, &a, OP_ECHO, NULL, 0);
    while (a.n_done == 0) { /* after 50, 100, 200, 400 ms; the fifth would be after 750 */
        struct pollfd p = { .fd = listener, .events = POLLIN };

        if (poll(&p, 1, 0) == 1) {
            close(raw_accept(&f, listener));
            n++;
        }
        turn(&f);
    }
    assert_int_not_equal(a.rc, 0);
    assert_true(n >= 1 && n <= 6);
    close(listener);
    teardown(&f);
}

/* Time in which this process did not run counts as no sign against the peer. */
static void our_own_sleep_is_not_the_peers_silence(void **state)
{
    struct fixture f;
    struct ask a = { 0 };

    (void)state;
    setup(&f);
    ask_echo(&f, 0);
    ask_send(&f, &a, OP_HOLD, NULL, 0);
    WAIT_FOR(&f, f.n_held == 1);
    for (unsigned i = 0; i < 3; i++) {
        ahead_ns += 60 * 1000000000ull;
        assert_int_equal(rpc_channel_health(f.ch), RPC_UP);
        pass_ms(&f, 300); /* longer than a tick */
        assert_int_equal(rpc_channel_health(f.ch), RPC_UP);
    }
    assert_int_equal(f.n_conn_closed, 0);
    rpc_reply_status(f.held[0], 0);
    ask_wait(&f, &a);
    assert_int_equal(a.rc, 0);
    teardown(&f);
}

static void a_hung_peer_is_found_also_when_we_are_always_late(void **state)
{
    struct fixture f;
    struct ask a = { 0 };
    int listener, fd;

    (void)state;
    setup_loop(&f);
    listener = raw_listen(&f);
    f.ch = channel_open(&f, &keys, 1, 1, 40);
    fd = raw_accept(&f, listener);
    WAIT_FOR(&f, rpc_channel_health(f.ch) == RPC_UP);
    ask_send(&f, &a, OP_ECHO, NULL, 0);
    for (unsigned i = 0; i < 2000 && rpc_channel_health(f.ch) != RPC_SUSPECT; i++) {
        ahead_ns += 30 * 1000000ull; /* more than half a probe each time */
        turn(&f);
    }
    assert_int_equal(rpc_channel_health(f.ch), RPC_SUSPECT);
    rpc_cancel(&a.rq);
    close(fd);
    close(listener);
    teardown(&f);
}

static void an_idle_channel_stays_up(void **state)
{
    struct fixture f;

    (void)state;
    setup_loop(&f);
    server_open(&f, 0, 0);
    f.ch = channel_open(&f, &keys, 1, 1, 40);
    WAIT_FOR(&f, rpc_channel_health(f.ch) == RPC_UP);
    for (unsigned i = 0; i < 20; i++) {
        pass_ms(&f, 10);
        assert_int_not_equal(rpc_channel_health(f.ch), RPC_DOWN);
    }
    WAIT_FOR(&f, rpc_channel_health(f.ch) == RPC_UP);
    assert_int_equal(f.n_conn_closed, 0);
    teardown(&f);
}

static void open_says_what_is_wrong(void **state)
{
    struct fixture f;
    struct rpc_server_config config = { .keys = &keys, .name = "x", .handler = on_call };
    const struct rpc_keys no_keys = { 0 };
    struct rpc_server *server;
    struct rpc_channel *ch;
    struct err err = { 0 };
    const char *addrs[2] = { "127.0.0.1:0", f.addr[0] };
    struct rpc_channel_config channel_config = {
        .keys = &no_keys, .role = RPC_ROLE_NODE, .name = "y", .addrs = addrs, .n_addrs = 1
    };

    (void)state;
    setup_loop(&f);
    server_open(&f, 0, 0);
    assert_int_equal(rpc_server_open(&f.e, &config, addrs, 2, &server, &err),
                     -EADDRINUSE);
    assert_non_null(strstr(err.text, f.addr[0]));
    assert_non_null(strstr(err.text, "already in use"));
    addrs[0] = "nonsense";
    assert_int_equal(rpc_server_open(&f.e, &config, addrs, 1, &server, &err), -EINVAL);
    assert_non_null(strstr(err.text, "expected host:port"));
    assert_int_equal(rpc_tcp_channel_open(&f.e, &channel_config, &ch, &err), -EINVAL);
    addrs[0] = "127.0.0.1:1";
    assert_int_equal(rpc_tcp_channel_open(&f.e, &channel_config, &ch, &err), -EINVAL);
    assert_non_null(strstr(err.text, "node key is missing"));
    config.keys = &no_keys;
    assert_int_equal(rpc_server_open(&f.e, &config, addrs, 1, &server, &err), -EINVAL);
    teardown(&f);
}

/* The second request has arrived, but was not read. Its sender takes it back and goes to
 * another server. */
static void requests_not_read_are_not_handled_when_connections_end(void **state)
{
    struct fixture f;
    struct ask held = { 0 }, unread = { 0 };

    (void)state;
    setup(&f);
    ask_echo(&f, 0);
    assert_int_equal(f.n_conn_opened, 1);
    f.ends_conns = true;
    ask_send(&f, &held, OP_HOLD, NULL, 0);
    ask_send(&f, &unread, OP_ECHO, "unread", 0);
    WAIT_FOR(&f, f.n_held == 1);
    rpc_cancel(&unread.rq);
    turn(&f);
    assert_int_equal(f.n_conn_closed, 0); /* a call has no answer yet */
    assert_int_equal(held.n_done, 0);
    rpc_reply_status(f.held[0], 5);
    ask_wait(&f, &held);
    assert_int_equal(held.rc, 0);
    assert_int_equal(held.rq.status, 5); /* on its connection: it was not sent again */
    WAIT_FOR(&f, f.n_conn_closed == 1);
    ask_echo(&f, 1000);
    assert_int_equal(f.n_conn_opened, 2);
    assert_int_equal(f.n_handled, 3); /* echo, hold, echo */
    teardown(&f);
}

/* Connections without calls, in the middle of a request, and of strangers. */
static void all_kinds_of_connections_end(void **state)
{
    struct fixture f;
    struct ask big = { 0 };

    (void)state;
    setup(&f);
    ask_echo(&f, 0);
    ask_send(&f, &big, OP_ECHO, NULL, 6 << 20);
    uv_run(&f.loop, UV_RUN_NOWAIT);
    rpc_server_end_conns(f.server);
    rpc_server_end_conns(f.server); /* again: nothing more happens */
    WAIT_FOR(&f, f.n_conn_closed == 1);
    ask_wait(&f, &big); /* sent again */
    assert_int_equal(big.rc, 0);
    free(big.got);
    rpc_server_end_conns(f.server);
    WAIT_FOR(&f, f.n_conn_closed == 2);
    teardown(&f);
}

static void count(void *arg)
{
    ++*(unsigned *)arg;
}

static void links_are_connected_at_once_when_told(void **state)
{
    struct fixture f;
    uint16_t port;
    unsigned n;

    (void)state;
    setup(&f);
    rpc_tcp_channel_on_down(f.ch, count, &f.n_down);
    rpc_tcp_channel_on_refused(f.ch, count, &f.n_refused);
    ask_echo(&f, 0);
    port = rpc_server_port(f.server, 0);
    rpc_connect_now(f.ch); /* nothing to do */
    ask_echo(&f, 0);
    assert_int_equal(f.n_conn_opened, 1);
    server_close(&f);
    WAIT_FOR(&f, f.n_down == 1);
    WAIT_FOR(&f, f.n_refused >= 5); /* the next pause is 600 ms at least */
    n = f.n_refused;
    for (unsigned i = 0; i < 1000; i++)
        rpc_connect_now(f.ch);
    assert_true(uv_backend_timeout(&f.loop) <= 50);
    WAIT_FOR(&f, f.n_refused > n);
    server_open(&f, 0, port);
    ask_echo(&f, 0);
    assert_int_equal(f.n_down, 1);
    teardown(&f);
}

/* A process listens there, though with another key. */
static void a_wrong_peer_does_not_count_as_refused(void **state)
{
    struct fixture f;

    (void)state;
    setup(&f);
    channel_close(&f);
    f.ch = channel_open(&f, &other_keys, 1, 1, 0);
    rpc_tcp_channel_on_refused(f.ch, count, &f.n_refused);
    rpc_tcp_channel_on_down(f.ch, count, &f.n_down);
    WAIT_FOR(&f, rpc_channel_health(f.ch) == RPC_DOWN);
    assert_int_equal(f.n_refused + f.n_down, 0);
    assert_int_equal(f.n_conn_opened, 0);
    teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_and_answer),
        cmocka_unit_test(big_messages_pass),
        cmocka_unit_test(many_small_ones_in_one_turn),
        cmocka_unit_test(files_leave_by_sendfile),
        cmocka_unit_test(a_short_file_breaks_the_link_not_the_server),
        cmocka_unit_test(answers_go_straight_to_their_places),
        cmocka_unit_test(place_may_refuse),
        cmocka_unit_test(cancel_at_every_stage),
        cmocka_unit_test(cancel_in_place_and_held),
        cmocka_unit_test(deadlines_are_kept),
        cmocka_unit_test(requests_survive_a_restart_of_the_server),
        cmocka_unit_test(links_share_the_load),
        cmocka_unit_test(more_than_the_queue_waits_its_turn),
        cmocka_unit_test(a_full_server_stops_reading_and_goes_on),
        cmocka_unit_test(open_requests_end_when_the_channel_closes),
        cmocka_unit_test(a_wrong_key_is_refused_with_words),
        cmocka_unit_test(garbage_closes_only_its_connection),
        cmocka_unit_test(a_peer_that_does_not_read_holds_up_nobody),
        cmocka_unit_test(broken_answers_are_never_placed_twice),
        cmocka_unit_test(wrong_answers_are_not_taken),
        cmocka_unit_test(a_silent_peer_turns_suspect_and_comes_back),
        cmocka_unit_test(a_call_whose_connection_was_just_closed_may_be_answered),
        cmocka_unit_test(who_does_not_finish_hello_is_closed),
        cmocka_unit_test(who_stops_half_way_is_closed),
        cmocka_unit_test(who_stops_reading_keeps_nobody_waiting_for_long),
        cmocka_unit_test(running_out_of_descriptors_passes),
        cmocka_unit_test(idle_files_make_room_for_connections),
        cmocka_unit_test(strangers_do_not_lock_friends_out),
        cmocka_unit_test(another_cluster_is_refused_with_words),
        cmocka_unit_test(a_peer_of_another_incarnation_is_not_used),
        cmocka_unit_test(a_peer_that_never_serves_is_tried_less_and_less),
        cmocka_unit_test(our_own_sleep_is_not_the_peers_silence),
        cmocka_unit_test(a_hung_peer_is_found_also_when_we_are_always_late),
        cmocka_unit_test(an_idle_channel_stays_up),
        cmocka_unit_test(open_says_what_is_wrong),
        cmocka_unit_test(requests_not_read_are_not_handled_when_connections_end),
        cmocka_unit_test(all_kinds_of_connections_end),
        cmocka_unit_test(links_are_connected_at_once_when_told),
        cmocka_unit_test(a_wrong_peer_does_not_count_as_refused),
    };

    log_init("test_rpc");
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
