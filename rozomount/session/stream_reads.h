/*
 * stream_reads.h - counts reads of a mount whose host has reserved streams, and those of
 * them that were late.
 *
 * exportd says the rate of a stream with each keep-alive, and gets the counts with the
 * next one. Zero-initialise. Any thread.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_STREAM_READS_H
#define ROZO_ROZOMOUNT_SESSION_STREAM_READS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the shortest read that counts: streams are read in larger pieces, and the
 * delay of the network alone would make short ones late. */
enum { STREAM_READ_MIN = 64 << 10 };

struct stream_reads {
    atomic_uint_least64_t rate; /* bytes per second; 0: nothing is reserved */
    atomic_uint_least64_t n, n_late;
};

/**
 * Counts a read of so many bytes. It is late if it failed, or took longer than its bytes
 * at the rate of a stream.
 */
void stream_reads_note(struct stream_reads *s, size_t n_bytes, uint64_t took_ns, bool ok);

#endif
