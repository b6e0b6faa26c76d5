/*
 * repair_decide.c - what is to become of a block, given what its storages say of it?
 *
 * In:     answers of any storages, in any order. Any thread.
 * Out:    a decision that no other driver's decision contradicts, or "leave it".
 * Keeps:  a version that q storages acknowledged is never settled back: each of them has it or
 *         something newer, is silent, or lost it; when those may be q, it stays undecided. And what
 *         k can still come to have is never settled back either.
 * Ask:    docs/ARCHITECTURE.md, "Healing"; storcli/blocks/resolve.c has the readers' side of the rules.
 */
#include "storaged/heal/repair/repair_decide.h"

#include <assert.h>

#include "common/base/record.h"

static const struct decide_answer never = { .kind = DECIDE_HOLE };

/* What is looked at over and over. */
struct view {
    const struct decide_rules *rules;
    const struct decide_answer *answers;
    unsigned n;
    uint32_t all; /* every candidate */
    uint32_t
        damaged; /* candidates with something damaged on top, or that lost something */
    uint32_t unsure; /* those of them of which nobody knows what that was */
};

static unsigned count(uint32_t bits)
{
    return (unsigned)__builtin_popcount(bits);
}

/* Does this answer speak of a version? Of one that is torn only where it can be settled. */
static bool has_version(const struct view *w, const struct decide_answer *a)
{
    return a->kind != DECIDE_DAMAGED || (a->torn && w->rules->fenced);
}

/* The newest version below `limit` (or of all); false when there is none. Who has no file speaks of version 0. */
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

/* Those of the data that answer `as` is of; 0: it is a hole. */
static uint32_t projections_of(const struct view *w, const struct decide_answer *as)
{
    uint32_t projections = 0;

    for (unsigned i = 0; i < w->n; i++) {
        if (w->answers[i].kind == DECIDE_DATA && w->answers[i].version == as->version)
            projections |= 1u << w->answers[i].projection;
    }
    return projections;
}

/* How many agree with answer `as`: distinct projections of data, storages of a hole. */
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

/* The answer that most agree with at this version; *have: how many do. */
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

/* What the same storage says of the same projection, one level below; NULL: not asked. */
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

/* Does anybody who has this version keep for himself what lies below it? */
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

/* Candidates who hide damage below something newer: this version may be what is damaged. */
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

/*
 * So many storages at most can have acknowledged this version, when those in `unknown` may: of data each with a
 * projection of its own. As the readers count (storcli/blocks/resolve.c).
 */
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

/* Candidates who may have acknowledged this version, for all that they or others know. */
static uint32_t unknown_of(const struct view *w, uint64_t version)
{
    uint32_t sure = w->rules->told & ~w->unsure;

    return damaged_below(w, version) | (w->all & ~(sure | w->rules->none));
}

/* They may bring with them what nobody has shown yet. */
static unsigned n_silent(const struct view *w)
{
    const struct decide_rules *r = w->rules;

    return count(w->all & ~(r->told | r->none | r->lost));
}

/*
 * May a version that fewer than k have be passed over? Readers may when it cannot have been
 * acknowledged; whoever has a newer one may have had it (newer: both).
 * To settle it back, what lies below newer ones is known: it is gone only where a newer one was
 * committed, and that has k. But nobody may be left who could still bring it to k. Who has it torn never had it
 * stable, so he is not one of those for whom somebody may have been told that it is.
 */
static bool may_pass(const struct view *w, uint64_t version, unsigned have,
                     uint32_t newer)
{
    const struct decide_rules *r = w->rules;
    uint32_t told = r->told & ~w->damaged;

    if (!is_fenced(w, version))
        return count(newer | (w->all & ~(told | r->none))) < r->q;
    return have + n_silent(w) < r->k &&
           acknowledged_most(w, version, unknown_of(w, version)) < r->q;
}

/*
 * All that anybody has was passed over. Those who do not know what they had are too few for anything that was
 * acknowledged, those who are silent for anything that could be read: there never was anything, though fewer than k say so.
 */
static bool was_never_written(const struct view *w)
{
    return is_fenced(w, 0) && n_silent(w) < w->rules->k &&
           count(unknown_of(w, 0)) < w->rules->q;
}

/* ---- forward: who lacks it? ---- */

/* What the home of projection p has once everything settled back is gone; NULL: nothing. */
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

    if (home >= w->rules->c || ((w->rules->told | w->rules->none) >> home & 1) == 0)
        return;
    a = counts_at_home(w, home, p, d->version);
    if (a != NULL && a->kind != DECIDE_DAMAGED && a->version >= d->version)
        return; /* it has it, or something newer that stays */
    if (a != NULL && a->kind == DECIDE_DAMAGED)
        d->damaged |= bit;
    else if (d->version == 0)
        return; /* nothing to be had */
    else if (a != NULL)
        d->stale |= bit;
    else
        d->missing |= bit;
}

static void decide_forward(const struct view *w, const struct decide_answer *as,
                           uint64_t newest, struct decision *d)
{
    d->what = DECIDE_FORWARD;
    d->version = as->version;
    d->user_bytes = as->user_bytes;
    d->newest = newest == as->version;
    d->holders = holders_of(w, as->version);
    d->projections = projections_of(w, as);
    for (unsigned p = 0; p < w->rules->n; p++)
        judge_home(w, p, d);
    d->lack = d->damaged | d->stale | d->missing;
    for (unsigned i = 0; i < w->n; i++) {
        const struct decide_answer *a = &w->answers[i];

        if (a->kind != DECIDE_DAMAGED && a->version > as->version &&
            is_fenced(w, a->version))
            d->drop |= 1u << a->candidate;
    }
}

static void view_init(struct view *w, const struct decide_rules *rules,
                      const struct decide_answer *answers, unsigned n_answers)
{
    assert(n_answers <= DECIDE_ANSWERS_MAX && rules->c <= DIST_MAX);
    assert((rules->told & rules->none) == 0);
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

/* The newest version that somebody has torn. */
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
        if (hidden != 0) { /* what is hidden may bring this one to k */
            out->what = DECIDE_BELOW;
            out->version = hidden;
            return;
        }
        if (out->torn == 0)
            out->torn = v > torn_newest(&w) ? v : torn_newest(&w);
        newer |= holders_of(&w, v);
        if (!may_pass(&w, v, have, newer))
            return;
        if (hides_below(&w, v))
            hidden = v;
        limited = true;
    }
    if (hidden != 0) {
        out->what = DECIDE_BELOW;
        out->version = hidden;
    } else if (limited && newest == 0 && w.damaged == 0) { /* passed: it is nobody's */
        out->what = DECIDE_NOTHING;
    } else if (was_never_written(&w)) {
        decide_forward(&w, &never, newest, out);
    }
    if (out->torn == 0 && out->what == DECIDE_UNDECIDED)
        out->torn = torn_newest(&w);
}
