/*
 * mountpoint.h - the kernel's list of mounts, and unmounting.
 */
#ifndef ROZO_ROZOMOUNT_OPTIONS_MOUNTPOINT_H
#define ROZO_ROZOMOUNT_OPTIONS_MOUNTPOINT_H

#include <stdbool.h>
#include <stdio.h>

/* One mount, as /proc/self/mountinfo lists it. */
struct mountpoint {
    unsigned id; /* mount ID, as in /proc/PID/fdinfo */
    unsigned dev_major, dev_minor;
    char type[64]; /* file system type, such as "fuse.rozomount" */
};

/**
 * Finds the topmost mount at path (absolute, no symbolic links) in the list f, a file in
 * the format of /proc/self/mountinfo. Returns false if there is none.
 */
bool mountpoint_find(FILE *f, const char *path, struct mountpoint *out);
/**
 * Finds the topmost mount at path in this process's own list. Returns false if there is
 * none or if the list cannot be read.
 */
bool mountpoint_find_now(const char *path, struct mountpoint *out);
/**
 * Returns path as an absolute path without symbolic links; the caller frees it. Does not
 * touch what is mounted at path, which may hang. Returns NULL with errno set on failure.
 */
char *mountpoint_resolve(const char *path);
/** Returns true if the topmost mount at path is a rozo mount. */
bool mountpoint_is_ours(const char *path);
/**
 * Unmounts the topmost mount at path if it is a rozo mount whose process has died. Never
 * unmounts another mount, even one made there meanwhile. Sends a request to that mount,
 * which may block while its process lives. Returns true if it was unmounted.
 */
bool mountpoint_drop_dead(const char *path);
/**
 * Returns true if anything is mounted on a directory of the mount `at`, under any path
 * where that mount is visible. Sees the mounts of this process's namespace only.
 */
bool mountpoint_is_covered(FILE *f, const struct mountpoint *at);
/**
 * Returns the result of mountpoint_is_covered() for this process's own list; true also
 * when the list cannot be read.
 */
bool mountpoint_is_covered_now(const struct mountpoint *at);
/**
 * Returns true if the kernel has ended the mount of this /dev/fuse: it was unmounted, or
 * aborted.
 */
bool mountpoint_is_severed(int device);
/**
 * Applies an option of mount(8), such as "nosuid" or "suid", to flags of mount(2).
 * Returns false if the option is unknown.
 */
bool mountpoint_flag(const char *word, unsigned long *flags);
/**
 * Unmounts path with umount2(2), or with fusermount3 if the caller is not root. Returns 0
 * or -errno.
 */
int mountpoint_unmount(const char *path, bool lazy);

#endif
