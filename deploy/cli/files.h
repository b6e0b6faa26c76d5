/*
 * files.h - small files and folders, with words when something goes wrong.
 */
#ifndef ROZO_DEPLOY_CLI_FILES_H
#define ROZO_DEPLOY_CLI_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "common/base/err.h"

/** Join to "a/b" in out[PATH_MAX]. 0 or -ENAMETOOLONG. */
int path_join(char *out, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/** Make the folder and its parents; fine when it is there. mode is for the ones made. */
int folder_make(const char *path, mode_t mode, struct err *err);
/** 1 empty or not there, 0 not empty, -errno. */
int folder_is_empty(const char *path, struct err *err);
/** Replace path by these bytes, all or nothing, on stable storage at return. A device or pipe is written to instead, and stays. */
int file_replace(const char *path, mode_t mode, const void *data, size_t len_bytes,
                 struct err *err);
/**
 * Read a small file as text, terminated.
 * @return its length; -EFBIG when it does not fit; -ENOENT without words, other -errno with.
 */
ssize_t file_read_text(const char *path, char *out, size_t size, struct err *err);
/**
 * The absolute path of something that need not exist, nor answer: its parent is resolved, the
 * last part is not looked at (it may be the mount point of a hung file system).
 */
int path_absolute(const char *path, char *out, struct err *err);

#endif
