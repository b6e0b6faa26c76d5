/*
 * small_file.h - replaces a small file atomically.
 */
#ifndef ROZO_COMMON_SYSTEM_SMALL_FILE_H
#define ROZO_COMMON_SYSTEM_SMALL_FILE_H

#include <stddef.h>

enum { SMALL_FILE_NAME_MAX = 64 };

/**
 * Replaces the file, or makes it: at any time the name has the whole old or the whole new
 * text. The new text is on stable storage at return. NAME.new is used on the way.
 *
 * @param name relative to dir_fd; shorter than SMALL_FILE_NAME_MAX - 4.
 * @return 0 or -errno.
 */
int small_file_replace(int dir_fd, const char *name, const char *text, size_t len);

#endif
