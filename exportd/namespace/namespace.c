/*
 * namespace.c - inodes and names: lookup, create, unlink, rmdir, link, readdir, reaping.
 *
 * In:     md.c, from requests; session.c, when the last reference goes.
 * Out:    the store's pending batch. Core: no clock but env's.
 * Keeps:  I4 with the store: each operation is whole in one batch. nlink of a directory
 *         is 2 plus its subdirectories; n_entries is the number of its names; each dentry
 *         has its order key and back, and its key in the index of folded names, if any.
 * Ask:    key.h, the bytes of dentries and counters.
 */
#include "exportd/namespace/namespace.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/bytes.h"
#include "common/base/log.h"
#include "exportd/namespace/acl.h"
#include "exportd/namespace/namespace_int.h"

enum {
    DENTRY_FORMAT = 1,
    DENTRY_BYTES = 1 + 8 + 4 + 8, /* format, ino, type, cookie */
    ORDER_BYTES_MIN = 1 + 8 + 4,  /* format, ino, type; then the name */
    COUNTERS_BYTES = 1 + 8 + 8,   /* format, next ino, inodes */
    DELETION_FORMAT = 1,
    /* given out between two syncs; 2^63 last for 2^43 starts */
    INODES_LOST_MAX = 1 << 20,
};

bool name_is(struct namespace_name name, const char *text)
{
    return name.len == strlen(text) && memcmp(name.bytes, text, name.len) == 0;
}

int name_check(struct namespace_name name)
{
    if (name.len > NAMESPACE_NAME_MAX)
        return -ENAMETOOLONG;
    if (name.len == 0 || memchr(name.bytes, '/', name.len) != NULL ||
        memchr(name.bytes, 0, name.len) != NULL || name_is(name, ".") ||
        name_is(name, ".."))
        return -EINVAL;
    return 0;
}

/* Logs that a record in the store is corrupt. Returns -EIO. */
static int damaged(const struct namespace *ns, const char *what, uint64_t ino)
{
    log_error("export %u: %s of inode %llu in the metadata store is corrupt",
              ns->export_id, what, (unsigned long long)ino);
    return -EIO;
}

int inode_get(struct namespace *ns, uint64_t ino, struct inode *out)
{
    struct key k;
    const uint8_t *val;
    size_t len;
    int rc;

    key_ino(&k, KEY_INODE, ns->export_id, ino);
    rc = store_get(ns->store, &k, &val, &len);
    if (rc != 0)
        return rc == -ENOENT ? -ESTALE : rc;
    if (inode_decode(out, ino, val, len) != 0)
        return damaged(ns, "the record", ino);
    return 0;
}

int dir_get(struct namespace *ns, uint64_t ino, struct inode *out)
{
    int rc = inode_get(ns, ino, out);

    if (rc == 0 && !inode_is_dir(out))
        rc = -ENOTDIR;
    if (rc == 0 && out->nlink == 0)
        rc = -ENOENT;
    return rc;
}

int named_inode_get(struct namespace *ns, const struct dentry *d, struct inode *out)
{
    int rc = inode_get(ns, d->ino, out);

    if (rc == 0 && out->nlink == 0)
        rc = damaged(ns, "the number of links", d->ino);
    return rc == -ESTALE ? damaged(ns, "the missing record", d->ino) : rc;
}

void inode_put(struct namespace *ns, struct inode *in)
{
    uint8_t buf[INODE_BYTES_MAX];
    struct key k;
    size_t len;

    in->change++;
    len = inode_encode(in, buf);
    key_ino(&k, KEY_INODE, ns->export_id, in->ino);
    store_put(ns->store, &k, buf, len);
}

int dentry_get(struct namespace *ns, uint64_t dir, struct namespace_name name,
               struct dentry *out)
{
    struct key k;
    const uint8_t *val;
    size_t len;
    int rc;

    assert(name.len > 0 && name.len <= NAMESPACE_NAME_MAX);
    key_name(&k, KEY_DENTRY, ns->export_id, dir, name.bytes, name.len);
    rc = store_get(ns->store, &k, &val, &len);
    if (rc != 0)
        return rc;
    if (len != DENTRY_BYTES || val[0] != DENTRY_FORMAT)
        return damaged(ns, "a name in the directory", dir);
    out->ino = get_le64(val + 1);
    out->type = get_le32(val + 9);
    out->cookie = get_le64(val + 13);
    return 0;
}

void dentry_put(struct namespace *ns, uint64_t dir, struct namespace_name name,
                const struct dentry *d)
{
    uint8_t buf[ORDER_BYTES_MIN + NAMESPACE_NAME_MAX];
    struct key k;

    assert(name_check(name) == 0);
    buf[0] = DENTRY_FORMAT;
    put_le64(buf + 1, d->ino);
    put_le32(buf + 9, d->type);
    put_le64(buf + 13, d->cookie);
    key_name(&k, KEY_DENTRY, ns->export_id, dir, name.bytes, name.len);
    store_put(ns->store, &k, buf, DENTRY_BYTES);
    memcpy(buf + ORDER_BYTES_MIN, name.bytes, name.len);
    key_order(&k, ns->export_id, dir, d->cookie);
    store_put(ns->store, &k, buf, ORDER_BYTES_MIN + name.len);
    folded_put(ns, dir, name, d->cookie);
}

void dentry_delete(struct namespace *ns, uint64_t dir, struct namespace_name name,
                   const struct dentry *d)
{
    struct key k;

    assert(name_check(name) == 0);
    key_name(&k, KEY_DENTRY, ns->export_id, dir, name.bytes, name.len);
    store_delete(ns->store, &k);
    key_order(&k, ns->export_id, dir, d->cookie);
    store_delete(ns->store, &k);
    folded_delete(ns, dir, name, d->cookie);
}

int order_get(struct namespace *ns, uint64_t dir, uint64_t cookie,
              struct namespace_name *name)
{
    struct key k;
    const uint8_t *val;
    size_t len;
    int rc;

    key_order(&k, ns->export_id, dir, cookie);
    rc = store_get(ns->store, &k, &val, &len);
    if (rc != 0)
        return rc;
    if (len <= ORDER_BYTES_MIN || len > ORDER_BYTES_MIN + NAMESPACE_NAME_MAX ||
        val[0] != DENTRY_FORMAT)
        return damaged(ns, "an entry of the directory", dir);
    *name = (struct namespace_name){ val + ORDER_BYTES_MIN, len - ORDER_BYTES_MIN };
    return 0;
}

void counters_put(struct namespace *ns)
{
    uint8_t buf[COUNTERS_BYTES];
    struct key k;

    buf[0] = 1;
    put_le64(buf + 1, ns->next_ino);
    put_le64(buf + 9, ns->n_inodes);
    key_id(&k, KEY_COUNTERS, ns->export_id);
    store_put(ns->store, &k, buf, sizeof(buf));
}

/* Skips numbers, because a loss of power may take inodes that were given out a second
 * before, with the counter. Storages have their data and clients hold their numbers, so
 * these may not be given out again. All is stable with the number of the start. */
void namespace_begin(struct namespace *ns, uint32_t start, uint32_t last_loss)
{
    assert(ns->start == 0);
    ns->start = start;
    ns->last_loss = last_loss;
    namespace_seed_drop_unused(ns);
    namespace_gap_add(ns, ns->next_ino, ns->next_ino + INODES_LOST_MAX);
    ns->next_ino += INODES_LOST_MAX;
    namespace_seed_begin(ns);
    counters_put(ns);
}

static void namespace_init(struct namespace *ns, struct env *env, struct store *store,
                           uint32_t export_id, const struct namespace_hooks *hooks)
{
    assert(hooks->place != NULL && hooks->keeps != NULL && hooks->deleted != NULL);
    *ns = (struct namespace){
        .env = env, .store = store, .hooks = *hooks, .export_id = export_id
    };
}

int namespace_open(struct namespace *ns, struct env *env, struct store *store,
                   uint32_t export_id, const struct namespace_hooks *hooks)
{
    struct key k;
    const uint8_t *val;
    size_t len;
    int rc;

    namespace_init(ns, env, store, export_id, hooks);
    key_id(&k, KEY_COUNTERS, export_id);
    rc = store_get(store, &k, &val, &len);
    if (rc != 0 || len != COUNTERS_BYTES || val[0] != 1)
        return rc != 0 && rc != -ENOENT ? rc : damaged(ns, "the counters", 0);
    ns->next_ino = get_le64(val + 1);
    ns->n_inodes = get_le64(val + 9);
    return 0;
}

void namespace_make(struct namespace *ns, struct env *env, struct store *store,
                    uint32_t export_id, const struct namespace_hooks *hooks)
{
    int64_t now_ns = store_stamp_ns(store);
    struct inode root = {
        .ino = NAMESPACE_ROOT_INO,
        .mode = S_IFDIR | 0755,
        .nlink = 2,
        .atime_ns = now_ns,
        .mtime_ns = now_ns,
        .ctime_ns = now_ns,
        .parent = NAMESPACE_ROOT_INO,
        .next_cookie = NAMESPACE_COOKIE_FIRST,
    };

    namespace_init(ns, env, store, export_id, hooks);
    ns->next_ino = NAMESPACE_ROOT_INO + 1;
    ns->n_inodes = 1;
    namespace_seed_begin(ns);
    inode_put(ns, &root);
    counters_put(ns);
}

int namespace_getattr(struct namespace *ns, uint64_t ino, struct inode *out)
{
    struct inode in;
    int rc = inode_get(ns, ino, &in);

    if (rc == 0)
        *out = in;
    return rc;
}

int namespace_lookup(struct namespace *ns, uint64_t parent, struct namespace_name name,
                     struct inode *out)
{
    struct inode dir;
    struct dentry d;
    int rc = inode_get(ns, parent, &dir);

    if (rc == 0 && name_is(name, ".")) {
        *out = dir;
        return 0;
    }
    if (rc == 0 && !inode_is_dir(&dir))
        rc = -ENOTDIR;
    if (rc == 0 && name_is(name, ".."))
        return namespace_getattr(ns, dir.parent, out);
    if (rc == 0)
        rc = name_check(name);
    if (rc == 0)
        rc = dentry_get(ns, parent, name, &d);
    if (rc == 0)
        rc = named_inode_get(ns, &d, &dir);
    if (rc == 0)
        *out = dir;
    return rc;
}

/* Decides the permission bits of a new inode from the umask or the default ACL. */
static int create_permissions(struct namespace *ns, const struct inode *dir,
                              uint32_t umask, struct inode *in, struct inherited *inh)
{
    bool exact;
    int rc;

    assert(inode_is_dir(dir));
    if (S_ISLNK(in->mode)) {
        in->mode = S_IFLNK | 0777;
        return 0;
    }
    if ((dir->flags & INODE_ACL_DEFAULT) == 0) {
        in->mode &= ~(umask & 0777);
        return 0;
    }
    rc = acl_get(ns, dir, ACL_NAME_DEFAULT, &inh->dflt, &inh->len);
    if (rc != 0)
        return rc;
    inh->access = malloc(inh->len);
    if (inh->access == NULL)
        return -ENOMEM;
    memcpy(inh->access, inh->dflt, inh->len);
    in->mode = acl_create(inh->access, inh->len, in->mode, &exact);
    if (exact) {
        free(inh->access);
        inh->access = NULL;
    } else {
        in->flags |= INODE_XATTRS | INODE_ACL_ACCESS;
    }
    if (inode_is_dir(in))
        in->flags |= INODE_XATTRS | INODE_ACL_DEFAULT;
    else
        inh->dflt = NULL;
    return 0;
}

static void inherited_put(struct namespace *ns, uint64_t ino, const struct inherited *inh)
{
    const char *names[2];
    const uint8_t *vals[2];
    size_t lens[2] = { inh->len, inh->len };
    unsigned n = 0;

    if (inh->access != NULL) {
        names[n] = ACL_NAME_ACCESS;
        vals[n++] = inh->access;
    }
    if (inh->dflt != NULL) {
        names[n] = ACL_NAME_DEFAULT;
        vals[n++] = inh->dflt;
    }
    if (n > 0)
        xattrs_make(ns, ino, names, vals, lens, n);
}

static int create_check(const struct namespace_create *req)
{
    uint32_t type = req->mode & S_IFMT;

    if ((req->mode & ~(uint32_t)(S_IFMT | 07777)) != 0)
        return -EINVAL;
    if (type != S_IFREG && type != S_IFDIR && type != S_IFLNK && type != S_IFCHR &&
        type != S_IFBLK && type != S_IFIFO && type != S_IFSOCK)
        return -EINVAL;
    if (req->uid == UINT32_MAX || req->gid == UINT32_MAX)
        return -EINVAL;
    if (type == S_IFLNK && req->target.len > NAMESPACE_TARGET_MAX)
        return -ENAMETOOLONG;
    if (type == S_IFLNK &&
        (req->target.len == 0 || memchr(req->target.bytes, 0, req->target.len) != NULL))
        return -EINVAL;
    return 0;
}

/*
 * Fills a new inode in dir, except for permissions, distribution, number and generation.
 */
static void create_inode(struct namespace *ns, const struct namespace_create *req,
                         const struct inode *dir, struct inode *in)
{
    int64_t now_ns = store_stamp_ns(ns->store);
    uint32_t type = req->mode & S_IFMT;

    *in = (struct inode){
        .mode = req->mode,
        .nlink = type == S_IFDIR ? 2 : 1,
        .uid = req->uid,
        .gid = req->gid,
        .rdev = type == S_IFCHR || type == S_IFBLK ? req->rdev : 0,
        .size = type == S_IFLNK ? req->target.len : 0,
        .atime_ns = now_ns,
        .mtime_ns = now_ns,
        .ctime_ns = now_ns,
        .epoch_start = ns->start,
        .parent = type == S_IFDIR ? dir->ino : 0,
        .next_cookie = type == S_IFDIR ? NAMESPACE_COOKIE_FIRST : 0,
    };
    if ((dir->mode & S_ISGID) != 0) {
        in->gid = dir->gid;
        if (type == S_IFDIR)
            in->mode |= S_ISGID;
    }
}

int new_inode_init(struct namespace *ns, const struct namespace_create *req,
                   const struct inode *dir, struct new_inode *out)
{
    struct inode *in = &out->in;
    int rc;

    out->inherited = (struct inherited){ 0 };
    create_inode(ns, req, dir, in);
    rc = create_permissions(ns, dir, req->umask, in, &out->inherited);
    if (rc == 0 && inode_is_file(in))
        rc = ns->hooks.place(ns->hooks.arg, in);
    if (rc != 0)
        new_inode_free(out);
    return rc;
}

void new_inode_free(struct new_inode *n)
{
    free(n->inherited.access);
    n->inherited.access = NULL;
}

void new_inode_put(struct namespace *ns, const struct namespace_create *req,
                   struct new_inode *n)
{
    struct inode *in = &n->in;
    struct key k;

    assert(in->ino == 0 && (req != NULL || !S_ISLNK(in->mode)));
    in->ino = ns->next_ino++;
    in->generation = namespace_generation(&ns->seed, in->ino);
    ns->n_inodes++;
    counters_put(ns);
    inherited_put(ns, in->ino, &n->inherited);
    inode_put(ns, in);
    if (S_ISLNK(in->mode)) {
        key_ino(&k, KEY_SYMLINK, ns->export_id, in->ino);
        store_put(ns->store, &k, req->target.bytes, req->target.len);
    }
}

/* Puts a new inode and its name. Cannot fail. */
static void create_put(struct namespace *ns, const struct namespace_create *req,
                       struct inode *dir, struct new_inode *n)
{
    struct inode *in = &n->in;
    struct dentry d = { .type = in->mode & S_IFMT, .cookie = dir->next_cookie++ };

    assert(inode_is_dir(dir) && dir->nlink > 0);
    new_inode_put(ns, req, n);
    d.ino = in->ino;
    dentry_put(ns, dir->ino, req->name, &d);
    dir->n_entries++;
    if (inode_is_dir(in))
        dir->nlink++;
    dir->mtime_ns = dir->ctime_ns = in->ctime_ns;
    inode_put(ns, dir);
}

int namespace_create(struct namespace *ns, const struct namespace_create *req,
                     struct inode *out)
{
    struct inode dir, in;
    struct new_inode n;
    struct dentry d;
    int rc = create_check(req);

    if (rc == 0)
        rc = dir_get(ns, req->parent, &dir);
    if (rc == 0 && (name_is(req->name, ".") || name_is(req->name, "..")))
        rc = -EEXIST;
    if (rc == 0)
        rc = name_check(req->name);
    if (rc != 0)
        return rc;
    rc = dentry_get(ns, req->parent, req->name, &d);
    if (rc == 0) {
        rc = named_inode_get(ns, &d, &in);
        if (rc == 0)
            *out = in;
        return rc == 0 ? -EEXIST : rc;
    }
    if (rc != -ENOENT)
        return rc;
    rc = inode_may_grow(&dir);
    if (rc == 0)
        rc = new_inode_init(ns, req, &dir, &n);
    if (rc != 0)
        return rc;
    create_put(ns, req, &dir, &n);
    *out = n.in;
    new_inode_free(&n);
    return 0;
}

static void orphan_put(struct namespace *ns, uint64_t ino)
{
    struct key k;

    key_ino(&k, KEY_ORPHAN, ns->export_id, ino);
    store_put(ns->store, &k, NULL, 0);
}

static void orphan_delete(struct namespace *ns, uint64_t ino)
{
    struct key k;

    key_ino(&k, KEY_ORPHAN, ns->export_id, ino);
    store_delete(ns->store, &k);
}

int namespace_create_nameless(struct namespace *ns, const struct namespace_create *req,
                              struct inode *out)
{
    struct inode dir;
    struct new_inode n;
    int rc = S_ISREG(req->mode) ? create_check(req) : -EINVAL;

    if (rc == 0)
        rc = dir_get(ns, req->parent, &dir);
    if (rc == 0)
        rc = inode_may_grow(&dir);
    if (rc == 0)
        rc = new_inode_init(ns, req, &dir, &n);
    if (rc != 0)
        return rc;
    n.in.nlink = 0;
    n.in.flags |= INODE_NAMELESS;
    new_inode_put(ns, req, &n);
    orphan_put(ns, n.in.ino);
    *out = n.in;
    new_inode_free(&n);
    return 0;
}

/*
 * Puts the record of a removed file whose storages must be asked: generation, storages.
 */
static void deletion_put(struct namespace *ns, const struct inode *in)
{
    uint8_t buf[6 + 4 * DIST_MAX];
    struct key k;

    assert(in->n_storages <= DIST_MAX);
    buf[0] = DELETION_FORMAT;
    buf[1] = (uint8_t)in->n_storages;
    put_le32(buf + 2, in->generation);
    for (uint32_t i = 0; i < in->n_storages; i++)
        put_le32(buf + 6 + 4 * i, in->storages[i]);
    key_ino(&k, KEY_DELETION, ns->export_id, in->ino);
    store_put(ns->store, &k, buf, 6 + 4 * (size_t)in->n_storages);
    ns->hooks.deleted(ns->hooks.arg, in);
}

/* Deletes all records of an inode. */
static void inode_remove(struct namespace *ns, struct inode *in)
{
    struct key k;

    assert(in->nlink == 0);
    xattrs_delete_all(ns, in);
    if (S_ISLNK(in->mode)) {
        key_ino(&k, KEY_SYMLINK, ns->export_id, in->ino);
        store_delete(ns->store, &k);
    }
    if ((in->flags & INODE_INLINE) != 0) {
        key_ino(&k, KEY_INLINE, ns->export_id, in->ino);
        store_delete(ns->store, &k);
    }
    if ((in->flags & INODE_BLOCKS) != 0) {
        key_ino(&k, KEY_BLOCKS, ns->export_id, in->ino);
        store_delete(ns->store, &k);
    }
    redist_drop(ns, in);
    key_ino(&k, KEY_INODE, ns->export_id, in->ino);
    store_delete(ns->store, &k);
    if (inode_may_have_data(in))
        deletion_put(ns, in);
    ns->n_inodes--;
    counters_put(ns);
}

void inode_unnamed(struct namespace *ns, struct inode *in)
{
    in->nlink = 0;
    if (!ns->hooks.keeps(ns->hooks.arg, in->ino)) {
        inode_remove(ns, in);
        return;
    }
    inode_put(ns, in);
    orphan_put(ns, in->ino);
}

bool namespace_reap(struct namespace *ns, uint64_t ino)
{
    struct inode in;
    int rc = inode_get(ns, ino, &in);

    if (rc == 0 && in.nlink > 0)
        return false;
    if (rc == 0)
        inode_remove(ns, &in);
    if (rc == 0 || rc == -ESTALE)
        orphan_delete(ns, ino);
    return rc == 0 || rc == -ESTALE;
}

/* Reads the name, its directory and its inode, for unlink and rmdir. */
static int removal_get(struct namespace *ns, uint64_t parent, struct namespace_name name,
                       struct inode *dir, struct dentry *d, struct inode *in)
{
    int rc = dir_get(ns, parent, dir);

    if (rc == 0)
        rc = name_check(name);
    if (rc == 0)
        rc = dentry_get(ns, parent, name, d);
    if (rc == 0)
        rc = named_inode_get(ns, d, in);
    if (rc == 0 && (inode_is_fixed(dir) || inode_is_fixed(in)))
        rc = -EPERM;
    return rc;
}

int namespace_unlink(struct namespace *ns, uint64_t parent, struct namespace_name name,
                     struct inode *out)
{
    struct inode dir, in;
    struct dentry d;
    int rc = removal_get(ns, parent, name, &dir, &d, &in);

    if (rc != 0)
        return rc;
    if (inode_is_dir(&in))
        return -EISDIR;
    dir.mtime_ns = dir.ctime_ns = in.ctime_ns = store_stamp_ns(ns->store);
    dir.n_entries--;
    dentry_delete(ns, parent, name, &d);
    inode_put(ns, &dir);
    if (--in.nlink == 0)
        inode_unnamed(ns, &in);
    else
        inode_put(ns, &in);
    *out = in;
    return 0;
}

int namespace_rmdir(struct namespace *ns, uint64_t parent, struct namespace_name name,
                    struct inode *out)
{
    struct inode dir, in;
    struct dentry d;
    int rc;

    if (name_is(name, ".."))
        return -ENOTEMPTY;
    rc = removal_get(ns, parent, name, &dir, &d, &in);
    if (rc != 0)
        return rc;
    if (!inode_is_dir(&in))
        return -ENOTDIR;
    if (in.n_entries > 0)
        return -ENOTEMPTY;
    dir.mtime_ns = dir.ctime_ns = in.ctime_ns = store_stamp_ns(ns->store);
    dir.n_entries--;
    dir.nlink--;
    dentry_delete(ns, parent, name, &d);
    inode_put(ns, &dir);
    inode_unnamed(ns, &in);
    *out = in;
    return 0;
}

int namespace_link(struct namespace *ns, uint64_t ino, uint64_t parent,
                   struct namespace_name name, struct inode *out)
{
    struct inode dir, in;
    struct dentry d;
    int rc = inode_get(ns, ino, &in);

    if (rc == 0)
        rc = dir_get(ns, parent, &dir);
    if (rc == 0)
        rc = name_check(name);
    if (rc == 0 && inode_is_dir(&in))
        rc = -EPERM;
    if (rc != 0)
        return rc;
    rc = dentry_get(ns, parent, name, &d);
    if (rc != -ENOENT)
        return rc == 0 ? -EEXIST : rc;
    if (inode_may_grow(&dir) != 0 || inode_is_fixed(&in))
        return -EPERM;
    if (in.nlink == 0 && (in.flags & INODE_NAMELESS) == 0)
        return -ENOENT;
    if (in.nlink >= NAMESPACE_LINKS_MAX)
        return -EMLINK;
    d = (struct dentry){ ino, in.mode & S_IFMT, dir.next_cookie++ };
    dir.mtime_ns = dir.ctime_ns = in.ctime_ns = store_stamp_ns(ns->store);
    dir.n_entries++;
    if (in.nlink++ == 0) {
        in.flags &= ~(uint32_t)INODE_NAMELESS;
        orphan_delete(ns, ino);
    }
    dentry_put(ns, parent, name, &d);
    inode_put(ns, &dir);
    inode_put(ns, &in);
    *out = in;
    return 0;
}

int namespace_readlink(struct namespace *ns, uint64_t ino, const uint8_t **target,
                       size_t *len)
{
    struct inode in;
    struct key k;
    int rc = inode_get(ns, ino, &in);

    if (rc != 0)
        return rc;
    if (!S_ISLNK(in.mode))
        return -EINVAL;
    key_ino(&k, KEY_SYMLINK, ns->export_id, ino);
    rc = store_get(ns->store, &k, target, len);
    return rc == -ENOENT ? damaged(ns, "the missing target", ino) : rc;
}

/* Parses one order key. Returns false if it belongs to another directory. */
static bool entry_get(struct kv_iter *it, const struct key *prefix,
                      struct namespace_entry *e, bool *sane)
{
    size_t key_len, len;
    const uint8_t *key = kv_iter_key(it, &key_len);
    const uint8_t *val;

    if (key_len != prefix->len + 8 || memcmp(key, prefix->bytes, prefix->len) != 0)
        return false;
    val = kv_iter_val(it, &len);
    *sane = len > ORDER_BYTES_MIN && len <= ORDER_BYTES_MIN + NAMESPACE_NAME_MAX &&
            val[0] == DENTRY_FORMAT;
    if (*sane)
        *e = (struct namespace_entry){
            .name = { val + ORDER_BYTES_MIN, len - ORDER_BYTES_MIN },
            .ino = get_le64(val + 1),
            .type = get_le32(val + 9),
            .cookie = key_get_u64(key + prefix->len),
        };
    return true;
}

/* Returns the cookie at which a listing after `cookie` can begin. */
static uint64_t listing_start(const struct namespace *ns, uint64_t dir, uint64_t cookie)
{
    const struct namespace_first *f = &ns->firsts[dir % NAMESPACE_FIRSTS];

    /* After a failed commit, names exist again that were gone when `firsts` was noted. */
    if (f->dir == dir && cookie < f->cookie && store_error(ns->store) == 0)
        return f->cookie;
    return cookie == UINT64_MAX ? cookie : cookie + 1;
}

/* Notes the first entry found by a listing that began before all entries. */
static void first_note(struct namespace *ns, uint64_t dir, uint64_t cookie,
                       uint64_t found)
{
    struct namespace_first *f = &ns->firsts[dir % NAMESPACE_FIRSTS];

    if (cookie < NAMESPACE_COOKIE_FIRST || (f->dir == dir && cookie < f->cookie))
        *f = (struct namespace_first){ dir, found };
}

int namespace_readdir(struct namespace *ns, uint64_t ino, uint64_t cookie,
                      namespace_entry_cb *fn, void *arg, struct inode *dir, bool *end)
{
    struct kv_iter *it = NULL;
    struct key prefix, from;
    struct namespace_entry e;
    bool sane = true, first = true;
    int rc = inode_get(ns, ino, dir);

    assert(fn != NULL);
    if (rc == 0 && !inode_is_dir(dir))
        rc = -ENOTDIR;
    if (rc == 0)
        rc = store_scan(ns->store, &it);
    if (rc != 0)
        return rc;
    key_ino(&prefix, KEY_ORDER, ns->export_id, ino);
    key_order(&from, ns->export_id, ino, listing_start(ns, ino, cookie));
    *end = true;
    for (kv_iter_seek(it, from.bytes, from.len); kv_iter_valid(it); kv_iter_next(it)) {
        if (!entry_get(it, &prefix, &e, &sane) || !sane)
            break;
        if (first)
            first_note(ns, ino, cookie, e.cookie);
        first = false;
        if (!fn(arg, &e)) {
            *end = false;
            break;
        }
    }
    rc = sane ? kv_iter_error(it) : damaged(ns, "an entry of the directory", ino);
    if (rc == 0 && first) /* no entry: the next new one will be the first */
        first_note(ns, ino, cookie, dir->next_cookie);
    kv_iter_close(it);
    return rc;
}
