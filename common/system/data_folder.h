/*
 * data_folder.h - makes the data directory of a daemon.
 */
#ifndef ROZO_COMMON_SYSTEM_DATA_FOLDER_H
#define ROZO_COMMON_SYSTEM_DATA_FOLDER_H

#include "common/base/err.h"

/**
 * Makes the directory; an existing one is fine. Its parent must be there: without it the
 * disk is perhaps not mounted. Returns 0 or -errno.
 */
int data_folder_make(const char *path, struct err *err);

#endif
