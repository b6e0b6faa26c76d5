/*
 * delayed_unlink.h - inodes that lost their last name a moment ago.
 */
#ifndef ROZO_EXPORTD_SESSIONS_DELAYED_UNLINK_H
#define ROZO_EXPORTD_SESSIONS_DELAYED_UNLINK_H

#include "exportd/cluster/exportd_state.h"

/* Delayed removals of all exports. */
struct delayed_unlinks {
    struct list_node list; /* owned; oldest first */
    unsigned n;
};

void delayed_unlinks_init(struct delayed_unlinks *delayed);
/**
 * Hook of the name space: returns true if an inode that loses its last name stays for
 * now: it is open, or other sessions may be about to open it.
 */
bool export_keeps(void *arg, uint64_t ino);
/** Returns true if the inode is open or its removal is delayed. */
bool export_needs(struct export *e, uint64_t ino);
/** Removes a few inodes whose delay is over. Called after each removal. */
void delayed_unlink_removed(struct exportd *x);
void delayed_unlink_tick(struct exportd *x);
void delayed_unlink_free(struct exportd *x);

#endif
