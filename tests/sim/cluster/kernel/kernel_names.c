/*
 * kernel_names.c - names and attributes in the kernel.
 *
 * In:     operations of programs, answers of the mount.
 * Out:    behaviour of names and attributes as kernel.h says.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/cluster/kernel/kernel_int.h"
#include "tests/sim/cluster/world/proc.h"

static uint64_t until_ns(double timeout_s)
{
    if (timeout_s <= 0)
        return 0;
    return timeout_s > 1e9 ? UINT64_MAX
                           : world_clock.now_ns + (uint64_t)(timeout_s * 1e9);
}

/* ---- attributes ---- */

bool kattr_is_believed(const struct kinode *i)
{
    return !i->invalid && i->until_ns > world_clock.now_ns;
}

void kattr_drop(struct kernel *k, struct kinode *i)
{
    i->version = ++k->version;
    i->invalid = true;
}

void kattr_set(struct kernel *k, struct kinode *i, const struct stat *st,
               double timeout_s)
{
    i->st = *st;
    i->version = ++k->version;
    i->until_ns = until_ns(timeout_s);
    i->invalid = false;
    kinode_set_size(k, i, (uint64_t)st->st_size);
}

void kattr_learn(struct kop *op, struct kinode *i, const struct stat *st,
                 double timeout_s)
{
    if (i->version > op->version || i->unstable)
        return;
    kattr_set(op->k, i, st, timeout_s);
    if (op->evict != op->k->evict) /* the inode may have been forgotten meanwhile */
        i->invalid = true;
}

/* Returns the inode of an entry, and counts one more lookup as the mount does. */
static struct kinode *entry_inode(struct kop *op, const struct fuse_entry_param *e)
{
    struct kinode *i = kinode_get(op->k, e->ino);

    i->n_lookups++;
    return i;
}

/* ---- names ---- */

struct kname *kname_find(struct kernel *k, uint64_t parent, const char *name)
{
    LIST_FOREACH(n, &k->names) {
        struct kname *kn = container_of(n, struct kname, link);

        if (kn->parent == parent && strcmp(kn->name, name) == 0)
            return kn;
    }
    return NULL;
}

static bool kname_is_of_now(const struct kop *op, const struct kname *n)
{
    return n != NULL && n->epoch == op->k->epoch;
}

static bool kname_is_believed(const struct kop *op, const struct kname *n)
{
    return kname_is_of_now(op, n) && n->until_ns > world_clock.now_ns;
}

static void kname_free(struct kname *n)
{
    list_remove(&n->link);
    free(n);
}

void kname_drop(struct kernel *k, uint64_t parent, const char *name)
{
    struct kname *n = kname_find(k, parent, name);

    if (n != NULL)
        kname_free(n);
}

void kdir_changed(struct kernel *k, uint64_t ino)
{
    struct kinode *i = kinode_find(k, ino);

    if (i == NULL)
        return;
    i->invalid = true;
    i->n_changes++;
}

static struct kname *kname_add(struct kernel *k, uint64_t parent, const char *name)
{
    struct kname *n = calloc(1, sizeof(*n));

    assert(n != NULL);
    n->parent = parent;
    strncpy(n->name, name, KNAME_MAX - 1);
    list_add_tail(&k->names, &n->link);
    return n;
}

static void kname_set(struct kop *op, const char *name, const struct fuse_entry_param *e,
                      uint64_t epoch)
{
    struct kernel *k = op->k;
    uint64_t parent = op->r.ino;

    kname_drop(k, parent, name);
    if (e->ino == 0 && e->entry_timeout <= 0)
        return;
    if (e->ino != 0 && S_ISDIR(e->attr.st_mode)) { /* a directory has one name */
        LIST_FOREACH_SAFE(l, &k->names) {
            struct kname *other = container_of(l, struct kname, link);

            if (other->ino == e->ino)
                kname_free(other);
        }
    }
    struct kname *n = kname_add(k, parent, name);

    n->ino = e->ino;
    n->until_ns = until_ns(e->entry_timeout);
    n->epoch = epoch;
}

/* Caches a name and its inode from a listing, as after a lookup. */
void kname_learn(struct kop *op, const char *name, const struct fuse_entry_param *e)
{
    struct kname *n = kname_find(op->k, op->r.ino, name);
    struct kinode *i;

    if (e->ino == 0 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return;
    i = entry_inode(op, e);
    kattr_learn(op, i, &e->attr, e->attr_timeout);
    if (n != NULL && n->ino == e->ino) {
        n->until_ns = until_ns(e->entry_timeout);
        n->epoch = op->k->epoch;
    } else {
        kname_set(op, name, e, op->k->epoch);
    }
}

/* ---- lookup ---- */

static void lookup_end(struct kop *op, const struct kname *n)
{
    const struct kinode *i = n->ino == 0 ? NULL : kinode_find(op->k, n->ino);

    op->k->counts.n_names++;
    op->below.entry = (struct fuse_entry_param){ .ino = n->ino };
    if (i != NULL)
        op->below.entry.attr = op->below.st = i->st;
    kop_end(op, n->ino == 0 ? -ENOENT : 0);
}

static void lookup_answered(struct kop *op)
{
    struct fuse_entry_param *e = &op->below.entry;
    int rc = op->below.rc;

    if (rc == 0) {
        struct kinode *i = entry_inode(op, e);

        kattr_learn(op, i, &e->attr, e->attr_timeout);
        kname_set(op, op->name, e, op->epoch);
    } else if (rc == -ENOENT) {
        e->ino = 0;
        kname_set(op, op->name, e, op->epoch);
    }
    kop_end(op, rc);
}

static void lookup_locked(struct kop *op)
{
    struct kname *n = kname_find(op->k, op->r.ino, op->name);

    if (kname_is_believed(op, n)) /* a concurrent lookup was first */
        lookup_end(op, n);
    else
        kop_ask(op, &op->r, lookup_answered);
}

static void lookup_slowly(struct kop *op)
{
    kname_drop(op->k, op->r.ino, op->name);
    kop_lock(op, op->inode, false);
    kop_locked(op, lookup_locked);
}

/* Takes the answer about an expired name; it may have
 * been dropped meanwhile, since no lock was held. */
static void lookup_asked_again(struct kop *op)
{
    struct kname *n = kname_find(op->k, op->r.ino, op->name);
    const struct fuse_entry_param *e = &op->below.entry;
    struct kinode *i;

    if (op->below.rc == 0 && e->ino == op->pos) {
        i = entry_inode(op, e);
        kattr_learn(op, i, &e->attr, e->attr_timeout);
        if (n != NULL && n->ino == e->ino)
            n->until_ns = until_ns(e->entry_timeout);
        kop_end(op, 0);
        return;
    }
    if (op->below.rc == 0) {
        const struct request forget = { .kind = REQUEST_FORGET, .ino = e->ino, .len = 1 };

        kernel_tell(op->k, &forget);
    }
    lookup_slowly(op);
}

static void do_lookup(struct kop *op)
{
    struct kname *n = kname_find(op->k, op->r.ino, op->name);

    kop_pin(op, op->r.ino);
    if (kname_is_believed(op, n)) {
        lookup_end(op, n);
    } else if (kname_is_of_now(op, n) && n->ino != 0) {
        op->pos = n->ino;
        kop_ask(op, &op->r, lookup_asked_again);
    } else {
        lookup_slowly(op);
    }
}

/* ---- getattr ---- */

static void getattr_answered(struct kop *op)
{
    if (op->below.rc == 0)
        kattr_learn(op, op->inode, &op->below.st, op->below.attr_timeout_s);
    kop_end(op, op->below.rc);
}

static void do_getattr(struct kop *op)
{
    kop_pin(op, op->r.ino);
    if (!kattr_is_believed(op->inode)) {
        kop_ask(op, &op->r, getattr_answered);
        return;
    }
    op->k->counts.n_attrs++;
    op->below.st = op->inode->st;
    op->below.st.st_size = (off_t)op->inode->size;
    kop_end(op, 0);
}

/* ---- changes of names ---- */

static void name_expire(struct kernel *k, uint64_t parent, const char *name)
{
    struct kname *n = kname_find(k, parent, name);

    if (n != NULL)
        n->until_ns = 0;
}

/* Repeats a change once from its start after ESTALE:
 * the mount knows that a cached name is wrong. */
static bool is_done_again(struct kop *op, void (*begin)(struct kop *op))
{
    if (op->below.rc != -ESTALE || op->is_again)
        return false;
    op->is_again = true;
    name_expire(op->k, op->r.ino, op->name);
    name_expire(op->k, op->r.ino2, op->name2);
    kop_unlock(op);
    if (op->inode != NULL)
        op->inode->n_pins--;
    op->inode = NULL;
    kop_later(op, begin);
    return true;
}

/* ---- create, mkdir, link ---- */

static void do_make(struct kop *op);

static void made(struct kop *op)
{
    const struct fuse_entry_param *e = &op->below.entry;
    struct kernel *k = op->k;

    if (is_done_again(op, do_make))
        return;
    if (op->below.rc == 0) {
        struct kinode *i = entry_inode(op, e);

        kattr_set(k, i, &e->attr, e->attr_timeout);
        if (op->r.kind == REQUEST_LINK) /* ctime has changed */
            i->invalid = true;
        kname_set(op, op->name, e, op->epoch);
        kdir_changed(k, op->r.ino);
        if (op->r.kind == REQUEST_CREATE) {
            op->inode->n_pins--;
            kop_pin(op, e->ino);
            kfile_open(op);
        }
    } else if (op->below.rc == -EEXIST) {
        kname_drop(k, op->r.ino, op->name);
    }
    kop_end(op, op->below.rc);
}

static void make_locked(struct kop *op)
{
    const struct kname *n = kname_find(op->k, op->r.ino, op->name);

    if (kname_is_believed(op, n) && n->ino != 0)
        kop_end(op, -EEXIST);
    else
        kop_ask(op, &op->r, made);
}

static void do_make(struct kop *op)
{
    kop_pin(op, op->r.ino);
    kop_lock(op, op->inode, true);
    if (op->r.kind == REQUEST_LINK)
        kop_lock(op, kinode_get(op->k, op->r.ino2), true);
    kop_locked(op, make_locked);
}

/* ---- unlink, rmdir ---- */

static void do_remove(struct kop *op);

/* Records that the inode has one name less. */
static void kinode_unlinked(struct kernel *k, uint64_t ino)
{
    struct kinode *i = kinode_find(k, ino);

    if (i != NULL)
        kattr_drop(k, i);
}

static void removed(struct kop *op)
{
    struct kname *n = kname_find(op->k, op->r.ino, op->name);
    int rc = op->below.rc;

    if (is_done_again(op, do_remove))
        return;
    if (rc == 0) {
        if (n != NULL && n->ino != 0)
            kinode_unlinked(op->k, n->ino);
        kdir_changed(op->k, op->r.ino);
    }
    if (rc == 0 || rc == -ENOENT || rc == -EINTR)
        kname_drop(op->k, op->r.ino, op->name);
    kop_end(op, rc);
}

static void remove_both_locked(struct kop *op)
{
    kop_ask(op, &op->r, removed);
}

static void remove_locked(struct kop *op)
{
    const struct kname *n = kname_find(op->k, op->r.ino, op->name);

    if (kname_is_believed(op, n) && n->ino == 0) {
        kop_end(op, -ENOENT);
        return;
    }
    if (n != NULL && n->ino != 0)
        kop_lock(op, kinode_get(op->k, n->ino), true);
    kop_locked(op, remove_both_locked);
}

static void do_remove(struct kop *op)
{
    kop_pin(op, op->r.ino);
    kop_lock(op, op->inode, true);
    kop_locked(op, remove_locked);
}

/* ---- rename ---- */

static void do_rename(struct kop *op);

static void renamed(struct kop *op)
{
    struct kernel *k = op->k;
    struct kname *from = kname_find(k, op->r.ino, op->name);
    struct kname *to = kname_find(k, op->r.ino2, op->name2);
    int rc = op->below.rc;

    if (is_done_again(op, do_rename))
        return;
    if (rc == 0) {
        kdir_changed(k, op->r.ino);
        kdir_changed(k, op->r.ino2);
        if (from != NULL)
            kdir_changed(k, from->ino); /* ctime has changed */
    }
    if (rc == 0 && from != NULL && from->ino != 0 &&
        (to == NULL || to->ino != from->ino)) {
        if (to != NULL && to->ino != 0)
            kinode_unlinked(k, to->ino);
        kname_drop(k, op->r.ino2, op->name2);
        from->parent = op->r.ino2; /* the name keeps its time */
        memcpy(from->name, op->name2, KNAME_MAX);
    } else if (rc == 0 || rc == -ENOENT || rc == -EINTR) {
        kname_drop(k, op->r.ino, op->name);
        kname_drop(k, op->r.ino2, op->name2);
    }
    kop_end(op, rc);
}

static void rename_both_locked(struct kop *op)
{
    kop_ask(op, &op->r, renamed);
}

static void rename_lock_inode(struct kop *op, const struct kname *n)
{
    struct kinode *i = n == NULL || n->ino == 0 ? NULL : kinode_get(op->k, n->ino);

    if (i != NULL && !S_ISDIR(i->st.st_mode))
        kop_lock(op, i, true);
}

static void rename_locked(struct kop *op)
{
    const struct kname *from = kname_find(op->k, op->r.ino, op->name);
    const struct kname *to = kname_find(op->k, op->r.ino2, op->name2);

    if (kname_is_believed(op, from) && from->ino == 0) {
        kop_end(op, -ENOENT);
        return;
    }
    if (kname_is_believed(op, from) && kname_is_believed(op, to) &&
        from->ino == to->ino) {
        kop_end(op, 0); /* rename of two names of one inode does nothing */
        return;
    }
    if (from != NULL && to != NULL && from->ino > to->ino) {
        rename_lock_inode(op, to);
        rename_lock_inode(op, from);
    } else {
        rename_lock_inode(op, from);
        rename_lock_inode(op, to);
    }
    kop_locked(op, rename_both_locked);
}

static void do_rename(struct kop *op)
{
    struct kinode *a = kinode_get(op->k, op->r.ino), *b = kinode_get(op->k, op->r.ino2);

    kop_lock(op, a->ino < b->ino ? a : b, true);
    kop_lock(op, a->ino < b->ino ? b : a, true);
    kop_locked(op, rename_locked);
}

/* ---- all of them ---- */

static void passed_on(struct kop *op)
{
    kop_end(op, op->below.rc);
}

void knames_ask(struct kop *op)
{
    switch (op->r.kind) {
    case REQUEST_LOOKUP:
        do_lookup(op);
        break;
    case REQUEST_CREATE:
    case REQUEST_MKDIR:
    case REQUEST_LINK:
        do_make(op);
        break;
    case REQUEST_UNLINK:
    case REQUEST_RMDIR:
        do_remove(op);
        break;
    case REQUEST_RENAME:
        do_rename(op);
        break;
    case REQUEST_GETATTR:
        do_getattr(op);
        break;
    default:
        kop_ask(op, &op->r, passed_on);
        break;
    }
}
