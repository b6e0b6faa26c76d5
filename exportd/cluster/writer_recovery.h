/*
 * writer_recovery.h - repair of files whose writer is gone.
 */
#ifndef ROZO_EXPORTD_CLUSTER_WRITER_RECOVERY_H
#define ROZO_EXPORTD_CLUSTER_WRITER_RECOVERY_H

#include <stdbool.h>

#include "common/base/list.h"

struct check;
struct export;
struct exportd;
struct inode;

/* Queue of the files that storages shall check. */
struct writer_recovery {
    struct list_node queue; /* longest waiting first */
    struct check *by_id;
    unsigned n, n_out; /* all; those that a storage has been asked to check */
};

void writer_recovery_begin(struct exportd *x);
/** Queues a file for a check by a storage. Ignores inodes that are no files with data. */
void writer_recovery_add(struct export *e, const struct inode *in);
/** Returns true if one more check can be queued. */
bool writer_recovery_has_room(const struct exportd *x);
void writer_recovery_tick(struct exportd *x);
/** Cancels what is under way. */
void writer_recovery_stop(struct exportd *x);
void writer_recovery_free(struct exportd *x);

#endif
