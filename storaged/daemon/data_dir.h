/*
 * data_dir.h - opens the data directory, locks it for this process, and reads its
 * identity. Shell code.
 */
#ifndef ROZO_STORAGED_DAEMON_DATA_DIR_H
#define ROZO_STORAGED_DAEMON_DATA_DIR_H

#include <stddef.h>

#include "common/base/err.h"
#include "storaged/format/generation.h"
#include "storaged/format/identity.h"

/**
 * Opens the directory, creates it if only its last part is missing, locks it, and reads
 * its identity; an empty one gets a new identity. Refuses a directory that is not a
 * storage's, is in use, or has an unknown format.
 * @return a file descriptor of the directory, to be closed (which unlocks it); or -errno.
 */
int data_dir_open(const char *path, struct identity *out, struct err *err);

/**
 * Reads DATA/storage.generations; all zero if there is none. Returns 0, or -errno with a
 * message in err.
 */
int data_dir_load_generations(int dir_fd, struct generations_file *out, struct err *err);
/** Replaces it; it is on stable storage at return. Returns 0 or -errno. */
int data_dir_save_generations(int dir_fd, const char *text, size_t len);

#endif
