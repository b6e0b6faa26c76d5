/*
 * metadata_room.c - free space on the disk under the metadata store.
 *
 * In:     the tick. Out: refusals of requests that make the store grow.
 * Keeps:  I12: removals and overwrites that need no space still work on a full disk.
 */
#include "exportd/cluster/metadata_room.h"

#include <assert.h>

#include "exportd/cluster/exportd_state.h"

/* bytes kept free under the kv; below that the tree may not grow */
enum { METADATA_RESERVE = 64 << 20 };

void metadata_room_look(struct exportd *x)
{
    uint64_t n_free = store_free_bytes(x->store);
    struct metadata_room *room = &x->room;

    room->is_low = n_free < METADATA_RESERVE;
    /* half: a small file is needed in the log, and in a table */
    room->inline_left = room->is_low ? 0 : (n_free - METADATA_RESERVE) / 2;
}

bool metadata_room_is_low(const struct exportd *x)
{
    return x->room.is_low;
}

bool metadata_room_fits(const struct exportd *x, uint64_t bytes)
{
    return bytes <= x->room.inline_left;
}

void metadata_room_take(struct exportd *x, uint64_t bytes)
{
    assert(metadata_room_fits(x, bytes));
    x->room.inline_left -= bytes;
}
