/*
 * world_disk.h - the world's kv on LevelDB in a directory of its own, that dies with a switch.
 */
#ifndef ROZO_TEST_EXPORTD_WORLD_DISK_H
#define ROZO_TEST_EXPORTD_WORLD_DISK_H

#include "tests/unit/exportd/world.h"

struct kv *world_disk_open(struct world *w);
/* The rest does nothing in a world without one. */
void world_disk_close(struct world *w);
/** Let what workers have done be heard. */
void world_disk_run(struct world *w);
/** Commits and syncs fail from now on. */
void world_disk_kill(struct world *w);
/** Closed and opened again. */
void world_disk_revive(struct world *w);

#endif
