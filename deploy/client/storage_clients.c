/*
 * storage_clients.c - requests to all storages at once.
 *
 * In:     verbs that heal, scrub and check.
 * Out:    one request per storage at a time, all of them together.
 * Keeps:  answers are checked like anything from the network (I8); a storage without an
 *         answer costs no more than the deadline, and gets an error message.
 */
#include "deploy/client/storage_clients.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/err.h"
#include "common/base/status.h"
#include "deploy/client/rpc_loop.h"

enum { REFUSED_MS = 1500 };

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

void storage_clients_catch_signals(void)
{
    struct sigaction act = { .sa_handler = on_signal };

    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
}

bool storage_clients_is_interrupted(void)
{
    return interrupted != 0;
}

void storage_clients_pause_ms(uint32_t ms)
{
    for (uint64_t end_ms = clock_ms() + ms; !interrupted && clock_ms() < end_ms;) {
        struct timespec slice = { .tv_nsec = 20000000 };

        nanosleep(&slice, NULL); /* short, since a signal may come before it begins */
    }
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = ((const struct storage_clients_member *)a)->id,
             y = ((const struct storage_clients_member *)b)->id;

    return x < y ? -1 : x > y;
}

int storage_clients_open(const Rozo__AdStatusResp *status, const char *node_key,
                         struct storage_clients **out, struct err *err)
{
    struct storage_clients *f = calloc(1, sizeof(*f));
    int rc;

    if (f == NULL)
        return err_wrap(err, -ENOMEM, "connect to storages");
    f->members = calloc(status->n_storages + 1, sizeof(*f->members));
    rc = f->members == NULL ? err_wrap(err, -ENOMEM, "connect to storages")
                            : rpc_loop_open(node_key, &f->loop, err);
    for (size_t i = 0; rc == 0 && i < status->n_storages; i++) {
        struct storage_clients_member *m = &f->members[f->n++];

        m->st = status->storages[i];
        m->id = m->st->id;
        m->fleet = f;
    }
    qsort(f->members, f->n, sizeof(f->members[0]), by_id);
    for (size_t i = 0; rc == 0 && i < f->n; i++) {
        struct storage_clients_member *m = &f->members[i];
        struct err why = { 0 };

        if (rpc_loop_connect(f->loop, (const char *const *)m->st->addresses,
                             (unsigned)m->st->n_addresses, &m->channel, &why) != 0)
            m->channel = NULL;
    }
    if (rc != 0) {
        storage_clients_close(f);
        return rc;
    }
    *out = f;
    return 0;
}

void storage_clients_clear(struct storage_clients *f)
{
    for (size_t i = 0; i < f->n; i++) {
        struct storage_clients_member *m = &f->members[i];

        if (m->answer != NULL)
            protobuf_c_message_free_unpacked(m->answer, NULL);
        m->answer = NULL;
        m->question = NULL;
        m->asked = false;
        m->message[0] = '\0';
    }
}

void storage_clients_close(struct storage_clients *f)
{
    if (f == NULL)
        return;
    storage_clients_clear(f);
    for (size_t i = 0; i < f->n; i++)
        rpc_loop_disconnect(f->loop, f->members[i].channel);
    rpc_loop_close(f->loop);
    free(f->members);
    free(f);
}

struct storage_clients_member *storage_clients_find(struct storage_clients *f,
                                                    uint32_t id)
{
    struct storage_clients_member key = { .id = id };

    return bsearch(&key, f->members, f->n, sizeof(key), by_id);
}

static void member_fail(struct storage_clients_member *m, int rc, const char *why)
{
    m->rc = rc;
    snprintf(m->message, sizeof(m->message), "%s", why);
}

static void member_done(struct storage_clients_member *m)
{
    m->out = false;
    if (--m->fleet->n_out == 0)
        m->fleet->done = true;
}

static void on_answer(struct rpc_request *rq, int rc)
{
    struct storage_clients_member *m = rq->arg;
    const char *why;

    m->rc = rc;
    if (rc != 0) {
        why = rpc_tcp_channel_last_error(m->channel);
        member_fail(m, rc,
                    why[0] != '\0'     ? why
                    : rc == -ETIMEDOUT ? "it does not answer"
                                       : error_text(rc));
    } else {
        m->status = rq->status;
        if (rq->status == ROZO__STATUS__UNKNOWN_OP)
            member_fail(m, 0, "its version does not know this request");
        else if (rq->status != ROZO__STATUS__OK)
            member_fail(m, 0, status_name(rq->status));
        else if (m->answer_type != NULL)
            m->answer = protobuf_c_message_unpack(m->answer_type, NULL,
                                                  rq->answer_msg_len, rq->answer_msg);
        if (rq->status == ROZO__STATUS__OK && m->answer_type != NULL && m->answer == NULL)
            member_fail(m, -EBADMSG, "the answer is invalid");
    }
    member_done(m);
}

static void member_send(struct storage_clients_member *m, uint16_t op,
                        uint32_t deadline_ms)
{
    size_t len = protobuf_c_message_get_packed_size(m->question);
    uint8_t *packed = malloc(len + 1);

    m->asked = true;
    m->rc = 0;
    m->status = 0;
    m->message[0] = '\0';
    if (packed == NULL || m->channel == NULL) {
        member_fail(m, -EINVAL,
                    packed == NULL ? "out of memory" : "its addresses make no sense");
        free(packed);
        return;
    }
    protobuf_c_message_pack(m->question, packed);
    m->rq = (struct rpc_request){
        .op = op,
        .deadline_ms = deadline_ms,
        .msg = packed,
        .msg_len = len,
        .done = on_answer,
        .arg = m,
    };
    m->out = true;
    m->fleet->n_out++;
    rpc_send(m->channel, &m->rq);
    free(packed);
}

static void member_cancel(struct storage_clients_member *m, int rc, const char *why)
{
    rpc_cancel(&m->rq);
    member_fail(m, rc, why);
    member_done(m);
}

/* Cancels requests to storages that refuse connections, sooner than those to storages
 * that do not answer. */
static void on_tick(void *arg)
{
    struct storage_clients *f = arg;

    if (f->progress != NULL)
        progress_tick(f->progress);
    for (size_t i = 0; i < f->n; i++) {
        struct storage_clients_member *m = &f->members[i];
        const char *why = m->out ? rpc_tcp_channel_last_error(m->channel) : "";

        if (!m->out)
            continue;
        if (interrupted)
            member_cancel(m, -EINTR, "interrupted");
        else if (clock_ms() >= m->fleet->refused_ms && why[0] != '\0' &&
                 rpc_channel_health(m->channel) == RPC_DOWN)
            member_cancel(m, -ENOTCONN, why);
    }
}

int storage_clients_ask(struct storage_clients *f, uint16_t op,
                        const ProtobufCMessageDescriptor *answer_type,
                        uint32_t deadline_ms, struct progress *progress)
{
    f->progress = progress;
    f->done = false;
    f->refused_ms = clock_ms() + REFUSED_MS;
    for (size_t i = 0; i < f->n; i++) {
        struct storage_clients_member *m = &f->members[i];

        if (m->answer != NULL)
            protobuf_c_message_free_unpacked(m->answer, NULL);
        m->answer = NULL;
        m->asked = false;
        m->answer_type = answer_type;
        if (m->question != NULL)
            member_send(m, op, deadline_ms);
    }
    if (f->n_out > 0)
        rpc_loop_run(f->loop, &f->done, on_tick, f);
    return interrupted ? -EINTR : 0;
}
