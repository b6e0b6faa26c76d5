/*
 * fickle_kv.h - a kv that can lose its right to write, as that of a quorum does.
 *
 * Above another kv. Commits, syncs and confirmations can be held; a deposed kv ends them
 * with -ROZO_ENOT_LEADER and passes nothing on.
 */
#ifndef ROZO_TEST_EXPORTD_FICKLE_KV_H
#define ROZO_TEST_EXPORTD_FICKLE_KV_H

#include "common/env/env.h"
#include "common/env/kv.h"

struct fickle_commit;

struct fickle_kv {
    struct kv kv; /* must stay first */
    struct env *env;
    struct kv *below;
    bool holds;    /* commits and syncs end only when let go, or deposed */
    bool no_lease; /* each answer must be confirmed */
    bool deposed;
    int64_t stamp_ns;             /* newest time of a former leader; 0: none */
    unsigned n_commits, n_syncs;  /* passed on to the kv below */
    unsigned n_asked;             /* confirmations that were not given at once */
    struct fickle_commit *first;  /* held commits, in order; owned */
    struct kv_done *sync;         /* held */
    struct kv_done *asks, *ended; /* wait for a confirmation; end soon */
    struct kv_done **last_ask, **last_ended;
    struct env_task task;
};

void fickle_kv_init(struct fickle_kv *f, struct env *env, struct kv *below);
/** Passes on what is held, and holds no more. */
void fickle_kv_let_go(struct fickle_kv *f);
/** Ends the confirmations that wait. */
void fickle_kv_confirm(struct fickle_kv *f);
/** Ends all that waits, and refuses what comes. */
void fickle_kv_depose(struct fickle_kv *f);

#endif
