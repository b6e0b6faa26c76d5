/*
 * kv_leveldb.h - the kv on LevelDB. Shell code.
 *
 * A commit is one LevelDB write, made on the loop: it reaches the operating system before
 * kv_commit() returns, so it survives the end of this process. A sync is an fdatasync of
 * LevelDB's logs in a worker thread, shared by all who wait: unlike a synced write of LevelDB's own
 * it holds up no commit, and it covers logs that are no longer written to.
 */
#ifndef ROZO_EXPORTD_KV_LEVELDB_H
#define ROZO_EXPORTD_KV_LEVELDB_H

#include <uv.h>

#include "common/env.h"
#include "common/err.h"
#include "exportd/core/kv.h"

struct kv_leveldb;

/**
 * Open or create the store in a directory. One process at a time; another is refused.
 * @param env  for what is posted. @param loop of the same thread, for what workers do.
 */
int kv_leveldb_open(struct env *env, uv_loop_t *loop, const char *dir,
                    struct kv_leveldb **out, struct err *err);
/** No commit or sync may be under way. NULL is fine. */
void kv_leveldb_close(struct kv_leveldb *k);
struct kv *kv_leveldb_kv(struct kv_leveldb *k);

#endif
