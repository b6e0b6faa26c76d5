/*
 * inode_times.h - how reads and changes move the times of an inode.
 *
 * exportd and the mounts use the same rules: relatime, as mount(8) describes it.
 */
#ifndef ROZO_COMMON_WIRE_INODE_TIMES_H
#define ROZO_COMMON_WIRE_INODE_TIMES_H

#include "common/wire/wide_ns.h"

/* The times of an inode as one side knows them. */
struct inode_times {
    wide_ns atime_ns, mtime_ns, ctime_ns;
};

/* A read that a mount noted. */
struct noted_read {
    int64_t at_ns;   /* exportd's clock */
    wide_ns seen_ns; /* access time that the mount knew then */
    bool has_seen;   /* false: the mount knew no access time */
};

/**
 * Returns the time of a read or write that follows a change made at changed_ns: later
 * than changed_ns although now_ns, an estimate of exportd's clock, may lag by the time
 * that an answer takes. A longer lag means that the clock was set back: returns now_ns.
 */
static inline int64_t time_after_change(int64_t now_ns, wide_ns changed_ns)
{
    const int64_t lag_max_ns = 10 * (int64_t)NS_PER_S;

    return changed_ns >= now_ns && changed_ns - now_ns < lag_max_ns
               ? (int64_t)changed_ns + 1
               : now_ns;
}

/**
 * Returns the time of a read, later than all known times of the inode. It is 0.1 s early,
 * because the estimate of exportd's clock may be ahead: a change after the read must not
 * seem to precede it, or the next read would not count.
 */
static inline int64_t time_of_read(int64_t now_ns, const struct inode_times *t)
{
    const int64_t ahead_max_ns = NS_PER_S / 10;
    wide_ns last_ns = t->mtime_ns > t->ctime_ns ? t->mtime_ns : t->ctime_ns;

    return time_after_change(now_ns - ahead_max_ns,
                             last_ns > t->atime_ns ? last_ns : t->atime_ns);
}

/** Returns true if a read at read_ns moves the access time. strict: each read does. */
static inline bool atime_is_due(const struct inode_times *t, wide_ns read_ns, bool strict)
{
    const wide_ns day_ns = (wide_ns)86400 * NS_PER_S;

    return strict || t->atime_ns <= t->mtime_ns || t->atime_ns <= t->ctime_ns ||
           read_ns - t->atime_ns >= day_ns;
}

/**
 * Returns true if a reported read moves the access time. If the access time is not the
 * one that the mount knew, it has been moved or set since. Then a read counts only if it
 * is not earlier than the access time and the last change.
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
