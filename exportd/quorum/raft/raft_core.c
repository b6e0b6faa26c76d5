/*
 * raft_core.c - one member's part in a raft group, by libraft's raft_step().
 *
 * In:     events of the caller. Out: struct raft_core_out. No clock, no I/O, no threads.
 * Keeps:  guards against defects of libraft 0.22.1, R1 to R22; each has a test in
 *         tests/unit/quorum/test_guards.c that shows the defect first.
 * Ask:    libraft 0.22.1, src/: who frees what is not in its header, and changed after
 *         it (R9). docs/internals/metadata-quorum.md lists the guards.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "exportd/quorum/raft/raft_core_in.h"
#include "exportd/quorum/raft/raft_saved.h"

enum {
    START_ENTRIES_MAX = 1 << 20, /* entries that libraft gets at a start, the newest */
    EMPTY_BYTES = 8,
    LEASE_PART = 4, /* the lease lacks one part in so many of the promise */
};
static_assert(RAFT_ENTRY_BATCH == (int)RAFT_COMMAND, "kinds are those of libraft");
static_assert(RAFT_ENTRY_EMPTY == (int)RAFT_BARRIER, "kinds are those of libraft");
static_assert(RAFT_ENTRY_CONFIG == (int)RAFT_CHANGE, "kinds are those of libraft");
static_assert(RAFT_ROLE_STANDBY == (int)RAFT_STANDBY, "roles are those of libraft");
static_assert(RAFT_ROLE_VOTER == (int)RAFT_VOTER, "roles are those of libraft");
static_assert(RAFT_ROLE_SPARE == (int)RAFT_SPARE, "roles are those of libraft");

static const uint8_t empty_data[EMPTY_BYTES];
static uint8_t no_batch; /* stands for memory that libraft shall not free */

static uint64_t core_ms(const struct raft_core *core)
{
    return ns_to_ms(core->now_ns);
}

int raft_core_open(const struct raft_core_options *options, struct raft_core **out)
{
    struct raft_core *core = calloc(1, sizeof(*core));
    struct raft_core_options *o;

    assert(options->id != 0);
    if (core == NULL)
        return -ENOMEM;
    o = &core->options;
    *o = *options;
    o->election_ms = o->election_ms == 0 ? RAFT_ELECTION_MS : o->election_ms;
    o->heartbeat_ms = o->heartbeat_ms == 0 ? RAFT_HEARTBEAT_MS : o->heartbeat_ms;
    o->promise_ms = o->promise_ms == 0 ? o->election_ms : o->promise_ms;
    assert(o->promise_ms <= o->election_ms && o->heartbeat_ms < o->promise_ms);
    snprintf(core->address, sizeof(core->address), "%016" PRIx64, o->id);
    if (raft_init(&core->raft, NULL, NULL, o->id, core->address) != 0) {
        free(core);
        return -ENOMEM;
    }
    core->raft.tracer = NULL; /* R8 */
    raft_seed(&core->raft, o->seed);
    raft_set_election_timeout(&core->raft, o->election_ms);
    raft_set_heartbeat_timeout(&core->raft, o->heartbeat_ms);
    /* A SEED may be lost, and the log trimmed since: libraft says it again so late. */
    raft_set_install_snapshot_timeout(&core->raft, o->election_ms);
    raft_set_pre_vote(&core->raft, true);
    raft_set_max_inflight_entries(&core->raft, RAFT_MSG_ENTRIES_MAX);
    core->is_taken = true;
    *out = core;
    return 0;
}

void raft_core_free(struct raft_core *core)
{
    if (core == NULL)
        return;
    raft_close(&core->raft, NULL);
    raft_free(core->barrier);
    raft_changes_free(&core->changes);
    free(core->messages);
    free(core);
}

/* Maps libraft's result of a step. */
static int step_result(int rv)
{
    switch (rv) {
    case 0:
        return 0;
    case RAFT_NOMEM:
        return -ENOMEM;
    case RAFT_SHUTDOWN: /* committed entries differ */
    case RAFT_MALFORMED:
        return -ROZO_EDAMAGED;
    case RAFT_NOTLEADER:
        return -ROZO_ENOT_LEADER;
    case RAFT_BADID:
    case RAFT_NOTFOUND:
        return -EINVAL;
    case RAFT_CANTCHANGE:
        return -EAGAIN;
    default:
        return -EIO;
    }
}

uint64_t core_trail_term(const struct raft_trail *t, uint64_t index)
{
    unsigned n = t->size == 0 ? 0 : (t->back + t->size - t->front) % t->size;
    uint64_t before, term = 0;

    if (index == 0)
        return 0;
    for (unsigned i = n; i > 0; i--) {
        unsigned at = (t->front + i - 1) % t->size;

        before = i == 1 ? t->offset : t->records[(t->front + i - 2) % t->size].index;
        if (index > before) {
            term = index <= t->records[at].index ? t->records[at].term : 0;
            break;
        }
    }
    return term == 0 && index == t->snapshot.index ? t->snapshot.term : term;
}

/* Makes libraft's form of a list of members. Returns 0 or -ENOMEM. */
static int lib_config_make(const struct raft_config *config,
                           struct raft_configuration *out)
{
    uint8_t buf[RAFT_CONFIG_BYTES_MAX];
    struct raft_buffer b = { .base = buf, .len = raft_config_encode(config, buf) };

    return step_result(raft_configuration_decode(&b, out));
}

int core_step(struct raft_core *core, struct raft_event *event,
              const struct raft_msg *answered)
{
    bool was_leader = core->raft.state == RAFT_LEADER;
    struct raft_update update;
    int rc;

    memset(&update, 0, sizeof(update));
    event->time = core_ms(core);
    event->capacity = 0;
    rc = step_result(raft_step(&core->raft, event, &update));
    core->ballot.term = raft_current_term(&core->raft);
    core->ballot.vote = raft_voted_for(&core->raft);
    if (rc != 0)
        return rc;
    if ((update.flags & (RAFT_UPDATE_ENTRIES)) != 0)
        rc = core_collect_entries(core, &update);
    if ((update.flags & (RAFT_UPDATE_MESSAGES)) != 0) {
        for (unsigned i = 0; i < update.messages.n; i++)
            core_collect_message(core, &update.messages.batch[i], answered);
    }
    if (core->raft.state == RAFT_LEADER && !was_leader) {
        raft_lease_begin(&core->lease, core->now_ns);
        core->transfer = (struct transfer){ .is_active = false };
        raft_synced_lead(&core->synced);
        core->sync_to = 0;
        core->loss.is_heard = core->loss.is_counted = false;
        core->first_own =
            (update.flags & (RAFT_UPDATE_ENTRIES)) != 0 ? update.entries.index : 0;
    }
    return rc;
}

/* Appends entries of the core or the caller as leader. */
static int entries_submit(struct raft_core *core, const struct raft_log_entry *entries,
                          unsigned n)
{
    struct raft_event event = { .type = RAFT_SUBMIT };
    struct raft_entry lib[RAFT_MSG_ENTRIES_MAX];

    for (unsigned i = 0; i < n; i++)
        lib[i] = (struct raft_entry){ .term = raft_current_term(&core->raft),
                                      .type = (enum raft_entry_type)entries[i].kind,
                                      .buf = { .base = (void *)entries[i].data,
                                               .len = entries[i].len },
                                      .batch = &no_batch };
    event.submit.entries = lib;
    event.submit.n = n;
    return core_step(core, &event, NULL);
}

static int empty_submit(struct raft_core *core)
{
    struct raft_log_entry e = { .kind = RAFT_ENTRY_EMPTY,
                                .len = EMPTY_BYTES,
                                .data = empty_data };

    return entries_submit(core, &e, 1);
}

int core_change_report(struct raft_core *core)
{
    struct raft_event event = { .type = RAFT_CONFIGURATION };
    int rc = lib_config_make(&core->changes.later[0].config, &event.configuration.conf);

    if (rc != 0)
        return rc;
    event.configuration.index = core->changes.later[0].index;
    raft_changes_commit(&core->changes);
    return core_step(core, &event, NULL);
}

/*
 * Begins the transfer in libraft once the other member has all entries (R22): libraft
 * sends TIMEOUT_NOW too early, and a follower that is still writing ignores it.
 */
static int transfer_start(struct raft_core *core)
{
    struct raft_event event = { .type = RAFT_TRANSFER };
    struct transfer *t = &core->transfer;
    raft_index match;

    event.transfer.server_id = t->to;
    if (core->now_ns >= t->until_ns ||
        raft_match_index(&core->raft, t->to, &match) != 0) {
        *t = (struct transfer){ .is_active = false };
        return 0;
    }
    if (match < raft_last_index(&core->raft))
        return 0;
    t->to = 0;
    return core_step(core, &event, NULL);
}

/* Sees to a transfer that failed: its TIMEOUT_NOW may still be on its way. */
static int transfer_settle(struct raft_core *core)
{
    struct transfer *t = &core->transfer;
    int rc = 0;

    if (t->is_active && t->to != 0)
        return transfer_start(core);
    if (!t->is_active || raft_transferee(&core->raft) != 0)
        return 0;
    /* A candidate whose log ends at sent_index loses once a later entry is committed. */
    if (t->sent_index == 0 || raft_commit_index(&core->raft) > t->sent_index) {
        *t = (struct transfer){ .is_active = false };
        return 0;
    }
    if (!t->is_voided && raft_last_index(&core->raft) == t->sent_index)
        rc = empty_submit(core);
    t->is_voided = rc == 0;
    return rc;
}

/* Asks all members to sync their logs as far as somebody waits for it. */
static void sync_ask(struct raft_core *core)
{
    const struct raft_config *config = &raft_changes_newest(&core->changes)->config;

    if (core->raft.state != RAFT_LEADER || core->sync_to <= core->out.stable)
        return;
    for (unsigned i = 0; i < config->n; i++) {
        const struct raft_member *to = &config->members[i];
        struct raft_msg *m = to->id == core->options.id || to->role != RAFT_ROLE_VOTER
                                 ? NULL
                                 : core_message_add(core, RAFT_MSG_SYNC, to->id,
                                                    raft_current_term(&core->raft));

        if (m == NULL)
            continue;
        m->index = core->sync_to;
        m->index_term = core_trail_term(&core->raft.trail, m->index);
    }
}

/* Returns whether what is written counts: no list of members waits for a sync. */
static bool may_wait(const struct raft_core *core)
{
    return core_counts_written(core) && core->list_to <= core->synced.synced;
}

/* Reports to libraft what counts as persisted: what is synced, or written. */
static int stored_report(struct raft_core *core)
{
    struct raft_event event = { .type = RAFT_PERSISTED_ENTRIES };
    uint64_t index = core->synced.synced;

    if (may_wait(core) && core->synced.written > index)
        index = core->synced.written;
    if (index <= core->raft.last_stored || core->raft.state == RAFT_CANDIDATE)
        return 0;
    event.persisted_entries.index = index;
    return core_step(core, &event, NULL);
}

/* Says to the leader how far the log is synced, where no answer to an APPEND does. */
static void synced_tell(struct raft_core *core)
{
    const struct heard *h = &core->heard;
    struct raft_msg *m;

    if (core->raft.state != RAFT_FOLLOWER || h->term != core->ballot.term ||
        h->match == 0)
        return;
    m = core_message_add(core, RAFT_MSG_APPENDED, h->from, h->term);
    if (m == NULL)
        return;
    m->last = h->match < core->raft.last_stored ? h->match : core->raft.last_stored;
    m->echo_ns = h->sent_ns;
    core_say_synced(core, m);
}

static bool vote_is_saved(const struct raft_core *core)
{
    return core->ballot.term == core->saved.term && core->ballot.vote == core->saved.vote;
}

static enum raft_core_role core_role(const struct raft_core *core)
{
    switch (core->raft.state) {
    case RAFT_LEADER:
        return RAFT_CORE_LEADER;
    case RAFT_CANDIDATE:
        return RAFT_CORE_CANDIDATE;
    default:
        return RAFT_CORE_FOLLOWER;
    }
}

static uint64_t core_leader(const struct raft_core *core)
{
    if (core->raft.state == RAFT_LEADER)
        return core->options.id;
    /* libraft keeps the leader of an earlier term. */
    return core->raft.state == RAFT_FOLLOWER && core->heard.term == core->ballot.term
               ? core->heard.from
               : 0;
}

/* Returns up to which entry a majority has synced, as far as this member knows. As for
 * the commit index, entries of earlier terms count with one of the leader's own. */
static uint64_t stable_known(const struct raft_core *core)
{
    uint64_t index = core->out.commit;

    if (core->raft.state != RAFT_LEADER)
        return core->stable_told;
    if (core->options.is_lazy)
        index = raft_synced_majority(&core->synced,
                                     &raft_changes_newest(&core->changes)->config,
                                     core->options.id);
    return core->first_own != 0 && index >= core->first_own ? index : 0;
}

static void stable_fill(struct raft_core *core)
{
    struct raft_core_out *out = &core->out;
    uint64_t stable =
        core_lower(stable_known(core), core_lower(out->commit, core->synced.synced));

    if (stable > out->stable)
        out->stable = stable;
    out->may_wait = may_wait(core) && core->sync_to <= core->synced.synced;
}

/* Fills in the state that the caller gets. */
static void out_fill(struct raft_core *core)
{
    struct raft_core_out *out = &core->out;

    if (core->before.term != core->ballot.term ||
        core->before.vote != core->ballot.vote) {
        out->new_term = core->ballot.term;
        out->new_vote = core->ballot.vote;
    }
    out->loss = core->raft.state == RAFT_LEADER && !core->loss.is_counted &&
                (core->loss.is_heard || core->loss.term != 0);
    out->role = core_role(core);
    out->term = core->ballot.term;
    out->leader = core_leader(core);
    if (vote_is_saved(core)) {
        uint64_t commit =
            core_lower(raft_commit_index(&core->raft), core->raft.last_stored);

        if (commit > out->commit) /* R4 */
            out->commit = commit;
    }
    stable_fill(core);
    if (core->raft.state == RAFT_LEADER && core_covered(core) > core->covered)
        core->covered = core_covered(core);
    out->covered = core->covered;
    out->is_ready = out->role == RAFT_CORE_LEADER && core->first_own != 0 &&
                    out->stable >= core->first_own;
    out->next_ns = ms_to_ns(raft_timeout(&core->raft));
}

bool core_is_only_voter(const struct raft_core *core)
{
    const struct raft_config *config = raft_core_config(core);
    const struct raft_member *own = raft_config_find(config, core->options.id);

    return own != NULL && own->role == RAFT_ROLE_VOTER &&
           raft_config_n_voters(config) == 1;
}

void core_hurry_end(struct raft_core *core)
{
    if (core->is_hurried)
        raft_set_election_timeout(&core->raft, core->options.election_ms);
    core->is_hurried = false;
}

/* Does what follows from the steps of an event. */
static int core_settle(struct raft_core *core)
{
    int rc = 0;

    rc = stored_report(core);
    while (rc == 0 && core->changes.n > 0 &&
           core->changes.later[0].index <= raft_commit_index(&core->raft))
        rc = core_change_report(core);
    if (rc != 0 || core->raft.state != RAFT_LEADER)
        return rc;
    core_hurry_end(core);
    if (core->first_own == 0) {
        core->first_own = raft_last_index(&core->raft) + 1;
        rc = empty_submit(core);
    }
    if (core->options.is_lazy && core->sync_to < core->first_own) {
        core->sync_to = core->first_own; /* the leader answers when this one is stable */
        sync_ask(core);
    }
    if (rc == 0)
        rc = transfer_settle(core);
    raft_lease_members(&core->lease, &raft_changes_newest(&core->changes)->config);
    return rc;
}

int core_event_begin(struct raft_core *core, uint64_t now_ns)
{
    struct raft_core_out *out = &core->out;

    assert(core->is_taken);
    if (core->is_broken || !core->is_started)
        return -EIO;
    if (now_ns > core->now_ns)
        core->now_ns = now_ns;
    core->before = core->ballot;
    raft_free(core->barrier);
    core->barrier = NULL;
    if (core->messages_are_out)
        core->n_messages = 0;
    core->messages_are_out = false;
    out->new_term = out->new_vote = out->truncate_from = 0;
    out->n_entries = out->n_messages = 0;
    out->seeding = out->seed_to = out->lost = 0;
    return 0;
}

int core_event_end(struct raft_core *core, int rc)
{
    if (rc == 0)
        rc = core_settle(core);
    if (rc != 0) {
        core->is_broken = true;
        return rc;
    }
    out_fill(core);
    core->is_taken = false;
    return 0;
}

/* Makes libraft's form of the newest entries. Returns 0 or -ENOMEM. */
static int start_entries_make(const struct raft_core_saved *s, struct raft_event *event)
{
    size_t skip = s->n_entries > START_ENTRIES_MAX ? s->n_entries - START_ENTRIES_MAX : 0;
    size_t n;

    /* The log must reach back to the store. */
    if (skip > 0 && s->entries[skip].index > s->applied + 1)
        skip = s->applied + 1 - s->entries[0].index;
    n = s->n_entries - skip;
    event->start.start_index = n == 0 ? s->applied + 1 : s->entries[skip].index;
    event->start.n_entries = (unsigned)n;
    if (n == 0)
        return 0;
    event->start.entries = raft_calloc(n, sizeof(*event->start.entries));
    if (event->start.entries == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < n; i++) {
        const struct raft_log_entry *e = &s->entries[skip + i];
        struct raft_entry *lib = &event->start.entries[i];

        lib->term = e->term;
        lib->type = (enum raft_entry_type)e->kind;
        lib->buf.base = (void *)e->data;
        lib->buf.len = e->len;
    }
    return 0;
}

/* Steps libraft's start. It frees the entries if it fails, and only then (R9). */
static int start_step(struct raft_core *core, const struct raft_core_saved *s)
{
    struct raft_event event = { .type = RAFT_START };
    struct raft_snapshot_metadata snapshot = { .index = s->applied,
                                               .term = s->applied_term,
                                               .configuration_index = s->config_index };
    int rc = start_entries_make(s, &event);

    if (rc != 0)
        return rc;
    event.start.term = s->term;
    event.start.voted_for = s->vote;
    if (core_is_only_voter(core)) { /* R19 */
        event.start.term++;
        event.start.voted_for = core->options.id;
    }
    if (s->applied > 0) {
        rc = lib_config_make(&s->config, &snapshot.configuration);
        if (rc != 0) {
            raft_free(event.start.entries);
            return rc;
        }
        event.start.metadata = &snapshot;
    }
    rc = core_step(core, &event, NULL);
    if (rc == 0)
        raft_free(event.start.entries);
    return rc;
}

int raft_core_start(struct raft_core *core, uint64_t now_ns,
                    const struct raft_core_saved *saved, struct err *err)
{
    int rc = raft_saved_check(saved, err);

    assert(!core->is_started);
    if (rc != 0)
        return rc;
    core->is_started = true;
    rc = core_event_begin(core, now_ns);
    assert(rc == 0);
    core->votes_from_ns = now_ns + ms_to_ns(core->options.election_ms); /* R5 */
    core->saved = core->before =
        (struct ballot){ .term = saved->term, .vote = saved->vote };
    core->changes.base = (struct raft_member_list){ .index = saved->config_index,
                                                    .config = saved->config };
    core->out.commit = core->out.stable = core->log_last = saved->applied;
    for (size_t i = 0; i < saved->n_entries && rc == 0; i++) {
        const struct raft_log_entry *e = &saved->entries[i];

        core->log_last = e->index;
        if (e->kind == RAFT_ENTRY_CONFIG && e->index > saved->config_index)
            rc = raft_changes_add(&core->changes, e->index, e->data, e->len);
    }
    core->synced.synced = core->log_last;
    core->list_to = raft_changes_newest(&core->changes)->index;
    if (rc == 0)
        rc = start_step(core, saved);
    rc = core_event_end(core, rc);
    return rc == 0 ? 0 : err_wrap(err, rc, "start a member of the quorum");
}

int raft_core_tick(struct raft_core *core, uint64_t now_ns)
{
    struct raft_event event = { .type = RAFT_TIMEOUT };
    int rc = core_event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    /* Before its time a leader would take peers that are about to answer for lost. */
    if (core_ms(core) < raft_timeout(&core->raft))
        return core_event_end(core, 0);
    if (core->raft.state == RAFT_FOLLOWER && core_is_only_voter(core)) { /* R19 */
        core->raft.current_term++;
        core->raft.voted_for = core->options.id;
    }
    rc = core_step(core, &event, NULL);
    if (rc == 0)
        sync_ask(core); /* again: a message may have been lost */
    return core_event_end(core, rc);
}

/* Notes how far the log is written or synced. Returns whether that is new. */
static bool mark_raise(const struct raft_core *core, uint64_t *mark, uint64_t index,
                       uint64_t term)
{
    if (index <= *mark || term == 0 || core_trail_term(&core->raft.trail, index) != term)
        return false;
    *mark = index;
    return true;
}

int raft_core_written(struct raft_core *core, uint64_t now_ns, uint64_t index,
                      uint64_t term)
{
    int rc = core_event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    mark_raise(core, &core->synced.written, index, term);
    return core_event_end(core, 0);
}

int raft_core_persisted(struct raft_core *core, uint64_t now_ns, uint64_t index,
                        uint64_t term)
{
    int rc = core_event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    if (mark_raise(core, &core->synced.synced, index, term) &&
        index <= core->raft.last_stored)
        synced_tell(core); /* otherwise libraft answers */
    return core_event_end(core, 0);
}

int raft_core_vote_persisted(struct raft_core *core, uint64_t now_ns, uint64_t term,
                             uint64_t vote)
{
    int rc = core_event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    core->saved = (struct ballot){ .term = term, .vote = vote };
    return core_event_end(core, 0);
}

/* Returns 0 if this member leads and nobody takes over, or -ROZO_ENOT_LEADER. */
static int leader_check(const struct raft_core *core)
{
    return core->raft.state == RAFT_LEADER && core->transfer.to == 0 &&
                   raft_transferee(&core->raft) == 0
               ? 0
               : -ROZO_ENOT_LEADER;
}

int raft_core_submit(struct raft_core *core, uint64_t now_ns,
                     struct raft_log_entry *entries, unsigned n)
{
    uint64_t last;
    int rc = core_event_begin(core, now_ns);

    assert(n > 0 && n <= RAFT_MSG_ENTRIES_MAX);
    if (rc == 0)
        rc = leader_check(core);
    if (rc != 0)
        return rc;
    last = raft_last_index(&core->raft);
    if (last + n > raft_commit_index(&core->raft) + RAFT_UNCOMMITTED_MAX)
        return -EBUSY;
    for (unsigned i = 0; i < n; i++) {
        assert(entries[i].kind == RAFT_ENTRY_BATCH);
        if (entries[i].len == 0 || entries[i].len > RAFT_ENTRY_BYTES_MAX) /* R7 */
            return -EMSGSIZE;
    }
    for (unsigned i = 0; i < n; i++) {
        entries[i].index = last + 1 + i;
        entries[i].term = core->ballot.term;
    }
    return core_event_end(core, entries_submit(core, entries, n));
}

/* Returns true if a new voter has the list that put it on standby: then it may vote. */
static bool new_voter_is_ready(const struct raft_core *core,
                               const struct raft_config *config)
{
    const struct raft_config *old = raft_core_config(core);

    for (unsigned i = 0; i < config->n; i++) {
        const struct raft_member *m = &config->members[i];
        const struct raft_member *was = raft_config_find(old, m->id);
        uint64_t match = 0;

        if (m->role == RAFT_ROLE_VOTER && was->role != RAFT_ROLE_VOTER &&
            (raft_core_match(core, m->id, &match) != 0 ||
             match < core->changes.base.index))
            return false;
    }
    return true;
}

int raft_core_change(struct raft_core *core, uint64_t now_ns,
                     const struct raft_config *config)
{
    struct raft_log_entry e = { .kind = RAFT_ENTRY_CONFIG, .data = core->config_data };
    int rc = core_event_begin(core, now_ns);

    if (rc == 0)
        rc = leader_check(core);
    if (rc != 0)
        return rc;
    if (config->n == 0 || config->n > RAFT_SERVERS_MAX)
        return -EINVAL;
    e.len = (uint32_t)raft_config_encode(config, core->config_data);
    if (raft_config_decode(e.data, e.len, NULL) != 0 ||
        raft_config_find(config, core->options.id) == NULL || /* R21 */
        !raft_change_is_one_step(&raft_changes_newest(&core->changes)->config, config))
        return -EINVAL;
    if (raft_commit_index(&core->raft) < core->first_own || core->changes.n > 0) /* R2 */
        return -EAGAIN;
    if (!new_voter_is_ready(core, config))
        return -EAGAIN;
    return core_event_end(core, entries_submit(core, &e, 1));
}

bool raft_core_is_heard(const struct raft_core *core, uint64_t id)
{
    uint64_t acked_ns = raft_lease_acked_ns(&core->lease, id);

    return id == core->options.id ||
           (acked_ns != 0 &&
            core->now_ns - acked_ns <= ms_to_ns(core->options.election_ms));
}

/* Returns the voter to hand over to: one that is heard rather than one that is not, then
 * the one with the longest log; 0: there is no other voter that keeps the metadata. */
static uint64_t voter_to_lead(const struct raft_core *core)
{
    const struct raft_configuration *c = &core->raft.configuration;
    raft_index best = 0, match = 0;
    bool best_is_heard = false;
    uint64_t id = 0;

    for (unsigned i = 0; i < c->n; i++) {
        bool heard = raft_core_is_heard(core, c->servers[i].id);

        if (c->servers[i].role != RAFT_VOTER || c->servers[i].id == core->options.id ||
            raft_config_is_witness(raft_core_config(core), c->servers[i].id) ||
            raft_match_index(&core->raft, c->servers[i].id, &match) != 0 ||
            (id != 0 && (heard == best_is_heard ? match <= best : best_is_heard)))
            continue;
        id = c->servers[i].id;
        best = match;
        best_is_heard = heard;
    }
    return id;
}

int raft_core_barrier(struct raft_core *core, uint64_t now_ns, uint64_t *index)
{
    int rc = core_event_begin(core, now_ns);

    if (rc == 0)
        rc = leader_check(core);
    if (rc != 0)
        return rc;
    *index = raft_last_index(&core->raft) + 1;
    if (*index > raft_commit_index(&core->raft) + RAFT_UNCOMMITTED_MAX)
        return -EBUSY;
    return core_event_end(core, empty_submit(core));
}

bool raft_core_is_held(const struct raft_core *core, uint64_t index, uint64_t without)
{
    const struct raft_config *config = raft_core_config(core);
    unsigned n = 0;

    for (unsigned i = 0; i < config->n; i++) {
        const struct raft_member *m = &config->members[i];

        n += m->role == RAFT_ROLE_VOTER && m->id != without &&
             raft_synced_of(&core->synced, core->options.id, m->id) >= index;
    }
    return n > raft_config_n_voters(config) / 2;
}

void raft_core_set_loss(struct raft_core *core, uint64_t term)
{
    core->loss.term = term;
}

bool raft_core_has_loss(const struct raft_core *core)
{
    return core->loss.term != 0;
}

void raft_core_loss_counted(struct raft_core *core)
{
    core->loss.term = 0;
    core->loss.is_counted = core->raft.state == RAFT_LEADER;
}

int raft_core_want_stable(struct raft_core *core, uint64_t now_ns)
{
    int rc = core_event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    if (core->raft.state != RAFT_LEADER)
        return -ROZO_ENOT_LEADER;
    if (core->options.is_lazy && core->sync_to < core->log_last) {
        core->sync_to = core->log_last;
        sync_ask(core);
    }
    return core_event_end(core, 0);
}

int raft_core_transfer(struct raft_core *core, uint64_t now_ns, uint64_t to)
{
    const struct raft_member *m;
    int rc = core_event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    if (core->raft.state != RAFT_LEADER)
        return -ROZO_ENOT_LEADER;
    if (core->transfer.is_active)
        return -EBUSY;
    if (to == 0)
        to = voter_to_lead(core);
    m = raft_config_find(&raft_changes_newest(&core->changes)->config, to);
    if (to == core->options.id || m == NULL || !raft_member_can_serve(m))
        return -EINVAL;
    core->transfer = (struct transfer){ .is_active = true,
                                        .to = to,
                                        .until_ns = core->now_ns +
                                                    ms_to_ns(core->options.election_ms) };
    return core_event_end(core, 0);
}

int raft_core_trim(struct raft_core *core, uint64_t now_ns, uint64_t applied,
                   uint64_t first_index)
{
    struct raft_event event = { .type = RAFT_SNAPSHOT };
    struct raft_snapshot_metadata *snapshot = &event.snapshot.metadata;
    int rc = core_event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    assert(applied <= core->out.commit && first_index > 0 && first_index <= applied + 1);
    if (applied <= core->raft.trail.snapshot.index)
        return -EAGAIN;
    snapshot->index = applied;
    snapshot->term = core_trail_term(&core->raft.trail, applied);
    snapshot->configuration_index = core->changes.base.index;
    event.snapshot.trailing = (unsigned)(applied + 1 - first_index);
    rc = lib_config_make(&core->changes.base.config, &snapshot->configuration);
    if (rc == 0)
        rc = core_step(core, &event, NULL);
    return core_event_end(core, rc);
}

int raft_core_refused(struct raft_core *core, uint64_t now_ns, uint64_t peer)
{
    int rc = core_event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    if (core->raft.state == RAFT_FOLLOWER && core_leader(core) == peer &&
        !core->is_hurried && core->options.promise_ms < core->options.election_ms) {
        core->is_hurried = true;
        raft_set_election_timeout(&core->raft, core->options.promise_ms);
    }
    return core_event_end(core, 0);
}

void raft_core_take(struct raft_core *core, struct raft_core_out *out)
{
    core->is_taken = true;
    *out = core->out;
    out->entries = core->entries;
    out->messages = core->messages;
    out->n_messages = vote_is_saved(core) ? core->n_messages : 0;
    core->messages_are_out = vote_is_saved(core);
}

uint64_t raft_core_confirmed_ns(const struct raft_core *core)
{
    if (core->is_broken || !core->is_started || !core->out.is_ready)
        return 0;
    return raft_lease_confirmed(&core->lease, raft_core_config(core), core->options.id,
                                core->now_ns);
}

uint64_t raft_core_lease_until_ns(const struct raft_core *core)
{
    uint64_t from = raft_core_confirmed_ns(core);
    uint64_t promise = ms_to_ns(core->options.promise_ms);

    return from == 0 || core->transfer.is_active ? 0
                                                 : from + promise - promise / LEASE_PART;
}

const struct raft_config *raft_core_config(const struct raft_core *core)
{
    return &raft_changes_newest(&core->changes)->config;
}

uint64_t raft_core_config_index(const struct raft_core *core, bool *is_committed)
{
    if (is_committed != NULL)
        *is_committed = core->changes.n == 0 && core->changes.base.index > 0;
    return raft_changes_newest(&core->changes)->index;
}

int raft_core_match(const struct raft_core *core, uint64_t id, uint64_t *index)
{
    raft_index match = 0;
    int rv = raft_match_index(&core->raft, id, &match);

    if (rv != 0)
        return rv == RAFT_NOTLEADER ? -ROZO_ENOT_LEADER : -ENOENT;
    *index = match;
    return 0;
}

uint64_t raft_core_last_index(const struct raft_core *core)
{
    return raft_last_index((struct raft *)&core->raft);
}

uint64_t raft_core_term_of(const struct raft_core *core, uint64_t index)
{
    return core_trail_term(&core->raft.trail, index);
}

int raft_core_check_library(struct err *err)
{
    const struct raft_core_options options = { .id = 1 };
    struct raft_core_saved saved = {
        .term = 1, .applied = 1, .applied_term = 1, .config_index = 1
    };
    struct raft_core_out out = { .commit = 0 };
    struct raft_core *core = NULL;
    int rc = raft_config_set(&saved.config, 1, RAFT_ROLE_VOTER, "");

    if (rc == 0)
        rc = raft_core_open(&options, &core);
    if (rc == 0)
        rc = raft_core_start(core, 0, &saved, err);
    if (rc == 0) {
        raft_core_take(core, &out);
        rc = raft_core_vote_persisted(core, 0, out.new_term, out.new_vote);
    }
    if (rc == 0) {
        raft_core_take(core, &out);
        rc = raft_core_persisted(core, 0, 2, 2);
    }
    if (rc == 0)
        raft_core_take(core, &out);
    raft_core_free(core);
    if (rc == 0 && (!out.is_ready || out.commit != 2 || out.term != 2))
        rc = -ROZO_EUNKNOWN_FORMAT;
    return rc == 0
               ? 0
               : err_set(err, rc,
                         "libraft does not behave as version 0.22.1 does; install the "
                         "package that rozo was built with");
}
