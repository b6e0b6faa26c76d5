/*
 * late.h - which storages answer later than others do, and asking now and then whether they still do.
 *
 * A storage that is late answers everything, only later than those that are asked with it: behind a longer
 * wire, or with a slower disk. It is neither slow (engine_peer_slow(): it let somebody wait in vain) nor away, and nothing that
 * is believed of what is stored depends on it: reads ask others first, and sooner, and what goes to who has been late for long
 * goes to a spare as well.
 *
 * Private to storcli/blocks. Thread: the env's.
 */
#ifndef ROZO_STORCLI_BLOCKS_LATE_H
#define ROZO_STORCLI_BLOCKS_LATE_H

#include "common/base/record.h"
#include "common/rpc/rpc.h"

struct storcli;
struct storcli_file;
struct peer;

/* Of one peer, embedded in it. */
struct late {
    uint64_t excess_ns;     /* what it takes longer than its peers, a moving average */
    uint64_t probe_ns;      /* not probed again before this */
    uint64_t since_ns;      /* late since then */
    uint64_t fine_since_ns; /* it was late, and is no more since then; 0: it never was */
    uint32_t pause_ms;      /* between two probes */
    uint64_t sent_ns;       /* of the probe under way */
    struct rpc_request probe;
    bool probing;
    bool is_late;
};

/* How long those took who were asked for the same at the same time. Zero-initialise. */
struct late_times {
    uint64_t took_ns[DIST_MAX]; /* shortest first */
    unsigned n;
};
void late_times_add(struct late_times *t, uint64_t took_ns);
/** The one in the middle, of two the shorter one. There is one at least. */
static inline uint64_t late_times_middle(const struct late_times *t)
{
    return t->took_ns[(t->n - 1) / 2];
}

/** A read that was answered in this time by those asked first; half of them, at least, were no slower. */
void late_note_typical(struct storcli *cli, uint64_t took_ns);
/** This peer took so much longer than that. at_least: it has not answered yet. */
void late_note(struct storcli *cli, struct peer *peer, uint64_t excess_ns, bool at_least);
/** The candidates of a file that are late are asked for the head of one block, for nothing but the time that takes. */
void late_probe(struct storcli_file *file, uint64_t block);
/** The same of one that may be late. */
void late_suspect(struct storcli_file *file, unsigned candidate, uint64_t block);
/** So long that it is no hiccup. */
bool late_for_long(const struct storcli *cli, const struct peer *peer);
/** Nothing comes any more. */
void late_stop(struct peer *peer);

#endif
