/*
 * lookup_prefetch.h - prefetch of names of a directory.
 */
#ifndef ROZO_ROZOMOUNT_OPS_LOOKUP_PREFETCH_H
#define ROZO_ROZOMOUNT_OPS_LOOKUP_PREFETCH_H

#include "rozomount/ops/fuse_ops.h"

/**
 * Answers a LOOKUP from names that were prefetched. Returns true if it did; the caller
 * then finishes op.
 */
bool lookup_prefetch_answers(struct fuse_op *op);
/**
 * Starts to prefetch following names of the directory, too. Returns true if it did: then
 * lookup_prefetch_answered() is the next step.
 */
bool lookup_prefetch_begin(struct lookup_op *l);
/** A step: keeps the names that came, so that the LOOKUP can be answered from them. */
enum step_end lookup_prefetch_answered(struct fuse_op *op);

#endif
