/*
 * member_world.h - whole members of a quorum, three of them: log, vote, links, kv.
 *
 * One env for all, which the user owns. Links lose and delay messages; disks forget what
 * was not synced when the power is cut. What stands on the kvs is the user's.
 */
#ifndef ROZO_TESTS_UNIT_QUORUM_MEMBER_WORLD_H
#define ROZO_TESTS_UNIT_QUORUM_MEMBER_WORLD_H

#include "common/base/list.h"
#include "common/rpc/rpc.h"
#include "exportd/quorum/member_port.h"
#include "tests/lib/env_virtual.h"
#include "tests/lib/kv_memory.h"
#include "tests/lib/memdisk.h"

enum { MEMBERS = 3, NODES_MAX = 9, MEMBER_TERMS = 1000 };

/* Link from one member to another. */
struct member_link {
    struct rpc_channel channel; /* must stay first */
    struct member_world *w;
    unsigned from, to;
    unsigned n_calls;
};

struct member_node {
    struct member_world *w;
    unsigned i;
    uint64_t id; /* raft id; 0: it waits to be added, and has no member */
    struct memdisk disk;
    struct kv_memory *below;
    struct kv_quorum *kv;
    struct member *member;
    struct member_port port;
    struct kv_quorum_hooks kv_hooks;
    struct err err;
    bool is_witness;
    bool is_up, leads, is_started, is_stopped, has_failed;
    int start_rc;
    uint64_t boot; /* grows with each loss of its power */
    uint64_t life; /* grows with each end of its process */
    uint64_t term;
    bool syncs;       /* a sync of its kv is under way */
    bool core_hangs;  /* no mail reaches its core */
    unsigned n_wakes; /* moments at which its core got mail */
    uint64_t woken_ns;
    struct env_mail *mail, **mail_last;
};

struct member_world {
    struct env_virtual *v;               /* borrowed */
    struct member_node nodes[NODES_MAX]; /* n_nodes; MEMBERS unless some are added */
    unsigned n_nodes;
    struct member_link links[NODES_MAX][NODES_MAX];
    bool cut[NODES_MAX][NODES_MAX]; /* [from][to]: packets are lost */
    bool is_lossless;               /* no others are */
    struct raft_config first;
    /* channel of one member to another one, in place of the world's; NULL: the world's */
    struct rpc_channel *scripted[NODES_MAX];
    unsigned scripted_node;           /* index in nodes */
    struct raft_msg_group group;      /* for members that start */
    uint64_t leader_of[MEMBER_TERMS]; /* raft id, by term */
    uint64_t keep_bytes, seed_rate;   /* for members that start */
    bool is_lazy;                     /* likewise */
    bool has_witness;                 /* the last of the first members is one */
    struct env_mail *mail, **mail_last;
    struct env_task mail_task;
    struct list_node packets;
    /* Set by the user, may be NULL. started: the kv is open, the member has not started.
     * ended: the process has died and may not use the kv any more; true: it does not. */
    void (*started)(struct member_node *n);
    bool (*ended)(struct member_node *n);
    void (*lead)(struct member_node *n);
    void (*depose)(struct member_node *n);
};

/** Makes and starts the members. Sets all of *w but is_lazy, has_witness and the
 * functions of its user. */
void member_world_init(struct member_world *w, struct env_virtual *v);
/** Kills all members and frees them. */
void member_world_free(struct member_world *w);
/** Begins the start of a member: is_started when it has ended. */
void member_node_begin(struct member_node *n);
/** Starts a member. */
void member_node_start(struct member_node *n);
/** Likewise, but does not wait until it takes part. */
void member_node_begin(struct member_node *n);
/** Makes one more node, which waits to be added. */
struct member_node *member_world_new(struct member_world *w);
/** Starts the nodes that have been added since the last call. */
void member_world_start_added(struct member_world *w);
/** Ends a member in order: all that it wrote is synced. */
void member_node_stop(struct member_node *n);
/** Cuts the power of a member that is down: unsynced data of its disk may be lost. */
void member_node_lose_power(struct member_node *n);
/** Ends the process of a member; power: unsynced data of its disk may be lost. */
void member_node_kill(struct member_node *n, bool power);
/** Replaces the disk and the store of a member that is down by empty ones. */
void member_node_empty(struct member_node *n);
/** Damages each page of a file of its disk in this range of bytes, if it has the file. */
void member_node_spoil(struct member_node *n, const char *path, uint64_t from,
                       uint64_t to);
/** Lets the core of a member take its mail again. */
void member_node_resume_core(struct member_node *n);
/** Lets time pass; at most one member has a lease at any time, and leads in a term. */
void member_world_run_ms(struct member_world *w, unsigned ms);
/** Returns the member that leads with a lease, or NULL. */
struct member_node *member_world_leader(struct member_world *w);
struct member_node *member_world_wait_for_leader(struct member_world *w);
/** Cuts a member off, in both directions. */
void member_world_cut_off(struct member_world *w, unsigned i);
void member_world_connect_all(struct member_world *w);

#endif
