/*
 * kv_memory.h - the kv in memory, for tests: ordered, and able to crash.
 *
 * A commit is applied at once and acknowledged by a posted task. What was committed since the
 * last sync is remembered backwards, so that a power cut can take any tail of it away.
 */
#ifndef ROZO_TESTS_LIB_KV_MEMORY_H
#define ROZO_TESTS_LIB_KV_MEMORY_H

#include "common/env/env.h"
#include "common/env/kv.h"

struct kv_memory;

int kv_memory_open(struct env *env, struct kv_memory **out);
void kv_memory_close(struct kv_memory *m);
/** The kv in it, for those who use it as one. */
struct kv *kv_memory_kv(struct kv_memory *m);

/** Commits since it was opened, and how many of them no sync covers yet. */
uint64_t kv_memory_n_commits(const struct kv_memory *m);
uint64_t kv_memory_n_unsynced(const struct kv_memory *m);
size_t kv_memory_n_keys(const struct kv_memory *m);

/** From now on commits and syncs do nothing and end with -EIO: the process is as good as dead. */
void kv_memory_kill(struct kv_memory *m);
/** Alive again, with everything that was committed: the process was killed and started again. */
void kv_memory_revive(struct kv_memory *m);
/** The same after a power cut that took the newest n_lost unsynced commits with it. */
void kv_memory_power_cut(struct kv_memory *m, uint64_t n_lost);
/** How long a sync takes from now on. At first it takes no time. */
void kv_memory_set_sync_ms(struct kv_memory *m, uint64_t ms);
/** What free_bytes says from now on. */
void kv_memory_set_free(struct kv_memory *m, uint64_t free_bytes);

#endif
