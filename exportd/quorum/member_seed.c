/*
 * member_seed.c - a member that lacks what it had promised, or what the others no longer
 * have, copies the store of another member, and takes part again.
 *
 * In:     answers to RF_SEED and RF_FETCH, jobs done by the kv's side. APPENDs, which say
 *         who leads.
 * Out:    questions, one at a time; jobs; at the end an empty log behind the store. A
 *         witness takes no keys, only the place of another store in the log.
 * Keeps:  the member has no raft core running, so it neither votes nor acknowledges. It
 *         takes part again only with all entries that it may ever have acknowledged, and
 *         votes only in terms in which no vote that it forgot can count.
 *         docs/internals/metadata-quorum.md, "Seeding", has the proof.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/quorum/member_in.h"

static const char segments_path[] = "journal/0.";
static const char not_valid[] = "gives what is not valid";

static void seed_next(struct member *m);
static void begin(struct member *m);

/* ---- jobs ---- */

static struct seed_job *job_new(struct member *m, enum seed_job_kind kind)
{
    struct seed_job *job = calloc(1, sizeof(*job));

    if (job == NULL) {
        member_fail(m, -ENOMEM, "copy the metadata store of another member");
        return NULL;
    }
    job->kind = kind;
    job->mark = m->seed.mark;
    return job;
}

static void job_give(struct member *m, struct seed_job *job, enum member_seed_step step)
{
    m->seed.step = step;
    m->n_jobs++;
    m->config.hooks.seed(m->config.hooks.arg, job);
}

/* ---- a wait, for people ---- */

static void progress(struct member_seeding *s)
{
    s->n_short = s->n_failed = 0;
    s->wait_ns = s->stuck_ns = 0;
    s->is_wait_logged = false;
}

static void wait_log(const struct member *m)
{
    char text[ERR_TEXT_MAX];

    member_peers_say(m, "answers", text);
    log_warn("quorum: this member cannot take part again before another one leads or "
             "gives it what it lacks: %s. Start those that are down; if they are lost "
             "for good, do not start any member from an empty directory",
             text);
}

/* Logs whom the copy waits for, if it has waited for long. */
static void wait_look(struct member *m)
{
    struct member_seeding *s = &m->seed;
    uint64_t now_ns = member_now_ns(m);
    uint64_t ms = s->is_wait_logged ? SEED_WAIT_AGAIN_MS : SEED_WAIT_MS;

    if (s->wait_ns == 0)
        s->wait_ns = s->stuck_ns = now_ns;
    if (now_ns - s->wait_ns < ms_to_ns(ms))
        return;
    wait_log(m);
    s->wait_ns = now_ns;
    s->is_wait_logged = true;
}

/* ---- members to ask ---- */

/* Returns whether entries are missing next, not keys. */
static bool needs_entries(const struct member_seeding *s)
{
    return s->mark.is_copied || s->fed < s->mark.newest;
}

/* Returns whether a member can be asked for what is missing next. All have entries, but
 * witnesses have no keys. */
static bool may_ask(const struct member *m, const struct member_peer *p)
{
    return p != NULL && !p->is_gone && p->channel != NULL &&
           (needs_entries(&m->seed) || !member_is_witness(m, p->id));
}

void member_seed_hear(struct member *m, const struct rpc_call *call)
{
    struct raft_log_entry entries[RAFT_MSG_ENTRIES_MAX];
    struct member_seeding *s = &m->seed;
    struct raft_msg msg;

    if (raft_msg_decode(&m->config.group, m->config.id, call->msg, call->msg_len,
                        call->payload, call->payload_len, &msg, entries) != 0 ||
        msg.kind != RAFT_MSG_APPEND || msg.term < s->leader_term)
        return;
    s->leader = msg.from;
    s->leader_term = msg.term;
    s->leader_stable = (msg.flags & RAFT_MSG_LAZY) != 0 ? msg.last : msg.commit;
}

/* Returns whether a member is asked rather than the leader. */
static bool is_preferred(const struct member *m, const struct member_peer *p)
{
    return p->id != m->seed.leader && member_now_ns(m) >= p->keys_ns;
}

static struct member_peer *preferred_find(const struct member *m)
{
    LIST_FOREACH(node, &m->peers) {
        struct member_peer *p = container_of(node, struct member_peer, link);

        if (may_ask(m, p) && is_preferred(m, p))
            return p;
    }
    return NULL;
}

/* Goes over to the next member. */
static void source_next(struct member *m)
{
    struct member_peer *first = NULL, *next = NULL;
    bool is_behind = false;

    LIST_FOREACH(node, &m->peers) {
        struct member_peer *p = container_of(node, struct member_peer, link);

        if (may_ask(m, p) && first == NULL)
            first = p;
        if (may_ask(m, p) && is_behind && next == NULL)
            next = p;
        is_behind = is_behind || p->id == m->seed.source;
    }
    if (next == NULL)
        next = first;
    m->seed.source = next == NULL ? 0 : next->id;
}

static void pause_ms(struct member *m, uint64_t ms)
{
    m->seed.step = MEMBER_SEED_PAUSES;
    env_timer_start(m->config.env, &m->seed.timer, ms);
}

static void on_pause(struct env_timer *timer)
{
    struct member *m = container_of(timer, struct member, seed.timer);

    if (m->state == MEMBER_SEEDS)
        seed_next(m);
}

/* Begins again with all keys. */
static void copy_again(struct member *m)
{
    log_info("quorum: no other member has the entries behind %llu: copying the whole "
             "store",
             (unsigned long long)m->seed.fed);
    m->seed.mark =
        (struct seed_mark){ .doubt = m->seed.mark.doubt, .needed = m->seed.mark.needed };
    progress(&m->seed);
    begin(m);
}

/* Returns the member to ask, or NULL. The leader, which has the clients, is asked for
 * keys only if no follower gives them. */
static struct member_peer *source_find(struct member *m)
{
    struct member_seeding *s = &m->seed;
    struct member_peer *p = NULL;

    if (s->source == 0 || (s->source == s->leader && !needs_entries(s)))
        p = preferred_find(m);
    if (p != NULL)
        s->source = p->id;
    else if (!may_ask(m, member_peer_find(m, s->source)))
        source_next(m);
    p = member_peer_find(m, s->source);
    return may_ask(m, p) ? p : NULL;
}

/* The member that was asked did not help. is_short: its log begins too late, so that its
 * store is needed; a witness has none, and the own store stays. */
static void other_source(struct member *m, bool is_short)
{
    struct member_seeding *s = &m->seed;
    struct member_peer *p = member_peer_find(m, s->source);
    unsigned n = 0;

    if (p != NULL && !is_short)
        p->keys_ns = member_now_ns(m) + ms_to_ns(SEED_AGAIN_MS);
    is_short = is_short && !member_is_witness(m, s->source);
    s->n_short += is_short;
    s->n_failed += !is_short;
    LIST_FOREACH(node, &m->peers)
        n += container_of(node, struct member_peer, link)->channel != NULL;
    if (s->n_short > 0 && s->n_short + s->n_failed >= n) {
        copy_again(m);
        return;
    }
    wait_look(m);
    source_next(m);
    pause_ms(m, SEED_PAUSE_MS);
}

/* ---- answers ---- */

/* Returns the time that a copy of so many bytes takes at the configured rate. */
static uint64_t rate_ms(const struct member *m, size_t len)
{
    return m->config.seed_rate == 0 ? 0 : len * UINT64_C(1000) / m->config.seed_rate;
}

/* Returns whether these keys are of a follower whose store is far behind that of the
 * leader, which has not been asked yet. */
static bool is_late(const struct member *m, const struct seed_chunk *chunk)
{
    const struct member_peer *p = member_peer_find(m, m->seed.source);

    return p != NULL && is_preferred(m, p) &&
           chunk->applied + SEED_LATE_MAX < m->seed.leader_stable;
}

/* Unpacks and checks an answer. Returns false if it is not valid. */
static bool chunk_get(const struct member *m, const struct rpc_request *rq,
                      struct seed_chunk *chunk)
{
    if (seed_chunk_decode(rq->answer_msg, rq->answer_msg_len, rq->answer_payload,
                          rq->answer_payload_len, chunk) != 0 ||
        seed_items_check(rq->answer_payload, rq->answer_payload_len,
                         &m->seed.mark.cursor) != 0)
        return false;
    return !m->config.is_witness || rq->answer_payload_len == 0;
}

static void chunk_take(struct member *m, const struct rpc_request *rq)
{
    struct member_seeding *s = &m->seed;
    struct seed_chunk chunk;
    struct seed_job *job;

    if (!chunk_get(m, rq, &chunk)) {
        member_peer_says(m, s->source, not_valid, false);
        other_source(m, false);
        return;
    }
    if (chunk.applied < s->mark.index) {
        other_source(m, false);
        return;
    }
    if (is_late(m, &chunk)) {
        member_peer_says(m, s->source, "is behind the leader", false);
        other_source(m, false);
        return;
    }
    job = job_new(m, SEED_JOB_CHUNK);
    if (job == NULL)
        return;
    job->chunk = chunk;
    job->bytes = malloc(rq->answer_payload_len + 1);
    if (job->bytes == NULL) {
        seed_job_free(job);
        member_fail(m, -ENOMEM, "copy the metadata store of another member");
        return;
    }
    if (rq->answer_payload_len > 0)
        memcpy(job->bytes, rq->answer_payload, rq->answer_payload_len);
    job->len = rq->answer_payload_len;
    s->bytes += job->len;
    s->rated = job->len;
    progress(s);
    job_give(m, job, MEMBER_SEED_APPLIES);
}

/* Takes what the answer says of the leader: which entries make the copy complete. A
 * leader of a term not below that of the last vote has all that this member acknowledged,
 * if it is committed or will be. */
static void target_take(struct member *m, const struct seed_log *log)
{
    struct member_seeding *s = &m->seed;

    if (!log->leads)
        return;
    if (s->mark.doubt != SEED_VOTE_LOST) {
        if (log->term >= m->ballot.term && (s->target == 0 || log->last < s->target))
            s->target = log->last;
    } else if (s->target == 0 && log->barrier != 0) {
        if (log->is_held && log->barrier == s->barrier && log->term == s->barrier_term) {
            s->target = log->barrier;
            s->barrier_leader = s->source;
        } else {
            s->barrier = log->barrier;
            s->barrier_term = log->term;
        }
    }
}

/* Makes entries of the answer. Returns their array, or NULL without memory. */
static struct quorum_entry **entries_make(const struct raft_log_entry *from, unsigned n)
{
    struct quorum_entry **entries = calloc(n, sizeof(struct quorum_entry *));

    for (unsigned i = 0; entries != NULL && i < n; i++) {
        entries[i] = quorum_entry_new(from[i].kind, from[i].len);
        if (entries[i] == NULL) {
            while (i > 0)
                quorum_entry_free(entries[--i]);
            free(entries);
            return NULL;
        }
        memcpy(entries[i]->bytes, from[i].data, from[i].len);
        entries[i]->e.index = from[i].index;
        entries[i]->e.term = from[i].term;
    }
    return entries;
}

static void entries_give(struct member *m, const struct raft_log_entry *entries,
                         unsigned n)
{
    struct seed_job *job = job_new(m, SEED_JOB_ENTRIES);

    if (job == NULL)
        return;
    job->entries = entries_make(entries, n);
    if (job->entries == NULL) {
        seed_job_free(job);
        member_fail(m, -ENOMEM, "copy the metadata store of another member");
        return;
    }
    job->n_entries = n;
    m->seed.fed += n;
    progress(&m->seed);
    job_give(m, job, MEMBER_SEED_APPLIES);
}

/* Returns whether a member that lost power, and copies since, waits for a leader whom the
 * others may not elect without it. Its store is whole, so it can ask how to take part. */
static bool may_doubt(const struct member *m)
{
    const struct member_seeding *s = &m->seed;

    return s->mark.doubt == SEED_LOG_LOST && quorum_log_found(m->log)->in_doubt &&
           s->mark.is_copied && s->mark.index >= s->mark.newest &&
           s->mark.index == s->fed && s->stuck_ns != 0 &&
           member_now_ns(m) - s->stuck_ns >= ms_to_ns(SEED_DOUBT_MS);
}

/* Returns how many entries the source has behind those of its answer. */
static uint64_t lag_of(const struct seed_log *log)
{
    uint64_t newest = log->index + log->n - 1;

    return log->commit > newest ? log->commit - newest : 0;
}

/* Returns whether the rate counts for these entries. If the log of the source grows
 * faster, a copy that kept to the rate would never end: those that came since the last
 * pause are fetched without one. */
static bool entries_rated(struct member_seeding *s, const struct seed_log *log)
{
    uint64_t lag = lag_of(log);

    if (lag >= s->lag && lag > 0)
        return false;
    s->lag = lag;
    return true;
}

/* Goes over to the leader for the newest entries: it alone says when the copy is
 * complete, and while changes come a follower always has one more. */
static void leader_next(struct member *m, const struct seed_log *log)
{
    struct member_seeding *s = &m->seed;
    const struct member_peer *p = member_peer_find(m, s->leader);

    if (s->mark.is_copied && s->mark.doubt != SEED_BEHIND && s->target == 0 &&
        lag_of(log) <= SEED_ENTRIES_MAX && p != NULL && member_now_ns(m) >= p->keys_ns)
        s->source = s->leader;
}

static void log_take(struct member *m, const struct rpc_request *rq)
{
    struct member_seeding *s = &m->seed;
    struct raft_log_entry entries[SEED_ENTRIES_MAX];
    struct seed_log log;

    if (seed_log_decode(rq->answer_msg, rq->answer_msg_len, rq->answer_payload,
                        rq->answer_payload_len, &log, entries) != 0 ||
        log.index != s->fed + 1) {
        member_peer_says(m, s->source, not_valid, false);
        other_source(m, false);
        return;
    }
    target_take(m, &log);
    s->bytes += rq->answer_payload_len;
    s->rated = entries_rated(s, &log) ? rq->answer_payload_len : 0;
    if (log.n > 0) {
        leader_next(m, &log);
        entries_give(m, entries, log.n);
    } else if (log.first > s->fed + 1) {
        other_source(m, true);
    } else {
        s->n_short = s->n_failed = 0;
        member_peer_says(m, s->source, log.leads ? NULL : "does not lead", false);
        wait_look(m);
        source_next(m); /* nothing is new there; another one may lead */
        pause_ms(m, SEED_PAUSE_MS);
    }
}

static void on_answer(struct rpc_request *rq, int rc)
{
    struct member *m = container_of(rq, struct member, seed.rq);

    m->seed.step = MEMBER_SEED_PAUSES;
    if (m->state != MEMBER_SEEDS)
        return;
    member_peer_says(m, m->seed.source,
                     rc != 0                            ? "does not answer"
                     : rq->status == ROZO__STATUS__OK   ? NULL
                     : rq->status == ROZO__STATUS__BUSY ? "does not take part itself"
                                                        : "refuses",
                     rc != 0);
    if (rc == 0 && rq->status == ROZO__STATUS__NOT_FOUND)
        member_removed(m);
    else if (rc == 0 && rq->status == ROZO__STATUS__DEPOSED)
        member_outlived(m, m->seed.source);
    else if (rc != 0 || rq->status != ROZO__STATUS__OK)
        other_source(m, false);
    else if (rq->op == ROZO__OP__RF_SEED)
        chunk_take(m, rq);
    else
        log_take(m, rq);
}

/* ---- questions ---- */

static bool is_complete(const struct member_seeding *s)
{
    const struct seed_mark *mark = &s->mark;

    if (!mark->is_copied || mark->index < mark->newest)
        return false;
    return (s->target != 0 && mark->index >= s->target) ||
           (mark->doubt == SEED_BEHIND && mark->index >= mark->needed);
}

static void end(struct member *m)
{
    struct seed_job *job = job_new(m, SEED_JOB_END);

    if (job != NULL)
        job_give(m, job, MEMBER_SEED_ENDS);
}

/* The copy is complete: saves a vote in place of one that is lost. It is for the leader
 * in whose term this member is admitted again, so it votes for nobody else in it. */
static void vote_or_end(struct member *m)
{
    struct member_seeding *s = &m->seed;
    uint64_t term = s->barrier_term, vote = s->barrier_leader;

    if (term < m->tell.forgotten_term) { /* no vote in terms in which it may have voted */
        term = m->tell.forgotten_term;
        vote = m->config.id;
    }
    if (s->mark.doubt != SEED_VOTE_LOST || term <= m->ballot.term) {
        end(m);
        return;
    }
    s->step = MEMBER_SEED_VOTES;
    quorum_log_vote(m->log, term, vote);
}

void member_seed_voted(struct member *m)
{
    if (m->seed.step == MEMBER_SEED_VOTES)
        end(m);
}

/* Asks for the next keys, or for the entries behind those that are there. After each
 * chunk the entries up to it follow, so that few are missing at the end. */
static void seed_next(struct member *m)
{
    struct member_seeding *s = &m->seed;
    bool is_fetch = needs_entries(s);
    struct seed_ask ask = { .from = m->config.id, .index = s->mark.index };
    struct member_peer *p;

    if (is_complete(s)) {
        vote_or_end(m);
        return;
    }
    if (may_doubt(m)) {
        s->to_doubt = true;
        end(m);
        return;
    }
    p = source_find(m);
    if (p == NULL) {
        pause_ms(m, SEED_DEADLINE_MS);
        return;
    }
    ask.to = p->id;
    if (is_fetch) {
        ask.index = s->fed + 1;
        ask.wants_barrier = s->mark.doubt == SEED_VOTE_LOST && s->target == 0;
        ask.barrier = s->barrier;
        ask.barrier_term = s->barrier_term;
    } else {
        ask.after = s->mark.cursor;
    }
    s->rq = (struct rpc_request){
        .op = is_fetch ? ROZO__OP__RF_FETCH : ROZO__OP__RF_SEED,
        .deadline_ms = SEED_DEADLINE_MS,
        .msg = s->msg,
        .msg_len = seed_ask_encode(&m->config.group, &ask, s->msg),
        .done = on_answer,
    };
    s->step = MEMBER_SEED_ASKS;
    rpc_send(p->channel, &s->rq);
}

/* ---- the log ---- */

static void on_removed(struct disk_req *dr, int rc)
{
    struct member *m = dr->arg;

    m->seed.step = MEMBER_SEED_PAUSES;
    if (m->state != MEMBER_SEEDS) {
        member_stop_look(m);
        return;
    }
    if (rc != 0 && rc != -ENOENT) {
        member_fail(m, rc, "remove the metadata log");
        return;
    }
    rc = member_log_open(m);
    if (rc != 0) {
        member_fail(m, rc, "start an empty metadata log");
        return;
    }
    m->seed.step = MEMBER_SEED_OPENS;
    member_log_start(m); /* makes the removal stable, too */
}

static void on_log_stopped(void *arg)
{
    struct member *m = arg;

    m->log_runs = false;
    quorum_log_free(m->log);
    m->log = NULL;
    m->seed.dr = (struct disk_req){
        .op = DISK_REMOVE,
        .path = segments_path,
        .n_names = WAL_SLOTS_MAX,
        .done = on_removed,
        .arg = m,
    };
    disk_submit(m->config.disk, &m->seed.dr);
}

static void log_clear(struct member *m)
{
    m->seed.step = MEMBER_SEED_CLEARS;
    if (m->log_runs)
        quorum_log_stop(m->log, on_log_stopped, m);
    else
        on_log_stopped(m);
}

void member_seed_log_started(struct member *m, int rc)
{
    const struct quorum_log_found *found = quorum_log_found(m->log);

    m->seed.step = MEMBER_SEED_PAUSES;
    if (m->state != MEMBER_SEEDS) {
        member_stop_look(m);
        return;
    }
    if (rc != 0) {
        member_fail(m, rc, "start an empty metadata log");
        return;
    }
    m->ballot = (struct quorum_ballot){ found->term, found->vote };
    member_peers_update(m, &m->place.members);
    seed_next(m);
}

/* ---- begin and end ---- */

/* A witness asks with a cursor behind all keys. If it lacks entries that it had
 * acknowledged it asks for a barrier, as if its vote were lost: so a majority of the
 * others has all that it does not have in its log any more. */
static void witness_mark(struct seed_mark *mark)
{
    *mark = (struct seed_mark){ .doubt = mark->doubt, .needed = mark->needed };
    if (mark->doubt == SEED_LOG_LOST)
        mark->doubt = SEED_VOTE_LOST;
    seed_key_set_end(&mark->cursor);
}

static void begin(struct member *m)
{
    struct seed_job *job;

    if (m->config.is_witness)
        witness_mark(&m->seed.mark);
    job = job_new(m, SEED_JOB_BEGIN);
    if (job != NULL)
        job_give(m, job, MEMBER_SEED_MARKS);
}

void member_seed_begin(struct member *m, struct seed_mark mark)
{
    log_info("quorum: this member copies the metadata store of another one");
    LIST_FOREACH(node, &m->peers) {
        struct member_peer *p = container_of(node, struct member_peer, link);

        p->says = NULL;
        p->is_silent = false;
        p->keys_ns = 0;
    }
    m->state = MEMBER_SEEDS;
    m->loss.floor_term = 0;
    m->seed = (struct member_seeding){ .step = MEMBER_SEED_SYNCS,
                                       .mark = mark,
                                       .lag = UINT64_MAX,
                                       .leader = m->leader,
                                       .leader_term = m->term };
    env_timer_init(&m->seed.timer, on_pause);
    env_timer_stop(m->config.env, &m->timer);
    m->space.n_full = 0;
    member_part_stop(m);
    member_start_end(m, 0);
    member_stop_look(m);
}

void member_seed_resume(struct member *m)
{
    member_seed_begin(m, m->place.seed);
}

void member_seed_synced(struct member *m)
{
    member_stop_look(m);
}

void member_seed_idle(struct member *m)
{
    if (m->seed.step == MEMBER_SEED_SYNCS && !m->is_syncing_below)
        begin(m);
}

static void ended(struct member *m, const struct seed_job *job)
{
    int rc;

    log_info("quorum: the metadata store is complete up to entry %llu: %llu bytes copied",
             (unsigned long long)job->place.applied, (unsigned long long)m->seed.bytes);
    m->place = job->place;
    m->synced = m->place.applied;
    m->seed.step = MEMBER_SEED_OFF;
    raft_core_free(m->core);
    m->core = NULL;
    rc = member_core_open(m);
    if (rc != 0)
        member_fail(m, rc, "start the core of the quorum");
    else if (m->seed.to_doubt)
        member_doubt_begin(m);
    else
        member_core_start(m);
}

/* The state of the copy has changed. */
static void applied(struct member *m, const struct seed_job *job)
{
    struct member_seeding *s = &m->seed;
    uint64_t ms = rate_ms(m, s->rated);

    if (s->mark.index == 0)
        s->fed = job->mark.index;
    s->mark = job->mark;
    if (job->place.members.n > 0 && job->place.members_index > m->place.members_index) {
        m->place.members = job->place.members;
        m->place.members_index = job->place.members_index;
        member_peers_update(m, &m->place.members);
    }
    if (ms > 0)
        pause_ms(m, ms);
    else
        seed_next(m);
}

void member_seeded(struct member *m, struct seed_job *job)
{
    assert(m->n_jobs > 0);
    m->n_jobs--;
    if (job->kind == SEED_JOB_READ) {
        member_source_read(m, job);
        return;
    }
    if (m->state == MEMBER_SEEDS && job->rc != 0) {
        member_fail(m, job->rc, "copy the metadata store of another member");
    } else if (m->state == MEMBER_SEEDS && job->kind == SEED_JOB_BEGIN) {
        m->seed.mark = job->mark;
        m->seed.fed = job->mark.index;
        log_clear(m);
    } else if (m->state == MEMBER_SEEDS && job->kind == SEED_JOB_END) {
        ended(m, job);
    } else if (m->state == MEMBER_SEEDS) {
        applied(m, job);
    }
    seed_job_free(job);
    member_stop_look(m);
}

bool member_seed_stop(struct member *m)
{
    struct member_seeding *s = &m->seed;

    if (s->step == MEMBER_SEED_CLEARS || s->step == MEMBER_SEED_OPENS)
        return false;
    if (s->step == MEMBER_SEED_ASKS)
        rpc_cancel(&s->rq);
    if (s->step != MEMBER_SEED_OFF)
        env_timer_stop(m->config.env, &s->timer);
    s->step = MEMBER_SEED_OFF;
    return true;
}

bool member_seed_is_stuck(const struct member *m)
{
    uint64_t since_ns = m->seed.stuck_ns;

    return since_ns != 0 && member_now_ns(m) - since_ns >= ms_to_ns(SEED_STUCK_MS);
}

void member_seed_status(const struct member *m, struct member_status *out)
{
    if (m->state != MEMBER_SEEDS)
        return;
    out->seeding = m->seed.mark.doubt;
    out->seed_bytes = m->seed.bytes;
    out->seed_from = m->seed.source;
    out->seed_has_keys = m->seed.mark.is_copied;
    out->seed_index = m->seed.mark.index;
    out->seed_target = m->seed.target != 0 ? m->seed.target : m->seed.mark.needed;
}
