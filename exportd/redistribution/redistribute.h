/*
 * redistribute.h - files with too few candidates get the ones that they lack.
 */
#ifndef ROZO_EXPORTD_REDISTRIBUTION_REDISTRIBUTE_H
#define ROZO_EXPORTD_REDISTRIBUTION_REDISTRIBUTE_H

#include "exportd/cluster/exportd_state.h"

/** Holds files closed whose change has begun. Before any request. 0, -EIO, -ENOMEM. */
int redistribute_load(struct exportd *x);
/** The set of storages has changed, or we have started: count and search anew. */
void redistribute_look(struct exportd *x);
/**
 * A storage has a later distribution of this file than the inode: our data are older than the
 * storages', after a restore from a backup. Looks for it at the storages, and takes it.
 */
void redistribute_adopt(struct export *e, const struct inode *in);
void redistribute_tick(struct exportd *x);
/** Cancel what is under way. */
void redistribute_stop(struct exportd *x);
void redistribute_free(struct exportd *x);

#endif
