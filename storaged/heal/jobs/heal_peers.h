/*
 * heal_peers.h - the storages of the cluster map, and channels to them. Inside
 * storaged/heal only.
 *
 * Only heal_peers.c writes these members, and healer.peers.
 */
#ifndef ROZO_STORAGED_HEAL_JOBS_HEAL_PEERS_H
#define ROZO_STORAGED_HEAL_JOBS_HEAL_PEERS_H

#include "storaged/heal/jobs/heal_config.h"

struct healer;

/* Longest wait for all peers to be up before a walk begins. */
enum { GATHER_MS = 1000 };

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

/** Takes the storages of a map, which was checked. Returns 0 or -ENOMEM. */
int healer_peers_apply(struct healer *h, const Rozo__StMapReq *map);
/** Closes all channels. */
void healer_peers_close(struct healer *h);

/** Returns the channel to a storage, borrowed; NULL: none. healer is a struct healer. */
struct rpc_channel *healer_channel(void *healer, uint32_t storage);
/**
 * Returns whether the map has another incarnation of this storage; false if either is
 * unknown.
 */
bool healer_is_replaced(const struct healer *h, uint32_t storage,
                        const ProtobufCBinaryData *incarnation);
bool healer_peer_is_up(const struct heal_peer *peer);
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

#endif
