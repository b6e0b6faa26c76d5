/*
 * quorum_store.h - the metadata store of a member of a quorum: opened, or, if it is
 * damaged, replaced by an empty one into which the member copies that of another member.
 *
 * The damaged store is never removed: DATA/kv becomes DATA/kv.damaged-N. Shell code.
 */
#ifndef ROZO_EXPORTD_DATADIR_QUORUM_STORE_H
#define ROZO_EXPORTD_DATADIR_QUORUM_STORE_H

#include "common/env/env_uv.h"
#include "common/kv/kv_leveldb.h"
#include "exportd/datadir/daemon_config.h"

/**
 * Opens DATA/kv. A store that is damaged, or was found damaged by the last run, is moved
 * aside first. n_fds: as of kv_leveldb_open(). Runs the loop of env. Returns 0, or -errno
 * with a text; -ENOENT: there is no store, so its disk may not be mounted.
 */
int quorum_store_open(struct env_uv *env, const char *data, unsigned n_fds,
                      struct kv_leveldb **out, struct err *err);
/**
 * Chooses the members that are asked for a copy if the store knows none. *members: those
 * of the store, which are kept in DATA/quorum/members then; if n is 0, they become those
 * that were kept, or, without any, those of the config. dir_fd: DATA/quorum.
 */
void quorum_store_sources(int dir_fd, const struct quorum_section *section,
                          struct raft_config *members);
/**
 * Notes on stable storage that the store is damaged: the next quorum_store_open() moves
 * it aside. dir_fd: DATA/quorum. Failures are logged. For a process that is about to end.
 */
void quorum_store_is_damaged(int dir_fd);

#endif
