/*
 * sweep.h - one file of a walk of the rebuild or the scrub. Inside storaged/heal only.
 *
 * The rebuild or the scrub sets h, f and done; then sweep.c works with it, before that
 * ownerless.c for an ownerless file, and afterwards scrub.c, which asks other homes.
 */
#ifndef ROZO_STORAGED_HEAL_JOBS_SWEEP_H
#define ROZO_STORAGED_HEAL_JOBS_SWEEP_H

#include "storaged/heal/jobs/heal_jobs.h"
#include "storaged/heal/jobs/heal_locate.h"
#include "storaged/heal/jobs/heal_walk.h"

/* One file of a walk of the rebuild or the scrub, which is repaired. */
struct sweep_file {
    struct heal_job job; /* first */
    struct heal_ask ask;
    struct healer *h;
    struct heal_walk_file f;
    enum heal_rank rank;
    unsigned place;   /* healer_home() */
    unsigned n_asked; /* homes after ours that were asked whether they have the file */
    struct heal_locate locate;
    bool was_unknown; /* distribution unknown here before */
    unsigned n_looks; /* failed attempts to have our own storage look at its file again */
    bool is_whole;    /* was partial before, and is complete now */
    struct repair_result result;
    /* Called after the job and what follows it. */
    void (*done)(struct sweep_file *s, bool good);
};
/**
 * Submits the job; if the result is good and our file was not complete, declares it
 * complete.
 */
void sweep_submit(struct sweep_file *s, enum heal_rank rank, uint32_t flags);
/**
 * Asks all peers for the distribution of an ownerless file. If none has anything of it,
 * or it was only begun here, it is removed. done() says whether it is located or removed.
 */
void ownerless_ask(struct sweep_file *s);

#endif
