/*
 * kv_memory.h - the kv in memory, for tests: ordered, and able to crash.
 *
 * A commit is applied at once and acknowledged by a posted task. An undo list covers the
 * commits since the last sync, so that a power cut can take any number of the newest ones
 * away.
 */
#ifndef ROZO_TESTS_LIB_KV_MEMORY_H
#define ROZO_TESTS_LIB_KV_MEMORY_H

#include "common/env/env.h"
#include "common/env/kv.h"

struct kv_memory;

int kv_memory_open(struct env *env, struct kv_memory **out);
void kv_memory_close(struct kv_memory *m);
/** Returns the kv interface of m. */
struct kv *kv_memory_kv(struct kv_memory *m);

/** Returns the number of commits since the store was opened. */
uint64_t kv_memory_n_commits(const struct kv_memory *m);
/** Returns the number of commits that no sync covers yet. */
uint64_t kv_memory_n_unsynced(const struct kv_memory *m);
/** Returns the number of keys. */
size_t kv_memory_n_keys(const struct kv_memory *m);

/** Makes all later commits and syncs do nothing
 * and end with -EIO, as if the process were dead. */
void kv_memory_kill(struct kv_memory *m);
/** Ends kill: the process starts again and finds everything that was committed. */
void kv_memory_revive(struct kv_memory *m);
/** Ends kill after a power cut that lost the newest n_lost unsynced commits. */
void kv_memory_power_cut(struct kv_memory *m, uint64_t n_lost);
/** Sets the duration of a sync; the default is 0. */
void kv_memory_set_sync_ms(struct kv_memory *m, uint64_t ms);
/** Sets the number that free_bytes returns. */
void kv_memory_set_free(struct kv_memory *m, uint64_t free_bytes);

#endif
