/*
 * mountpoint.h - what is mounted where, as the kernel lists it, and unmounting it.
 */
#ifndef ROZO_ROZOMOUNT_OPTIONS_MOUNTPOINT_H
#define ROZO_ROZOMOUNT_OPTIONS_MOUNTPOINT_H

#include <stdbool.h>
#include <stdio.h>

/* What is mounted on some path. */
struct mountpoint {
    unsigned id; /* of the mount, as in /proc/PID/fdinfo */
    unsigned dev_major, dev_minor;
    char type[64]; /* "fuse.rozomount" */
};

/** What lies on top at path (absolute, without symbolic links) in the list f. False: nothing. */
bool mountpoint_find(FILE *f, const char *path, struct mountpoint *out);
/** The same in this process's own list; also false when that cannot be read. */
bool mountpoint_find_now(const char *path, struct mountpoint *out);
/**
 * Absolute and without symbolic links, without asking what is mounted there (it may be dead).
 * Owned; NULL with errno.
 */
char *mountpoint_resolve(const char *path);
/** A rozo mount lies on top at path. */
bool mountpoint_is_ours(const char *path);
/**
 * A rozo mount that lies on top at path and whose process is gone is taken away, and no other: not one
 * that somebody mounts there meanwhile. Asks that mount, which may take its time when it lives. True: done.
 */
bool mountpoint_drop_dead(const char *path);
/** Is anything mounted on what is in `at`, also where that is mounted elsewhere? Only what this process sees. */
bool mountpoint_is_covered(FILE *f, const struct mountpoint *at);
/** The same now; true also when the list cannot be read. */
bool mountpoint_is_covered_now(const struct mountpoint *at);
/** A word of mount(8), such as "nosuid" or "suid", into flags of mount(2). False: it is no such word. */
bool mountpoint_flag(const char *word, unsigned long *flags);
/** umount2(2), or fusermount3 for those who are not root. 0 or -errno. */
int mountpoint_unmount(const char *path, bool lazy);

#endif
