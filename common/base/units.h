/*
 * units.h - units of time: seconds, milliseconds, nanoseconds.
 */
#ifndef ROZO_COMMON_BASE_UNITS_H
#define ROZO_COMMON_BASE_UNITS_H

#include <stdint.h>
#include <time.h>

enum { NS_PER_MS = 1000000, NS_PER_S = 1000000000 };

static inline uint64_t ms_to_ns(uint64_t ms)
{
    return ms * NS_PER_MS;
}
static inline uint64_t s_to_ns(uint64_t s)
{
    return s * NS_PER_S;
}
/** Rounds down. */
static inline uint64_t ns_to_ms(uint64_t ns)
{
    return ns / NS_PER_MS;
}
/** Rounds up, so that a timer does not fire too early. */
static inline uint64_t ns_to_ms_up(uint64_t ns)
{
    return (ns + NS_PER_MS - 1) / NS_PER_MS;
}
/** Rounds down. */
static inline uint64_t ns_to_s(uint64_t ns)
{
    return ns / NS_PER_S;
}
/** Converts a time that is not before 1970. */
static inline uint64_t timespec_to_ns(struct timespec ts)
{
    return s_to_ns((uint64_t)ts.tv_sec) + (uint64_t)ts.tv_nsec;
}

#endif
