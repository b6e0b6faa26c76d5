/*
 * mounts.h - what is mounted where, and unmounting without getting stuck.
 */
#ifndef ROZO_DEPLOY_CLI_MOUNTS_H
#define ROZO_DEPLOY_CLI_MOUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "deploy/cli/patience.h"
#include "deploy/cli/progress.h"

/**
 * Is path (absolute, as path_absolute() gives it) a mount point in the text of a
 * /proc/PID/mountinfo? type[type_size] takes the file system type of the topmost mount there.
 */
bool mountinfo_find(const char *text, const char *path, char *type, size_t type_size);
/** The same for this machine as it is now. -errno when that cannot be read. 1 yes, 0 no. */
int mount_find(const char *path, char *type, size_t type_size, struct err *err);
/**
 * Unmount. Gives up when the patience is over: a hung file system can hold an unmount for ever.
 * @param lazy detach now, whoever still uses it.
 * @return 0, -EBUSY (somebody has files open there), -ETIMEDOUT, other -errno.
 */
int mount_remove(const char *path, bool lazy, struct patience *patience,
                 struct progress *progress, struct err *err);

#endif
