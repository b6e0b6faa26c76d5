/*
 * inode_times.h - how reads and changes move the times of an inode.
 *
 * exportd and the mounts decide by the same rules: relatime, as mount(8) describes it.
 */
#ifndef ROZO_COMMON_BASE_INODE_TIMES_H
#define ROZO_COMMON_BASE_INODE_TIMES_H

#include "common/base/wide_ns.h"

/* The times of an inode as one side knows them. */
struct inode_times {
    wide_ns atime_ns, mtime_ns, ctime_ns;
};

/* A read that a mount noted. */
struct noted_read {
    int64_t at_ns;   /* exportd's clock */
    wide_ns seen_ns; /* the access time that the mount knew then */
    bool has_seen;   /* else the mount knew none */
};

/**
 * Returns the time of a read or write that follows a change made at changed_ns. An
 * estimate of exportd's clock may lag behind it by the time that an answer takes, and
 * what follows a change would seem to precede it. A longer lag means that the clock was
 * set back: now_ns holds.
 */
static inline int64_t time_after_change(int64_t now_ns, wide_ns changed_ns)
{
    const int64_t lag_max_ns = 10 * (int64_t)NS_PER_S;

    return changed_ns >= now_ns && changed_ns - now_ns < lag_max_ns
               ? (int64_t)changed_ns + 1
               : now_ns;
}

/**
 * Returns the time of a read, later than all times of the inode as far as they are known.
 * The estimate of exportd's clock may also be ahead. A change that follows the read must
 * not seem to precede it, or the next read would not count.
 */
static inline int64_t time_of_read(int64_t now_ns, const struct inode_times *t)
{
    const int64_t ahead_max_ns = NS_PER_S / 10;
    wide_ns last_ns = t->mtime_ns > t->ctime_ns ? t->mtime_ns : t->ctime_ns;

    return time_after_change(now_ns - ahead_max_ns,
                             last_ns > t->atime_ns ? last_ns : t->atime_ns);
}

/** Does a read at this time move the access time? strict: each one does. */
static inline bool atime_is_due(const struct inode_times *t, wide_ns read_ns, bool strict)
{
    const wide_ns day_ns = (wide_ns)86400 * NS_PER_S;

    return strict || t->atime_ns <= t->mtime_ns || t->atime_ns <= t->ctime_ns ||
           read_ns - t->atime_ns >= day_ns;
}

/**
 * Does a reported read move the access time? If the time is not the one that the mount
 * knew, somebody has moved or set it. Then only a read later than the access time and
 * the last change counts.
 */
static inline bool atime_moves(const struct inode_times *t, const struct noted_read *r,
                               bool strict)
{
    if (!(r->has_seen && r->seen_ns == t->atime_ns) &&
        (r->at_ns < t->ctime_ns || r->at_ns < t->atime_ns))
        return false;
    return r->at_ns != t->atime_ns && atime_is_due(t, r->at_ns, strict);
}

#endif
