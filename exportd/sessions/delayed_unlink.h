/*
 * delayed_unlink.h - inodes that have just lost their last name.
 */
#ifndef ROZO_EXPORTD_SESSIONS_DELAYED_UNLINK_H
#define ROZO_EXPORTD_SESSIONS_DELAYED_UNLINK_H

#include "exportd/cluster/exportd_state.h"

struct delayed_unlink;
/** A hook of fs: it loses its last name. While others are there it stays for a moment. */
bool export_keeps(void *arg, uint64_t ino);
/** It is open, or lingers. */
bool export_needs(struct export *e, uint64_t ino);
/** Something was removed: a few that have lingered long enough go with it. */
void delayed_unlink_removed(struct exportd *x);
void delayed_unlink_tick(struct exportd *x);
void delayed_unlink_free(struct exportd *x);

#endif
