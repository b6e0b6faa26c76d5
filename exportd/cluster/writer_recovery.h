/*
 * writer_recovery.h - repair of files whose writer has gone.
 */
#ifndef ROZO_EXPORTD_CLUSTER_WRITER_RECOVERY_H
#define ROZO_EXPORTD_CLUSTER_WRITER_RECOVERY_H

#include "exportd/cluster/exportd_state.h"

struct check;
/** Have a storage look at it. What is no file with data is passed over. */
void abandoned_add(struct export *e, const struct inode *in);
/** Would it be remembered? */
bool abandoned_has_room(const struct exportd *x);
void abandoned_tick(struct exportd *x);
/** Cancel what is under way. */
void abandoned_stop(struct exportd *x);
void abandoned_free(struct exportd *x);

#endif
