/*
 * written_world.h - a world of members, the values that were written to it, and which of
 * them may be lost.
 *
 * A member is unsound from a loss (of power, vote, log or store) until it takes part
 * again. With acknowledge: memory, values that were acknowledged and not synced may be
 * lost, and the loss is counted, if a majority was unsound at one time. Else nothing is
 * lost, and nothing counted.
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
    bool is_unsound[MEMBERS];
    bool may_lose;   /* a majority was unsound, and not all take part again yet */
    bool may_count;  /* a majority once was unsound */
    uint64_t losses; /* written_losses() of the last leader before that */
    unsigned n_may_lose, n_lost; /* times that values may be lost; values that were */
};

/** Makes three members of a new quorum, and starts them. */
void written_init(struct written_world *w, uint64_t seed);
/** Likewise; is_lazy: with members that count what is written. */
void written_init_as(struct written_world *w, uint64_t seed, bool is_lazy);
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
/** Returns the value of the key that counts losses; 0: none. */
uint64_t written_losses(struct member_node *n);
/** A leader has everything that was synced: what it lacks is not acknowledged any more.
 * Returns how many values that are. */
unsigned written_losses_take(struct written_world *w, struct member_node *n);
/** Notes that a member has lost something. */
void written_fault(struct written_world *w, struct member_node *n);
/** Checks the leader, if there is one: it has lost nothing but what may be lost. */
void written_look(struct written_world *w);
/** Returns whether all members are up and take part. */
bool written_all_take_part(const struct written_world *w);
/** Waits until all have applied the same, and compares them. */
void written_all_are_equal(struct written_world *w);

#endif
