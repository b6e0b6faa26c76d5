/*
 * member_send.c - links to the other members, and messages on them.
 *
 * In:     messages of the core.
 * Out:    RF_STEP, with entries of the log as payload.
 * Keeps:  I9: messages on their way to one member are bounded, further ones are dropped
 *         (the core sends again). A message never has entries that were replaced since.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/quorum/member_in.h"

struct member_peer *member_peer_find(const struct member *m, uint64_t id)
{
    LIST_FOREACH(node, &m->peers) {
        struct member_peer *p = container_of(node, struct member_peer, link);

        if (p->id == id && !p->is_gone)
            return p;
    }
    return NULL;
}

/* ---- for people ---- */

const char *member_name(const struct member *m, uint64_t id, char buf[MEMBER_NAME_MAX])
{
    const struct raft_member *member = raft_config_find(&m->members, id);

    snprintf(buf, MEMBER_NAME_MAX, "member %" PRIu64 "%s%s", id,
             member == NULL ? "" : " at ", member == NULL ? "" : member->address);
    return buf;
}

void member_peer_says(struct member *m, uint64_t id, const char *says, bool is_silent)
{
    struct member_peer *p = member_peer_find(m, id);

    if (p == NULL)
        return;
    p->says = says;
    p->is_silent = is_silent;
}

void member_peers_say(const struct member *m, const char *otherwise,
                      char text[ERR_TEXT_MAX])
{
    size_t len = 0;

    text[0] = '\0';
    LIST_FOREACH(node, &m->peers) {
        const struct member_peer *p = container_of(node, struct member_peer, link);
        const char *says = p->says == NULL ? otherwise : p->says;
        char name[MEMBER_NAME_MAX];

        if (p->is_gone || says == NULL || len >= ERR_TEXT_MAX)
            continue;
        len += (size_t)snprintf(text + len, ERR_TEXT_MAX - len, "%s%s %s",
                                len == 0 ? "" : ", ", member_name(m, p->id, name), says);
    }
}

/* ---- peers ---- */

static void peer_free_if_unused(struct member *m, struct member_peer *p)
{
    if (!p->is_gone || p->n_steps > 0)
        return;
    list_remove(&p->link);
    if (p->channel != NULL)
        m->config.peers.close(m->config.peers.arg, p->channel);
    free(p);
}

void member_peer_unuse(struct member *m, struct member_peer *p)
{
    p->n_steps--;
    peer_free_if_unused(m, p);
}

/* ---- messages that answer a call ---- */

/* Answers RF_STEP, with a message back if len is not 0. */
static void step_answer(const struct member *m, struct rpc_call *call, uint16_t status,
                        const void *msg, size_t len)
{
    uint8_t answer[MEMBER_FREE_BYTES + RAFT_MSG_HEAD_MAX];

    member_space_put(m, answer);
    if (len > 0)
        memcpy(answer + MEMBER_FREE_BYTES, msg, len);
    rpc_reply(call, status, answer, MEMBER_FREE_BYTES + len, NULL, 0, NULL, NULL);
}

/* Takes such an answer. */
static void answer_take(struct member_step *s, const uint8_t *answer, size_t len)
{
    member_space_heard(s->m, s->peer, answer, len);
    if (len > MEMBER_FREE_BYTES)
        member_answer_take(s->m, answer + MEMBER_FREE_BYTES, len - MEMBER_FREE_BYTES);
}

/* Answers the call that is held here, if there is one. */
static void held_answer(struct member *m, struct member_held *held, uint16_t status,
                        const void *msg, size_t len)
{
    struct rpc_call *call = held->call;

    held->call = NULL;
    if (call != NULL)
        step_answer(m, call, status, msg, len);
}

/* Returns where a call of this member is held; NULL: there is no such place. */
static struct member_held *held_of(struct member *m, uint64_t id)
{
    struct member_peer *p = member_peer_find(m, id);

    if (m->held.call != NULL && m->held_from == id) /* no link, or not until just now */
        return &m->held;
    return p == NULL ? NULL : &p->held;
}

void member_step_hold(struct member *m, struct rpc_call *call, const struct raft_msg *msg)
{
    struct member_peer *p = member_peer_find(m, msg->from);
    struct member_held *held = p != NULL ? &p->held : &m->held;

    if (p == NULL)
        m->held_from = msg->from;
    else if (msg->kind != RAFT_MSG_APPEND && msg->kind != RAFT_MSG_VOTE)
        return;
    held_answer(m, held, ROZO__STATUS__OK, NULL, 0); /* an earlier one waits no longer */
    *held = (struct member_held){ call, member_now_ns(m) };
    m->is_held_new = true;
}

void member_step_end(struct member *m, struct rpc_call *call, uint64_t from,
                     uint16_t status)
{
    struct member_held *held = held_of(m, from);
    bool was_held = m->is_held_new;

    m->is_held_new = false;
    if (!was_held)
        step_answer(m, call, status, NULL, 0);
    else if (held != NULL && (status != ROZO__STATUS__OK || m->state != MEMBER_RUNS))
        held_answer(m, held, status, NULL, 0); /* does nothing if it is answered */
}

static void held_release(struct member *m, struct member_held *held, bool any)
{
    if (any || member_now_ns(m) - held->since_ns >= ms_to_ns(HELD_MS))
        held_answer(m, held, ROZO__STATUS__OK, NULL, 0);
}

void member_steps_release(struct member *m, bool all)
{
    held_release(m, &m->held, all);
    LIST_FOREACH(node, &m->peers)
        held_release(m, &container_of(node, struct member_peer, link)->held, all);
}

/* Sends a message without entries as the answer to a call of its receiver. Returns false
 * if none is held. */
static bool held_send(struct member *m, const struct raft_msg *msg)
{
    struct member_held *held = held_of(m, msg->to);
    uint8_t head[RAFT_MSG_HEAD_MAX];

    if (msg->n > 0 || held == NULL || held->call == NULL)
        return false;
    held_answer(m, held, ROZO__STATUS__OK, head,
                raft_msg_encode(&m->config.group, msg, NULL, head));
    return true;
}

/* ---- links ---- */

static void peer_add(struct member *m, const struct raft_member *member)
{
    struct member_peer *p = calloc(1, sizeof(*p));

    if (p == NULL)
        return; /* no link: as if the member were away */
    p->m = m;
    p->id = member->id;
    memcpy(p->address, member->address, sizeof(p->address));
    p->channel = m->config.peers.open(m->config.peers.arg, p->address);
    list_add_tail(&m->peers, &p->link);
}

void member_peers_update(struct member *m, const struct raft_config *members)
{
    if (memcmp(members, &m->members, sizeof(*members)) == 0)
        return;
    m->members = *members;
    LIST_FOREACH_SAFE(node, &m->peers) {
        struct member_peer *p = container_of(node, struct member_peer, link);
        const struct raft_member *now = raft_config_find(members, p->id);

        if (now == NULL || strcmp(now->address, p->address) != 0) {
            p->is_gone = true;
            held_answer(m, &p->held, ROZO__STATUS__OK, NULL, 0);
            peer_free_if_unused(m, p);
        }
    }
    for (unsigned i = 0; i < members->n; i++)
        if (members->members[i].id != m->config.id &&
            member_peer_find(m, members->members[i].id) == NULL)
            peer_add(m, &members->members[i]);
    member_tell_soon(m);
    member_clients_look(m);
}

static void step_end(struct member_step *s)
{
    struct member *m = s->m;

    for (unsigned i = 0; i < s->n_have; i++)
        quorum_entry_free(s->entries[i]);
    list_remove(&s->link);
    member_peer_unuse(m, s->peer);
    free(s);
    member_stop_look(m);
}

void member_peers_close(struct member *m)
{
    held_answer(m, &m->held, ROZO__STATUS__BUSY, NULL, 0);
    LIST_FOREACH_SAFE(node, &m->steps) {
        struct member_step *s = container_of(node, struct member_step, link);

        if (s->is_sent) {
            rpc_cancel(&s->rq);
            s->is_sent = false;
            step_end(s);
        }
    }
    LIST_FOREACH_SAFE(node, &m->peers) {
        struct member_peer *p = container_of(node, struct member_peer, link);

        p->is_gone = true;
        held_answer(m, &p->held, ROZO__STATUS__BUSY, NULL, 0);
        peer_free_if_unused(m, p);
    }
}

/* Says once that what answers at the address of a member is not that member. */
static void stranger_look(struct member_peer *p, bool is_stranger)
{
    if (is_stranger && !p->is_stranger)
        log_warn("quorum: what listens at %s is not member %" PRIu64
                 ": it has another id, or "
                 "is of another quorum; compare `quorum` in the configs of all members",
                 p->address, p->id);
    p->is_stranger = is_stranger;
}

void member_outlived(struct member *m, uint64_t by)
{
    char name[MEMBER_NAME_MAX];

    if (m->state < MEMBER_DOUBTS || m->state > MEMBER_RUNS)
        return;
    log_error("quorum: %s went on without this one (exportd --force-alone, or a backup "
              "was loaded): this one is no member any more; do not start it again, and "
              "give it an empty data directory before it is added",
              member_name(m, by, name));
    member_fail(m, -ROZO_EDEPOSED, "take part in the quorum");
}

/* The core learns from answers, which are messages of their own, or come here from a
 * member that has no link to this one. */
static void on_stepped(struct rpc_request *rq, int rc)
{
    struct member_step *s = container_of(rq, struct member_step, rq);
    struct member *m = s->m;

    if (rc == 0)
        stranger_look(s->peer, rq->status == ROZO__STATUS__WRONG_STORAGE);
    if (rc == 0 && rq->status == ROZO__STATUS__NOT_FOUND)
        member_removed(m);
    if (rc == 0 && rq->status == ROZO__STATUS__OK)
        answer_take(s, rq->answer_msg, rq->answer_msg_len);
    if (rc == 0 && rq->status == ROZO__STATUS__DEPOSED)
        member_outlived(m, s->peer->id);
    step_end(s);
}

static struct member_step *step_new(struct member *m, struct member_peer *p,
                                    const struct raft_msg *msg)
{
    struct member_step *s;

    if (p->n_steps >= STEPS_MAX)
        return NULL;
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return NULL;
    s->m = m;
    s->peer = p;
    s->msg = *msg;
    p->n_steps++;
    list_add_tail(&m->steps, &s->link);
    return s;
}

static void step_next(struct member_step *s);

/* Moves the entries that do not fit into this message to one that follows. */
static void step_split(struct member_step *s, unsigned n_fit)
{
    struct member_step *rest = NULL;

    if (n_fit < s->msg.n)
        rest = step_new(s->m, s->peer, &s->msg);
    if (rest != NULL) {
        rest->msg.n = n_fit;
        raft_msg_advance(&rest->msg, &s->entries[n_fit - 1]->e);
        rest->msg.n = s->msg.n - n_fit;
        rest->n_have = s->n_have - n_fit;
        memcpy(rest->entries, s->entries + n_fit, rest->n_have * sizeof(s->entries[0]));
        s->n_have = n_fit;
    }
    s->msg.n = n_fit;
    if (rest != NULL)
        step_next(rest);
}

static void step_send(struct member_step *s)
{
    struct raft_log_entry entries[RAFT_MSG_ENTRIES_MAX];

    for (unsigned i = 0; i < s->n_have; i++)
        entries[i] = s->entries[i]->e;
    if (s->msg.n > 0)
        step_split(s, raft_msg_fill(entries, s->msg.n));
    for (unsigned i = 0; i < s->msg.n; i++)
        s->payload[i] = (struct iovec){ s->entries[i]->bytes, s->entries[i]->e.len };
    s->rq = (struct rpc_request){
        .op = ROZO__OP__RF_STEP,
        .deadline_ms = STEP_DEADLINE_MS,
        .msg = s->head,
        .msg_len = raft_msg_encode(&s->m->config.group, &s->msg, entries, s->head),
        .payload = s->payload,
        .n_payload = s->msg.n,
        .done = on_stepped,
    };
    s->is_sent = true;
    rpc_send(s->peer->channel, &s->rq);
}

static void on_read(struct quorum_log_read *r, int rc, struct quorum_entry *entry)
{
    struct member_step *s = container_of(r, struct member_step, read);

    if (rc != 0 || s->m->state != MEMBER_RUNS || s->peer->is_gone) {
        quorum_entry_free(entry);
        step_end(s); /* the core sends again */
        return;
    }
    s->entries[s->n_have++] = entry;
    step_next(s);
}

/* Takes the next entry; sends when all are there. */
static void step_next(struct member_step *s)
{
    struct quorum_log *log = s->m->log;

    while (s->n_have < s->msg.n) {
        uint64_t index = s->msg.index + 1 + s->n_have;
        struct quorum_entry *entry;

        if (index < quorum_log_first(log) || index > quorum_log_last(log)) {
            step_end(s);
            return;
        }
        quorum_log_get(log, index, &entry);
        if (entry == NULL) {
            s->read = (struct quorum_log_read){ .index = index, .done = on_read };
            quorum_log_read(log, &s->read);
            return;
        }
        s->entries[s->n_have++] = quorum_entry_use(entry);
    }
    step_send(s);
}

void member_send(struct member *m, const struct raft_msg *msg)
{
    struct member_peer *p = member_peer_find(m, msg->to);
    struct member_step *s;

    assert(msg->n <= RAFT_MSG_ENTRIES_MAX);
    if (p != NULL && m->held_from == p->id) /* there is a link now */
        held_answer(m, &m->held, ROZO__STATUS__OK, NULL, 0);
    if (held_send(m, msg) || p == NULL || p->channel == NULL)
        return;
    s = step_new(m, p, msg);
    if (s != NULL)
        step_next(s);
}

/* ---- questions of other members ---- */

bool member_ask_read(const struct member *m, struct rpc_call *call, struct seed_ask *ask)
{
    int rc =
        seed_ask_decode(&m->config.group, m->config.id, call->msg, call->msg_len, ask);

    if (rc == 0 && member_is_former(m, ask->from))
        rc = -ENOENT;
    if (rc != 0)
        rpc_reply_status(call, rc == -ENOENT          ? ROZO__STATUS__NOT_FOUND
                               : rc == -ESTALE        ? ROZO__STATUS__WRONG_STORAGE
                               : rc == -ROZO_EDEPOSED ? ROZO__STATUS__DEPOSED
                                                      : ROZO__STATUS__BAD_REQUEST);
    return rc == 0;
}
