/*
 * mount_run.h - a mount from the session to the unmount.
 */
#ifndef ROZO_ROZOMOUNT_DAEMON_MOUNT_RUN_H
#define ROZO_ROZOMOUNT_DAEMON_MOUNT_RUN_H

#include "rozomount/op/mount.h"

/**
 * Opens the session, or takes it over. m->hold is set; *opt outlives the mount. On
 * success m->loops[0].uv exists, for signal handlers, and runs only in mount_run().
 */
int mount_open(struct mount *m, const struct options *opt, struct err *err);
/**
 * Mounts and starts every loop, after mount_open(). The kernel is served as soon as
 * mount_run() runs. If this or mount_open() fails, nothing is left behind; the caller may
 * free m.
 */
int mount_start(struct mount *m, struct err *err);
/**
 * Serves until the file system is unmounted or stopped, writes out all data and closes
 * the session. Returns 0, or -EIO if data of some file could not be stored (the log names
 * it).
 */
int mount_run(struct mount *m);
/** Runs fn on every loop, where each calls loop_is_done(). Then calls next, on loop 0. */
void mount_on_every_loop(struct mount *m, void (*fn)(struct env_mail *mail),
                         void (*next)(struct mount *m));
void loop_is_done(struct loop *loop);
/** Returns whether this process has taken the mount over from another one. */
bool mount_takes_over(const struct mount *m);
/** Unmounts because of a signal; lazily if the mount is in use. Loop 0's thread. */
void mount_unmount(struct mount *m);

/**
 * Finishes operations in progress, then ends the mount: the kernel has unmounted, or the
 * mount must stop. Any thread.
 */
void mount_stop(struct mount *m);

int loop_init(struct loop *loop, struct mount *m, unsigned index, struct err *err);
/** Starts to read requests from the device. */
int loop_start_reading(struct loop *loop, struct err *err);
void loop_stop_reading(struct loop *loop);
/** Takes back the memory of a request. */
void loop_return_buf(struct loop *loop, struct reqbuf *buf);
void loop_free_memory(struct loop *loop);

#endif
