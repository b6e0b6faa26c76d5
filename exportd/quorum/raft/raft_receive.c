/*
 * raft_receive.c - messages of other members, as steps of libraft.
 *
 * In:     struct raft_msg, entries of an APPEND.
 * Keeps:  libraft gets only what it can stand: guards R1, R3, R5, R6, R12, R14 to R20.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "common/base/units.h"
#include "exportd/quorum/raft/raft_core_in.h"

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
    args->leader_commit = core_lower(msg->commit, msg->index + msg->n); /* R16 */
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

    if (core_trail_term(&core->raft.trail, msg->index) != msg->index_term ||
        core_trail_term(&core->raft.trail, e->index) == e->term)
        return 0;
    while (rc == 0 && core->changes.n > 0 && core->changes.later[0].index < e->index)
        rc = core_change_report(core);
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
        if (core_trail_term(&core->raft.trail, msg->index) != msg->index_term)
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
    core_hurry_end(core);
    if (m.index < stored) { /* R14 */
        uint64_t skip = core_lower(stored - m.index, m.n);

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

    if (core_is_only_voter(core)) /* R19: its own timer fires in a new term */
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
    int rc = core_event_begin(core, now_ns);

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
            core_trail_term(&core->raft.trail, msg->index) != msg->index_term) {
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
    return core_event_end(core, rc);
}
