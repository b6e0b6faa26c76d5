/*
 * straggler.h - which storages answer later than others do, and the probes that show
 * whether they still do.
 *
 * A storage that is late answers everything, only later than those that are asked with
 * it: its link is longer, or its disk slower. It is neither slow (engine_peer_slow(): a
 * request timed out on it) nor unreachable, and no decision about stored data depends on
 * it: reads ask others first, and sooner, and data for a home that has been late for long
 * goes to a spare as well.
 *
 * Private to storcli/blocks. Thread: the env's.
 */
#ifndef ROZO_STORCLI_BLOCKS_STRAGGLER_H
#define ROZO_STORCLI_BLOCKS_STRAGGLER_H

#include "common/rpc/rpc.h"
#include "common/wire/record.h"

struct storcli;
struct storcli_file;
struct peer;

/* State of one peer, embedded in it. */
struct straggler {
    uint64_t excess_ns;     /* ns that it takes longer than its peers, a moving average */
    uint64_t probe_ns;      /* ns, monotonic: no probe before it */
    uint64_t since_ns;      /* ns, monotonic: late since then */
    uint64_t fine_since_ns; /* ns, monotonic: end of the last lateness; 0: none */
    uint32_t pause_ms;      /* between two probes */
    uint64_t sent_ns;       /* ns, monotonic: start of the probe under way */
    struct rpc_request probe;
    bool probing;
    bool is_straggler;
};

/* Times of the storages that were asked for equal amounts at one time.
 * Zero-initialise. */
struct straggler_times {
    uint64_t took_ns[DIST_MAX]; /* ascending */
    unsigned n;
};
void straggler_times_add(struct straggler_times *t, uint64_t took_ns);
/**
 * Returns the median (of two the shorter one). At least one time must have been added.
 */
static inline uint64_t straggler_times_middle(const struct straggler_times *t)
{
    return t->took_ns[(t->n - 1) / 2];
}

/**
 * Records a typical time of a read: at least half of the storages asked first were no
 * slower.
 */
void straggler_note_typical(struct storcli *cli, uint64_t took_ns);
/**
 * Records that this peer took excess_ns longer than typical. at_least: it has not
 * answered yet.
 */
void straggler_note(struct storcli *cli, struct peer *peer, uint64_t excess_ns,
                    bool at_least);
/**
 * Probes each late candidate of a file when due: asks for the head of one block to
 * measure the time.
 */
void straggler_probe(struct storcli_file *file, uint64_t block);
/** Probes one candidate that may be late. */
void straggler_suspect(struct storcli_file *file, unsigned candidate, uint64_t block);
/** Returns true if it has been late for a second: no hiccup. */
bool straggler_for_long(const struct storcli *cli, const struct peer *peer);
/** Cancels the probe. */
void straggler_stop(struct peer *peer);

#endif
