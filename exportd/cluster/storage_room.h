/*
 * storage_room.h - the room for user data on the storages of a volume, and homes that use
 * it.
 *
 * A file puts one row on each of n storages. With room f_i on storage i, many files can
 * fill n * x bytes of rows, where x is the longest row with sum(min(f_i, x)) >= n * x: no
 * storage takes more than one row of a file. All fill up evenly if storage i is a home in
 * min(f_i, x) / x of the files. If hosts and racks limit the rows of a file, their sums
 * are limited likewise.
 */
#ifndef ROZO_EXPORTD_CLUSTER_STORAGE_ROOM_H
#define ROZO_EXPORTD_CLUSTER_STORAGE_ROOM_H

#include "exportd/cluster/exportd_state.h"

struct room_part {
    struct cluster_storage *s; /* borrowed */
    uint64_t room;             /* bytes of rows that fit */
    uint64_t share;            /* bytes, part of n rows: at most one row */
    double rank;               /* the highest ranks become homes */
    unsigned order;            /* index in the caller's list */
    bool home;
};

/** Returns the bytes of rows that s can take before it gets no new files. */
uint64_t storage_room(const struct cluster_storage *s);

/**
 * Returns the longest row of n_rows rows, limits of hosts and racks included; sets the
 * shares of the parts and sorts them. 0: there is no room, or there are too few parts.
 */
uint64_t room_row(struct room_part *parts, unsigned n_parts, unsigned n_rows);

/**
 * Sets `home` of n_rows parts, so that over many files all fill evenly; of no part if
 * there is no room.
 */
void room_choose_homes(struct env *env, struct room_part *parts, unsigned n_parts,
                       unsigned n_rows);

/* Room in bytes of user data. */
struct room {
    uint64_t total;     /* all storages that are not lost */
    uint64_t unused;    /* unused part of these; not all of it can be used */
    uint64_t available; /* can be written now */
};

/** Computes the room of an export. Returns 0 or -ENOMEM. */
int export_room(const struct export *e, struct room *out);

#endif
