/*
 * mount_run.h - a mount from the session to the unmount.
 */
#ifndef ROZO_ROZOMOUNT_DAEMON_MOUNT_RUN_H
#define ROZO_ROZOMOUNT_DAEMON_MOUNT_RUN_H

#include "rozomount/op/mount.h"

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

/** The kernel's side is gone, or we are told to go: finish what is under way, then end. Any thread. */
void mount_stop(struct mount *m);

int loop_init(struct loop *loop, struct mount *m, unsigned index, struct err *err);
/** Read requests from the device from now on. */
int loop_start_reading(struct loop *loop, struct err *err);
void loop_stop_reading(struct loop *loop);
/** Takes back the memory of a request. */
void loop_return_buf(struct loop *loop, struct reqbuf *buf);
void loop_free_memory(struct loop *loop);

#endif
