/*
 * namespace_blocks.c - the set of allocated blocks of a file, for st_blocks.
 *
 * In:     reports of clients (MD_WROTE); truncates; removals.
 * Out:    the store's pending batch, shared with the inode.
 * Keeps:  inode.n_blocks is the size of the set. Without INODE_BLOCKS there is no record
 *         and the set is the first n_blocks blocks of the file, as for nearly all files.
 *         Reports are put into the set, so a report may come twice, and several clients
 *         may report different places. A record that cannot be read is no error: the file
 *         then counts as having no hole before its n_blocks.
 * Ask:    the record. Users' disks carry it.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/range_map.h"
#include "exportd/namespace/namespace_int.h"

enum {
    BLOCKS_FORMAT = 1,
    BLOCKS_HEAD = 1, /* format byte */
    /* ranges left after joining, so that the next time is far away */
    RANGES_JOINED = NAMESPACE_BLOCK_RANGES_MAX / 4 * 3,
    ALLOCATED = 1, /* value of allocated blocks in spans */
};
static_assert(BLOCKS_HEAD + (int)NAMESPACE_BLOCK_RANGES_MAX * (int)SPAN_PACKED_MAX <=
                  (int)STORE_VALUE_MAX,
              "the store takes the largest set");

static uint64_t block_past(const struct inode *in, uint64_t size)
{
    assert(in->block_bytes > 0);
    return size / in->block_bytes + (size % in->block_bytes != 0);
}

/* Reads the record of an inode with INODE_BLOCKS, without its format byte. */
static int record_get(struct namespace *ns, const struct inode *in, const uint8_t **bytes,
                      size_t *len)
{
    const uint8_t *val;
    struct key k;
    size_t n;
    int rc;

    key_ino(&k, KEY_BLOCKS, ns->export_id, in->ino);
    rc = store_get(ns->store, &k, &val, &n);
    if (rc != 0)
        return rc;
    if (n <= BLOCKS_HEAD || val[0] != BLOCKS_FORMAT)
        return -EINVAL;
    *bytes = val + BLOCKS_HEAD;
    *len = n - BLOCKS_HEAD;
    return 0;
}

static int record_unpack(struct range_map *map, const uint8_t *bytes, size_t len)
{
    return range_map_unpack(map, bytes, len, INODE_N_BLOCKS_MAX,
                            NAMESPACE_BLOCK_RANGES_MAX, ALLOCATED);
}

static int first_ones(const struct inode *in, struct range_map *map)
{
    return in->n_blocks == 0 ? 0 : range_map_put(map, 0, in->n_blocks, ALLOCATED);
}

/* Loads the set. Fails only with -ENOMEM. */
static int map_load(struct namespace *ns, const struct inode *in, struct range_map *map)
{
    const uint8_t *bytes;
    size_t len;
    int rc;

    *map = (struct range_map){ 0 };
    if ((in->flags & INODE_BLOCKS) == 0)
        return first_ones(in, map);
    rc = record_get(ns, in, &bytes, &len);
    if (rc == 0)
        rc = record_unpack(map, bytes, len);
    if (rc == 0 || rc == -ENOMEM)
        return rc;
    log_error("export %u: the map of allocated blocks of inode %llu is damaged",
              ns->export_id, (unsigned long long)in->ino);
    range_map_free(map);
    return first_ones(in, map);
}

void namespace_blocks_get(struct namespace *ns, const struct inode *in, uint8_t *room,
                          const uint8_t **bytes, size_t *len)
{
    struct mapped_range first = { 0, in->n_blocks, ALLOCATED };
    struct range_map map = { &first, in->n_blocks != 0, 1 }, check = { 0 };
    int rc = -ENOENT;

    if ((in->flags & INODE_BLOCKS) != 0)
        rc = record_get(ns, in, bytes, len);
    if (rc == 0)
        rc = record_unpack(&check, *bytes, *len);
    range_map_free(&check);
    if (rc == 0)
        return;
    *len = range_map_pack(&map, ALLOCATED, 1, room);
    *bytes = room;
}

static void record_drop(struct namespace *ns, struct inode *in)
{
    struct key k;

    if ((in->flags & INODE_BLOCKS) == 0)
        return;
    in->flags &= ~(uint32_t)INODE_BLOCKS;
    key_ino(&k, KEY_BLOCKS, ns->export_id, in->ino);
    store_delete(ns->store, &k);
}

/* Puts the record. Returns false if there is an identical one already. */
static bool record_put(struct namespace *ns, struct inode *in,
                       const struct range_map *map)
{
    uint8_t val[BLOCKS_HEAD + NAMESPACE_BLOCK_RANGES_MAX * SPAN_PACKED_MAX];
    size_t len =
        range_map_pack(map, ALLOCATED, NAMESPACE_BLOCK_RANGES_MAX, val + BLOCKS_HEAD);
    const uint8_t *before;
    size_t before_len;
    struct key k;

    assert(inode_is_file(in) && map->n > 0);
    if ((in->flags & INODE_BLOCKS) != 0 &&
        record_get(ns, in, &before, &before_len) == 0 && before_len == len &&
        memcmp(before, val + BLOCKS_HEAD, len) == 0)
        return false;
    val[0] = BLOCKS_FORMAT;
    in->flags |= INODE_BLOCKS;
    key_ino(&k, KEY_BLOCKS, ns->export_id, in->ino);
    store_put(ns->store, &k, val, BLOCKS_HEAD + len);
    return true;
}

bool namespace_blocks_put(struct namespace *ns, struct inode *in, struct range_map *map)
{
    uint64_t n_before = in->n_blocks;
    uint32_t flags = in->flags;
    bool changed = false;

    assert(inode_is_file(in) || map->n == 0);
    if (map->n > NAMESPACE_BLOCK_RANGES_MAX)
        /* if this fails, blocks that do not fit are not counted */
        (void)range_map_join(map, RANGES_JOINED);
    in->n_blocks = range_map_total(map, ALLOCATED);
    if (map->n == 0 || (map->n == 1 && map->list[0].from == 0))
        record_drop(ns, in);
    else
        changed = record_put(ns, in, map);
    range_map_free(map);
    return changed || in->n_blocks != n_before || in->flags != flags;
}

static int map_change(struct range_map *map, const uint8_t *bytes, size_t len,
                      unsigned value)
{
    return range_map_unpack(map, bytes, len, INODE_N_BLOCKS_MAX,
                            NAMESPACE_BLOCK_RANGES_TOLD_MAX, value);
}

int namespace_blocks_wrote(struct namespace *ns, const struct namespace_wrote *req,
                           const struct inode *in, struct range_map *map)
{
    int rc = map_load(ns, in, map);

    if (rc == 0)
        rc = map_change(map, req->freed, req->freed_len, 0);
    if (rc == 0)
        rc = map_change(map, req->allocated, req->allocated_len, ALLOCATED);
    if (rc != 0)
        range_map_free(map);
    return rc;
}

void namespace_blocks_cut(struct namespace *ns, struct inode *in, uint64_t size)
{
    uint64_t end = block_past(in, size);
    struct range_map map;

    if (in->n_blocks == 0)
        return;
    if ((in->flags & INODE_BLOCKS) == 0 || end == 0 || map_load(ns, in, &map) != 0) {
        record_drop(ns, in);
        in->n_blocks = in->n_blocks < end ? in->n_blocks : end;
        return;
    }
    if (map.n > 0 && map.list[map.n - 1].to > end)
        /* cannot fail, since the set gets smaller */
        (void)range_map_put(&map, end, SPAN_END, 0);
    namespace_blocks_put(ns, in, &map);
}

/*
 * Sets INODE_UNCOUNTED only if the file has a hole: blocks beyond the end are cut off,
 * and without a hole none can be missing.
 */
void namespace_blocks_doubt(struct inode *in)
{
    if ((in->flags & INODE_BLOCKS) != 0 || in->n_blocks < block_past(in, in->size))
        in->flags |= INODE_UNCOUNTED;
}

void namespace_blocks_drop(struct namespace *ns, struct inode *in)
{
    record_drop(ns, in);
    in->n_blocks = 0;
}
