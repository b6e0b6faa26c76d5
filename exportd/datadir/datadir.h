/*
 * datadir.h - exportd's data directory: its format and its lock.
 *
 * DATA/format says "rozo exportd format 2", or 3 if it is that of a member of a quorum;
 * DATA/lock is locked while a daemon runs; DATA/kv/ is the metadata store; DATA/quorum/
 * of a member has its log and identity. Shell code.
 */
#ifndef ROZO_EXPORTD_DATADIR_DATADIR_H
#define ROZO_EXPORTD_DATADIR_DATADIR_H

#include <stdbool.h>

#include "common/env/env_uv.h"
#include "common/kv/kv_leveldb.h"

/*
 * Current formats. In format 2 inodes have wider times and allocated blocks. Opening
 * converts a directory of format 1. Format 3 is format 2 of a member of a quorum: an
 * exportd that does not know quorums must not change it.
 */
enum { DATADIR_FORMAT = 2, DATADIR_MEMBER_FORMAT = 3 };

/* The store of a dump that is being loaded. */
#define DATADIR_LOAD_NAME "kv.load"

/**
 * Opens the data directory: makes it if it is missing, checks its format, locks it. A
 * directory with other contents is refused. An older format is replaced by the current
 * one, which older builds refuse.
 *
 * @param is_member it is that of a member of a quorum; one without is refused, and the
 *                other way round.
 * @param lock_fd out: must stay open as long as the directory is used.
 * @param is_new  out: there is no format yet. Make the store, then call datadir_begin(),
 *                so that a directory with a format has a store, and no store is ever made
 *                there again.
 */
int datadir_open(const char *path, bool is_member, int *lock_fd, bool *is_new,
                 struct err *err);
/**
 * Returns true if the directory is that of an exportd without a quorum. False, too, if it
 * has no format or cannot be read: datadir_open() says why.
 */
bool datadir_is_alone(const char *path);
/**
 * Opens a data directory into which a dump is loaded: makes it if it is missing, locks
 * it. It must be empty, but for what an interrupted load has left: DATA/kv.load, which
 * becomes DATA/kv when it is whole. Until then no exportd starts here.
 */
int datadir_open_empty(const char *path, int *lock_fd, struct err *err);
/**
 * Opens the store DATA/NAME. may_create: makes it if it is missing. n_fds: as of
 * kv_leveldb_open(). Returns 0, or -errno with a text.
 */
int datadir_store_open(struct env_uv *env, const char *path, const char *name,
                       bool may_create, unsigned n_fds, struct kv_leveldb **out,
                       struct err *err);
/** Writes the format, after the store was made, or has become that of a member. */
int datadir_begin(const char *path, bool is_member, struct err *err);

#endif
