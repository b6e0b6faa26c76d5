/*
 * fuse_access.h - whether this process may mount FUSE file systems.
 */
#ifndef ROZO_ROZOMOUNT_DAEMON_FUSE_ACCESS_H
#define ROZO_ROZOMOUNT_DAEMON_FUSE_ACCESS_H

#include "common/base/err.h"

/**
 * Checks /dev/fuse and the capability that mount(2) needs. Returns 0, or -errno with a
 * message in err that says what is missing and how a container gets it.
 */
int fuse_access_check(struct err *err);

#endif
