/*
 * fsutil.h - small files and folders, with error messages.
 */
#ifndef ROZO_DEPLOY_CLI_FSUTIL_H
#define ROZO_DEPLOY_CLI_FSUTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "common/base/err.h"

/** Joins to "a/b" in out[PATH_MAX]. Returns 0 or -ENAMETOOLONG. */
int path_join(char *out, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/** Creates the folder and its parents; an existing one is fine. mode is for new ones. */
int folder_make(const char *path, mode_t mode, struct err *err);
/** Returns 1 if the folder is empty or missing, 0 if not empty, or -errno. */
int folder_is_empty(const char *path, struct err *err);
/**
 * Replaces the content of path atomically; it is on stable storage at return. A device or
 * pipe is written to instead, and stays.
 */
int file_replace(const char *path, mode_t mode, const void *data, size_t len_bytes,
                 struct err *err);
/**
 * Reads a small file as text, with a final zero byte.
 * @return its length; -EFBIG if it does not fit; -ENOENT without a message, other -errno
 * with one.
 */
ssize_t file_read_text(const char *path, char *out, size_t size, struct err *err);
/**
 * Finds the absolute path of something that need not exist or answer: its parent is
 * resolved; the last part is not touched, since it may be the mount point of a hung file
 * system.
 */
int path_absolute(const char *path, char *out, struct err *err);

#endif
