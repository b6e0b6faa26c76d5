/*
 * repair_findings.c - what a repair finds out about the file as a whole, and what follows
 * from it for its result.
 *
 * In:     answers about the file, from the walk and the pieces. Thread: that of the env.
 * Out:    the result; homes whose files are complete.
 * Keeps:  a file is sound, and a partial file complete, only if the candidates that did
 *         not answer are too few to hide an acknowledged version.
 */
#include "storaged/heal/repair/repair_findings.h"

#include <assert.h>
#include <errno.h>

#include "common/base/err.h"
#include "storaged/heal/repair/repair_int.h"

/* ---- what is found ---- */

void findings_ask(struct repair_findings *f)
{
    f->none = f->damaged = f->unsynced = 0;
}

void findings_no_file(struct repair_findings *f, unsigned candidate)
{
    assert(candidate < DIST_MAX);
    f->none |= 1u << candidate;
}

void findings_unreadable(struct repair_findings *f, unsigned candidate, bool unsynced)
{
    assert(candidate < DIST_MAX);
    f->damaged |= 1u << candidate;
    if (unsynced)
        f->unsynced |= 1u << candidate;
}

void findings_has_file(struct repair_findings *f)
{
    if (f->seen == SEEN_NOWHERE)
        f->seen = SEEN_SOMEWHERE;
}

void findings_removed(struct repair_findings *f)
{
    f->seen = SEEN_REMOVED;
}

void findings_unknown(struct repair_findings *f, uint32_t projections)
{
    f->unknown |= projections;
}

void findings_take(struct repair_findings *f, const struct repair_heads *heads)
{
    assert(heads->file != NULL && heads->answers != NULL);
    assert((heads->answered & heads->none) == 0);
    f->none = heads->none;
    f->doubt |= heads->doubt;
    for (unsigned i = 0; i < heads->file->c; i++)
        f->spoiled[i] |= heads->spoiled[i];
    for (unsigned b = 0; b < heads->n; b++) {
        const struct decide_answer *a = repair_heads_of(heads, b);

        for (unsigned i = 0; i < heads->n_answers[b]; i++) {
            if (a[i].kind != DECIDE_DAMAGED)
                findings_has_file(f);
            if (a[i].version > f->newest)
                f->newest = a[i].version;
        }
    }
}

/* ---- what follows from it ---- */

/* Returns the candidates that answered where they have something of the file. */
static uint32_t heard(const struct repair *repair)
{
    return repair->walk.next.answered | repair->findings.none;
}

/* Projections with partial files whose homes answered all requests; other homes may still
 * lack something. */
static uint32_t unknown_and_heard(const struct repair *repair)
{
    const struct heal_file *file = &repair->file;
    uint32_t projections = repair->findings.unknown;

    for (unsigned p = 0; p < file->n; p++) {
        if ((projections >> p & 1) != 0 && (file->unanswered >> file->home[p] & 1) != 0)
            projections &= ~(1u << p);
    }
    return projections;
}

/* Returns whether all of the file was seen and healed, and too few candidates did not
 * answer for an acknowledged version to be on them alone. */
static bool is_complete(const struct repair *repair)
{
    const struct repair_result *r = &repair->result;

    return r->rc == 0 && r->undecided == 0 && r->failed == 0 &&
           (unsigned)__builtin_popcount(heal_file_all(&repair->file) & ~heard(repair)) <
               repair->file.q;
}

bool findings_all_in_place(const struct repair *repair)
{
    const struct repair_result *r = &repair->result;
    uint32_t answered = heard(repair);

    assert(repair->walk.step == WALK_OVER && repair->walk.n_pieces == 0);
    /* Candidates with unreadable files answer nothing more. */
    for (unsigned i = 0; i < repair->file.c; i++)
        answered |= repair->findings.spoiled[i] != 0 ? 1u << i : 0;
    return (repair->request.flags & REPAIR_CLEAN_SPARES) != 0 &&
           repair_is_of_all(repair) && r->rc == 0 && r->undecided == 0 &&
           r->failed == 0 && r->n_torn == 0 && r->unanswered == 0 &&
           answered == heal_file_all(&repair->file);
}

/* Homes in scope with an unreadable file, if no other candidate has any of the file and
 * these are too few for an acknowledged write. They start again with an empty file. */
static uint32_t corrupt_homes(const struct repair *repair)
{
    const struct repair_findings *f = &repair->findings;
    uint32_t others = heal_file_all(&repair->file) & ~f->damaged, homes = 0;

    if (repair->result.rc != 0 || f->seen != SEEN_NOWHERE || !repair_is_of_all(repair) ||
        (others & ~f->none) != 0 ||
        (unsigned)__builtin_popcount(f->damaged & ~f->unsynced) >= repair->file.k)
        return 0;
    for (unsigned p = 0; p < repair->file.n; p++) {
        if ((repair->scope >> p & 1) != 0 &&
            (f->damaged >> repair->file.home[p] & 1) != 0)
            homes |= 1u << p;
    }
    return homes;
}

uint32_t findings_complete_homes(struct repair *repair)
{
    uint32_t homes = corrupt_homes(repair);

    assert(repair->walk.step == WALK_OVER && repair->walk.n_pieces == 0);
    repair->result.damaged += (unsigned)__builtin_popcount(homes);
    return homes == 0 && is_complete(repair) ? unknown_and_heard(repair) : homes;
}

/* ---- the result ---- */

static bool has_problem(const struct repair *repair)
{
    return repair->result.problem[0] != '\0';
}

/* Reports whether the file is there at all. */
static void note_presence(struct repair *repair)
{
    const struct repair_findings *f = &repair->findings;
    uint32_t maybe = heal_file_all(&repair->file) & ~(f->none | f->unsynced);

    assert(repair->result.rc <= 0);
    if (f->seen == SEEN_REMOVED) {
        repair->result.rc = -ENOENT;
    } else if (repair->result.rc == 0 && f->seen == SEEN_NOWHERE) {
        bool removed = (unsigned)__builtin_popcount(maybe) < repair->file.k;

        repair->result.rc = removed ? -ENOENT : -EIO;
        if (!removed && !has_problem(repair))
            repair_problem(
                repair,
                "no storage that answers has the file, and too many do not answer");
    }
}

/* Reports an error if our own storage or k others did not answer. Without ours, nothing
 * here was looked at. k others may hold between them versions that were never synced and
 * are lost after a power failure. */
static void note_unanswered(struct repair *repair)
{
    uint32_t unanswered = repair->file.unanswered & ~repair->file.lost;

    if (repair->findings.seen == SEEN_REMOVED ||
        (!repair->own.unseen &&
         (unsigned)__builtin_popcount(unanswered) < repair->file.k))
        return;
    if (!has_problem(repair))
        repair_problem(repair, repair->own.unseen ? "our own storage does not answer"
                                                  : "too many storages do not answer");
    repair->result.rc = -EIO;
}

/* Overrides other results: the storage that reports it knows a later distribution than we
 * do. */
static void note_moved(struct repair *repair)
{
    assert(repair->file.moved != 0);
    repair->result.rc = -ROZO_EMOVED;
    repair_problem(repair, "storage %u knows a later distribution of the file",
                   repair->file.target.storages[__builtin_ctz(repair->file.moved)]);
}

/* Returns whether records were wrong, or still are, at any of these candidates. */
static bool is_any_wrong(const struct repair *repair, uint32_t all)
{
    const struct repair_result *r = &repair->result;
    const struct repair_findings *f = &repair->findings;
    uint32_t spoiled = 0;

    for (unsigned i = 0; i < repair->file.c; i++)
        spoiled |= f->spoiled[i];
    return r->damaged + r->stale + r->missing + r->unknown + r->healed + r->dropped +
                   r->cleaned + r->failed >
               0 ||
           (f->damaged & all) != 0 || f->unknown != 0 || spoiled != 0;
}

/* Returns the first reason why the file is not sound; NULL: it is. */
static const char *unsound(const struct repair *repair)
{
    const struct repair_result *r = &repair->result;
    const struct repair_findings *f = &repair->findings;
    const struct heal_file *file = &repair->file;
    uint32_t all = heal_file_all(file) & ~file->lost;
    bool is_nowhere = r->rc == -ENOENT && (all & ~f->none) == 0;

    if (f->seen == SEEN_REMOVED)
        return "the file is removed";
    if ((file->unanswered & all) != 0)
        return "not all storages of the file answer";
    if (r->rc != 0 && !is_nowhere)
        return "the file could not be looked at as a whole";
    if (r->undecided + r->n_torn > 0)
        return "a version is on too few storages";
    if ((f->doubt & all) != 0)
        return "a storage may have lost data and has not compared all of it yet";
    if (is_any_wrong(repair, all))
        return "records were wrong, or still are";
    if (repair->batch.uncommitted)
        return "a version is not committed";
    if ((all & ~heard(repair)) != 0 || (all & ~repair->batch.proved) != 0)
        return "not all storages confirm that all versions are stable";
    return NULL;
}

static void note_soundness(struct repair *repair)
{
    const char *why = unsound(repair);

    repair->result.sound = why == NULL;
    if (why != NULL && !has_problem(repair))
        repair_problem(repair, "%s", why);
}

void findings_conclude(struct repair *repair)
{
    note_presence(repair);
    note_unanswered(repair);
    if (repair->file.moved != 0)
        note_moved(repair);
    if ((repair->request.flags & REPAIR_PROVE) != 0)
        note_soundness(repair);
    repair->result.unanswered = repair->file.unanswered;
    repair->result.none = repair->findings.none;
    for (unsigned i = 0; i < repair->file.c; i++) {
        if (repair->findings.spoiled[i] != 0 && (repair->batch.unspoiled >> i & 1) == 0)
            repair->result.spoiled |= 1u << i;
    }
}
