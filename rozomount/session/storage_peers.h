/*
 * storage_peers.h - channels of one loop to the storages of the cluster, as the map lists
 * them.
 *
 * Shell: makes rpc_tcp channels. One thread.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_STORAGE_PEERS_H
#define ROZO_ROZOMOUNT_SESSION_STORAGE_PEERS_H

#include "common/rpc/rpc_tcp.h"
#include "rozomount/session/mount_session.h"
#include "storcli/blocks.h"

struct storage_peer;

/* Channels of one loop. Embedded in the loop. */
struct storage_peers {
    struct env_uv *env;
    const struct rpc_keys *keys; /* borrowed */
    uint64_t session;            /* set on every channel */
    struct storage_peer *by_id;
    unsigned n_closing; /* channels being closed */
    void (*closed)(void *arg);
    void *closed_arg;
};

void storage_peers_init(struct storage_peers *peers, struct env_uv *env,
                        const struct rpc_keys *keys);
void storage_peers_set_session(struct storage_peers *peers, uint64_t session);
/**
 * Applies a map: opens channels to new storages, replaces those of moved or replaced
 * storages, closes those of removed storages.
 */
void storage_peers_update(struct storage_peers *peers, const struct cluster_map *map);
/**
 * Returns the channel of a storage, for struct storcli_peers; arg is the struct
 * storage_peers.
 */
struct rpc_channel *storage_peers_channel(void *arg, uint32_t storage_id);
/**
 * Returns "host:port host:port" of a storage, "" if unknown. Borrowed until the next
 * update.
 */
const char *storage_peers_addresses(const struct storage_peers *peers,
                                    uint32_t storage_id);
/** Closes every channel, then calls closed(arg): later, or at once if there is none. */
void storage_peers_close(struct storage_peers *peers, void (*closed)(void *arg),
                         void *arg);

#endif
