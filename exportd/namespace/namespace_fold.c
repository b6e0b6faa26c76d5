/*
 * namespace_fold.c - the index of folded names: finds a name by another case or
 * normalisation.
 *
 * In:     dentry_put() and dentry_delete(), for changes of names; md.c, for questions.
 * Out:    one key for each name, in the batch that changes the name.
 * Keeps:  an export with the index has the keys of exactly its names. Several names of a
 *         directory may fold to one.
 */
#include <assert.h>
#include <errno.h>

#include "common/base/log.h"
#include "exportd/namespace/fold.h"
#include "exportd/namespace/namespace_int.h"

enum {
    HASH_AT = 1 + 4 + 8, /* in a key: kind, export and directory lie before it */
    COOKIE_AT = HASH_AT + 8,
    FOLDED_KEY_BYTES = COOKIE_AT + 8,
};

static void folded_key(const struct namespace *ns, uint64_t dir,
                       struct namespace_name name, uint64_t cookie, struct key *k)
{
    struct folded f;

    fold_name(name.bytes, name.len, &f);
    key_folded(k, ns->export_id, dir, fold_hash(&f), cookie);
}

void folded_put(struct namespace *ns, uint64_t dir, struct namespace_name name,
                uint64_t cookie)
{
    struct key k;

    assert(cookie >= NAMESPACE_COOKIE_FIRST);
    if (ns->fold_rules == 0)
        return;
    folded_key(ns, dir, name, cookie, &k);
    store_put(ns->store, &k, NULL, 0);
}

void folded_delete(struct namespace *ns, uint64_t dir, struct namespace_name name,
                   uint64_t cookie)
{
    struct key k;

    if (ns->fold_rules == 0)
        return;
    folded_key(ns, dir, name, cookie, &k);
    store_delete(ns->store, &k);
}

/* Checks one key of the index. Returns 0 if its name folds to f, and -ENOENT if not. */
static int candidate_check(struct namespace *ns, uint64_t dir, uint64_t cookie,
                           const struct folded *f, struct namespace_name *found)
{
    struct folded of_name;
    int rc = order_get(ns, dir, cookie, found);

    if (rc == -ENOENT) {
        log_error("export %u: the index of folded names has a name that directory %llu "
                  "does not have",
                  ns->export_id, (unsigned long long)dir);
        return -EIO;
    }
    if (rc != 0)
        return rc;
    fold_name(found->bytes, found->len, &of_name);
    return fold_equal(&of_name, f) ? 0 : -ENOENT; /* only the hashes are equal */
}

static int index_find(struct namespace *ns, uint64_t dir, struct namespace_name name,
                      struct namespace_name *found)
{
    struct kv_iter *it;
    struct folded f;
    struct key first;
    int rc;

    fold_name(name.bytes, name.len, &f);
    key_folded(&first, ns->export_id, dir, fold_hash(&f), 0);
    rc = store_scan(ns->store, &it);
    if (rc != 0)
        return rc;
    rc = -ENOENT;
    kv_iter_seek(it, first.bytes, first.len);
    for (; rc == -ENOENT && kv_iter_valid(it); kv_iter_next(it)) {
        size_t len;
        const uint8_t *key = kv_iter_key(it, &len);

        if (len != FOLDED_KEY_BYTES || memcmp(key, first.bytes, COOKIE_AT) != 0)
            break;
        rc = candidate_check(ns, dir, key_get_u64(key + COOKIE_AT), &f, found);
    }
    if (rc == -ENOENT && kv_iter_error(it) != 0)
        rc = kv_iter_error(it);
    kv_iter_close(it);
    return rc;
}

int namespace_real_name(struct namespace *ns, uint64_t dir, struct namespace_name name,
                        struct namespace_name *found)
{
    struct namespace_name of_index = name;
    struct inode in;
    struct dentry d;
    int rc = inode_get(ns, dir, &in);

    if (rc == 0 && ns->fold_rules == 0)
        rc = -EOPNOTSUPP;
    if (rc == 0 && !inode_is_dir(&in))
        rc = -ENOTDIR;
    if (rc == 0)
        rc = name_check(name);
    if (rc == 0)
        rc = dentry_get(ns, dir, name, &d);
    if (rc == -ENOENT)
        rc = index_find(ns, dir, name, &of_index);
    if (rc == 0)
        *found = of_index;
    return rc;
}
