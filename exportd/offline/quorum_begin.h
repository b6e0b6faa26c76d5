/*
 * quorum_begin.h - makes the data directory of a first member of a new quorum.
 */
#ifndef ROZO_EXPORTD_OFFLINE_QUORUM_BEGIN_H
#define ROZO_EXPORTD_OFFLINE_QUORUM_BEGIN_H

#include "exportd/datadir/daemon_config.h"

/**
 * Makes the data directory of this first member, or finds it as it would make it. All of
 * them are made before the first one starts; it is refused while another member runs,
 * since a member that lost its disk must not come back as one that never voted.
 * @param birth 32 hexadecimal digits, hyphens are ignored: random, of this quorum alone.
 */
int quorum_begin(const struct exportd_settings *c, const char *birth, struct err *err);

#endif
