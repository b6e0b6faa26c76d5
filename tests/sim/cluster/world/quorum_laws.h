/*
 * quorum_laws.h - what holds among the members of a quorum at any time, whatever clients
 * can see of it: two members may break it in runs whose programs notice nothing.
 *
 * Each function ends the run with a message if its law is broken.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_WORLD_QUORUM_LAWS_H
#define ROZO_TESTS_SIM_CLUSTER_WORLD_QUORUM_LAWS_H

#include "exportd/quorum/log/quorum_entry.h"
#include "tests/sim/cluster/world/metas.h"

struct quorum_laws;

/** Makes the memory of the laws, in the world; it is freed with that. */
struct quorum_laws *quorum_laws_new(void);
/** A core starts on this member: no other member leads or led in this term. */
void quorum_law_leads(struct quorum_laws *l, const struct sim_meta *e, uint64_t term);
/** A core of this term may answer at once: no member leads in a later term. */
void quorum_law_answers(const struct quorum_laws *l, const struct sim_meta *e,
                        uint64_t term);
/** A member applies an entry: all members apply the same one at this index. */
void quorum_law_applies(struct quorum_laws *l, const struct sim_meta *e,
                        const struct raft_log_entry *entry);
/** A core has counted losses of power: no run has one, all that is answered is synced. */
void quorum_law_losses(const struct sim_meta *e, unsigned n_losses);
/** A member has entries up to this one on stable storage, and may acknowledge them. */
void quorum_law_persisted(struct quorum_laws *l, const struct sim_meta *e, uint64_t index,
                          uint64_t term);
/** A member takes part with a log up to `last`: no entry is missing that it acknowledged
 * and that is committed. */
void quorum_law_starts(const struct quorum_laws *l, const struct sim_meta *e,
                       uint64_t last);
/** A leader has met a member that lacks what it had acknowledged: its disk lost it. */
void quorum_law_lost(const struct sim_meta *leader, uint64_t id);

/** Returns cluster_losses(), whose header does not go together with servers.h. */
unsigned core_losses(const struct exportd *core);

#endif
