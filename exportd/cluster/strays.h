/*
 * strays.h - projections that storages hold of inodes that are gone.
 */
#ifndef ROZO_EXPORTD_CLUSTER_STRAYS_H
#define ROZO_EXPORTD_CLUSTER_STRAYS_H

#include "exportd/cluster/exportd_state.h"

/** We have started. */
void strays_begin(struct exportd *x);
void strays_tick(struct exportd *x);
/** Cancel what is under way. */
void strays_stop(struct exportd *x);

#endif
