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
#include <stdlib.h>

enum { REFUSED_MS = 1500 };

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
                            : daemon_asks_open(&f->asks, node_key, REFUSED_MS, err);
    for (size_t i = 0; rc == 0 && i < status->n_storages; i++) {
        struct storage_clients_member *m = &f->members[f->n++];

        m->st = status->storages[i];
        m->id = m->st->id;
    }
    qsort(f->members, f->n, sizeof(f->members[0]), by_id);
    for (size_t i = 0; rc == 0 && i < f->n; i++) {
        struct storage_clients_member *m = &f->members[i];

        /* One with invalid addresses has no channel: it fails when it is asked. */
        daemon_ask_open(&f->asks, &m->ask, (const char *const *)m->st->addresses,
                        (unsigned)m->st->n_addresses, NULL);
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
        m->ask.message[0] = '\0';
    }
}

void storage_clients_close(struct storage_clients *f)
{
    if (f == NULL)
        return;
    storage_clients_clear(f);
    for (size_t i = 0; i < f->n; i++)
        daemon_ask_close(&f->asks, &f->members[i].ask);
    daemon_asks_close(&f->asks);
    free(f->members);
    free(f);
}

struct storage_clients_member *storage_clients_find(struct storage_clients *f,
                                                    uint32_t id)
{
    struct storage_clients_member key = { .id = id };

    return bsearch(&key, f->members, f->n, sizeof(key), by_id);
}

static void on_answer(struct daemon_ask *a, const struct rpc_request *rq)
{
    struct storage_clients_member *m =
        container_of(a, struct storage_clients_member, ask);

    if (rq->status != ROZO__STATUS__OK || m->answer_type == NULL)
        return;
    m->answer = protobuf_c_message_unpack(m->answer_type, NULL, rq->answer_msg_len,
                                          rq->answer_msg);
    if (m->answer != NULL)
        return;
    a->rc = -EBADMSG;
    daemon_ask_fail(a, "the answer is invalid");
}

int storage_clients_ask(struct storage_clients *f, uint16_t op,
                        const ProtobufCMessageDescriptor *answer_type,
                        uint32_t deadline_ms, struct progress *progress)
{
    f->asks.progress = progress;
    for (size_t i = 0; i < f->n; i++) {
        struct storage_clients_member *m = &f->members[i];

        if (m->answer != NULL)
            protobuf_c_message_free_unpacked(m->answer, NULL);
        m->answer = NULL;
        m->answer_type = answer_type;
        m->asked = m->question != NULL;
        if (m->asked)
            daemon_ask_send(&m->ask, op, m->question, deadline_ms, on_answer);
    }
    return daemon_asks_wait(&f->asks);
}
