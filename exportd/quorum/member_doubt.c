/*
 * member_doubt.c - a member that may have lost, with its power, entries that it had
 * acknowledged; and the leader that counts such losses.
 *
 * In:     the state of the log at the start; answers to RF_JOIN.
 * Out:    questions to the other voters, one at a time; a copy of what a leader has, a
 *         floor for votes, or a start with what is left; an entry that counts the loss.
 * Keeps:  an uncertain member neither votes nor acknowledges. That ends with the help of
 *         a leader that has all that it may have lost; or if most of the voters are sound
 *         and none leads, with a floor for its votes: the longest of their logs; or, if
 *         all voters have answered and too few of them are sound to elect one, with a
 *         loss. The next leader counts it before it answers anybody.
 *         docs/internals/metadata-quorum.md has the proof.
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
    /* Sound ones elect a leader in that time, unless they need this member. */
    DOUBT_ALONE_MS = 4 * RAFT_ELECTION_MS,
    FLOOR_WAIT_MS = 10000,
    FLOOR_LOOK_MS = 500,
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
    m->doubt.at = m->doubt.n_answers = m->doubt.n_named = 0;
    m->doubt.n_in_doubt = m->doubt.n_with_loss = 0;
    m->doubt.floor_term = m->doubt.floor_index = 0;
    m->doubt.began_ns = member_now_ns(m);
    m->doubt.voters_asked = false;
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

/* Returns whether nobody has led for so long that the others may need this member. */
static bool is_alone(const struct member *m)
{
    return member_now_ns(m) - m->doubt.alone_ns >= ms_to_ns(DOUBT_ALONE_MS);
}

/* Takes part again, and votes only for logs that are not shorter than the floor: all that
 * was committed with this member's help is in the log whose end that is. */
static void bind_votes(struct member *m)
{
    const struct member_doubt *d = &m->doubt;

    log_info("quorum: this member lost power: it votes only for members that have all up "
             "to entry %llu of term %llu",
             (unsigned long long)d->floor_index, (unsigned long long)d->floor_term);
    m->loss.floor_term = d->floor_term;
    m->loss.floor_index = d->floor_index;
    m->loss.last_term = d->last_term;
    m->loss.floor_ns = member_now_ns(m);
    m->loss.is_fed = false;
    m->state = MEMBER_TERM;
    quorum_log_vote(
        m->log, (d->last_term > m->ballot.term ? d->last_term : m->ballot.term) + 1, 0);
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
             all_answer ? "" : ", or enough of those that vote have answered", text,
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

static bool has_vote(const struct member *m)
{
    return is_voter(raft_config_find(&m->doubt.list, m->config.id));
}

/* Returns whether all voters but this member have answered. */
static bool all_have_answered(const struct member *m)
{
    return m->doubt.n_answers ==
           raft_config_n_voters(&m->doubt.list) - (unsigned)has_vote(m);
}

/* All voters have been asked. Returns whether the member leaves doubt. */
static bool voters_count(struct member *m)
{
    const struct member_doubt *d = &m->doubt;
    unsigned majority = raft_config_n_voters(&d->list) / 2 + 1;
    unsigned n_sound = d->n_answers - d->n_in_doubt;

    if (!has_vote(m) || d->hears_leader)
        return false;
    if (is_alone(m))
        n_sound -= d->n_with_loss; /* no leader has come to count the losses */
    if (all_have_answered(m) && n_sound < majority && round_is_short(m))
        leave(m);
    else if (d->n_named >= majority && is_alone(m))
        bind_votes(m);
    return m->state != MEMBER_DOUBTS;
}

static void round_end(struct member *m)
{
    struct member_doubt *d = &m->doubt;

    if (d->hears_leader)
        d->alone_ns = member_now_ns(m);
    else
        d->leader = 0;
    wait_tell(m, all_have_answered(m));
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
    m->place.members = m->doubt.all;
    m->place.members_index = m->doubt.list_index;
    member_seed_begin(m, (struct seed_mark){ .doubt = SEED_LOG_LOST, .is_copied = true });
}

/* Adds members of another one's list to those that are asked. */
static void list_take(struct member *m, const struct raft_config *list)
{
    struct raft_config *all = &m->doubt.all;
    unsigned n = all->n;

    for (unsigned i = 0; i < list->n && all->n < RAFT_SERVERS_MAX; i++) {
        const struct raft_member *add = &list->members[i];

        if (raft_config_find(all, add->id) == NULL &&
            raft_config_set(all, add->id, add->role, add->address) == 0 &&
            add->is_witness)
            raft_config_set_witness(all, add->id);
    }
    if (all->n > n)
        member_peers_update(m, all);
}

/* Takes the log of a voter that acknowledges nothing any more of the terms in which this
 * member did. */
static void name_take(struct member_doubt *d, const struct seed_voter *voter)
{
    if (!voter->is_whole || voter->term <= d->last_term)
        return;
    d->n_named++;
    if (member_is_less(d->floor_term, d->floor_index, voter->last_term, voter->last)) {
        d->floor_term = voter->last_term;
        d->floor_index = voter->last;
    }
}

static void voter_take(struct member *m, const struct seed_voter *voter)
{
    struct member_doubt *d = &m->doubt;
    struct raft_log_entry own = member_newest(m);

    d->n_answers++;
    d->n_in_doubt += voter->in_doubt;
    d->n_with_loss += voter->has_loss;
    name_take(d, voter);
    if (member_is_less(own.term, own.index, voter->last_term, voter->last))
        d->is_longest = false;
}

/* A leader of a term not below that of this member has all that it may have lost. One of
 * a later term sends it all that it lacks. One of the same term believes that the member
 * still has what it acknowledged: it copies. */
static void leader_take(struct member *m, const struct seed_voter *voter)
{
    struct member_doubt *d = &m->doubt;

    if (voter->term <= d->last_term) {
        copy(m);
        return;
    }
    d->floor_term = voter->last_term;
    d->floor_index = voter->last;
    bind_votes(m);
}

static void answer_take(struct member *m, const struct seed_voter *voter)
{
    struct member_doubt *d = &m->doubt;
    bool leads = voter->leads && voter->term >= m->ballot.term;

    member_peer_says(m, d->asked,
                     leads               ? "leads since a moment ago"
                     : voter->leads      ? "leads in an older term"
                     : voter->is_removed ? "has been removed"
                     : voter->in_doubt   ? "does not take part itself"
                                         : "does not lead",
                     false);
    list_take(m, &voter->list);
    if (!voter->is_removed && is_voter(raft_config_find(&d->list, d->asked)))
        voter_take(m, voter);
    if (voter->leads && !leads)
        term_send(m, d->asked);
    if (leads && leader_lasts(m, d->asked, voter->term))
        leader_take(m, voter);
    else
        ask_next(m);
}

static void on_answer(struct rpc_request *rq, int rc)
{
    struct member *m = container_of(rq, struct member, doubt.rq);
    struct seed_voter voter;

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
        seed_voter_decode(rq->answer_msg, rq->answer_msg_len, &voter) == 0) {
        answer_take(m, &voter);
        return;
    }
    member_peer_says(m, m->doubt.asked,
                     rc != 0                            ? "does not answer"
                     : rq->status == ROZO__STATUS__BUSY ? "is not ready"
                                                        : "refuses",
                     rc != 0);
    ask_next(m);
}

/* Returns the link to the next one to ask, of the list if it votes, of all if not. NULL:
 * all of them have been asked. */
static struct member_peer *peer_next(struct member *m, const struct raft_config *list,
                                     unsigned *at)
{
    const struct member_doubt *d = &m->doubt;

    while (*at < list->n) {
        const struct raft_member *to = &list->members[(*at)++];
        bool votes = is_voter(raft_config_find(&d->list, to->id));
        struct member_peer *p = votes == (list == &d->list) && to->id != m->config.id
                                    ? member_peer_find(m, to->id)
                                    : NULL;

        if (p != NULL && p->channel != NULL)
            return p;
        if (p != NULL)
            member_peer_says(m, p->id, "has an address that is not valid", true);
    }
    return NULL;
}

/* Asks the next member; ends the round when all have been asked. */
static void ask_next(struct member *m)
{
    struct member_doubt *d = &m->doubt;
    struct seed_ask ask = { .from = m->config.id, .index = 1 };
    struct member_peer *p = d->voters_asked ? NULL : peer_next(m, &d->list, &d->at);

    if (p == NULL && !d->voters_asked) {
        d->voters_asked = true;
        d->at = 0;
        if (voters_count(m))
            return;
    }
    if (p == NULL)
        p = peer_next(m, &d->all, &d->at);
    if (p == NULL) {
        round_end(m);
        return;
    }
    ask.to = d->asked = p->id;
    ask.barrier_term = is_alone(m) ? d->last_term + 1 : 0;
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
    struct raft_log_entry last = member_newest(m);

    m->state = MEMBER_DOUBTS;
    m->loss.floor_term = 0;
    m->doubt = (struct member_doubt){ .alone_ns = member_now_ns(m) };
    m->doubt.last_term = last.term > m->ballot.term ? last.term : m->ballot.term;
    env_timer_init(&m->doubt.timer, on_timer);
    list_find(m);
    m->doubt.all = m->doubt.list;
    member_peers_update(m, &m->doubt.all);
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
    d->list = d->all = *list;
    d->list_index = index;
    member_peers_update(m, &d->all);
    env_timer_start(m->config.env, &d->timer, 0);
}

/* ---- a member with a floor ---- */

bool member_floor_forbids(const struct member *m, const struct raft_msg *msg)
{
    if (m->loss.floor_term == 0)
        return false;
    return msg->kind == RAFT_MSG_TIMEOUT_NOW ||
           (msg->kind == RAFT_MSG_VOTE &&
            member_is_less(msg->index_term, msg->index, m->loss.floor_term,
                           m->loss.floor_index));
}

void member_floor_look(struct member *m, uint64_t index, uint64_t term)
{
    struct member_loss *l = &m->loss;

    if (l->floor_term == 0 ||
        (term <= l->last_term &&
         member_is_less(term, index, l->floor_term, l->floor_index)))
        return;
    log_info("quorum: this member has everything again that it may have lost");
    l->floor_term = 0;
    if (m->state != MEMBER_RUNS)
        return;
    l->is_noted = true;
    quorum_log_begin(m->log, l->term);
}

/* Stops taking part, and asks again: those that had the floor may have lost it. */
static void doubt_again(struct member *m)
{
    int rc;

    member_part_stop(m);
    raft_core_free(m->core);
    m->core = NULL;
    rc = member_core_open(m);
    if (rc != 0)
        member_fail(m, rc, "start the core of the quorum");
    else
        member_doubt_begin(m);
}

void member_floor_wait(struct member *m)
{
    bool saves_term = m->term != m->ballot.term; /* no other save beside it */

    if (member_now_ns(m) - m->loss.floor_ns < ms_to_ns(FLOOR_WAIT_MS) || saves_term)
        env_timer_start(m->config.env, &m->timer, FLOOR_LOOK_MS);
    else if (m->loss.is_fed || m->is_reading || m->given > m->place.applied)
        member_seed_begin(
            m, (struct seed_mark){ .doubt = SEED_LOG_LOST, .is_copied = true });
    else
        doubt_again(m);
}

/* ---- answers ---- */

/* Returns whether this member may lack what it has acknowledged. One that is only behind
 * does not, and will take part: unless it does not get what it needs. */
static bool is_unsound(const struct member *m)
{
    return m->state == MEMBER_DOUBTS || m->loss.floor_term != 0 ||
           (m->state == MEMBER_SEEDS &&
            (m->seed.mark.doubt != SEED_BEHIND || member_seed_is_stuck(m)));
}

/* Leaves the terms below the one that an uncertain member asks for, as if that one asked
 * for a vote, with a log that nobody votes for. One that hears a leader does not. */
static void term_raise(struct member *m, const struct seed_ask *ask)
{
    const struct raft_msg msg = { .kind = RAFT_MSG_VOTE,
                                  .flags =
                                      m->role == RAFT_CORE_LEADER ? RAFT_MSG_DISRUPT : 0,
                                  .from = ask->from,
                                  .to = m->config.id,
                                  .term = ask->barrier_term,
                                  .sent_ns = member_now_ns(m),
                                  .index = 1,
                                  .index_term = 1 };

    member_event(m, raft_core_receive(m->core, member_now_ns(m), &msg, NULL));
}

/* Returns the newest list of members that is known here. */
static const struct raft_config *list_known(const struct member *m)
{
    bool is_committed;
    uint64_t index = m->core == NULL ? 0 : raft_core_config_index(m->core, &is_committed);

    if (m->doubt.list_index > index && m->doubt.list_index > m->place.members_index)
        return &m->doubt.list;
    return index > m->place.members_index ? raft_core_config(m->core) : &m->place.members;
}

static void voter_fill(struct member *m, struct seed_voter *voter)
{
    bool in_doubt = is_unsound(m);

    *voter = (struct seed_voter){
        .leads = member_leads_for_sure(m) &&
                 raft_core_lease_until_ns(m->core) > member_now_ns(m),
        .in_doubt = in_doubt,
        .is_whole = m->state == MEMBER_RUNS && !in_doubt && m->loss.term == 0,
        .has_loss = m->state == MEMBER_RUNS && m->loss.term != 0,
        .is_removed = m->state == MEMBER_REMOVED,
        .term = m->ballot.term,
        .list = *list_known(m),
    };
    if (voter->leads)
        voter->term = m->term;
    if (m->state == MEMBER_RUNS || m->state == MEMBER_DOUBTS) {
        struct raft_log_entry last = member_newest(m);

        voter->last = last.index;
        voter->last_term = last.term;
    }
}

static bool can_answer(const struct member *m)
{
    return m->state == MEMBER_DOUBTS || m->state == MEMBER_SEEDS ||
           m->state == MEMBER_RUNS || m->state == MEMBER_REMOVED;
}

void member_doubt_handle(struct member *m, struct rpc_call *call)
{
    uint8_t head[SEED_VOTER_BYTES_MAX];
    struct seed_voter voter;
    struct seed_ask ask;

    if (!member_ask_read(m, call, &ask))
        return;
    if (m->state == MEMBER_RUNS && ask.barrier_term > m->term &&
        !member_leads_for_sure(m))
        term_raise(m, &ask);
    if (!can_answer(m)) {
        rpc_reply_status(call, ROZO__STATUS__BUSY);
        return;
    }
    voter_fill(m, &voter);
    rpc_reply(call, ROZO__STATUS__OK, head, seed_voter_encode(&voter, head), NULL, 0,
              NULL, NULL);
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
