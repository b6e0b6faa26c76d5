/*
 * heal_jobs.h - repairs that wait or run. Inside storaged/heal only.
 *
 * Only heal_jobs.c writes these members; the part that made a job sets its request, fixed
 * and done before it submits it.
 */
#ifndef ROZO_STORAGED_HEAL_JOBS_HEAL_JOBS_H
#define ROZO_STORAGED_HEAL_JOBS_HEAL_JOBS_H

#include "common/base/list.h"
#include "storaged/heal/repair/repair.h"

struct healer;

/* Kinds of jobs, the most urgent first. */
enum heal_rank { RANK_CHECK, RANK_RETURN, RANK_REBUILD, RANK_SCRUB, RANK_N };

struct job_move;
/* One repair that waits or runs. Embedded in the part that made it. */
struct heal_job {
    struct list_node link; /* in waiting, running or moving */
    enum heal_rank rank;
    struct repair_request request;
    struct repair *repair; /* under way; borrowed */
    /* Only for the request's distribution: -ROZO_EMOVED if there is a later one. */
    bool fixed;
    unsigned n_moves;      /* later distributions that the job moved to */
    struct job_move *move; /* owned; search for a later distribution */
    struct healer *h;
    void (*done)(struct heal_job *job, const struct repair_result *result);
};
/**
 * Submits a job. done() comes later, once; not if the healer stops. If storages know a
 * later distribution of the file, it is looked up and the request changed to it.
 */
void heal_job_submit(struct healer *h, struct heal_job *job, enum heal_rank rank);
/** Returns whether all blocks looked at are as they should be. */
bool repair_is_good(const struct repair_result *result);
/**
 * Returns whether blocks stay undecided though every storage answered: then only a fence
 * can decide them.
 */
bool repair_wants_fence(const struct repair_result *result);
/**
 * Returns the number of blocks that could not be healed; at least 1 if the result is not
 * good.
 */
uint64_t repair_n_unhealed(const struct repair_result *result);

/* All jobs of the healer, and what came of them. */
struct heal_jobs {
    struct list_node waiting[RANK_N], running, moving;
    unsigned n_running, n_of_rank[RANK_N]; /* n_of_rank: running */
    unsigned n_waiting;
    struct env_task pump;
    uint64_t healed, read_bytes, written_bytes;
    char problem[160]; /* newest problem of a file */
};

void heal_jobs_init(struct healer *h);
void heal_jobs_stop(struct healer *h);

#endif
