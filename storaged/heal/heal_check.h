/*
 * heal_check.h - files that are checked until they are good. Inside storaged/heal only.
 *
 * Only heal_check.c writes these members.
 */
#ifndef ROZO_STORAGED_HEAL_HEAL_CHECK_H
#define ROZO_STORAGED_HEAL_HEAL_CHECK_H

#include "storaged/heal/healer.h"
#include "storaged/heal/jobs/heal_jobs.h"
#include "storaged/heal/jobs/heal_locate.h"

enum check_state {
    CHECK_WAITS, /* for ready_ns */
    CHECK_RUNS,  /* repairs the file, or searches its distribution */
    /* Runs, and was extended meanwhile, so it runs once more. */
    CHECK_RUNS_AGAIN,
};

/* A check of one file, which is repeated until its result is good. */
struct heal_check {
    struct heal_job job;   /* first */
    struct list_node link; /* in h->checks */
    uint64_t first, end;
    uint32_t flags;
    enum check_state state;
    bool unproven;             /* only a client described its distribution: no fence */
    struct heal_locate locate; /* search for its distribution at other storages */
    uint64_t since_ns;         /* time of the request, or of its last extension */
    uint64_t undecided_ns;     /* since when something of it is undecided; 0: nothing */
    uint64_t ready_ns;         /* earliest time of the next try */
    uint64_t unhealed;         /* blocks, in the last try */
    bool is_spoiled;           /* only waits for all storages: see keeps_spoiled() */
    /* Call of exportd that waits for the end of this check, and since when; or NULL. */
    struct rpc_call *abandoned;
    uint64_t abandoned_ns;
};

/* All checks, and the question of what our own storage has not committed. */
struct heal_checks {
    struct list_node list;
    unsigned n;
    uint64_t unhealed;  /* blocks, sum over checks that wait for another try */
    unsigned n_lookups; /* lookups of our own files that were found damaged */
    struct env_timer timer, uncommitted_timer;
    struct heal_question question; /* for the recovery of uncommitted files */
    bool asking;
};

void heal_checks_init(struct healer *h);
void heal_check_handle(struct healer *h, struct rpc_call *call);
/**
 * Adds a check, which is repeated until its result is good. end UINT64_MAX: no end.
 * Returns 0, -ENOMEM, or -EBUSY if there are too many.
 */
int heal_check_add(struct healer *h, const struct storcli_target *target, uint64_t first,
                   uint64_t end, uint32_t flags);
void heal_checks_start(struct healer *h);
void heal_checks_stop(struct healer *h);

#endif
