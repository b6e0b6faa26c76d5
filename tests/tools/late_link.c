/*
 * late_link.c - a relay on loopback that delays answers: a storage behind it is slow.
 *
 *     late_link LISTEN-PORT TO-PORT DELAY-MS
 *
 * In:     connections to LISTEN-PORT, each of which gets one to TO-PORT.
 * Out:    data of the client goes on at once, data of the server DELAY-MS later. "ready"
 *         on stdout once it listens.
 * Keeps:  order and bytes; bandwidth is that of the machine while QUEUE_MAX is enough for
 *         the delay.
 */
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <uv.h>

enum { PIECE = 256 << 10, QUEUE_MAX = 32 << 20, BACKLOG = 64 };

/* One client and its connection to the server. Freed when both are closed and no piece
 * is left. */
struct link {
    uv_tcp_t client, server;
    uv_connect_t connect;
    uv_timer_t timer;
    struct piece *first, **last; /* owned; of the server, not due yet, in order */
    unsigned n_refs;             /* handles that are open, and pieces */
    size_t n_queued
        [2]; /* bytes read of the server, and of the client, and not written yet */
    bool is_closed;
};

/* Bytes on their way. */
struct piece {
    uv_write_t write;
    struct piece *next;
    uint64_t due_ms;
    struct link *link;
    bool from_client;
    ssize_t n_bytes;
    char bytes[];
};

static uint64_t delay_ms;
static struct sockaddr_in to;

static void link_unref(struct link *l)
{
    if (--l->n_refs == 0)
        free(l);
}

static void on_closed(uv_handle_t *handle)
{
    link_unref(handle->data);
}

static void link_close(struct link *l)
{
    struct piece *p;

    if (l->is_closed)
        return;
    l->is_closed = true;
    uv_close((uv_handle_t *)&l->client, on_closed);
    uv_close((uv_handle_t *)&l->server, on_closed);
    uv_close((uv_handle_t *)&l->timer, on_closed);
    while ((p = l->first) != NULL) {
        l->first = p->next;
        free(p);
        link_unref(l); /* not the last one: handles are open until they have said so */
    }
}

static void on_alloc(uv_handle_t *handle, size_t wanted, uv_buf_t *buf)
{
    struct piece *p = malloc(sizeof(*p) + PIECE);

    (void)handle;
    (void)wanted;
    *buf = p == NULL ? uv_buf_init(NULL, 0) : uv_buf_init(p->bytes, PIECE);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

static uv_stream_t *side(struct link *l, bool client)
{
    return (uv_stream_t *)(client ? &l->client : &l->server);
}

static void piece_free(struct piece *p)
{
    struct link *l = p->link;

    l->n_queued[p->from_client] -= (size_t)p->n_bytes;
    if (!l->is_closed && l->n_queued[p->from_client] < QUEUE_MAX)
        uv_read_start(side(l, p->from_client), on_alloc, on_read);
    free(p);
    link_unref(l);
}

static void on_written(uv_write_t *write, int rc)
{
    struct piece *p = write->data;

    if (rc != 0)
        link_close(p->link);
    piece_free(p);
}

static void piece_write(struct piece *p)
{
    uv_buf_t buf = uv_buf_init(p->bytes, (unsigned)p->n_bytes);

    p->write.data = p;
    if (p->link->is_closed ||
        uv_write(&p->write, side(p->link, !p->from_client), &buf, 1, on_written) != 0) {
        link_close(p->link);
        piece_free(p);
    }
}

static void on_timer(uv_timer_t *timer)
{
    struct link *l = timer->data;
    struct piece *p;

    while (!l->is_closed && (p = l->first) != NULL && p->due_ms <= uv_now(timer->loop)) {
        l->first = p->next;
        piece_write(p);
    }
    if (!l->is_closed && l->first != NULL)
        uv_timer_start(timer, on_timer, l->first->due_ms - uv_now(timer->loop), 0);
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct link *l = stream->data;
    struct piece *p;

    if (n <= 0) {
        if (buf->base != NULL)
            free(buf->base - offsetof(struct piece, bytes));
        if (n < 0)
            link_close(l);
        return;
    }
    p = (struct piece *)(buf->base - offsetof(struct piece, bytes));
    p->link = l;
    p->n_bytes = n;
    p->from_client = stream == (uv_stream_t *)&l->client;
    l->n_refs++;
    l->n_queued[p->from_client] += (size_t)n;
    if (l->n_queued[p->from_client] >= QUEUE_MAX)
        uv_read_stop(stream);
    if (p->from_client) {
        piece_write(p);
        return;
    }
    p->next = NULL;
    p->due_ms = uv_now(stream->loop) + delay_ms;
    if (l->first == NULL) {
        l->last = &l->first;
        uv_timer_start(&l->timer, on_timer, delay_ms, 0);
    }
    *l->last = p;
    l->last = &p->next;
}

static void on_connected(uv_connect_t *connect, int rc)
{
    struct link *l = connect->data;

    if (rc != 0) {
        link_close(l);
    } else if (!l->is_closed) {
        uv_tcp_nodelay(&l->client, 1);
        uv_tcp_nodelay(&l->server, 1);
        uv_read_start((uv_stream_t *)&l->client, on_alloc, on_read);
        uv_read_start((uv_stream_t *)&l->server, on_alloc, on_read);
    }
}

static void on_client(uv_stream_t *listener, int rc)
{
    struct link *l = rc == 0 ? calloc(1, sizeof(*l)) : NULL;

    if (l == NULL)
        return;
    uv_tcp_init(listener->loop, &l->client);
    uv_tcp_init(listener->loop, &l->server);
    uv_timer_init(listener->loop, &l->timer);
    l->n_refs = 3;
    l->client.data = l->server.data = l->timer.data = l->connect.data = l;
    if (uv_accept(listener, (uv_stream_t *)&l->client) != 0 ||
        uv_tcp_connect(&l->connect, &l->server, (const struct sockaddr *)&to,
                       on_connected) != 0)
        link_close(l);
}

static void die(const char *what, int rc)
{
    fprintf(stderr, "late_link: %s: %s\n", what, uv_strerror(rc));
    exit(1);
}

int main(int argc, char **argv)
{
    uv_loop_t *loop = uv_default_loop();
    struct sockaddr_in at;
    uv_tcp_t listener;
    int rc;

    if (argc != 4) {
        fprintf(stderr, "Usage: late_link LISTEN-PORT TO-PORT DELAY-MS\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    uv_ip4_addr("127.0.0.1", atoi(argv[1]), &at);
    uv_ip4_addr("127.0.0.1", atoi(argv[2]), &to);
    delay_ms = strtoull(argv[3], NULL, 10);
    uv_tcp_init(loop, &listener);
    if ((rc = uv_tcp_bind(&listener, (const struct sockaddr *)&at, 0)) != 0 ||
        (rc = uv_listen((uv_stream_t *)&listener, BACKLOG, on_client)) != 0)
        die("listen", rc);
    puts("ready");
    fflush(stdout);
    return uv_run(loop, UV_RUN_DEFAULT);
}
