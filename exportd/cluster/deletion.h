/*
 * deletion.h - removed files, until every storage has confirmed.
 */
#ifndef ROZO_EXPORTD_CLUSTER_DELETION_H
#define ROZO_EXPORTD_CLUSTER_DELETION_H

#include "exportd/cluster/exportd_state.h"

int deletion_load(struct exportd *x);
void deletion_tick(struct exportd *x);
/** A hook of fs. */
void export_deleted(void *arg, const struct inode *in);
/** This storage has something of a file that is gone. False: it is being told, or will be with the others. */
bool deletion_add(struct storage *s, const struct file_id *id);
/** Cancel what is under way. */
void deletion_free(struct exportd *x);

#endif
