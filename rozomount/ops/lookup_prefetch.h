/*
 * lookup_prefetch.h - prefetch of names of a directory.
 */
#ifndef ROZO_ROZOMOUNT_OPS_LOOKUP_PREFETCH_H
#define ROZO_ROZOMOUNT_OPS_LOOKUP_PREFETCH_H

#include "rozomount/op/mount.h"

/**
 * Answers a LOOKUP from names that were prefetched. Returns true if it did; the caller
 * then finishes op.
 */
bool lookup_prefetch_answers(struct fuse_op *op);
/**
 * Starts to prefetch following names of the directory, too. Returns true if it did: then
 * fs_lookup_again() follows.
 */
bool lookup_prefetch_begin(struct fuse_op *op);
void fs_lookup_again(struct fuse_op *op);

#endif
