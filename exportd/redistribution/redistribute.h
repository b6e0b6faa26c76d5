/*
 * redistribute.h - add candidates to files that have too few.
 */
#ifndef ROZO_EXPORTD_REDISTRIBUTION_REDISTRIBUTE_H
#define ROZO_EXPORTD_REDISTRIBUTION_REDISTRIBUTE_H

#include "exportd/cluster/exportd_state.h"

/**
 * Loads the records, and holds files closed whose change has begun. Called before any
 * request. Returns 0, -EIO or -ENOMEM.
 */
int redistribute_load(struct exportd *x);
/** Starts counting and searching again, after the start or a change of the storages. */
void redistribute_look(struct exportd *x);
/**
 * A storage has a later distribution of this file than the inode: our data are older
 * than the storages', after a restore from a backup. Looks for it at the storages, and
 * takes it.
 */
void redistribute_adopt(struct export *e, const struct inode *in);
void redistribute_tick(struct exportd *x);
/** Cancels what is under way. */
void redistribute_stop(struct exportd *x);
void redistribute_free(struct exportd *x);

#endif
