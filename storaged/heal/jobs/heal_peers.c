/*
 * heal_peers.c - know the storages of the cluster map, and keep channels to them.
 *
 * In:     maps that healer.c checked. Thread: the healer's.
 * Out:    config.peers opens and closes channels.
 * Keeps:  peers are ascending by id; a channel is of the map's incarnation and addresses.
 */

#include "storaged/heal/jobs/heal_peers.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "common/base/bytes.h"
#include "common/base/units.h"
#include "storaged/heal/jobs/heal_state.h"

enum {
    GATHER_STEP_MS = 20,
};

static struct heal_peer *peer_find(const struct healer *h, uint32_t id)
{
    unsigned lo = 0, hi = h->n_peers;

    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;

        if (h->peers[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < h->n_peers && h->peers[lo].id == id ? &h->peers[lo] : NULL;
}

struct rpc_channel *healer_channel(void *healer, uint32_t storage)
{
    struct heal_peer *peer = peer_find(healer, storage);

    return peer == NULL ? NULL : peer->channel;
}

bool healer_peer_is_up(const struct heal_peer *peer)
{
    return peer->channel != NULL && rpc_channel_health(peer->channel) == RPC_UP;
}

/* Returns whether all storages that are not lost are up, ours included, and there are
 * others: then waiting gains nothing. */
static bool peers_are_up(const struct healer *h)
{
    for (unsigned i = 0; i < h->n_peers; i++) {
        if (!h->peers[i].lost && !healer_peer_is_up(&h->peers[i]))
            return false;
    }
    return h->n_peers > 1;
}

uint64_t healer_gather_until_ns(const struct healer *h)
{
    return env_now_ns(h->env) + ms_to_ns(GATHER_MS);
}

bool healer_gathers(struct healer *h, struct env_timer *timer, uint64_t until_ns)
{
    assert(h->started && !h->stopping);
    if (env_now_ns(h->env) >= until_ns || peers_are_up(h))
        return false;
    env_timer_start(h->env, timer, GATHER_STEP_MS);
    return true;
}

bool healer_is_lost(const struct healer *h, uint32_t storage)
{
    const struct heal_peer *peer = peer_find(h, storage);

    return peer != NULL && peer->lost;
}

bool healer_is_replaced(const struct healer *h, uint32_t storage,
                        const ProtobufCBinaryData *incarnation)
{
    const struct heal_peer *peer = peer_find(h, storage);

    return peer != NULL && incarnation->len == IDENTITY_ID_BYTES &&
           !bytes_are_zero(peer->incarnation, IDENTITY_ID_BYTES) &&
           memcmp(peer->incarnation, incarnation->data, IDENTITY_ID_BYTES) != 0;
}

unsigned healer_home(const struct healer *h, const struct storcli_target *target)
{
    unsigned place = heal_place(target, h->us);
    unsigned n = codec_n(codec_get(target->codec, target->layout, target->block_bytes));
    unsigned spare = n;

    if (place < n || place == DIST_MAX)
        return place;
    for (unsigned p = 0; p < n; p++) {
        if (!healer_is_lost(h, target->storages[p]))
            continue;
        while (spare < target->n_storages && healer_is_lost(h, target->storages[spare]))
            spare++;
        if (spare++ == place)
            return p;
    }
    return DIST_MAX;
}

static void peer_close(struct healer *h, struct heal_peer *peer)
{
    struct rpc_channel *ch = peer->channel;

    peer->channel = NULL;
    if (ch != NULL)
        h->config.peers.close(h->config.peers.arg, ch);
    for (unsigned i = 0; i < peer->n_addrs; i++)
        free(peer->addrs[i]);
    peer->n_addrs = 0;
}

static void incarnation_get(const Rozo__Storage *s,
                            uint8_t incarnation[IDENTITY_ID_BYTES])
{
    memset(incarnation, 0, IDENTITY_ID_BYTES);
    if (s->incarnation.len != 0)
        memcpy(incarnation, s->incarnation.data, IDENTITY_ID_BYTES);
}

static bool peer_is(const struct heal_peer *peer, const Rozo__Storage *s)
{
    uint8_t incarnation[IDENTITY_ID_BYTES];

    incarnation_get(s, incarnation);
    if (peer->n_addrs != s->n_addresses ||
        memcmp(peer->incarnation, incarnation, IDENTITY_ID_BYTES) != 0)
        return false;
    for (size_t i = 0; i < s->n_addresses; i++) {
        if (strcmp(peer->addrs[i], s->addresses[i]) != 0)
            return false;
    }
    return true;
}

static void peer_connect(struct healer *h, struct heal_peer *peer, const Rozo__Storage *s)
{
    peer_close(h, peer);
    incarnation_get(s, peer->incarnation);
    for (size_t i = 0; i < s->n_addresses && i < HEAL_ADDRS_MAX; i++) {
        char *addr = strdup(s->addresses[i]);

        if (addr != NULL)
            peer->addrs[peer->n_addrs++] = addr;
    }
    if (peer->n_addrs > 0)
        peer->channel =
            h->config.peers.open(h->config.peers.arg, peer->id, peer->incarnation,
                                 (const char *const *)peer->addrs, peer->n_addrs);
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = ((const struct heal_peer *)a)->id, y = ((const struct heal_peer *)b)->id;

    return x < y ? -1 : x > y;
}

static int peer_add(struct healer *h, uint32_t id)
{
    struct heal_peer *peers;

    assert(peer_find(h, id) == NULL);
    peers = realloc(h->peers, (h->n_peers + 1) * sizeof(*peers));
    if (peers == NULL)
        return -ENOMEM;
    h->peers = peers;
    peers[h->n_peers++] = (struct heal_peer){ .id = id };
    qsort(peers, h->n_peers, sizeof(*peers), by_id);
    return 0;
}

static void peers_sweep(struct healer *h)
{
    unsigned n = 0;

    for (unsigned i = 0; i < h->n_peers; i++) {
        if (h->peers[i].in_map)
            h->peers[n++] = h->peers[i];
        else
            peer_close(h, &h->peers[i]);
    }
    h->n_peers = n;
}

int healer_peers_apply(struct healer *h, const Rozo__StMapReq *map)
{
    for (unsigned i = 0; i < h->n_peers; i++)
        h->peers[i].in_map = false;
    for (size_t i = 0; i < map->n_storages; i++) {
        const Rozo__Storage *s = map->storages[i];
        struct heal_peer *peer = peer_find(h, s->id);

        if (peer == NULL) {
            int rc = peer_add(h, s->id);

            if (rc != 0)
                return rc;
            peer = peer_find(h, s->id);
        }
        if (!peer_is(peer, s) || peer->channel == NULL)
            peer_connect(h, peer, s);
        peer->in_map = true;
        peer->lost = s->lost;
    }
    peers_sweep(h);
    return 0;
}

void healer_peers_close(struct healer *h)
{
    for (unsigned i = 0; i < h->n_peers; i++)
        peer_close(h, &h->peers[i]);
}
