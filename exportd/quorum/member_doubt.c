/*
 * member_doubt.c - a member that may have lost, with its power, entries that it had
 * acknowledged; and the leader that counts such losses.
 *
 * In:     the state of the log at the start; answers to RF_JOIN.
 * Out:    questions to the other voters, one at a time; a copy of what a leader has, or a
 *         start with what is left; an entry that counts the loss.
 * Keeps:  an uncertain member neither votes nor acknowledges. That ends with the help of
 *         a leader that has all that it may have lost; or, if all voters have answered
 *         and too few of them are sound to elect one, with a loss that the next leader
 *         counts before it answers anybody. docs/internals/metadata-quorum.md has the
 *         proof.
 */
#include <errno.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/quorum/member_in.h"
#include "exportd/store/key.h"

enum {
    DOUBT_DEADLINE_MS = 1000,
    DOUBT_PAUSE_MS = 200, /* between rounds */
    DOUBT_LEADER_MS = RAFT_ELECTION_MS,
    DOUBT_TELL_MS = 30000,
    /* A member that comes back with less than another one votes at once, but lets others
     * campaign first for so long. */
    DOUBT_QUIET_MS = 4 * RAFT_ELECTION_MS,
};

static void ask_next(struct member *m);

/* ---- the newest list of members ---- */

/* Takes the newest list of the log, committed or not. */
static void list_find(struct member *m)
{
    uint64_t first = quorum_log_first(m->log), last = quorum_log_last(m->log);

    m->doubt.list = m->place.members;
    m->doubt.list_index = m->place.members_index;
    for (uint64_t i = last + 1; i > first && i > m->place.members_index + 1; i--) {
        struct raft_log_entry e = quorum_log_get(m->log, i - 1, NULL);

        if (e.kind == RAFT_ENTRY_CONFIG && e.data != NULL &&
            raft_config_decode(e.data, e.len, &m->doubt.list) == 0) {
            m->doubt.list_index = e.index;
            return;
        }
    }
}

/* ---- rounds ---- */

static void round_begin(struct member *m)
{
    m->doubt.at = m->doubt.n_answers = m->doubt.n_in_doubt = 0;
    m->doubt.began_ns = member_now_ns(m);
    m->doubt.is_longest = true;
    m->doubt.hears_leader = false;
    ask_next(m);
}

static void on_timer(struct env_timer *timer)
{
    struct member *m = container_of(timer, struct member, doubt.timer);

    if (m->state == MEMBER_DOUBTS)
        round_begin(m);
}

static bool is_voter(const struct raft_member *member)
{
    return member != NULL && member->role == RAFT_ROLE_VOTER;
}

/* Starts with what is left: nobody can lead who has more for sure. In a new term: a
 * leader of this one believes that the member has what it lost. */
static void leave(struct member *m)
{
    log_warn("quorum: a majority of the members lost power (or vote, log or store) "
             "together: changes of the last moments may be lost; the next fsync of each "
             "mount says so");
    m->loss.term = m->ballot.term;
    if (!m->doubt.is_longest)
        m->loss.quiet_until_ns = member_now_ns(m) + ms_to_ns(DOUBT_QUIET_MS);
    m->state = MEMBER_TERM;
    quorum_log_vote(m->log, m->ballot.term + 1, 0);
}

struct raft_log_entry member_newest(const struct member *m)
{
    uint64_t last = m->log == NULL ? 0 : quorum_log_last(m->log);

    if (m->log == NULL || last < quorum_log_first(m->log))
        return (struct raft_log_entry){ .index = m->place.applied,
                                        .term = m->place.applied_term };
    return quorum_log_get(m->log, last, NULL);
}

static bool is_longer(const struct seed_log *log, struct raft_log_entry own)
{
    return log->commit > own.term || (log->commit == own.term && log->last > own.index);
}

/* Says now and then for what it waits. */
static void wait_tell(struct member *m, bool all_answer)
{
    uint64_t now_ns = member_now_ns(m);
    char text[ERR_TEXT_MAX];

    if (m->doubt.told_ns != 0 && now_ns - m->doubt.told_ns < ms_to_ns(DOUBT_TELL_MS))
        return;
    m->doubt.told_ns = now_ns;
    member_peers_say(m, NULL, text);
    log_warn("quorum: this member lost power, and with it perhaps changes that it had "
             "acknowledged: it waits until another member leads%s: %s%s",
             all_answer ? "" : ", or all that vote have answered", text,
             all_answer ? ""
                        : ". Start those that are down; if they are gone for good, see "
                          "OPERATIONS.md, \"When most members are gone\"");
}

/* Returns whether the answers of this round hold together: nobody has failed, started
 * again and answered since a leader helped one of those that answered before. */
static bool round_is_short(const struct member *m)
{
    return member_now_ns(m) - m->doubt.began_ns < ms_to_ns(DOUBT_LEADER_MS);
}

static void round_end(struct member *m)
{
    struct member_doubt *d = &m->doubt;
    const struct raft_member *own = raft_config_find(&d->list, m->config.id);
    unsigned n = raft_config_n_voters(&d->list), n_others = n - is_voter(own);
    unsigned n_sound = d->n_answers - d->n_in_doubt;

    if (!d->hears_leader)
        d->leader = 0;
    if (is_voter(own) && d->n_answers == n_others && n_sound <= n / 2 &&
        !d->hears_leader && round_is_short(m)) {
        leave(m);
        return;
    }
    wait_tell(m, d->n_answers == n_others);
    env_timer_start(m->config.env, &d->timer, DOUBT_PAUSE_MS);
}

/* Returns whether a member has led for longer than a lease lasts. A younger one may lead
 * by what members acknowledged that are uncertain now: they must not wait for it. */
static bool leader_lasts(struct member *m, uint64_t id, uint64_t term)
{
    struct member_doubt *d = &m->doubt;
    uint64_t now_ns = member_now_ns(m);

    d->hears_leader = true;
    if (d->leader != id || d->leader_term != term) {
        d->leader = id;
        d->leader_term = term;
        d->leader_ns = now_ns;
    }
    return now_ns - d->leader_ns >= ms_to_ns(DOUBT_LEADER_MS);
}

/* Sends a leader a later term, in which this member started before its power failed once
 * more: it must be elected in a later one before it can help. */
static void term_send(struct member *m, uint64_t to)
{
    const struct raft_msg msg = { .kind = RAFT_MSG_APPENDED,
                                  .from = m->config.id,
                                  .to = to,
                                  .term = m->ballot.term,
                                  .sent_ns = member_now_ns(m),
                                  .index = 1 }; /* refused */

    member_send(m, &msg);
}

/* Copies what a leader has: this member may have lost a part of that. */
static void copy(struct member *m)
{
    m->place.members = m->doubt.list;
    m->place.members_index = m->doubt.list_index;
    member_seed_begin(m, (struct seed_mark){ .doubt = SEED_LOG_LOST, .is_copied = true });
}

static void answer_take(struct member *m, const struct seed_log *log)
{
    struct member_doubt *d = &m->doubt;
    bool leads = log->leads && log->term >= m->ballot.term;

    member_peer_says(m, d->asked,
                     leads           ? "leads since a moment ago"
                     : log->leads    ? "leads in an older term"
                     : log->in_doubt ? "does not take part itself"
                                     : "does not lead",
                     false);
    d->n_answers++;
    d->n_in_doubt += log->in_doubt;
    if (is_longer(log, member_newest(m)))
        d->is_longest = false;
    if (log->leads && !leads)
        term_send(m, d->asked);
    if (leads && leader_lasts(m, d->asked, log->term))
        copy(m);
    else
        ask_next(m);
}

static void on_answer(struct rpc_request *rq, int rc)
{
    struct member *m = container_of(rq, struct member, doubt.rq);
    struct raft_log_entry none[SEED_ENTRIES_MAX];
    struct seed_log log;

    m->doubt.asks = false;
    if (m->state != MEMBER_DOUBTS)
        return;
    if (rc == 0 && rq->status == ROZO__STATUS__NOT_FOUND) {
        member_removed(m);
        return;
    }
    if (rc == 0 && rq->status == ROZO__STATUS__DEPOSED) {
        member_outlived(m, m->doubt.asked);
        return;
    }
    if (rc == 0 && rq->status == ROZO__STATUS__OK &&
        seed_log_decode(rq->answer_msg, rq->answer_msg_len, rq->answer_payload,
                        rq->answer_payload_len, &log, none) == 0) {
        answer_take(m, &log);
        return;
    }
    member_peer_says(m, m->doubt.asked,
                     rc != 0                            ? "does not answer"
                     : rq->status == ROZO__STATUS__BUSY ? "is not ready"
                                                        : "refuses",
                     rc != 0);
    ask_next(m);
}

/* Asks the next voter; ends the round when all have been asked. */
static void ask_next(struct member *m)
{
    struct member_doubt *d = &m->doubt;
    struct seed_ask ask = { .from = m->config.id, .index = 1 };
    struct member_peer *p = NULL;

    while (d->at < d->list.n && p == NULL) {
        const struct raft_member *to = &d->list.members[d->at++];

        if (is_voter(to) && to->id != m->config.id)
            p = member_peer_find(m, to->id);
        if (p != NULL && p->channel == NULL) {
            member_peer_says(m, p->id, "has an address that is not valid", true);
            p = NULL;
        }
    }
    if (p == NULL) {
        round_end(m);
        return;
    }
    ask.to = d->asked = p->id;
    d->rq =
        (struct rpc_request){ .op = ROZO__OP__RF_JOIN,
                              .deadline_ms = DOUBT_DEADLINE_MS,
                              .msg = d->msg,
                              .msg_len = seed_ask_encode(&m->config.group, &ask, d->msg),
                              .done = on_answer };
    d->asks = true;
    rpc_send(p->channel, &d->rq);
}

void member_doubt_begin(struct member *m)
{
    m->state = MEMBER_DOUBTS;
    m->doubt = (struct member_doubt){ .at = 0 };
    env_timer_init(&m->doubt.timer, on_timer);
    list_find(m);
    member_peers_update(m, &m->doubt.list);
    member_start_end(m, 0);
    env_timer_start(m->config.env, &m->doubt.timer, 0);
}

void member_doubt_stop(struct member *m)
{
    if (m->doubt.list.n == 0)
        return; /* never begun */
    if (m->doubt.asks)
        rpc_cancel(&m->doubt.rq);
    m->doubt.asks = false;
    env_timer_stop(m->config.env, &m->doubt.timer);
}

void member_doubt_list(struct member *m, const struct raft_config *list, uint64_t index)
{
    struct member_doubt *d = &m->doubt;

    /* One that votes goes by the list of its log: it must have asked all of those before
     * it starts with what is left. A leader sends lists to others only. */
    if (index <= d->list_index || is_voter(raft_config_find(list, m->config.id)))
        return;
    member_doubt_stop(m); /* this round counts no more */
    d->list = *list;
    d->list_index = index;
    member_peers_update(m, &d->list);
    env_timer_start(m->config.env, &d->timer, 0);
}

/* ---- answers ---- */

/* Returns whether this member may lack what it has acknowledged. One that is only behind
 * does not, and will take part: unless it does not get what it needs. */
static bool is_unsound(const struct member *m)
{
    return m->state == MEMBER_DOUBTS ||
           (m->state == MEMBER_SEEDS &&
            (m->seed.mark.doubt != SEED_BEHIND || member_seed_is_stuck(m)));
}

void member_doubt_handle(struct member *m, struct rpc_call *call)
{
    struct seed_log log = { .first = 1, .index = 1, .term = m->ballot.term };
    uint8_t head[SEED_LOG_BYTES];
    struct raft_log_entry last;
    struct seed_ask ask;
    int rc =
        seed_ask_decode(&m->config.group, m->config.id, call->msg, call->msg_len, &ask);

    if (rc == 0 && member_is_former(m, ask.from))
        rc = -ENOENT;
    if (log.term == 0)
        log.term = 1; /* a member that knows no term leads in none */
    if (rc != 0 || (m->state != MEMBER_DOUBTS && m->state != MEMBER_SEEDS &&
                    m->state != MEMBER_RUNS)) {
        rpc_reply_status(call, rc == 0                ? ROZO__STATUS__BUSY
                               : rc == -ENOENT        ? ROZO__STATUS__NOT_FOUND
                               : rc == -ESTALE        ? ROZO__STATUS__WRONG_STORAGE
                               : rc == -ROZO_EDEPOSED ? ROZO__STATUS__DEPOSED
                                                      : ROZO__STATUS__BAD_REQUEST);
        return;
    }
    log.in_doubt = is_unsound(m);
    log.leads =
        member_leads_for_sure(m) && raft_core_lease_until_ns(m->core) > member_now_ns(m);
    if (log.leads)
        log.term = m->term;
    last = member_newest(m);
    log.last = last.index;
    log.commit = last.term;
    seed_log_encode(&log, 0, head);
    rpc_reply(call, ROZO__STATUS__OK, head, sizeof(head), NULL, 0, NULL, NULL);
}

/* ---- the count ---- */

bool member_leads_for_sure(const struct member *m)
{
    return m->state == MEMBER_RUNS && m->role == RAFT_CORE_LEADER && m->is_ready &&
           !m->loss.is_due;
}

/* Makes the entry that counts a loss. Returns 0 or a negative result. A leader that hands
 * over, or has too much that is not committed, takes none: its next event tries again. */
static int count_submit(struct member *m)
{
    const uint8_t key = KEY_LOSSES;
    uint8_t val[8];
    const struct kv_item item = { &key, 1, val, sizeof(val) };
    const struct quorum_batch_head head = { .number = 1 };
    struct quorum_entry *parts[QUORUM_PARTS_MAX];
    struct raft_log_entry e;
    int rc;

    put_le64(val, m->term);
    rc = quorum_batch_new(&item, 1, &head, parts);
    if (rc < 0)
        return rc;
    e = parts[0]->e;
    rc = raft_core_submit(m->core, member_now_ns(m), &e, 1);
    if (rc == 0) {
        m->loss.count_index = e.index;
        m->loss.count_term = m->term;
    }
    if (rc != -ROZO_ENOT_LEADER && rc != -EBUSY)
        member_event(m, rc); /* comes back here: never for one that was refused */
    quorum_entry_free(parts[0]);
    return rc;
}

void member_loss_count(struct member *m)
{
    if (m->state == MEMBER_RUNS && m->loss.term != 0 && !raft_core_has_loss(m->core)) {
        m->loss.term = 0;
        quorum_log_loss_counted(m->log);
    }
    /* A witness leaves it to the member to which it hands over: members say it to each
     * leader until one has counted it. */
    if (m->state != MEMBER_RUNS || m->role != RAFT_CORE_LEADER || !m->is_ready ||
        !m->loss.is_due || m->config.is_witness)
        return;
    if (m->loss.count_index == 0 || m->loss.count_term != m->term) {
        if (count_submit(m) == 0 && m->state == MEMBER_RUNS)
            member_event(m, raft_core_want_stable(m->core, member_now_ns(m)));
    } else if (m->stable >= m->loss.count_index &&
               m->stable_given >= m->loss.count_index) {
        raft_core_loss_counted(m->core);
        member_event(m, raft_core_tick(m->core, member_now_ns(m)));
    }
}
