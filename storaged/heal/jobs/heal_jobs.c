/*
 * heal_jobs.c - decides which repair runs next, and how many run at a time.
 *
 * In:     heal_job_submit(), from the parts of the healer; the ends of repairs. Thread:
 *         the healer's.
 * Out:    repair_start(); job->done().
 * Keeps:  the number of running repairs is bounded; a job never waits for one of a less
 *         urgent rank. repair_walk.c bounds the work within a repair and lets clients go
 *         first.
 */
#include "storaged/heal/jobs/heal_jobs.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "storaged/heal/jobs/heal_locate.h"
#include "storaged/heal/jobs/heal_state.h"

enum {
    CHECKS_EXTRA = 2, /* repairs of the first rank in addition to all others */
    SCRUBS_MAX = 2,
    MOVES_MAX = 4, /* for one job */
};

bool repair_is_good(const struct repair_result *result)
{
    return result->rc == -ENOENT || (result->rc == 0 && result->undecided == 0);
}

bool repair_wants_fence(const struct repair_result *result)
{
    return result->undecided > 0 && result->unanswered == 0;
}

uint64_t repair_n_unhealed(const struct repair_result *result)
{
    uint64_t n = result->failed + result->undecided;

    if (repair_is_good(result))
        return 0;
    return n == 0 ? 1 : n;
}

static void count(struct healer *h, const struct heal_job *job,
                  const struct repair_result *result)
{
    h->jobs.healed += result->healed;
    h->jobs.read_bytes += result->read_bytes;
    h->jobs.written_bytes += result->written_bytes;
    if (repair_is_good(result))
        return;
    snprintf(h->jobs.problem, sizeof(h->jobs.problem), "file %08x%08x%016llx: %.100s",
             job->request.target.id.export_id, job->request.target.id.generation,
             (unsigned long long)job->request.target.id.ino,
             result->problem[0] != '\0' ? result->problem
             : result->undecided > 0    ? "too few storages answer to decide"
                                        : error_text(result->rc));
    log_debug("not healed: %s", h->jobs.problem);
}

static void job_end(struct heal_job *job, const struct repair_result *result)
{
    assert(job->repair == NULL && job->move == NULL);
    job->n_moves = 0;
    count(job->h, job, result);
    job->done(job, result);
}

/* ---- a later distribution of the file ---- */

/* Search for a later distribution. Our own header is asked first, then those of the
 * peers. */
struct job_move {
    struct heal_job *job; /* NULL: the healer stops */
    struct healer *h;
    struct repair_result result; /* result of the repair that found the target outdated */
    struct heal_locate locate;
};

static void move_end(struct job_move *m, const struct storcli_target *target)
{
    struct heal_job *job = m->job;
    struct repair_result result = m->result;

    assert(job != NULL && job->move == m);
    list_remove(&job->link);
    job->move = NULL;
    if (target != NULL)
        job->request.target = *target; /* target may be a part of m */
    free(m);
    if (target == NULL) {
        job_end(job, &result);
        return;
    }
    job->n_moves++;
    heal_job_submit(job->h, job, job->rank);
}

/* Ends the search. If the file moved to other storages, our records of it are not needed
 * and there is nothing to heal. */
static void on_move_located(struct heal_locate *l)
{
    struct job_move *m = container_of(l, struct job_move, locate);

    assert(m->job != NULL);
    if (!l->known && l->is_elsewhere)
        m->result.rc = -ENOENT;
    move_end(m, l->known ? &l->target : NULL);
}

static void on_move_listed(void *arg, const struct proj_list_result *result)
{
    struct job_move *m = arg;
    struct healer *h = m->h;
    const struct storcli_target *own =
        result->rc == 0 && result->n_files > 0 && result->files[0].known
            ? &result->files[0].target
            : NULL;

    if (m->job == NULL) {
        free(m);
    } else if (own != NULL &&
               own->dist_generation > m->job->request.target.dist_generation &&
               heal_place(own, h->us) != DIST_MAX) {
        move_end(m, own);
    } else {
        m->locate.min_generation = m->job->request.target.dist_generation + 1;
        m->locate.done = on_move_located;
        heal_locate_start(h, &m->locate, &m->job->request.target.id);
    }
    healer_idle(h);
}

/* Starts the search. Returns false if it is not wanted or there is no memory. */
static bool move_start(struct heal_job *job, const struct repair_result *result)
{
    struct healer *h = job->h;
    const struct proj_list_request request = {
        .has_after = true, .after = job->request.target.id, .only = true, .max_files = 1
    };
    struct job_move *m;
    struct list_op *op;

    if (result->rc != -ROZO_EMOVED || job->fixed || job->n_moves >= MOVES_MAX)
        return false;
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return false;
    *m = (struct job_move){ .job = job, .h = h, .result = *result };
    if (proj_list_start(h->env, h->config.disk, &request, on_move_listed, m, &op) != 0) {
        free(m);
        return false;
    }
    assert(job->move == NULL && job->repair == NULL);
    h->n_busy++;
    job->move = m;
    list_add_tail(&h->jobs.moving, &job->link);
    return true;
}

/* Ends all searches. A list under way still uses its move and frees it later. */
static void moves_stop(struct healer *h)
{
    LIST_FOREACH_SAFE(node, &h->jobs.moving) {
        struct heal_job *job = container_of(node, struct heal_job, link);
        struct job_move *m = job->move;

        assert(m != NULL && m->job == job);
        list_remove(node);
        job->move = NULL;
        m->job = NULL;
        if (m->locate.h != NULL)
            free(m); /* the request of the search was cancelled */
    }
}

/* ---- running ---- */

static void on_repaired(void *arg, const struct repair_result *result)
{
    struct heal_job *job = arg;
    struct healer *h = job->h;

    assert(h->jobs.n_running > 0 && h->jobs.n_of_rank[job->rank] > 0);
    job->repair = NULL;
    list_remove(&job->link);
    h->jobs.n_running--;
    h->jobs.n_of_rank[job->rank]--;
    env_post(h->env, &h->jobs.pump);
    if (!move_start(job, result))
        job_end(job, result);
}

/* Returns whether a job of this rank may run. If checks take all places, one other job
 * runs beside them. */
static bool may_run(const struct healer *h, unsigned rank)
{
    unsigned all = h->config.concurrency + CHECKS_EXTRA;

    assert(h->jobs.n_running <= all + 1);
    if (rank == RANK_CHECK)
        return h->jobs.n_running < all;
    if (rank == RANK_SCRUB && h->jobs.n_of_rank[RANK_SCRUB] >= SCRUBS_MAX)
        return false;
    return h->jobs.n_running < h->config.concurrency ||
           (h->jobs.n_running == all && h->jobs.n_of_rank[RANK_CHECK] == all);
}

/* Bitmap of places that are lost by the current map. */
static uint32_t lost_places(const struct healer *h, const struct storcli_target *t)
{
    uint32_t lost = 0;

    for (unsigned i = 0; i < t->n_storages; i++) {
        if (healer_is_lost(h, t->storages[i]))
            lost |= UINT32_C(1) << i;
    }
    return lost;
}

static void job_run(struct healer *h, struct heal_job *job)
{
    struct repairer *m = job->rank == RANK_SCRUB ? h->scrub_repairer : h->repairer;
    int rc;

    assert(h->jobs.n_waiting > 0 && job->repair == NULL && job->move == NULL);
    list_remove(&job->link);
    list_add_tail(&h->jobs.running, &job->link);
    h->jobs.n_waiting--;
    h->jobs.n_running++;
    h->jobs.n_of_rank[job->rank]++;
    job->request.lost = lost_places(h, &job->request.target);
    rc = m == NULL ? -ROZO_ENOT_ADMITTED
                   : repair_start(m, &job->request, on_repaired, job, &job->repair);
    if (rc != 0) {
        struct repair_result failed = { .rc = rc, .failed = 1 };

        on_repaired(job, &failed);
    }
}

static void on_pump(struct env_task *task)
{
    struct healer *h = container_of(task, struct healer, jobs.pump);

    for (unsigned rank = 0; rank < RANK_N && !h->stopping; rank++) {
        while (!list_is_empty(&h->jobs.waiting[rank]) && may_run(h, rank))
            job_run(h, container_of(h->jobs.waiting[rank].next, struct heal_job, link));
    }
}

void heal_job_submit(struct healer *h, struct heal_job *job, enum heal_rank rank)
{
    assert(rank < RANK_N && job->done != NULL);
    assert(job->move == NULL);
    job->h = h;
    job->rank = rank;
    job->repair = NULL;
    list_add_tail(&h->jobs.waiting[rank], &job->link);
    h->jobs.n_waiting++;
    env_post(h->env, &h->jobs.pump);
}

void heal_jobs_init(struct healer *h)
{
    for (unsigned rank = 0; rank < RANK_N; rank++)
        list_init(&h->jobs.waiting[rank]);
    list_init(&h->jobs.running);
    list_init(&h->jobs.moving);
    h->jobs.pump.fn = on_pump;
}

void heal_jobs_stop(struct healer *h)
{
    LIST_FOREACH_SAFE(node, &h->jobs.running) {
        struct heal_job *job = container_of(node, struct heal_job, link);

        list_remove(node);
        if (job->repair != NULL)
            repair_cancel(job->repair);
    }
    for (unsigned rank = 0; rank < RANK_N; rank++)
        list_init(&h->jobs.waiting[rank]);
    assert(list_is_empty(&h->jobs.running));
    h->jobs.n_waiting = h->jobs.n_running = 0;
    moves_stop(h);
}
