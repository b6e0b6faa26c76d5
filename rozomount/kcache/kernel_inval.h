/*
 * kernel_inval.h - tell the kernel to drop what it keeps: pages, attributes and names that others have changed.
 *
 * In a thread of its own, one after the other in the order in which they were added: the kernel may have to wait for a
 * request that we have not answered before it can.
 */
#ifndef ROZO_ROZOMOUNT_KCACHE_KERNEL_INVAL_H
#define ROZO_ROZOMOUNT_KCACHE_KERNEL_INVAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/env/env_uv.h"

struct fuse_session;
struct kernel_inval;

enum {
    INVALIDATOR_MAX = 65536
}; /* whole inodes waiting; more are dropped, with a word in the log */

/* Someone who waits until what was added before is done. Embedded. */
struct kernel_inval_wait {
    struct kernel_inval_wait *next; /* the invalidator's */
    uint64_t after;
    struct env_uv *env;   /* where the mail goes */
    struct env_mail mail; /* with fn set */
};

/**
 * se: outlives it. expires: the kernel can let a name expire, which leaves in place what is mounted below; else names are
 * dropped. NULL: no thread to be had.
 */
struct kernel_inval *kernel_inval_start(struct fuse_session *se, bool expires);
/** Post wait->mail when all is done that was added before. Any thread. */
void kernel_inval_wait(struct kernel_inval *inv, struct kernel_inval_wait *wait);
/** Attributes and all pages of an inode, soon. Waits for READs of it. Any thread, as with those that follow. */
void kernel_inval_add(struct kernel_inval *inv, uint64_t ino);
/**
 * A name in a directory, which need not be there; it is copied. Waits until LOOKUPs, READDIRs and changes of names in that
 * directory are answered. However many wait, none is dropped.
 */
void kernel_inval_add_name(struct kernel_inval *inv, uint64_t dir, const char *name);
/** At once, in this thread, which may have to wait. expire: where somebody is in a directory, and what is mounted below, stays. */
void kernel_drop_name(struct fuse_session *se, uint64_t dir, const char *name,
                      bool expire);
/** Waits a little for the call under way, forgets the rest. NULL is fine. */
void kernel_inval_stop(struct kernel_inval *inv);

#endif
