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
 * The distribution that a file should have next: lost storages are replaced at their
 * own places. If no home is lost, others are appended until it has as many as the
 * layout wants. *n_new: how many are new; 0: none now.
 */
int export_complete(struct export *e, const struct inode *in, struct inode *out,
                    unsigned *n_new);

#endif
