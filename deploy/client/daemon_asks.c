/*
 * daemon_asks.c - requests to several daemons at once.
 *
 * In:     storage_clients.c, meta_client.c.
 * Out:    one request to each daemon at a time, all of them together.
 * Keeps:  a daemon without an answer costs no more than the deadline, and gets an error
 *         message.
 */
#include "deploy/client/daemon_asks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/wire/status.h"
#include "deploy/cli/interrupt.h"
#include "deploy/client/rpc_loop.h"

void daemon_ask_fail(struct daemon_ask *a, const char *why)
{
    snprintf(a->message, sizeof(a->message), "%s", why);
}

static void out_end(struct daemon_ask *a)
{
    list_remove(&a->link);
    a->all->is_done = list_is_empty(&a->all->out);
}

static const char *channel_error(const struct daemon_ask *a)
{
    return rpc_tcp_channel_last_error(a->channel);
}

/* Returns why there is no answer. */
static const char *no_answer_text(const struct daemon_ask *a, int rc)
{
    if (channel_error(a)[0] != '\0')
        return channel_error(a);
    return rc == -ETIMEDOUT || rc == -ENOTCONN ? "it does not answer" : error_text(rc);
}

static void on_answer(struct rpc_request *rq, int rc)
{
    struct daemon_ask *a = rq->arg;

    a->rc = rc;
    a->status = rq->status;
    a->all->has_answered = a->all->has_answered || rc == 0;
    if (rc != 0)
        daemon_ask_fail(a, no_answer_text(a, rc));
    else if (rq->status == ROZO__STATUS__UNKNOWN_OP)
        daemon_ask_fail(a, "its version does not know this request");
    else if (rq->status != ROZO__STATUS__OK)
        daemon_ask_fail(a, status_name(rq->status));
    if (rc == 0 && a->take != NULL)
        a->take(a, rq);
    out_end(a);
}

static void ask_cancel(struct daemon_ask *a, int rc, const char *why)
{
    rpc_cancel(&a->rq);
    a->rc = rc;
    daemon_ask_fail(a, why);
    out_end(a);
}

static void on_tick(void *arg)
{
    struct daemon_asks *all = arg;

    if (all->progress != NULL)
        progress_tick(all->progress);
    LIST_FOREACH_SAFE(node, &all->out) {
        struct daemon_ask *a = container_of(node, struct daemon_ask, link);

        if (interrupt_came())
            ask_cancel(a, -EINTR, "interrupted");
        else if (clock_ms() >= all->refused_ms && channel_error(a)[0] != '\0' &&
                 rpc_channel_health(a->channel) == RPC_DOWN)
            ask_cancel(a, -ENOTCONN, channel_error(a));
        else if (all->slow_max_ms != 0 && all->has_answered && clock_ms() >= all->slow_ms)
            ask_cancel(a, -ETIMEDOUT, no_answer_text(a, -ETIMEDOUT));
    }
}

void daemon_ask_send(struct daemon_ask *a, uint16_t op, const ProtobufCMessage *question,
                     uint32_t deadline_ms,
                     void (*take)(struct daemon_ask *a, const struct rpc_request *rq))
{
    size_t len = protobuf_c_message_get_packed_size(question);
    uint8_t *packed = malloc(len + 1);

    a->rc = a->channel == NULL ? -EINVAL : packed == NULL ? -ENOMEM : 0;
    a->status = ROZO__STATUS__OK;
    a->message[0] = '\0';
    if (a->rc != 0) {
        daemon_ask_fail(a,
                        packed == NULL ? "out of memory" : "its addresses are invalid");
        free(packed);
        return;
    }
    protobuf_c_message_pack(question, packed);
    a->take = take;
    a->rq = (struct rpc_request){
        .op = op,
        .deadline_ms = deadline_ms,
        .msg = packed,
        .msg_len = len,
        .done = on_answer,
        .arg = a,
    };
    list_add_tail(&a->all->out, &a->link);
    rpc_send(a->channel, &a->rq);
    free(packed);
}

int daemon_asks_wait(struct daemon_asks *all)
{
    all->refused_ms = clock_ms() + all->refused_max_ms;
    all->slow_ms = clock_ms() + all->slow_max_ms;
    all->has_answered = false;
    all->is_done = list_is_empty(&all->out);
    rpc_loop_run(all->loop, &all->is_done, on_tick, all);
    return interrupt_came() ? -EINTR : 0;
}

int daemon_ask_one(struct daemon_ask *a, uint16_t op, const ProtobufCMessage *question,
                   uint32_t deadline_ms,
                   void (*take)(struct daemon_ask *a, const struct rpc_request *rq))
{
    daemon_ask_send(a, op, question, deadline_ms, take);
    daemon_asks_wait(a->all);
    return a->rc != 0 ? a->rc : status_to_errno(a->status);
}

/* ---- life ---- */

int daemon_asks_open(struct daemon_asks *all, const char *node_key,
                     uint32_t refused_max_ms, struct err *err)
{
    *all = (struct daemon_asks){ .refused_max_ms = refused_max_ms };
    list_init(&all->out);
    return rpc_loop_open(node_key, &all->loop, err);
}

void daemon_asks_close(struct daemon_asks *all)
{
    rpc_loop_close(all->loop);
    all->loop = NULL;
}

int daemon_ask_open(struct daemon_asks *all, struct daemon_ask *a,
                    const char *const *addresses, unsigned n_addresses, struct err *err)
{
    a->all = all;
    return rpc_loop_connect(all->loop, addresses, n_addresses, &a->channel, err);
}

void daemon_ask_close(struct daemon_asks *all, struct daemon_ask *a)
{
    rpc_loop_disconnect(all->loop, a->channel);
    a->channel = NULL;
}
