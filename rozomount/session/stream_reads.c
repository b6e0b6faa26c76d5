/*
 * stream_reads.c - counts reads of reserved streams.
 */
#include "rozomount/session/stream_reads.h"

#include "common/base/units.h"

void stream_reads_note(struct stream_reads *s, size_t n_bytes, uint64_t took_ns, bool ok)
{
    uint64_t rate = atomic_load_explicit(&s->rate, memory_order_relaxed);

    if (rate == 0 || n_bytes < STREAM_READ_MIN)
        return;
    atomic_fetch_add_explicit(&s->n, 1, memory_order_relaxed);
    if (!ok || (unsigned __int128)took_ns * rate > (unsigned __int128)n_bytes * NS_PER_S)
        atomic_fetch_add_explicit(&s->n_late, 1, memory_order_relaxed);
}
