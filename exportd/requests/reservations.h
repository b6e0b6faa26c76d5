/*
 * reservations.h - streams that are reserved for hosts, and what storages can carry.
 *
 * docs/internals/streams.md describes the rules.
 */
#ifndef ROZO_EXPORTD_REQUESTS_RESERVATIONS_H
#define ROZO_EXPORTD_REQUESTS_RESERVATIONS_H

#include <stdint.h>

#include "common/base/err.h"
#include "exportd/cluster/exportd_state.h"

enum {
    RESERVATIONS_MAX = 4096,
    RESERVED_STREAMS_MAX = 10000, /* read or written ones of a reservation */
};

/* Streams of one host and one export. One for each pair at most. */
struct reservation {
    struct list_node link; /* in reservations.list */
    uint32_t export;
    uint32_t n_reads, n_writes; /* at most RESERVED_STREAMS_MAX, not both 0 */
    uint64_t rate;              /* bytes per second of each, 1 to RESERVED_RATE_MAX */
    char host[HOST_MAX + 1];
};
static const uint64_t RESERVED_RATE_MAX = 1000000000000;

struct reservations {
    struct list_node list; /* owned */
    unsigned n;
};

/* Bytes per second that reservations may need of one storage. */
struct reserved_load {
    uint64_t read_bytes, written_bytes;
};

void reservations_init(struct reservations *all);
/** Loads what the store has. Returns 0, or -errno with a message. */
int reservations_load(struct exportd *x, struct err *err);
void reservations_free(struct reservations *all);
/** Returns the reservation, or NULL. */
struct reservation *reservation_find(const struct exportd *x, uint32_t export,
                                     const char *host);
/** Returns the rate that is reserved for the host of this session; 0: none is. */
uint64_t reservation_rate_of(const struct session *session);
/**
 * Returns the load that all reservations together may put on a storage: that of all
 * streams at once, if all their files lie there.
 */
struct reserved_load reserved_load_of(const struct cluster_storage *s);
/** Returns the sum of that. A hook: exportd_hooks.reserved. */
uint64_t reserved_bytes_of(const struct cluster_storage *s);
/**
 * Checks whether all storages of the volume can carry it, in place of what its host has
 * of this export. Returns 0, or -errno with a message.
 */
int reservation_admit(struct exportd *x, const struct reservation *wanted,
                      char message[MESSAGE_MAX + 1]);
/**
 * Keeps an admitted reservation, in place of the one before. Storages learn of it by the
 * next map. Returns 0, -ENOMEM, or -EBUSY when there are too many.
 */
int reservation_put(struct exportd *x, const struct reservation *wanted);
/** Removes and frees it. */
void reservation_drop(struct exportd *x, struct reservation *r);

#endif
