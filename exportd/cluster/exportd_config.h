/*
 * exportd_config.h - limits of exportd, and its way to storages.
 */
#ifndef ROZO_EXPORTD_CLUSTER_EXPORTD_CONFIG_H
#define ROZO_EXPORTD_CLUSTER_EXPORTD_CONFIG_H

#include "common/base/capability.h"
#include "common/base/err.h"
#include "common/rpc/rpc.h"

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

#endif
