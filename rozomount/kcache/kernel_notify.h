/*
 * kernel_notify.h - makes the kernel drop what it caches under a recalled token, and
 * reports when it has.
 *
 * Runs in a pool of threads, as many as wait for the kernel at a time. One notification
 * may wait for a page or a directory locked by an operation of ours, and that operation
 * for another notification.
 */
#ifndef ROZO_ROZOMOUNT_KCACHE_KERNEL_NOTIFY_H
#define ROZO_ROZOMOUNT_KCACHE_KERNEL_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

#include "common/env/env_uv.h"
#include "rozomount/tokens/token_cache.h"

struct fuse_session;
struct mountpoint;
struct kernel_notify;

/* A job: the names of a directory, the attributes of an inode and its pages in a
 * range, and the attributes of other inodes. The kernel must drop these. */
struct notify_job {
    struct notify_job *next; /* next in the queue */
    uint64_t ino;
    struct kernel_name *names; /* owned; freed when the job ends */
    /* bytes; to SPAN_END: to the end of the file; from == to: no pages */
    uint64_t from, to;
    const uint64_t *more; /* borrowed: inodes whose attributes alone are dropped */
    size_t n_more;
    struct env_uv *env;   /* loop that gets the mail */
    struct env_mail mail; /* fn set by the caller */
};

/**
 * Starts the first thread. se and at must outlive it. at: the mount; NULL: unknown.
 * expires: the kernel can let a name expire, which keeps mounts below it. Returns NULL if
 * no thread could be created.
 */
struct kernel_notify *kernel_notify_start(struct fuse_session *se,
                                          const struct mountpoint *at, bool expires);
/**
 * Returns true if kernel_notify_age() may be used: Linux 6.16 or later, and nothing is
 * mounted on a directory of this mount, since that would be unmounted. Reads a file of
 * /proc. Any thread.
 */
bool kernel_notify_can_age(const struct kernel_notify *r);
/** Returns true if the start has invalidated all cached dentries: Linux 6.16 or later. */
bool kernel_notify_has_aged(const struct kernel_notify *r);
/**
 * Invalidates all cached dentries at once, without a lock (FUSE_NOTIFY_INC_EPOCH): the
 * kernel looks up each name again. Returns false if the kernel refused. Any thread.
 */
bool kernel_notify_age(const struct kernel_notify *r);
/**
 * Makes the kernel send all requests again that were read and not answered
 * (FUSE_NOTIFY_RESEND, Linux 6.9). Any thread.
 */
void kernel_notify_resend(const struct kernel_notify *r);
/** Returns true if kernel_notify_prune() works: Linux 6.18 or later. */
bool kernel_notify_can_prune(const struct kernel_notify *r);
/**
 * Makes the kernel drop the dentries of an inode at once, without a lock
 * (FUSE_NOTIFY_PRUNE). Dentries in use stay: open, a working directory, a mount point, or
 * with dentries below. Any thread.
 */
void kernel_notify_prune(const struct kernel_notify *r, uint64_t ino);
/**
 * Returns true if the kernel still has this inode in its cache. Invalidates its
 * attributes. Any thread.
 */
bool kernel_notify_is_known(const struct kernel_notify *r, uint64_t ino);
/**
 * Queues a job. Posts job->mail when the job is done; the job is borrowed until then. Any
 * thread.
 */
void kernel_notify_submit(struct kernel_notify *r, struct notify_job *job);
/**
 * Stops the threads: waits up to 2 s for the calls under way. Jobs still queued are
 * posted as done, since the kernel sends no more requests. Jobs that the kernel still
 * holds after that are never posted: the loops may have ended.
 */
void kernel_notify_stop(struct kernel_notify *r);

#endif
