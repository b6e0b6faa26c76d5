/*
 * md_client.c - calls to exportd over one channel.
 *
 * In:     md_client_send() by the operations of one loop; answers from the channel;
 *         changes of the session's state.
 * Out:    rpc_send(), each call's done. This is core: no libuv, no clock, no sockets.
 * Keeps:  done runs once, never inside md_client_send(), and not after the deadline.
 * Yours:  MD_BUSY_PAUSE_MS, MD_MSG_INLINE.
 */
#include "rozomount/session/md_client.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/units.h"
#include "common/wire/status.h"

void md_client_init(struct md_client *md, struct env *env, struct rpc_channel *channel,
                    const struct md_client_config *config)
{
    memset(md, 0, sizeof(*md));
    md->env = env;
    md->channel = channel;
    md->config = *config;
    list_init(&md->waiting);
}

void md_client_close(struct md_client *md)
{
    assert(md->n_calls == 0);
    assert(list_is_empty(&md->waiting));
}

/* The call's end: let go of everything of ours, then tell. */
static void call_end(struct md_call *call, int rc)
{
    uint8_t *msg = call->msg;

    assert(call->state != MD_CALL_IDLE);
    if (call->state == MD_CALL_WAITING)
        list_remove(&call->link);
    env_timer_stop(call->md->env, &call->timer);
    if (rc == -ROZO_ERETRY && (call->flags & MD_AGAIN) != 0) {
        call->state = MD_CALL_SENT_BACK;
        call->done(call, rc);
        return;
    }
    call->state = MD_CALL_IDLE;
    call->md->n_calls--;
    call->msg = NULL;
    if (msg != call->inline_msg)
        free(msg);
    call->done(call, rc);
}

static void on_rpc_done(struct rpc_request *rq, int rc);

static uint32_t call_left_ms(const struct md_call *call)
{
    uint64_t now_ns = env_now_ns(call->md->env);

    if (now_ns >= call->deadline_ns)
        return 0;
    return (uint32_t)ns_to_ms_up(call->deadline_ns - now_ns);
}

static void call_wait_for_session(struct md_call *call)
{
    call->state = MD_CALL_WAITING;
    list_add_tail(&call->md->waiting, &call->link);
    env_timer_start(call->md->env, &call->timer, call_left_ms(call));
}

/* Sends the call. again: 0, or the id under which exportd may know the call. */
static void call_transmit(struct md_call *call, uint64_t again)
{
    struct md_client *md = call->md;
    uint32_t left_ms = call_left_ms(call);

    call->state = MD_CALL_SENT;
    call->sent_ns = env_now_ns(md->env);
    call->rq = (struct rpc_request){
        .op = call->rq.op,
        .deadline_ms = left_ms == 0 ? 1 : left_ms,
        .msg = call->msg,
        .msg_len = call->msg_len,
        .done = on_rpc_done,
        .arg = call,
        .again = again != 0 ? again : call->chosen_id,
    };
    rpc_send(md->channel, &call->rq);
}

static void on_rpc_done(struct rpc_request *rq, int rc)
{
    struct md_call *call = rq->arg;
    struct md_client *md = call->md;

    call->maybe_repeated = md->n_ups != call->ups_at_send;
    if (rc != 0) {
        /* -ETIMEDOUT or -ENOTCONN: exportd was unreachable until the deadline. */
        call_end(call, rc == -EBADMSG ? -EBADMSG : -EIO);
        return;
    }
    call->status = rq->status;
    if (rq->status == ROZO__STATUS__BUSY && call_left_ms(call) > MD_BUSY_PAUSE_MS) {
        call->state = MD_CALL_PAUSING;
        env_timer_start(md->env, &call->timer, MD_BUSY_PAUSE_MS);
        return;
    }
    if (rq->status == ROZO__STATUS__NO_SESSION && (call->flags & MD_SESSIONLESS) == 0 &&
        call_left_ms(call) > 0) {
        md->mount_session_open = false;
        call_wait_for_session(call);
        md->config.mount_session_lost(md->config.arg);
        return;
    }
    if (rq->status == ROZO__STATUS__OK && rq->op != ROZO__OP__MD_OPEN_SESSION &&
        md->config.heard != NULL)
        md->config.heard(md->config.arg, call->sent_ns);
    /* BUSY and NO_SESSION count as answers only after the deadline */
    call->answered = true;
    call->answer = rq->answer_msg;
    call->answer_len = rq->answer_msg_len;
    call_end(call, status_to_errno(rq->status));
}

/* Sends a call that exportd has not executed yet, unless a link broke. */
static void call_transmit_anew(struct md_call *call, uint64_t again)
{
    if (!call->maybe_repeated)
        call->ups_at_send = call->md->n_ups;
    call_transmit(call, again);
}

static void on_call_timer(struct env_timer *timer)
{
    struct md_call *call = container_of(timer, struct md_call, timer);

    if (call->state == MD_CALL_WAITING)
        call_end(call, -EIO); /* no session until the deadline */
    else
        call_transmit_anew(call, 0); /* exportd was busy, or answered RETRY */
}

static void on_call_task(struct env_task *task)
{
    struct md_call *call = container_of(task, struct md_call, task);

    call_end(call, call->rc);
}

void md_client_session_is_open(struct md_client *md)
{
    md->mount_session_open = true;
    while (!list_is_empty(&md->waiting)) {
        struct md_call *call = container_of(md->waiting.next, struct md_call, link);

        list_remove(&call->link);
        env_timer_stop(md->env, &call->timer);
        if (call->may_go != NULL && !call->may_go(call))
            call_end(call, -EIO);
        else
            call_transmit_anew(call, call->rq.id); /* was refused or never sent */
    }
}

void md_client_session_is_lost(struct md_client *md)
{
    md->mount_session_open = false;
}

void md_client_channel_is_up(struct md_client *md)
{
    md->n_ups++;
}

/* Packs the message into the call. */
static int call_pack(struct md_call *call, const ProtobufCMessage *msg)
{
    call->msg_len = protobuf_c_message_get_packed_size(msg);
    call->msg = call->inline_msg;
    if (call->msg_len > RPC_MSG_MAX)
        return -E2BIG;
    if (call->msg_len > MD_MSG_INLINE) {
        call->msg = malloc(call->msg_len);
        if (call->msg == NULL)
            return -ENOMEM;
    }
    protobuf_c_message_pack(msg, call->msg);
    return 0;
}

void md_client_send_within(struct md_client *md, struct md_call *call, uint16_t op,
                           const ProtobufCMessage *msg, unsigned flags,
                           uint32_t timeout_ms, md_done_cb *done, void *arg)
{
    assert(call->state == MD_CALL_IDLE);
    call->md = md;
    call->done = done;
    call->arg = arg;
    call->flags = flags;
    call->answer = NULL;
    call->answer_len = 0;
    call->status = ROZO__STATUS__OK;
    call->answered = false;
    call->maybe_repeated = false;
    call->may_go = NULL;
    call->ups_at_send = md->n_ups;
    call->deadline_ns = env_now_ns(md->env) + ms_to_ns(timeout_ms);
    env_timer_init(&call->timer, on_call_timer);
    call->task.fn = on_call_task;
    call->rq.op = op;
    call->rq.id = 0;
    md->n_calls++;

    call->rc = call_pack(call, msg);
    if (call->rc != 0) {
        call->state = MD_CALL_ENDED;
        env_post(md->env, &call->task);
    } else if (md->mount_session_open || (flags & MD_SESSIONLESS) != 0) {
        call_transmit(call, 0);
    } else {
        call_wait_for_session(call);
    }
}

void md_client_send(struct md_client *md, struct md_call *call, uint16_t op,
                    const ProtobufCMessage *msg, unsigned flags, md_done_cb *done,
                    void *arg)
{
    md_client_send_within(md, call, op, msg, flags, md->config.timeout_ms, done, arg);
}

bool md_client_cancel(struct md_call *call, bool only_unsent)
{
    switch (call->state) {
    case MD_CALL_IDLE:
    case MD_CALL_ENDED:
        return false;
    case MD_CALL_SENT:
        if (only_unsent)
            return false;
        rpc_cancel(&call->rq);
        break;
    case MD_CALL_WAITING:
        list_remove(&call->link);
        break;
    case MD_CALL_PAUSING:
    case MD_CALL_SENT_BACK:
        break;
    }
    env_timer_stop(call->md->env, &call->timer);
    call->state = MD_CALL_IDLE;
    call->md->n_calls--;
    if (call->msg != call->inline_msg)
        free(call->msg);
    call->msg = NULL;
    return true;
}

bool md_client_send_again(struct md_call *call, uint32_t pause_ms)
{
    assert(call->state == MD_CALL_SENT_BACK);
    if (call_left_ms(call) <= pause_ms) {
        md_client_cancel(call, false);
        return false;
    }
    call->answered = false;
    call->state = MD_CALL_PAUSING;
    env_timer_start(call->md->env, &call->timer, pause_ms);
    return true;
}

int md_client_user_errno(int rc)
{
    switch (rc) {
    case -EBADMSG:
    case -EBUSY:
    case -ENOSYS:
    case -ROZO_ENO_SESSION:
    case -ROZO_EFENCED:
    case -ROZO_ENOT_LEADER:
    case -ROZO_ESTALE_VERSION:
    case -ROZO_EDONE_BEFORE:
    case -ROZO_ENO_FILE:
    case -ROZO_EDAMAGED:
    case -ROZO_ENOT_ADMITTED:
    case -ROZO_EDEPOSED:
    case -ROZO_EWRONG_STORAGE:
    case -ROZO_EMOVED:
    case -ROZO_EUNKNOWN_FORMAT:
    case -ETIMEDOUT:
    case -ENOTCONN:
        return -EIO;
    case -ROZO_ERETRY: /* the kernel looks the name up again and repeats its request */
        return -ESTALE;
    default:
        return rc;
    }
}
