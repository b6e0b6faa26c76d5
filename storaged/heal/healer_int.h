/*
 * healer_int.h - declarations shared by the parts of the healer. Inside storaged/heal
 * only.
 *
 * A part (resync, rebuild, scrub, checks) makes jobs; heal_jobs.c runs a limited number
 * of them, in the order of their rank; repair.c does the work. Operations that will call
 * back count in n_busy, so that a stop knows when nothing points to the healer any more.
 */
#ifndef ROZO_STORAGED_HEAL_HEALER_INT_H
#define ROZO_STORAGED_HEAL_HEALER_INT_H

#include "common/base/list.h"
#include "storaged/disk/bad_page_disk.h"
#include "storaged/heal/heal_check.h"
#include "storaged/heal/healer.h"
#include "storaged/heal/list/hint_log.h"
#include "storaged/heal/list/proj_list.h"
#include "storaged/heal/rebuild.h"
#include "storaged/heal/repair/repair.h"
#include "storaged/heal/resync.h"
#include "storaged/heal/scrub.h"

enum {
    ASK_DEADLINE_MS = 15000,
    GATHER_MS = 1000, /* longest wait for all peers to be up before a walk begins */
};

struct healer;

/* ---- the map ---- */

/* One storage of the cluster map, our own too. */
struct heal_peer {
    uint32_t id;
    bool lost;                              /* lost for good */
    uint8_t incarnation[IDENTITY_ID_BYTES]; /* zeros: unknown */
    unsigned n_addrs;
    char *addrs[HEAL_ADDRS_MAX]; /* owned */
    struct rpc_channel *channel; /* owned; NULL: no valid address */
    bool in_map;                 /* mark while a new map is applied */
};

/* A rate limit in bytes per second, kept as the time from which more may be taken. */
struct rate {
    uint64_t bytes_per_s; /* 0: no limit */
    uint64_t free_at_ns;
};

/* ---- parts ---- */

/* Writes that we hold for other storages; only handoff.c writes this. */
struct handoffs {
    struct list_node list; /* oldest first */
    unsigned n;
    struct env_timer timer;
};

/* Proofs that were asked for, oldest first; only prove.c writes this. */
struct proofs {
    struct list_node list;
    unsigned n;
};

struct healer {
    struct healer_config config;
    struct env *env;
    struct bad_page_disk disk; /* wraps config.disk and remembers its bad pages */
    uint32_t us;               /* our storage id; 0: not admitted */
    struct hint_log *hints;
    struct repairer *repairer, *scrub_repairer; /* NULL before we are admitted */
    bool started, stopping;
    unsigned n_busy;       /* lists, questions, saves and syncs under way */
    struct list_node asks; /* under way; only heal_ask.c writes this */
    void (*stop_done)(void *arg);
    void *stop_arg;
    struct hint_log_wait stop_wait;
    struct env_task stop_task;

    uint64_t map_version;
    struct heal_peer *peers; /* owned, ascending by id */
    unsigned n_peers;

    struct rate rate, scrub_rate;
    struct heal_jobs jobs;
    struct handoffs handoffs;
    struct proofs proofs;
    struct resync resync;
    struct heal_checks checks;
    struct rebuild rebuild;
    struct scrub scrub;
};

/** Returns the channel to a storage, borrowed; NULL: none. healer is a struct healer. */
struct rpc_channel *healer_channel(void *healer, uint32_t storage);
/** Returns our incarnation, for messages; borrowed. */
ProtobufCBinaryData healer_incarnation(const struct healer *h);
/**
 * Returns whether the map has another incarnation of this storage; false if either is
 * unknown.
 */
bool healer_is_replaced(const struct healer *h, uint32_t storage,
                        const ProtobufCBinaryData *incarnation);
bool healer_peer_is_up(const struct healer *h, const struct heal_peer *peer);
/**
 * Returns until when a walk that begins now waits for peers that are not up: after a
 * start there are no links to all peers yet, nor to our own storage.
 */
uint64_t healer_gather_until_ns(const struct healer *h);
/**
 * Returns true if it is not until_ns yet and a storage that is not lost, ours included,
 * is not up. Then the timer runs again.
 */
bool healer_gathers(struct healer *h, struct env_timer *timer, uint64_t until_ns);
/** Returns whether the map says that this storage is lost for good. */
bool healer_is_lost(const struct healer *h, uint32_t storage);
/**
 * Returns the projection that we must hold: that of our place, or, as a spare, that of a
 * lost home (as repair.h assigns them). DIST_MAX: none.
 */
unsigned healer_home(const struct healer *h, const struct storcli_target *target);
/** Ends an operation that was counted in n_busy. */
void healer_idle(struct healer *h);
/** Writes a key, without waiting for it. val NULL: deletes it. */
void healer_put(struct healer *h, const char *key, const void *val, size_t len);
/**
 * Reads a key of exactly len bytes into val. Returns 0, -ENOENT, or -ROZO_EDAMAGED for
 * another length.
 */
int healer_get(struct healer *h, const char *key, void *val, size_t len);
/** Answers a call with OK and a message. */
void heal_reply(struct rpc_call *call, const ProtobufCMessage *msg);

void hints_handle(struct healer *h, struct rpc_call *call);
void hints_handle_list(struct healer *h, struct rpc_call *call);
void hints_handle_done(struct healer *h, struct rpc_call *call);

void handoff_init(struct healer *h);
void handoff_start(struct healer *h);
void handoff_stop(struct healer *h);

void proofs_init(struct healer *h);
void prove_handle(struct healer *h, struct rpc_call *call);
void proofs_stop(struct healer *h);

#endif
