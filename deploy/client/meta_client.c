/*
 * meta_client.c - questions to the exportds of a quorum.
 *
 * In:     `rozo meta`.
 * Out:    one channel to each exportd; one request on each at a time.
 * Keeps:  answers are checked like anything from the network (I8); one that refuses
 *         connections costs REFUSED_MS only, one that hangs SLOW_MS if another one
 *         answers.
 */
#include "deploy/client/meta_client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ASK_MS = 3000,
    SLOW_MS = 1500,
    LEADER_MAX_MS = 2500, /* for all and then for the leader that they name ... */
    LEADER_MIN_MS = 1000, /* ... which has so long at least */
    REFUSED_MS = 300,
    TRANSFER_MS = 10000,
    CHANGE_MS = 15000,
    INIT_MS = 60000, /* exportd stops its core in order first */
};

static struct meta_client_member *member_of(struct daemon_ask *a)
{
    return container_of(a, struct meta_client_member, ask);
}

/* ---- state ---- */

static void on_status(struct daemon_ask *a, const struct rpc_request *rq)
{
    struct meta_client_member *m = member_of(a);

    if (rq->status == ROZO__STATUS__UNKNOWN_OP ||
        rq->status == ROZO__STATUS__NOT_SUPPORTED) {
        m->has_no_quorum = true;
        daemon_ask_fail(
            a, "it is no member of a quorum (`rozo meta init` makes it the first one)");
    } else if (rq->status == ROZO__STATUS__NOT_LEADER) {
        daemon_ask_fail(a, "it is stopping");
    } else if (rq->status == ROZO__STATUS__OK) {
        m->answer =
            rozo__ad_meta_status_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
        if (m->answer == NULL)
            daemon_ask_fail(a, "the answer is invalid");
    }
}

static void answers_clear(struct meta_client *c)
{
    for (unsigned i = 0; i < c->n; i++) {
        struct meta_client_member *m = &c->members[i];

        if (m->answer != NULL)
            rozo__ad_meta_status_resp__free_unpacked(m->answer, NULL);
        m->answer = NULL;
        m->has_no_quorum = false;
    }
}

/* Asks the members from this one on, which have no answers yet. */
static void ask_from(struct meta_client *c, unsigned first, uint32_t ms)
{
    Rozo__AdMetaStatusReq question = ROZO__AD_META_STATUS_REQ__INIT;

    for (unsigned i = first; i < c->n; i++)
        daemon_ask_send(&c->members[i].ask, ROZO__OP__AD_META_STATUS, &question.base, ms,
                        on_status);
    daemon_asks_wait(&c->asks);
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
    rc = daemon_ask_open(&c->asks, &m->ask, addresses, 1, err);
    if (rc == 0)
        c->n++;
    return rc == 0 ? 0 : err_wrap(err, rc, "exportd at %s", m->address);
}

static bool has_address(const struct meta_client *c, const char *address)
{
    for (unsigned i = 0; i < c->n; i++) {
        if (strcmp(c->members[i].address, address) == 0)
            return true;
    }
    return false;
}

/* Returns whether the member with this id has answered. */
static bool has_answer_of(const struct meta_client *c, uint64_t id)
{
    for (unsigned i = 0; i < c->n; i++) {
        if (c->members[i].answer != NULL && c->members[i].answer->id == id)
            return true;
    }
    return false;
}

/* Adds the addresses of the leader that this answer names, if they are new. */
static void leader_add(struct meta_client *c, const Rozo__AdMetaStatusResp *a)
{
    struct err err;

    if (a->leader == 0 || has_answer_of(c, a->leader))
        return;
    for (size_t i = 0; i < a->n_members; i++) {
        const Rozo__AdMetaStatusResp__Member *m = a->members[i];

        for (size_t k = 0; m->id == a->leader && k < m->n_clients; k++) {
            if (!has_address(c, m->clients[k]))
                member_add(c, m->clients[k], strlen(m->clients[k]), &err);
        }
    }
}

void meta_client_ask(struct meta_client *c)
{
    uint64_t end_ms = clock_ms() + LEADER_MAX_MS - LEADER_MIN_MS, now_ms;
    unsigned n = c->n;

    answers_clear(c);
    ask_from(c, 0, ASK_MS);
    if (meta_client_serving(c) != NULL)
        return;
    for (unsigned i = 0; i < n; i++) {
        if (c->members[i].answer != NULL)
            leader_add(c, c->members[i].answer);
    }
    now_ms = clock_ms();
    if (c->n > n)
        ask_from(c, n,
                 LEADER_MIN_MS + (now_ms < end_ms ? (uint32_t)(end_ms - now_ms) : 0));
}

const Rozo__AdMetaStatusResp *meta_client_newest(const struct meta_client *c)
{
    const Rozo__AdMetaStatusResp *best = NULL;

    for (unsigned i = 0; i < c->n; i++) {
        const Rozo__AdMetaStatusResp *a = c->members[i].answer;

        if (a != NULL && (best == NULL || a->term > best->term ||
                          (a->term == best->term && a->leads && !best->leads)))
            best = a;
    }
    return best;
}

int meta_client_alone_check(const struct meta_client *c, struct err *err)
{
    for (unsigned i = 0; i < c->n; i++) {
        if (c->members[i].has_no_quorum)
            return err_set(err, -EOPNOTSUPP, "exportd at %s is alone: %s",
                           c->members[i].address, c->members[i].ask.message);
    }
    return 0;
}

int meta_client_answers_check(const struct meta_client *c, struct err *err)
{
    int rc = meta_client_newest(c) != NULL ? 0 : meta_client_alone_check(c, err);

    if (rc != 0 || meta_client_newest(c) != NULL)
        return rc;
    return err_set(err, -ENOTCONN, "no exportd answers: %s: %s", c->members[0].address,
                   c->members[0].ask.message);
}

const Rozo__AdMetaStatusResp__Member *meta_client_listed(const Rozo__AdMetaStatusResp *a,
                                                         uint64_t id)
{
    for (size_t i = 0; i < a->n_members; i++) {
        if (a->members[i]->id == id)
            return a->members[i];
    }
    return NULL;
}

/* ---- changes ---- */

/* Asks one of them for a change. Returns 0, or -errno with a text. */
static int change(struct meta_client *c, struct meta_client_member *m, uint16_t op,
                  const ProtobufCMessage *question, uint32_t ms,
                  void (*take)(struct daemon_ask *a, const struct rpc_request *rq),
                  struct err *err)
{
    int rc;

    c->changed_id = 0;
    c->changed.text[0] = '\0';
    rc = daemon_ask_one(&m->ask, op, question, ms, take);
    if (rc == 0)
        return 0;
    if (c->changed.text[0] != '\0')
        return err_set(err, rc, "%s", c->changed.text);
    return err_set(err, rc, "exportd at %s: %s", m->address,
                   m->ask.rc != 0 ? m->ask.message : error_text(rc));
}

int meta_client_transfer(struct meta_client *c, struct meta_client_member *m, uint64_t to,
                         struct err *err)
{
    Rozo__AdMetaTransferReq question = ROZO__AD_META_TRANSFER_REQ__INIT;
    int rc;

    question.to = to;
    rc = change(c, m, ROZO__OP__AD_META_TRANSFER, &question.base, TRANSFER_MS, NULL, err);
    if (rc == -ENOENT)
        return err_set(err, rc, "member %llu is no voter of the quorum",
                       (unsigned long long)to);
    if (rc == -ETIMEDOUT)
        return err_set(err, rc,
                       "no other member took over: the one that was to lead may be down, "
                       "or too far behind");
    return rc;
}

static void changed_text(struct meta_client *c, const char *error)
{
    snprintf(c->changed.text, sizeof(c->changed.text), "%s", error);
}

static void on_added(struct daemon_ask *ask, const struct rpc_request *rq)
{
    Rozo__AdMetaAddResp *a =
        rozo__ad_meta_add_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);

    if (a == NULL)
        return;
    member_of(ask)->client->changed_id = a->id;
    changed_text(member_of(ask)->client, a->error);
    rozo__ad_meta_add_resp__free_unpacked(a, NULL);
}

static void on_removed(struct daemon_ask *ask, const struct rpc_request *rq)
{
    Rozo__AdMetaRemoveResp *a =
        rozo__ad_meta_remove_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);

    if (a == NULL)
        return;
    changed_text(member_of(ask)->client, a->error);
    rozo__ad_meta_remove_resp__free_unpacked(a, NULL);
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
    rc = change(c, m, ROZO__OP__AD_META_ADD, &question.base, CHANGE_MS, on_added, err);
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
    return change(c, m, ROZO__OP__AD_META_REMOVE, &question.base, CHANGE_MS, on_removed,
                  err);
}

static void on_inited(struct daemon_ask *ask, const struct rpc_request *rq)
{
    struct meta_client *c = member_of(ask)->client;

    c->inited = rozo__ad_meta_init_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    if (c->inited == NULL) {
        ask->rc = -EBADMSG;
        daemon_ask_fail(ask, "the answer is invalid");
    } else if (c->inited->error[0] != '\0') {
        snprintf(c->changed.text, sizeof(c->changed.text), "exportd at %s: %s",
                 member_of(ask)->address, c->inited->error);
    }
}

int meta_client_init(struct meta_client *c, struct meta_client_member *m,
                     const char *address, Rozo__AdMetaInitResp **out, struct err *err)
{
    Rozo__AdMetaInitReq question = ROZO__AD_META_INIT_REQ__INIT;
    int rc;

    if (strlen(address) >= RPC_ADDR_TEXT_MAX)
        return err_set(err, -ENAMETOOLONG, "--address: it is too long");
    question.address = (char *)address;
    c->inited = NULL;
    rc = change(c, m, ROZO__OP__AD_META_INIT, &question.base, INIT_MS, on_inited, err);
    if (rc == 0) {
        *out = c->inited;
        return 0;
    }
    if (c->inited != NULL)
        rozo__ad_meta_init_resp__free_unpacked(c->inited, NULL);
    return rc != -ENOSYS
               ? rc
               : err_set(err, rc,
                         "exportd at %s: it is older than quorums that are made of a "
                         "running exportd",
                         m->address);
}

/* ---- life ---- */

int meta_client_open(const char *list, const char *node_key, struct meta_client **out,
                     struct err *err)
{
    struct meta_client *c = calloc(1, sizeof(*c));
    int rc;

    if (c == NULL)
        return err_wrap(err, -ENOMEM, "connect to exportd");
    rc = daemon_asks_open(&c->asks, node_key, REFUSED_MS, err);
    c->asks.slow_max_ms = SLOW_MS;
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
        daemon_ask_close(&c->asks, &c->members[i].ask);
    daemon_asks_close(&c->asks);
    free(c);
}
