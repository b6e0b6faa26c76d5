/*
 * meta_client.c - questions to the exportds of a quorum.
 *
 * In:     `rozo meta`.
 * Out:    one channel to each exportd; one request on each at a time.
 * Keeps:  answers are checked like anything from the network (I8); one that refuses
 *         connections costs REFUSED_MS only.
 */
#include "deploy/client/meta_client.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/status.h"
#include "deploy/client/rpc_loop.h"

enum {
    ASK_MS = 3000,
    REFUSED_MS = 300,
    TRANSFER_MS = 10000,
    CHANGE_MS = 15000,
    INIT_MS = 60000, /* exportd stops its core in order first */
    QUESTION_MAX = 512,
};

static void member_fail(struct meta_client_member *m, const char *why)
{
    snprintf(m->message, sizeof(m->message), "%s", why);
}

static void member_out_end(struct meta_client_member *m)
{
    struct meta_client *c = m->client;

    m->out = false;
    if (--c->n_out == 0)
        c->done = true;
}

static void on_tick(void *arg)
{
    struct meta_client *c = arg;

    if (c->progress != NULL)
        progress_tick(c->progress);
    for (unsigned i = 0; i < c->n; i++) {
        struct meta_client_member *m = &c->members[i];
        const char *why = m->out ? rpc_tcp_channel_last_error(m->channel) : "";

        if (why[0] == '\0' || clock_ms() < c->refused_ms ||
            rpc_channel_health(m->channel) != RPC_DOWN)
            continue;
        rpc_cancel(&m->rq);
        member_fail(m, why);
        c->rc = -ENOTCONN;
        member_out_end(m);
    }
}

/* Sends requests of all members that have one, and waits for the answers. */
static void client_run(struct meta_client *c)
{
    c->refused_ms = clock_ms() + REFUSED_MS;
    c->done = c->n_out == 0;
    rpc_loop_run(c->loop, &c->done, on_tick, c);
}

static void member_send(struct meta_client_member *m, uint16_t op,
                        const ProtobufCMessage *question, uint32_t deadline_ms,
                        rpc_done_cb *done)
{
    uint8_t packed[QUESTION_MAX];
    size_t len = protobuf_c_message_get_packed_size(question);

    assert(len <= sizeof(packed));
    protobuf_c_message_pack(question, packed);
    m->rq = (struct rpc_request){
        .op = op,
        .deadline_ms = deadline_ms,
        .msg = packed,
        .msg_len = len,
        .done = done,
        .arg = m,
    };
    m->out = true;
    m->client->n_out++;
    rpc_send(m->channel, &m->rq);
}

/* ---- state ---- */

static void answer_take(struct meta_client_member *m, const struct rpc_request *rq)
{
    if (rq->status == ROZO__STATUS__UNKNOWN_OP ||
        rq->status == ROZO__STATUS__NOT_SUPPORTED) {
        m->has_no_quorum = true;
        member_fail(
            m, "it is no member of a quorum (`rozo meta init` makes it the first one)");
    } else if (rq->status == ROZO__STATUS__NOT_LEADER) {
        member_fail(m, "it is stopping");
    } else if (rq->status != ROZO__STATUS__OK) {
        member_fail(m, status_name(rq->status));
    } else {
        m->answer =
            rozo__ad_meta_status_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
        if (m->answer == NULL)
            member_fail(m, "the answer is invalid");
    }
}

static void on_status(struct rpc_request *rq, int rc)
{
    struct meta_client_member *m = rq->arg;
    const char *why = rpc_tcp_channel_last_error(m->channel);

    if (rc == 0)
        answer_take(m, rq);
    else
        member_fail(m, why[0] != '\0'     ? why
                       : rc == -ETIMEDOUT ? "it does not answer"
                                          : error_text(rc));
    member_out_end(m);
}

static void answers_clear(struct meta_client *c)
{
    for (unsigned i = 0; i < c->n; i++) {
        struct meta_client_member *m = &c->members[i];

        if (m->answer != NULL)
            rozo__ad_meta_status_resp__free_unpacked(m->answer, NULL);
        m->answer = NULL;
        m->has_no_quorum = false;
        m->message[0] = '\0';
    }
}

void meta_client_ask(struct meta_client *c)
{
    Rozo__AdMetaStatusReq question = ROZO__AD_META_STATUS_REQ__INIT;

    answers_clear(c);
    for (unsigned i = 0; i < c->n; i++)
        member_send(&c->members[i], ROZO__OP__AD_META_STATUS, &question.base, ASK_MS,
                    on_status);
    client_run(c);
}

struct meta_client_member *meta_client_serving(struct meta_client *c)
{
    struct meta_client_member *found = NULL;

    /* One that does not know yet that it was deposed has an earlier term. */
    for (unsigned i = 0; i < c->n; i++) {
        struct meta_client_member *m = &c->members[i];

        if (m->answer != NULL && m->answer->serves &&
            (found == NULL || m->answer->term > found->answer->term))
            found = m;
    }
    return found;
}

/* ---- transfer ---- */

static void on_transferred(struct rpc_request *rq, int rc)
{
    struct meta_client_member *m = rq->arg;

    m->client->rc = rc;
    m->client->status = rq->status;
    member_out_end(m);
}

int meta_client_transfer(struct meta_client *c, struct meta_client_member *m, uint64_t to,
                         struct err *err)
{
    Rozo__AdMetaTransferReq question = ROZO__AD_META_TRANSFER_REQ__INIT;
    int rc;

    question.to = to;
    member_send(m, ROZO__OP__AD_META_TRANSFER, &question.base, TRANSFER_MS,
                on_transferred);
    client_run(c);
    rc = c->rc != 0 ? c->rc : status_to_errno(c->status);
    if (rc == -ENOENT && to == 0)
        return err_set(err, rc, "no other voter of the quorum keeps metadata");
    if (rc == -ENOENT)
        return err_set(
            err, rc,
            "member %llu is no voter of the quorum, or a witness, which has no "
            "metadata",
            (unsigned long long)to);
    if (rc == -ETIMEDOUT)
        return err_set(err, rc,
                       "no other member took over: the one that was to lead may be down, "
                       "or too far behind");
    return rc == 0 ? 0 : err_wrap(err, rc, "exportd at %s", m->address);
}

/* ---- changes of the list of members ---- */

/* Takes the answer to AD_META_ADD; that to AD_META_REMOVE has no id. */
static void added_take(struct meta_client *c, const struct rpc_request *rq)
{
    Rozo__AdMetaAddResp *a =
        rozo__ad_meta_add_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);

    if (a == NULL)
        return;
    c->changed_id = a->id;
    snprintf(c->changed.text, sizeof(c->changed.text), "%s", a->error);
    rozo__ad_meta_add_resp__free_unpacked(a, NULL);
}

static void removed_take(struct meta_client *c, const struct rpc_request *rq)
{
    Rozo__AdMetaRemoveResp *a =
        rozo__ad_meta_remove_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);

    if (a == NULL)
        return;
    snprintf(c->changed.text, sizeof(c->changed.text), "%s", a->error);
    rozo__ad_meta_remove_resp__free_unpacked(a, NULL);
}

static void on_changed(struct rpc_request *rq, int rc)
{
    struct meta_client_member *m = rq->arg;
    struct meta_client *c = m->client;

    c->rc = rc;
    c->status = rq->status;
    c->changed_id = 0;
    c->changed.text[0] = '\0';
    if (rc == 0 && rq->op == ROZO__OP__AD_META_ADD)
        added_take(c, rq);
    else if (rc == 0)
        removed_take(c, rq);
    member_out_end(m);
}

static int change(struct meta_client *c, struct meta_client_member *m, uint16_t op,
                  const ProtobufCMessage *question, struct err *err)
{
    int rc;

    member_send(m, op, question, CHANGE_MS, on_changed);
    client_run(c);
    rc = c->rc != 0 ? c->rc : status_to_errno(c->status);
    if (rc == 0)
        return 0;
    return c->changed.text[0] != '\0'
               ? err_set(err, rc, "%s", c->changed.text)
               : err_set(err, rc, "exportd at %s: %s", m->address, error_text(rc));
}

int meta_client_add(struct meta_client *c, struct meta_client_member *m,
                    const char *address, uint64_t replaces, bool is_witness, uint64_t *id,
                    struct err *err)
{
    Rozo__AdMetaAddReq question = ROZO__AD_META_ADD_REQ__INIT;
    int rc;

    if (strlen(address) >= RPC_ADDR_TEXT_MAX)
        return err_set(err, -ENAMETOOLONG, "\"%.40s...\" is too long", address);
    question.address = (char *)address;
    question.replaces = replaces;
    question.witness = is_witness;
    rc = change(c, m, ROZO__OP__AD_META_ADD, &question.base, err);
    if (rc == 0)
        *id = c->changed_id;
    return rc;
}

int meta_client_remove(struct meta_client *c, struct meta_client_member *m, uint64_t id,
                       bool is_forced, struct err *err)
{
    Rozo__AdMetaRemoveReq question = ROZO__AD_META_REMOVE_REQ__INIT;

    question.id = id;
    question.force = is_forced;
    return change(c, m, ROZO__OP__AD_META_REMOVE, &question.base, err);
}

/* ---- init ---- */

static void on_inited(struct rpc_request *rq, int rc)
{
    struct meta_client_member *m = rq->arg;
    struct meta_client *c = m->client;

    c->rc = rc;
    c->status = rq->status;
    if (rc == 0)
        c->inited =
            rozo__ad_meta_init_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    member_out_end(m);
}

int meta_client_init(struct meta_client *c, struct meta_client_member *m,
                     const char *address, Rozo__AdMetaInitResp **out, struct err *err)
{
    Rozo__AdMetaInitReq question = ROZO__AD_META_INIT_REQ__INIT;
    int rc;

    if (strlen(address) > QUESTION_MAX / 2)
        return err_set(err, -ENAMETOOLONG, "--address: it is too long");
    question.address = (char *)address;
    c->inited = NULL;
    member_send(m, ROZO__OP__AD_META_INIT, &question.base, INIT_MS, on_inited);
    client_run(c);
    rc = c->rc != 0 ? c->rc : status_to_errno(c->status);
    *out = c->inited;
    if (rc == 0 && *out != NULL)
        return 0;
    if (rc == 0)
        rc = err_set(err, -EBADMSG, "the answer is invalid");
    else if (rc == -ENOSYS)
        err_set(err, rc, "it is older than quorums that are made of a running exportd");
    else if (*out != NULL && (*out)->error[0] != '\0')
        err_set(err, rc, "%s", (*out)->error);
    if (*out != NULL)
        rozo__ad_meta_init_resp__free_unpacked(*out, NULL);
    *out = NULL;
    return err_wrap(err, rc, "exportd at %s", m->address);
}

/* ---- life ---- */

static int member_add(struct meta_client *c, const char *address, size_t len,
                      struct err *err)
{
    struct meta_client_member *m = &c->members[c->n];
    const char *addresses[1] = { m->address };
    int rc;

    if (c->n == RPC_ADDR_MAX)
        return err_set(err, -E2BIG, "--exportd: at most %d addresses", RPC_ADDR_MAX);
    if (len >= sizeof(m->address))
        return err_set(err, -ENAMETOOLONG, "--exportd: \"%.*s\" is too long", (int)len,
                       address);
    memcpy(m->address, address, len);
    m->client = c;
    rc = rpc_loop_connect(c->loop, addresses, 1, &m->channel, err);
    if (rc == 0)
        c->n++;
    return rc == 0 ? 0 : err_wrap(err, rc, "exportd at %s", m->address);
}

int meta_client_open(const char *list, const char *node_key, struct meta_client **out,
                     struct err *err)
{
    struct meta_client *c = calloc(1, sizeof(*c));
    int rc;

    if (c == NULL)
        return err_wrap(err, -ENOMEM, "connect to exportd");
    rc = rpc_loop_open(node_key, &c->loop, err);
    for (const char *at = list; rc == 0 && at != NULL;) {
        const char *end = strchrnul(at, ',');

        rc = member_add(c, at, (size_t)(end - at), err);
        at = *end == ',' ? end + 1 : NULL;
    }
    if (rc == 0)
        *out = c;
    else
        meta_client_close(c);
    return rc;
}

void meta_client_close(struct meta_client *c)
{
    if (c == NULL)
        return;
    answers_clear(c);
    for (unsigned i = 0; i < c->n; i++)
        rpc_loop_disconnect(c->loop, c->members[i].channel);
    rpc_loop_close(c->loop);
    free(c);
}
