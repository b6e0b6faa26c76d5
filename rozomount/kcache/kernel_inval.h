/*
 * kernel_inval.h - makes the kernel drop pages, attributes and names that others have
 * changed.
 *
 * A thread of its own sends the notifications, one after the other in the order of their
 * submission: the kernel may wait for a request that we have not answered yet.
 */
#ifndef ROZO_ROZOMOUNT_KCACHE_KERNEL_INVAL_H
#define ROZO_ROZOMOUNT_KCACHE_KERNEL_INVAL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/env/env_uv.h"

struct fuse_session;
struct kernel_inval;

enum {
    INVALIDATOR_MAX = 65536, /* inodes waiting; any more are dropped with a warning */
};

/* A waiter for the jobs that were added before it. Embedded in its owner. */
struct kernel_inval_wait {
    struct kernel_inval_wait *next; /* next in the list of the invalidator */
    uint64_t after;
    struct env_uv *env;   /* loop that gets the mail */
    struct env_mail mail; /* fn set by the caller */
};

/**
 * Starts the thread. se: must outlive it. expires: the kernel can let a name expire,
 * which keeps mounts below it; if not, names are dropped. Returns NULL if no thread could
 * be created.
 */
struct kernel_inval *kernel_inval_start(struct fuse_session *se, bool expires);
/** Posts wait->mail when all jobs that were added before are done. Any thread. */
void kernel_inval_wait(struct kernel_inval *inv, struct kernel_inval_wait *wait);
/**
 * Queues the invalidation of the attributes and all pages of an inode. It waits for READs
 * of the inode. Any thread, as for the calls below.
 */
void kernel_inval_add(struct kernel_inval *inv, uint64_t ino);
/**
 * Queues the invalidation of a name in a directory; copies the name, which need not
 * exist. The invalidation waits until LOOKUPs, READDIRs and changes of names in that
 * directory are answered. Names are never dropped from a full queue.
 */
void kernel_inval_add_name(struct kernel_inval *inv, uint64_t dir, const char *name);
/**
 * Invalidates a name now, in the calling thread, which may block. expire: keep the dentry
 * if a process uses the directory or something is mounted below it.
 */
void kernel_drop_name(struct fuse_session *se, uint64_t dir, const char *name,
                      bool expire);
/**
 * Stops the thread: waits up to 2 s for the call under way and drops the rest. inv may be
 * NULL.
 */
void kernel_inval_stop(struct kernel_inval *inv);

#endif
