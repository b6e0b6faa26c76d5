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
void redistribute_tick(struct exportd *x);
/** Cancels what is under way. */
void redistribute_stop(struct exportd *x);
void redistribute_free(struct exportd *x);

#endif
