/* fake_exportd.c - see fake_exportd.h. */
#include "tests/unit/rozomount/fake_exportd.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void fake_send(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct fake_exportd *f = (struct fake_exportd *)ch;
    unsigned i = f->n_sent++;

    assert(i < FAKE_SENT_MAX && rq->deadline_ms != 0);
    f->n_sent_ever++;
    rq->id = rq->again != 0 ? rq->again : f->n_sent_ever;
    f->sent[i] = rq;
    f->msg_len[i] = rq->msg_len < sizeof(f->msg[i]) ? rq->msg_len : sizeof(f->msg[i]);
    if (f->msg_len[i] != 0)
        memcpy(f->msg[i], rq->msg, f->msg_len[i]);
}

static struct rpc_request *fake_take(struct fake_exportd *f, unsigned i)
{
    struct rpc_request *rq = f->sent[i];

    assert(i < f->n_sent);
    f->n_sent--;
    for (; i < f->n_sent; i++) {
        f->sent[i] = f->sent[i + 1];
        f->msg_len[i] = f->msg_len[i + 1];
        memcpy(f->msg[i], f->msg[i + 1], sizeof(f->msg[i]));
    }
    return rq;
}

static void fake_cancel(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct fake_exportd *f = (struct fake_exportd *)ch;

    for (unsigned i = 0; i < f->n_sent; i++) {
        if (f->sent[i] == rq) {
            fake_take(f, i);
            f->n_cancelled++;
            return;
        }
    }
    abort();
}

static enum rpc_health fake_health(struct rpc_channel *ch)
{
    (void)ch;
    return RPC_UP;
}

static const struct rpc_channel_ops fake_ops = {
    .send = fake_send,
    .cancel = fake_cancel,
    .health = fake_health,
};

void fake_exportd_init(struct fake_exportd *f)
{
    memset(f, 0, sizeof(*f));
    f->channel.ops = &fake_ops;
}

void fake_exportd_answer_raw(struct fake_exportd *f, unsigned i, uint16_t status,
                             const void *msg, size_t len)
{
    struct rpc_request *rq = fake_take(f, i);

    rq->status = status;
    rq->answer_msg = msg;
    rq->answer_msg_len = len;
    rq->done(rq, 0);
}

void fake_exportd_answer(struct fake_exportd *f, unsigned i, uint16_t status,
                         const ProtobufCMessage *msg)
{
    size_t len = msg == NULL ? 0 : protobuf_c_message_get_packed_size(msg);
    uint8_t *packed = malloc(len + 1);

    assert(packed != NULL);
    if (msg != NULL)
        protobuf_c_message_pack(msg, packed);
    fake_exportd_answer_raw(f, i, status, packed, len);
    free(packed); /* freed when done has returned, as by the real channel */
}

void fake_exportd_fail(struct fake_exportd *f, unsigned i, int rc)
{
    struct rpc_request *rq = fake_take(f, i);

    rq->done(rq, rc);
}
