/*
 * raft_core.c - one member's part in a raft group, by libraft's raft_step().
 *
 * In:     events of the caller. Out: struct raft_core_out. No clock, no I/O, no threads.
 * Keeps:  guards against defects of libraft 0.22.1, R1 to R22; each has a test in
 *         tests/unit/quorum/test_guards.c that shows the defect first.
 * Ask:    libraft 0.22.1, src/: who frees what is not in its header, and changed after
 *         it (R9). docs/internals/metadata-quorum.md lists the guards.
 */
#include "exportd/quorum/raft/raft_core.h"

#include <assert.h>
#include <inttypes.h>
#include <raft.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/units.h"
#include "exportd/quorum/raft/raft_changes.h"
#include "exportd/quorum/raft/raft_lease.h"
#include "exportd/quorum/raft/raft_saved.h"
#include "exportd/quorum/raft/raft_synced.h"

#if RAFT_VERSION_NUMBER != 2201
#    error "raft_core.c is written for libraft 0.22.1: other versions free other memory"
#endif

enum {
    START_ENTRIES_MAX = 1 << 20, /* entries that libraft gets at a start, the newest */
    MESSAGES_MAX = 1024,         /* messages kept; beyond, new ones are dropped */
    EMPTY_BYTES = 8,
    LEASE_PART = 4, /* the lease lacks one part in so many of the promise */
};
static_assert(RAFT_ENTRY_BATCH == (int)RAFT_COMMAND, "kinds are those of libraft");
static_assert(RAFT_ENTRY_EMPTY == (int)RAFT_BARRIER, "kinds are those of libraft");
static_assert(RAFT_ENTRY_CONFIG == (int)RAFT_CHANGE, "kinds are those of libraft");
static_assert(RAFT_ROLE_STANDBY == (int)RAFT_STANDBY, "roles are those of libraft");
static_assert(RAFT_ROLE_VOTER == (int)RAFT_VOTER, "roles are those of libraft");
static_assert(RAFT_ROLE_SPARE == (int)RAFT_SPARE, "roles are those of libraft");

/* Term and vote. */
struct ballot {
    uint64_t term, vote;
};

/* Leader whose heartbeats this follower accepts. */
struct heard {
    uint64_t from, term;
    uint64_t sent_ns; /* newest of its times, by its clock */
    uint64_t at_ns;   /* last heartbeat came then, by our clock */
    bool is_lazy;     /* the leader counts what is written */
    uint64_t match;   /* the own log is the same up to here */
};

/* Transfer of leadership. After a failure it lasts until it cannot succeed late. */
struct transfer {
    bool is_active;
    uint64_t to;         /* waits for this member's entries (R22); 0: libraft has begun */
    uint64_t until_ns;   /* with to: it fails then */
    uint64_t sent_index; /* last index in the TIMEOUT_NOW; 0: none was sent */
    bool is_voided;      /* an entry after sent_index was appended */
};

/* Loss of power that a leader has to count. */
struct core_loss {
    uint64_t term; /* this member came back from one in this term; 0: none, or counted */
    bool is_heard; /* leader: another member came back from one */
    bool is_counted; /* leader: it is counted */
};

struct raft_core {
    struct raft raft;
    struct raft_core_options options;
    char address[RAFT_ADDRESS_MAX + 1]; /* name of this member; libraft wants one */
    bool is_started, is_broken;
    bool is_taken;   /* the results of the last event were taken */
    bool is_hurried; /* the leader is dead: short election timeouts */
    uint64_t now_ns;
    uint64_t votes_from_ns; /* no vote is given before (R5) */

    struct ballot ballot, saved; /* newest; on stable storage */
    struct heard heard;
    struct raft_lease lease; /* leader */
    struct transfer transfer;
    uint64_t first_own; /* leader: first entry of its term; 0: not yet appended */
    uint64_t log_last;  /* newest entry that the caller has got */
    struct raft_synced synced;
    uint64_t sync_to; /* the log shall be synced up to here, at once */
    /* highest place of a list of members. What is written counts when the log is synced
     * up to here: else a loss of power might bring back a list that was dropped, or an
     * older one. */
    uint64_t list_to;
    struct core_loss loss;
    uint64_t stable_told; /* leaders said: up to here all is synced by a majority */
    uint64_t covered;     /* witness: leaders said so; leader: found so */

    struct raft_changes changes; /* lists of members */

    struct raft_core_out out;
    struct raft_log_entry entries[RAFT_MSG_ENTRIES_MAX + 2];
    struct ballot before;                       /* ballot before this event */
    void *barrier;                              /* owned; data of libraft's own entry */
    uint8_t config_data[RAFT_CONFIG_BYTES_MAX]; /* data of a new list of members */
    struct raft_msg *messages;                  /* owned */
    size_t messages_max;
    unsigned n_messages;
    bool messages_are_out; /* the caller has got them */
};

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

/* Returns the term of an entry, as libraft's trail knows it; 0: it does not. */
static uint64_t trail_term(const struct raft_trail *t, uint64_t index)
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

/* Returns true if entries count when they are written. */
static bool counts_written(const struct raft_core *core)
{
    if (core->raft.state == RAFT_LEADER)
        return core->options.is_lazy;
    return core->options.is_lazy && core->heard.is_lazy &&
           core->heard.term == core->ballot.term;
}

/* Takes over the entries that libraft wants to append. */
static int entries_collect(struct raft_core *core, const struct raft_update *update)
{
    uint64_t index = update->entries.index;
    const struct raft_log_entry *tail =
        core->out.n_entries == 0 ? NULL : &core->entries[core->out.n_entries - 1];
    int rc = 0;

    /* Entries of one event follow each other: only the first of them truncates. */
    if (tail == NULL)
        core->out.truncate_from = index <= core->log_last ? index : 0;
    else
        assert(index == tail->index + 1);
    raft_changes_truncate(&core->changes, index);
    raft_synced_truncate(&core->synced, index);
    for (unsigned i = 0; i < update->entries.n && rc == 0; i++) {
        const struct raft_entry *e = &update->entries.batch[i];
        struct raft_log_entry *out = &core->entries[core->out.n_entries];

        assert(core->out.n_entries < RAFT_MSG_ENTRIES_MAX + 2);
        core->out.n_entries++;
        *out = (struct raft_log_entry){ .index = index + i,
                                        .term = e->term,
                                        .kind = (enum raft_entry_kind)e->type,
                                        .len = (uint32_t)e->buf.len,
                                        .data = e->buf.base };
        if (e->type == RAFT_CHANGE) {
            rc = raft_changes_add(&core->changes, index + i, e->buf.base, e->buf.len);
            core->list_to = index + i;
        }
    }
    core->log_last = index + update->entries.n - 1;
    if (update->entries.batch == &core->raft.barrier) {
        assert(core->barrier == NULL);
        core->barrier = core->raft.barrier.batch;
    }
    return rc;
}

static struct raft_msg *message_add(struct raft_core *core, enum raft_msg_kind kind,
                                    uint64_t to, uint64_t term)
{
    struct raft_msg *m;

    if (core->n_messages == core->messages_max) {
        size_t max = core->messages_max == 0 ? 16 : core->messages_max * 2;
        struct raft_msg *messages =
            max > MESSAGES_MAX ? NULL : realloc(core->messages, max * sizeof(*messages));

        if (messages == NULL)
            return NULL; /* as if the network had lost it */
        core->messages = messages;
        core->messages_max = max;
    }
    m = &core->messages[core->n_messages++];
    *m = (struct raft_msg){ .kind = kind,
                            .from = core->options.id,
                            .to = to,
                            .term = term,
                            .sent_ns = core->now_ns };
    return m;
}

/* Says in an answer to an APPEND how far the log is synced. A leader that is not lazy
 * hears of synced entries only. */
static void synced_say(const struct raft_core *core, struct raft_msg *m)
{
    uint64_t synced = core->synced.synced;

    if (core->loss.term != 0)
        m->flags |= RAFT_MSG_LOSS;
    if (counts_written(core)) {
        m->flags |= RAFT_MSG_LAZY;
        m->commit = synced < m->last ? synced : m->last;
    } else if (m->last > synced) {
        m->last = synced;
    }
}

/* Takes over an answer to an APPEND. is_late: to one of an earlier term; what it says of
 * the log is then no news for the leader of this term (R3). */
static void appended_collect(struct raft_core *core, struct raft_msg *m,
                             const struct raft_append_entries_result *r, bool is_late)
{
    m->index = r->rejected;
    m->last = is_late ? 0 : r->last_log_index; /* R10 */
    if (m->index != 0 && m->last >= m->index)
        m->last = m->index - 1;
    if (!is_late && core->heard.from == m->to && core->heard.term == m->term) {
        m->echo_ns = core->heard.sent_ns;
        synced_say(core, m);
    }
}

/* Takes over a vote. A refused pre-vote says the voter's term (R13). */
static void voted_collect(struct raft_core *core, struct raft_msg *m,
                          const struct raft_request_vote_result *r)
{
    uint64_t own = raft_current_term(&core->raft);

    if (r->pre_vote)
        m->flags |= RAFT_MSG_PRE_VOTE;
    if (r->vote_granted)
        m->flags |= RAFT_MSG_GRANTED;
    else if (r->pre_vote && own > m->term)
        m->term = own;
}

static void seed_collect(struct raft_core *core, uint64_t to)
{
    const struct raft_trail *trail = &core->raft.trail;
    struct raft_msg *m = message_add(core, RAFT_MSG_SEED, to, core->ballot.term);

    core->out.seeding = to;
    if (m == NULL)
        return;
    m->index = trail->snapshot.index;
    m->index_term = trail->snapshot.term;
}

/* Returns up to which entry all voters that keep the metadata have synced their logs, as
 * far as they have said so in this term. */
static uint64_t covered_now(const struct raft_core *core)
{
    const struct raft_config *config = &raft_changes_newest(&core->changes)->config;
    uint64_t covered = UINT64_MAX;

    for (unsigned i = 0; i < config->n; i++) {
        const struct raft_member *m = &config->members[i];
        uint64_t index = raft_synced_of(&core->synced, core->options.id, m->id);

        if (raft_member_can_serve(m) && index < covered)
            covered = index;
    }
    return covered == UINT64_MAX ? 0 : covered;
}

static void message_collect(struct raft_core *core, const struct raft_message *lib,
                            const struct raft_msg *answered)
{
    uint64_t to = lib->server_id;
    struct raft_msg *m = NULL;

    switch (lib->type) {
    case RAFT_APPEND_ENTRIES:
        m = message_add(core, RAFT_MSG_APPEND, to, lib->append_entries.term);
        if (m == NULL)
            return;
        m->index = lib->append_entries.prev_log_index;
        m->index_term = lib->append_entries.prev_log_term;
        m->commit = lib->append_entries.leader_commit;
        m->n = lib->append_entries.n_entries;
        if (core->options.is_lazy) {
            m->flags |= RAFT_MSG_LAZY;
            m->last = core->out.stable < m->commit ? core->out.stable : m->commit;
        }
        if (core->loss.is_counted)
            m->flags |= RAFT_MSG_LOSS;
        if (raft_config_is_witness(raft_core_config(core), to))
            m->covered = core->out.covered;
        if (m->index == 0 && m->n == 0 && core->raft.trail.offset > 0) /* R17 */
            seed_collect(core, to);
        return;
    case RAFT_APPEND_ENTRIES_RESULT:
        m = message_add(core, RAFT_MSG_APPENDED, to, lib->append_entries_result.term);
        if (m != NULL)
            appended_collect(core, m, &lib->append_entries_result,
                             answered != NULL && answered->term < m->term);
        return;
    case RAFT_REQUEST_VOTE:
        m = message_add(core, RAFT_MSG_VOTE, to, lib->request_vote.term);
        if (m == NULL)
            return;
        m->index = lib->request_vote.last_log_index;
        m->index_term = lib->request_vote.last_log_term;
        m->flags = (lib->request_vote.pre_vote ? RAFT_MSG_PRE_VOTE : 0) |
                   (lib->request_vote.disrupt_leader ? RAFT_MSG_DISRUPT : 0);
        return;
    case RAFT_REQUEST_VOTE_RESULT:
        m = message_add(core, RAFT_MSG_VOTED, to, lib->request_vote_result.term);
        if (m != NULL)
            voted_collect(core, m, &lib->request_vote_result);
        return;
    case RAFT_INSTALL_SNAPSHOT:
        seed_collect(core, to);
        return;
    case RAFT_TIMEOUT_NOW:
        m = message_add(core, RAFT_MSG_TIMEOUT_NOW, to, lib->timeout_now.term);
        core->transfer.sent_index = lib->timeout_now.last_log_index;
        if (m == NULL)
            return;
        m->index = lib->timeout_now.last_log_index;
        m->index_term = lib->timeout_now.last_log_term;
        return;
    }
}

/*
 * Steps libraft and collects what it wants. answered: the message that was received, or
 * NULL. The caller sees to state changes and commits afterwards, core_settle().
 */
static int core_step(struct raft_core *core, struct raft_event *event,
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
        rc = entries_collect(core, &update);
    if ((update.flags & (RAFT_UPDATE_MESSAGES)) != 0) {
        for (unsigned i = 0; i < update.messages.n; i++)
            message_collect(core, &update.messages.batch[i], answered);
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

/*
 * Tells libraft that the oldest change is committed. Once it knows the commit index, and
 * once a later change follows: leaders append none before.
 */
static int change_report(struct raft_core *core)
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
                                 : message_add(core, RAFT_MSG_SYNC, to->id,
                                               raft_current_term(&core->raft));

        if (m == NULL)
            continue;
        m->index = core->sync_to;
        m->index_term = trail_term(&core->raft.trail, m->index);
    }
}

/* Returns whether what is written counts: no list of members waits for a sync. */
static bool may_wait(const struct raft_core *core)
{
    return counts_written(core) && core->list_to <= core->synced.synced;
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
    m = message_add(core, RAFT_MSG_APPENDED, h->from, h->term);
    if (m == NULL)
        return;
    m->last = h->match < core->raft.last_stored ? h->match : core->raft.last_stored;
    m->echo_ns = h->sent_ns;
    synced_say(core, m);
}

static bool vote_is_saved(const struct raft_core *core)
{
    return core->ballot.term == core->saved.term && core->ballot.vote == core->saved.vote;
}

static uint64_t lower(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
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
    uint64_t stable = lower(stable_known(core), lower(out->commit, core->synced.synced));

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
        uint64_t commit = lower(raft_commit_index(&core->raft), core->raft.last_stored);

        if (commit > out->commit) /* R4 */
            out->commit = commit;
    }
    stable_fill(core);
    if (core->raft.state == RAFT_LEADER && covered_now(core) > core->covered)
        core->covered = covered_now(core);
    out->covered = core->covered;
    out->is_ready = out->role == RAFT_CORE_LEADER && core->first_own != 0 &&
                    out->stable >= core->first_own;
    out->next_ns = ms_to_ns(raft_timeout(&core->raft));
}

/* Returns true if this member is the only voter: it elects itself. */
static bool is_only_voter(const struct raft_core *core)
{
    const struct raft_config *config = raft_core_config(core);
    const struct raft_member *own = raft_config_find(config, core->options.id);

    return own != NULL && own->role == RAFT_ROLE_VOTER &&
           raft_config_n_voters(config) == 1;
}

/* Ends short election timeouts: there is a leader. */
static void hurry_end(struct raft_core *core)
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
        rc = change_report(core);
    if (rc != 0 || core->raft.state != RAFT_LEADER)
        return rc;
    hurry_end(core);
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

/* Begins an event. Returns 0, or -EIO after a fatal result. */
static int event_begin(struct raft_core *core, uint64_t now_ns)
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

/* Ends an event after its steps. */
static int event_end(struct raft_core *core, int rc)
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
    if (is_only_voter(core)) { /* R19 */
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
    rc = event_begin(core, now_ns);
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
    rc = event_end(core, rc);
    return rc == 0 ? 0 : err_wrap(err, rc, "start a member of the quorum");
}

int raft_core_tick(struct raft_core *core, uint64_t now_ns)
{
    struct raft_event event = { .type = RAFT_TIMEOUT };
    int rc = event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    /* Before its time a leader would take peers that are about to answer for lost. */
    if (core_ms(core) < raft_timeout(&core->raft))
        return event_end(core, 0);
    if (core->raft.state == RAFT_FOLLOWER && is_only_voter(core)) { /* R19 */
        core->raft.current_term++;
        core->raft.voted_for = core->options.id;
    }
    rc = core_step(core, &event, NULL);
    if (rc == 0)
        sync_ask(core); /* again: a message may have been lost */
    return event_end(core, rc);
}

/* Steps libraft with a message. */
static int message_step(struct raft_core *core, const struct raft_msg *msg,
                        struct raft_message *lib)
{
    struct raft_event event = { .type = RAFT_RECEIVE, .receive.message = lib };
    char address[32];

    snprintf(address, sizeof(address), "%016" PRIx64, msg->from);
    lib->server_id = msg->from;
    lib->server_address = address;
    return core_step(core, &event, msg);
}

/* Steps libraft with an APPEND whose entries have at most one list, the first. */
static int append_step(struct raft_core *core, const struct raft_msg *msg,
                       const struct raft_log_entry *entries)
{
    struct raft_message lib = { .type = RAFT_APPEND_ENTRIES };
    struct raft_append_entries *args = &lib.append_entries;
    struct raft_entry lib_entries[RAFT_MSG_ENTRIES_MAX];
    unsigned n_before = core->out.n_entries;
    void *batch = msg->n == 0 ? NULL : raft_malloc(1);
    int rc;

    if (msg->n > 0 && batch == NULL)
        return -ENOMEM;
    for (unsigned i = 0; i < msg->n; i++)
        lib_entries[i] =
            (struct raft_entry){ .term = entries[i].term,
                                 .type = (enum raft_entry_type)entries[i].kind,
                                 .buf = { .base = (void *)entries[i].data,
                                          .len = entries[i].len },
                                 .batch = batch };
    args->term = msg->term;
    args->prev_log_index = msg->index;
    args->prev_log_term = msg->index_term;
    args->leader_commit = lower(msg->commit, msg->index + msg->n); /* R16 */
    args->entries = lib_entries;
    args->n_entries = msg->n;
    rc = message_step(core, msg, &lib);
    if (core->out.n_entries > n_before)
        raft_free(batch); /* otherwise libraft has done it */
    return rc;
}

/*
 * Reports changes before this entry as committed, if the leader has them: it appended a
 * later one (R15).
 */
static int changes_imply(struct raft_core *core, const struct raft_msg *msg,
                         const struct raft_log_entry *e)
{
    int rc = 0;

    if (trail_term(&core->raft.trail, msg->index) != msg->index_term ||
        trail_term(&core->raft.trail, e->index) == e->term)
        return 0;
    while (rc == 0 && core->changes.n > 0 && core->changes.later[0].index < e->index)
        rc = change_report(core);
    return rc;
}

/* Steps libraft with an APPEND in parts: a list of members begins a part (R1). */
static int append_in_parts(struct raft_core *core, struct raft_msg *msg,
                           const struct raft_log_entry *entries)
{
    unsigned n = msg->n, done = 0, part;
    int rc = 0;

    do {
        part = done < n ? 1 : 0;
        while (done + part < n && entries[done + part].kind != RAFT_ENTRY_CONFIG)
            part++;
        msg->n = part;
        if (part > 0 && entries[done].kind == RAFT_ENTRY_CONFIG)
            rc = changes_imply(core, msg, &entries[done]);
        if (rc == 0)
            rc = append_step(core, msg, entries + done);
        done += part;
        if (part > 0)
            raft_msg_advance(msg, &entries[done - 1]);
        /* If the log does not match, the other parts do not either. */
        if (trail_term(&core->raft.trail, msg->index) != msg->index_term)
            break;
        if (msg->index > core->heard.match)
            core->heard.match = msg->index;
    } while (done < n && rc == 0);
    return rc;
}

static int append_receive(struct raft_core *core, const struct raft_msg *msg,
                          const struct raft_log_entry *entries)
{
    uint64_t stored = core->raft.trail.snapshot.index;
    uint64_t stored_term = core->raft.trail.snapshot.term, told;
    struct raft_msg m = *msg;

    if (m.term < core->ballot.term) {
        m.n = 0;
        return append_step(core, &m, NULL);
    }
    if (core->heard.term == m.term && core->heard.from == m.from) {
        if (m.sent_ns > core->heard.sent_ns)
            core->heard.sent_ns = m.sent_ns;
    } else {
        core->heard =
            (struct heard){ .from = m.from, .term = m.term, .sent_ns = m.sent_ns };
        core->sync_to = 0;
    }
    core->heard.at_ns = core->now_ns;
    core->heard.is_lazy = (m.flags & RAFT_MSG_LAZY) != 0;
    if ((m.flags & RAFT_MSG_LOSS) != 0 && m.term > core->loss.term)
        core->loss.term = 0;
    told = core->heard.is_lazy ? m.last : m.commit;
    if (told > core->stable_told)
        core->stable_told = told;
    if (m.covered > core->covered)
        core->covered = m.covered;
    hurry_end(core);
    if (m.index < stored) { /* R14 */
        uint64_t skip = lower(stored - m.index, m.n);

        m.index = stored;
        m.index_term = stored_term;
        m.n -= (unsigned)skip;
        entries += skip;
    }
    return append_in_parts(core, &m, entries);
}

/* Returns how far the sender of an APPENDED has synced its log. */
static uint64_t synced_last(const struct raft_msg *msg)
{
    return (msg->flags & RAFT_MSG_LAZY) != 0 ? msg->commit : msg->last;
}

static int appended_receive(struct raft_core *core, const struct raft_msg *msg)
{
    struct raft_message lib = { .type = RAFT_APPEND_ENTRIES_RESULT };
    struct raft_append_entries_result *args = &lib.append_entries_result;
    bool is_own = core->raft.state == RAFT_LEADER && msg->term == core->ballot.term;
    const struct raft_member *from = raft_config_find(raft_core_config(core), msg->from);
    raft_index match = 0;
    int rc;

    /* R18: a late answer of a former member would make libraft send to the spare. */
    if (is_own && from != NULL && from->role == RAFT_ROLE_SPARE)
        return 0;
    args->version = 2;
    args->term = msg->term;
    args->rejected = msg->index;
    args->last_log_index = msg->last;
    if (is_own)
        raft_lease_acked(&core->lease, msg->from, msg->echo_ns, core->now_ns);
    if (is_own && (msg->flags & RAFT_MSG_LOSS) != 0)
        core->loss.is_heard = true;
    if (is_own && msg->index == 0)
        raft_synced_peer(&core->synced, raft_core_config(core), msg->from,
                         synced_last(msg));
    if (!core->options.is_lazy && msg->index == 0)
        args->last_log_index = synced_last(msg);
    if (is_own && msg->index > 0 &&
        raft_match_index(&core->raft, msg->from, &match) == 0 && msg->last < match) {
        /* R3: libraft would never send these entries again. Only the contact counts. */
        if (raft_lease_is_after_whole(&core->lease, msg->from, msg->echo_ns))
            core->out.lost = msg->from;
        args->rejected = args->last_log_index = 0;
    }
    rc = message_step(core, msg, &lib);
    if (is_own && msg->index == 0 && core->raft.state == RAFT_LEADER &&
        raft_match_index(&core->raft, msg->from, &match) == 0 && msg->last >= match)
        raft_lease_whole(&core->lease, msg->from, msg->echo_ns);
    return rc;
}

/* Lets libraft forget a leader that this member has promised to keep to no longer. By
 * itself a standby never does, and a voter only when its own, longer timer fires. */
static void leader_forget(struct raft_core *core)
{
    unsigned keep_ms =
        core->is_hurried ? core->options.promise_ms : core->options.election_ms;

    if (core->raft.state == RAFT_FOLLOWER &&
        core->now_ns >= core->heard.at_ns + ms_to_ns(keep_ms))
        core->raft.follower_state.current_leader.id = 0;
}

/*
 * Steps libraft with a request for a vote as if this member were a voter. It may be one
 * by the list of the candidate, which counts no other votes (R20).
 */
static int vote_step(struct raft_core *core, const struct raft_msg *msg,
                     struct raft_message *lib)
{
    struct raft_configuration *c = &core->raft.configuration;
    struct raft_server *own = NULL;
    int role, rc;

    leader_forget(core);

    for (unsigned i = 0; i < c->n; i++) {
        if (c->servers[i].id == core->options.id && c->servers[i].role != RAFT_VOTER)
            own = &c->servers[i];
    }
    if (own == NULL || core->raft.state != RAFT_FOLLOWER)
        return message_step(core, msg, lib);
    role = own->role;
    own->role = RAFT_VOTER;
    rc = message_step(core, msg, lib);
    own->role = role;
    return rc;
}

static int vote_receive(struct raft_core *core, const struct raft_msg *msg)
{
    struct raft_message lib = { .type = RAFT_REQUEST_VOTE };
    struct raft_request_vote *args = &lib.request_vote;

    if (core->now_ns < core->votes_from_ns) /* R5 */
        return 0;
    args->version = 2;
    args->term = msg->term;
    args->candidate_id = msg->from;
    args->last_log_index = msg->index;
    args->last_log_term = msg->index_term;
    args->disrupt_leader = (msg->flags & RAFT_MSG_DISRUPT) != 0;
    args->pre_vote = (msg->flags & RAFT_MSG_PRE_VOTE) != 0;
    return vote_step(core, msg, &lib);
}

/* Returns true if this candidate may count a vote, or learn a term from it (R12). */
static bool voted_is_of_use(const struct raft_core *core, const struct raft_msg *msg)
{
    bool is_pre = (msg->flags & RAFT_MSG_PRE_VOTE) != 0;

    if (core->raft.state != RAFT_CANDIDATE ||
        is_pre != core->raft.candidate_state.in_pre_vote)
        return false;
    if (!is_pre)
        return true;
    return (msg->flags & RAFT_MSG_GRANTED) != 0 ? msg->term == core->ballot.term + 1
                                                : msg->term > core->ballot.term + 1;
}

static int voted_receive(struct raft_core *core, const struct raft_msg *msg)
{
    struct raft_message lib = { .type = RAFT_REQUEST_VOTE_RESULT };
    struct raft_request_vote_result *args = &lib.request_vote_result;

    if (!voted_is_of_use(core, msg))
        return 0;
    args->version = 2;
    args->term = msg->term;
    args->vote_granted = (msg->flags & RAFT_MSG_GRANTED) != 0;
    args->pre_vote = (msg->flags & RAFT_MSG_PRE_VOTE) != 0;
    return message_step(core, msg, &lib);
}

static int timeout_now_receive(struct raft_core *core, const struct raft_msg *msg)
{
    struct raft_message lib = { .type = RAFT_TIMEOUT_NOW };

    if (is_only_voter(core)) /* R19: its own timer fires in a new term */
        return 0;
    lib.timeout_now.term = msg->term;
    lib.timeout_now.last_log_index = msg->index;
    lib.timeout_now.last_log_term = msg->index_term;
    return message_step(core, msg, &lib);
}

/* Syncs are wanted up to an entry, which may not be here yet. */
static void sync_receive(struct raft_core *core, const struct raft_msg *msg)
{
    if (msg->term == core->ballot.term && core->heard.term == msg->term &&
        core->heard.from == msg->from && msg->index > core->sync_to)
        core->sync_to = msg->index;
}

/* Returns false if no leader could have sent this APPEND: libraft would assert (R6). */
static bool append_is_possible(const struct raft_core *core, const struct raft_msg *msg,
                               const struct raft_log_entry *entries)
{
    const struct raft_trail *trail = &core->raft.trail;

    if (msg->term < core->ballot.term)
        return true;
    if (msg->term == core->ballot.term &&
        (core->raft.state == RAFT_LEADER ||
         (core->heard.term == msg->term && core->heard.from != msg->from)))
        return false; /* two leaders of one term */
    for (unsigned i = 0; i < msg->n; i++) {
        if (entries[i].index == trail->snapshot.index
                ? entries[i].term != trail->snapshot.term
                : entries[i].index > trail->snapshot.index &&
                      entries[i].term < trail->snapshot.term)
            return false;
    }
    return true;
}

int raft_core_receive(struct raft_core *core, uint64_t now_ns, const struct raft_msg *msg,
                      const struct raft_log_entry *entries)
{
    int rc = event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    assert(msg->to == core->options.id);
    switch (msg->kind) {
    case RAFT_MSG_APPEND:
        if (!append_is_possible(core, msg, entries))
            return -EBADMSG;
        rc = append_receive(core, msg, entries);
        break;
    case RAFT_MSG_APPENDED:
        rc = appended_receive(core, msg);
        break;
    case RAFT_MSG_VOTE:
        rc = vote_receive(core, msg);
        break;
    case RAFT_MSG_VOTED:
        rc = voted_receive(core, msg);
        break;
    case RAFT_MSG_SEED:
        if (msg->term >= core->ballot.term && msg->index > core->out.commit &&
            trail_term(&core->raft.trail, msg->index) != msg->index_term) {
            core->out.seed_to = msg->index;
            core->out.seed_lost = (msg->flags & RAFT_MSG_LOST) != 0;
        }
        break;
    case RAFT_MSG_TIMEOUT_NOW:
        rc = timeout_now_receive(core, msg);
        break;
    case RAFT_MSG_SYNC:
        sync_receive(core, msg);
        break;
    }
    return event_end(core, rc);
}

/* Notes how far the log is written or synced. Returns whether that is new. */
static bool mark_raise(const struct raft_core *core, uint64_t *mark, uint64_t index,
                       uint64_t term)
{
    if (index <= *mark || term == 0 || trail_term(&core->raft.trail, index) != term)
        return false;
    *mark = index;
    return true;
}

int raft_core_written(struct raft_core *core, uint64_t now_ns, uint64_t index,
                      uint64_t term)
{
    int rc = event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    mark_raise(core, &core->synced.written, index, term);
    return event_end(core, 0);
}

int raft_core_persisted(struct raft_core *core, uint64_t now_ns, uint64_t index,
                        uint64_t term)
{
    int rc = event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    if (mark_raise(core, &core->synced.synced, index, term) &&
        index <= core->raft.last_stored)
        synced_tell(core); /* otherwise libraft answers */
    return event_end(core, 0);
}

int raft_core_vote_persisted(struct raft_core *core, uint64_t now_ns, uint64_t term,
                             uint64_t vote)
{
    int rc = event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    core->saved = (struct ballot){ .term = term, .vote = vote };
    return event_end(core, 0);
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
    int rc = event_begin(core, now_ns);

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
    return event_end(core, entries_submit(core, entries, n));
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
    int rc = event_begin(core, now_ns);

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
    return event_end(core, entries_submit(core, &e, 1));
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
    int rc = event_begin(core, now_ns);

    if (rc == 0)
        rc = leader_check(core);
    if (rc != 0)
        return rc;
    *index = raft_last_index(&core->raft) + 1;
    if (*index > raft_commit_index(&core->raft) + RAFT_UNCOMMITTED_MAX)
        return -EBUSY;
    return event_end(core, empty_submit(core));
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
    int rc = event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    if (core->raft.state != RAFT_LEADER)
        return -ROZO_ENOT_LEADER;
    if (core->options.is_lazy && core->sync_to < core->log_last) {
        core->sync_to = core->log_last;
        sync_ask(core);
    }
    return event_end(core, 0);
}

int raft_core_transfer(struct raft_core *core, uint64_t now_ns, uint64_t to)
{
    const struct raft_member *m;
    int rc = event_begin(core, now_ns);

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
    return event_end(core, 0);
}

int raft_core_trim(struct raft_core *core, uint64_t now_ns, uint64_t applied,
                   uint64_t first_index)
{
    struct raft_event event = { .type = RAFT_SNAPSHOT };
    struct raft_snapshot_metadata *snapshot = &event.snapshot.metadata;
    int rc = event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    assert(applied <= core->out.commit && first_index > 0 && first_index <= applied + 1);
    if (applied <= core->raft.trail.snapshot.index)
        return -EAGAIN;
    snapshot->index = applied;
    snapshot->term = trail_term(&core->raft.trail, applied);
    snapshot->configuration_index = core->changes.base.index;
    event.snapshot.trailing = (unsigned)(applied + 1 - first_index);
    rc = lib_config_make(&core->changes.base.config, &snapshot->configuration);
    if (rc == 0)
        rc = core_step(core, &event, NULL);
    return event_end(core, rc);
}

int raft_core_refused(struct raft_core *core, uint64_t now_ns, uint64_t peer)
{
    int rc = event_begin(core, now_ns);

    if (rc != 0)
        return rc;
    if (core->raft.state == RAFT_FOLLOWER && core_leader(core) == peer &&
        !core->is_hurried && core->options.promise_ms < core->options.election_ms) {
        core->is_hurried = true;
        raft_set_election_timeout(&core->raft, core->options.promise_ms);
    }
    return event_end(core, 0);
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
    return trail_term(&core->raft.trail, index);
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
