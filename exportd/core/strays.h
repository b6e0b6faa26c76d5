/*
 * strays.h - projections that storages hold of inodes that are gone.
 */
#ifndef ROZO_EXPORTD_STRAYS_H
#define ROZO_EXPORTD_STRAYS_H

#include "exportd/core/state.h"

/** We have started. */
void strays_begin(struct exportd *x);
void strays_tick(struct exportd *x);
/** Cancel what is under way. */
void strays_stop(struct exportd *x);

#endif
