/*
 * map_push.h - the map of the cluster, pushed to storages.
 */
#ifndef ROZO_EXPORTD_CLUSTER_MAP_PUSH_H
#define ROZO_EXPORTD_CLUSTER_MAP_PUSH_H

#include "exportd/cluster/exportd_state.h"

/** Sends the newest map to a storage that is up and lacks it. */
void storage_push_map(struct cluster_storage *s);
/** Takes the version of the map that a storage reports. */
void storage_knows_map(struct cluster_storage *s, uint64_t known);
void map_push_stop(struct cluster_storage *s);

#endif
