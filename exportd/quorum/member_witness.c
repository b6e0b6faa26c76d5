/*
 * member_witness.c - a witness: a member that votes and keeps the log, but no metadata.
 *
 * In:     news of the core. Out: transfers of leadership; which entries the log drops.
 * Keeps:  a witness never serves, and gives nobody a store. While its log has room it
 *         drops no entry that a voter with metadata lacks, nor the one before: such a
 *         member can be brought up to date from it when the others are lost.
 *         docs/internals/metadata-quorum.md, "Witnesses".
 */
#include <string.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/quorum/member_in.h"

enum {
    /* segments that a log may have though all members have the entries; a log needs four
     */
    WITNESS_SEGMENTS = 5,
    HAND_OVER_PAUSE_MS = 50, /* between tries */
};

bool member_is_witness(const struct member *m, uint64_t id)
{
    return raft_config_is_witness(&m->members, id);
}

/* ---- leading ---- */

/* Returns whether a member answers that can serve. */
static bool other_is_heard(const struct member *m)
{
    for (unsigned i = 0; i < m->members.n; i++) {
        const struct raft_member *other = &m->members.members[i];

        if (raft_member_can_serve(other) && raft_core_is_heard(m->core, other->id))
            return true;
    }
    return false;
}

/* The core feeds the other member first, and goes on to lead if that takes too long. */
static void hand_over(struct member *m)
{
    uint64_t now_ns = member_now_ns(m);

    if (m->witness.led_term != m->term) {
        m->witness.led_term = m->term;
        m->witness.is_stuck = false;
        log_info("quorum: this witness has the longest log: it leads until a member with "
                 "metadata has all of it");
    }
    if (now_ns < m->witness.again_ns || !other_is_heard(m))
        return;
    m->witness.again_ns = now_ns + ms_to_ns(HAND_OVER_PAUSE_MS);
    member_transfer(m, 0);
}

static void covered_take(struct member *m, uint64_t covered)
{
    struct member_witness *w = &m->witness;

    if (covered > w->covered)
        w->covered = covered;
    if (!w->is_short || quorum_log_first(m->log) > w->covered)
        return;
    w->is_short = false;
    log_info("quorum: all members have what this witness has dropped");
}

void member_witness_look(struct member *m, uint64_t covered)
{
    if (m->state != MEMBER_RUNS)
        return;
    covered_take(m, covered);
    if (m->config.is_witness && m->role == RAFT_CORE_LEADER)
        hand_over(m);
}

bool member_witness_drops(struct member *m, const struct raft_msg *msg)
{
    if (!m->config.is_witness || msg->kind != RAFT_MSG_SEED ||
        (msg->flags & RAFT_MSG_LOST) != 0)
        return false;
    if (!m->witness.is_stuck)
        log_error("quorum: member %llu lacks changes that this witness has dropped: it "
                  "cannot serve before another member with metadata is back",
                  (unsigned long long)msg->to);
    m->witness.is_stuck = true;
    return true;
}

/* ---- the log ---- */

uint64_t member_keep_bytes(const struct member *m)
{
    uint64_t segment = m->config.segment_bytes, few;

    if (segment == 0)
        segment = QUORUM_LOG_SEGMENT_BYTES;
    few = WITNESS_SEGMENTS * segment;
    if (!m->config.is_witness || few > m->config.keep_bytes ||
        m->witness.covered <= quorum_log_first(m->log))
        return m->config.keep_bytes;
    return few;
}

uint64_t member_witness_trim_to(struct member *m, uint64_t to)
{
    struct member_witness *w = &m->witness;
    uint64_t first = quorum_log_first(m->log);
    bool is_full = m->space.n_full > 0;

    /* The entry before those that a member lacks stays: the core must know its term. */
    if (!m->config.is_witness || to <= w->covered)
        return to;
    if (w->covered > first || /* dropping these may be enough */
        (!is_full && quorum_log_used_bytes(m->log) <= m->config.keep_bytes))
        return w->covered;
    if (!w->is_short)
        log_error(
            "quorum: %s: this witness drops changes that a member which is away "
            "lacks. Until that is back, or replaced, the metadata are lost with the "
            "disk of the other one",
            is_full ? "the disk is full" : "the log has reached log_keep_mb");
    w->is_short = true;
    return to;
}
