/*
 * exportd_config.h - limits of exportd, and its way to storages.
 */
#ifndef ROZO_EXPORTD_CLUSTER_EXPORTD_CONFIG_H
#define ROZO_EXPORTD_CLUSTER_EXPORTD_CONFIG_H

#include "common/base/err.h"
#include "common/group/exportd_list.h"
#include "common/rpc/rpc.h"
#include "common/wire/capability.h"

/* Functions that connect to storages, as a node of the cluster. */
struct exportd_peers {
    /**
     * Opens a channel to one storage at these addresses. Returns NULL if they are not
     * valid.
     */
    struct rpc_channel *(*open)(void *arg, const char *const *addrs, unsigned n_addrs);
    /** Closes a channel without outstanding requests. */
    void (*close)(void *arg, struct rpc_channel *ch);
    /** Returns why the channel does not work; "" if unknown. */
    const char *(*last_error)(void *arg, struct rpc_channel *ch);
    void *arg;
};

struct exportd_config {
    struct exportd_peers peers;
    struct capability_key *capabilities; /* borrowed */
    size_t cache_max;                    /* bytes of metadata in memory; 0: 256 MiB */
    uint32_t lease_ms; /* lease of sessions; 0: 20000, or evict_ms if that is less */
    /* time for a session to give back what others wait for; 0: 20000 */
    uint32_t evict_ms;
    uint32_t session_tokens_max; /* inodes that a session may cache; 0: 262144 */
    uint32_t tokens_max; /* inodes that all sessions together may cache; 0: 4 Mi */
    uint32_t strays_s;   /* time between two searches for strays (strays.c); 0: 3600 */
    /*
     * Not NULL: this exportd leads a quorum. Called once, from an answer of a storage
     * that knows a later start: another member leads. From then on storages get no map of
     * ours, and exportd must be stopped, but not inside the call.
     * NULL: a later start at a storage shows that the metadata were restored from a
     * backup; exportd goes on as a later start than that.
     */
    void (*deposed)(void *arg);
    void *deposed_arg;
    /* this start gets a number above this one, of exportd_start_known() */
    uint64_t starts_min;
    /* where clients reach the members of the quorum; borrowed, may change. NULL: this
     * exportd is alone */
    const struct exportd_list *clients;
    bool grows_first;          /* fault for tests of the simulator: see redist_file.c */
    const uint8_t *cluster_id; /* 16 bytes, of this cluster, new or not; NULL: its own */
    /** Called when exportd_is_ready() has become 1. NULL: nobody. */
    void (*ready)(void *arg);
    void *ready_arg;
    /*
     * Changes with each loss of power that may have taken unsynced changes of this
     * metadata. If it differs from that of the last run, and that was not stopped in
     * order, this start counts as one after a loss (cluster_losses()), and the next
     * fsync of each mount that has changed something fails.
     * A single exportd: the boot id of its machine. In a quorum: the number of losses of
     * the group, the same on all members; with the boot id of a machine, each change of
     * the leader would count as a loss.
     */
    uint64_t boot;
};

#endif
