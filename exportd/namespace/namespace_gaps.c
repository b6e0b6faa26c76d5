/*
 * namespace_gaps.c - inode numbers that were never given out (each start skips some, fs_begin()), and generations of the others.
 *
 * In:     namespace.c, cluster.c at start; inodes.c, which has to tell what was removed from what never was.
 * Out:    KEY_GAP records: first number of a gap -> the number behind its last. Gaps that meet are one.
 *         KEY_SEED records: a start's secret, of which the generations of its inodes are made.
 * Keeps:  what a power cut, or a restore from a backup, took from us has numbers in a gap or behind the last one
 *         given out, so nobody takes it for removed. After a restore, when more than a gap had been created, numbers
 *         are given out again; the seed is another one then, so the generation tells the two inodes apart.
 * Ask:    docs/FORMATS.md. Users' disks carry these bytes.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/base/bytes.h"
#include "exportd/namespace/namespace_int.h"

enum {
    GAP_FORMAT = 1,
    GAP_BYTES = 1 + 8,
    GAP_KEY_BYTES = 13, /* also of a seed */
    SEED_FORMAT = 1,
    SEED_BYTES = 1 + 16,
};

/* Room for one more than `n`, so that fs_gap_add() cannot fail. */
static int gaps_grow(struct fs *fs, size_t n)
{
    struct fs_gap *list = realloc(fs->gaps, (n + 1) * sizeof(*list));

    if (list == NULL)
        return -ENOMEM;
    fs->gaps = list;
    return 0;
}

/* ---- seeds ---- */

/* Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014 (the finalizer of SplitMix64). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint32_t fs_generation(const struct fs_seed *seed, uint64_t ino)
{
    uint32_t generation =
        (uint32_t)(mix(mix(ino ^ seed->secret[0]) ^ seed->secret[1]) >> 32);

    return generation != 0 ? generation : 1; /* 0 is the root's */
}

void fs_seed_begin(struct fs *fs)
{
    uint8_t val[SEED_BYTES] = { SEED_FORMAT };
    struct key k;

    fs->seed.from = fs->next_ino;
    env_random(fs->env, fs->seed.secret, sizeof(fs->seed.secret));
    put_le64(val + 1, fs->seed.secret[0]);
    put_le64(val + 9, fs->seed.secret[1]);
    key_ino(&k, KEY_SEED, fs->export_id, fs->seed.from);
    store_put(fs->store, &k, val, sizeof(val));
}

void fs_seed_drop_unused(struct fs *fs)
{
    struct key k;

    if (fs->n_seeds == 0 || fs->seeds[fs->n_seeds - 1].from != fs->next_ino)
        return;
    key_ino(&k, KEY_SEED, fs->export_id, fs->seeds[--fs->n_seeds].from);
    store_delete(fs->store, &k);
}

static int seed_add(struct fs *fs, uint64_t from, const uint8_t *val, size_t len)
{
    struct fs_seed *list;

    if (len != SEED_BYTES || val[0] != SEED_FORMAT)
        return -EINVAL;
    list = realloc(fs->seeds, (fs->n_seeds + 1) * sizeof(*list));
    if (list == NULL)
        return -ENOMEM;
    fs->seeds = list;
    list[fs->n_seeds++] =
        (struct fs_seed){ from, { get_le64(val + 1), get_le64(val + 9) } };
    return 0;
}

static const struct fs_seed *seed_of(const struct fs *fs, uint64_t ino)
{
    size_t low = 0, high = fs->n_seeds;

    if (ino >= fs->seed.from)
        return &fs->seed;
    while (low < high) { /* the first that begins behind it */
        size_t mid = (low + high) / 2;

        if (fs->seeds[mid].from <= ino)
            low = mid + 1;
        else
            high = mid;
    }
    return low == 0 ? NULL : &fs->seeds[low - 1];
}

bool fs_gave_out(const struct fs *fs, uint64_t ino, uint32_t generation)
{
    const struct fs_seed *seed = seed_of(fs, ino);

    return seed != NULL && fs_was_given_out(fs, ino) &&
           fs_generation(seed, ino) == generation;
}

/* ---- gaps ---- */

static int gap_add(struct fs *fs, uint64_t from, const uint8_t *val, size_t len)
{
    int rc = len == GAP_BYTES && val[0] == GAP_FORMAT ? gaps_grow(fs, fs->n_gaps + 1)
                                                      : -EINVAL;

    if (rc == 0)
        fs->gaps[fs->n_gaps++] = (struct fs_gap){ from, get_le64(val + 1) };
    return rc;
}

/* Gives all records of one kind to add(). */
static int numbers_load(struct fs *fs, enum key_kind kind,
                        int (*add)(struct fs *fs, uint64_t from, const uint8_t *val,
                                   size_t len))
{
    struct kv_iter *it;
    struct key prefix;
    size_t key_len, len;
    int rc = store_scan(fs->store, &it);

    if (rc != 0)
        return rc;
    key_id(&prefix, kind, fs->export_id);
    kv_iter_seek(it, prefix.bytes, prefix.len);
    for (; rc == 0 && kv_iter_valid(it); kv_iter_next(it)) {
        const uint8_t *key = kv_iter_key(it, &key_len);
        const uint8_t *val = kv_iter_val(it, &len);

        if (key_len != GAP_KEY_BYTES || memcmp(key, prefix.bytes, prefix.len) != 0)
            break;
        rc = add(fs, key_get_u64(key + prefix.len), val, len);
    }
    if (rc == 0)
        rc = kv_iter_error(it);
    kv_iter_close(it);
    return rc;
}

int fs_gaps_load(struct fs *fs)
{
    int rc = gaps_grow(fs, 0);

    if (rc == 0)
        rc = numbers_load(fs, KEY_GAP, gap_add);
    return rc == 0 ? numbers_load(fs, KEY_SEED, seed_add) : rc;
}

void fs_gap_add(struct fs *fs, uint64_t from, uint64_t to)
{
    struct fs_gap *last = fs->n_gaps == 0 ? NULL : &fs->gaps[fs->n_gaps - 1];
    uint8_t val[GAP_BYTES];
    struct key k;

    if (last == NULL || last->to != from) {
        last = &fs->gaps[fs->n_gaps++];
        last->from = from;
    }
    last->to = to;
    val[0] = GAP_FORMAT;
    put_le64(val + 1, to);
    key_ino(&k, KEY_GAP, fs->export_id, last->from);
    store_put(fs->store, &k, val, sizeof(val));
}

bool fs_was_given_out(const struct fs *fs, uint64_t ino)
{
    size_t low = 0, high = fs->n_gaps;

    while (low < high) { /* the first gap that ends behind it */
        size_t mid = (low + high) / 2;

        if (fs->gaps[mid].to <= ino)
            low = mid + 1;
        else
            high = mid;
    }
    return ino >= FS_ROOT_INO && ino < fs->next_ino &&
           (low == fs->n_gaps || ino < fs->gaps[low].from);
}

void fs_close(struct fs *fs)
{
    free(fs->gaps);
    fs->gaps = NULL;
    fs->n_gaps = 0;
    free(fs->seeds);
    fs->seeds = NULL;
    fs->n_seeds = 0;
}
