/*
 * namespace_gaps.c - inode numbers that were never given out, and generations of the
 * others.
 *
 * In:     namespace.c (each start skips some numbers, see namespace_begin()); cluster.c
 *         at start; inodes.c, which must distinguish removed inodes from those that never
 *         existed.
 * Out:    KEY_GAP records: first number of a gap -> the number after its last. Adjacent
 *         gaps are one. KEY_SEED records: secret of a start, from which the generations
 *         of its inodes follow.
 * Keeps:  the numbers of inodes that a loss of power or a restore from a backup took lie
 *         in a gap or behind the last one given out, so they do not count as removed. If
 *         more than a gap had been created before a restore, numbers are given out twice;
 *         the seed then differs, so the generation distinguishes the two inodes.
 * Ask:    docs/FORMATS.md. Users' disks carry these bytes.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/bytes.h"
#include "exportd/namespace/namespace_int.h"

enum {
    GAP_FORMAT = 1,
    GAP_BYTES = 1 + 8,
    GAP_KEY_BYTES = 13, /* bytes, gaps and seeds */
    SEED_FORMAT = 1,
    SEED_BYTES = 1 + 16,
};

/* Makes room for n gaps and one more, so that namespace_gap_add() cannot fail. */
static int gaps_grow(struct namespace *ns, size_t n)
{
    struct namespace_gap *list = realloc(ns->gaps, (n + 1) * sizeof(*list));

    assert(n >= ns->n_gaps);
    if (list == NULL)
        return -ENOMEM;
    ns->gaps = list;
    return 0;
}

/* ---- seeds ---- */

/*
 * Finalizer of SplitMix64. Source: Steele, Lea, Flood: Fast splittable pseudorandom
 * number generators, 2014.
 */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

uint32_t namespace_generation(const struct namespace_seed *seed, uint64_t ino)
{
    uint32_t generation =
        (uint32_t)(mix(mix(ino ^ seed->secret[0]) ^ seed->secret[1]) >> 32);

    return generation != 0 ? generation : 1; /* 0 is the root's */
}

void namespace_seed_begin(struct namespace *ns)
{
    uint8_t val[SEED_BYTES] = { SEED_FORMAT };
    struct key k;

    ns->seed.from = ns->next_ino;
    env_random(ns->env, ns->seed.secret, sizeof(ns->seed.secret));
    put_le64(val + 1, ns->seed.secret[0]);
    put_le64(val + 9, ns->seed.secret[1]);
    key_ino(&k, KEY_SEED, ns->export_id, ns->seed.from);
    store_put(ns->store, &k, val, sizeof(val));
}

void namespace_seed_drop_unused(struct namespace *ns)
{
    struct key k;

    if (ns->n_seeds == 0 || ns->seeds[ns->n_seeds - 1].from != ns->next_ino)
        return;
    key_ino(&k, KEY_SEED, ns->export_id, ns->seeds[--ns->n_seeds].from);
    store_delete(ns->store, &k);
}

static int seed_add(struct namespace *ns, uint64_t from, const uint8_t *val, size_t len)
{
    struct namespace_seed *list;

    if (len != SEED_BYTES || val[0] != SEED_FORMAT)
        return -EINVAL;
    list = realloc(ns->seeds, (ns->n_seeds + 1) * sizeof(*list));
    if (list == NULL)
        return -ENOMEM;
    ns->seeds = list;
    list[ns->n_seeds++] =
        (struct namespace_seed){ from, { get_le64(val + 1), get_le64(val + 9) } };
    return 0;
}

static const struct namespace_seed *seed_of(const struct namespace *ns, uint64_t ino)
{
    size_t low = 0, high = ns->n_seeds;

    if (ino >= ns->seed.from)
        return &ns->seed;
    while (low < high) { /* find the first seed that begins behind it */
        size_t mid = (low + high) / 2;

        if (ns->seeds[mid].from <= ino)
            low = mid + 1;
        else
            high = mid;
    }
    return low == 0 ? NULL : &ns->seeds[low - 1];
}

bool namespace_gave_out(const struct namespace *ns, uint64_t ino, uint32_t generation)
{
    const struct namespace_seed *seed = seed_of(ns, ino);

    return seed != NULL && namespace_was_given_out(ns, ino) &&
           namespace_generation(seed, ino) == generation;
}

/* ---- gaps ---- */

static int gap_add(struct namespace *ns, uint64_t from, const uint8_t *val, size_t len)
{
    int rc = len == GAP_BYTES && val[0] == GAP_FORMAT ? gaps_grow(ns, ns->n_gaps + 1)
                                                      : -EINVAL;

    if (rc == 0)
        ns->gaps[ns->n_gaps++] = (struct namespace_gap){ from, get_le64(val + 1) };
    return rc;
}

/* Passes all records of one kind to add(). */
static int numbers_load(struct namespace *ns, enum key_kind kind,
                        int (*add)(struct namespace *ns, uint64_t from,
                                   const uint8_t *val, size_t len))
{
    struct kv_iter *it;
    struct key prefix;
    size_t key_len, len;
    int rc = store_scan(ns->store, &it);

    if (rc != 0)
        return rc;
    key_id(&prefix, kind, ns->export_id);
    kv_iter_seek(it, prefix.bytes, prefix.len);
    for (; rc == 0 && kv_iter_valid(it); kv_iter_next(it)) {
        const uint8_t *key = kv_iter_key(it, &key_len);
        const uint8_t *val = kv_iter_val(it, &len);

        if (key_len != GAP_KEY_BYTES || memcmp(key, prefix.bytes, prefix.len) != 0)
            break;
        rc = add(ns, key_get_u64(key + prefix.len), val, len);
    }
    if (rc == 0)
        rc = kv_iter_error(it);
    kv_iter_close(it);
    return rc;
}

int namespace_gaps_load(struct namespace *ns)
{
    int rc = gaps_grow(ns, 0);

    if (rc == 0)
        rc = numbers_load(ns, KEY_GAP, gap_add);
    return rc == 0 ? numbers_load(ns, KEY_SEED, seed_add) : rc;
}

void namespace_gap_add(struct namespace *ns, uint64_t from, uint64_t to)
{
    struct namespace_gap *last = ns->n_gaps == 0 ? NULL : &ns->gaps[ns->n_gaps - 1];
    uint8_t val[GAP_BYTES];
    struct key k;

    assert(ns->gaps != NULL); /* namespace_gaps_load() has made room for one */
    if (last == NULL || last->to != from) {
        last = &ns->gaps[ns->n_gaps++];
        last->from = from;
    }
    last->to = to;
    val[0] = GAP_FORMAT;
    put_le64(val + 1, to);
    key_ino(&k, KEY_GAP, ns->export_id, last->from);
    store_put(ns->store, &k, val, sizeof(val));
}

bool namespace_was_given_out(const struct namespace *ns, uint64_t ino)
{
    size_t low = 0, high = ns->n_gaps;

    while (low < high) { /* find the first gap that ends behind it */
        size_t mid = (low + high) / 2;

        if (ns->gaps[mid].to <= ino)
            low = mid + 1;
        else
            high = mid;
    }
    return ino >= NAMESPACE_ROOT_INO && ino < ns->next_ino &&
           (low == ns->n_gaps || ino < ns->gaps[low].from);
}

void namespace_close(struct namespace *ns)
{
    free(ns->gaps);
    ns->gaps = NULL;
    ns->n_gaps = 0;
    free(ns->seeds);
    ns->seeds = NULL;
    ns->n_seeds = 0;
}
