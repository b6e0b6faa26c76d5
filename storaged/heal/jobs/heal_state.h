/*
 * heal_state.h - the state of the healer that its jobs use. Inside storaged/heal only.
 *
 * A part of the healer (resync, rebuild, scrub, checks) makes jobs; heal_jobs.c runs a
 * limited number of them, in the order of their rank; repair.c does the work. Operations
 * that will call back count in n_busy, so that a stop knows when nothing points to the
 * healer any more.
 */
#ifndef ROZO_STORAGED_HEAL_JOBS_HEAL_STATE_H
#define ROZO_STORAGED_HEAL_JOBS_HEAL_STATE_H

#include <assert.h>

#include "storaged/disk/bad_page_disk.h"
#include "storaged/heal/jobs/heal_config.h"
#include "storaged/heal/jobs/heal_jobs.h"
#include "storaged/heal/jobs/heal_peers.h"
#include "storaged/heal/list/hint_log.h"
#include "storaged/heal/list/proj_list.h"

enum { ASK_DEADLINE_MS = 15000 };

struct heal_parts;

/* A rate limit in bytes per second, kept as the time from which more may be taken. */
struct rate {
    uint64_t bytes_per_s; /* 0: no limit */
    uint64_t free_at_ns;
};

/* The healer, as far as jobs need it. */
struct healer {
    struct healer_config config;
    struct env *env;
    struct bad_page_disk disk; /* wraps config.disk and remembers its bad pages */
    uint32_t us;               /* our storage id; 0: not admitted */
    struct hint_log *hints;
    struct repairer *repairer, *scrub_repairer; /* NULL before we are admitted */
    bool started, stopping;
    unsigned n_busy;       /* lists, questions, saves and syncs under way */
    struct list_node asks; /* under way; only heal_ask.c writes this */
    void (*stop_done)(void *arg);
    void *stop_arg;
    struct hint_log_wait stop_wait;
    struct env_task stop_task;

    uint64_t map_version;
    uint32_t map_returns;    /* StMapReq.returns of that map */
    struct heal_peer *peers; /* owned, ascending by id */
    unsigned n_peers;

    /* Besides the rate: what reserved streams leave free. */
    struct rate rate, unreserved_rate, scrub_rate;
    struct heal_jobs jobs;
    struct heal_parts *parts; /* owned; state of what makes jobs */
};

/** Ends an operation that was counted in n_busy. */
static inline void healer_idle(struct healer *h)
{
    assert(h->n_busy > 0);
    if (--h->n_busy == 0 && h->stopping)
        env_post(h->env, &h->stop_task);
}

#endif
