/*
 * mount.h - a mount from the session to the unmount.
 */
#ifndef ROZO_MOUNT_H
#define ROZO_MOUNT_H

#include "rozomount/face.h"

/**
 * Open the session, mount, start every loop. The options outlive the mount. From success on the
 * kernel is served as soon as mount_run() runs. On failure nothing is left behind but memory:
 * the process is meant to end.
 */
int mount_start(struct mount *m, const struct options *opt, struct err *err);
/**
 * Serve until unmounted or told to stop; all data are written out and the session is closed.
 * 0, or -EIO when data of some file could not be stored: the log says of which.
 */
int mount_run(struct mount *m);
/** A signal told us to end: unmount, lazily when somebody is in there. Loop 0's thread. */
void mount_unmount(struct mount *m);

#endif
