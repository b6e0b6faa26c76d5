/*
 * kv.h - a struct kv around kv_memory that outlives its process and loses unsynced
 * commits.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_WORLD_KV_H
#define ROZO_TESTS_SIM_CLUSTER_WORLD_KV_H

#include "common/env/kv.h"
#include "tests/sim/cluster/world/proc.h"

struct sim_kv;

/** Makes the kv of a process, in the world's memory. */
struct sim_kv *sim_kv_new(struct proc *proc);
void sim_kv_free(struct sim_kv *k);
struct kv *sim_kv_kv(struct sim_kv *k);
/** Drops some unacknowledged commits of a process that is about to be killed. */
void sim_kv_proc_died(struct sim_kv *k);
/** Drops, after that, any number of the newest commits that no sync covers. */
void sim_kv_power_cut(struct sim_kv *k);
/** Makes a commit or sync take so much longer at most. */
void sim_kv_slow(struct sim_kv *k, uint32_t more_us);
/** Ends the run if a commit has another key than those of a member's place in the log. */
void sim_kv_is_of_witness(struct sim_kv *k);
/** Puts an empty kv in its place; the process is dead. */
void sim_kv_wipe(struct sim_kv *k);
/** Returns the number of commits that no sync covers. */
uint64_t sim_kv_n_unsynced(const struct sim_kv *k);
/** Returns the time when the last sync began: older commits are stable after its end. */
uint64_t sim_kv_synced_ns(const struct sim_kv *k);

#endif
