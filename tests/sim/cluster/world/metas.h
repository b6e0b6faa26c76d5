/*
 * metas.h - exportds of the simulated cluster: one alone, or members of a quorum.
 *
 * Each has a machine of its own, with a kv; a member also has a disk for its log. It does
 * the work of exportd's shell.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_WORLD_METAS_H
#define ROZO_TESTS_SIM_CLUSTER_WORLD_METAS_H

#include <protobuf-c/protobuf-c.h>

#include "common/group/rpc_group.h"
#include "common/wire/capability.h"
#include "exportd/leader/leader.h"
#include "exportd/quorum/member.h"
#include "tests/sim/cluster/world/ask.h"
#include "tests/sim/cluster/world/disk.h"
#include "tests/sim/cluster/world/loss_laws.h"
#include "tests/sim/cluster/world/net.h"

enum {
    METAS_MAX = 3,
    /* Bytes of a log: a witness drops only what all others have, then anything. */
    META_LOG_FEW = 20 << 20,
    META_LOG_KEPT = 32 << 20, /* half of what the log can have */
};

struct sim_meta {
    struct host *host;
    struct sim_kv *kv;
    struct sim_disk disk; /* log of a member */
    unsigned index;
    bool is_witness;
    uint64_t boot;            /* changes when its machine loses power */
    struct exportd *x;        /* the process's; of an exportd that is alone */
    struct meta_process *p;   /* the process's; of a member */
    struct env_timer restart; /* owned by the world */
    /* Clock of its machine: offset + time of the world, by so many millionths faster. */
    uint64_t clock_offset_ns;
    int64_t clock_ppm;
    /* Life before which something was lost that it had on stable storage; 0: nothing, or
     * it has all of that again. */
    unsigned ill_before_life;
    bool copies_after_loss; /* a loss of power made it copy a store */
    bool has_copied;        /* ... or anything else, since it last took part */
    bool has_lost_log;      /* RUN_MUTANT_WITNESS_JOINS: it does since its log was lost */
    struct member *in_doubt; /* the process's; it may have lost what it acknowledged */
    uint64_t ahead; /* RUN_MUTANT_META_APPLY: newest entry that it applies too early */
};

struct metas {
    unsigned n; /* more than one: they are a quorum */
    struct sim_meta list[METAS_MAX];
    struct capability_key *key; /* owned by the world */
    unsigned token_limit;       /* per session; 0: exportd's default */
    unsigned mutants;           /* enum run_mutant */
    uint64_t n_leads;           /* starts of a core on members */
    struct quorum_laws *laws;   /* owned by the world */
    bool is_lazy;               /* acknowledge: memory */
    struct loss_laws losses;
    struct raft_config members; /* with which the quorum began */
    uint64_t log_entries_max;   /* logs of members are trimmed beyond */
    struct sim_meta *witness;   /* NULL: there is none */
    /* beyond that the log of the witness drops entries that a member lacks */
    uint64_t witness_entries_max;
    unsigned n_behind, n_copies; /* copies of stores: run.h */
    unsigned n_in_doubt;         /* starts of members that may have lost something */
    /**
     * Called in the world when the core of a member starts; may be NULL. lost_ns: all
     * that was committed since then is lost; 0: nothing is.
     */
    void (*started)(uint64_t lost_ns);
};
extern struct metas metas;

/** Makes the machine of the first one; all others come with metas_begin_quorum(). */
void metas_begin(void);
/** Makes n machines of it, and the stores with which a quorum begins. With a witness, it
 * is any of them. */
void metas_begin_quorum(unsigned n, bool has_witness);
void metas_end(void);
static inline bool metas_are_quorum(void)
{
    return metas.n > 1;
}

void meta_start(struct sim_meta *e);
/** Returns whether the member has a floor for its votes: it may lack something. */
bool meta_has_floor(const struct sim_meta *e);
/** Kills the process as kill -9; power: cuts the machine's power as well. */
void meta_kill(struct sim_meta *e, bool power);
/** Returns the one that leads, as far as is known; else any. */
struct sim_meta *meta_leader(void);
/** Returns its core, or NULL if it does not serve. */
const struct exportd *meta_core(const struct sim_meta *e);
/** Returns true if exportd serves. */
bool metas_serve(void);
/** Returns the member whose process runs, or NULL. */
struct sim_meta *meta_current(void);
/** Copies the state of a member. Returns false if it has not started. */
bool meta_status(const struct sim_meta *e, struct member_status *out);
/** Returns the term of an entry in the log of a member that runs; 0: it has none. */
uint64_t meta_log_term(const struct sim_meta *e, uint64_t index);
/** Returns true if all members take part, and none lacks anything that is committed. */
bool metas_are_whole(void);
/** Asks a member to hand leadership over to any other one. False: it does not lead. */
bool meta_transfer(struct sim_meta *e);
/** Returns true if all changes that were answered before are on stable storage. */
bool metas_have_synced_since(uint64_t ns);
/** Returns the time before which all that was answered is on stable storage. */
uint64_t metas_stable_ns(void);
/** Returns the requests of dead clients on their way to exportd. */
unsigned metas_n_strays(void);
/** Sends a request of an administrator to the one that leads, as admin_ask() does. */
void metas_ask(uint16_t op, const ProtobufCMessage *msg, struct answer *out);

/** Makes the channel of a client to exportd. broke: as of net_channel_new(). */
struct rpc_channel *metas_channel_new(struct host *from, void (*broke)(void *arg),
                                      void *arg, struct rpc_group **group);
/** Sets the session of requests that name none. */
void metas_channel_set_session(struct rpc_channel *ch, struct rpc_group *group,
                               uint64_t session);

#endif
