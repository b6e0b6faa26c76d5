/*
 * admin.c - requests to exportd, one at a time.
 *
 * In:     the verbs.
 * Out:    an rpc channel on a private loop, run until the answer comes.
 * Keeps:  no call waits longer than CALL_MAX_MS, unless set otherwise; an exportd that
 *         refuses connections gets REFUSED_MS only. Answers are checked like anything
 *         from the network (I8).
 */
#include "deploy/client/admin.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/wire/status.h"
#include "deploy/cli/interrupt.h"
#include "deploy/client/rpc_loop.h"

enum {
    CALL_MAX_MS = 10000,
    REFUSED_MS = 1500,
    BUSY_MAX_MS = 30000, /* longest wait while exportd serves lists of others */
    BUSY_PAUSE_MS = 200,
};

struct admin {
    char exportd[512];
    char key_path[PATH_MAX];
    struct rpc_loop *loop;       /* owned */
    struct exportd_link *link;   /* owned; NULL while there is none */
    struct rpc_channel *channel; /* borrowed: the one of link */
    uint32_t call_max_ms;
    /* Current call. */
    struct rpc_request rq;
    bool finished;
    int rc;
    uint16_t status;
    uint8_t *answer; /* owned copy */
    size_t answer_len;
    struct progress *progress;
    uint64_t start_ms;
};

static void call_give_up(struct admin *a, int rc)
{
    rpc_cancel(&a->rq);
    a->finished = true;
    a->rc = rc;
}

static void on_tick(void *arg)
{
    struct admin *a = arg;

    if (a->progress != NULL)
        progress_tick(a->progress);
    if (a->finished)
        return;
    if (interrupt_came())
        call_give_up(a, -EINTR);
    else if (clock_ms() - a->start_ms > REFUSED_MS &&
             rpc_channel_health(a->channel) == RPC_DOWN &&
             exportd_link_last_error(a->link)[0] != '\0')
        call_give_up(a, -ENOTCONN);
}

int admin_open(const char *exportd, const char *node_key, struct admin **out,
               struct err *err)
{
    struct admin *a = calloc(1, sizeof(*a));
    int rc;

    if (a == NULL)
        return err_wrap(err, -ENOMEM, "connect to exportd");
    snprintf(a->exportd, sizeof(a->exportd), "%s", exportd);
    snprintf(a->key_path, sizeof(a->key_path), "%s", node_key);
    a->call_max_ms = CALL_MAX_MS;
    rc = rpc_loop_open(node_key, &a->loop, err);
    if (rc == 0) {
        rc = rpc_loop_link(a->loop, exportd, &a->link, err);
        if (rc != 0)
            err_wrap(err, rc, "exportd at %s", exportd);
        else
            a->channel = exportd_link_channel(a->link);
    }
    if (rc != 0) {
        admin_close(a);
        return rc;
    }
    *out = a;
    return 0;
}

void admin_close(struct admin *a)
{
    if (a == NULL)
        return;
    rpc_loop_unlink(a->loop, a->link);
    rpc_loop_close(a->loop);
    free(a->answer);
    free(a);
}

void admin_wait_up_to(struct admin *a, uint32_t ms)
{
    a->call_max_ms = ms;
}

static void on_answer(struct rpc_request *rq, int rc)
{
    struct admin *a = rq->arg;

    a->finished = true;
    a->rc = rc;
    if (rc != 0)
        return;
    a->status = rq->status;
    a->answer = malloc(rq->answer_msg_len + 1);
    if (a->answer == NULL) {
        a->rc = -ENOMEM;
        return;
    }
    a->answer_len = rq->answer_msg_len;
    if (rq->answer_msg_len > 0)
        memcpy(a->answer, rq->answer_msg, rq->answer_msg_len);
}

/* Sets the message for a call without an answer. */
static int call_tell(struct admin *a, struct err *err)
{
    const char *why = exportd_link_last_error(a->link);

    if (a->rc == -EINTR)
        return err_set(err, a->rc, "interrupted");
    if (a->rc == -ENOTCONN || (a->rc == -ETIMEDOUT && why[0] != '\0'))
        return err_set(
            err, a->rc,
            "cannot talk to exportd at %s: %s. Is it running there, and is %s the "
            "node key of this cluster?",
            a->exportd, why[0] == '\0' ? "no connection" : why, a->key_path);
    if (a->rc == -ETIMEDOUT)
        return err_set(
            err, a->rc,
            "exportd at %s did not answer within %d s. It may be hung; look at its "
            "log",
            a->exportd, (int)a->call_max_ms / 1000);
    return err_wrap(err, a->rc, "ask exportd at %s", a->exportd);
}

int admin_call(struct admin *a, uint16_t op, const ProtobufCMessage *question,
               const ProtobufCMessageDescriptor *answer_type, struct progress *progress,
               uint16_t *status, ProtobufCMessage **answer, struct err *err)
{
    size_t len = protobuf_c_message_get_packed_size(question);
    uint8_t *packed = malloc(len + 1);

    if (packed == NULL)
        return err_wrap(err, -ENOMEM, "ask exportd");
    protobuf_c_message_pack(question, packed);
    memset(&a->rq, 0, sizeof(a->rq));
    a->rq.op = op;
    a->rq.deadline_ms = a->call_max_ms;
    a->rq.msg = packed;
    a->rq.msg_len = len;
    a->rq.done = on_answer;
    a->rq.arg = a;
    a->finished = false;
    a->progress = progress;
    a->start_ms = clock_ms();
    free(a->answer);
    a->answer = NULL;
    rpc_send(a->channel, &a->rq);
    free(packed);
    rpc_loop_run(a->loop, &a->finished, on_tick, a);
    if (a->rc != 0)
        return call_tell(a, err);
    *status = a->status;
    *answer = protobuf_c_message_unpack(answer_type, NULL, a->answer_len, a->answer);
    if (*answer == NULL)
        return err_set(err, -EBADMSG,
                       "exportd at %s answered what this rozo (%s) cannot read",
                       a->exportd, ROZO_VERSION);
    return 0;
}

/* Sets the message for an answer that is not OK: exportd's own, else one by the
 * status. */
static int status_tell(const struct admin *a, uint16_t status, const char *message,
                       struct err *err)
{
    int rc = status_to_errno(status);

    if (rc == 0)
        return 0;
    if (message != NULL && message[0] != '\0')
        return err_set(err, rc, "%s", message);
    if (status == ROZO__STATUS__DENIED)
        return err_set(err, rc, "exportd at %s lets only holders of the node key do this",
                       a->exportd);
    if (status == ROZO__STATUS__UNKNOWN_OP)
        return err_set(err, rc,
                       "the daemon at %s does not know this request: it is not exportd "
                       "(but a storage?), or older than this rozo (%s)",
                       a->exportd, ROZO_VERSION);
    if (status == ROZO__STATUS__NO_SPACE)
        return err_set(err, rc,
                       "exportd at %s has no room for more metadata: free 64 MiB or more "
                       "where its data lie",
                       a->exportd);
    return err_set(err, rc, "exportd at %s answered %s", a->exportd, status_name(status));
}

int admin_status(struct admin *a, struct progress *progress, Rozo__AdStatusResp **out,
                 struct err *err)
{
    Rozo__AdStatusReq question = ROZO__AD_STATUS_REQ__INIT;
    ProtobufCMessage *answer;
    uint16_t status;
    int rc =
        admin_call(a, ROZO__OP__AD_STATUS, &question.base,
                   &rozo__ad_status_resp__descriptor, progress, &status, &answer, err);

    if (rc != 0)
        return rc;
    *out = (Rozo__AdStatusResp *)answer;
    rc = status_tell(a, status, NULL, err);
    if (rc != 0) {
        rozo__ad_status_resp__free_unpacked(*out, NULL);
        *out = NULL;
    }
    return rc;
}

/* Requests a change. Every answer has its result as the first field and exportd's message
 * as the second; `what` names the result, for people. *answer is NULL after a failure. */
static int admin_change(struct admin *a, uint16_t op, const ProtobufCMessage *question,
                        const ProtobufCMessageDescriptor *descriptor, const char *what,
                        struct progress *progress, ProtobufCMessage **answer,
                        struct err *err)
{
    const ProtobufCFieldDescriptor *fields = descriptor->fields;
    const void *thing;
    const char *message;
    uint16_t status;
    int rc = admin_call(a, op, question, descriptor, progress, &status, answer, err);

    assert(descriptor->n_fields == 2 && fields[0].type == PROTOBUF_C_TYPE_MESSAGE &&
           fields[1].type == PROTOBUF_C_TYPE_STRING);
    if (rc != 0) {
        *answer = NULL;
        return rc;
    }
    memcpy(&thing, (const char *)*answer + fields[0].offset, sizeof(thing));
    memcpy(&message, (const char *)*answer + fields[1].offset, sizeof(message));
    rc = status_tell(a, status, message, err);
    if (rc == 0 && thing == NULL)
        rc = err_set(err, -EBADMSG, "exportd at %s said OK but not which %s", a->exportd,
                     what);
    if (rc != 0) {
        protobuf_c_message_free_unpacked(*answer, NULL);
        *answer = NULL;
    }
    return rc;
}

int admin_storage_add(struct admin *a, char **addresses, size_t n_addresses,
                      const char *volume, struct progress *progress,
                      Rozo__AdStorageAddResp **out, struct err *err)
{
    Rozo__AdStorageAddReq question = ROZO__AD_STORAGE_ADD_REQ__INIT;
    ProtobufCMessage *answer;
    int rc;

    question.addresses = addresses;
    question.n_addresses = n_addresses;
    question.volume = (char *)volume;
    rc = admin_change(a, ROZO__OP__AD_STORAGE_ADD, &question.base,
                      &rozo__ad_storage_add_resp__descriptor, "storage", progress,
                      &answer, err);
    *out = (Rozo__AdStorageAddResp *)answer;
    return rc;
}

int admin_volume_create(struct admin *a, const char *name, struct progress *progress,
                        Rozo__AdVolumeCreateResp **out, struct err *err)
{
    Rozo__AdVolumeCreateReq question = ROZO__AD_VOLUME_CREATE_REQ__INIT;
    ProtobufCMessage *answer;
    int rc;

    question.name = (char *)name;
    rc = admin_change(a, ROZO__OP__AD_VOLUME_CREATE, &question.base,
                      &rozo__ad_volume_create_resp__descriptor, "volume", progress,
                      &answer, err);
    *out = (Rozo__AdVolumeCreateResp *)answer;
    return rc;
}

int admin_export_create(struct admin *a, const Rozo__AdExportCreateReq *question,
                        struct progress *progress, Rozo__AdExportCreateResp **out,
                        struct err *err)
{
    ProtobufCMessage *answer;
    int rc;

    rc = admin_change(a, ROZO__OP__AD_EXPORT_CREATE, &question->base,
                      &rozo__ad_export_create_resp__descriptor, "export", progress,
                      &answer, err);
    *out = (Rozo__AdExportCreateResp *)answer;
    return rc;
}

int admin_storage_replace(struct admin *a, const Rozo__AdStorageReplaceReq *question,
                          struct progress *progress, Rozo__AdStorageReplaceResp **out,
                          struct err *err)
{
    ProtobufCMessage *answer;
    int rc;

    rc = admin_change(a, ROZO__OP__AD_STORAGE_REPLACE, &question->base,
                      &rozo__ad_storage_replace_resp__descriptor, "storage", progress,
                      &answer, err);
    *out = (Rozo__AdStorageReplaceResp *)answer;
    return rc;
}

int admin_storage_lost(struct admin *a, uint32_t id, bool lost, struct progress *progress,
                       Rozo__AdStorageLostResp **out, struct err *err)
{
    Rozo__AdStorageLostReq question = ROZO__AD_STORAGE_LOST_REQ__INIT;
    ProtobufCMessage *answer;
    int rc;

    question.id = id;
    question.lost = lost;
    rc = admin_change(a, ROZO__OP__AD_STORAGE_LOST, &question.base,
                      &rozo__ad_storage_lost_resp__descriptor, "storage", progress,
                      &answer, err);
    *out = (Rozo__AdStorageLostResp *)answer;
    return rc;
}

int admin_stream_reserve(struct admin *a, Rozo__Stream *stream, struct progress *progress,
                         Rozo__AdStreamReserveResp **out, struct err *err)
{
    Rozo__AdStreamReserveReq question = ROZO__AD_STREAM_RESERVE_REQ__INIT;
    ProtobufCMessage *answer;
    int rc;

    question.stream = stream;
    rc = admin_change(a, ROZO__OP__AD_STREAM_RESERVE, &question.base,
                      &rozo__ad_stream_reserve_resp__descriptor, "streams", progress,
                      &answer, err);
    *out = (Rozo__AdStreamReserveResp *)answer;
    return rc;
}

int admin_stream_release(struct admin *a, const char *export, const char *host,
                         struct progress *progress, Rozo__AdStreamReleaseResp **out,
                         struct err *err)
{
    Rozo__AdStreamReleaseReq question = ROZO__AD_STREAM_RELEASE_REQ__INIT;
    ProtobufCMessage *answer;
    int rc;

    question.export = (char *)(uintptr_t) export;
    question.host = (char *)(uintptr_t)host;
    rc = admin_change(a, ROZO__OP__AD_STREAM_RELEASE, &question.base,
                      &rozo__ad_stream_release_resp__descriptor, "streams", progress,
                      &answer, err);
    *out = (Rozo__AdStreamReleaseResp *)answer;
    return rc;
}

int admin_stream_list(struct admin *a, struct progress *progress,
                      Rozo__AdStreamListResp **out, struct err *err)
{
    Rozo__AdStreamListReq question = ROZO__AD_STREAM_LIST_REQ__INIT;
    ProtobufCMessage *answer;
    uint16_t status;
    int rc = admin_call(a, ROZO__OP__AD_STREAM_LIST, &question.base,
                        &rozo__ad_stream_list_resp__descriptor, progress, &status,
                        &answer, err);

    *out = rc == 0 ? (Rozo__AdStreamListResp *)answer : NULL;
    if (rc == 0)
        rc = status_tell(a, status, "", err);
    if (rc != 0) {
        rozo__ad_stream_list_resp__free_unpacked(*out, NULL);
        *out = NULL;
    }
    return rc;
}

/* Asks a question about metadata, again while exportd serves others. *out is NULL after a
 * failure. */
static int admin_ask(struct admin *a, uint16_t op, const ProtobufCMessage *question,
                     const ProtobufCMessageDescriptor *descriptor,
                     struct progress *progress, ProtobufCMessage **out, struct err *err)
{
    uint64_t end_ms = clock_ms() + BUSY_MAX_MS;
    uint16_t status;
    int rc;

    for (;;) {
        rc = admin_call(a, op, question, descriptor, progress, &status, out, err);
        if (rc != 0)
            return rc;
        if (status != ROZO__STATUS__BUSY || clock_ms() >= end_ms || interrupt_came())
            break;
        protobuf_c_message_free_unpacked(*out, NULL);
        interrupt_pause_ms(BUSY_PAUSE_MS);
    }
    rc = status_tell(a, status, NULL, err);
    if (rc != 0) {
        protobuf_c_message_free_unpacked(*out, NULL);
        *out = NULL;
    }
    return rc;
}

int admin_inodes(struct admin *a, const Rozo__AdInodesReq *question,
                 struct progress *progress, Rozo__AdInodesResp **out, struct err *err)
{
    ProtobufCMessage *answer = NULL;
    int rc = admin_ask(a, ROZO__OP__AD_INODES, &question->base,
                       &rozo__ad_inodes_resp__descriptor, progress, &answer, err);

    *out = (Rozo__AdInodesResp *)answer;
    return rc;
}

int admin_names(struct admin *a, const Rozo__AdNamesReq *question,
                struct progress *progress, Rozo__AdNamesResp **out, struct err *err)
{
    ProtobufCMessage *answer = NULL;
    int rc = admin_ask(a, ROZO__OP__AD_NAMES, &question->base,
                       &rozo__ad_names_resp__descriptor, progress, &answer, err);

    *out = (Rozo__AdNamesResp *)answer;
    return rc;
}
