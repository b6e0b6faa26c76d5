/*
 * quorum_mutants.c - functions of members that the linker wraps: laws look at what
 * passes, and mutants leave out safety measures.
 *
 * In:     calls between files of exportd. Out: the real functions.
 */
#include "common/base/list.h"
#include "common/base/units.h"
#include "exportd/cluster/cluster.h"
#include "exportd/quorum/member_in.h"
#include "tests/sim/cluster/run.h"
#include "tests/sim/cluster/world/metas.h"
#include "tests/sim/cluster/world/quorum_laws.h"

static bool without(enum run_mutant measure)
{
    return (metas.mutants & measure) != 0;
}

/* ---- laws ---- */

unsigned core_losses(const struct exportd *core)
{
    return cluster_losses(core);
}

void __real_kv_quorum_apply(struct kv_quorum *q, struct quorum_entry *entry);
void __wrap_kv_quorum_apply(struct kv_quorum *q, struct quorum_entry *entry);

void __wrap_kv_quorum_apply(struct kv_quorum *q, struct quorum_entry *entry)
{
    quorum_law_applies(metas.laws, meta_current(), &entry->e);
    __real_kv_quorum_apply(q, entry);
}

void __real_kv_quorum_stable(struct kv_quorum *q, uint64_t index);
void __wrap_kv_quorum_stable(struct kv_quorum *q, uint64_t index);

void __wrap_kv_quorum_stable(struct kv_quorum *q, uint64_t index)
{
    quorum_law_stable(metas.laws, meta_current(), index);
    __real_kv_quorum_stable(q, index);
}

uint64_t member_log_term(const struct member *m, uint64_t index)
{
    return m->state == MEMBER_RUNS ? raft_core_term_of(m->core, index) : 0;
}

/* Returns the newest entry that the mutant applies: it came, but is not persisted. */
static uint64_t unpersisted(const struct raft_core_out *out)
{
    if (!without(RUN_MUTANT_META_APPLY) || out->role != RAFT_CORE_FOLLOWER ||
        out->n_entries == 0)
        return 0;
    return out->entries[out->n_entries - 1].index;
}

void __real_raft_core_take(struct raft_core *core, struct raft_core_out *out);
void __wrap_raft_core_take(struct raft_core *core, struct raft_core_out *out);

void __wrap_raft_core_take(struct raft_core *core, struct raft_core_out *out)
{
    struct sim_meta *e = meta_current();
    uint64_t ahead;

    __real_raft_core_take(core, out);
    if (without(RUN_MUTANT_META_COUNT))
        out->loss = false;
    if (out->lost != 0)
        quorum_law_lost(e, out->lost);
    if (e->is_witness)
        quorum_law_witness(metas.laws, e, out->role == RAFT_CORE_LEADER, out->term);
    ahead = unpersisted(out);
    if (ahead > e->ahead)
        e->ahead = ahead;
    if (e->ahead > out->commit)
        out->commit = e->ahead;
    if (e->ahead > out->stable) /* the kv below gets no others */
        out->stable = e->ahead;
}

int __real_raft_core_persisted(struct raft_core *core, uint64_t now_ns, uint64_t index,
                               uint64_t term);
int __wrap_raft_core_persisted(struct raft_core *core, uint64_t now_ns, uint64_t index,
                               uint64_t term);

int __wrap_raft_core_persisted(struct raft_core *core, uint64_t now_ns, uint64_t index,
                               uint64_t term)
{
    quorum_law_persisted(metas.laws, meta_current(), index, term);
    return __real_raft_core_persisted(core, now_ns, index, term);
}

int __real_raft_core_written(struct raft_core *core, uint64_t now_ns, uint64_t index,
                             uint64_t term);
int __wrap_raft_core_written(struct raft_core *core, uint64_t now_ns, uint64_t index,
                             uint64_t term);

/* The mutant takes what is written for synced. */
int __wrap_raft_core_written(struct raft_core *core, uint64_t now_ns, uint64_t index,
                             uint64_t term)
{
    if (without(RUN_MUTANT_META_SYNCED))
        return __wrap_raft_core_persisted(core, now_ns, index, term);
    quorum_law_written(metas.laws, meta_current(), index, term);
    return __real_raft_core_written(core, now_ns, index, term);
}

/* ---- logs that are trimmed ---- */

uint64_t __real_quorum_log_used_bytes(const struct quorum_log *log);
uint64_t __wrap_quorum_log_used_bytes(const struct quorum_log *log);

static uint64_t n_entries(const struct quorum_log *log)
{
    return quorum_log_last(log) + 1 - quorum_log_first(log);
}

/* Counts entries, too: runs are short, and segments are long. The core of the mutant
 * would refuse to trim. A witness drops first what all have, then what some have. */
uint64_t __wrap_quorum_log_used_bytes(const struct quorum_log *log)
{
    const struct sim_meta *e = meta_current(); /* NULL: the run looks */
    uint64_t n = n_entries(log);

    if (without(RUN_MUTANT_META_APPLY))
        return 0;
    if (n > metas.log_entries_max && e != NULL && e->is_witness &&
        n <= metas.witness_entries_max)
        return META_LOG_FEW;
    return n > metas.log_entries_max ? UINT64_MAX : __real_quorum_log_used_bytes(log);
}

void __real_quorum_log_trim(struct quorum_log *log, uint64_t first);
void __wrap_quorum_log_trim(struct quorum_log *log, uint64_t first);

void __wrap_quorum_log_trim(struct quorum_log *log, uint64_t first)
{
    const struct sim_meta *e = meta_current();

    bool is_short = n_entries(log) > metas.witness_entries_max;

    if (e->is_witness && !is_short)
        quorum_law_drops(metas.laws, e, first);
    if (e->is_witness)
        quorum_law_begins(metas.laws, first, is_short);
    __real_quorum_log_trim(log, first);
}

/* ---- members that lost something ---- */

bool meta_has_floor(const struct sim_meta *e)
{
    return e->in_doubt != NULL && e->in_doubt->loss.floor_term != 0;
}

void __real_member_seed_begin(struct member *m, struct seed_mark mark);
void __wrap_member_seed_begin(struct member *m, struct seed_mark mark);

void __wrap_member_seed_begin(struct member *m, struct seed_mark mark)
{
    struct sim_meta *e = meta_current();

    metas.n_behind += mark.doubt == SEED_BEHIND;
    metas.n_copies += mark.doubt != SEED_BEHIND;
    /* uncertain, or with committed entries that others have lost */
    e->copies_after_loss |=
        mark.doubt == SEED_LOG_LOST && (m->state == MEMBER_DOUBTS || meta_has_floor(e));
    e->copies_after_loss |=
        mark.doubt == SEED_LOG_LOST && m->state == MEMBER_RUNS && m->stable < m->commit;
    e->in_doubt = NULL;
    e->has_copied = true;
    e->has_lost_log |= mark.doubt == SEED_LOG_LOST;
    if (without(RUN_MUTANT_META_JOIN) && mark.doubt == SEED_LOG_LOST &&
        m->place.applied != 0)
        member_core_start(m);
    else
        __real_member_seed_begin(m, mark);
}

/* ---- witnesses ---- */

void __real_member_send(struct member *m, const struct raft_msg *msg);
void __wrap_member_send(struct member *m, const struct raft_msg *msg);

void __wrap_member_send(struct member *m, const struct raft_msg *msg)
{
    quorum_law_sends(meta_current(), msg);
    __real_member_send(m, msg);
}

bool __real_member_witness_drops(struct member *m, const struct raft_msg *msg);
bool __wrap_member_witness_drops(struct member *m, const struct raft_msg *msg);

bool __wrap_member_witness_drops(struct member *m, const struct raft_msg *msg)
{
    return !without(RUN_MUTANT_WITNESS_SEEDS) && __real_member_witness_drops(m, msg);
}

void __real_member_witness_look(struct member *m, uint64_t covered);
void __wrap_member_witness_look(struct member *m, uint64_t covered);

/* The mutant looks only while it does not lead. */
void __wrap_member_witness_look(struct member *m, uint64_t covered)
{
    if (!without(RUN_MUTANT_WITNESS_STAYS) || m->role != RAFT_CORE_LEADER)
        __real_member_witness_look(m, covered);
}

uint64_t __real_member_witness_trim_to(struct member *m, uint64_t to);
uint64_t __wrap_member_witness_trim_to(struct member *m, uint64_t to);

uint64_t __wrap_member_witness_trim_to(struct member *m, uint64_t to)
{
    return without(RUN_MUTANT_WITNESS_DROPS) ? to : __real_member_witness_trim_to(m, to);
}

void __real_seed_key_set_end(struct seed_key *key);
void __wrap_seed_key_set_end(struct seed_key *key);

/* The mark of a witness is being made: the mutant asks for no barrier. */
void __wrap_seed_key_set_end(struct seed_key *key)
{
    if (without(RUN_MUTANT_WITNESS_JOINS) && meta_current()->has_lost_log)
        container_of(key, struct seed_mark, cursor)->doubt = SEED_LOG_LOST;
    __real_seed_key_set_end(key);
}

/* ---- uncertain members ---- */

void __real_member_doubt_begin(struct member *m);
void __wrap_member_doubt_begin(struct member *m);

/* The mutant takes part with what is left, and says nothing. */
void __wrap_member_doubt_begin(struct member *m)
{
    metas.n_in_doubt++;
    if (without(RUN_MUTANT_META_DOUBT)) {
        member_core_start(m);
        return;
    }
    meta_current()->in_doubt = m;
    __real_member_doubt_begin(m);
}

void __real_raft_core_set_loss(struct raft_core *core, uint64_t term);
void __wrap_raft_core_set_loss(struct raft_core *core, uint64_t term);

void __wrap_raft_core_set_loss(struct raft_core *core, uint64_t term)
{
    struct sim_meta *e = meta_current();

    if (!meta_has_floor(e)) {
        e->in_doubt = NULL;
        loss_law_runs(&metas.losses, e, term);
    }
    __real_raft_core_set_loss(core, term);
}

void __real_member_floor_look(struct member *m, uint64_t index, uint64_t term);
void __wrap_member_floor_look(struct member *m, uint64_t index, uint64_t term);

/* A member that takes part, and votes for some only, ceases to be uncertain. */
void __wrap_member_floor_look(struct member *m, uint64_t index, uint64_t term)
{
    struct sim_meta *e = meta_current();
    bool had_floor = m->state == MEMBER_RUNS && meta_has_floor(e);

    __real_member_floor_look(m, index, term);
    if (!had_floor || meta_has_floor(e))
        return;
    e->in_doubt = NULL;
    loss_law_runs(&metas.losses, e, 0);
}

void __real_quorum_log_loss_counted(struct quorum_log *log);
void __wrap_quorum_log_loss_counted(struct quorum_log *log);

void __wrap_quorum_log_loss_counted(struct quorum_log *log)
{
    loss_law_counted(&metas.losses, meta_current());
    __real_quorum_log_loss_counted(log);
}

void __real_quorum_log_vote(struct quorum_log *log, uint64_t term, uint64_t vote);
void __wrap_quorum_log_vote(struct quorum_log *log, uint64_t term, uint64_t vote);

/* An uncertain member that begins a new term leaves doubt. */
void __wrap_quorum_log_vote(struct quorum_log *log, uint64_t term, uint64_t vote)
{
    struct sim_meta *e = meta_current();

    if (e->in_doubt != NULL && e->in_doubt->state == MEMBER_TERM && !meta_has_floor(e))
        loss_law_leaves(&metas.losses, e);
    if (e->in_doubt != NULL && e->in_doubt->state != MEMBER_DOUBTS && !meta_has_floor(e))
        e->in_doubt = NULL;
    __real_quorum_log_vote(log, term, vote);
}

/* ---- starts ---- */

int __real_raft_core_start(struct raft_core *core, uint64_t now_ns,
                           const struct raft_core_saved *saved, struct err *err);
int __wrap_raft_core_start(struct raft_core *core, uint64_t now_ns,
                           const struct raft_core_saved *saved, struct err *err);

/* The mutant believes that it started an election timeout ago. */
int __wrap_raft_core_start(struct raft_core *core, uint64_t now_ns,
                           const struct raft_core_saved *saved, struct err *err)
{
    struct sim_meta *e = meta_current();
    size_t n = saved->n_entries;

    e->ahead = 0;
    e->copies_after_loss = false;
    quorum_law_starts(metas.laws, e, saved->applied,
                      n > 0 ? saved->entries[n - 1].index : saved->applied,
                      n > 0 ? saved->entries[n - 1].term : saved->applied_term);
    e->has_copied = e->has_lost_log = false;
    if (without(RUN_MUTANT_META_START))
        now_ns -= ms_to_ns(RAFT_ELECTION_MS);
    return __real_raft_core_start(core, now_ns, saved, err);
}
