/*
 * quorum_alone.h - makes a member a quorum of itself alone (exportd --force-alone). Shell
 * code.
 */
#ifndef ROZO_EXPORTD_OFFLINE_QUORUM_ALONE_H
#define ROZO_EXPORTD_OFFLINE_QUORUM_ALONE_H

#include <stdbool.h>

#include "common/base/err.h"
#include "exportd/datadir/daemon_config.h"

/**
 * Makes the member of this config the only one of its quorum, with all that its store and
 * its log have. Members of the list before have no part in it any more. Refused while one
 * of them answers.
 *
 * A crash at any time leaves a member that takes part in nothing until this is repeated,
 * or one that is alone.
 *
 * @param yes false: asks on the terminal first.
 * @return 0; -ECANCELED: the operator did not want it; or -errno with a text.
 */
int quorum_alone(const struct exportd_settings *c, bool yes, struct err *err);

#endif
