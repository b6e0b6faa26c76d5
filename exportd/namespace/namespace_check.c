/*
 * namespace_check.c - holds names against the order of their directories, the index of
 * folded names and the inodes, and back.
 *
 * In:     names.c, for rozo fsck.
 * Out:    faults; with `repair`, keys in the pending batch.
 * Keeps:  a call looks at no more keys than asked for, and at all that belongs to them. A
 *         repair puts and deletes only what follows from other keys: no name and no place
 *         of a name is ever deleted.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/bytes.h"
#include "exportd/namespace/fold.h"
#include "exportd/namespace/namespace_int.h"

enum {
    AT_DIR = 1 + 4, /* in a key: kind and export lie before it */
    AT_REST = AT_DIR + 8,
    ORDER_KEY_BYTES = AT_REST + 8,
    FOLDED_KEY_BYTES = AT_REST + 8 + 8,
    NAMED_BYTES = 1 + 8 + 4, /* format, ino, type: names and order begin with them */
    DENTRY_BYTES = NAMED_BYTES + 8,
    RECORD_BYTES_MAX = NAMED_BYTES + NAMESPACE_NAME_MAX,
};

/* In this order: a repaired order counts when the index is checked. */
static const enum key_kind kinds[] = { KEY_DENTRY, KEY_ORDER, KEY_FOLDED };

/* A key and its value, copied: nothing may be put while an iterator is open. */
struct scanned {
    struct key key;
    size_t len; /* above RECORD_BYTES_MAX: not copied */
    uint8_t val[RECORD_BYTES_MAX];
};

struct key_check {
    struct namespace *ns;
    bool repair;
    namespace_fault_cb *fn;
    void *arg;
    uint64_t dir; /* the last one that was looked at */
    bool is_dir;
};

static void fault(const struct key_check *c, enum namespace_fault_kind kind, uint64_t dir,
                  struct namespace_name name, uint64_t ino, bool repaired)
{
    const struct namespace_fault f = { kind, dir, name, ino, repaired };

    c->fn(c->arg, &f);
}

/* ---- names ---- */

/* Returns 0 and whether the inode is a directory, or an error of the store. */
static int dir_look(struct key_check *c, uint64_t dir)
{
    struct inode in;
    int rc;

    if (dir == c->dir)
        return 0;
    rc = inode_get(c->ns, dir, &in);
    if (rc != 0 && rc != -ESTALE && rc != -EIO)
        return rc;
    c->dir = dir;
    c->is_dir = rc == 0 && inode_is_dir(&in) && in.nlink > 0;
    return 0;
}

/* Checks the inode of a name. A record that cannot be read counts as none. */
static int of_name_check(const struct key_check *c, uint64_t dir,
                         struct namespace_name name, const struct dentry *d)
{
    struct inode in;
    int rc = inode_get(c->ns, d->ino, &in);

    if (rc == -ESTALE || rc == -EIO)
        fault(c, NAMESPACE_NAME_OF_NOTHING, dir, name, d->ino, false);
    else if (rc != 0)
        return rc;
    else if (in.nlink == 0 || (in.mode & S_IFMT) != d->type)
        fault(c, NAMESPACE_NAME_OF_OTHER, dir, name, d->ino, false);
    else if (inode_is_dir(&in) && in.parent != dir)
        fault(c, NAMESPACE_DIR_ELSEWHERE, dir, name, d->ino, false);
    return 0;
}

/* Checks the place of a name in the order of readdir. */
static int place_check(const struct key_check *c, uint64_t dir,
                       struct namespace_name name, const struct dentry *d,
                       const uint8_t *record)
{
    uint8_t wanted[RECORD_BYTES_MAX];
    const uint8_t *val;
    struct key k;
    size_t len;
    int rc;

    memcpy(wanted, record, NAMED_BYTES);
    memcpy(wanted + NAMED_BYTES, name.bytes, name.len);
    key_order(&k, c->ns->export_id, dir, d->cookie);
    rc = store_get(c->ns->store, &k, &val, &len);
    if (rc == -ENOENT) {
        if (c->repair)
            store_put(c->ns->store, &k, wanted, NAMED_BYTES + name.len);
        fault(c, NAMESPACE_NAME_UNLISTED, dir, name, d->ino, c->repair);
        return 0;
    }
    if (rc == 0 && (len != NAMED_BYTES + name.len || memcmp(val, wanted, len) != 0))
        fault(c, NAMESPACE_LISTED_OTHER, dir, name, d->ino, false);
    return rc;
}

/* Checks the key of a name in the index of folded names. */
static int fold_check(const struct key_check *c, uint64_t dir, struct namespace_name name,
                      const struct dentry *d)
{
    struct folded f;
    const uint8_t *val;
    struct key k;
    size_t len;
    int rc;

    fold_name(name.bytes, name.len, &f);
    key_folded(&k, c->ns->export_id, dir, fold_hash(&f), d->cookie);
    rc = store_get(c->ns->store, &k, &val, &len);
    if (rc != -ENOENT)
        return rc;
    if (c->repair)
        store_put(c->ns->store, &k, NULL, 0);
    fault(c, NAMESPACE_NAME_UNFOLDED, dir, name, d->ino, c->repair);
    return 0;
}

static int name_key_check(struct key_check *c, const struct scanned *s)
{
    uint64_t dir = key_get_u64(s->key.bytes + AT_DIR);
    struct namespace_name name = { s->key.bytes + AT_REST, s->key.len - AT_REST };
    struct dentry d;
    int rc;

    if (s->len != DENTRY_BYTES || s->val[0] != 1) {
        fault(c, NAMESPACE_NAME_CORRUPT, dir, name, 0, false);
        return 0;
    }
    d = (struct dentry){ get_le64(s->val + 1), get_le32(s->val + 9),
                         get_le64(s->val + 13) };
    rc = dir_look(c, dir);
    if (rc == 0 && !c->is_dir)
        fault(c, NAMESPACE_NAME_OUTSIDE, dir, name, d.ino, false);
    if (rc == 0)
        rc = of_name_check(c, dir, name, &d);
    if (rc == 0)
        rc = place_check(c, dir, name, &d, s->val);
    if (rc == 0 && c->ns->fold_rules != 0)
        rc = fold_check(c, dir, name, &d);
    return rc;
}

/* ---- order ---- */

/* Reads the cookie of a name. Returns 0, -ENOENT (also of a corrupt record), or an error
 * of the store. */
static int cookie_get(const struct key_check *c, uint64_t dir, struct namespace_name name,
                      uint64_t *cookie)
{
    struct dentry d;
    int rc = name_check(name) != 0 ? -ENOENT : dentry_get(c->ns, dir, name, &d);

    if (rc == 0)
        *cookie = d.cookie;
    return rc == -EIO ? -ENOENT : rc;
}

/* A place whose name has this cookie was compared when the name was checked. */
static int place_key_check(const struct key_check *c, const struct scanned *s)
{
    uint64_t dir = key_get_u64(s->key.bytes + AT_DIR), cookie;
    struct namespace_name name = { NULL, 0 };
    int rc = -ENOENT;

    if (s->len > NAMED_BYTES && s->len <= RECORD_BYTES_MAX && s->val[0] == 1) {
        name = (struct namespace_name){ s->val + NAMED_BYTES, s->len - NAMED_BYTES };
        rc = cookie_get(c, dir, name, &cookie);
    }
    if (rc == 0 && cookie == key_get_u64(s->key.bytes + AT_REST))
        return 0;
    if (rc != 0 && rc != -ENOENT)
        return rc;
    fault(c, NAMESPACE_LISTED_NAMELESS, dir, name,
          name.len > 0 ? get_le64(s->val + 1) : 0, false);
    return 0;
}

/* ---- index of folded names ---- */

/* Checks a key of the index. It stays if the name at its cookie may be another one. */
static int folded_key_check(const struct key_check *c, const struct scanned *s)
{
    uint64_t dir = key_get_u64(s->key.bytes + AT_DIR),
             hash = key_get_u64(s->key.bytes + AT_REST),
             cookie = key_get_u64(s->key.bytes + AT_REST + 8), of_name = 0;
    enum namespace_fault_kind kind = NAMESPACE_FOLDED_NAMELESS;
    struct namespace_name name = { NULL, 0 };
    struct folded f;
    bool certain = true;
    int rc = c->ns->fold_rules == 0 ? -ENOENT : order_get(c->ns, dir, cookie, &name);

    if (rc == 0) {
        fold_name(name.bytes, name.len, &f);
        if (fold_hash(&f) == hash)
            return 0;
        kind = NAMESPACE_FOLDED_OTHER;
        rc = cookie_get(c, dir, name, &of_name);
        certain = rc == 0 && of_name == cookie;
    } else if (rc == -EIO) { /* the place is corrupt: reported with it */
        return 0;
    }
    if (rc != 0 && rc != -ENOENT)
        return rc;
    if (c->repair && certain)
        store_delete(c->ns->store, &s->key);
    fault(c, kind, dir, name, 0, c->repair && certain);
    return 0;
}

/* ---- scan ---- */

static int scanned_check(struct key_check *c, const struct scanned *s)
{
    switch (s->key.bytes[0]) {
    case KEY_DENTRY:
        return name_key_check(c, s);
    case KEY_ORDER:
        return place_key_check(c, s);
    default:
        return folded_key_check(c, s);
    }
}

static bool is_long_enough(const uint8_t *key, size_t len)
{
    switch (key[0]) {
    case KEY_DENTRY:
        return len > AT_REST && len <= KEY_BYTES_MAX;
    case KEY_ORDER:
        return len == ORDER_KEY_BYTES;
    default:
        return len == FOLDED_KEY_BYTES;
    }
}

/* Copies keys of one kind behind the cursor, at most max. Returns 0, or an error of the
 * store: -EIO if a key has another length, which nothing else would ever read. */
static int keys_copy(struct namespace *ns, const struct key *cursor, unsigned max,
                     struct scanned *out, unsigned *n)
{
    struct kv_iter *it;
    int rc = store_scan(ns->store, &it);

    *n = 0;
    if (rc != 0)
        return rc;
    kv_iter_seek(it, cursor->bytes, cursor->len);
    for (; *n < max && kv_iter_valid(it); kv_iter_next(it)) {
        struct scanned *s = &out[*n];
        size_t len;
        const uint8_t *key = kv_iter_key(it, &len), *val;

        if (len < AT_DIR || memcmp(key, cursor->bytes, AT_DIR) != 0)
            break;
        if (len == cursor->len && memcmp(key, cursor->bytes, len) == 0)
            continue; /* checked by the last call */
        if (!is_long_enough(key, len)) {
            rc = -EIO;
            break;
        }
        s->key.len = len;
        memcpy(s->key.bytes, key, len);
        val = kv_iter_val(it, &s->len);
        memcpy(s->val, val, s->len <= sizeof(s->val) ? s->len : 0);
        ++*n;
    }
    if (rc == 0)
        rc = kv_iter_error(it);
    kv_iter_close(it);
    return rc;
}

/* Returns the place of the cursor's kind in `kinds`, or -EINVAL. */
static int cursor_kind(const struct namespace *ns, const struct key *cursor)
{
    struct key prefix;

    for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        key_id(&prefix, kinds[i], ns->export_id);
        if (cursor->len >= prefix.len &&
            memcmp(cursor->bytes, prefix.bytes, prefix.len) == 0)
            return (int)i;
    }
    return -EINVAL;
}

/* Goes on behind the last of n keys; with fewer than asked for, to the next kind. */
static void cursor_move(const struct namespace *ns, struct key *cursor, int kind,
                        const struct scanned *last, bool kind_is_over)
{
    if (!kind_is_over)
        *cursor = last->key;
    else if ((size_t)kind + 1 < sizeof(kinds) / sizeof(kinds[0]))
        key_id(cursor, kinds[kind + 1], ns->export_id);
    else
        cursor->len = 0;
}

int namespace_check(struct namespace *ns, struct key *cursor, unsigned max_keys,
                    bool repair, namespace_fault_cb *fn, void *arg, uint64_t *n_names)
{
    struct key_check c = { .ns = ns, .repair = repair, .fn = fn, .arg = arg };
    struct scanned *keys;
    unsigned n = 0;
    int kind, rc;

    assert(max_keys >= 1 && max_keys <= NAMESPACE_CHECK_KEYS_MAX);
    if (cursor->len == 0)
        key_id(cursor, kinds[0], ns->export_id);
    kind = cursor_kind(ns, cursor);
    if (kind < 0)
        return kind;
    keys = malloc(max_keys * sizeof(*keys));
    if (keys == NULL)
        return -ENOMEM;
    rc = keys_copy(ns, cursor, max_keys, keys, &n);
    for (unsigned i = 0; rc == 0 && i < n; i++)
        rc = scanned_check(&c, &keys[i]);
    if (rc == 0) {
        *n_names += kind == 0 ? n : 0;
        cursor_move(ns, cursor, kind, &keys[n == 0 ? 0 : n - 1], n < max_keys);
    }
    free(keys);
    return rc;
}
