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

struct peer;

/* Embedded in its loop. */
struct peers {
    struct env_uv *env;
    const struct rpc_keys *keys; /* borrowed */
    uint64_t session;            /* on every channel */
    struct peer *by_id;
    unsigned n_closing; /* channels on their way out */
    void (*closed)(void *arg);
    void *closed_arg;
};

void peers_init(struct peers *peers, struct env_uv *env, const struct rpc_keys *keys);
void peers_set_session(struct peers *peers, uint64_t session);
/** New storages get a channel, moved and replaced ones another, those gone lose theirs. */
void peers_update(struct peers *peers, const struct cluster_map *map);
/** For struct storcli_peers; arg is the struct peers. */
struct rpc_channel *peers_channel(void *arg, uint32_t storage_id);
/** "host:port host:port" of a storage, "" when unknown. Borrowed until the next update. */
const char *peers_addresses(const struct peers *peers, uint32_t storage_id);
/** Close every channel, then closed(arg): later, or at once when there is none. */
void peers_close(struct peers *peers, void (*closed)(void *arg), void *arg);

#endif
