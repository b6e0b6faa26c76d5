/*
 * quorum_laws.h - what holds among the members of a quorum at any time, whatever clients
 * can see of it: two members may break it in runs whose programs notice nothing.
 *
 * Each function ends the run with a message if its law is broken.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_WORLD_QUORUM_LAWS_H
#define ROZO_TESTS_SIM_CLUSTER_WORLD_QUORUM_LAWS_H

#include "exportd/quorum/log/quorum_entry.h"
#include "exportd/quorum/raft/raft_msg.h"
#include "tests/sim/cluster/world/metas.h"

struct quorum_laws;

/** Makes the memory of the laws, in the world; it is freed with that. */
struct quorum_laws *quorum_laws_new(void);
/**
 * A core starts on this member: no other member leads or led in this term, and it has all
 * that is committed, unless a loss is counted. counted: losses in its store (key H).
 * Returns the time since which all that was committed is lost; 0: nothing is.
 */
uint64_t quorum_law_leads(struct quorum_laws *l, const struct sim_meta *e, uint64_t term,
                          uint64_t counted);
/** A core of this term may answer at once: no member leads in a later term. */
void quorum_law_answers(const struct quorum_laws *l, const struct sim_meta *e,
                        uint64_t term);
/** A member takes a committed entry: all members take the same one at this index, unless
 * it was not stable and a loss is counted. */
void quorum_law_applies(struct quorum_laws *l, const struct sim_meta *e,
                        const struct raft_log_entry *entry);
/** A member takes all entries up to this one for stable: none is ever replaced. */
void quorum_law_stable(struct quorum_laws *l, const struct sim_meta *e, uint64_t index);
/** Returns the time before which all that was committed is stable. */
uint64_t quorum_stable_ns(const struct quorum_laws *l);
/** A member has written entries up to this one, and may acknowledge them. */
void quorum_law_written(struct quorum_laws *l, const struct sim_meta *e, uint64_t index,
                        uint64_t term);
/** A member has synced entries up to this one. */
void quorum_law_persisted(struct quorum_laws *l, const struct sim_meta *e, uint64_t index,
                          uint64_t term);
/**
 * A member takes part with a store up to `applied` and a log up to `last`: no entry is
 * missing that it acknowledged and that is committed, but unsynced ones of a member that
 * leaves doubt. The log is synced.
 */
void quorum_law_starts(struct quorum_laws *l, const struct sim_meta *e, uint64_t applied,
                       uint64_t last, uint64_t last_term);
/** The core of the witness has had an event: it does not lead while another member
 * can. */
void quorum_law_witness(struct quorum_laws *l, const struct sim_meta *e, bool leads,
                        uint64_t term);
/** A witness sends this: it hands no leadership to itself, and has no store to copy. */
void quorum_law_sends(const struct sim_meta *e, const struct raft_msg *msg);
/** The witness drops the entries before this one: all other members have them. */
void quorum_law_drops(const struct quorum_laws *l, const struct sim_meta *e,
                      uint64_t first);
/** The log of the witness begins with this entry. is_short: a member lacks some before
 * it. */
void quorum_law_begins(struct quorum_laws *l, uint64_t first, bool is_short);
/** Returns whether the witness has dropped what this member lacks. */
bool quorum_law_lacks(const struct quorum_laws *l, const struct sim_meta *e);
/** Returns whether the witness has all that a member lacks which has entries up to this
 * one, and the term of that one. */
bool quorum_law_feeds(const struct quorum_laws *l, uint64_t last);
/** Returns the newest entry up to which a member is known to have all. */
uint64_t quorum_law_held(const struct quorum_laws *l, const struct sim_meta *e);
/** Returns terms that a witness led, and entries that it had and the next core lacked. */
void quorum_law_count(const struct quorum_laws *l, unsigned *n_terms, unsigned *n_fed);
/** A leader has met a member that lacks what it had acknowledged: its disk lost it. */
void quorum_law_lost(const struct sim_meta *leader, uint64_t id);

/** Returns cluster_losses(), whose header does not go together with servers.h. */
unsigned core_losses(const struct exportd *core);
/** Returns the term of an entry in the log of a running member; 0: it has none. */
uint64_t member_log_term(const struct member *m, uint64_t index);

#endif
