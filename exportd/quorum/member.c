/*
 * member.c - events of the raft core, and what follows from them.
 *
 * In:     messages, persisted entries and votes, time, calls of the kv's side.
 * Out:    votes and entries for the log, messages, entries for the kv, hooks.
 * Keeps:  results are carried out in the order of struct raft_core_out. The lease ends
 *         before a transfer of leadership is asked for.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/quorum/member_in.h"

uint64_t member_now_ns(const struct member *m)
{
    return m->config.now_ns(m->config.now_arg);
}

void member_depose(struct member *m)
{
    if (!m->leads)
        return;
    m->leads = false;
    atomic_store(&m->lease_until_ns, 0);
    m->confirm_ns = 0;
    m->config.hooks.depose(m->config.hooks.arg);
}

void member_fail(struct member *m, int rc, const char *what)
{
    if (m->state < MEMBER_DOUBTS || m->state > MEMBER_RUNS)
        return;
    m->state = MEMBER_FAILED;
    member_steps_release(m, true);
    member_depose(m); /* nothing that waits would end otherwise */
    member_change_stop(m);
    env_timer_stop(m->config.env, &m->timer);
    member_space_stop(m);
    m->config.hooks.failed(m->config.hooks.arg, rc, what);
}

void member_part_stop(struct member *m)
{
    member_steps_release(m, true);
    member_space_stop(m);
    m->role = RAFT_CORE_FOLLOWER;
    m->leader = 0;
    m->is_ready = false;
    member_change_stop(m);
}

/* ---- entries for the kv ---- */

static void give_next(struct member *m);

static void give(struct member *m, struct quorum_entry *entry)
{
    assert(entry->e.index == m->given + 1);
    m->given++;
    member_change_given(m, entry);
    m->config.hooks.apply(m->config.hooks.arg, entry);
}

static void on_given_read(struct quorum_log_read *r, int rc, struct quorum_entry *entry)
{
    struct member *m = container_of(r, struct member, give_read);

    m->is_reading = false;
    if (m->state != MEMBER_RUNS) {
        quorum_entry_free(entry);
        member_stop_look(m);
        return;
    }
    if (rc != 0) {
        member_fail(m, rc, "read a committed entry of the metadata log");
        return;
    }
    give(m, entry);
    give_next(m);
}

/* Lets the kv lead if it has all that is committed. Without a lease, leadership is being
 * transferred. */
static void lead_look(struct member *m)
{
    if (m->config.is_witness || m->leads || m->role != RAFT_CORE_LEADER || !m->is_ready ||
        m->given < m->commit || raft_core_lease_until_ns(m->core) == 0 ||
        !member_leads_for_sure(m))
        return;
    m->leads = true;
    m->n_leads++;
    m->lead_term = m->term;
    m->config.hooks.lead(m->config.hooks.arg, m->term);
}

/* Says which of the given entries are stable. */
static void stable_give(struct member *m)
{
    uint64_t index = m->stable < m->given ? m->stable : m->given;

    if (index <= m->stable_given)
        return;
    m->stable_given = index;
    m->config.hooks.stable(m->config.hooks.arg, index);
    member_change_stable(m);
}

/* Returns up to where the kv gets entries. Those of a leader end commits; others have no
 * use before they are stable, and would wake the core's thread one by one. */
static uint64_t give_to(const struct member *m)
{
    return m->role == RAFT_CORE_LEADER || m->commit < m->stable ? m->commit : m->stable;
}

static void give_next(struct member *m)
{
    while (m->given < give_to(m) && m->given - m->applied < APPLYING_MAX &&
           !m->is_reading) {
        struct quorum_entry *entry;

        quorum_log_get(m->log, m->given + 1, &entry);
        if (entry != NULL) {
            give(m, quorum_entry_use(entry));
            continue;
        }
        m->is_reading = true;
        m->give_read =
            (struct quorum_log_read){ .index = m->given + 1, .done = on_given_read };
        quorum_log_read(m->log, &m->give_read);
    }
    stable_give(m);
    lead_look(m);
}

/* ---- results ---- */

/* Returns a use of the submitted part with this data, which the core borrowed; or
 * NULL. */
static struct quorum_entry *part_find(const struct member *m, const void *data)
{
    for (unsigned i = 0; i < m->n_parts; i++)
        if (m->parts[i]->bytes == data)
            return quorum_entry_use(m->parts[i]);
    return NULL;
}

/* Returns the entry for the log: the submitted part, or a copy. */
static struct quorum_entry *entry_of(const struct member *m,
                                     const struct raft_log_entry *e)
{
    struct quorum_entry *entry = part_find(m, e->data);

    if (entry == NULL) {
        entry = quorum_entry_new(e->kind, e->len);
        if (entry == NULL)
            return NULL;
        memcpy(entry->bytes, e->data, e->len);
    }
    entry->e.index = e->index;
    entry->e.term = e->term;
    return entry;
}

static void entries_append(struct member *m, const struct raft_core_out *out)
{
    for (unsigned i = 0; i < out->n_entries; i++) {
        struct quorum_entry *entry = entry_of(m, &out->entries[i]);

        if (entry == NULL) {
            member_fail(m, -ENOMEM, "append to the metadata log");
            return;
        }
        quorum_log_append(m->log, &entry, 1);
        quorum_entry_free(entry);
    }
}

static void role_take(struct member *m, const struct raft_core_out *out)
{
    char name[MEMBER_NAME_MAX];

    if (out->leader != m->leader && out->leader != 0)
        log_info("quorum: %s leads in term %llu", member_name(m, out->leader, name),
                 (unsigned long long)out->term);
    m->role = out->role;
    m->term = out->term;
    m->leader = out->leader;
    m->is_ready = out->is_ready;
    m->loss.is_due = out->loss;
    if (m->role != RAFT_CORE_LEADER || m->term != m->lead_term)
        member_depose(m);
}

/* Returns true if the kv's side knows that it leads: what comes from it is of now. */
static bool kv_leads(const struct member *m)
{
    return m->leads && m->n_led == m->n_leads;
}

static void lease_take(struct member *m)
{
    uint64_t confirmed = raft_core_confirmed_ns(m->core);

    if (!kv_leads(m))
        return;
    atomic_store(&m->lease_until_ns, raft_core_lease_until_ns(m->core));
    if (m->confirm_ns != 0 && confirmed >= m->confirm_ns) {
        m->confirm_ns = 0;
        m->config.hooks.confirmed(m->config.hooks.arg, confirmed);
    }
}

static void timer_set(struct member *m, uint64_t next_ns)
{
    uint64_t now = member_now_ns(m);
    uint64_t after_ns = next_ns > now ? next_ns - now : 0;

    env_timer_start(m->config.env, &m->timer,
                    after_ns / NS_PER_MS + (after_ns % NS_PER_MS != 0));
}

/* A member has lost entries that it had acknowledged to this leader: it must copy all
 * that the leader has now. */
static void lost_send(struct member *m, uint64_t to)
{
    char name[MEMBER_NAME_MAX];
    uint64_t last = raft_core_last_index(m->core);
    const struct raft_msg msg = { .kind = RAFT_MSG_SEED,
                                  .flags = RAFT_MSG_LOST,
                                  .from = m->config.id,
                                  .to = to,
                                  .term = m->term,
                                  .sent_ns = member_now_ns(m),
                                  .index = last,
                                  .index_term = raft_core_term_of(m->core, last) };

    log_warn("quorum: %s has lost entries that it had", member_name(m, to, name));
    if (msg.index_term != 0)
        member_send(m, &msg);
}

/* A leader says that this member must copy. If it lacks what it had, its disk may have
 * been restored from an older image, and its newest votes with it. */
static void seed_take(struct member *m, const struct raft_core_out *out)
{
    if (out->seed_lost)
        log_error("quorum: the leader knows that this member had entries which it lacks "
                  "now, as after a restore of an older image: it has lost its vote, too");
    member_seed_begin(m, (struct seed_mark){ .doubt = out->seed_lost ? SEED_VOTE_LOST
                                                      : m->loss.floor_term != 0
                                                          ? SEED_LOG_LOST
                                                          : SEED_BEHIND,
                                             .is_copied = true,
                                             .needed = out->seed_to });
}

void member_pump(struct member *m)
{
    struct raft_core_out out;

    raft_core_take(m->core, &out);
    if (out.new_term != 0)
        quorum_log_vote(m->log, out.new_term, out.new_vote);
    if (out.truncate_from != 0)
        quorum_log_truncate(m->log, out.truncate_from);
    entries_append(m, &out);
    m->loss.is_fed = m->loss.is_fed || out.n_entries > 0 || out.truncate_from != 0;
    role_take(m, &out);
    member_peers_update(m, raft_core_config(m->core));
    for (unsigned i = 0; i < out.n_messages && m->state == MEMBER_RUNS; i++)
        if (!member_witness_drops(m, &out.messages[i]))
            member_send(m, &out.messages[i]);
    member_steps_release(m, false);
    if (out.lost != 0 && m->state == MEMBER_RUNS)
        lost_send(m, out.lost);
    assert(out.commit >= m->commit);
    m->commit = out.commit;
    m->stable = out.stable;
    quorum_log_may_wait(m->log, out.may_wait);
    if (out.seed_to != 0 && m->state == MEMBER_RUNS)
        seed_take(m, &out);
    if (m->state != MEMBER_RUNS)
        return;
    give_next(m);
    if (m->state != MEMBER_RUNS)
        return; /* member_removed() */
    lease_take(m);
    timer_set(m, out.next_ns);
    member_change_look(m);
    member_loss_count(m);
    member_witness_look(m, out.covered);
}

/* Members that lost power lead with less than what had been committed, which was not yet
 * stable (member_doubt.c): this member has more, and takes what they have. */
static void outlived(struct member *m)
{
    log_warn("quorum: entries from %llu to %llu were committed, and are lost with the "
             "power of other members",
             (unsigned long long)(m->stable + 1), (unsigned long long)m->commit);
    member_depose(m);
    member_seed_begin(m, (struct seed_mark){ .doubt = SEED_LOG_LOST, .is_copied = true });
}

void member_event(struct member *m, int rc)
{
    bool is_refused = rc == -EAGAIN || rc == -EBUSY || rc == -EINVAL || rc == -EMSGSIZE ||
                      rc == -EBADMSG || rc == -ESTALE || rc == -ROZO_ENOT_LEADER;

    if (rc == -ROZO_EDAMAGED && m->state == MEMBER_RUNS && m->stable < m->commit)
        outlived(m);
    else if (rc != 0 && !is_refused)
        member_fail(m, rc, "the core of the quorum");
    else
        member_pump(m);
}

/* ---- events ---- */

/* Gives the core a message. Returns the status for its sender. */
static uint16_t step(struct member *m, const struct raft_msg *msg,
                     const struct raft_log_entry *entries)
{
    int rc;

    if (member_is_former(m, msg->from))
        return ROZO__STATUS__NOT_FOUND;
    if (m->state != MEMBER_RUNS)
        return ROZO__STATUS__BUSY;
    if ((msg->kind == RAFT_MSG_VOTE || msg->kind == RAFT_MSG_VOTED) &&
        !member_tell_lets_vote(m, msg->from))
        return ROZO__STATUS__BUSY;
    if (member_floor_forbids(m, msg))
        return ROZO__STATUS__BUSY;
    m->change.heard_ns = member_now_ns(m);
    if (msg->kind == RAFT_MSG_APPEND)
        m->loss.floor_ns = m->change.heard_ns;
    rc = raft_core_receive(m->core, member_now_ns(m), msg, entries);
    member_event(m, rc);
    return rc == -EBADMSG ? ROZO__STATUS__BAD_REQUEST : ROZO__STATUS__OK;
}

static void step_handle(struct member *m, struct rpc_call *call)
{
    struct raft_log_entry entries[RAFT_MSG_ENTRIES_MAX];
    struct raft_msg msg;
    int rc = raft_msg_decode(&m->config.group, m->config.id, call->msg, call->msg_len,
                             call->payload, call->payload_len, &msg, entries);
    uint16_t status;

    if (rc != 0) {
        rpc_reply_status(call, rc == -ESTALE          ? ROZO__STATUS__WRONG_STORAGE
                               : rc == -ROZO_EDEPOSED ? ROZO__STATUS__DEPOSED
                                                      : ROZO__STATUS__BAD_REQUEST);
        return;
    }
    member_step_hold(m, call, &msg);
    status = step(m, &msg, entries);
    member_step_end(m, call, msg.from, status);
}

void member_answer_take(struct member *m, const void *head, size_t len)
{
    struct raft_log_entry entries[RAFT_MSG_ENTRIES_MAX];
    struct raft_msg msg;

    if (m->state == MEMBER_RUNS && raft_msg_decode(&m->config.group, m->config.id, head,
                                                   len, NULL, 0, &msg, entries) == 0)
        step(m, &msg, entries);
}

void member_handle(struct member *m, struct rpc_call *call)
{
    if (call->role != RPC_ROLE_NODE)
        rpc_reply_status(call, ROZO__STATUS__DENIED);
    else if (call->op == ROZO__OP__RF_SEED || call->op == ROZO__OP__RF_FETCH)
        member_source_handle(m, call);
    else if (call->op == ROZO__OP__RF_JOIN)
        member_doubt_handle(m, call);
    else if (call->op == ROZO__OP__RF_ADOPT)
        member_adopt_handle(m, call);
    else if (call->op == ROZO__OP__RF_TELL)
        member_tell_handle(m, call);
    else if (call->op != ROZO__OP__RF_STEP)
        rpc_reply_status(call, ROZO__STATUS__UNKNOWN_OP);
    else if (m->state == MEMBER_RUNS || m->state == MEMBER_REMOVED)
        step_handle(m, call);
    else {
        if (m->state == MEMBER_SEEDS)
            member_seed_hear(m, call);
        rpc_reply_status(call, ROZO__STATUS__BUSY);
    }
}

void member_refused(struct member *m, const struct rpc_channel *ch)
{
    LIST_FOREACH(node, &m->peers) {
        const struct member_peer *p = container_of(node, struct member_peer, link);

        if (p->channel != ch || p->is_gone || m->state != MEMBER_RUNS)
            continue;
        member_event(m, raft_core_refused(m->core, member_now_ns(m), p->id));
        return; /* the list may have changed */
    }
}

void member_led(struct member *m)
{
    m->n_led++;
    assert(m->n_led <= m->n_leads);
    if (m->state == MEMBER_RUNS)
        lease_take(m);
}

void member_submit(struct member *m, struct quorum_entry *const *parts, unsigned n_parts)
{
    struct raft_log_entry entries[QUORUM_PARTS_MAX];
    int rc;

    assert(n_parts > 0 && n_parts <= QUORUM_PARTS_MAX);
    if (m->state != MEMBER_RUNS || !kv_leads(m))
        return;
    for (unsigned i = 0; i < n_parts; i++)
        entries[i] = parts[i]->e;
    m->parts = parts;
    m->n_parts = n_parts;
    rc = raft_core_submit(m->core, member_now_ns(m), entries, n_parts);
    member_event(m, rc);
    m->n_parts = 0;
    if (rc != 0 && m->state == MEMBER_RUNS && m->leads) {
        log_warn("quorum: a change was refused: %s", error_text(rc));
        member_depose(m); /* the kv's side counts on it, so it must begin again */
    }
}

void member_applied(struct member *m, uint64_t index)
{
    assert(index >= m->applied && index <= m->given);
    m->applied = index; /* entries given before a copy began come here, too */
    if (m->state != MEMBER_RUNS)
        return;
    if (!m->is_syncing_below && quorum_log_used_bytes(m->log) > member_keep_bytes(m)) {
        m->is_syncing_below = true;
        m->config.hooks.sync_below(m->config.hooks.arg);
    }
    give_next(m);
}

/* Drops the oldest entries that the kv holds on stable storage: a quarter of the log, or
 * all of them if the disk is full. */
static void trim(struct member *m)
{
    uint64_t first = quorum_log_first(m->log), last = quorum_log_last(m->log);
    uint64_t to = first + (last - first) / 4 + 1;
    int rc;

    if (to > m->synced + 1 || m->space.n_full > 0)
        to = m->synced + 1;
    to = member_witness_trim_to(m, to);
    if (to <= first)
        return;
    rc = raft_core_trim(m->core, member_now_ns(m), m->applied, to);
    if (rc == 0)
        quorum_log_trim(m->log, to);
    member_event(m, rc);
}

void member_synced(struct member *m, uint64_t index)
{
    m->is_syncing_below = false;
    m->synced = index;
    member_seed_synced(m);
    if (m->state == MEMBER_RUNS &&
        (m->space.n_full > 0 || quorum_log_used_bytes(m->log) > member_keep_bytes(m)))
        trim(m);
}

void member_confirm(struct member *m, uint64_t asked_ns)
{
    if (m->state != MEMBER_RUNS || !kv_leads(m))
        return;
    m->confirm_ns = asked_ns;
    lease_take(m);
}

void member_want_stable(struct member *m)
{
    if (m->state == MEMBER_RUNS && kv_leads(m))
        member_event(m, raft_core_want_stable(m->core, member_now_ns(m)));
}

uint64_t member_lease_until_ns(const struct member *m)
{
    return atomic_load(&m->lease_until_ns);
}

static bool is_other_voter(const struct member *m, uint64_t id)
{
    const struct raft_member *other = raft_config_find(&m->members, id);

    return id != m->config.id && other != NULL && raft_member_can_serve(other);
}

int member_transfer(struct member *m, uint64_t to)
{
    int rc;

    if (m->state != MEMBER_RUNS)
        return -ROZO_ENOT_LEADER;
    if (m->role != RAFT_CORE_LEADER)
        return -ROZO_ENOT_LEADER;
    if (to != 0 && !is_other_voter(m, to))
        return -EINVAL;
    member_depose(m); /* the core takes no change while the transfer is under way */
    rc = raft_core_transfer(m->core, member_now_ns(m), to);
    member_event(m, rc);
    return rc;
}

void member_log_range(const struct member *m, uint64_t *first, uint64_t *last)
{
    *first = quorum_log_first(m->log);
    *last = quorum_log_last(m->log);
    if (*first <= *last)
        return;
    *first = m->commit + 1; /* empty: the store has it all */
    *last = m->commit;
}

/* Lists the members that did not answer. */
static void silent_list(const struct member *m, struct member_status *out)
{
    LIST_FOREACH(node, &m->peers) {
        const struct member_peer *p = container_of(node, struct member_peer, link);

        if (p->is_silent && !p->is_gone && out->n_silent < RAFT_SERVERS_MAX)
            out->silent[out->n_silent++] = p->id;
    }
}

void member_status(const struct member *m, struct member_status *out)
{
    bool is_open = m->state >= MEMBER_RUNS && m->log_runs;
    uint64_t first = 0, last = 0;

    if (is_open)
        member_log_range(m, &first, &last);

    *out = (struct member_status){
        .id = m->config.id,
        .term = m->term,
        .leader = m->leader,
        .leads = m->role == RAFT_CORE_LEADER,
        .is_ready = m->leads,
        .first = first,
        .last = last,
        .commit = m->commit,
        .stable = m->stable,
        .applied = m->applied,
        .log_bytes = is_open ? quorum_log_used_bytes(m->log) : 0,
        .members = m->members,
        .is_witness = m->config.is_witness,
        .covered = m->witness.covered,
        .is_removed = m->state == MEMBER_REMOVED,
        .is_uncertain = m->state == MEMBER_DOUBTS || m->loss.floor_term != 0,
    };
    for (unsigned i = 0; i < m->members.n; i++)
        member_clients_of(m, m->members.members[i].id, &out->clients[i]);
    if (m->state == MEMBER_DOUBTS) {
        out->term = m->ballot.term;
        out->last = member_newest(m).index;
    }
    member_seed_status(m, out);
    if (m->state == MEMBER_DOUBTS || m->state == MEMBER_SEEDS)
        silent_list(m, out);
}
