/*
 * jobs.c - which mend runs next, and how many at a time.
 *
 * In:     job_submit(), from the parts of the healer; the ends of mends. Thread: the healer's.
 * Out:    mend_start(); job->done().
 * Keeps:  at most so many mends run; a lower rank never waits for a higher one. How much of a mend is under way
 *         at a time, and that clients go first, is mend_walk.c's.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "storaged/heal/healer_int.h"

enum {
    CHECKS_EXTRA = 2, /* mends of the first rank beside all others */
    SCRUBS_MAX = 2,
};

bool mend_is_good(const struct mend_result *result)
{
    return result->rc == -ENOENT || (result->rc == 0 && result->undecided == 0);
}

bool mend_wants_fence(const struct mend_result *result)
{
    return result->undecided > 0 && result->silent == 0;
}

uint64_t mend_n_unhealed(const struct mend_result *result)
{
    uint64_t n = result->failed + result->undecided;

    if (mend_is_good(result))
        return 0;
    return n == 0 ? 1 : n;
}

static void count(struct healer *h, const struct job *job,
                  const struct mend_result *result)
{
    h->healed += result->healed;
    h->read_bytes += result->read_bytes;
    h->written_bytes += result->written_bytes;
    if (mend_is_good(result))
        return;
    snprintf(h->problem, sizeof(h->problem), "file %08x%08x%016llx: %.100s",
             job->request.target.id.export_id, job->request.target.id.generation,
             (unsigned long long)job->request.target.id.ino,
             result->problem[0] != '\0' ? result->problem
             : result->undecided > 0    ? "too few storages answer to tell"
                                        : strerror(-result->rc));
    log_debug("not healed: %s", h->problem);
}

static void job_end(struct job *job, const struct mend_result *result)
{
    struct healer *h = job->h;

    job->mend = NULL;
    list_remove(&job->link);
    h->n_running--;
    h->n_of_rank[job->rank]--;
    count(h, job, result);
    env_post(h->env, &h->pump);
    job->done(job, result);
}

static void on_mended(void *arg, const struct mend_result *result)
{
    job_end(arg, result);
}

/* Where checks take all there is, one of the others runs beside them. */
static bool may_run(const struct healer *h, unsigned rank)
{
    unsigned all = h->config.concurrency + CHECKS_EXTRA;

    if (rank == RANK_CHECK)
        return h->n_running < all;
    if (rank == RANK_SCRUB && h->n_of_rank[RANK_SCRUB] >= SCRUBS_MAX)
        return false;
    return h->n_running < h->config.concurrency ||
           (h->n_running == all && h->n_of_rank[RANK_CHECK] == all);
}

/* As the map says now. */
static uint32_t lost_places(const struct healer *h, const struct storcli_target *t)
{
    uint32_t lost = 0;

    for (unsigned i = 0; i < t->n_storages; i++) {
        if (healer_is_lost(h, t->storages[i]))
            lost |= UINT32_C(1) << i;
    }
    return lost;
}

static void job_run(struct healer *h, struct job *job)
{
    struct mender *m = job->rank == RANK_SCRUB ? h->scrub_mender : h->mender;
    int rc;

    list_remove(&job->link);
    list_add_tail(&h->running, &job->link);
    h->n_waiting--;
    h->n_running++;
    h->n_of_rank[job->rank]++;
    job->request.lost = lost_places(h, &job->request.target);
    rc = m == NULL ? -EUNATCH : mend_start(m, &job->request, on_mended, job, &job->mend);
    if (rc != 0) {
        struct mend_result failed = { .rc = rc, .failed = 1 };

        job_end(job, &failed);
    }
}

static void on_pump(struct env_task *task)
{
    struct healer *h = container_of(task, struct healer, pump);

    for (unsigned rank = 0; rank < RANK_N && !h->stopping; rank++) {
        while (!list_is_empty(&h->waiting[rank]) && may_run(h, rank))
            job_run(h, container_of(h->waiting[rank].next, struct job, link));
    }
}

void job_submit(struct healer *h, struct job *job, enum heal_rank rank)
{
    job->h = h;
    job->rank = rank;
    job->mend = NULL;
    list_add_tail(&h->waiting[rank], &job->link);
    h->n_waiting++;
    env_post(h->env, &h->pump);
}

void jobs_init(struct healer *h)
{
    for (unsigned rank = 0; rank < RANK_N; rank++)
        list_init(&h->waiting[rank]);
    list_init(&h->running);
    h->pump.fn = on_pump;
}

void jobs_stop(struct healer *h)
{
    LIST_FOREACH_SAFE(node, &h->running) {
        struct job *job = container_of(node, struct job, link);

        list_remove(node);
        if (job->mend != NULL)
            mend_cancel(job->mend);
    }
    for (unsigned rank = 0; rank < RANK_N; rank++)
        list_init(&h->waiting[rank]);
    h->n_waiting = h->n_running = 0;
}
