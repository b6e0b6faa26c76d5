/*
 * world_disk.h - the world's kv on LevelDB in a directory of its own; can be cut off.
 */
#ifndef ROZO_TEST_EXPORTD_WORLD_DISK_H
#define ROZO_TEST_EXPORTD_WORLD_DISK_H

#include "tests/unit/exportd/world.h"

struct kv *world_disk_open(struct world *w);
/* All others do nothing in a world without LevelDB. */
void world_disk_close(struct world *w);
/** Handles the results of the kv's workers. */
void world_disk_run(struct world *w);
/** Makes commits and syncs fail from now on. */
void world_disk_kill(struct world *w);
/** Closes LevelDB and opens it again. */
void world_disk_revive(struct world *w);

#endif
