/*
 * answer.c - answers of requests, held until the changes they report are safe.
 *
 * In:     handlers; commits, syncs and confirmations of the store.
 * Out:    rpc_reply(), once for each call.
 * Keeps:  I4: no answer leaves while a change is not committed; with `sync`, not before
 *         the change is on stable storage. None leaves that a later leader of the quorum
 *         may have made stale: each is confirmed last, also that of a change, since it
 *         tells of tokens and inodes that the commit does not hold. I9: waiting answers
 *         are counted.
 */
#include "exportd/cluster/answer.h"

#include <assert.h>
#include <errno.h>

#include "common/wire/status.h"

int answer_new(size_t len, struct answer **out)
{
    struct answer *a = malloc(sizeof(*a) + len);

    if (a == NULL)
        return -ENOMEM;
    a->len = len;
    *out = a;
    return 0;
}

int answer_pack(const ProtobufCMessage *msg, struct answer **out)
{
    size_t len = msg == NULL ? 0 : protobuf_c_message_get_packed_size(msg);
    int rc = len > RPC_MSG_MAX ? -EOVERFLOW : answer_new(len, out);

    if (rc == 0 && msg != NULL)
        protobuf_c_message_pack(msg, (*out)->msg);
    return rc;
}

int md_op_pack(struct md_op *op, const ProtobufCMessage *msg)
{
    assert(op->answer == NULL);
    return answer_pack(msg, &op->answer);
}

/* Packs at once, since measuring a message takes as long as packing it. */
int md_op_pack_inode(struct md_op *op, const ProtobufCMessage *msg)
{
    uint8_t room[ANSWER_ROOM];
    size_t len;
    int rc;

    if (op->is_large)
        return md_op_pack(op, msg);
    len = protobuf_c_message_pack(msg, room);
    assert(op->answer == NULL && len <= sizeof(room));
    rc = answer_new(len, &op->answer);
    if (rc == 0)
        memcpy(op->answer->msg, room, len);
    return rc;
}

static void answer_fail(struct answer *a, int rc)
{
    a->status = status_from_errno(rc);
    a->len = 0;
}

/* Sends an answer. One that an abandoned exportd made tells what never came to be. */
static void answer_send(struct answer *a)
{
    if (a->x->abandoned)
        answer_fail(a, -ROZO_ENOT_LEADER);
    rpc_reply(a->call, a->status, a->msg, a->len, NULL, 0, NULL, NULL);
    free(a);
}

static void on_answer_confirmed(struct kv_done *done, int rc)
{
    struct answer *a = container_of(done, struct answer, confirm);

    a->x->n_answers--;
    if (rc != 0)
        answer_fail(a, rc);
    answer_send(a);
}

/* Sends an answer whose changes are safe, or have failed, once it is confirmed. */
static void answer_confirm(struct answer *a)
{
    a->confirm.fn = on_answer_confirmed;
    if (a->x->abandoned || store_confirm(a->x->store, &a->confirm))
        answer_send(a);
    else
        a->x->n_answers++;
}

static void on_answer_safe(struct store_wait *wait, int rc)
{
    struct answer *a = container_of(wait, struct answer, wait);

    a->x->n_answers--;
    if (rc != 0)
        answer_fail(a, rc);
    answer_confirm(a);
}

void answer_queue(struct exportd *x, struct answer *a, struct rpc_call *call, int rc,
                  bool sync)
{
    a->x = x;
    a->call = call;
    a->status = status_from_errno(rc);
    a->wait.fn = on_answer_safe;
    if (store_is_clean(x->store) && (!sync || rc != 0)) {
        answer_confirm(a);
        return;
    }
    x->n_answers++;
    if (sync && rc == 0)
        store_when_synced(x->store, &a->wait);
    else
        store_when_committed(x->store, &a->wait);
}

void call_answer(struct exportd *x, struct rpc_call *call, int rc,
                 const ProtobufCMessage *msg, bool sync)
{
    struct answer *a;
    int packed = answer_pack(msg, &a);

    if (packed != 0)
        rpc_reply_status(call, status_from_errno(packed));
    else
        answer_queue(x, a, call, rc, sync);
}
