/*
 * placement.h - choice of the storages of a file.
 */
#ifndef ROZO_EXPORTD_CLUSTER_PLACEMENT_H
#define ROZO_EXPORTD_CLUSTER_PLACEMENT_H

#include "exportd/cluster/exportd_state.h"

/** Hook of the name space: chooses the distribution of a new file of this export. */
int export_place(void *arg, struct inode *in);
/** Returns true if a storage of the volume is nearly full. */
bool export_is_tight(const struct export *e);
/**
 * Returns true if the volume has storages that this file could have in addition to its
 * own that are not lost.
 */
bool export_has_more_for(const struct export *e, const struct inode *in);
/**
 * Computes the distribution that a file should have: lost storages are replaced at their
 * places, and others are appended up to the number of the layout. *n_new: number of new
 * storages; 0: no change possible now.
 */
int export_complete(struct export *e, const struct inode *in, struct inode *out,
                    unsigned *n_new);

#endif
