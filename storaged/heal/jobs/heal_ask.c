/*
 * heal_ask.c - requests of the healer to storages.
 *
 * In:     heal_ask_send(), from the parts of the healer. Thread: the healer's.
 * Out:    rpc_send(); ask->done().
 * Keeps:  done() comes once and never inside heal_ask_send(); none comes after
 *         heal_asks_cancel().
 */

#include "storaged/heal/jobs/heal_ask.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/wire/status.h"
#include "storaged/heal/jobs/heal_state.h"

static void ask_end(struct heal_ask *ask, int rc)
{
    assert(ask->state != ASK_IDLE);
    ask->state = ASK_IDLE;
    list_remove(&ask->link);
    ask->done(ask, rc);
}

static void on_ask_timer(struct env_timer *timer)
{
    ask_end(container_of(timer, struct heal_ask, timer), -ENOTCONN);
}

static void on_ask_done(struct rpc_request *rq, int rc)
{
    ask_end(rq->arg, rc != 0 ? rc : status_to_errno(rq->status));
}

void heal_ask_send(struct healer *h, struct heal_ask *ask, uint32_t storage, uint16_t op,
                   const ProtobufCMessage *msg, uint32_t deadline_ms)
{
    struct rpc_channel *ch = healer_channel(h, storage);
    size_t len = protobuf_c_message_get_packed_size(msg);
    uint8_t *buf = ch == NULL ? NULL : malloc(len + 1);

    assert(ask->state == ASK_IDLE);
    assert(ask->done != NULL);
    assert(!h->stopping);
    ask->h = h;
    ask->storage = storage;
    list_add_tail(&h->asks, &ask->link);
    if (buf == NULL) {
        ask->state = ASK_NO_CHANNEL;
        env_timer_init(&ask->timer, on_ask_timer);
        env_timer_start(h->env, &ask->timer, 0);
        return;
    }
    protobuf_c_message_pack(msg, buf);
    ask->rq = (struct rpc_request){
        .op = op,
        .deadline_ms = deadline_ms,
        .msg = buf,
        .msg_len = len,
        .done = on_ask_done,
        .arg = ask,
    };
    ask->state = ASK_SENT;
    rpc_send(ch, &ask->rq);
    free(buf);
}

void heal_asks_cancel(struct healer *h)
{
    LIST_FOREACH_SAFE(node, &h->asks) {
        struct heal_ask *ask = container_of(node, struct heal_ask, link);

        assert(ask->state != ASK_IDLE);
        list_remove(node);
        if (ask->state == ASK_SENT)
            rpc_cancel(&ask->rq);
        else
            env_timer_stop(h->env, &ask->timer);
        ask->state = ASK_IDLE;
    }
}

void heal_asks_init(struct healer *h)
{
    list_init(&h->asks);
}
