/*
 * mount.h - a mount from the session to the unmount.
 */
#ifndef ROZO_MOUNT_H
#define ROZO_MOUNT_H

#include "rozomount/face.h"

/**
 * Open the session. The options outlive the mount. m->loops[0].uv is there from success on, and
 * does not run before mount_run(): for signals.
 */
int mount_open(struct mount *m, const struct options *opt, struct err *err);
/**
 * After mount_open(): mount, start every loop. From success on the kernel is served as soon as
 * mount_run() runs. When this or mount_open() failed, nothing is left behind; m may be freed.
 */
int mount_start(struct mount *m, struct err *err);
/**
 * Serve until unmounted or told to stop; all data are written out and the session is closed.
 * 0, or -EIO when data of some file could not be stored: the log says of which.
 */
int mount_run(struct mount *m);
/** A signal told us to end: unmount, lazily when somebody is in there. Loop 0's thread. */
void mount_unmount(struct mount *m);

#endif
