/*
 * mounts.h - finds mounts, and unmounts without hanging.
 */
#ifndef ROZO_DEPLOY_CLI_MOUNTS_H
#define ROZO_DEPLOY_CLI_MOUNTS_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/err.h"
#include "deploy/cli/deadline.h"
#include "deploy/cli/progress.h"

#define ROZO_MOUNT_TYPE "fuse.rozomount"

/* A line of mountinfo. */
struct mount_entry {
    char path[PATH_MAX];
    char options[256]; /* example: "rw,noatime" */
    char type[64];
    char source[PATH_MAX];
};
/**
 * Takes the next mount from the text of a /proc/PID/mountinfo; lines that are no mounts
 * are skipped. Returns false at the end. A later mount covers an earlier one of its path.
 */
bool mountinfo_next(const char **text, struct mount_entry *out);
/**
 * Counts the mounts of an export of rozo in the text of a /proc/PID/mountinfo that no
 * later mount covers. path (absolute): only the one there; "": all. *last: one of them.
 */
unsigned mounts_count(const char *text, const char *export_name, const char *path,
                      struct mount_entry *last);
/** Returns the mounts of this machine as text, to be freed; NULL with err set. */
char *mountinfo_read(struct err *err);
/**
 * Returns whether path (absolute, as from path_absolute()) is a mount point in the text
 * of a /proc/PID/mountinfo. type[type_size] takes the file system type of the topmost
 * mount there.
 */
bool mountinfo_find(const char *text, const char *path, char *type, size_t type_size);
/**
 * Looks path up in the current mounts of this machine. Returns 1 for a mount point, 0 for
 * none, -errno if they cannot be read.
 */
int mount_find(const char *path, char *type, size_t type_size, struct err *err);
/**
 * Unmounts. Ends with -ETIMEDOUT when the time is over, as a hung file system can block
 * an unmount for ever.
 * @param lazy detaches now, even if it is in use.
 * @return 0, -EBUSY (open files there), -ETIMEDOUT, other -errno.
 */
int mount_remove(const char *path, bool lazy, struct deadline *deadline,
                 struct progress *progress, struct err *err);

#endif
