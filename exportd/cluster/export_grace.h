/*
 * export_grace.h - the grace of an export after a start of exportd.
 */
#ifndef ROZO_EXPORTD_CLUSTER_EXPORT_GRACE_H
#define ROZO_EXPORTD_CLUSTER_EXPORT_GRACE_H

#include <stdbool.h>
#include <stdint.h>

enum grace_phase {
    GRACE_OVER,        /* from the beginning if the export is newer than the start */
    GRACE_FOR_AWAITED, /* sessions that were open at the start may come back */
    GRACE_FOR_ANY,     /* any session may come back: no record of them was found */
    GRACE_ENDS,        /* none may come back; this is being made stable */
    GRACE_FOR_FENCES,  /* the end is stable, but storages may not know it yet */
};

/* Written by the sessions' room alone. All zero: over. */
struct export_grace {
    enum grace_phase phase;
    unsigned n_awaited; /* sessions of this export that may come back */
    unsigned n_fences;  /* fences of its sessions that it waits for */
    bool orphans_done;  /* no orphan is left from before the start */
    uint64_t orphan;    /* the search for them goes on at this inode */
};

#endif
