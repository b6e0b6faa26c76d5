/*
 * member_start.c - start and stop of a member.
 *
 * Out:    the log, the core.
 * Keeps:  a member whose log has lost entries, or whose vote is damaged, does not take
 *         part: it might contradict what it promised.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "exportd/quorum/member_in.h"

static void start_end(struct member *m, int rc)
{
    if (rc != 0)
        m->state = MEMBER_FAILED;
    m->started(m->started_arg, rc);
}

/* Returns the list of entries in the log; malloc'ed. */
static struct raft_log_entry *entries_list(const struct member *m, size_t *n)
{
    uint64_t first = quorum_log_first(m->log), last = quorum_log_last(m->log);
    struct raft_log_entry *entries;

    *n = (size_t)(last + 1 - first);
    entries = calloc(*n + 1, sizeof(*entries));
    for (size_t i = 0; entries != NULL && i < *n; i++)
        entries[i] = quorum_log_get(m->log, first + i, NULL);
    return entries;
}

static void core_start(struct member *m, uint64_t term, uint64_t vote)
{
    struct raft_core_saved saved = {
        .term = term,
        .vote = vote,
        .applied = m->place.applied,
        .applied_term = m->place.applied_term,
        .config = m->place.members,
        .config_index = m->place.members_index,
    };
    struct raft_log_entry *entries = entries_list(m, &saved.n_entries);
    int rc;

    if (entries == NULL) {
        start_end(m, err_set(m->err, -ENOMEM, "out of memory"));
        return;
    }
    saved.entries = entries;
    m->given = m->applied = m->commit = m->place.applied;
    rc = raft_core_start(m->core, member_now_ns(m), &saved, m->err);
    free(entries);
    if (rc != 0) {
        start_end(m, rc);
        return;
    }
    m->state = MEMBER_RUNS;
    quorum_log_forget_old(m->log);
    m->started(m->started_arg, 0);
    member_pump(m);
}

/* Returns the newest term in log and store. */
static uint64_t term_held(const struct member *m)
{
    uint64_t last = quorum_log_last(m->log);

    return last < quorum_log_first(m->log) ? m->place.applied_term
                                           : quorum_log_get(m->log, last, NULL).term;
}

/* Starts the core. An entry of a later term may have been persisted before that term: no
 * vote was given in it then, since votes are sent only when they are persisted. */
static void vote_look(struct member *m, uint64_t term, uint64_t vote)
{
    uint64_t held = term_held(m);

    if (held <= term) {
        core_start(m, term, vote);
        return;
    }
    m->state = MEMBER_TERM;
    quorum_log_vote(m->log, held, 0);
}

static void on_log_started(void *arg, int rc)
{
    struct member *m = arg;
    const struct quorum_log_found *found = quorum_log_found(m->log);

    if (rc != 0)
        start_end(m, err_set(m->err, rc, "read the metadata log: %s", error_text(rc)));
    else if (found->vote_is_damaged)
        start_end(m,
                  err_set(m->err, -ROZO_EDAMAGED,
                          "the file `vote` of the metadata log is damaged: this member "
                          "cannot vote"));
    else if (found->lost != 0)
        start_end(m, err_set(m->err, -ROZO_EDAMAGED,
                             "the metadata log has lost entries from %llu on",
                             (unsigned long long)found->lost));
    else if (m->place.applied == 0)
        start_end(m, err_set(m->err, -ENODATA, "this member belongs to no quorum yet"));
    else if (found->term == 0 && m->place.applied > 1)
        start_end(m,
                  err_set(m->err, -ROZO_EDAMAGED,
                          "the file `vote` of the metadata log is missing: this member "
                          "cannot vote"));
    else
        vote_look(m, found->term, found->vote);
}

/* ---- hooks of the log ---- */

static void on_persisted(void *arg, uint64_t index, uint64_t term)
{
    struct member *m = arg;

    if (m->state == MEMBER_RUNS)
        member_event(m, raft_core_persisted(m->core, member_now_ns(m), index, term));
}

static void on_voted(void *arg, uint64_t term, uint64_t vote)
{
    struct member *m = arg;

    if (m->state == MEMBER_TERM)
        core_start(m, term, vote);
    else if (m->state == MEMBER_RUNS)
        member_event(m, raft_core_vote_persisted(m->core, member_now_ns(m), term, vote));
}

static void on_log_failed(void *arg, int rc)
{
    struct member *m = arg;

    if (m->state == MEMBER_TERM)
        start_end(m, err_set(m->err, rc, "write the metadata log: %s", error_text(rc)));
    else
        member_fail(m, rc, "write the metadata log");
}

static void on_timer(struct env_timer *timer)
{
    struct member *m = container_of(timer, struct member, timer);

    if (m->state == MEMBER_RUNS)
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
    quorum_log_start(m->log, on_log_started, m);
}

static void on_log_stopped(void *arg)
{
    struct member *m = arg;

    m->state = MEMBER_STOPPED;
    m->stopped(m->stopped_arg);
}

void member_stop_look(struct member *m)
{
    if (m->state != MEMBER_STOPS || !list_is_empty(&m->steps) || m->is_reading)
        return;
    m->state = MEMBER_LOG_STOPS;
    quorum_log_stop(m->log, on_log_stopped, m);
}

static void on_stop_task(struct env_task *task)
{
    member_stop_look(container_of(task, struct member, stop_task));
}

void member_stop(struct member *m, void (*done)(void *arg), void *arg)
{
    assert(m->state == MEMBER_RUNS || m->state == MEMBER_FAILED);
    m->state = MEMBER_STOPS;
    m->stopped = done;
    m->stopped_arg = arg;
    member_depose(m);
    env_timer_stop(m->config.env, &m->timer);
    member_peers_close(m);
    env_post(m->config.env, &m->stop_task);
}

int member_open(const struct member_config *config, struct member **out)
{
    struct member *m = calloc(1, sizeof(*m));
    struct raft_core_options options = {
        .id = config->id,
        .group = config->group,
        .election_ms = config->election_ms,
        .heartbeat_ms = config->heartbeat_ms,
    };
    struct quorum_log_config log = {
        .env = config->env,
        .disk = config->disk,
        .segment_bytes = config->segment_bytes,
    };
    int rc;

    if (m == NULL)
        return -ENOMEM;
    m->config = *config;
    m->place = *config->place;
    if (m->config.keep_bytes == 0)
        m->config.keep_bytes = MEMBER_KEEP_BYTES;
    list_init(&m->peers);
    list_init(&m->steps);
    env_timer_init(&m->timer, on_timer);
    m->stop_task.fn = on_stop_task;
    m->log_hooks = (struct quorum_log_hooks){ on_persisted, on_voted, on_log_failed, m };
    log.hooks = &m->log_hooks;
    env_random(config->env, &options.seed, sizeof(options.seed));
    rc = raft_core_open(&options, &m->core);
    if (rc == 0)
        rc = quorum_log_open(&log, &m->log);
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
    raft_core_free(m->core);
    quorum_log_free(m->log);
    free(m);
}
