/*
 * kv.h - a struct kv that outlives its process, and forgets at power cuts. Around kv_memory.
 */
#ifndef ROZO_SIM_KV_H
#define ROZO_SIM_KV_H

#include "common/env/kv.h"
#include "tests/sim/cluster/proc.h"

struct sim_kv;

/** For processes of this place. The world's. */
struct sim_kv *sim_kv_new(struct proc *proc);
void sim_kv_free(struct sim_kv *k);
struct kv *sim_kv_kv(struct sim_kv *k);
/** Its process is about to be killed: commits that were not acknowledged may be gone. */
void sim_kv_proc_died(struct sim_kv *k);
/** After that: so may any tail of what no sync covers. */
void sim_kv_power_cut(struct sim_kv *k);
uint64_t sim_kv_n_unsynced(const struct sim_kv *k);
/** What was committed before then is stable, once the sync that began then has ended. */
uint64_t sim_kv_synced_ns(const struct sim_kv *k);

#endif
