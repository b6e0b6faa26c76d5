/*
 * writer_recovery.h - repair of files whose writer has gone.
 */
#ifndef ROZO_EXPORTD_CLUSTER_WRITER_RECOVERY_H
#define ROZO_EXPORTD_CLUSTER_WRITER_RECOVERY_H

#include "exportd/cluster/exportd_state.h"

struct check;
/** Have a storage look at it. What is no file with data is passed over. */
void writer_recovery_add(struct export *e, const struct inode *in);
/** Would it be remembered? */
bool writer_recovery_has_room(const struct exportd *x);
void writer_recovery_tick(struct exportd *x);
/** Cancel what is under way. */
void writer_recovery_stop(struct exportd *x);
void writer_recovery_free(struct exportd *x);

#endif
