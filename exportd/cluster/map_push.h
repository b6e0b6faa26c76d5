/*
 * map_push.h - storages get the map of the cluster.
 */
#ifndef ROZO_EXPORTD_CLUSTER_MAP_PUSH_H
#define ROZO_EXPORTD_CLUSTER_MAP_PUSH_H

#include "exportd/cluster/exportd_state.h"

/** Tell a storage that is up, if it lacks the map of today. */
void storage_push_map(struct storage *s);
/** What it says it knows. */
void storage_knows_map(struct storage *s, uint64_t known);
void map_push_stop(struct storage *s);

#endif
