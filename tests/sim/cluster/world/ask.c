/*
 * ask.c - requests of an administrator.
 *
 * In:     the run and its checks. Out: requests of role NODE.
 */
#include "tests/sim/cluster/world/ask.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static struct host *admin;

struct question {
    struct rpc_request rq;
    bool done;
    struct answer *out;
};

/* The request of admin_tell_later(). */
static struct {
    struct rpc_request rq;
    struct rpc_channel *ch;
    uint8_t packed[4096], answer[8192];
    size_t answer_len;
    bool under_way;
    int rc;
    struct env_task task;
    void (*done)(void *arg, int rc);
    void *arg;
} later;

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
    later.under_way = false;
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
    struct rpc_channel *ch = net_channel_new(admin, to, RPC_ROLE_NODE, NULL, NULL, NULL);

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

static void on_later_task(struct env_task *task)
{
    struct proc *before = proc_enter(admin->proc);

    (void)task;
    net_channel_free(later.ch);
    proc_leave(before);
    later.under_way = false;
    later.done(later.arg, later.rc);
}

static void on_later_answered(struct rpc_request *rq, int rc)
{
    struct proc *before = proc_enter(&world_clock.world);

    later.rc = rc != 0 ? rc : (int)rq->status;
    later.answer_len =
        rc == 0 && rq->answer_msg_len <= sizeof(later.answer) ? rq->answer_msg_len : 0;
    if (later.answer_len > 0)
        memcpy(later.answer, rq->answer_msg, later.answer_len);
    later.task = (struct env_task){ .fn = on_later_task };
    tasks_push(&world_clock.world.tasks, &later.task);
    proc_leave(before);
}

bool admin_is_telling(void)
{
    return later.under_way;
}

const uint8_t *admin_answer(size_t *len)
{
    *len = later.answer_len;
    return later.answer;
}

void admin_tell_later(struct host *to, uint16_t op, const ProtobufCMessage *msg,
                      void (*done)(void *arg, int rc), void *arg)
{
    struct proc *before = proc_enter(admin->proc);

    assert(!later.under_way);
    later.under_way = true;
    later.done = done;
    later.arg = arg;
    later.ch = net_channel_new(admin, to, RPC_ROLE_NODE, NULL, NULL, NULL);
    assert(protobuf_c_message_get_packed_size(msg) <= sizeof(later.packed));
    later.rq =
        (struct rpc_request){ .op = op,
                              .deadline_ms = 5000,
                              .msg = later.packed,
                              .msg_len = protobuf_c_message_pack(msg, later.packed),
                              .done = on_later_answered };
    rpc_send(later.ch, &later.rq);
    proc_leave(before);
}
