/*
 * exportd.h - the metadata daemon without its sockets, threads and files.
 *
 * One state machine on one thread, that of the env: requests come in as rpc_calls, everything is
 * kept in a kv, storages are reached over channels that the shell opens. Every call is answered
 * exactly once, and only after what it says is safe.
 */
#ifndef ROZO_EXPORTD_EXPORTD_H
#define ROZO_EXPORTD_EXPORTD_H

#include "common/base/capability.h"
#include "common/base/err.h"
#include "common/env/env.h"
#include "common/env/kv.h"
#include "common/rpc/rpc.h"

struct exportd;

/* How to reach storages, as a node. */
struct exportd_peers {
    /** A channel to one storage at these addresses; NULL when they make no sense. */
    struct rpc_channel *(*open)(void *arg, const char *const *addrs, unsigned n_addrs);
    /** No request is outstanding on it. */
    void (*close)(void *arg, struct rpc_channel *ch);
    /** Why it does not work, "" when nothing is known. */
    const char *(*last_error)(void *arg, struct rpc_channel *ch);
    void *arg;
};

struct exportd_config {
    struct exportd_peers peers;
    struct capability_key *capabilities; /* borrowed */
    size_t cache_max;                    /* bytes of metadata in memory; 0: 256 MiB */
    uint32_t lease_ms; /* of sessions; 0: 20000, or evict_ms when that is less */
    uint32_t
        evict_ms; /* a session has so long to give back what others wait for; 0: 20000 */
    uint32_t session_tokens_max; /* inodes that a session may cache; 0: 262144 */
    uint32_t tokens_max;         /* ... and all sessions together; 0: 4 Mi */
    uint32_t
        strays_s; /* between two searches for files of inodes that are gone; 0: 3600 */
    bool grows_first; /* a fault for tests of the simulator: see redistribute.c */
    uint64_t
        boot; /* another number after each loss of power: what was not synced is gone */
};

/**
 * Take up what lies in the kv, or begin a new cluster in an empty one. A kv of an unknown format
 * is refused.
 */
int exportd_open(struct env *env, struct kv *kv, const struct exportd_config *config,
                 struct exportd **out, struct err *err);
/** 1 once requests are served, soon after exportd_open(); 0: they are told BUSY; or why never. */
int exportd_is_ready(const struct exportd *x);
/** An rpc_handler_cb; arg is the struct exportd. */
void exportd_handle(void *arg, struct rpc_call *call);
/**
 * Answer nothing new, answer what is waiting, sync; then done(arg, rc): 0 when all that was
 * acknowledged is on stable storage. Then exportd_close().
 */
void exportd_stop(struct exportd *x, void (*done)(void *arg, int rc), void *arg);
/** After exportd_stop() is done. NULL is fine. */
void exportd_close(struct exportd *x);

/* What a session holds of an inode; see tokens.h. */
struct exportd_token {
    uint32_t export_id;
    uint64_t session, ino;
    unsigned mode; /* of Rozo__TokenMode; not NONE */
    const struct spans
        *ranges; /* of RANGES, to read 1, to write 2; borrowed while it is told */
};
/** For checks: all of them, in no order. */
void exportd_each_token(const struct exportd *x,
                        void (*fn)(void *arg, const struct exportd_token *token),
                        void *arg);
/** For checks: is it open here? */
bool exportd_has_session(const struct exportd *x, uint64_t id);

/** 16 bytes. */
const uint8_t *exportd_cluster_id(const struct exportd *x);

#endif
