/*
 * quorum_mutants.c - functions of members that the linker wraps: laws look at what
 * passes, and mutants leave out safety measures.
 *
 * In:     calls between files of exportd. Out: the real functions.
 */
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
    if (out->lost != 0)
        quorum_law_lost(e, out->lost);
    ahead = unpersisted(out);
    if (ahead > e->ahead)
        e->ahead = ahead;
    if (e->ahead > out->commit)
        out->commit = e->ahead;
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

/* ---- logs that are trimmed ---- */

uint64_t __real_quorum_log_used_bytes(const struct quorum_log *log);
uint64_t __wrap_quorum_log_used_bytes(const struct quorum_log *log);

/* Counts entries, too: runs are short, and segments are long. The core of the mutant
 * would refuse to trim. */
uint64_t __wrap_quorum_log_used_bytes(const struct quorum_log *log)
{
    uint64_t n = quorum_log_last(log) + 1 - quorum_log_first(log);

    if (without(RUN_MUTANT_META_APPLY))
        return 0;
    return n > metas.log_entries_max ? UINT64_MAX : __real_quorum_log_used_bytes(log);
}

/* ---- members that lost something ---- */

void __real_member_seed_begin(struct member *m, struct seed_mark mark);
void __wrap_member_seed_begin(struct member *m, struct seed_mark mark);

void __wrap_member_seed_begin(struct member *m, struct seed_mark mark)
{
    metas.n_behind += mark.doubt == SEED_BEHIND;
    metas.n_copies += mark.doubt != SEED_BEHIND;
    if (without(RUN_MUTANT_META_JOIN) && mark.doubt == SEED_LOG_LOST &&
        m->place.applied != 0)
        member_core_start(m);
    else
        __real_member_seed_begin(m, mark);
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
    quorum_law_starts(metas.laws, e,
                      n > 0 ? saved->entries[n - 1].index : saved->applied);
    if (without(RUN_MUTANT_META_START))
        now_ns -= ms_to_ns(RAFT_ELECTION_MS);
    return __real_raft_core_start(core, now_ns, saved, err);
}
