/*
 * fake_notices.h - libfuse's notices to the kernel, as a line of text each.
 */
#ifndef ROZO_TESTS_FAKE_NOTICES_H
#define ROZO_TESTS_FAKE_NOTICES_H

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

/** The test's: what the kernel is told, of this inode or directory, and the answer. */
int notice(fuse_ino_t ino, const char *text);

#endif
