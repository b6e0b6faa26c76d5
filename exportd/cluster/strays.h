/*
 * strays.h - strays: projection files whose inode is gone.
 */
#ifndef ROZO_EXPORTD_CLUSTER_STRAYS_H
#define ROZO_EXPORTD_CLUSTER_STRAYS_H

#include <stdbool.h>

#include "common/rpc/rpc.h"
#include "common/wire/record.h"

struct cluster_storage;
struct exportd;

enum { STRAYS_A_TICK = 256 }; /* files that are looked up, of all storages together */

/* Search for strays: one sweep over all storages, or the pause before the next. */
struct strays {
    struct rpc_request rq;
    /* files of the page in which the storage has no place any more */
    struct file_id left[STRAYS_A_TICK];
    unsigned n_left, n_left_sent;  /* files in left; sent of these */
    struct cluster_storage *asked; /* borrowed; NULL: no request outstanding */
    uint32_t storage_id;           /* the sweep continues at this id or a larger one */
    bool has_after;
    uint8_t after[FILE_ID_BYTES]; /* last file of its list that was looked at */
    uint64_t n_found;             /* strays found in this sweep */
    uint64_t next_ns;             /* ns, monotonic; earliest next sweep */
};

/** Begins the first pause, at the start of exportd. */
void strays_begin(struct exportd *x);
void strays_tick(struct exportd *x);
/** Cancels what is under way. */
void strays_stop(struct exportd *x);

#endif
