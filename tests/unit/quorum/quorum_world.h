/*
 * quorum_world.h - raft cores of several members in memory, with a network, disks and
 * clocks that fail at random. One seed gives one run.
 *
 * Messages go through the codec. Each member has what is on its disk, what it has
 * written, and a store that applies entries. After each event the world checks: one
 * leader a term, log matching, that committed entries stay, that a new leader has them
 * all, that all stores apply the same, and that a member with a lease is alone with it
 * and knows of all that any leader has answered.
 */
#ifndef ROZO_TESTS_UNIT_QUORUM_WORLD_H
#define ROZO_TESTS_UNIT_QUORUM_WORLD_H

#include <stdbool.h>
#include <stdint.h>

#include "exportd/quorum/raft/raft_core.h"

enum {
    WORLD_NODES_MAX = 7,
    WORLD_LOG_MAX = 4096, /* entries of a run */
};

/* Entry as the world keeps it. Shared by all logs that have it. */
struct world_entry {
    uint64_t index, term, prev_term;
    uint64_t value; /* content of a batch; unique */
    enum raft_entry_kind kind;
    uint32_t len;
    uint8_t *data; /* owned */
};

struct world_log {
    struct world_entry *entries[WORLD_LOG_MAX]; /* by index; borrowed */
    uint64_t first, last;                       /* last < first: empty */
};

struct world_store {
    uint64_t applied, term, config_index;
    struct raft_config config;
};

struct world_node {
    uint64_t id;
    struct raft_core *core; /* NULL: down */
    struct raft_core_out out;
    unsigned life; /* counts starts: events of an earlier life are dropped */
    /* clock = offset + world's time * rate / 1000 */
    uint64_t offset_ns, rate;
    uint64_t paused_until_ns;
    uint64_t lease_until_ns; /* by the node's clock, as it last heard from its core */
    /* on disk */
    uint64_t term, vote;
    uint64_t new_term, new_vote; /* written, perhaps not yet on disk */
    struct world_log stable;
    struct world_store store;
    /* written, not yet on disk */
    struct world_log log;
    uint64_t busy_until_ns; /* writes of a disk come to an end in order */
    bool is_lazy;           /* raft_core_options.is_lazy from its next start on */
    uint64_t seen;          /* committed entries up to here were checked */
    uint64_t syncing;       /* newest entry that a sync under way has */
    unsigned n_lost;        /* times that its core said it lost entries */
    unsigned n_seeds;
};

struct world {
    uint64_t now_ns;
    uint64_t random;
    struct world_node nodes[WORLD_NODES_MAX];
    unsigned n_nodes;
    unsigned loss, dup;                         /* messages of 1000 */
    unsigned delay_max_us;                      /* delay of a message */
    unsigned late;                              /* messages of 1000 that take up to 2 s */
    unsigned write_max_us;                      /* time of a write */
    unsigned handover_us;                       /* further delay of a TIMEOUT_NOW */
    bool cut[WORLD_NODES_MAX][WORLD_NODES_MAX]; /* from, to */
    unsigned promise_ms;
    /* results of the run so far */
    struct world_entry *committed[WORLD_LOG_MAX];
    uint64_t n_committed;
    uint64_t committed_term[WORLD_LOG_MAX]; /* term of who first reported it */
    uint64_t answered; /* highest commit index that a leader has reported */
    uint64_t n_stable; /* highest entry that a member has reported as stable */
    uint64_t n_values, n_elections;
    struct world_entry **entries; /* owned; all that were ever made */
    size_t n_entries, entries_max;
    struct world_event *heap;
    size_t n_heap, heap_max;
    uint64_t n_events;
    uint64_t leader_of[WORLD_LOG_MAX]; /* by term */
};

/** Makes n nodes, down; the first n_voters are the group's first list of members. */
struct world *world_new(uint64_t seed, unsigned n, unsigned n_voters);
void world_free(struct world *w);
uint64_t world_below(struct world *w, uint64_t bound);
/** Starts a node from its disk. It must be down. */
void world_start(struct world *w, unsigned i);
/** Stops a node; with power, what it has not synced is lost. */
void world_stop(struct world *w, unsigned i, bool power);
/**
 * Cuts the power of all nodes that are up, and starts some of them again. Entries that
 * were committed but not stable may be lost.
 */
void world_power_cycle(struct world *w);
/** Runs for so long. */
void world_run_ms(struct world *w, uint64_t ms);
/**
 * Starts the nodes that are down, and runs until one leads, is ready, and all others
 * follow it. Returns it.
 */
int world_elect(struct world *w);
/** Returns the node that leads and is ready, of the highest term; -1: none. */
int world_leader(const struct world *w);
/** Submits a batch at a node. Returns its index, or 0: refused. */
uint64_t world_submit(struct world *w, unsigned i);
/** Submits at the leader and runs until all nodes that are up have applied it. */
bool world_commit_one(struct world *w, uint64_t max_ms);
/** Carries out what an event at a node gave. rc: its result. */
void world_take(struct world *w, unsigned i, int rc);
/** Returns the time by the clock of a node. */
uint64_t world_clock(const struct world *w, unsigned i);
/** Drops all but the newest keep entries that a node's store holds from its log. */
void world_trim(struct world *w, unsigned i, uint64_t keep);
/** Prints the state of all nodes to stderr. */
void world_print(const struct world *w);
/** Connects all, and ends all faults of the network and of disks. */
void world_mend(struct world *w);

#endif
