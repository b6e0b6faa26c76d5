/*
 * sweep.c - one file of a walk: repairs it and, if it was partial here, declares it
 * complete.
 *
 * In:     sweep_submit(), from the rebuild and the scrub. Thread: the healer's.
 * Out:    jobs; ST_STAT and ST_COMMIT with `whole` to our own storage.
 * Keeps:  a projection file is declared complete only after a repair of all its blocks
 *         that left nothing undecided.
 */
#include "storaged/heal/jobs/sweep.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "storaged/heal/jobs/heal_state.h"

enum { LOOKS_MAX = 100 }; /* retries while the file is being sent to a client */

static void on_whole(struct heal_ask *ask, int rc)
{
    struct sweep_file *s = container_of(ask, struct sweep_file, ask);

    if (rc == 0 && s->rank == RANK_SCRUB) {
        /* Unknown blocks may be damaged ones: repaired once more. */
        s->is_whole = true;
        s->job.request.flags &= ~(uint32_t)REPAIR_PARTIAL;
        heal_job_submit(s->h, &s->job, s->rank);
        return;
    }
    /* No file here: all of it is holes, or it was removed. */
    s->done(s, rc == 0 || rc == -ROZO_ENO_FILE);
}

static void tell_whole(struct sweep_file *s)
{
    Rozo__StCommitReq req = ROZO__ST_COMMIT_REQ__INIT;
    struct heal_ref ref;

    assert(s->place < DIST_MAX);
    heal_ref_put(&s->job.request.target, &ref);
    req.ref = &ref.ref;
    req.to_storage = s->h->us;
    req.whole = UINT32_C(1) << s->place;
    s->ask.done = on_whole;
    heal_ask_send(s->h, &s->ask, s->h->us, ROZO__OP__ST_COMMIT, &req.base,
                  ASK_DEADLINE_MS);
}

static bool may_be_partial(const struct sweep_file *s)
{
    uint32_t bit = UINT32_C(1) << s->place;

    assert(s->place < DIST_MAX);
    return (s->f.own_projections & bit) == 0 || (s->f.own_partial & bit) != 0 ||
           (s->f.own_damaged & bit) != 0;
}

/* Adds up the findings of two repairs; all else is of the last one. */
static void result_add(struct repair_result *sum, const struct repair_result *last)
{
    const struct repair_result before = *sum;

    *sum = *last;
    sum->damaged += before.damaged;
    sum->stale += before.stale;
    sum->missing += before.missing;
    sum->healed += before.healed;
    sum->has_content |= before.has_content;
}

static void on_job(struct heal_job *job, const struct repair_result *result)
{
    struct sweep_file *s = (struct sweep_file *)job;
    bool good = repair_is_good(result);

    assert(s->done != NULL);
    s->f.file.target = job->request.target; /* may be a later distribution */
    s->place = healer_home(s->h, &s->f.file.target);
    result_add(&s->result, result);
    if (good && result->rc == 0 && s->place < DIST_MAX && may_be_partial(s) &&
        !s->is_whole)
        tell_whole(s);
    else
        s->done(s, good);
}

static void look_again(struct sweep_file *s);

static void on_looked(struct heal_ask *ask, int rc)
{
    struct sweep_file *s = container_of(ask, struct sweep_file, ask);

    if (rc == -EBUSY && ++s->n_looks < LOOKS_MAX)
        look_again(s);
    else /* the repair sees the current state */
        heal_job_submit(s->h, &s->job, s->rank);
}

/* Has our own storage look at its file again: the list found damage, or could not read
 * the file, and an open file, also at a spare, does not notice that by itself. */
static void look_again(struct sweep_file *s)
{
    Rozo__StStatReq req = ROZO__ST_STAT_REQ__INIT;
    struct heal_ref ref;

    heal_ref_put(&s->f.file.target, &ref);
    req.ref = &ref.ref;
    req.to_storage = s->h->us;
    req.look_again = true;
    s->ask.done = on_looked;
    heal_ask_send(s->h, &s->ask, s->h->us, ROZO__OP__ST_STAT, &req.base, ASK_DEADLINE_MS);
}

void sweep_submit(struct sweep_file *s, enum heal_rank rank, uint32_t flags)
{
    const struct storcli_target *t = &s->f.file.target;

    assert(s->done != NULL && s->h != NULL);
    s->place = healer_home(s->h, t);
    s->job.request = (struct repair_request){ .target = *t, .flags = flags };
    if (s->place < DIST_MAX && may_be_partial(s))
        s->job.request.flags |= REPAIR_PARTIAL;
    s->job.done = on_job;
    s->rank = rank;
    if (s->was_unknown || s->f.own_damaged != 0 ||
        (s->place < DIST_MAX && may_be_partial(s) &&
         (s->f.own_partial >> s->place & 1) == 0))
        look_again(s);
    else
        heal_job_submit(s->h, &s->job, rank);
}
