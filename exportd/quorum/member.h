/*
 * member.h - a member of a quorum: raft core, log and vote on disk, links to the other
 * members.
 *
 * Sans-I/O, one thread (in the daemon one of its own, so that no write stall of the kv
 * delays a heartbeat). The other side is a kv_quorum.h, perhaps on another thread: hooks
 * carry over to it, in order, and its hooks come back as member_submit() and so on.
 */
#ifndef ROZO_EXPORTD_QUORUM_MEMBER_H
#define ROZO_EXPORTD_QUORUM_MEMBER_H

#include "common/base/err.h"
#include "common/env/disk.h"
#include "common/env/env.h"
#include "common/group/exportd_list.h"
#include "common/rpc/rpc.h"
#include "exportd/quorum/kv_quorum.h"

struct member;

/* Functions of the kv's side. They never call back inside. */
struct member_hooks {
    /** kv_quorum_apply(): gives a use of the entry away. */
    void (*apply)(void *arg, struct quorum_entry *entry);
    /** kv_quorum_stable(). */
    void (*stable)(void *arg, uint64_t index);
    /**
     * kv_quorum_lead(), once the entries given so far are applied; then member_led().
     * Until then nothing is taken from the kv's side, and there is no lease: it may not
     * have heard yet that a former reign of it has ended.
     */
    void (*lead)(void *arg, uint64_t term);
    /** kv_quorum_depose(). */
    void (*depose)(void *arg);
    /** kv_quorum_confirmed(). */
    void (*confirmed)(void *arg, uint64_t at_ns);
    /** kv_quorum_sync_below(). */
    void (*sync_below)(void *arg);
    /** This member cannot go on: the process must end. */
    void (*failed)(void *arg, int rc, const char *text);
    void *arg;
    /** kv_quorum_seed(): lends a job, member_seeded() gives it back. */
    void (*seed)(void *arg, struct seed_job *job);
    /** kv_quorum_set_free(). */
    void (*space)(void *arg, uint64_t free_bytes);
    /** Where clients reach the members has changed. NULL: nobody wants to know. */
    void (*clients)(void *arg, const struct exportd_list *list);
};

/* Links to other members, as a node of the cluster. */
struct member_peers {
    /** Opens a channel to the member at this address. NULL: it is not valid. */
    struct rpc_channel *(*open)(void *arg, const char *address);
    /** Closes a channel. Requests still on it end with an error, later. */
    void (*close)(void *arg, struct rpc_channel *ch);
    void *arg;
    /** Returns why a channel does not work, or "". NULL: nobody knows. */
    const char *(*last_error)(void *arg, struct rpc_channel *ch);
};

/* Where clients reach one member. */
enum { MEMBER_CLIENTS_MAX = 4 };
struct member_clients {
    unsigned n;
    char addrs[MEMBER_CLIENTS_MAX][EXPORTD_ADDR_BYTES];
};

struct member_config {
    struct env *env;   /* borrowed */
    struct disk *disk; /* borrowed: the directory of the log */
    struct member_hooks hooks;
    struct member_peers peers;
    struct raft_msg_group group;
    uint64_t id; /* raft id of this member */
    /* place of the kv, as kv_quorum_open() found it; copied */
    const struct kv_quorum_place *place;
    /** Reads the clock of the lease, CLOCK_BOOTTIME in the daemon. */
    uint64_t (*now_ns)(void *arg);
    void *now_arg;
    unsigned election_ms;  /* 0: RAFT_ELECTION_MS */
    unsigned heartbeat_ms; /* 0: RAFT_HEARTBEAT_MS */
    unsigned promise_ms;   /* 0: RAFT_PROMISE_MS */
    /* the log is trimmed when it needs more than this; 0: MEMBER_KEEP_BYTES */
    uint64_t keep_bytes;
    uint64_t segment_bytes; /* segments of the log; 0: QUORUM_LOG_SEGMENT_BYTES */
    /* members to copy from if the store is empty and knows none, NULL: such a member does
     * not start; copied */
    const struct raft_config *sources;
    uint64_t seed_rate; /* bytes per second of a copy from another member; 0: no limit */
    /* acknowledge: memory. Changes count when a majority has written them; they are
     * synced a second later, or when somebody waits for that. */
    bool is_lazy;
    /* a witness: votes and keeps the log, but its kv keeps no metadata; never serves */
    bool is_witness;
    /* changes when the machine goes down, boot_number(); 0: never asked */
    uint64_t boot;
    /* addresses at which this exportd listens for clients. "*:PORT" and the like stand
     * for the host at which other members reach it */
    struct member_clients clients;
};
#define MEMBER_KEEP_BYTES (UINT64_C(1) << 30)

/** Makes a member. Returns 0 or -ENOMEM. */
int member_open(const struct member_config *config, struct member **out);
/**
 * Reads log and vote, and takes part in the quorum from then on. If it cannot, since it
 * lacks what it had promised, it copies the store of another member first; it does not
 * vote before that is complete. done(arg, rc): 0 (it takes part, or copies), or an error
 * with a text in *err; err must live until then.
 */
void member_start(struct member *m, struct err *err, void (*done)(void *arg, int rc),
                  void *arg);
/**
 * Ends: gives leadership up (hooks.depose), sends and writes nothing more, then calls
 * done(arg). Until then the kv's side gives its jobs back. member_free() follows.
 */
void member_stop(struct member *m, void (*done)(void *arg), void *arg);
/** Frees a member that has not started, or has stopped. NULL is fine. */
void member_free(struct member *m);

/**
 * Handles all requests of other members (RF_*), in any state: takes the call. Others
 * than nodes are refused.
 */
void member_handle(struct member *m, struct rpc_call *call);

/**
 * The machine at the other end of this channel of peers.open() refuses links: the process
 * of that member is dead, as it seems. If it leads, another one is elected sooner. Any
 * channel, in any state.
 */
void member_refused(struct member *m, const struct rpc_channel *ch);

/* Calls of the kv's side. */
/** kv_quorum_lead() has been called; once for each hooks.lead. */
void member_led(struct member *m);
void member_submit(struct member *m, struct quorum_entry *const *parts, unsigned n_parts);
void member_applied(struct member *m, uint64_t index);
void member_synced(struct member *m, uint64_t index);
void member_confirm(struct member *m, uint64_t asked_ns);
void member_want_stable(struct member *m);
void member_seeded(struct member *m, struct seed_job *job);
/**
 * Returns until when no other member can lead; any thread. 0: there is no lease, or no
 * member_led() for this reign yet.
 */
uint64_t member_lease_until_ns(const struct member *m);

/**
 * Hands leadership over; 0: to any voter that is no witness. Returns as
 * raft_core_transfer() does.
 */
int member_transfer(struct member *m, uint64_t to);

/* Change of the list of members that somebody asks for. Embedded in its user's struct,
 * which lives until done. */
struct member_change {
    enum { MEMBER_CHANGE_ADD, MEMBER_CHANGE_REMOVE } kind;
    char address[RAFT_ADDRESS_MAX + 1]; /* ADD */
    uint64_t replaces;                  /* ADD: member that may have this address, too */
    /* ADD: a witness; not looked at if `replaces` is a member: the new one is of its kind
     */
    bool is_witness;
    uint64_t id;    /* ADD: out. REMOVE: in */
    bool is_forced; /* REMOVE: also if no majority of the others is heard */
    /**
     * 0: a committed list has the member, or lacks it. -ROZO_ENOT_LEADER; -EBUSY: try
     * again; any other result comes with a text in err. Perhaps inside the call.
     */
    void (*done)(struct member_change *c, int rc);
    struct err err;
    /* The rest is private. */
    struct member *m;
    uint64_t index;              /* entry of the list; 0: not made yet */
    struct rpc_channel *channel; /* owned: the new member is being asked */
    struct rpc_request rq;
};
/**
 * Changes the list of members, as the leader; one change at a time. A member that is
 * added becomes a voter in steps that each leader goes on with: a spare that learns its
 * id (RF_ADOPT), on standby while it copies the store, a voter when it has caught up.
 */
void member_change(struct member *m, struct member_change *c);

/* State of a member, for people. */
struct member_status {
    uint64_t id, term, leader; /* leader 0: not known */
    bool leads, is_ready;      /* is_ready: exportd's core may run here */
    uint64_t first, last;      /* indexes in the log */
    uint64_t commit, stable, applied;
    uint64_t log_bytes;
    struct raft_config members;
    struct member_clients clients[RAFT_SERVERS_MAX]; /* clients[i]: of members[i] */
    /* why it copies the store of another member; SEED_NONE: it does not */
    enum seed_doubt seeding;
    bool is_witness;
    /* leader or witness: all voters that keep the metadata have all entries up to here on
     * stable storage; 0: not known */
    uint64_t covered;
    bool is_removed;                /* this member is none any more */
    uint64_t seed_bytes, seed_from; /* copied so far; raft id of the source */
    /* the copy is complete when no key is missing and it has all entries up to
     * seed_target (0: not known yet); seed_index: entries that it has */
    bool seed_has_keys;
    uint64_t seed_index, seed_target;
    /* this member may have lost, with its power, what it had acknowledged: it takes no
     * part before a leader or all other voters have answered */
    bool is_uncertain;
    /* members that did not answer, of those that it asks while it copies or is
     * uncertain */
    unsigned n_silent;
    uint64_t silent[RAFT_SERVERS_MAX];
    uint64_t losses; /* kv_quorum_losses(); not set by member_status() */
};
void member_status(const struct member *m, struct member_status *out);

#endif
