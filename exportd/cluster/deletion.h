/*
 * deletion.h - removed files, until each storage has confirmed.
 */
#ifndef ROZO_EXPORTD_CLUSTER_DELETION_H
#define ROZO_EXPORTD_CLUSTER_DELETION_H

#include "exportd/cluster/exportd_state.h"

int deletion_load(struct exportd *x);
void deletion_tick(struct exportd *x);
/** Hook of the name space: notes a removed file. */
void export_deleted(void *arg, const struct inode *in);
/**
 * Notes that a storage has a projection file of a removed inode. Returns false if its
 * removal is already under way or queued.
 */
bool deletion_add(struct cluster_storage *s, const struct file_id *id);
/** Cancels what is under way. */
void deletion_free(struct exportd *x);

#endif
