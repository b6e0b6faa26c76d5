/* fake_notices.h - libfuse's notices to the kernel, each as a line of text. */
#ifndef ROZO_TESTS_FAKE_NOTICES_H
#define ROZO_TESTS_FAKE_NOTICES_H

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

/** Defined by the test. Receives a notice about this inode or directory; returns the
 * kernel's answer. */
int notice(fuse_ino_t ino, const char *text);

#endif
