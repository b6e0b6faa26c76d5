/*
 * namespace_scan.c - scans of a whole export, some keys at a time: files, names.
 *
 * In:     inodes.c, for rozo fsck.
 * Out:    callbacks; nothing is changed.
 * Keeps:  a call looks at no more keys than asked for. A concurrent change is seen or
 *         not.
 */
#include <assert.h>
#include <errno.h>

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "exportd/namespace/namespace_int.h"

enum {
    DENTRY_BYTES = 21, /* namespace.c: format, ino, type, cookie */
    INO_KEY_BYTES = 13,
};

int scan_inos(struct namespace *ns, enum key_kind kind, uint64_t *after,
              unsigned max_keys, scan_cb *fn, void *arg, bool *end)
{
    struct kv_iter *it;
    struct key prefix, from;
    size_t key_len, len;
    int rc = store_scan(ns->store, &it);

    assert(fn != NULL && end != NULL);
    if (rc != 0)
        return rc;
    key_id(&prefix, kind, ns->export_id);
    key_ino(&from, kind, ns->export_id, *after + 1);
    *end = *after == UINT64_MAX;
    kv_iter_seek(it, from.bytes, from.len);
    for (; !*end && max_keys > 0; max_keys--, kv_iter_next(it)) {
        const uint8_t *key = kv_iter_valid(it) ? kv_iter_key(it, &key_len) : NULL;
        const uint8_t *val;
        uint64_t ino;

        if (key == NULL || key_len != INO_KEY_BYTES ||
            memcmp(key, prefix.bytes, prefix.len) != 0) {
            *end = true;
            break;
        }
        ino = key_get_u64(key + prefix.len);
        val = kv_iter_val(it, &len);
        rc = fn(arg, ino, val, len);
        if (rc != 0)
            break;
        *after = ino;
    }
    if (rc >= 0)
        rc = kv_iter_error(it);
    kv_iter_close(it);
    return rc;
}

struct file_scan {
    struct namespace *ns;
    namespace_file_cb *fn;
    void *arg;
};

static int on_inode(void *arg, uint64_t ino, const uint8_t *val, size_t len)
{
    const struct file_scan *s = arg;
    struct inode in;

    if (inode_decode(&in, ino, val, len) != 0) {
        log_error("export %u: the record of inode %llu in the metadata store is corrupt",
                  s->ns->export_id, (unsigned long long)ino);
        return -EIO;
    }
    return inode_is_file(&in) && !s->fn(s->arg, &in) ? SCAN_STOP : 0;
}

int namespace_files(struct namespace *ns, uint64_t *after, unsigned max_keys,
                    namespace_file_cb *fn, void *arg, bool *end)
{
    struct file_scan s = { ns, fn, arg };

    return scan_inos(ns, KEY_INODE, after, max_keys, on_inode, &s, end);
}

/* Parses the name under the iterator. Returns false if it does not belong to the scan. */
static bool name_get(struct kv_iter *it, const struct key *prefix,
                     struct namespace_named *out)
{
    size_t key_len, len;
    const uint8_t *key = kv_iter_key(it, &key_len);
    const uint8_t *val;

    if (key_len <= INO_KEY_BYTES || memcmp(key, prefix->bytes, prefix->len) != 0)
        return false;
    val = kv_iter_val(it, &len);
    *out = (struct namespace_named){
        .dir = key_get_u64(key + INO_KEY_BYTES - 8),
        .name = { key + INO_KEY_BYTES, key_len - INO_KEY_BYTES },
        /* 0: corrupt, matches no inode */
        .ino = len == DENTRY_BYTES ? get_le64(val + 1) : 0,
        .type = len == DENTRY_BYTES ? get_le32(val + 9) : 0,
    };
    return true;
}

int namespace_names(struct namespace *ns, uint64_t dir, struct key *cursor,
                    unsigned max_keys, namespace_named_cb *fn, void *arg, bool *end)
{
    struct kv_iter *it;
    struct key prefix;
    struct namespace_named named;
    int rc = store_scan(ns->store, &it);

    if (rc != 0)
        return rc;
    if (dir == 0)
        key_id(&prefix, KEY_DENTRY, ns->export_id);
    else
        key_ino(&prefix, KEY_DENTRY, ns->export_id, dir);
    if (cursor->len == 0)
        *cursor = prefix;
    *end = false;
    kv_iter_seek(it, cursor->bytes, cursor->len);
    for (; !*end && max_keys > 0; max_keys--, kv_iter_next(it)) {
        *end = !kv_iter_valid(it) || !name_get(it, &prefix, &named) || !fn(arg, &named);
    }
    if (!*end && kv_iter_valid(it)) { /* the next call continues here */
        size_t len;
        const uint8_t *key = kv_iter_key(it, &len);

        *end = len > sizeof(cursor->bytes);
        cursor->len = *end ? 0 : len;
        memcpy(cursor->bytes, key, cursor->len);
    } else {
        *end = true;
    }
    rc = kv_iter_error(it);
    kv_iter_close(it);
    return rc;
}
