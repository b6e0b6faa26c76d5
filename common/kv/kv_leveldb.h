/*
 * kv_leveldb.h - the kv on LevelDB. Shell code.
 *
 * A commit is one LevelDB write, made on the loop: it reaches the operating system before
 * kv_commit() returns, so it survives the end of this process. A sync is an fdatasync of
 * LevelDB's logs in a worker thread, shared by all waiting callers: unlike a synced write
 * of LevelDB itself it holds up no commit, and it covers logs that are no longer written
 * to.
 */
#ifndef ROZO_COMMON_KV_KV_LEVELDB_H
#define ROZO_COMMON_KV_KV_LEVELDB_H

#include <uv.h>

#include "common/base/err.h"
#include "common/env/env.h"
#include "common/env/kv.h"

struct kv_leveldb;

/**
 * Opens the store in a directory; with may_create makes one if there is none. Without it
 * the absence of a store is an error, for LevelDB would remove the rest of a damaged one.
 * A log with damage in its middle is refused: changes acknowledged after it would come
 * back without those acknowledged before. (A last record that is cut short was never
 * acknowledged as durable, and is left out.) One process at a time; another is refused.
 *
 * @param env   for posted tasks.
 * @param loop  of the same thread, for work of worker threads.
 * @param n_fds descriptors the store may have; at least FDS_KV_MIN.
 */
int kv_leveldb_open(struct env *env, uv_loop_t *loop, const char *dir, bool may_create,
                    unsigned n_fds, struct kv_leveldb **out, struct err *err);
/** Closes the store. No commit or sync may be under way. NULL is fine. */
void kv_leveldb_close(struct kv_leveldb *k);
struct kv *kv_leveldb_kv(struct kv_leveldb *k);

/**
 * Opens a view of the store as it is now: its kv_get() and kv_iter_open() show nothing
 * that is committed later; it takes no commits. What is replaced meanwhile keeps its disk
 * space until kv_leveldb_thaw(). One at a time. After LevelDB had to be opened again the
 * view is gone, and these calls return -ESTALE.
 *
 * @return 0, -EBUSY (there is one), -EMFILE or -ENOMEM.
 */
int kv_leveldb_freeze(struct kv_leveldb *k, struct kv **out);
/** Closes the view; none of its iterators is open. */
void kv_leveldb_thaw(struct kv_leveldb *k);
/** Returns about how many bytes the store has, without its newest changes. */
uint64_t kv_leveldb_bytes(struct kv_leveldb *k);

#endif
