/*
 * datadir.h - exportd's data directory: whose it is, which format, and that we are alone in it.
 *
 * DATA/format says "rozo exportd format 2"; DATA/lock is locked while a daemon runs; DATA/kv/ is
 * the metadata store. Shell code.
 */
#ifndef ROZO_EXPORTD_DAEMON_DATADIR_H
#define ROZO_EXPORTD_DAEMON_DATADIR_H

#include <stdbool.h>

#include "common/base/err.h"

/* 2: inodes have wider times and tell what is allocated. One of format 1 becomes one of 2 when it is opened. */
enum { DATADIR_FORMAT = 2 };

/**
 * Make the directory if it is not there, check its format, lock it. A directory that holds
 * something else is refused. An older format becomes ours: older builds refuse it from then on.
 * @param lock_fd out: keep it open as long as the directory is used.
 * @param is_new  out: it has no format yet. Make the store, then datadir_begin(): so a directory
 *                with a format has a store, and one without it is never made there again.
 */
int datadir_open(const char *path, int *lock_fd, bool *is_new, struct err *err);
/** The store is there: write the format. */
int datadir_begin(const char *path, struct err *err);

#endif
