/*
 * loss_laws.c - what a loss of power may take from a quorum.
 *
 * In:     losses of power, and what members conclude from them. Out: an error message if
 *         a law is broken; the time since which changes are lost.
 */
#include "tests/sim/cluster/world/loss_laws.h"

#include "exportd/quorum/seed/seed_msg.h"
#include "tests/sim/cluster/state.h"

/* Longest round of questions, by whose answers an uncertain member decides. */
static const uint64_t round_ns = 3000000000;

static_assert((int)LOSS_MEMBERS_MAX >= (int)METAS_MAX, "a law knows every member");

static bool has_lost(const struct loss_laws *l, unsigned i)
{
    return l->members[i].is_uncertain || l->members[i].has_left ||
           metas.list[i].ill_before_life != 0;
}

/* Returns whether the member cannot say what was committed: it copies, or has lost
 * something. */
static bool is_no_help(const struct loss_laws *l, unsigned i)
{
    struct member_status s;

    return has_lost(l, i) || (meta_status(&metas.list[i], &s) && s.seeding != SEED_NONE);
}

/* Notes the time if most of the members lack something. Called around each change. */
static void majority_note(struct loss_laws *l)
{
    unsigned n_lost = 0, n_no_help = 0;

    for (unsigned i = 0; i < metas.n; i++) {
        n_lost += has_lost(l, i);
        n_no_help += is_no_help(l, i);
    }
    if (n_lost > metas.n / 2)
        l->powerless_ns = world_clock.now_ns;
    if (n_no_help > metas.n / 2)
        l->helpless_ns = world_clock.now_ns;
}

void loss_law_power(struct loss_laws *l, const struct sim_meta *e)
{
    l->members[e->index].is_uncertain |= l->members[e->index].is_open;
    majority_note(l);
}

void loss_law_leaves(struct loss_laws *l, const struct sim_meta *e)
{
    majority_note(l);
    if (!metas.is_lazy || !l->members[e->index].is_uncertain)
        wrong("%s begins with what is left, and has lost nothing", e->host->proc->name);
    if (l->helpless_ns == 0 || world_clock.now_ns - l->helpless_ns > round_ns)
        wrong("%s begins with what is left, and most of the members have lost nothing",
              e->host->proc->name);
    say("%s begins with what is left of its log", e->host->proc->name);
    l->members[e->index].has_left = l->may_count = true;
}

void loss_law_runs(struct loss_laws *l, const struct sim_meta *e, uint64_t loss_term)
{
    struct loss_of_member *m = &l->members[e->index];

    majority_note(l);
    if (loss_term != 0 && !m->has_left && loss_term != m->left_term)
        wrong("%s asks to count a loss of power that it did not have",
              e->host->proc->name);
    m->is_open = metas.is_lazy;
    m->is_uncertain = false;
    m->has_left = loss_term != 0;
    l->may_count |= m->has_left;
    if (m->has_left)
        m->left_term = loss_term;
    majority_note(l);
}

void loss_law_counted(struct loss_laws *l, const struct sim_meta *e)
{
    majority_note(l);
    l->members[e->index].has_left = false;
}

bool loss_law_excuses(const struct loss_laws *l, const struct sim_meta *e)
{
    return l->members[e->index].is_uncertain &&
           (l->members[e->index].has_left || meta_has_floor(e));
}

void loss_law_lost(struct loss_laws *l, uint64_t committed_ns)
{
    majority_note(l);
    if (!metas.is_lazy || l->powerless_ns == 0 || l->powerless_ns < l->led_ns)
        wrong("an entry that was committed at %.4f s is lost, and most of the members "
              "have lost nothing",
              (double)committed_ns / 1e9);
    if (l->lost_ns == 0 || committed_ns < l->lost_ns)
        l->lost_ns = committed_ns;
}

uint64_t loss_law_leads(struct loss_laws *l, const struct sim_meta *e, uint64_t counted)
{
    uint64_t lost_ns = l->lost_ns;

    if (counted != l->counted && !l->may_count)
        wrong("%s counts a loss of power, and no member has lost anything",
              e->host->proc->name);
    if (lost_ns != 0 && counted == l->counted)
        wrong("%s has lost entries that were committed since %.4f s, and nobody counts "
              "that",
              e->host->proc->name, (double)lost_ns / 1e9);
    if (counted != l->counted) {
        say("loss of power %llu is counted", (unsigned long long)counted);
        l->n_counted++;
        l->may_count = false;
        for (unsigned i = 0; i < metas.n; i++)
            l->may_count |= l->members[i].has_left;
    }
    if (lost_ns != 0) {
        l->n_lost++;
        l->lost_told = 0;
    }
    l->counted = counted;
    l->lost_ns = 0;
    l->led_ns = world_clock.now_ns;
    majority_note(l);
    return lost_ns;
}

void loss_law_told(struct loss_laws *l, const struct sim_meta *e, uint64_t told)
{
    if ((told != l->told) != (l->counted != l->told_for))
        wrong("%s tells mounts of loss %llu after %llu; its quorum has counted %llu "
              "after %llu",
              e->host->proc->name, (unsigned long long)told, (unsigned long long)l->told,
              (unsigned long long)l->counted, (unsigned long long)l->told_for);
    l->told = told;
    l->told_for = l->counted;
    if (l->n_lost > 0 && l->lost_told == 0)
        l->lost_told = told;
}

bool loss_law_is_known(const struct loss_laws *l, uint64_t told)
{
    return l->n_lost == 0 || (l->lost_told != 0 && told >= l->lost_told);
}
