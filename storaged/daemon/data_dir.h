/*
 * data_dir.h - the data directory: whose it is, that it is ours alone. Shell code.
 */
#ifndef ROZO_STORAGED_DAEMON_DATA_DIR_H
#define ROZO_STORAGED_DAEMON_DATA_DIR_H

#include <stddef.h>

#include "common/base/err.h"
#include "storaged/format/generation.h"
#include "storaged/format/identity.h"

/**
 * Open it, make it if only its last part is missing, lock it, read who it is; an empty one gets
 * an identity. Refuses what is not a storage's, is of a format we do not know, or is in use.
 * @return a file descriptor of the directory, to be closed (which unlocks it); or -errno.
 */
int data_dir_open(const char *path, struct identity *out, struct err *err);

/** Replace the identity file; on stable storage at return. 0 or -errno. */
int data_dir_save_identity(int dir_fd, const char *text, size_t len);

/** Read DATA/storage.generations; all zero when there is none. 0 or -errno with words. */
int data_dir_load_generations(int dir_fd, struct generations_file *out, struct err *err);
/** Replace it; on stable storage at return. 0 or -errno. */
int data_dir_save_generations(int dir_fd, const char *text, size_t len);

#endif
