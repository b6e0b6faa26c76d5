/*
 * fsck_join.c - compares inodes and projection files.
 *
 * In:     answers of exportd and of storages (checked: they come from the network).
 * Out:    ownerless and missing projection files. Pure: no network here.
 */
#include "deploy/fsck/fsck_join.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { GROW_MIN = 1024 };

void fsck_init(struct fsck *f)
{
    memset(f, 0, sizeof(*f));
}

void fsck_free(struct fsck *f)
{
    free(f->files);
    free(f->index);
    free(f->storages);
    free(f->dist_index);
    free(f->strays);
    fsck_init(f);
}

/* Returns the list with room for n more items of `size` bytes; NULL if out of memory. */
static void *grown(void *list, size_t *max, size_t n_have, size_t n, size_t size)
{
    size_t want = *max < GROW_MIN ? GROW_MIN : *max;

    if (n_have + n <= *max)
        return list;
    while (want < n_have + n)
        want *= 2;
    if (want > SIZE_MAX / size || want >= UINT32_MAX)
        return NULL;
    list = realloc(list, want * size);
    if (list != NULL)
        *max = want;
    return list;
}

/* ---- files by id ---- */

static uint32_t *index_place(uint32_t *index, size_t n_index,
                             const struct fsck_file *files, const struct file_id *id)
{
    size_t at = file_id_hash(id) & (n_index - 1);

    while (index[at] != 0 && !file_id_equal(&files[index[at] - 1].id, id))
        at = (at + 1) & (n_index - 1);
    return &index[at];
}

/* Grows the index, so that at most half of it is used. */
static int index_grow(struct fsck *f)
{
    size_t n = f->n_index == 0 ? 2 * GROW_MIN : 2 * f->n_index;
    uint32_t *index;

    if (2 * (f->n_files + 1) <= f->n_index)
        return 0;
    index = calloc(n, sizeof(*index));
    if (index == NULL)
        return -ENOMEM;
    for (size_t i = 0; i < f->n_files; i++)
        *index_place(index, n, f->files, &f->files[i].id) = (uint32_t)i + 1;
    free(f->index);
    f->index = index;
    f->n_index = n;
    return 0;
}

struct fsck_file *fsck_find(struct fsck *f, const struct file_id *id)
{
    uint32_t at = f->n_index == 0 ? 0 : *index_place(f->index, f->n_index, f->files, id);

    return at == 0 ? NULL : &f->files[at - 1];
}

/* ---- distributions, which most files share with others ---- */

/* Returns whether the distribution at `at` has these ids. In f->storages a distribution
 * is its length, then its ids. */
static bool dist_is(const struct fsck *f, uint32_t at, const uint32_t *ids, size_t n)
{
    return f->storages[at] == n &&
           memcmp(&f->storages[at + 1], ids, n * sizeof(ids[0])) == 0;
}

static uint32_t *dist_place(const struct fsck *f, uint32_t *index, size_t n_index,
                            const uint32_t *ids, size_t n)
{
    size_t at = codec_crc32c(0, ids, n * sizeof(ids[0])) & (n_index - 1);

    while (index[at] != 0 && !dist_is(f, index[at] - 1, ids, n))
        at = (at + 1) & (n_index - 1);
    return &index[at];
}

static int dist_index_grow(struct fsck *f)
{
    size_t n = f->n_dist_index == 0 ? GROW_MIN : 2 * f->n_dist_index;
    uint32_t *index;

    if (2 * (f->n_dists + 1) <= f->n_dist_index)
        return 0;
    index = calloc(n, sizeof(*index));
    if (index == NULL)
        return -ENOMEM;
    for (size_t at = 0; at < f->n_storages; at += f->storages[at] + 1)
        *dist_place(f, index, n, &f->storages[at + 1], f->storages[at]) =
            (uint32_t)at + 1;
    free(f->dist_index);
    f->dist_index = index;
    f->n_dist_index = n;
    return 0;
}

static int dist_add(struct fsck *f, const uint32_t *ids, size_t n, uint32_t *out)
{
    uint32_t *list = grown(f->storages, &f->storages_max, f->n_storages, n + 1,
                           sizeof(f->storages[0]));
    uint32_t *place;

    if (list == NULL)
        return -ENOMEM;
    f->storages = list;
    if (dist_index_grow(f) != 0)
        return -ENOMEM;
    place = dist_place(f, f->dist_index, f->n_dist_index, ids, n);
    if (*place == 0) {
        *place = (uint32_t)f->n_storages + 1;
        f->storages[f->n_storages] = (uint32_t)n;
        memcpy(&f->storages[f->n_storages + 1], ids, n * sizeof(ids[0]));
        f->n_storages += n + 1;
        f->n_dists++;
    }
    *out = *place - 1;
    return 0;
}

const uint32_t *fsck_storages(const struct fsck *f, const struct fsck_file *file)
{
    return &f->storages[file->dist + 1];
}

const uint32_t *fsck_later(const struct fsck *f, const struct fsck_file *file,
                           unsigned *n)
{
    *n = f->storages[file->later - 1];
    return &f->storages[file->later];
}

/* ---- adding ---- */

static bool ref_makes_sense(const Rozo__FileRef *ref)
{
    const struct codec_layout *layout = ref == NULL || ref->file_id.len != FILE_ID_BYTES
                                            ? NULL
                                            : codec_layout(ref->layout);

    return layout != NULL && ref->n_storages >= layout->n &&
           ref->n_storages <= DIST_MAX && ref->codec <= UINT8_MAX &&
           (ref->block_bytes == 4096 || ref->block_bytes == 8192);
}

int fsck_add_inode(struct fsck *f, const Rozo__AdInodesResp__Inode *in)
{
    struct fsck_file file = { 0 }, *list;
    int rc;

    if (in->removed)
        return 0;
    if (!ref_makes_sense(in->ref))
        return -EBADMSG;
    file_id_get(in->ref->file_id.data, &file.id);
    if (fsck_find(f, &file.id) != NULL)
        return 0;
    list = grown(f->files, &f->files_max, f->n_files, 1, sizeof(f->files[0]));
    if (list == NULL)
        return -ENOMEM;
    f->files = list;
    rc = index_grow(f);
    if (rc == 0)
        rc = dist_add(f, in->ref->storages, in->ref->n_storages, &file.dist);
    if (rc != 0)
        return rc;
    file.dist_generation = in->ref->dist_generation;
    file.full_quorum = in->ref->full_quorum;
    file.size = in->size;
    file.codec = (uint8_t)in->ref->codec;
    file.layout = (uint8_t)in->ref->layout;
    file.n_storages = (uint8_t)in->ref->n_storages;
    file.block_4k = in->ref->block_bytes == 4096;
    file.has_data = in->has_data;
    file.orphan = in->orphan;
    *index_place(f->index, f->n_index, f->files, &file.id) = (uint32_t)f->n_files + 1;
    f->files[f->n_files++] = file;
    return 0;
}

static int stray_add(struct fsck *f, const struct fsck_stray *stray)
{
    struct fsck_stray *list =
        grown(f->strays, &f->strays_max, f->n_strays, 1, sizeof(f->strays[0]));

    if (list == NULL)
        return -ENOMEM;
    f->strays = list;
    f->strays[f->n_strays++] = *stray;
    return 0;
}

static unsigned bits(uint32_t bitmap)
{
    return (unsigned)__builtin_popcount(bitmap);
}

/* Takes the distribution in a storage's header, if it is later than what we know. */
static int later_take(struct fsck *f, struct fsck_file *file, const Rozo__FileRef *ref)
{
    uint32_t dist;
    int rc;

    if (ref->dist_generation <= file->dist_generation)
        return 0;
    if (ref->n_storages < codec_layout(file->layout)->n || ref->n_storages > DIST_MAX)
        return -EBADMSG;
    rc = dist_add(f, ref->storages, ref->n_storages, &dist);
    if (rc != 0)
        return rc;
    file->later = dist + 1;
    file->dist_generation = ref->dist_generation;
    return 0;
}

static unsigned place_of(const uint32_t *ids, unsigned n, uint32_t storage)
{
    unsigned at = 0;

    while (at < n && ids[at] != storage)
        at++;
    return at;
}

/* Returns true if the file moved, and is on this storage now. */
static bool moved_to(const struct fsck *f, const struct fsck_file *file, uint32_t storage)
{
    const uint32_t *ids;
    unsigned n;

    if (file->later == 0)
        return false;
    ids = fsck_later(f, file, &n);
    return place_of(ids, n, storage) < n;
}

int fsck_add_listed(struct fsck *f, uint32_t storage, const Rozo__StListResp__File *file)
{
    struct fsck_stray stray = { .storage = storage, .bytes = file->size };
    struct fsck_file *owner;
    uint32_t good = file->projections & ~file->damaged;
    unsigned at, n;
    int rc;

    if (file->ref == NULL || file->ref->file_id.len != FILE_ID_BYTES)
        return -EBADMSG;
    file_id_get(file->ref->file_id.data, &stray.id);
    stray.projections = file->projections | file->damaged;
    f->n_projections += bits(stray.projections);
    f->bytes += file->size;
    owner = fsck_find(f, &stray.id);
    if (owner == NULL)
        return stray_add(f, &stray);
    rc = later_take(f, owner, file->ref);
    if (rc != 0 || moved_to(f, owner, storage))
        return rc;
    at = place_of(fsck_storages(f, owner), owner->n_storages, storage);
    if (at == owner->n_storages) {
        stray.misplaced = true;
        return stray_add(f, &stray);
    }
    n = codec_layout(owner->layout)->n;
    owner->anywhere |= (uint16_t)(good & ((1u << n) - 1));
    if (at < n) {
        owner->homes |= (uint16_t)(good & 1u << at);
        owner->damaged |= (uint16_t)(file->damaged & 1u << at);
    }
    return 0;
}

/* ---- comparison ---- */

bool fsck_lacks(const struct fsck *f, const struct fsck_file *file,
                enum fsck_heard (*heard)(void *arg, uint32_t storage), void *arg,
                struct fsck_lack *out)
{
    const struct codec_layout *layout = codec_layout(file->layout);
    const uint32_t *ids = fsck_storages(f, file);

    memset(out, 0, sizeof(*out));
    out->moved = file->later != 0;
    if (out->moved)
        return true;
    for (unsigned i = 0; i < file->n_storages; i++) {
        enum fsck_heard what = heard(arg, ids[i]);
        uint32_t bit = 1u << i;
        uint32_t there = what == FSCK_GONE ? file->anywhere : file->homes;

        if (what == FSCK_UNLISTED)
            out->unlisted |= bit;
        else if (i < layout->n && (there & bit) == 0 && (file->damaged & bit) == 0)
            out->missing |= (uint16_t)bit;
    }
    out->damaged = file->damaged;
    out->n_there = bits(file->anywhere);
    out->unreadable = out->unlisted == 0 && out->n_there < layout->k;
    if (!file->has_data)
        return out->damaged != 0;
    return out->missing != 0 || out->damaged != 0;
}
