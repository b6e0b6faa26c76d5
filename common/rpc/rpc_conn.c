/*
 * rpc_conn.c - frames over one TCP socket.
 *
 * In:     bytes of a peer (I8); conn_send() from server and channel.
 * Out:    conn_ops callbacks; bytes to the socket. Thread: the env's loop. This is shell.
 * Keeps:  bounded work per turn, so that one busy connection does not starve the others;
 *         after conn_close() no callback but on_closed().
 * Yours:  READ_PER_TURN, WRITE_PER_TURN, CONN_IN_BYTES, SMALL_BYTES.
 */
#include "common/rpc/rpc_conn.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/err.h"

enum {
    READ_PER_TURN = 2 << 20,
    WRITE_PER_TURN = 4 << 20,
    WRITE_IOV_MAX = 256,
    READ_IOV_MAX = 256,
    SMALL_BYTES = 32 << 10, /* frames up to this size wait for others of their turn */
};

static void on_poll(uv_poll_t *handle, int status, int events);

static void poll_update(struct conn *c)
{
    int events = (c->is_paused ? 0 : UV_READABLE) | (c->out_blocked ? UV_WRITABLE : 0);

    if (c->is_closed || events == c->events)
        return;
    c->events = events;
    if (events == 0)
        uv_poll_stop(&c->poll);
    else
        uv_poll_start(&c->poll, events, on_poll);
}

static void conn_break(struct conn *c, int rc, const char *why)
{
    if (c->is_closed || c->is_broken)
        return;
    c->is_broken = true;
    c->ops->on_broken(c, rc, why);
}

static bool is_over(const struct conn *c)
{
    return c->is_closed || c->is_broken;
}

/* ---- receiving ---- */

static size_t in_avail(const struct conn *c)
{
    return c->in_len - c->in_pos;
}

/* Consumes n bytes of c->dst (they all fit there). */
static void dst_advance(struct conn *c, size_t n)
{
    c->payload_left -= n;
    while (n > 0) {
        struct iovec *v = c->dst;
        size_t step = n < v->iov_len ? n : v->iov_len;

        v->iov_base = (char *)v->iov_base + step;
        v->iov_len -= step;
        n -= step;
        if (v->iov_len == 0) {
            c->dst++;
            c->n_dst--;
        }
    }
    while (c->n_dst > 0 && c->dst->iov_len == 0) { /* empty places are allowed */
        c->dst++;
        c->n_dst--;
    }
}

void conn_receive(struct conn *c, struct iovec *iov, unsigned n)
{
    size_t sum = 0;

    for (unsigned i = 0; i < n; i++)
        sum += iov[i].iov_len;
    assert(sum > 0 && sum <= c->payload_left);
    c->discard = false;
    c->dst = iov;
    c->n_dst = n;
    dst_advance(c, 0);
}

void conn_discard(struct conn *c)
{
    c->discard = true;
    c->dst = NULL;
    c->n_dst = 0;
}

/* Takes payload bytes that came with others into c->in. */
static void payload_from_in(struct conn *c)
{
    while (c->payload_left > 0 && in_avail(c) > 0 && (c->discard || c->n_dst > 0)) {
        size_t n = in_avail(c) < c->payload_left ? in_avail(c) : c->payload_left;

        if (c->discard) {
            c->payload_left -= n;
        } else {
            if (n > c->dst->iov_len)
                n = c->dst->iov_len;
            memcpy(c->dst->iov_base, c->in + c->in_pos, n);
            dst_advance(c, n);
        }
        c->in_pos += n;
    }
}

static void frame_over(struct conn *c)
{
    c->rx = CONN_RX_HEADER;
    c->discard = false;
    free(c->big_msg);
    c->big_msg = NULL;
}

/* Handles a complete message. n_in of its bytes are in c->in, given back afterwards. */
static int take_msg(struct conn *c, const uint8_t *msg, size_t n_in)
{
    int rc = frame_check(&c->frame, msg);

    if (rc != 0)
        return rc;
    c->payload_left = c->frame.payload_len;
    c->rx = CONN_RX_PAYLOAD;
    rc = c->ops->on_frame(c, msg);
    c->in_pos += n_in;
    if (rc != 0 || is_over(c))
        return rc;
    if (c->frame.payload_len == 0)
        frame_over(c);
    return 0;
}

/* Takes the next header. These rx functions return 1: look again, 0: more bytes are
 * needed, or -errno. */
static int rx_header(struct conn *c)
{
    int rc;

    if (in_avail(c) < FRAME_HEADER_BYTES)
        return 0;
    rc = frame_parse(c->in + c->in_pos, &c->frame);
    if (rc != 0)
        return rc;
    c->in_pos += FRAME_HEADER_BYTES;
    c->rx = CONN_RX_ADMIT;
    return 1;
}

static int rx_admit(struct conn *c)
{
    int rc = c->ops->on_header(c);

    if (rc == -EAGAIN) {
        c->is_paused = true;
        poll_update(c);
        return 0;
    }
    if (rc != 0)
        return rc;
    c->rx = CONN_RX_MSG;
    if (c->frame.msg_len > CONN_IN_BYTES) {
        c->big_msg = malloc(c->frame.msg_len);
        c->big_got = in_avail(c) < c->frame.msg_len ? in_avail(c) : c->frame.msg_len;
        if (c->big_msg == NULL)
            return -ENOMEM;
        memcpy(c->big_msg, c->in + c->in_pos, c->big_got);
        c->in_pos += c->big_got;
    }
    return 1;
}

static int rx_msg(struct conn *c)
{
    uint32_t len = c->frame.msg_len;
    int rc;

    if (c->big_msg != NULL) {
        if (c->big_got < len)
            return 0;
        rc = take_msg(c, c->big_msg, 0);
    } else {
        if (in_avail(c) < len)
            return 0;
        rc = take_msg(c, c->in + c->in_pos, len);
    }
    return rc != 0 ? rc : 1;
}

static int rx_payload(struct conn *c)
{
    int rc;

    payload_from_in(c);
    if (c->payload_left == 0) {
        rc = c->ops->on_payload(c);
        if (rc != 0 || is_over(c))
            return rc;
        frame_over(c);
        return 1;
    }
    if (c->discard || c->n_dst > 0)
        return 0;
    rc = c->ops->on_filled(c);
    return rc != 0 ? rc : 1;
}

static const char *rx_error_text(const struct conn *c, int rc, char *text, size_t size)
{
    if (rc == -ROZO_EUNKNOWN_FORMAT)
        snprintf(text, size, "peer has protocol version %u, this build has %d",
                 c->frame.protocol, (int)FRAME_PROTOCOL);
    else if (rc == -EBADMSG)
        snprintf(text, size, "peer sent invalid data (not a frame)");
    else
        snprintf(text, size, "%s", error_text(rc));
    return text;
}

/* Handles all bytes that have been received. */
static void conn_parse(struct conn *c)
{
    char text[96];
    int rc = 1;

    while (rc > 0 && !is_over(c) && !c->is_paused) {
        switch (c->rx) {
        case CONN_RX_HEADER:
            rc = rx_header(c);
            break;
        case CONN_RX_ADMIT:
            rc = rx_admit(c);
            break;
        case CONN_RX_MSG:
            rc = rx_msg(c);
            break;
        case CONN_RX_PAYLOAD:
            rc = rx_payload(c);
            break;
        }
    }
    if (rc < 0)
        conn_break(c, rc, rx_error_text(c, rc, text, sizeof(text)));
}

/* Receives into the places of the payload, and into c->in the bytes that follow it. */
static ssize_t fill_payload(struct conn *c, size_t *wanted)
{
    struct iovec iov[READ_IOV_MAX + 1];
    unsigned n = 0;
    size_t room = 0;
    ssize_t got;

    for (; n < c->n_dst && n < READ_IOV_MAX; n++) {
        iov[n] = c->dst[n];
        room += iov[n].iov_len;
    }
    c->in_pos = c->in_len = 0;
    *wanted = room;
    if (n == c->n_dst) {
        iov[n++] = (struct iovec){ c->in, sizeof(c->in) };
        *wanted += sizeof(c->in);
    }
    got = readv(c->fd, iov, (int)n);
    if (got > 0) {
        dst_advance(c, (size_t)got < room ? (size_t)got : room);
        if ((size_t)got > room)
            c->in_len = (size_t)got - room;
    }
    return got;
}

/* Receives the bytes of one system call, each to its place. */
static ssize_t conn_fill(struct conn *c, size_t *wanted)
{
    ssize_t got;

    if (c->rx == CONN_RX_PAYLOAD && !c->discard)
        return fill_payload(c, wanted);
    if (c->rx == CONN_RX_PAYLOAD) {
        *wanted = c->payload_left;
        /* TCP: drops them in the kernel */
        got = recv(c->fd, NULL, c->payload_left, MSG_TRUNC);
        if (got > 0)
            c->payload_left -= (size_t)got;
        return got;
    }
    if (c->big_msg != NULL) {
        *wanted = c->frame.msg_len - c->big_got;
        got = recv(c->fd, c->big_msg + c->big_got, *wanted, 0);
        if (got > 0)
            c->big_got += (size_t)got;
        return got;
    }
    memmove(c->in, c->in + c->in_pos, in_avail(c));
    c->in_len -= c->in_pos;
    c->in_pos = 0;
    *wanted = sizeof(c->in) - c->in_len;
    got = recv(c->fd, c->in + c->in_len, *wanted, 0);
    if (got > 0)
        c->in_len += (size_t)got;
    return got;
}

static void conn_read(struct conn *c)
{
    size_t total = 0, wanted;

    while (!is_over(c) && !c->is_paused && total < READ_PER_TURN) {
        ssize_t got = conn_fill(c, &wanted);

        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got < 0) {
            conn_break(c, -errno, strerror(errno));
            return;
        }
        if (got == 0) {
            conn_break(c, -ECONNRESET, "peer closed the connection");
            return;
        }
        c->heard_ns = env_now_ns(&c->e->env);
        total += (size_t)got;
        conn_parse(c);
        if ((size_t)got < wanted)
            return; /* the socket is empty; poll says when it is not */
    }
}

/* ---- sending ---- */

static unsigned out_pieces(const struct conn_out *out)
{
    return 1 + (out->n_segs != 0 ? out->n_segs : out->n_iov);
}

/* Returns piece i of a frame: 0 is the head. base NULL: in a file. */
static struct rpc_seg out_piece(const struct conn_out *out, unsigned i)
{
    if (i == 0)
        return (struct rpc_seg){ .base = out->head, .len = out->head_len };
    if (out->n_segs != 0)
        return out->segs[i - 1];
    return (struct rpc_seg){ .base = out->iov[i - 1].iov_base,
                             .len = out->iov[i - 1].iov_len };
}

static void out_advance(struct conn *c, struct conn_out *out, size_t n)
{
    out->n_sent += n;
    c->out_bytes -= n;
    out->piece_done += n;
    while (out->piece < out_pieces(out)) {
        size_t len = out_piece(out, out->piece).len;

        if (out->piece_done < len)
            break;
        out->piece_done -= len;
        out->piece++;
    }
}

/* Drops finished frames from the front. */
static void out_finish(struct conn *c)
{
    while (!list_is_empty(&c->out)) {
        struct conn_out *out = container_of(c->out.next, struct conn_out, node);

        if (out->piece < out_pieces(out))
            return;
        list_remove(&out->node);
        out->sent(c, out);
    }
}

/* Gathers memory pieces from the front of the queue up to the first file; *file: a file
 * follows. */
static unsigned out_gather(const struct conn *c, struct iovec *iov, size_t *total,
                           bool *file)
{
    unsigned n = 0;

    *total = 0;
    *file = false;
    LIST_FOREACH(node, &c->out) {
        const struct conn_out *out = container_of(node, struct conn_out, node);
        size_t skip = out->piece_done;

        for (unsigned i = out->piece; i < out_pieces(out); i++, skip = 0) {
            struct rpc_seg piece = out_piece(out, i);

            if (piece.len == skip)
                continue;
            if (piece.base == NULL) {
                *file = true;
                return n;
            }
            if (n == WRITE_IOV_MAX || *total >= WRITE_PER_TURN)
                return n;
            iov[n++] = (struct iovec){ (char *)piece.base + skip, piece.len - skip };
            *total += piece.len - skip;
        }
    }
    return n;
}

/* Records that n bytes of the first frames in the queue have left. */
static void out_sent(struct conn *c, size_t n)
{
    while (n > 0) {
        struct conn_out *out = container_of(c->out.next, struct conn_out, node);
        size_t left = out->total - out->n_sent;
        size_t step = n < left ? n : left;

        out_advance(c, out, step);
        n -= step;
        if (step == left)
            out_finish(c);
        if (is_over(c))
            return;
    }
}

/* Writes memory. 1: all of it left, 0: the socket is full, -errno. */
static int write_memory(struct conn *c, struct iovec *iov, unsigned n, size_t total,
                        bool file)
{
    struct msghdr msg = { .msg_iov = iov, .msg_iovlen = n };
    ssize_t sent = sendmsg(c->fd, &msg, MSG_NOSIGNAL | (file ? MSG_MORE : 0));

    if (sent < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    out_sent(c, (size_t)sent);
    return (size_t)sent == total;
}

static int write_file(struct conn *c, size_t *total)
{
    struct conn_out *out = container_of(c->out.next, struct conn_out, node);
    struct rpc_seg piece = out_piece(out, out->piece);
    off_t offset = piece.offset + (off_t)out->piece_done;
    ssize_t sent = sendfile(c->fd, piece.fd, &offset, piece.len - out->piece_done);

    *total = piece.len - out->piece_done;
    if (sent < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    if (sent == 0)
        return -ENODATA; /* the file is shorter than promised */
    out_sent(c, (size_t)sent);
    return 1; /* sendfile may stop early; EAGAIN says when the socket is full */
}

static void conn_flush(struct conn *c)
{
    struct iovec iov[WRITE_IOV_MAX];
    size_t written = 0;
    bool blocked = false;

    while (!is_over(c) && !blocked && !list_is_empty(&c->out)) {
        size_t total;
        bool file;
        unsigned n = out_gather(c, iov, &total, &file);
        int rc;

        if (n == 0 && !file) { /* nothing but empty pieces */
            out_advance(c, container_of(c->out.next, struct conn_out, node), 0);
            out_finish(c);
            continue;
        }
        rc = n > 0 ? write_memory(c, iov, n, total, file) : write_file(c, &total);
        if (rc < 0) {
            conn_break(c, rc,
                       rc == -ENODATA ? "a file to send is too short" : error_text(rc));
            return;
        }
        written += total;
        blocked = rc == 0 || written >= WRITE_PER_TURN; /* the others' turn */
    }
    if (is_over(c))
        return;
    c->out_blocked = !list_is_empty(&c->out);
    poll_update(c);
}

void conn_send(struct conn *c, struct conn_out *out, bool front)
{
    struct list_node *where = c->out.prev;

    assert(!c->is_closed);
    out->total = out->head_len;
    for (unsigned i = 1; i < out_pieces(out); i++)
        out->total += out_piece(out, i).len;
    out->n_sent = 0;
    out->piece = 0;
    out->piece_done = 0;
    if (list_is_empty(&c->out))
        c->drained_ns = env_now_ns(&c->e->env);
    if (front) {
        where = &c->out;
        if (!list_is_empty(&c->out) &&
            container_of(c->out.next, struct conn_out, node)->n_sent != 0)
            where = c->out.next;
    }
    list_add_after(where, &out->node);
    c->out_bytes += out->total;
    if (c->out_blocked)
        return;
    if (out->total > SMALL_BYTES)
        env_post(&c->e->env, &c->task);
    else
        env_uv_post_last(c->e, &c->task);
}

/* The unsent rest of a frame whose owner is gone. */
struct out_rest {
    struct conn_out out;
    uint8_t bytes[];
};

static void on_rest_sent(struct conn *c, struct conn_out *out)
{
    (void)c;
    free(container_of(out, struct out_rest, out));
}

int conn_unsend(struct conn *c, struct conn_out *out)
{
    size_t left = out->total - out->n_sent, len = 0, skip = out->piece_done;
    struct out_rest *rest;

    assert(out->n_segs == 0);
    if (out->n_sent == 0) {
        list_remove(&out->node);
        c->out_bytes -= out->total;
        return 0;
    }
    rest = malloc(sizeof(*rest) + left);
    if (rest == NULL)
        return -ENOMEM;
    for (unsigned i = out->piece; i < out_pieces(out); i++, skip = 0) {
        struct rpc_seg piece = out_piece(out, i);

        if (piece.len == skip)
            continue;
        memcpy(rest->bytes + len, (const uint8_t *)piece.base + skip, piece.len - skip);
        len += piece.len - skip;
    }
    assert(len == left);
    rest->out = (struct conn_out){
        .head = rest->bytes,
        .head_len = left,
        .sent = on_rest_sent,
        .total = left + out->n_sent,
    };
    /* The rest counts as begun: nothing may be put before it. n_sent of the total is sent
     * already. */
    rest->out.n_sent = out->n_sent;
    list_add_after(&out->node, &rest->out.node);
    list_remove(&out->node);
    return 0;
}

/* ---- life ---- */

static int socket_error(int fd)
{
    int error = 0;
    socklen_t len = sizeof(error);

    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0)
        return -errno;
    return -error;
}

static void on_poll(uv_poll_t *handle, int status, int events)
{
    struct conn *c = handle->data;

    if (status < 0) { /* an error is pending on the socket */
        int rc = socket_error(c->fd);

        rc = rc == 0 ? -ECONNRESET : rc;
        c->events = 0; /* libuv has stopped it */
        conn_break(c, rc, error_text(rc));
        return;
    }
    if ((events & UV_WRITABLE) != 0 && !is_over(c)) {
        c->drained_ns = env_now_ns(&c->e->env);
        c->out_blocked = false;
        conn_flush(c);
    }
    if ((events & (UV_READABLE | UV_DISCONNECT)) != 0)
        conn_read(c);
}

static void conn_end(struct conn *c)
{
    free(c->big_msg);
    c->big_msg = NULL;
    c->ops->on_closed(c);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct conn *c = handle->data;

    c->handle_closed = true;
    if (!c->task.queued) /* otherwise on_task() ends it */
        conn_end(c);
}

static void on_task(struct env_task *task)
{
    struct conn *c = container_of(task, struct conn, task);

    if (c->handle_closed) {
        conn_end(c);
        return;
    }
    if (is_over(c))
        return;
    if (!c->is_paused && c->rx == CONN_RX_ADMIT)
        conn_parse(c);
    if (!is_over(c) && !c->out_blocked)
        conn_flush(c);
}

int conn_open(struct conn *c, struct env_uv *e, int fd, bool is_connecting,
              const struct conn_ops *ops)
{
    struct sockaddr_storage sa;
    socklen_t sa_len = sizeof(sa);
    int rc = uv_poll_init(e->loop, &c->poll, fd);

    if (rc != 0)
        return rc;
    c->poll.data = c;
    c->ops = ops;
    c->e = e;
    c->fd = fd;
    c->task.fn = on_task;
    c->out_blocked = is_connecting; /* writable is how connect() says that it is done */
    list_init(&c->out);
    c->heard_ns = c->drained_ns = env_now_ns(&e->env);
    if (getpeername(fd, (struct sockaddr *)&sa, &sa_len) == 0)
        addr_format((struct sockaddr *)&sa, c->peer);
    else
        snprintf(c->peer, sizeof(c->peer), "?");
    poll_update(c);
    return 0;
}

void conn_pause(struct conn *c)
{
    c->is_paused = true;
    poll_update(c);
}

void conn_resume(struct conn *c)
{
    if (!c->is_paused)
        return;
    c->is_paused = false;
    poll_update(c);
    env_post(&c->e->env, &c->task);
}

void conn_close(struct conn *c)
{
    if (c->is_closed)
        return;
    c->is_closed = true;
    uv_poll_stop(&c->poll);
    uv_close((uv_handle_t *)&c->poll, on_handle_closed);
    close(c->fd);
    c->fd = -1;
}

/* ---- addresses ---- */

int addr_split(const char *addr, char host[RPC_ADDR_TEXT_MAX], char port[8],
               struct err *err)
{
    const char *colon = strrchr(addr, ':');
    size_t host_len, n_digits = colon == NULL ? 0 : strspn(colon + 1, "0123456789");
    const char *start = addr;

    if (colon == NULL || n_digits == 0 || n_digits > 5 || colon[1 + n_digits] != '\0' ||
        atoi(colon + 1) > 65535)
        return err_set(err, -EINVAL, "address \"%s\": expected host:port", addr);
    host_len = (size_t)(colon - addr);
    if (host_len >= 2 && addr[0] == '[' && colon[-1] == ']') {
        start++;
        host_len -= 2;
    } else if (memchr(addr, ':', host_len) != NULL) {
        return err_set(err, -EINVAL, "address \"%s\": write IPv6 as [address]:port",
                       addr);
    }
    if (host_len == 0 || host_len >= RPC_ADDR_TEXT_MAX)
        return err_set(err, -EINVAL, "address \"%s\": expected host:port", addr);
    memcpy(host, start, host_len);
    host[host_len] = '\0';
    memcpy(port, colon + 1, n_digits + 1);
    return 0;
}

void addr_format(const struct sockaddr *sa, char text[RPC_ADDR_TEXT_MAX])
{
    char host[INET6_ADDRSTRLEN] = "?";

    if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)sa;

        inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
        snprintf(text, RPC_ADDR_TEXT_MAX, "%s:%u", host, ntohs(in->sin_port));
    } else if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)sa;

        inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
        snprintf(text, RPC_ADDR_TEXT_MAX, "[%s]:%u", host, ntohs(in6->sin6_port));
    } else {
        snprintf(text, RPC_ADDR_TEXT_MAX, "?");
    }
}

void socket_tune(int fd)
{
    int on = 1, idle_s = 30, interval_s = 10, count = 3;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}
