/*
 * member_world.h - whole members, three of them: log, vote, kv, and links that lose and
 * delay. One seed gives one run.
 */
#ifndef ROZO_TESTS_UNIT_QUORUM_MEMBER_WORLD_H
#define ROZO_TESTS_UNIT_QUORUM_MEMBER_WORLD_H

#include "common/base/list.h"
#include "exportd/quorum/member_port.h"
#include "exportd/quorum/raft/raft_core.h"
#include "tests/lib/env_virtual.h"
#include "tests/lib/kv_memory.h"
#include "tests/lib/memdisk.h"
#include "tests/unit/unit.h"

enum { MEMBERS_N = 3, MEMBERS_KEYS = 20, MEMBERS_TERMS = 1000 };

struct members;

/* Link from one member to another. */
struct member_link {
    struct rpc_channel channel; /* must stay first */
    struct members *w;
    unsigned from, to;
    struct list_node packets;
};

/* Request on its way, there and back. */
struct packet {
    struct rpc_call call; /* must stay first */
    struct list_node node;
    struct member_link *link;
    struct rpc_request *rq; /* NULL: cancelled */
    uint64_t life;          /* the sender's when it was sent */
    struct env_timer timer, deadline;
    bool is_held; /* by its receiver */
    bool is_back, is_late;
    uint16_t status;
    uint8_t *answer, *payload; /* answer; owned */
    size_t answer_len, payload_len;
};

/* Write of the program that tests. */
struct write {
    struct kv_done done;
    struct member_node *node;
    unsigned key;
    uint64_t val;
    bool is_done;
    int rc;
};

struct member_node {
    struct members *w;
    unsigned i;
    struct memdisk disk;
    struct kv_memory *below;
    struct kv_quorum *kv;
    struct member *member;
    struct member_port port;
    struct kv_quorum_hooks kv_hooks;
    struct err err;
    bool is_up, leads, is_started, is_stopped, has_failed;
    int start_rc;
    uint64_t life; /* grows with each end of its process */
    uint64_t term;
};

struct members {
    struct env_virtual v;
    struct member_node nodes[MEMBERS_N];
    struct member_link links[MEMBERS_N][MEMBERS_N];
    bool cut[MEMBERS_N][MEMBERS_N]; /* [from][to]: packets are lost */
    struct raft_config first;
    /* channel of member 0 to another one, in place of the world's; NULL: the world's */
    struct rpc_channel *scripted[MEMBERS_N];
    struct env_mail *mail, **mail_last;
    struct env_task mail_task;
    /* Values of keys: newest acknowledged, and newest written. */
    uint64_t acked[MEMBERS_KEYS], written[MEMBERS_KEYS];
    uint64_t next_val;
    uint64_t leader_of[MEMBERS_TERMS]; /* raft id, by term */
    uint64_t keep_bytes, seed_rate;    /* for members that start */
    unsigned n_acked;
    struct list_node packets;
};

/** Makes three members of a new quorum, and starts them. */
void members_init(struct members *w, uint64_t seed);
void members_free(struct members *w);
void member_node_start(struct member_node *n);
/** Ends the process of a member; power: unsynced data of its disk may be lost. */
void member_node_kill(struct member_node *n, bool power);
/** Replaces the disk and the store of a member that is down by empty ones. */
void member_node_empty(struct member_node *n);
void members_run_ms(struct members *w, unsigned ms);
/** Returns the member that leads with a lease, or NULL. */
struct member_node *members_leader(struct members *w);
struct member_node *members_wait_for_leader(struct members *w);
/** Writes one more value with a leader, one that is deposed perhaps. */
void members_write(struct members *w, struct member_node *n, size_t len);
uint64_t members_value(struct kv *kv, unsigned key);
/** A leader has everything that was acknowledged; values of a key only grow. */
void members_leader_check(struct members *w, struct member_node *n);
/** Waits until all have applied the same, and compares them. */
void members_all_are_equal(struct members *w);

#endif
