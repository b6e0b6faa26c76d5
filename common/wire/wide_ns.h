/*
 * wide_ns.h - times of inodes: nanoseconds since 1970, in the range that Linux has.
 *
 * Linux has 64-bit seconds; 64-bit nanoseconds end in 1677 and 2262. A wide_ns is checked
 * where it enters (from a kernel, a peer, a disk) by wide_ns_is_fine(). On the wire it is
 * two numbers: 64-bit nanoseconds, and the seconds beyond those, which are 0 for all but
 * very odd times. A peer that does not know the second number sees the nearest time that
 * it can hold.
 */
#ifndef ROZO_COMMON_WIRE_WIDE_NS_H
#define ROZO_COMMON_WIRE_WIDE_NS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "common/base/units.h"

__extension__ typedef __int128 wide_ns;

/**
 * Returns the seconds, rounded down: before 1970 they are negative, and the rest is not.
 */
static inline wide_ns wide_ns_seconds(wide_ns t)
{
    return t / NS_PER_S - (t % NS_PER_S < 0);
}
static inline uint32_t wide_ns_rest(wide_ns t)
{
    return (uint32_t)(t - wide_ns_seconds(t) * NS_PER_S);
}
/** Returns true if the seconds fit 64 bits. */
static inline bool wide_ns_is_fine(wide_ns t)
{
    wide_ns s = wide_ns_seconds(t);

    return s >= INT64_MIN && s <= INT64_MAX;
}
static inline wide_ns wide_ns_make(int64_t seconds, uint32_t rest)
{
    return (wide_ns)seconds * NS_PER_S + rest;
}
static inline wide_ns wide_ns_of_timespec(struct timespec ts)
{
    return wide_ns_make(ts.tv_sec, (uint32_t)ts.tv_nsec);
}
/** Converts a time for which wide_ns_is_fine() holds. */
static inline struct timespec wide_ns_to_timespec(wide_ns t)
{
    return (struct timespec){ .tv_sec = (time_t)wide_ns_seconds(t),
                              .tv_nsec = (long)wide_ns_rest(t) };
}

/** Returns the second number of the wire: seconds that 64-bit nanoseconds do not hold. */
static inline int64_t wide_ns_more_s(wide_ns t)
{
    const wide_ns s = wide_ns_seconds(t), s_max = INT64_MAX / NS_PER_S - 1;

    return s > s_max ? (int64_t)(s - s_max) : s < -s_max ? (int64_t)(s + s_max) : 0;
}
/** Returns the first number of the wire: the nanoseconds without wide_ns_more_s(). */
static inline int64_t wide_ns_near(wide_ns t)
{
    return (int64_t)(t - (wide_ns)wide_ns_more_s(t) * NS_PER_S);
}
/** Joins the two numbers of the wire; the result may not be fine. */
static inline wide_ns wide_ns_join(int64_t near, int64_t more_s)
{
    return near + (wide_ns)more_s * NS_PER_S;
}

#endif
