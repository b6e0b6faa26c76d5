/*
 * storage_peers.h - one loop's channels to the storages of the cluster, kept as the map says.
 *
 * Shell: makes rpc_tcp channels. One thread.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_STORAGE_PEERS_H
#define ROZO_ROZOMOUNT_SESSION_STORAGE_PEERS_H

#include "common/rpc/rpc_tcp.h"
#include "rozomount/session/mount_session.h"
#include "storcli/blocks.h"

struct storage_peer;

/* Embedded in its loop. */
struct storage_peers {
    struct env_uv *env;
    const struct rpc_keys *keys; /* borrowed */
    uint64_t session;            /* on every channel */
    struct storage_peer *by_id;
    unsigned n_closing; /* channels on their way out */
    void (*closed)(void *arg);
    void *closed_arg;
};

void storage_peers_init(struct storage_peers *peers, struct env_uv *env,
                        const struct rpc_keys *keys);
void storage_peers_set_session(struct storage_peers *peers, uint64_t session);
/** New storages get a channel, moved and replaced ones another, those gone lose theirs. */
void storage_peers_update(struct storage_peers *peers, const struct cluster_map *map);
/** For struct storcli_peers; arg is the struct storage_peers. */
struct rpc_channel *storage_peers_channel(void *arg, uint32_t storage_id);
/** "host:port host:port" of a storage, "" when unknown. Borrowed until the next update. */
const char *storage_peers_addresses(const struct storage_peers *peers,
                                    uint32_t storage_id);
/** Close every channel, then closed(arg): later, or at once when there is none. */
void storage_peers_close(struct storage_peers *peers, void (*closed)(void *arg),
                         void *arg);

#endif
