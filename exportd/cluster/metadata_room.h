/*
 * metadata_room.h - free space on the disk under the metadata store.
 */
#ifndef ROZO_EXPORTD_CLUSTER_METADATA_ROOM_H
#define ROZO_EXPORTD_CLUSTER_METADATA_ROOM_H

#include <stdbool.h>
#include <stdint.h>

struct exportd;

/* Free space when it was last looked at. */
struct metadata_room {
    bool is_low;
    uint64_t inline_left; /* bytes of small files that fit until it is looked at again */
};

/** Looks at the free space. */
void metadata_room_look(struct exportd *x);
/** Returns true if the tree may not grow (I12). */
bool metadata_room_is_low(const struct exportd *x);
/** Returns true if a small file of so many bytes fits. */
bool metadata_room_fits(const struct exportd *x, uint64_t bytes);
/** Notes that a small file was stored. It must fit. */
void metadata_room_take(struct exportd *x, uint64_t bytes);

#endif
