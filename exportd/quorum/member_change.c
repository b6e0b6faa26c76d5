/*
 * member_change.c - members that come and go.
 *
 * In:     changes that an administrator asks for; RF_ADOPT; committed lists of members.
 * Out:    lists of members for the core, RF_ADOPT to spares.
 * Keeps:  the list itself says which step of an addition comes next, so each leader goes
 *         on with it. An id is given once: 1 more than the highest that was in a
 *         committed list, and a member learns its id when its list is committed.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/log.h"
#include "common/base/units.h"
#include "common/wire/status.h"
#include "exportd/quorum/member_in.h"
#include "exportd/quorum/seed/seed_adopt.h"

enum {
    ADOPT_DEADLINE_MS = 3000,
    ADOPT_PAUSE_MS = 500, /* after a question that failed */
    LONELY_MS = 3000,     /* without a message, before others are asked */
    LONELY_PAUSE_MS = 1000,
    CAUGHT_UP_MS = 100, /* age of the commit index that a new voter must have */
};

static bool may_change(const struct member *m)
{
    return member_leads_for_sure(m) && m->given >= m->commit && !m->config.is_witness;
}

/* Returns whether the newest list is committed, and no loss of power takes it back: an id
 * that somebody has got must not be given again. */
static bool list_is_stable(struct member *m)
{
    bool is_committed;
    uint64_t index = raft_core_config_index(m->core, &is_committed);

    return is_committed && m->stable >= index;
}

/* Takes the result of a change of the list, which shall become stable soon. */
static void list_appended(struct member *m, int rc)
{
    member_event(m, rc);
    if (rc == 0 && m->config.is_lazy && m->state == MEMBER_RUNS)
        member_event(m, raft_core_want_stable(m->core, member_now_ns(m)));
}

/* Makes the core append the list. Returns as raft_core_change() does. */
static int list_append(struct member *m, const struct raft_config *list)
{
    int rc = raft_core_change(m->core, member_now_ns(m), list);

    list_appended(m, rc);
    return rc;
}

/* ---- what somebody asks for ---- */

static void asked_end(struct member_change *c, int rc)
{
    struct member *m = c->m;

    m->change.asked = NULL;
    c->done(c, rc);
}

/* Appends the list, then waits for its commit in asked_look(). */
static void asked_append(struct member_change *c, const struct raft_config *list)
{
    struct member *m = c->m;
    int rc = raft_core_change(m->core, member_now_ns(m), list);

    if (rc == 0)
        c->index = raft_core_last_index(m->core);
    list_appended(m, rc); /* may end the change */
    if (rc != 0 && m->change.asked == c)
        asked_end(c, rc == -EAGAIN ? -EBUSY : rc);
}

/* Ends a change that is committed, or that this member cannot commit any more. */
static void asked_look(struct member *m)
{
    struct member_change *c = m->change.asked;

    if (c == NULL || c->channel != NULL)
        return;
    if (m->state != MEMBER_RUNS || m->role != RAFT_CORE_LEADER)
        asked_end(c, -ROZO_ENOT_LEADER); /* though others may commit it */
    else if (c->index != 0 && m->stable >= c->index)
        asked_end(c, 0);
}

static void add_append(struct member_change *c)
{
    struct member *m = c->m;
    struct raft_config list = *raft_core_config(m->core);
    int rc;

    if (!may_change(m)) {
        asked_end(c, -EBUSY);
        return;
    }
    c->id = m->highest_id + 1;
    rc = c->id > UINT32_MAX ? -EOVERFLOW
                            : raft_config_set(&list, c->id, RAFT_ROLE_SPARE, c->address);
    if (rc == 0 && c->is_witness)
        raft_config_set_witness(&list, c->id);
    if (rc != 0)
        asked_end(c,
                  err_set(&c->err, rc,
                          rc == -ENOSPC ? "the quorum has %d members already, the most "
                                          "that are possible"
                                        : "the list of at most %d members cannot have "
                                          "this one",
                          RAFT_SERVERS_MAX));
    else
        asked_append(c, &list);
}

static const char *channel_error(const struct member *m, struct rpc_channel *ch)
{
    return m->config.peers.last_error == NULL
               ? ""
               : m->config.peers.last_error(m->config.peers.arg, ch);
}

/* Sets the text of an answer that is not OK. Returns the error. */
static int answer_error(const struct rpc_request *rq, const char *address,
                        struct err *err)
{
    Rozo__RfAdoptResp *resp =
        rozo__rf_adopt_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    int rc = status_to_errno(rq->status);

    if (resp != NULL && resp->error[0] != '\0')
        err_set(err, rc, "%s: %.300s", address, resp->error);
    else
        err_set(err, rc,
                "what listens at %s is no exportd that waits to be added (it answers "
                "%s): name an address of quorum.listen in the config of the new exportd",
                address, status_name(rq->status));
    if (resp != NULL)
        rozo__rf_adopt_resp__free_unpacked(resp, NULL);
    return rc == -EBUSY || rc == -ROZO_ENOT_LEADER ? -EADDRINUSE : rc;
}

/* The new member has said whether it would be one. */
static void on_asked_answer(struct rpc_request *rq, int rc)
{
    struct member_change *c = container_of(rq, struct member_change, rq);
    struct member *m = c->m;
    const char *why = channel_error(m, c->channel);

    if (rc != 0)
        rc = err_set(&c->err, -EHOSTUNREACH,
                     "no exportd answers the leader at %s%s%.300s: start it there, with "
                     "an empty data directory, the node key of this cluster and a "
                     "section `quorum` that has `listen` only",
                     c->address, why[0] != '\0' ? ": " : "", why);
    else if (rq->status != ROZO__STATUS__OK)
        rc = answer_error(rq, c->address, &c->err);
    m->config.peers.close(m->config.peers.arg, c->channel);
    c->channel = NULL;
    if (rc != 0)
        asked_end(c, rc);
    else
        add_append(c);
}

/* Returns the member at this address that is not the one to replace, or NULL. */
static const struct raft_member *listed_at(const struct raft_config *list,
                                           const char *address, uint64_t replaces)
{
    for (unsigned i = 0; i < list->n; i++) {
        const struct raft_member *member = &list->members[i];

        if (member->id != replaces && strcmp(member->address, address) == 0)
            return member;
    }
    return NULL;
}

/* Packs RF_ADOPT for this id; 0: the exportd would get one, as a witness perhaps. */
static size_t adopt_pack(const struct member *m, uint64_t id, bool is_witness,
                         uint8_t *msg)
{
    const struct seed_adoption a = {
        .group = m->config.group,
        .id = id,
        .is_witness = is_witness,
        .list = *raft_core_config(m->core),
        .list_index = raft_core_config_index(m->core, NULL),
    };

    return seed_adopt_encode(&a, msg);
}

/* Checks that a majority of the voters always has one with the metadata, so that changes
 * are never acknowledged by witnesses alone, also when those that are being added vote.
 * Returns 0, or -EPERM with a text. */
static int witnesses_check(const struct raft_config *list, unsigned n_more,
                           struct err *err)
{
    unsigned n_witnesses = raft_config_n_witnesses(list) + n_more, n_full = 0;

    for (unsigned i = 0; i < list->n; i++)
        n_full += raft_member_can_serve(&list->members[i]);
    if (n_witnesses < n_full)
        return 0;
    return err_set(
        err, -EPERM,
        "%u voter%s with metadata and %u witness%s are no group that keeps "
        "them safe%s: there must be more of the former. Add exportds first, or "
        "remove witnesses first",
        n_full, n_full == 1 ? "" : "s", n_witnesses, n_witnesses == 1 ? "" : "es",
        n_full > 1 ? ""
                   : " (the loss of either stops everything, and with the "
                     "voter all metadata are lost: a witness has none)");
}

/* Checks whether a change that names the address of a member repeats one: this member has
 * come, or comes, in the place of the one to replace. If that is still there, so that it
 * would be removed next, this one is being added, or votes as the newest one of an even
 * number, as a replacement among 3 or 5 does. Returns 0, or -errno with a text. */
static int repeat_check(struct member_change *c, const struct raft_member *there)
{
    const struct raft_config *list = raft_core_config(c->m->core);
    bool is_newest = there->id == c->m->highest_id;

    if (c->replaces == 0)
        return 0;
    if (raft_config_find(list, c->replaces) == NULL)
        return c->replaces < there->id
                   ? 0
                   : err_set(&c->err, -ENOENT, "the quorum has no member %" PRIu64,
                             c->replaces);
    if (there->role != RAFT_ROLE_VOTER ||
        (is_newest && raft_config_n_voters(list) % 2 == 0))
        return 0;
    return err_set(&c->err, -EEXIST,
                   "member %" PRIu64 " at %s votes already and is not taken for a "
                   "replacement of member %" PRIu64 ": name the address of an exportd "
                   "that waits. If it is one all the same, `rozo meta remove %" PRIu64
                   "` does the rest",
                   there->id, c->address, c->replaces, c->replaces);
}

static void add_begin(struct member_change *c)
{
    struct member *m = c->m;
    const struct raft_config *list = raft_core_config(m->core);
    const struct raft_member *there = listed_at(list, c->address, c->replaces);

    if (raft_config_find(list, c->replaces) != NULL)
        c->is_witness = raft_config_is_witness(list, c->replaces);
    if (there != NULL && there->is_witness != c->is_witness) {
        asked_end(c, err_set(&c->err, -EEXIST, "member %" PRIu64 " at %s is %s witness",
                             there->id, c->address, there->is_witness ? "a" : "no"));
        return;
    }
    if (there != NULL) {
        int rc = repeat_check(c, there);

        if (rc != 0) {
            asked_end(c, rc);
            return;
        }
        c->id = there->id;
        c->index = raft_core_config_index(m->core, NULL);
        asked_look(m);
        return;
    }
    if (c->is_witness && !raft_config_is_witness(list, c->replaces) &&
        witnesses_check(list, 1, &c->err) != 0) {
        asked_end(c, -EPERM);
        return;
    }
    c->channel = m->config.peers.open(m->config.peers.arg, c->address);
    if (c->channel == NULL) {
        asked_end(c, err_set(&c->err, -EINVAL,
                             "\"%s\" is no HOST:PORT by which other members reach the "
                             "new one",
                             c->address));
        return;
    }
    c->rq =
        (struct rpc_request){ .op = ROZO__OP__RF_ADOPT,
                              .deadline_ms = ADOPT_DEADLINE_MS,
                              .msg = m->change.probe,
                              .msg_len = adopt_pack(m, 0, c->is_witness, m->change.probe),
                              .done = on_asked_answer };
    rpc_send(c->channel, &c->rq);
}

/* Returns whether a majority of the voters of the list is heard. */
static bool majority_is_heard(const struct member *m, const struct raft_config *list)
{
    unsigned n = 0;

    for (unsigned i = 0; i < list->n; i++)
        n += list->members[i].role == RAFT_ROLE_VOTER &&
             raft_core_is_heard(m->core, list->members[i].id);
    return n > raft_config_n_voters(list) / 2;
}

static void remove_begin(struct member_change *c)
{
    struct member *m = c->m;
    struct raft_config list = *raft_core_config(m->core);
    bool is_witness = raft_config_is_witness(&list, c->id);

    if (c->id == m->config.id) {
        asked_end(c, err_set(&c->err, -EDEADLK,
                             "member %" PRIu64 " leads: another one must lead first",
                             c->id));
    } else if (raft_config_remove(&list, c->id) != 0) {
        asked_end(c,
                  err_set(&c->err, -ENOENT, "the quorum has no member %" PRIu64, c->id));
    } else if (!c->is_forced && !majority_is_heard(m, &list)) {
        asked_end(c, err_set(&c->err, -EPERM,
                             "without member %" PRIu64 " no majority of the others "
                             "answers: nothing would be served until more of them are "
                             "back. Bring these back first, or add --force",
                             c->id));
    } else if (!c->is_forced && !is_witness && raft_config_n_witnesses(&list) > 0 &&
               witnesses_check(&list, 0, &c->err) != 0) {
        asked_end(c, -EPERM);
    } else {
        asked_append(c, &list);
    }
}

void member_change(struct member *m, struct member_change *c)
{
    c->m = m;
    c->index = 0;
    c->channel = NULL;
    if (m->state != MEMBER_RUNS || m->role != RAFT_CORE_LEADER) {
        c->done(c, -ROZO_ENOT_LEADER);
        return;
    }
    if (m->change.asked != NULL || !may_change(m) || !list_is_stable(m)) {
        c->done(c, -EBUSY);
        return;
    }
    m->change.asked = c;
    if (c->kind == MEMBER_CHANGE_ADD)
        add_begin(c);
    else
        remove_begin(c);
}

/* ---- the steps of a new member ---- */

static void role_set(struct member *m, uint64_t id, enum raft_role role)
{
    struct raft_config list = *raft_core_config(m->core);
    const struct raft_member *member = raft_config_find(&list, id);
    int rc;

    assert(member != NULL);
    rc = raft_config_set(&list, id, role, member->address);
    assert(rc == 0);
    rc = list_append(m, &list);
    if (rc == 0)
        log_info("quorum: member %" PRIu64 " %s", id,
                 role == RAFT_ROLE_VOTER ? "votes from now on"
                                         : "is added: it copies the metadata store");
}

static void adopt_end(struct member *m)
{
    struct member_peer *p = m->change.peer;

    m->change.peer = NULL;
    member_peer_unuse(m, p);
}

static void on_adopted(struct rpc_request *rq, int rc)
{
    struct member *m = container_of(rq, struct member, change.rq);
    const struct raft_member *spare =
        raft_config_find(raft_core_config(m->core), m->change.peer->id);
    bool is_spare = spare != NULL && spare->role == RAFT_ROLE_SPARE;
    struct err err = { 0 };

    if (rc == 0 && rq->status != ROZO__STATUS__OK && !m->change.is_refused) {
        answer_error(rq, m->change.peer->address, &err);
        log_warn("quorum: member %" PRIu64 " cannot be added: %s; try again, or `rozo "
                 "meta remove` it",
                 m->change.peer->id, err.text);
    }
    m->change.is_refused = rc == 0 && rq->status != ROZO__STATUS__OK;
    m->change.again_ns = member_now_ns(m) + ms_to_ns(ADOPT_PAUSE_MS);
    if (rc == 0 && rq->status == ROZO__STATUS__OK && is_spare && may_change(m) &&
        list_is_stable(m))
        role_set(m, spare->id, RAFT_ROLE_STANDBY);
    adopt_end(m);
}

/* Returns the new member to ask, each in its turn; 0: there is none. Those on standby
 * get the list again: all that they could copy from may have left. */
static uint64_t new_next(const struct member *m)
{
    const struct raft_config *list = raft_core_config(m->core);
    uint64_t first = 0, next = 0;

    for (unsigned i = 0; i < list->n; i++) {
        if (list->members[i].role == RAFT_ROLE_VOTER)
            continue;
        if (first == 0)
            first = list->members[i].id;
        if (next == 0 && list->members[i].id > m->change.asked_id)
            next = list->members[i].id;
    }
    return next != 0 ? next : first;
}

/* Tells a new member that it is one. */
static void adopt(struct member *m)
{
    uint64_t id = new_next(m);
    struct member_changing *c = &m->change;
    struct member_peer *p = member_peer_find(m, id);

    if (c->peer != NULL || p == NULL || p->channel == NULL ||
        member_now_ns(m) < c->again_ns)
        return;
    c->peer = p;
    c->asked_id = id;
    p->n_steps++;
    c->rq = (struct rpc_request){
        .op = ROZO__OP__RF_ADOPT,
        .deadline_ms = ADOPT_DEADLINE_MS,
        .msg = c->msg,
        .msg_len = adopt_pack(m, id, member_is_witness(m, id), c->msg),
        .done = on_adopted,
    };
    rpc_send(p->channel, &c->rq);
}

/* Returns true if a member on standby has all that was committed a moment ago. */
static bool has_caught_up(const struct member *m, uint64_t id)
{
    uint64_t match;

    return m->change.look_commit != 0 && raft_core_match(m->core, id, &match) == 0 &&
           match >= m->change.look_commit;
}

/* Returns the id of a member that may vote now, or 0. */
static uint64_t voter_next(const struct member *m)
{
    const struct raft_config *list = raft_core_config(m->core);

    for (unsigned i = 0; i < list->n; i++) {
        const struct raft_member *member = &list->members[i];

        if (member->role == RAFT_ROLE_STANDBY && has_caught_up(m, member->id))
            return member->id;
    }
    return 0;
}

/* ---- is this still a member? ---- */

static void on_lonely_answer(struct rpc_request *rq, int rc)
{
    struct member *m = container_of(rq, struct member, change.lonely_rq);
    struct member_peer *p = m->change.lonely_peer;

    m->change.lonely_peer = NULL;
    if (rc == 0 && rq->status == ROZO__STATUS__NOT_FOUND)
        member_removed(m);
    member_peer_unuse(m, p);
}

/* Returns the member to ask, each in its turn, or NULL. */
static struct member_peer *lonely_next(const struct member *m)
{
    struct member_peer *first = NULL, *next = NULL;

    LIST_FOREACH(node, &m->peers) {
        struct member_peer *p = container_of(node, struct member_peer, link);

        if (p->is_gone || p->channel == NULL)
            continue;
        if (first == NULL || p->id < first->id)
            first = p;
        if (p->id > m->change.lonely_id && (next == NULL || p->id < next->id))
            next = p;
    }
    return next != NULL ? next : first;
}

/* A member on standby that was removed hears nobody and asks nobody for votes; and those
 * who are asked for votes may all have been removed. It asks for no entry: others answer
 * BUSY, or that it is no member. */
static void lonely_look(struct member *m)
{
    struct member_changing *c = &m->change;
    uint64_t now_ns = member_now_ns(m);
    struct seed_ask ask = { .from = m->config.id };
    struct member_peer *p;

    if (m->role == RAFT_CORE_LEADER || c->heard_ns == 0)
        c->heard_ns = now_ns;
    if (now_ns < c->heard_ns + ms_to_ns(LONELY_MS) || c->lonely_peer != NULL)
        return;
    c->heard_ns += ms_to_ns(LONELY_PAUSE_MS);
    p = lonely_next(m);
    if (p == NULL)
        return;
    c->lonely_peer = p;
    c->lonely_id = ask.to = p->id;
    p->n_steps++;
    c->lonely_rq = (struct rpc_request){
        .op = ROZO__OP__RF_FETCH,
        .deadline_ms = STEP_DEADLINE_MS,
        .msg = c->lonely_msg,
        .msg_len = seed_ask_encode(&m->config.group, &ask, c->lonely_msg),
        .done = on_lonely_answer,
    };
    rpc_send(p->channel, &c->lonely_rq);
}

void member_change_look(struct member *m)
{
    struct member_changing *c = &m->change;
    uint64_t next;
    bool is_due;

    asked_look(m);
    lonely_look(m);
    if (!may_change(m)) {
        c->look_ns = c->look_commit = 0;
        return;
    }
    is_due = member_now_ns(m) >= c->look_ns + ms_to_ns(CAUGHT_UP_MS);
    if (!list_is_stable(m) || !is_due)
        return;
    next = voter_next(m);
    c->look_ns = member_now_ns(m);
    c->look_commit = m->commit;
    if (next != 0)
        role_set(m, next, RAFT_ROLE_VOTER);
    else
        adopt(m);
}

void member_change_stop(struct member *m)
{
    struct member_change *asked = m->change.asked;

    if (m->change.peer != NULL) {
        rpc_cancel(&m->change.rq);
        adopt_end(m);
    }
    if (m->change.lonely_peer != NULL) {
        struct member_peer *p = m->change.lonely_peer;

        rpc_cancel(&m->change.lonely_rq);
        m->change.lonely_peer = NULL;
        member_peer_unuse(m, p);
    }
    if (asked == NULL)
        return;
    if (asked->channel != NULL) {
        rpc_cancel(&asked->rq);
        m->config.peers.close(m->config.peers.arg, asked->channel);
        asked->channel = NULL;
    }
    asked_end(asked, -ROZO_ENOT_LEADER);
}

/* ---- this member ---- */

bool member_is_former(const struct member *m, uint64_t id)
{
    return id <= m->highest_id && raft_config_find(&m->listed, id) == NULL;
}

void member_removed(struct member *m)
{
    if (m->state != MEMBER_RUNS && m->state != MEMBER_SEEDS && m->state != MEMBER_DOUBTS)
        return;
    log_warn("quorum: this exportd was member %" PRIu64 " and has been removed: stop it. "
             "It takes no part any more, and cannot come back with this data directory; "
             "with an empty one `rozo meta add` makes it a new member",
             m->config.id);
    m->state = MEMBER_REMOVED;
    member_steps_release(m, true);
    m->role = RAFT_CORE_FOLLOWER;
    m->leader = 0;
    m->is_ready = false;
    env_timer_stop(m->config.env, &m->timer);
    member_doubt_stop(m);
    member_depose(m);
    member_change_stop(m);
}

void member_change_given(struct member *m, const struct quorum_entry *entry)
{
    struct member_changing *c = &m->change;

    if (entry->e.kind != RAFT_ENTRY_CONFIG ||
        raft_config_decode(entry->e.data, entry->e.len, &c->coming) != 0)
        return; /* the kv's side fails if the list is damaged */
    c->coming_index = entry->e.index;
    if (c->coming_highest < raft_config_highest(&c->coming))
        c->coming_highest = raft_config_highest(&c->coming);
}

void member_change_stable(struct member *m)
{
    struct member_changing *c = &m->change;

    if (c->coming_index == 0 || m->stable_given < c->coming_index)
        return;
    c->coming_index = 0;
    m->listed = c->coming;
    if (m->highest_id < c->coming_highest)
        m->highest_id = c->coming_highest;
    if (member_is_former(m, m->config.id))
        member_removed(m);
}

/* Returns 0 if the question is for this member, or -EEXIST with a text. */
static int adopt_check(const struct member *m, const struct seed_adoption *a,
                       struct err *err)
{
    if (memcmp(&a->group, &m->config.group, sizeof(a->group)) != 0)
        return err_set(
            err, -EEXIST,
            "it is a member of another quorum: an exportd that is added has an "
            "empty data directory");
    if (m->state == MEMBER_REMOVED)
        return err_set(err, -EEXIST,
                       "it was member %" PRIu64 " of this quorum, and cannot come back "
                       "with this data directory: give it an empty one",
                       m->config.id);
    return a->id == m->config.id
               ? 0
               : err_set(err, -EEXIST,
                         "it is member %" PRIu64 " of this quorum already: if that is to "
                         "be replaced, or was removed, give it an empty data directory "
                         "first",
                         m->config.id);
}

void member_adopt_handle(struct member *m, struct rpc_call *call)
{
    struct seed_adoption a;
    struct err err = { 0 };
    int rc = seed_adopt_decode(call->msg, call->msg_len, &a);

    if (rc == 0)
        rc = adopt_check(m, &a, &err);
    if (rc == 0 && m->state == MEMBER_DOUBTS)
        member_doubt_list(m, &a.list, a.list_index);
    if (rc == 0 && m->state == MEMBER_SEEDS && a.list_index > m->place.members_index) {
        m->place.members = a.list;
        m->place.members_index = a.list_index;
        member_peers_update(m, &m->place.members);
    }
    seed_adopt_answer(call, rc, err.text);
}
