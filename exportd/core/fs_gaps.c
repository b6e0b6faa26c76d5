/*
 * fs_gaps.c - inode numbers that were never given out: each start skips some (fs_begin()).
 *
 * In:     fs.c, cluster.c at start; inodes.c, which has to tell what was removed from what never was.
 * Out:    KEY_GAP records: first number of a gap -> the number behind its last. Gaps that meet are one.
 * Keeps:  what a power cut, or a restore from a backup, took from us has numbers in a gap or behind the last one
 *         given out, so nobody takes it for removed. (After a restore, unless more than a gap was created.)
 * Ask:    docs/FORMATS.md. Users' disks carry these bytes.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/bytes.h"
#include "exportd/core/fs_inside.h"

enum {
    GAP_FORMAT = 1,
    GAP_BYTES = 1 + 8,
    GAP_KEY_BYTES = 13,
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

int fs_gaps_load(struct fs *fs)
{
    struct kv_iter *it;
    struct key prefix;
    size_t key_len, len;
    int rc = gaps_grow(fs, 0);

    if (rc == 0)
        rc = store_scan(fs->store, &it);
    if (rc != 0)
        return rc;
    key_id(&prefix, KEY_GAP, fs->export_id);
    kv_iter_seek(it, prefix.bytes, prefix.len);
    for (; rc == 0 && kv_iter_valid(it); kv_iter_next(it)) {
        const uint8_t *key = kv_iter_key(it, &key_len);
        const uint8_t *val = kv_iter_val(it, &len);

        if (key_len != GAP_KEY_BYTES || memcmp(key, prefix.bytes, prefix.len) != 0)
            break;
        if (len != GAP_BYTES || val[0] != GAP_FORMAT)
            rc = -EINVAL;
        if (rc == 0)
            rc = gaps_grow(fs, fs->n_gaps + 1);
        if (rc == 0)
            fs->gaps[fs->n_gaps++] =
                (struct fs_gap){ key_get_u64(key + prefix.len), get_le64(val + 1) };
    }
    if (rc == 0)
        rc = kv_iter_error(it);
    kv_iter_close(it);
    return rc;
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
}
