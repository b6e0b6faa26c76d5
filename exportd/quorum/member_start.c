/*
 * member_start.c - start and stop of a member.
 *
 * Out:    the log, the core.
 * Keeps:  a member whose log has lost entries, or whose vote is damaged, does not take
 *         part before it has got it all from others (member_seed.c): it might contradict
 *         what it promised.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/quorum/member_in.h"

void member_start_end(struct member *m, int rc)
{
    void (*started)(void *arg, int rc) = m->started;

    m->started = NULL;
    m->err = &m->own_err;
    if (rc != 0 && started == NULL)
        member_fail(m, rc, "take part in the quorum");
    else if (rc != 0)
        m->state = MEMBER_FAILED;
    if (started != NULL)
        started(m->started_arg, rc);
}

/* Returns whether the core of a witness gets the term of the entry before its log, which
 * came with a copy: else it could not give entries to a member that ends there. */
static bool knows_before(const struct member *m)
{
    uint64_t first = quorum_log_first(m->log);

    return m->config.is_witness && first <= quorum_log_last(m->log) &&
           first == m->place.copied + 1 && m->place.copied < m->place.applied;
}

/* Returns the list of entries in the log; malloc'ed. */
static struct raft_log_entry *entries_list(const struct member *m, size_t *n)
{
    uint64_t first = quorum_log_first(m->log), last = quorum_log_last(m->log);
    bool before = knows_before(m);
    struct raft_log_entry *entries, *e;

    *n = (size_t)(last + 1 - first) + before;
    e = entries = calloc(*n + 1, sizeof(*entries));
    if (entries != NULL && before)
        *e++ = (struct raft_log_entry){ .index = m->place.copied,
                                        .term = m->place.copied_term,
                                        .kind = RAFT_ENTRY_EMPTY };
    for (uint64_t i = first; entries != NULL && i <= last; i++)
        *e++ = quorum_log_get(m->log, i, NULL);
    return entries;
}

static void core_start(struct member *m)
{
    struct raft_core_saved saved = {
        .term = m->ballot.term,
        .vote = m->ballot.vote,
        .applied = m->place.applied,
        .applied_term = m->place.applied_term,
        .config = m->place.members,
        .config_index = m->place.members_index,
    };
    struct raft_log_entry *entries = entries_list(m, &saved.n_entries);
    int rc;

    if (entries == NULL) {
        member_start_end(m, err_set(m->err, -ENOMEM, "out of memory"));
        return;
    }
    saved.entries = entries;
    m->given = m->stable_given = m->applied = m->place.applied;
    m->commit = m->stable = m->place.applied;
    m->listed = m->place.members;
    m->highest_id = m->change.coming_highest = m->place.highest_id;
    m->change.coming_index = 0;
    rc = raft_core_start(m->core, member_now_ns(m), &saved, m->err);
    free(entries);
    if (rc == -ROZO_EDAMAGED && m->started != NULL) {
        log_error("quorum: %s", m->err->text);
        member_seed_begin(m, (struct seed_mark){ .doubt = SEED_VOTE_LOST });
        return;
    }
    if (rc != 0) {
        member_start_end(m, rc);
        return;
    }
    raft_core_set_loss(m->core, m->loss.term);
    m->state = MEMBER_RUNS;
    member_tell_begin(m);
    quorum_log_forget_old(m->log);
    member_space_start(m);
    member_start_end(m, 0);
    member_pump(m);
}

/* Returns the newest term in log and store. */
static uint64_t term_held(const struct member *m)
{
    uint64_t last = quorum_log_last(m->log);

    return last < quorum_log_first(m->log) ? m->place.applied_term
                                           : quorum_log_get(m->log, last, NULL).term;
}

/* An entry of a later term may have been persisted before that term: no vote was given in
 * it then, since votes are sent only when they are persisted. */
void member_core_start(struct member *m)
{
    uint64_t held = term_held(m);

    member_floor_look(m, quorum_log_last(m->log), held);
    if (!m->loss.is_noted && m->loss.floor_term == 0) {
        m->loss.is_noted = true;
        m->state = MEMBER_BOOT;
        if (quorum_log_begin(m->log, m->loss.term))
            return;
    }
    if (held <= m->ballot.term) {
        core_start(m);
        return;
    }
    m->state = MEMBER_TERM;
    quorum_log_vote(m->log, held, 0);
}

/* Returns what this member has lost. */
static enum seed_doubt doubt_found(const struct member *m, int log_rc)
{
    const struct quorum_log_found *found = quorum_log_found(m->log);

    if (log_rc != 0 || found->vote_is_damaged ||
        (found->term == 0 && m->place.applied != 1))
        return SEED_VOTE_LOST;
    return found->lost != 0 || m->place.applied == 0 ? SEED_LOG_LOST : SEED_NONE;
}

static void on_log_started(void *arg, int rc)
{
    struct member *m = arg;
    const struct quorum_log_found *found = quorum_log_found(m->log);
    enum seed_doubt doubt = doubt_found(m, rc);

    m->log_runs = rc == 0;
    if (m->seed.step == MEMBER_SEED_OPENS) {
        member_seed_log_started(m, rc);
        return;
    }
    m->ballot = (struct quorum_ballot){ found->term, found->vote };
    m->loss.term = found->loss_term;
    if (rc != 0 && rc != -ROZO_EDAMAGED) {
        member_start_end(
            m, err_set(m->err, rc, "read the metadata log: %s", error_text(rc)));
    } else if (m->place.seed.doubt != SEED_NONE) {
        if (doubt > m->place.seed.doubt && doubt != SEED_LOG_LOST)
            m->place.seed.doubt = doubt;
        member_seed_resume(m);
    } else if (m->place.applied == 0 && m->place.members.n == 0) {
        member_start_end(
            m, err_set(m->err, -ENODATA, "this member belongs to no quorum yet"));
    } else if (doubt != SEED_NONE) {
        log_error("quorum: this member has lost %s: it copies the store of another one "
                  "before it takes part",
                  doubt == SEED_VOTE_LOST ? "its vote" : "entries of its log");
        member_seed_begin(m, (struct seed_mark){ .doubt = doubt, .is_copied = true });
    } else if (found->in_doubt) {
        member_doubt_begin(m);
    } else {
        member_core_start(m);
    }
}

/* ---- hooks of the log ---- */

static void on_persisted(void *arg, uint64_t index, uint64_t term)
{
    struct member *m = arg;

    member_tell_synced(m, index, term);
    if (m->state != MEMBER_RUNS)
        return;
    member_floor_look(m, index, term);
    member_event(m, raft_core_persisted(m->core, member_now_ns(m), index, term));
}

static void on_written(void *arg, uint64_t index, uint64_t term)
{
    struct member *m = arg;

    if (m->state != MEMBER_RUNS || !m->config.is_lazy)
        return;
    member_floor_look(m, index, term);
    member_event(m, raft_core_written(m->core, member_now_ns(m), index, term));
}

static void on_begun(void *arg)
{
    struct member *m = arg;

    if (m->state == MEMBER_BOOT)
        member_core_start(m);
}

static void on_voted(void *arg, uint64_t term, uint64_t vote)
{
    struct member *m = arg;

    m->ballot = (struct quorum_ballot){ term, vote };
    if (m->state == MEMBER_TERM)
        member_core_start(m);
    else if (m->state == MEMBER_SEEDS)
        member_seed_voted(m);
    else if (m->state == MEMBER_RUNS)
        member_event(m, raft_core_vote_persisted(m->core, member_now_ns(m), term, vote));
}

static void on_log_failed(void *arg, int rc)
{
    struct member *m = arg;

    if ((m->state == MEMBER_TERM || m->state == MEMBER_BOOT) && m->started != NULL)
        member_start_end(
            m, err_set(m->err, rc, "write the metadata log: %s", error_text(rc)));
    else
        member_fail(m, rc, "write the metadata log");
}

static void on_log_full(void *arg, bool is_full)
{
    struct member *m = arg;

    if (m->state == MEMBER_RUNS)
        member_log_full(m, is_full);
}

static void on_timer(struct env_timer *timer)
{
    struct member *m = container_of(timer, struct member, timer);
    uint64_t now_ns = member_now_ns(m);

    if (m->state == MEMBER_RUNS && m->loss.floor_term != 0)
        member_floor_wait(m);
    else if (m->state == MEMBER_RUNS && now_ns < m->loss.quiet_until_ns)
        env_timer_start(m->config.env, timer,
                        ns_to_ms(m->loss.quiet_until_ns - now_ns) + 1);
    else if (m->state == MEMBER_RUNS)
        member_event(m, raft_core_tick(m->core, member_now_ns(m)));
}

/* ---- life ---- */

void member_start(struct member *m, struct err *err, void (*done)(void *arg, int rc),
                  void *arg)
{
    assert(m->state == MEMBER_NEW);
    m->state = MEMBER_LOG;
    m->err = err;
    m->started = done;
    m->started_arg = arg;
    member_tell_start(m);
}

static void on_log_stopped(void *arg)
{
    struct member *m = arg;

    m->state = MEMBER_STOPPED;
    m->stopped(m->stopped_arg);
}

void member_stop_look(struct member *m)
{
    bool is_idle = list_is_empty(&m->steps) && !m->is_reading &&
                   list_is_empty(&m->sources) && m->n_jobs == 0 && !m->space.is_asking;
    bool is_over = is_idle && !m->tell.is_busy;

    if (m->state == MEMBER_SEEDS && is_idle)
        member_seed_idle(m);
    if (m->state != MEMBER_STOPS || !is_over || !member_seed_stop(m))
        return;
    m->state = MEMBER_LOG_STOPS;
    if (m->log_runs)
        quorum_log_stop(m->log, on_log_stopped, m);
    else
        on_log_stopped(m);
}

static void on_stop_task(struct env_task *task)
{
    member_stop_look(container_of(task, struct member, stop_task));
}

void member_stop(struct member *m, void (*done)(void *arg), void *arg)
{
    assert(m->state >= MEMBER_DOUBTS && m->state <= MEMBER_FAILED);
    m->state = MEMBER_STOPS;
    m->stopped = done;
    m->stopped_arg = arg;
    member_depose(m);
    env_timer_stop(m->config.env, &m->timer);
    member_space_stop(m);
    member_change_stop(m);
    member_doubt_stop(m);
    member_seed_stop(m);
    member_tell_stop(m);
    member_peers_close(m);
    env_post(m->config.env, &m->stop_task);
}

int member_core_open(struct member *m)
{
    struct raft_core_options options = {
        .id = m->config.id,
        .group = m->config.group,
        .election_ms = m->config.election_ms,
        .heartbeat_ms = m->config.heartbeat_ms,
        .promise_ms = m->config.promise_ms,
        .is_lazy = m->config.is_lazy,
    };

    if (options.promise_ms == 0)
        options.promise_ms = RAFT_PROMISE_MS;

    env_random(m->config.env, &options.seed, sizeof(options.seed));
    return raft_core_open(&options, &m->core);
}

int member_log_open(struct member *m)
{
    const struct quorum_log_config log = {
        .env = m->config.env,
        .disk = m->config.disk,
        .hooks = &m->log_hooks,
        .segment_bytes = m->config.segment_bytes,
        .boot = m->config.boot,
        .is_lazy = m->config.is_lazy,
    };

    m->loss.is_noted = false;
    return quorum_log_open(&log, &m->log);
}

void member_log_start(struct member *m)
{
    quorum_log_start(m->log, on_log_started, m);
}

int member_open(const struct member_config *config, struct member **out)
{
    struct member *m = calloc(1, sizeof(*m));
    int rc;

    if (m == NULL)
        return -ENOMEM;
    m->config = *config;
    m->place = *config->place;
    if (m->place.members.n == 0 && config->sources != NULL)
        m->place.members = *config->sources;
    m->listed = m->place.members;
    m->highest_id = m->place.highest_id;
    if (m->config.keep_bytes == 0)
        m->config.keep_bytes = MEMBER_KEEP_BYTES;
    list_init(&m->peers);
    list_init(&m->steps);
    list_init(&m->sources);
    env_timer_init(&m->timer, on_timer);
    m->stop_task.fn = on_stop_task;
    m->log_hooks = (struct quorum_log_hooks){ .persisted = on_persisted,
                                              .voted = on_voted,
                                              .failed = on_log_failed,
                                              .arg = m,
                                              .full = on_log_full,
                                              .written = on_written,
                                              .begun = on_begun };
    rc = member_core_open(m);
    if (rc == 0)
        rc = member_log_open(m);
    if (rc != 0) {
        member_free(m);
        return rc;
    }
    *out = m;
    return 0;
}

void member_free(struct member *m)
{
    if (m == NULL)
        return;
    assert(list_is_empty(&m->steps) && list_is_empty(&m->peers));
    member_tell_close(m);
    raft_core_free(m->core);
    quorum_log_free(m->log);
    free(m);
}
