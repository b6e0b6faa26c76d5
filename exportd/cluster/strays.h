/*
 * strays.h - strays: projection files whose inode is gone.
 */
#ifndef ROZO_EXPORTD_CLUSTER_STRAYS_H
#define ROZO_EXPORTD_CLUSTER_STRAYS_H

#include "exportd/cluster/exportd_state.h"

/** Begins the first pause, at the start of exportd. */
void strays_begin(struct exportd *x);
void strays_tick(struct exportd *x);
/** Cancels what is under way. */
void strays_stop(struct exportd *x);

#endif
