/*
 * kernel_notify.h - tell the kernel to drop what a recalled token let it keep, and hear when it has.
 *
 * In threads of its own, as many as wait for the kernel at a time: one may have to wait for a page or a directory that an operation of
 * ours holds, and that operation for what another one tells the kernel.
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

/* Names of a directory, attributes of an inode and its pages in a range, and attributes
 * of other inodes: the kernel is told to drop these. */
struct notify_job {
    struct notify_job *next; /* the recaller's */
    uint64_t ino;
    struct told_name *names; /* owned; freed with the job's end */
    uint64_t from, to;       /* bytes; to SPAN_END: to the end. from == to: no pages */
    const uint64_t *more;    /* borrowed: inodes of which only attributes are dropped */
    size_t n_more;
    struct env_uv *env;   /* where the mail goes */
    struct env_mail mail; /* with fn set */
};

/**
 * se: outlives it, as does `at`: where it is mounted; NULL: that is not known. expires: the kernel can be told that a name is too old
 * without taking away mounts below it. NULL: no thread.
 */
struct kernel_notify *kernel_notify_start(struct fuse_session *se,
                                          const struct mountpoint *at, bool expires);
/**
 * Can the kernel be made to look up all names anew that it knows, at once and without a lock? Linux 6.16 and later; not while something is
 * mounted on a directory of ours: it would be unmounted. Reads a file of /proc. Any thread.
 */
bool kernel_notify_can_age(const struct kernel_notify *r);
/** That. False: it has not been done. Any thread. */
bool kernel_notify_age(const struct kernel_notify *r);
/** Can the kernel be told to let go of an inode that nobody uses? Linux 6.18 and later. */
bool kernel_notify_can_prune(const struct kernel_notify *r);
/**
 * Have the kernel drop the dentries of an inode, at once and without a lock, unless they are in use: open, somebody's
 * working directory, mounted on, or with dentries below. Any thread.
 */
void kernel_notify_prune(const struct kernel_notify *r, uint64_t ino);
/** Does the kernel still know this inode? It may ask for its attributes again. Any thread. */
bool kernel_notify_is_known(const struct kernel_notify *r, uint64_t ino);
/** Soon; then job->mail is posted. The job belongs to it until then. Any thread. */
void kernel_notify_submit(struct kernel_notify *r, struct notify_job *job);
/**
 * Waits a little for the calls under way. What waits is posted as done: nobody will ask the kernel any more. What the kernel
 * still holds then is never posted: the loops may have ended.
 */
void kernel_notify_stop(struct kernel_notify *r);

#endif
