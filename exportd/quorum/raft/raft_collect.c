/*
 * raft_collect.c - takes over what libraft wants after a step: entries, messages.
 *
 * In:     struct raft_update of core_step(). Out: struct raft_core_out, core->messages.
 * Ask:    raft_core.c for the guards R1 to R22.
 */
#include <assert.h>
#include <stdlib.h>

#include "exportd/quorum/raft/raft_core_in.h"

enum {
    MESSAGES_MAX = 1024, /* messages kept; beyond, new ones are dropped */
};

bool core_counts_written(const struct raft_core *core)
{
    if (core->raft.state == RAFT_LEADER)
        return core->options.is_lazy;
    return core->options.is_lazy && core->heard.is_lazy &&
           core->heard.term == core->ballot.term;
}

int core_collect_entries(struct raft_core *core, const struct raft_update *update)
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

struct raft_msg *core_message_add(struct raft_core *core, enum raft_msg_kind kind,
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

void core_say_synced(const struct raft_core *core, struct raft_msg *m)
{
    uint64_t synced = core->synced.synced;

    if (core->loss.term != 0)
        m->flags |= RAFT_MSG_LOSS;
    if (core_counts_written(core)) {
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
        core_say_synced(core, m);
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
    struct raft_msg *m = core_message_add(core, RAFT_MSG_SEED, to, core->ballot.term);

    core->out.seeding = to;
    if (m == NULL)
        return;
    m->index = trail->snapshot.index;
    m->index_term = trail->snapshot.term;
}

uint64_t core_covered(const struct raft_core *core)
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

void core_collect_message(struct raft_core *core, const struct raft_message *lib,
                          const struct raft_msg *answered)
{
    uint64_t to = lib->server_id;
    struct raft_msg *m = NULL;

    switch (lib->type) {
    case RAFT_APPEND_ENTRIES:
        m = core_message_add(core, RAFT_MSG_APPEND, to, lib->append_entries.term);
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
        m = core_message_add(core, RAFT_MSG_APPENDED, to,
                             lib->append_entries_result.term);
        if (m != NULL)
            appended_collect(core, m, &lib->append_entries_result,
                             answered != NULL && answered->term < m->term);
        return;
    case RAFT_REQUEST_VOTE:
        m = core_message_add(core, RAFT_MSG_VOTE, to, lib->request_vote.term);
        if (m == NULL)
            return;
        m->index = lib->request_vote.last_log_index;
        m->index_term = lib->request_vote.last_log_term;
        m->flags = (lib->request_vote.pre_vote ? RAFT_MSG_PRE_VOTE : 0) |
                   (lib->request_vote.disrupt_leader ? RAFT_MSG_DISRUPT : 0);
        return;
    case RAFT_REQUEST_VOTE_RESULT:
        m = core_message_add(core, RAFT_MSG_VOTED, to, lib->request_vote_result.term);
        if (m != NULL)
            voted_collect(core, m, &lib->request_vote_result);
        return;
    case RAFT_INSTALL_SNAPSHOT:
        seed_collect(core, to);
        return;
    case RAFT_TIMEOUT_NOW:
        m = core_message_add(core, RAFT_MSG_TIMEOUT_NOW, to, lib->timeout_now.term);
        core->transfer.sent_index = lib->timeout_now.last_log_index;
        if (m == NULL)
            return;
        m->index = lib->timeout_now.last_log_index;
        m->index_term = lib->timeout_now.last_log_term;
        return;
    }
}
