/*
 * fs_name.c - operations on names: lookup, create, remove, rename, link.
 *
 * In:     the kernel's requests, on the loop that read them.
 * Out:    md calls, replies.
 * Keeps:  a change of the name space happens once, or is answered as if it had. exportd
 *         recognises a repeated request, so EXISTS and NOT_FOUND are true; a change done
 *         before its restart is answered DONE_BEFORE.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "rozomount/inode/open_dirs.h"
#include "rozomount/kcache/dir_places.h"
#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/ops/lookup_prefetch.h"
#include "rozomount/ops/unalias.h"
#include "rozomount/options/xalloc.h"

/*
 * Attempts to create; each fails only if others make or remove the name at that moment.
 */
enum { CREATE_TRIES_MAX = 8 };

/* ---- lookup ---- */

/*
 * Answers that the name does not exist; the kernel may keep that, too. Called with the
 * token lock.
 */
static void answer_nothing(struct fuse_op *op, uint64_t grant, bool may_tell)
{
    bool cacheable = may_tell && token_cache_tell_name(op->loop->mount->tokens, op->ino,
                                                       op->name, 0, false, grant);
    struct fuse_entry_param e = {
        .entry_timeout =
            fuse_op_name_timeout(op, cacheable, op->loop->mount->opt->negative_timeout_s),
    };
    fuse_req_t req = op->req;

    op->req = NULL;
    if (!cacheable)
        note_untokened_name(op->loop->mount, op->ino, op->name, false);
    if (e.entry_timeout > 0)
        fuse_reply_entry(req, &e);
    else
        fuse_reply_err(req, ENOENT);
}

static enum step_end reply_nothing(struct fuse_op *op, const struct md_grant *grant)
{
    struct token_cache *t = op->loop->mount->tokens;

    token_cache_lock(t);
    token_cache_grant_locked(t, op->ino, grant->dir, grant->number);
    answer_nothing(op, grant->number,
                   loop_may_tell(op->loop) && grant->dir != TOKEN_NONE);
    token_cache_unlock(t);
    return fuse_op_finish(op);
}

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/*
 * Answers a LOOKUP of an absent name without exportd if all names of the directory are
 * known.
 */
static bool lookup_finds_nothing(struct fuse_op *op)
{
    struct token_cache *t = op->loop->mount->tokens;
    uint64_t grant;
    bool nothing;

    token_cache_lock(t);
    nothing = !is_dots(op->name) && loop_may_tell(op->loop) &&
              token_cache_name_absent(t, op->ino, op->name, &grant);
    if (nothing)
        answer_nothing(op, grant, true);
    token_cache_unlock(t);
    return nothing;
}

/* Answers without exportd if possible. */
static enum step_end lookup_answer_here(struct fuse_op *op)
{
    return lookup_finds_nothing(op) || lookup_prefetch_answers(op) ? fuse_op_finish(op)
                                                                   : STEP_GO;
}

static enum step_end lookup_send(struct fuse_op *op, bool xattrs)
{
    Rozo__MdLookupReq msg = ROZO__MD_LOOKUP_REQ__INIT;

    msg.parent = op->ino;
    msg.name = bytes_of(op->name);
    msg.xattrs = xattrs;
    return fuse_op_ask(op, ROZO__OP__MD_LOOKUP, &msg.base);
}

/* Sends MD_LOOKUP of op->name in directory op->ino. For any operation. */
static enum step_end lookup_ask(struct fuse_op *op)
{
    return lookup_send(op, false);
}

/* Asks for the extended attributes, too, if programs read some. */
static enum step_end lookup_ask_more(struct fuse_op *op)
{
    struct lookup_op *l = (struct lookup_op *)op;

    l->wants_xattrs = mount_wants_xattrs(op->loop->mount, env_now_ns(&op->loop->env.env));
    return lookup_send(op, l->wants_xattrs);
}

/* Keeps the extended attributes that came with the answer. */
static void lookup_take_xattrs(struct fuse_op *op)
{
    struct token_cache *t = op->loop->mount->tokens;
    const Rozo__XattrSet *set;
    struct arena arena;

    if (!((const struct lookup_op *)op)->wants_xattrs)
        return;
    set = md_decode_entry_xattrs(&op->call, &arena);
    if (set == NULL)
        return;
    token_cache_lock(t);
    fuse_op_keep_xattrs(op, op->entry.attr.ino, set, op->entry.grant.number);
    token_cache_unlock(t);
    arena_free(&arena);
}

static enum step_end lookup_answered(struct fuse_op *op)
{
    struct md_grant grant;
    int rc = op->rc;

    if ((rc == 0 && md_decode_entry(&op->call, &op->entry) != 0) ||
        (rc == -ENOENT && md_decode_no_entry(&op->call, &grant) != 0))
        rc = -EIO;
    if (rc == -ENOENT)
        return reply_nothing(op, &grant);
    if (rc != 0)
        return fuse_op_end(op, rc);
    fuse_op_take_grant(op, op->ino);
    lookup_take_xattrs(op);
    return fuse_op_dir_is_free(op) ? fuse_op_reply_entry(op) : fuse_op_reply_free_dir(op);
}

static enum step_end lookup_prefetch(struct fuse_op *op)
{
    static fuse_op_step *const steps[] = { lookup_ask_more, lookup_answered, NULL };

    return !is_dots(op->name) && lookup_prefetch_begin((struct lookup_op *)op)
               ? STEP_WAIT
               : fuse_op_go(op, steps);
}

void fs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    static fuse_op_step *const steps[] = {
        lookup_answer_here,
        lookup_prefetch,
        lookup_prefetch_answered,
        lookup_answer_here,
        lookup_ask_more,
        lookup_answered,
        NULL,
    };
    struct lookup_op *l = fuse_op_begin(req, sizeof(*l));

    l->op.ino = parent;
    l->op.name = fuse_op_copy_name(&l->op, l->name, name);
    if (l->op.name != NULL)
        fuse_op_start(&l->op, steps);
}

/* Node ids are inode numbers: the only state is the size that the kernel knows. */
static void forget(fuse_req_t req, uint64_t ino)
{
    const struct loop *loop = fuse_req_userdata(req);

    if (loop->mount->sizes != NULL)
        kernel_sizes_forget(loop->mount->sizes, ino);
}

void fs_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n)
{
    (void)n;
    forget(req, ino);
    fuse_reply_none(req);
}

void fs_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
    for (size_t i = 0; i < count; i++)
        forget(req, forgets[i].ino);
    fuse_reply_none(req);
}

/* ---- mknod, mkdir, symlink, create ---- */

struct create_op {
    struct open_op open; /* must be first; used only if opens */
    mode_t mode;
    dev_t rdev;
    bool opens;       /* CREATE: the answer opens the file */
    unsigned n_tries; /* attempts, while a name appears and disappears */
    char name[NAME_BYTES_MAX + 1];
};

/* Sends MD_CREATE; target: of a symbolic link. */
static enum step_end create_send(struct fuse_op *op, const char *target)
{
    const struct create_op *c = (struct create_op *)op;
    const struct fuse_ctx *caller = fuse_op_caller(op);
    Rozo__MdCreateReq msg = ROZO__MD_CREATE_REQ__INIT;

    msg.parent = op->ino;
    msg.name = bytes_of(c->name);
    msg.mode = c->mode;
    msg.umask = caller->umask;
    msg.uid = caller->uid;
    msg.gid = caller->gid;
    msg.rdev = (uint32_t)c->rdev;
    if (target != NULL)
        msg.target = bytes_of(target);
    msg.open = c->opens;
    msg.exclusive = true;
    msg.nameless = op->name == NULL;
    return fuse_op_ask(op, ROZO__OP__MD_CREATE, &msg.base);
}

static enum step_end create_ask(struct fuse_op *op)
{
    return create_send(op, NULL);
}

static enum step_end create_answered(struct fuse_op *op);
static fuse_op_step *const create_steps[] = { create_ask, create_answered, NULL };

/* Tries again, up to a limit. */
static enum step_end create_again(struct fuse_op *op)
{
    return ++((struct create_op *)op)->n_tries < CREATE_TRIES_MAX
               ? fuse_op_go(op, create_steps)
               : fuse_op_end(op, -ESTALE);
}

/* ---- a create done before exportd's restart ---- */

/*
 * Opens an inode made before exportd's restart. If others have removed it since, answers
 * EIO: it was made, but the outcome is unknown.
 */
static enum step_end made_opened(struct fuse_op *op)
{
    if (op->rc != 0 || md_decode_open(&op->call, &op->entry) != 0)
        return fuse_op_end(op, -EIO);
    fuse_op_take_grant(op, 0);
    return fs_created(op);
}

static enum step_end made_seen(struct fuse_op *op)
{
    if (op->rc != 0 || md_decode_entry(&op->call, &op->entry) != 0)
        return fuse_op_end(op, -EIO);
    fuse_op_take_grant(op, 0);
    return fuse_op_reply_entry(op);
}

/* Looks at an inode that got its name before exportd's restart. */
static enum step_end made_ask(struct fuse_op *op, uint64_t ino)
{
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;

    op->interrupt.by = SIGNALS_NONE;
    op->next = made_seen;
    msg.ino = ino;
    return fuse_op_ask(op, ROZO__OP__MD_GETATTR, &msg.base);
}

static enum step_end made_open(struct fuse_op *op, uint64_t ino)
{
    Rozo__MdOpenReq msg = ROZO__MD_OPEN_REQ__INIT;

    op->interrupt.by = SIGNALS_NONE;
    op->next = made_opened;
    msg.ino = ino;
    msg.write = true;
    return fuse_op_ask(op, ROZO__OP__MD_OPEN, &msg.base);
}

static enum step_end create_was_done(struct fuse_op *op)
{
    uint64_t ino;

    if (op->name == NULL) /* the first one is not open anywhere: exportd deletes it */
        return create_again(op);
    if (md_decode_done(&op->call, &ino) != 0 || ino == 0)
        return fuse_op_end(op, -EIO);
    return ((struct create_op *)op)->opens ? made_open(op, ino) : made_ask(op, ino);
}

/* ---- a file that others made since the kernel's lookup ---- */

/* Returns true if that file may be opened here. ESTALE makes the kernel look up once
 * more, but the name may come and go. FUSE_CREATE neither checks nor truncates: only the
 * owner's mode bits count, since no ACL or capability limits them. */
static bool found_is_allowed(const struct fuse_op *op)
{
    const struct md_attr *attr = &op->entry.attr;
    int flags = ((struct create_op *)op)->open.fi.flags;
    mode_t needs = (flags & O_ACCMODE) == O_RDONLY   ? S_IRUSR
                   : (flags & O_ACCMODE) == O_WRONLY ? S_IWUSR
                                                     : S_IRUSR | S_IWUSR;

    return S_ISREG(attr->mode) && attr->uid == fuse_op_caller(op)->uid &&
           (attr->mode & needs) == needs && ((flags & O_TRUNC) == 0 || attr->size == 0) &&
           !mount_writes_back(op->loop->mount);
}

static enum step_end found_open(struct fuse_op *op)
{
    int flags = ((struct create_op *)op)->open.fi.flags;
    Rozo__MdOpenReq msg = ROZO__MD_OPEN_REQ__INIT;
    int rc = op->rc;

    if (rc == 0 && md_decode_entry(&op->call, &op->entry) != 0)
        rc = -EIO;
    if (rc == 0)
        fuse_op_take_grant(op, op->ino);
    if (rc == -ENOENT)
        return create_again(op);
    if (rc != 0)
        return fuse_op_end(op, rc);
    if (!found_is_allowed(op))
        return fuse_op_end(op, -ESTALE); /* the kernel looks up again, and checks */
    msg.ino = op->entry.attr.ino;
    msg.write = (flags & O_ACCMODE) != O_RDONLY;
    msg.append = (flags & O_APPEND) != 0;
    return fuse_op_ask(op, ROZO__OP__MD_OPEN, &msg.base);
}

static enum step_end found_opened(struct fuse_op *op)
{
    if (op->rc == -ESTALE)
        return create_again(op);
    token_cache_forget_attr(op->loop->mount->tokens, op->entry.attr.ino,
                            op->changes.entry);
    if (op->rc != 0)
        return STEP_END;
    if (md_decode_open(&op->call, &op->entry) != 0)
        return fuse_op_end(op, -EIO);
    op->entry.existed = true;
    fuse_op_take_grant(op, 0);
    return fs_created(op);
}

/* ---- the answer ---- */

/* Records that a new directory is empty. */
static void note_new_dir(struct fuse_op *op)
{
    struct token_cache *t = op->loop->mount->tokens;

    token_cache_lock(t);
    token_cache_dir_is_new(t, op->entry.attr.ino, op->entry.grant.number);
    token_cache_unlock(t);
    dir_places_note(op->loop->mount->dir_places,
                    &(struct dir_place){ op->entry.attr.ino, op->ino, op->name });
}

static enum step_end create_failed(struct fuse_op *op, int rc)
{
    static fuse_op_step *const found_steps[] = {
        lookup_ask,
        found_open,
        found_opened,
        NULL,
    };
    const struct create_op *c = (struct create_op *)op;

    if (op->name == NULL && rc == -EINVAL)
        return fuse_op_end(op, -EOPNOTSUPP); /* exportd knows no O_TMPFILE */
    if (rc == -EEXIST && c->opens && (c->open.fi.flags & O_EXCL) == 0)
        return fuse_op_go(op, found_steps);
    return fuse_op_end(op, rc);
}

static enum step_end create_answered(struct fuse_op *op)
{
    int rc = op->rc;

    if (rc == 0 && md_decode_create(&op->call, &op->entry) != 0)
        rc = -EIO;
    if (fuse_op_was_done(op))
        return create_was_done(op);
    if (rc != 0)
        return create_failed(op, rc);
    op->changes.entry = fuse_op_note_change(op, op->entry.attr.ino);
    fuse_op_take_grant(op, op->name == NULL ? 0 : op->ino);
    if (S_ISDIR(op->entry.attr.mode))
        note_new_dir(op);
    return ((struct create_op *)op)->opens ? fs_created(op) : fuse_op_reply_entry(op);
}

/* Begins a create. Returns NULL if the name is too long: answered. */
static struct create_op *create_begin(fuse_req_t req, fuse_ino_t parent, const char *name,
                                      mode_t mode)
{
    struct create_op *c = fuse_op_begin(req, sizeof(*c));
    struct fuse_op *op = &c->open.op;

    op->ino = parent;
    c->mode = mode;
    op->name = fuse_op_copy_name(op, c->name, name);
    return op->name == NULL ? NULL : c;
}

void fs_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
              dev_t rdev)
{
    struct create_op *c =
        create_begin(req, parent, name, (mode & S_IFMT) == 0 ? mode | S_IFREG : mode);

    if (c == NULL)
        return;
    c->rdev = rdev;
    fuse_op_start(&c->open.op, create_steps);
}

void fs_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    struct create_op *c = create_begin(req, parent, name, S_IFDIR | (mode & 07777));

    if (c != NULL)
        fuse_op_start(&c->open.op, create_steps);
}

void fs_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    struct create_op *c = create_begin(req, parent, name, S_IFLNK | 0777);

    if (c == NULL)
        return;
    fuse_op_go(&c->open.op, create_steps + 1); /* target is valid only here */
    create_send(&c->open.op, target);
}

void fs_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi)
{
    const struct loop *loop = fuse_req_userdata(req);
    bool nameless = loop->makes_nameless;
    struct create_op *c =
        create_begin(req, parent, nameless ? "" : name, S_IFREG | (mode & 07777));

    if (c == NULL)
        return;
    c->open.fi = *fi;
    c->opens = true;
    if (nameless)
        c->open.op.name = NULL;
    fuse_op_start(&c->open.op, create_steps);
}

/* ---- unlink, rmdir ---- */

/* Records the tokens, and the inodes whose names have changed, of an answer. */
static int note_removed(struct fuse_op *op, struct md_removed *r)
{
    struct token_cache *t = op->loop->mount->tokens;

    if (md_decode_removed(&op->call, r) != 0)
        return -EIO;
    token_cache_grant(t, op->parent, r->grant.dir, r->grant.number);
    if (r->removed.ino != 0) {
        open_dirs_note(op->loop->mount->open_dirs, &r->removed);
        token_cache_forget_attr(t, r->removed.ino, op->changes.entry);
        recalls_let_go(op->loop, r->removed.ino, r->removed.nlink == 0);
    }
    for (unsigned i = 0; i < 2; i++) {
        if (r->moved[i] != 0) /* an fsync of it covers the new name */
            fuse_op_note_change(op, r->moved[i]);
    }
    return 0;
}

static enum step_end remove_answered(struct fuse_op *op)
{
    struct token_cache *t = op->loop->mount->tokens;
    uint64_t changes = token_cache_forget_attr(t, op->parent, op->changes.entry);
    struct md_removed r;
    int rc = op->rc;

    if (rc == 0)
        rc = note_removed(op, &r);
    if (rc == 0 && r.dir.ino == op->parent)
        fuse_op_keep_dir(op, &r.dir, r.grant.number, changes);
    if (fuse_op_was_done(op))
        rc = 0;
    if (rc == 0)
        token_cache_name_gone(t, op->parent, op->name, op->changes.entry);
    return fuse_op_end(op, rc);
}

/* Returns the inode that loses the name, if this mount may keep it open without a user.
 * 0: it does not, or it does not know the inode. */
static uint64_t unlink_guess_kept(const struct fuse_op *op)
{
    struct mount *m = op->loop->mount;
    uint64_t ino = token_cache_guess_inode(m->tokens, op->parent, op->name);

    return ino != 0 && mount_may_be_kept(m, ino) ? ino : 0;
}

static enum step_end unlink_goto_kept(struct fuse_op *op)
{
    uint64_t ino = unlink_guess_kept(op);

    return ino == 0 ? STEP_GO : fuse_op_goto(op, ino);
}

/* Closes a file that is kept open: exportd then removes it at once, and need not note
 * that it is open without a name. */
static enum step_end unlink_let_go(struct fuse_op *op)
{
    uint64_t ino = unlink_guess_kept(op);
    struct node *node = ino == 0 ? NULL : node_find(&op->loop->nodes, ino);

    if (node != NULL)
        node_let_go_first(node);
    return STEP_GO;
}

static enum step_end unlink_ask(struct fuse_op *op)
{
    Rozo__MdUnlinkReq msg = ROZO__MD_UNLINK_REQ__INIT;

    msg.parent = op->parent;
    msg.name = bytes_of(op->name);
    return fuse_op_ask(op, ROZO__OP__MD_UNLINK, &msg.base);
}

static enum step_end rmdir_ask(struct fuse_op *op)
{
    Rozo__MdRmdirReq msg = ROZO__MD_RMDIR_REQ__INIT;

    msg.parent = op->parent;
    msg.name = bytes_of(op->name);
    return fuse_op_ask(op, ROZO__OP__MD_RMDIR, &msg.base);
}

/* UNLINK, RMDIR, LINK. */
struct name_op {
    struct fuse_op op; /* must be first */
    char name[NAME_BYTES_MAX + 1];
};

static void remove_start(fuse_req_t req, fuse_ino_t parent, const char *name,
                         fuse_op_step *const *steps)
{
    struct name_op *n = fuse_op_begin(req, sizeof(*n));

    n->op.parent = parent;
    n->op.name = fuse_op_copy_name(&n->op, n->name, name);
    if (n->op.name != NULL)
        fuse_op_start(&n->op, steps);
}

void fs_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    static fuse_op_step *const steps[] = {
        unlink_goto_kept, unlink_let_go, unlink_ask, remove_answered, NULL,
    };

    remove_start(req, parent, name, steps);
}

void fs_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    static fuse_op_step *const steps[] = { rmdir_ask, remove_answered, NULL };

    remove_start(req, parent, name, steps);
}

/* ---- rename ---- */

/* RENAME of op.name in op.parent to renaming.name in op.ino2. */
struct rename_op {
    struct fuse_op op; /* must be first */
    struct op_rename renaming;
    char from[NAME_BYTES_MAX + 1];
    char to[NAME_BYTES_MAX + 1];
};

static bool is_exchange(const struct fuse_op *op)
{
    return (op->renaming->flags & RENAME_EXCHANGE) != 0;
}

/*
 * Lets the kernel keep a moved inode's new name as long as it kept the old one. grant: of
 * its new directory. Returns false if the kernel must not.
 */
static bool tell_renamed(struct fuse_op *op, uint64_t dir, const char *name,
                         enum token_mode mode, uint64_t grant)
{
    return mode != TOKEN_NONE &&
           token_cache_tell_name(op->loop->mount->tokens, dir, name, 0, true, grant);
}

static void drop_renamed(struct mount *m, uint64_t dir, const char *name)
{
    if (m->inval != NULL && token_cache_are_given(m->tokens))
        kernel_inval_add_name(m->inval, dir, name);
}

/* Records moved directories: the kernel moves its dentries itself. */
static void note_renamed(struct fuse_op *op, const struct md_removed *r)
{
    struct dir_places *places = op->loop->mount->dir_places;

    if (r->moved[0] != 0)
        dir_places_renamed(
            places, &(struct dir_place){ r->moved[0], op->ino2, op->renaming->name });
    if (r->moved[1] != 0)
        dir_places_renamed(places,
                           &(struct dir_place){ r->moved[1], op->parent, op->name });
}

static enum step_end renamed_reply(struct fuse_op *op, const struct md_grant *grant)
{
    struct mount *m = op->loop->mount;
    const char *to = op->renaming->name;
    bool exchange = is_exchange(op);
    bool was_cached = token_cache_name_moved(m->tokens, op->parent, op->name);
    bool other_was_cached = exchange && token_cache_name_moved(m->tokens, op->ino2, to);
    fuse_req_t req = op->req;
    bool cacheable, cacheable_other;

    op->req = NULL;
    token_cache_lock(m->tokens);
    cacheable = tell_renamed(op, op->ino2, to, grant->new_dir, grant->number);
    cacheable_other =
        exchange && tell_renamed(op, op->parent, op->name, grant->dir, grant->number);
    fuse_reply_err(req, 0);
    token_cache_unlock(m->tokens);
    if (was_cached && !cacheable)
        drop_renamed(m, op->ino2, to);
    if (other_was_cached && !cacheable_other)
        drop_renamed(m, op->parent, op->name);
    return fuse_op_finish(op);
}

static enum step_end rename_ask(struct fuse_op *op)
{
    const struct op_rename *renaming = op->renaming;
    Rozo__MdRenameReq msg = ROZO__MD_RENAME_REQ__INIT;

    msg.parent = op->parent;
    msg.name = bytes_of(op->name);
    msg.new_parent = op->ino2;
    msg.new_name = bytes_of(renaming->name);
    msg.flags = renaming->flags;
    if ((renaming->flags & RENAME_WHITEOUT) != 0) {
        msg.uid = fuse_op_caller(op)->uid;
        msg.gid = fuse_op_caller(op)->gid;
    }
    rename_barrier_begin(op->loop->mount->rename_barrier, &op->renaming->dirs, op->parent,
                         op->ino2);
    return fuse_op_ask(op, ROZO__OP__MD_RENAME, &msg.base);
}

static enum step_end rename_answered(struct fuse_op *op)
{
    struct token_cache *t = op->loop->mount->tokens;
    uint64_t changes = op->parent == op->ino2
                           ? op->changes.ino2
                           : token_cache_forget_attr(t, op->parent, op->changes.entry);
    struct md_removed r;
    int rc = op->rc;

    if ((op->renaming->flags & (RENAME_EXCHANGE | RENAME_WHITEOUT)) != 0)
        token_cache_name_comes(t, op->parent, op->name);
    if (rc == 0)
        rc = note_removed(op, &r);
    if (fuse_op_was_done(op))
        return renamed_reply(op, &(struct md_grant){ 0 });
    if (rc != 0)
        return fuse_op_end(op, rc);
    note_renamed(op, &r);
    token_cache_grant(t, op->ino2, r.grant.new_dir, r.grant.number);
    if (r.dir.ino == op->parent)
        fuse_op_keep_dir(op, &r.dir, r.grant.number, changes);
    if (r.new_dir.ino == op->ino2)
        fuse_op_keep_dir(op, &r.new_dir, r.grant.number, op->changes.ino2);
    return renamed_reply(op, &r.grant);
}

void fs_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
               const char *new_name, unsigned flags)
{
    static fuse_op_step *const steps[] = { rename_ask, rename_answered, NULL };
    const unsigned known = RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT;
    struct rename_op *r = fuse_op_begin(req, sizeof(*r));
    struct fuse_op *op = &r->op;

    op->name = fuse_op_copy_name(op, r->from, name);
    if (op->name == NULL)
        return;
    r->renaming.name = fuse_op_copy_name(op, r->to, new_name);
    if (r->renaming.name == NULL)
        return;
    if ((flags & ~known) != 0) {
        fuse_op_reply_err(op, -EINVAL);
        return;
    }
    r->renaming.flags = flags;
    op->ino2 = new_parent;
    op->parent = parent;
    op->renaming = &r->renaming;
    fuse_op_start(op, steps);
}

/* ---- link, readlink ---- */

static enum step_end link_ask(struct fuse_op *op)
{
    Rozo__MdLinkReq msg = ROZO__MD_LINK_REQ__INIT;

    msg.ino = op->ino2;
    msg.parent = op->ino;
    msg.name = bytes_of(op->name);
    return fuse_op_ask(op, ROZO__OP__MD_LINK, &msg.base);
}

static enum step_end link_answered(struct fuse_op *op)
{
    if (fuse_op_was_done(op))
        return made_ask(op, op->ino2);
    if (op->rc != 0)
        return STEP_END;
    if (md_decode_entry(&op->call, &op->entry) != 0)
        return fuse_op_end(op, -EIO);
    op->changes.entry = op->changes.ino2;
    fuse_op_take_grant(op, op->ino);
    return fuse_op_reply_entry(op);
}

void fs_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
    static fuse_op_step *const steps[] = { link_ask, link_answered, NULL };
    struct name_op *n = fuse_op_begin(req, sizeof(*n));

    n->op.ino = parent;
    n->op.ino2 = ino;
    n->op.name = fuse_op_copy_name(&n->op, n->name, name);
    if (n->op.name != NULL)
        fuse_op_start(&n->op, steps);
}

/* msg: NULL if exportd is too old to send attributes. */
static void link_note_read(struct fuse_op *op, const Rozo__Attr *msg)
{
    struct atimes *atimes = op->loop->mount->atimes;
    struct inode_times t;
    struct md_attr attr;

    if (msg == NULL || md_attr_check(msg, &attr) != 0 || !atimes_counts(atimes, false))
        return;
    t = (struct inode_times){ attr.atime_ns, attr.mtime_ns, attr.ctime_ns };
    atimes_note(atimes, op->ino, env_wall_ns(&op->loop->env.env), &t, false);
}

static enum step_end readlink_ask(struct fuse_op *op)
{
    Rozo__MdReadlinkReq msg = ROZO__MD_READLINK_REQ__INIT;

    msg.ino = op->ino;
    return fuse_op_ask(op, ROZO__OP__MD_READLINK, &msg.base);
}

/* Copies the target of an answer to op->memory. Returns 0 or -EIO. */
static int link_take_target(struct fuse_op *op, const Rozo__MdReadlinkResp *msg)
{
    if (msg == NULL || msg->target.len == 0 || msg->target.len > 4095 ||
        memchr(msg->target.data, '\0', msg->target.len) != NULL)
        return -EIO;
    link_note_read(op, msg->attr);
    op->memory = xzalloc(msg->target.len + 1);
    memcpy(op->memory, msg->target.data, msg->target.len);
    return 0;
}

static enum step_end readlink_answered(struct fuse_op *op)
{
    Rozo__MdReadlinkResp *msg;
    fuse_req_t req = op->req;
    int rc;

    if (op->rc != 0)
        return STEP_END;
    msg = rozo__md_readlink_resp__unpack(NULL, op->call.answer_len, op->call.answer);
    rc = link_take_target(op, msg);
    rozo__md_readlink_resp__free_unpacked(msg, NULL);
    if (rc != 0)
        return fuse_op_end(op, rc);
    op->req = NULL;
    fuse_reply_readlink(req, op->memory);
    return fuse_op_finish(op);
}

void fs_readlink(fuse_req_t req, fuse_ino_t ino)
{
    static fuse_op_step *const steps[] = { readlink_ask, readlink_answered, NULL };
    struct fuse_op *op = fuse_op_begin(req, sizeof(*op));

    op->ino = ino;
    fuse_op_start(op, steps);
}
