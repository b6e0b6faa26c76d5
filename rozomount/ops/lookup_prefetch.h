/*
 * lookup_prefetch.h - names of a directory are looked up ahead.
 */
#ifndef ROZO_ROZOMOUNT_OPS_LOOKUP_PREFETCH_H
#define ROZO_ROZOMOUNT_OPS_LOOKUP_PREFETCH_H

#include "rozomount/op/mount.h"

/** Of a LOOKUP: is it known, from a look ahead? Then it is answered, and to be finished. */
bool lookup_prefetch_answers(struct fuse_op *op);
/** Shall more than this name be asked for? It is being; then fs_lookup_again(). */
bool lookup_prefetch_begin(struct fuse_op *op);
void fs_lookup_again(struct fuse_op *op);

#endif
