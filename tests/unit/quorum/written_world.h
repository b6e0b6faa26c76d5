/*
 * written_world.h - a world of members, and the values that were written to it.
 */
#ifndef ROZO_TESTS_UNIT_QUORUM_WRITTEN_WORLD_H
#define ROZO_TESTS_UNIT_QUORUM_WRITTEN_WORLD_H

#include "tests/unit/quorum/member_world.h"

enum { WRITTEN_KEYS = 20 };

struct written_world {
    struct env_virtual v;
    struct member_world m;
    /* Values of keys: newest acknowledged, and newest written. */
    uint64_t acked[WRITTEN_KEYS], written[WRITTEN_KEYS];
    uint64_t next_val;
    uint64_t synced[WRITTEN_KEYS]; /* newest acknowledged before a sync that ended */
    unsigned n_acked, n_synced;
};

/** Makes three members of a new quorum, and starts them. */
void written_init(struct written_world *w, uint64_t seed);
/** Likewise, with members that count what is written. */
void written_init_lazy(struct written_world *w, uint64_t seed);
/** Likewise; the last member is a witness. */
void written_init_witness(struct written_world *w, uint64_t seed, bool is_lazy);
void written_free(struct written_world *w);
/** Writes one more value with a leader, one that is deposed perhaps. */
void written_write(struct written_world *w, struct member_node *n, size_t len);
/** Lets a leader sync: what is acknowledged by then counts as synced when that ends. */
void written_sync(struct written_world *w, struct member_node *n);
/** Returns the value of a key; 0: none. */
uint64_t written_value(struct kv *kv, unsigned key);
/** A leader has everything that was acknowledged; values of a key only grow. */
void written_leader_check(struct written_world *w, struct member_node *n);
/** Waits until all have applied the same, and compares them. */
void written_all_are_equal(struct written_world *w);

#endif
