/*
 * writer_recovery.h - repair of files whose writer is gone.
 */
#ifndef ROZO_EXPORTD_CLUSTER_WRITER_RECOVERY_H
#define ROZO_EXPORTD_CLUSTER_WRITER_RECOVERY_H

#include "exportd/cluster/exportd_state.h"

struct check;
/** Queues a file for a check by a storage. Ignores inodes that are no files with data. */
void writer_recovery_add(struct export *e, const struct inode *in);
/** Returns true if one more check can be queued. */
bool writer_recovery_has_room(const struct exportd *x);
void writer_recovery_tick(struct exportd *x);
/** Cancels what is under way. */
void writer_recovery_stop(struct exportd *x);
void writer_recovery_free(struct exportd *x);

#endif
