/*
 * hasty_kv.h - a kv that leaves out what makes answers of a quorum true (mutants).
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_WORLD_HASTY_KV_H
#define ROZO_TESTS_SIM_CLUSTER_WORLD_HASTY_KV_H

#include "common/env/env.h"
#include "common/env/kv.h"

struct hasty_kv {
    struct kv kv; /* must be the first member */
    struct kv *below;
    struct env *env;
    bool is_early;     /* commits and syncs are done before the quorum has them */
    bool confirms_all; /* nothing can be stale */
    /** Called when an answer may leave at once; may be NULL. */
    void (*confirmed)(void *arg);
    void *arg;
    struct kv_done *ended; /* in order */
    struct kv_done **last;
    struct env_task task;
};

/** Makes a kv above another one; all is passed on. */
void hasty_kv_init(struct hasty_kv *h, struct env *env, struct kv *below);

#endif
