/*
 * meta_load.h - makes a data directory from a dump (exportd --load). Shell code.
 */
#ifndef ROZO_EXPORTD_OFFLINE_META_LOAD_H
#define ROZO_EXPORTD_OFFLINE_META_LOAD_H

#include "common/base/err.h"
#include "exportd/datadir/daemon_config.h"

/**
 * Makes the empty data directory of the config that of the metadata in the dump at this
 * path, with the number of starts raised. With a section `quorum` that lists members, of
 * a quorum of this member alone. The whole dump is checked before anything is made. After
 * a crash the directory is loaded, or has no format: then it is loaded again, and the
 * next try says what must be removed before. Returns 0, or -errno with a text.
 */
int meta_load(const struct exportd_settings *c, const char *path, struct err *err);

#endif
