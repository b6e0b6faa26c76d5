/*
 * namespace_rename.c - rename, with RENAME_NOREPLACE, RENAME_EXCHANGE and
 * RENAME_WHITEOUT.
 *
 * In:     namespace_rename(), from md.c.
 * Out:    one batch: names, parents' links and counts, ".." of moved directories, the
 *         replaced inode, a whiteout.
 * Keeps:  the tree is a tree: a directory never moves below itself.
 */
#include <assert.h>
#include <errno.h>
#include <linux/fs.h>

#include "exportd/namespace/namespace_int.h"

/* Rename under way: both sides, read and checked. */
struct rename {
    struct namespace *ns;
    struct inode dir, new_dir; /* new_dir is valid only if they differ */
    bool same_dir;
    struct namespace_name name, new_name;
    struct dentry d, new_d;
    bool replaces; /* new_d and new_in are valid */
    struct inode in, new_in;
    bool leaves_whiteout;
    struct new_inode whiteout; /* valid with leaves_whiteout; takes the old name */
};

static struct inode *target_dir(struct rename *r)
{
    return r->same_dir ? &r->dir : &r->new_dir;
}

/* Returns -EINVAL if directory `ino` is `from` or above it. */
static int below_check(struct namespace *ns, uint64_t ino, uint64_t from)
{
    struct inode in;
    int rc;

    for (unsigned i = 0; i < NAMESPACE_PARENT_STEPS_MAX; i++) {
        if (from == ino)
            return -EINVAL;
        if (from == NAMESPACE_ROOT_INO)
            return 0;
        rc = inode_get(ns, from, &in);
        if (rc != 0)
            return rc;
        from = in.parent;
    }
    return -EIO; /* a cycle: the store is corrupt */
}

static int rename_load(struct rename *r, uint64_t parent, uint64_t new_parent)
{
    int rc = dir_get(r->ns, parent, &r->dir);

    r->same_dir = parent == new_parent;
    if (rc == 0 && !r->same_dir)
        rc = dir_get(r->ns, new_parent, &r->new_dir);
    if (rc == 0)
        rc = name_check(r->name);
    if (rc == 0)
        rc = name_check(r->new_name);
    if (rc == 0)
        rc = dentry_get(r->ns, parent, r->name, &r->d);
    if (rc == 0)
        rc = named_inode_get(r->ns, &r->d, &r->in);
    if (rc != 0)
        return rc;
    rc = dentry_get(r->ns, new_parent, r->new_name, &r->new_d);
    if (rc == 0) {
        r->replaces = true;
        rc = named_inode_get(r->ns, &r->new_d, &r->new_in);
    }
    return rc == -ENOENT ? 0 : rc;
}

/* Checks whether `in` may take the name of `new_in`. */
static int replace_check(const struct inode *in, const struct inode *new_in)
{
    if (inode_is_dir(in) && !inode_is_dir(new_in))
        return -ENOTDIR;
    if (!inode_is_dir(in) && inode_is_dir(new_in))
        return -EISDIR;
    return inode_is_dir(new_in) && new_in->n_entries > 0 ? -ENOTEMPTY : 0;
}

/* Checks the flags of chattr for both directories and both inodes. */
static int rename_fixed_check(struct rename *r)
{
    if (inode_is_fixed(&r->dir) || inode_is_fixed(&r->in) ||
        (r->replaces && (inode_is_fixed(target_dir(r)) || inode_is_fixed(&r->new_in))))
        return -EPERM;
    return inode_may_grow(target_dir(r));
}

static int rename_check(struct rename *r, uint32_t flags)
{
    int rc = 0;

    if ((flags & RENAME_NOREPLACE) != 0 && r->replaces)
        return -EEXIST;
    if ((flags & RENAME_EXCHANGE) != 0 && !r->replaces)
        return -ENOENT;
    if (!r->replaces || r->in.ino != r->new_in.ino)
        rc = rename_fixed_check(r);
    if (rc == 0 && !r->same_dir && inode_is_dir(&r->in))
        rc = below_check(r->ns, r->in.ino, r->new_dir.ino);
    if (rc == 0 && (flags & RENAME_EXCHANGE) != 0) {
        if (!r->same_dir && inode_is_dir(&r->new_in))
            rc = below_check(r->ns, r->new_in.ino, r->dir.ino);
        return rc;
    }
    if (rc == 0 && r->replaces && r->in.ino != r->new_in.ino)
        rc = replace_check(&r->in, &r->new_in);
    return rc;
}

/* Updates ".." and both parents' links if a directory got another parent. */
static void moved(struct inode *in, struct inode *from, struct inode *to)
{
    assert(inode_is_dir(from) && inode_is_dir(to));
    if (!inode_is_dir(in) || from == to)
        return;
    in->parent = to->ino;
    from->nlink--;
    to->nlink++;
}

static void dirs_put(struct rename *r, int64_t now_ns)
{
    r->dir.mtime_ns = r->dir.ctime_ns = now_ns;
    inode_put(r->ns, &r->dir);
    if (r->same_dir)
        return;
    r->new_dir.mtime_ns = r->new_dir.ctime_ns = now_ns;
    inode_put(r->ns, &r->new_dir);
}

static void exchange_put(struct rename *r, int64_t now_ns)
{
    struct dentry d = { r->new_d.ino, r->new_d.type, r->d.cookie };
    struct dentry new_d = { r->d.ino, r->d.type, r->new_d.cookie };

    assert(r->replaces && r->in.ino != r->new_in.ino);
    moved(&r->in, &r->dir, target_dir(r));
    moved(&r->new_in, target_dir(r), &r->dir);
    dentry_put(r->ns, r->dir.ino, r->name, &d);
    dentry_put(r->ns, target_dir(r)->ino, r->new_name, &new_d);
    r->in.ctime_ns = r->new_in.ctime_ns = now_ns;
    inode_put(r->ns, &r->in);
    inode_put(r->ns, &r->new_in);
    dirs_put(r, now_ns);
}

/* Takes the name from the replaced inode. */
static void replaced_put(struct rename *r, int64_t now_ns)
{
    assert(r->replaces && r->new_in.ino != r->in.ino);
    r->new_in.ctime_ns = now_ns;
    if (inode_is_dir(&r->new_in)) {
        target_dir(r)->nlink--;
        inode_unnamed(r->ns, &r->new_in);
    } else if (--r->new_in.nlink == 0) {
        inode_unnamed(r->ns, &r->new_in);
    } else {
        inode_put(r->ns, &r->new_in);
    }
}

/*
 * Fills the request for a whiteout as in overlayfs: a device 0/0 that cannot be opened.
 */
static const struct namespace_create *whiteout_req(const struct namespace_owner *owner,
                                                   struct namespace_create *req)
{
    *req = (struct namespace_create){ .mode = S_IFCHR,
                                      .uid = owner->uid,
                                      .gid = owner->gid };
    return req;
}

/* Removes the old name, or gives it to the whiteout. */
static void old_name_put(struct rename *r)
{
    struct dentry d = { .type = S_IFCHR, .cookie = r->d.cookie };

    assert(r->d.ino == r->in.ino);
    if (!r->leaves_whiteout) {
        dentry_delete(r->ns, r->dir.ino, r->name, &r->d);
        r->dir.n_entries--;
        return;
    }
    new_inode_put(r->ns, NULL, &r->whiteout);
    d.ino = r->whiteout.in.ino;
    dentry_put(r->ns, r->dir.ino, r->name, &d);
}

static void rename_put(struct rename *r, int64_t now_ns)
{
    struct inode *to = target_dir(r);
    struct dentry new_d = { r->d.ino, r->d.type, 0 };

    /* A replaced name keeps its place in the listing. */
    new_d.cookie = r->replaces ? r->new_d.cookie : to->next_cookie++;
    old_name_put(r);
    dentry_put(r->ns, to->ino, r->new_name, &new_d);
    if (r->replaces)
        replaced_put(r, now_ns);
    else
        to->n_entries++;
    moved(&r->in, &r->dir, to);
    r->in.ctime_ns = now_ns;
    inode_put(r->ns, &r->in);
    dirs_put(r, now_ns);
}

static bool flags_are_fine(uint32_t flags)
{
    const uint32_t others = RENAME_NOREPLACE | RENAME_WHITEOUT;

    return (flags & ~(others | RENAME_EXCHANGE)) == 0 &&
           ((flags & RENAME_EXCHANGE) == 0 || (flags & others) == 0);
}

int namespace_rename(struct namespace *ns, const struct namespace_rename *req,
                     struct namespace_renamed *out)
{
    struct rename r = { .ns = ns, .name = req->name, .new_name = req->new_name };
    int64_t now_ns = store_stamp_ns(ns->store);
    struct namespace_create create;
    int rc;

    if (!flags_are_fine(req->flags))
        return -EINVAL;
    rc = rename_load(&r, req->parent, req->new_parent);
    if (rc == 0)
        rc = rename_check(&r, req->flags);
    if (rc != 0)
        return rc;
    *out = (struct namespace_renamed){ .moved = { r.in.ino } };
    if (r.replaces && r.new_in.ino == r.in.ino)
        return 0; /* two names of one inode: POSIX asks for no change */
    if ((req->flags & RENAME_EXCHANGE) != 0) {
        exchange_put(&r, now_ns);
        out->moved[1] = r.new_in.ino;
        return 0;
    }
    if ((req->flags & RENAME_WHITEOUT) != 0)
        rc = new_inode_init(ns, whiteout_req(&req->owner, &create), &r.dir, &r.whiteout);
    if (rc != 0)
        return rc;
    r.leaves_whiteout = (req->flags & RENAME_WHITEOUT) != 0;
    rename_put(&r, now_ns);
    if (r.leaves_whiteout)
        new_inode_free(&r.whiteout);
    if (r.replaces)
        out->removed = r.new_in;
    return 0;
}
