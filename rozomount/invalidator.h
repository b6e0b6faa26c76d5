/*
 * invalidator.h - tell the kernel to drop the pages of files others have written.
 *
 * In a thread of its own: the kernel may have to wait for a read of ours before it can.
 */
#ifndef ROZO_INVALIDATOR_H
#define ROZO_INVALIDATOR_H

#include <stdint.h>

#include "common/env_uv.h"

struct fuse_session;
struct invalidator;

enum {
    INVALIDATOR_MAX = 65536
}; /* inodes waiting; more are dropped, with a word in the log */

/** se: outlives it. NULL: no thread to be had. */
struct invalidator *invalidator_start(struct fuse_session *se);
/* Someone who waits until what was added before is done. Embedded. */
struct invalidator_wait {
    struct invalidator_wait *next; /* the invalidator's */
    uint64_t after;
    struct env_uv *env;   /* where the mail goes */
    struct env_mail mail; /* with fn set */
};

/** Post wait->mail when all is done that was added before. Any thread. */
void invalidator_wait(struct invalidator *inv, struct invalidator_wait *wait);
/** Soon. Any thread. */
void invalidator_add(struct invalidator *inv, uint64_t ino);
/** Waits a little for the call under way, forgets the rest. */
void invalidator_stop(struct invalidator *inv);

#endif
