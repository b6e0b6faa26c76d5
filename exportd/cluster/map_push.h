/*
 * map_push.h - the map of the cluster, pushed to storages.
 */
#ifndef ROZO_EXPORTD_CLUSTER_MAP_PUSH_H
#define ROZO_EXPORTD_CLUSTER_MAP_PUSH_H

#include <stdbool.h>

#include "common/proto/rozo.pb-c.h"

#include "common/rpc/rpc.h"

struct cluster_storage;
struct exportd;

/* State of the map at one storage. */
struct map_push {
    struct rpc_request rq;
    uint64_t sent;     /* version of the map in rq; 0: no request outstanding */
    uint64_t acked;    /* version of the last map it took; 0: none */
    uint64_t acked_ns; /* ns, monotonic; when it took that map */
    uint64_t known;    /* version that it reports; 0: it does not report one */
};

/** Sends the newest map to a storage that is up and lacks it. */
void storage_push_map(struct cluster_storage *s);
/**
 * Compares our map with that of a storage of this cluster, as its answer to ST_INFO has
 * it. If ours is older, another member of the quorum leads, or the metadata were restored
 * from a backup: then our map becomes newer (exportd_config.deposed).
 */
void map_is_known(struct exportd *x, uint32_t storage, const Rozo__StInfoResp *info);
/** Takes the version of the map that a storage reports. */
void storage_knows_map(struct cluster_storage *s, const Rozo__StInfoResp *info);
/** Notes that the storage may have forgotten all maps: it came up, or was replaced. */
void map_push_forget(struct cluster_storage *s);
/** Returns true if the storage has taken the map of this version, or a newer one. */
bool storage_has_map(const struct cluster_storage *s, uint64_t version);
/** Cancels what is under way. */
void map_push_stop(struct cluster_storage *s);

#endif
