/*
 * mountpoint.h - what is mounted where, as the kernel lists it, and unmounting it.
 */
#ifndef ROZO_MOUNTPOINT_H
#define ROZO_MOUNTPOINT_H

#include <stdbool.h>
#include <stdio.h>

/* What is mounted on some path. */
struct mountpoint {
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
/** umount2(2), or fusermount3 for those who are not root. 0 or -errno. */
int mountpoint_unmount(const char *path, bool lazy);

#endif
