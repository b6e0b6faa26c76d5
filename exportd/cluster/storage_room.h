/*
 * storage_room.h - how much users can still write to the storages of a volume, and which of them must be
 * homes of a new file so that all of that can be written.
 *
 * A file puts one row on each of n storages. With room f_i on storage i, many files can fill n * x
 * bytes of rows, where x is the longest row with sum(min(f_i, x)) >= n * x: no storage takes more
 * than one row of a file. All fill up evenly if storage i is a home in min(f_i, x) / x of the
 * files. If hosts and racks limit the rows of a file, their sums are limited likewise.
 */
#ifndef ROZO_EXPORTD_CLUSTER_STORAGE_ROOM_H
#define ROZO_EXPORTD_CLUSTER_STORAGE_ROOM_H

#include "exportd/cluster/exportd_state.h"

struct room_part {
    struct storage *s; /* borrowed */
    uint64_t room;     /* bytes of rows it can take */
    uint64_t share;    /* of n rows: at most one */
    double rank;       /* the highest are homes */
    unsigned order;    /* the caller's: where it was */
    bool home;
};

/** Bytes of rows that s can take before it gets no new files. */
uint64_t storage_room(const struct storage *s);

/**
 * The longest row of n_rows rows, hosts and racks included; sets the shares of the parts, and
 * sorts them. 0: there is no room, or there are too few parts.
 */
uint64_t room_row(struct room_part *parts, unsigned n_parts, unsigned n_rows);

/** Sets `home` of n_rows parts, so that over many files all fill evenly; of none without room. */
void room_choose_homes(struct env *env, struct room_part *parts, unsigned n_parts,
                       unsigned n_rows);

/* Bytes of user data. */
struct room {
    uint64_t total;     /* of all storages that are not given up */
    uint64_t unused;    /* of these; not all can be used */
    uint64_t available; /* can be written now */
};

/** 0 or -ENOMEM. */
int export_room(const struct export *e, struct room *out);

#endif
