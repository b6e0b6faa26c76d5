/*
 * ask.c - questions of an administrator.
 *
 * In:     the run and its checks. Out: requests of role NODE.
 */
#include "tests/sim/cluster/ask.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static struct host *admin;

struct question {
    struct rpc_request rq;
    bool done;
    struct answer *out;
};

static uint8_t *copy(const uint8_t *from, size_t len)
{
    uint8_t *p = malloc(len + 1);

    assert(p != NULL);
    if (len > 0)
        memcpy(p, from, len);
    return p;
}

static void on_answered(struct rpc_request *rq, int rc)
{
    struct question *q = rq->arg;
    struct proc *before = proc_enter(&world_clock.world);

    q->done = true;
    q->out->rc = rc;
    if (rc == 0) {
        q->out->status = rq->status;
        q->out->msg = copy(rq->answer_msg, rq->answer_msg_len);
        q->out->msg_len = rq->answer_msg_len;
        q->out->payload = copy(rq->answer_payload, rq->answer_payload_len);
        q->out->payload_len = rq->answer_payload_len;
    }
    proc_leave(before);
}

void admin_begin(void)
{
    admin = net_add_host(proc_new("admin"));
    proc_start(admin->proc);
}

void admin_end(void)
{
    net_host_died(admin, 0);
    proc_kill(admin->proc);
}

void admin_ask(struct host *to, uint16_t op, const ProtobufCMessage *msg,
               struct answer *out)
{
    struct question q = { .out = out };
    uint8_t packed[4096];
    struct proc *before = proc_enter(admin->proc);
    struct rpc_channel *ch = net_channel_new(admin, to, RPC_ROLE_NODE, NULL, NULL);

    memset(out, 0, sizeof(*out));
    assert(protobuf_c_message_get_packed_size(msg) <= sizeof(packed));
    q.rq = (struct rpc_request){ .op = op,
                                 .deadline_ms = 20000,
                                 .msg = packed,
                                 .msg_len = protobuf_c_message_pack(msg, packed),
                                 .done = on_answered,
                                 .arg = &q };
    rpc_send(ch, &q.rq);
    proc_leave(before);
    while (!q.done)
        world_step();
    before = proc_enter(admin->proc);
    net_channel_free(ch);
    proc_leave(before);
}

void answer_free(struct answer *a)
{
    free(a->msg);
    free(a->payload);
}

int admin_tell(struct host *to, uint16_t op, const ProtobufCMessage *msg)
{
    struct answer a;
    int rc;

    admin_ask(to, op, msg, &a);
    rc = a.rc != 0 ? a.rc : (int)a.status;
    answer_free(&a);
    return rc;
}
