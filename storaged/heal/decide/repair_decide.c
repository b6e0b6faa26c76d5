/*
 * repair_decide.c - decides what a block is, given what its storages say about it.
 *
 * In:     answers of any storages, in any order. Any thread.
 * Out:    a decision that no other repairer's decision contradicts, or "undecided".
 * Keeps:  a version that q storages acknowledged is never rolled back: each of them has
 *         it or something newer, does not answer, or lost it; if those may be q, it stays
 *         undecided. A version that can still come to k holders is never rolled back
 *         either. Under the fence the versions below newer ones are known: one is missing
 *         there only if a newer one was committed, and that has k holders. A candidate
 *         with a torn record never had it stable, so it does not count as a possible
 *         acknowledger of a synced write.
 * Ask:    docs/internals/healing.md; storcli/rules/resolve.c has the readers' side
 *         of the rules.
 */
#include "storaged/heal/decide/repair_decide.h"

#include <assert.h>

#include "common/wire/record.h"

static const struct decide_answer never = { .kind = DECIDE_HOLE };

/* The input, with sets that are derived from it once. */
struct view {
    const struct decide_rules *rules;
    const struct decide_answer *answers;
    unsigned n;
    uint32_t all; /* bitmap of all candidates */
    /* Candidates whose newest record is damaged, or that may have lost something. */
    uint32_t damaged;
    uint32_t unsure; /* subset of damaged: the version of the damage is unknown */
};

static unsigned count(uint32_t bits)
{
    return (unsigned)__builtin_popcount(bits);
}

/* Returns whether the answer has a known version. If torn, or that of a mark over damage,
 * it counts only under a fence, where it can be rolled back. */
static bool has_version(const struct view *w, const struct decide_answer *a)
{
    return a->kind != DECIDE_DAMAGED || ((a->torn || a->marked) && w->rules->fenced);
}

/* Finds the newest version below `limit` (if limited). Returns false if there is none.
 * Candidates without a file have version 0. */
static bool next_version(const struct view *w, bool limited, uint64_t limit,
                         uint64_t *version)
{
    bool found = w->rules->none != 0 && (!limited || limit > 0);

    if (found)
        *version = 0;
    for (unsigned i = 0; i < w->n; i++) {
        uint64_t v = w->answers[i].version;

        if (!has_version(w, &w->answers[i]) || (limited && v >= limit) ||
            (found && v <= *version))
            continue;
        *version = v;
        found = true;
    }
    return found;
}

static uint32_t holders_of(const struct view *w, uint64_t version)
{
    uint32_t holders = 0;

    for (unsigned i = 0; i < w->n; i++) {
        if (w->answers[i].kind != DECIDE_DAMAGED && w->answers[i].version == version)
            holders |= 1u << w->answers[i].candidate;
    }
    return holders;
}

/* Returns all projections of the data version of answer `as`; 0: it is a hole. */
static uint32_t projections_of(const struct view *w, const struct decide_answer *as)
{
    uint32_t projections = 0;

    for (unsigned i = 0; i < w->n; i++) {
        if (w->answers[i].kind == DECIDE_DATA && w->answers[i].version == as->version)
            projections |= 1u << w->answers[i].projection;
    }
    return projections;
}

/* Returns how many agree with answer `as`: distinct projections of data, storages of a
 * hole. */
static unsigned n_agree(const struct view *w, const struct decide_answer *as)
{
    uint32_t agree = 0;

    for (unsigned i = 0; i < w->n; i++) {
        const struct decide_answer *a = &w->answers[i];

        if (a->kind == as->kind && a->version == as->version &&
            a->user_bytes == as->user_bytes)
            agree |= 1u << (a->kind == DECIDE_HOLE ? a->candidate : a->projection);
    }
    return count(agree);
}

/* Returns the answer at this version that most others agree with; *have: their number. */
static const struct decide_answer *best_at(const struct view *w, uint64_t version,
                                           unsigned *have)
{
    unsigned n_none = version == 0 ? count(w->rules->none) : 0;
    const struct decide_answer *best = n_none > 0 ? &never : NULL;

    *have = n_none;
    for (unsigned i = 0; i < w->n; i++) {
        const struct decide_answer *a = &w->answers[i];
        unsigned n;

        if (a->kind == DECIDE_DAMAGED || a->version != version)
            continue;
        n = n_agree(w, a) + n_none;
        if (n > *have) {
            *have = n;
            best = a;
        }
    }
    return best;
}

/* Returns the same storage's answer for the same projection one level below; NULL: not
 * asked. */
static const struct decide_answer *below(const struct view *w,
                                         const struct decide_answer *a)
{
    for (unsigned i = 0; i < w->n; i++) {
        const struct decide_answer *b = &w->answers[i];

        if (b->candidate == a->candidate && b->projection == a->projection &&
            b->level == a->level + 1)
            return b;
    }
    return NULL;
}

static const struct decide_answer *top(const struct view *w, unsigned candidate,
                                       unsigned projection)
{
    for (unsigned i = 0; i < w->n; i++) {
        const struct decide_answer *a = &w->answers[i];

        if (a->candidate == candidate && a->projection == projection && a->level == 0)
            return a;
    }
    return NULL;
}

/* Returns whether a holder of this version has not been asked for the version below
 * it. */
static bool hides_below(const struct view *w, uint64_t version)
{
    for (unsigned i = 0; i < w->n; i++) {
        const struct decide_answer *a = &w->answers[i];

        if (has_version(w, a) && a->version == version && version != 0 &&
            below(w, a) == NULL)
            return true;
    }
    return false;
}

static bool is_fenced(const struct view *w, uint64_t version)
{
    return w->rules->fenced && version_epoch(version) <= w->rules->fence_epoch;
}

/* Returns candidates with damage below a newer version: the damaged record may be this
 * version. */
static uint32_t damaged_below(const struct view *w, uint64_t version)
{
    uint32_t who = 0;

    for (unsigned i = 0; i < w->n; i++) {
        const struct decide_answer *a = &w->answers[i];
        const struct decide_answer *b = below(w, a);

        if (a->kind != DECIDE_DAMAGED && a->version > version && b != NULL &&
            b->kind == DECIDE_DAMAGED && !b->torn)
            who |= 1u << a->candidate;
    }
    return who;
}

/* Returns how many storages can have acknowledged this version at most, if those in
 * `unknown` may have. For data, each with a distinct projection, as readers count
 * (storcli/rules/resolve.c). */
static unsigned acknowledged_most(const struct view *w, uint64_t version,
                                  uint32_t unknown)
{
    unsigned by_storage = count(holders_of(w, version) | unknown), by_projection;
    uint32_t projections = 0;

    for (unsigned i = 0; i < w->n; i++) {
        const struct decide_answer *a = &w->answers[i];

        if (a->version != version || a->kind == DECIDE_DAMAGED)
            continue;
        if (a->kind == DECIDE_HOLE)
            return by_storage;
        projections |= 1u << a->projection;
    }
    by_projection = count(projections) + count(unknown);
    return by_projection < by_storage ? by_projection : by_storage;
}

/* Returns candidates that may have acknowledged this version although no answer shows
 * it. */
static uint32_t unknown_of(const struct view *w, uint64_t version)
{
    uint32_t sure = w->rules->answered & ~w->unsure;

    return damaged_below(w, version) | (w->all & ~(sure | w->rules->none));
}

/* Returns how many candidates did not answer and may still bring versions that no answer
 * showed. */
static unsigned n_unanswered(const struct view *w)
{
    const struct decide_rules *r = w->rules;

    return count(w->all & ~(r->answered | r->none | r->lost));
}

/* Returns whether a version with fewer than k holders may be passed over. Readers may do
 * so if it cannot have been acknowledged; a holder of a newer version may have had it. A
 * rollback, under the fence, also needs that the candidates without an answer cannot
 * bring it to k. */
static bool may_pass(const struct view *w, uint64_t version, unsigned have,
                     uint32_t newer)
{
    const struct decide_rules *r = w->rules;
    uint32_t answered = r->answered & ~w->damaged;

    if (!is_fenced(w, version))
        return count(newer | (w->all & ~(answered | r->none))) < r->q;
    return have + n_unanswered(w) < r->k &&
           acknowledged_most(w, version, unknown_of(w, version)) < r->q;
}

/* Returns whether, under a fence, the block was never written although fewer than k
 * candidates say so. All versions were passed over; candidates with unknown losses are
 * too few for an acknowledged write, and those that did not answer too few for a readable
 * one. */
static bool was_never_written(const struct view *w)
{
    return n_unanswered(w) < w->rules->k && count(unknown_of(w, 0)) < w->rules->q;
}

/* Returns the newest version of marks over damage. */
static uint64_t marked_newest(const struct view *w)
{
    uint64_t version = 0;

    for (unsigned i = 0; i < w->n; i++) {
        if (w->answers[i].marked && w->answers[i].version > version)
            version = w->answers[i].version;
    }
    return version;
}

/* ---- forward: homes that lack it ---- */

/* Returns what the home of projection p has, without the versions that are rolled back;
 * NULL: nothing. */
static const struct decide_answer *counts_at_home(const struct view *w, unsigned home,
                                                  unsigned p, uint64_t version)
{
    const struct decide_answer *a = top(w, home, p);

    while (a != NULL && a->kind != DECIDE_DAMAGED && a->version > version &&
           is_fenced(w, a->version))
        a = below(w, a);
    return a;
}

static void judge_home(const struct view *w, unsigned p, struct decision *d)
{
    unsigned home = w->rules->home == NULL ? p : w->rules->home[p];
    const struct decide_answer *a;
    uint32_t bit = 1u << p;

    assert(p < w->rules->n);
    if (home >= w->rules->c || ((w->rules->answered | w->rules->none) >> home & 1) == 0)
        return;
    a = counts_at_home(w, home, p, d->version);
    /* The home has it, or something newer that stays. */
    if (a != NULL && a->kind != DECIDE_DAMAGED && a->version >= d->version)
        return;
    if (a != NULL && a->kind == DECIDE_DAMAGED)
        d->damaged |= bit;
    else if (d->version == 0)
        return; /* nothing to restore */
    else if (a != NULL)
        d->stale |= bit;
    else
        d->missing |= bit;
}

static void decide_forward(const struct view *w, const struct decide_answer *as,
                           uint64_t newest, struct decision *d)
{
    assert(as->kind != DECIDE_DAMAGED && as->version <= newest);
    d->what = DECIDE_FORWARD;
    d->version = as->version;
    d->user_bytes = as->user_bytes;
    d->newest = newest == as->version;
    d->holders = holders_of(w, as->version);
    d->projections = projections_of(w, as);
    for (unsigned p = 0; p < w->rules->n; p++)
        judge_home(w, p, d);
    assert((d->damaged & d->stale) == 0 && ((d->damaged | d->stale) & d->missing) == 0);
    d->lack = d->damaged | d->stale | d->missing;
    for (unsigned i = 0; i < w->n; i++) {
        const struct decide_answer *a = &w->answers[i];

        if ((a->kind != DECIDE_DAMAGED || a->marked) && a->version > as->version &&
            is_fenced(w, a->version))
            d->drop |= 1u << a->candidate;
    }
    /* only a fence shows whether the mark goes */
    if (d->torn == 0 && !w->rules->fenced && marked_newest(w) > as->version)
        d->torn = marked_newest(w);
}

static void view_init(struct view *w, const struct decide_rules *rules,
                      const struct decide_answer *answers, unsigned n_answers)
{
    assert(n_answers <= DECIDE_ANSWERS_MAX && rules->c <= DIST_MAX);
    assert((rules->answered & rules->none) == 0);
    assert(rules->k >= 1 && rules->k <= rules->n);
    *w = (struct view){ .rules = rules, .answers = answers, .n = n_answers };
    w->all = rules->c == 32 ? UINT32_MAX : (1u << rules->c) - 1;
    w->damaged = w->unsure = rules->doubt;
    for (unsigned i = 0; i < n_answers; i++) {
        if (answers[i].kind != DECIDE_DAMAGED || answers[i].level != 0)
            continue;
        w->damaged |= 1u << answers[i].candidate;
        if (!answers[i].torn)
            w->unsure |= 1u << answers[i].candidate;
    }
}

/* Returns the newest version that any storage has torn. */
static uint64_t torn_newest(const struct view *w)
{
    uint64_t version = 0;

    for (unsigned i = 0; i < w->n; i++) {
        if (w->answers[i].torn && w->answers[i].version > version)
            version = w->answers[i].version;
    }
    return version;
}

void decide_block(const struct decide_rules *rules, const struct decide_answer *answers,
                  unsigned n_answers, struct decision *out)
{
    struct view w;
    uint64_t v = 0, newest = 0, hidden = 0;
    uint32_t newer = 0;
    bool limited = false;

    view_init(&w, rules, answers, n_answers);
    *out = (struct decision){ .what = DECIDE_UNDECIDED };
    if (n_answers == 0 && count(w.all & ~rules->none) < rules->k)
        out->what = DECIDE_NOTHING;
    if (n_answers == 0)
        return;
    while (next_version(&w, limited, v, &v)) {
        unsigned have;
        const struct decide_answer *as = best_at(&w, v, &have);

        if (!limited)
            newest = v;
        if (have >= rules->k && (hidden == 0 || !rules->fenced)) {
            decide_forward(&w, as, newest, out);
            return;
        }
        if (hidden != 0) { /* hidden versions may bring this one to k */
            out->what = DECIDE_BELOW;
            out->version = hidden;
            return;
        }
        if (out->torn == 0)
            out->torn = v > torn_newest(&w) ? v : torn_newest(&w);
        newer |= holders_of(&w, v);
        if (!may_pass(&w, v, have, newer)) {
            /* A storage without anything cannot have acknowledged anything. */
            if (v == 0 && was_never_written(&w))
                break;
            return;
        }
        if (hides_below(&w, v))
            hidden = v;
        limited = true;
    }
    if (hidden != 0) {
        out->what = DECIDE_BELOW;
        out->version = hidden;
    } else if (limited && newest == 0 && w.damaged == 0) { /* no candidate has it */
        out->what = DECIDE_NOTHING;
    } else if (is_fenced(&w, 0) && was_never_written(&w)) {
        decide_forward(&w, &never, newest, out);
    }
    if (out->torn == 0 && out->what == DECIDE_UNDECIDED)
        out->torn = torn_newest(&w);
    out->unwritten = out->what == DECIDE_UNDECIDED && out->torn == 0 && !rules->fenced &&
                     was_never_written(&w);
}
