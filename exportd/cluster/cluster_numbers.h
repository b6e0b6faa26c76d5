/*
 * cluster_numbers.h - numbers of the cluster that outlive exportd.
 */
#ifndef ROZO_EXPORTD_CLUSTER_CLUSTER_NUMBERS_H
#define ROZO_EXPORTD_CLUSTER_CLUSTER_NUMBERS_H

#include <stdbool.h>
#include <stdint.h>

/* Written by cluster.c alone. */
struct cluster_numbers {
    uint32_t next_storage, next_volume, next_export; /* ids */
    uint32_t n_starts;
    uint32_t returns;   /* how often the kv has gone back to an earlier state */
    uint32_t last_loss; /* number of the last start after a loss of power; 0: none */
    uint64_t last_boot; /* exportd_config.boot when exportd last ran */
    bool stopped_well;  /* the last run stopped with everything stable */
};

#endif
