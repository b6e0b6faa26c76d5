/*
 * storage_peers.c - channels to storages by id.
 *
 * In:     maps from the session. Out: rpc_tcp channels. Shell, one loop.
 * Keeps:  a replaced channel is closed only after storcli can no longer find it.
 */
#include "rozomount/session/storage_peers.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "rozomount/options/xalloc.h"

static_assert((int)MAP_ADDRS_MAX == (int)RPC_ADDR_MAX, "a map's addresses fit a channel");
static_assert((int)MAP_ADDR_TEXT_MAX == (int)RPC_ADDR_TEXT_MAX, "and so do their texts");

struct storage_peer {
    uint32_t id;
    struct map_storage where;
    struct rpc_channel *channel; /* NULL: no address, or it could not be made */
    char *addresses;             /* for people; owned */
    bool in_map;                 /* storage_peers_update()'s mark */
    UT_hash_handle hh;
};

void storage_peers_init(struct storage_peers *peers, struct env_uv *env,
                        const struct rpc_keys *keys)
{
    memset(peers, 0, sizeof(*peers));
    peers->env = env;
    peers->keys = keys;
}

static void on_channel_closed(void *arg)
{
    struct storage_peers *peers = arg;

    peers->n_closing--;
    if (peers->n_closing == 0 && peers->closed != NULL && peers->by_id == NULL) {
        void (*closed)(void *arg) = peers->closed;

        peers->closed = NULL;
        closed(peers->closed_arg);
    }
}

static void peer_drop_channel(struct storage_peers *peers, struct storage_peer *peer)
{
    struct rpc_channel *channel = peer->channel;

    if (channel == NULL)
        return;
    peer->channel = NULL;
    peers->n_closing++;
    rpc_tcp_channel_close(channel, on_channel_closed, peers);
}

static void peer_make_channel(struct storage_peers *peers, struct storage_peer *peer)
{
    const char *addrs[MAP_ADDRS_MAX];
    struct rpc_channel_config config = {
        .keys = peers->keys,
        .role = RPC_ROLE_CLIENT,
        .name = "rozomount",
        .addrs = addrs,
        .n_addrs = peer->where.n_addrs,
        .incarnation = peer->where.incarnation,
    };
    struct err err = { 0 };

    if (peer->where.n_addrs == 0)
        return;
    for (unsigned i = 0; i < peer->where.n_addrs; i++)
        addrs[i] = peer->where.addrs[i];
    if (rpc_tcp_channel_open(peers->env, &config, &peer->channel, &err) != 0) {
        log_error("storage %u at %s: %s", peer->id, peer->addresses, err.text);
        peer->channel = NULL;
        return;
    }
    rpc_tcp_channel_set_session(peer->channel, peers->session);
}

static char *addresses_text(const struct map_storage *where)
{
    char *text = xzalloc((size_t)where->n_addrs * MAP_ADDR_TEXT_MAX + 1);

    for (unsigned i = 0; i < where->n_addrs; i++) {
        if (i != 0)
            strcat(text, " ");
        strcat(text, where->addrs[i]);
    }
    return text;
}

static bool where_is_same(const struct map_storage *a, const struct map_storage *b)
{
    if (a->n_addrs != b->n_addrs ||
        memcmp(a->incarnation, b->incarnation, sizeof(a->incarnation)) != 0)
        return false;
    for (unsigned i = 0; i < a->n_addrs; i++) {
        if (strcmp(a->addrs[i], b->addrs[i]) != 0)
            return false;
    }
    return true;
}

static void peers_set_one(struct storage_peers *peers, const struct map_storage *where)
{
    struct storage_peer *peer = hash_find(peers->by_id, where->id);

    if (peer == NULL) {
        peer = xzalloc(sizeof(*peer));
        peer->id = where->id;
        hash_add(peers->by_id, id, peer);
    } else if (where_is_same(&peer->where, where) && peer->channel != NULL) {
        peer->in_map = true;
        return;
    }
    peer_drop_channel(peers, peer);
    free(peer->addresses);
    peer->where = *where;
    peer->addresses = addresses_text(where);
    peer->in_map = true;
    peer_make_channel(peers, peer);
}

static void peer_remove(struct storage_peers *peers, struct storage_peer *peer)
{
    HASH_DEL(peers->by_id, peer);
    peer_drop_channel(peers, peer);
    free(peer->addresses);
    free(peer);
}

void storage_peers_update(struct storage_peers *peers, const struct cluster_map *map)
{
    struct storage_peer *peer, *next;

    HASH_ITER(hh, peers->by_id, peer, next)
    peer->in_map = false;
    for (unsigned i = 0; i < map->n_storages; i++)
        peers_set_one(peers, &map->storages[i]);
    HASH_ITER(hh, peers->by_id, peer, next)
    {
        if (!peer->in_map)
            peer_remove(peers, peer);
    }
}

void storage_peers_set_session(struct storage_peers *peers, uint64_t session)
{
    struct storage_peer *peer, *next;

    peers->session = session;
    HASH_ITER(hh, peers->by_id, peer, next)
    {
        if (peer->channel != NULL)
            rpc_tcp_channel_set_session(peer->channel, session);
    }
}

static struct storage_peer *peer_find(const struct storage_peers *peers, uint32_t id)
{
    struct storage_peer *peer;

    peer = hash_find(peers->by_id, id);
    return peer;
}

struct rpc_channel *storage_peers_channel(void *arg, uint32_t storage_id)
{
    struct storage_peer *peer = peer_find(arg, storage_id);

    return peer == NULL ? NULL : peer->channel;
}

const char *storage_peers_addresses(const struct storage_peers *peers,
                                    uint32_t storage_id)
{
    struct storage_peer *peer = peer_find(peers, storage_id);

    return peer == NULL ? "" : peer->addresses;
}

void storage_peers_close(struct storage_peers *peers, void (*closed)(void *arg),
                         void *arg)
{
    struct storage_peer *peer, *next;

    peers->closed = closed;
    peers->closed_arg = arg;
    peers->n_closing++; /* counts this loop, so that `closed` is called once, after it */
    HASH_ITER(hh, peers->by_id, peer, next)
    peer_remove(peers, peer);
    on_channel_closed(peers);
}
