/*
 * bench_rpc.c - cost of a request over loopback: client and server on one loop, one
 * processor.
 *
 * Method: DEPTH requests are kept in flight until a fixed number is done; user + system
 * time of the process is divided by that number, so that it covers both sides and the
 * kernel's loopback.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/base/log.h"
#include "common/rpc/rpc_tcp.h"
#include "common/wire/capability.h"

enum { DEPTH_MAX = 64 };

static const struct rpc_keys keys = { true, true, { 1 }, { 2 } };
static uint8_t *bytes;

struct bench {
    struct rpc_channel *ch;
    struct rpc_request rqs[DEPTH_MAX];
    struct iovec iov, room;
    uint64_t to_send, to_end;
    uint64_t n_failed;
};

static void on_sent(void *arg)
{
    (void)arg;
}

static void on_call(void *arg, struct rpc_call *call)
{
    struct rpc_seg seg = { .base = bytes, .len = call->session };

    (void)arg;
    rpc_reply(call, 0, "answer", 6, &seg, seg.len != 0, seg.len != 0 ? on_sent : NULL,
              NULL);
}

static int on_place(struct rpc_request *rq, size_t rest, struct iovec *iov)
{
    struct bench *b = rq->arg;

    iov[0] = (struct iovec){ b->room.iov_base, rest };
    return 1;
}

static void on_done(struct rpc_request *rq, int rc)
{
    struct bench *b = rq->arg;

    b->to_end--;
    b->n_failed += rc != 0;
    if (b->to_send > 0) {
        b->to_send--;
        rpc_send(b->ch, rq);
    }
}

static double cpu_us(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e6 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

static void run(struct env_uv *e, struct bench *b, unsigned depth, uint64_t n, size_t out,
                size_t in)
{
    double cpu = cpu_us(), wall;
    uint64_t start = uv_hrtime();

    b->iov = (struct iovec){ bytes, out };
    b->to_send = n - depth;
    b->to_end = n;
    rpc_tcp_channel_set_session(b->ch, in);
    for (unsigned i = 0; i < depth; i++) {
        b->rqs[i] = (struct rpc_request){
            .op = 1,
            .deadline_ms = 10000,
            .msg = "a small message of a request",
            .msg_len = 28,
            .payload = &b->iov,
            .n_payload = out != 0,
            .place = on_place,
            .done = on_done,
            .arg = b,
        };
        rpc_send(b->ch, &b->rqs[i]);
    }
    while (b->to_end > 0)
        uv_run(e->loop, UV_RUN_ONCE);
    wall = (double)(uv_hrtime() - start) / 1e3;
    cpu = cpu_us() - cpu;
    printf("%5u %8zu %8zu %10.2f %10.2f %9.0f\n", depth, out, in, wall / (double)n,
           cpu / (double)n, (double)(out + in) * (double)n / wall);
}

static void bench_capability(void)
{
    const uint8_t node_key[32] = { 1 };
    const struct file_id id = { 1, 2, 3 };
    struct capability_key *key;
    uint8_t cap[CAPABILITY_BYTES];
    unsigned n_good = 0;
    uint64_t start;

    if (capability_key_new(node_key, 0, &key) != 0)
        return;
    capability_sign(key, &id, CAPABILITY_READ, cap);
    start = uv_hrtime();
    for (unsigned i = 0; i < 100000; i++)
        n_good += capability_verify(key, &id, CAPABILITY_READ, cap, sizeof(cap)) == 0;
    printf("capability_verify: %.2f us (%u right)\n", (double)(uv_hrtime() - start) / 1e8,
           n_good);
    capability_key_free(key);
}

int main(void)
{
    static struct bench b;
    struct rpc_server_config server_config = { .keys = &keys,
                                               .name = "bench",
                                               .handler = on_call };
    struct env_uv e;
    struct rpc_server *server;
    struct err err = { 0 };
    char addr[32];
    const char *addrs[] = { "127.0.0.1:0" };
    struct rpc_channel_config config = { .keys = &keys,
                                         .role = RPC_ROLE_NODE,
                                         .name = "bench",
                                         .addrs = addrs,
                                         .n_addrs = 1 };

    log_init("bench");
    bytes = aligned_alloc(4096, 8 << 20);
    memset(bytes, 1, 8 << 20);
    b.room.iov_base = aligned_alloc(4096, 8 << 20);
    memset(b.room.iov_base, 1, 8 << 20);
    if (env_uv_init(&e, uv_default_loop()) != 0 ||
        rpc_server_open(&e, &server_config, addrs, 1, &server, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    snprintf(addr, sizeof(addr), "127.0.0.1:%u", rpc_server_port(server, 0));
    addrs[0] = addr;
    if (rpc_tcp_channel_open(&e, &config, &b.ch, &err) != 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("depth  request   answer    wall us     cpu us      MB/s\n");
    run(&e, &b, 1, 1000, 0, 0); /* warm-up */
    run(&e, &b, 1, 50000, 0, 0);
    run(&e, &b, 16, 200000, 0, 0);
    run(&e, &b, 1, 10000, 65536, 0);
    run(&e, &b, 1, 10000, 0, 65536);
    run(&e, &b, 4, 20000, 65536, 0);
    run(&e, &b, 4, 3000, 1 << 20, 0);
    run(&e, &b, 4, 3000, 0, 1 << 20);
    bench_capability();
    printf("%llu failed\n", (unsigned long long)b.n_failed);
    return b.n_failed != 0;
}
