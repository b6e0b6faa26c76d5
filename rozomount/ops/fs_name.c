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
    bool told = may_tell && token_cache_tell_name(op->loop->mount->tokens, op->ino,
                                                  op->name, false, grant);
    struct fuse_entry_param e = {
        .entry_timeout =
            fuse_op_timeout(op, told, op->loop->mount->opt->negative_timeout_s),
    };
    fuse_req_t req = op->req;

    op->req = NULL;
    if (!told)
        name_is_loose(op->loop->mount, op->ino, op->name, false);
    if (e.entry_timeout > 0)
        fuse_reply_entry(req, &e);
    else
        fuse_reply_err(req, ENOENT);
}

static void reply_nothing(struct fuse_op *op, const struct md_grant *grant)
{
    struct token_cache *t = op->loop->mount->tokens;

    token_cache_lock(t);
    token_cache_grant_locked(t, op->ino, grant->dir, grant->number);
    answer_nothing(op, grant->number,
                   loop_may_tell(op->loop) && grant->dir != TOKEN_NONE);
    token_cache_unlock(t);
    fuse_op_finish(op);
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

static void on_looked_up(struct fuse_op *op, int rc)
{
    struct md_grant grant;

    if ((rc == 0 && md_decode_entry(&op->call, &op->entry) != 0) ||
        (rc == -ENOENT && md_decode_no_entry(&op->call, &grant) != 0))
        rc = -EIO;
    if (rc == -ENOENT) {
        reply_nothing(op, &grant);
    } else if (rc != 0) {
        fuse_op_reply_err(op, rc);
    } else {
        fuse_op_take_grant(op, op->ino);
        if (fuse_op_dir_is_free(op))
            fuse_op_reply_entry(op);
        else
            fuse_op_reply_free_dir(op);
    }
}

static void ask_lookup(struct fuse_op *op, uint64_t parent, const char *name,
                       void (*on_answer)(struct fuse_op *op, int rc))
{
    Rozo__MdLookupReq msg = ROZO__MD_LOOKUP_REQ__INIT;

    msg.parent = parent;
    msg.name = bytes_of(name);
    fuse_op_ask(op, ROZO__OP__MD_LOOKUP, &msg.base, on_answer);
}

/* Answers without exportd if possible. */
static bool lookup_is_here(struct fuse_op *op)
{
    if (!lookup_finds_nothing(op) && !lookup_prefetch_answers(op))
        return false;
    fuse_op_finish(op);
    return true;
}

void fs_lookup_again(struct fuse_op *op)
{
    if (!lookup_is_here(op))
        ask_lookup(op, op->ino, op->name, on_looked_up);
}

void fs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_op *op = fuse_op_begin(req);

    op->ino = parent;
    if (!fuse_op_set_name(op, op->name, name))
        return;
    if (!lookup_is_here(op) && (is_dots(op->name) || !lookup_prefetch_begin(op)))
        ask_lookup(op, parent, op->name, on_looked_up);
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

/* ---- made before exportd was restarted ---- */

/*
 * Opens an inode made before exportd's restart. If others have removed it since, answers
 * EIO: it was made, but the outcome is unknown.
 */
static void on_made_opened(struct fuse_op *op, int rc)
{
    if (rc != 0 || md_decode_open(&op->call, &op->entry) != 0) {
        fuse_op_reply_err(op, -EIO);
        return;
    }
    fuse_op_take_grant(op, 0);
    fuse_op_goto_owner(op, op->entry.attr.ino, fs_created);
}

static void on_made_seen(struct fuse_op *op, int rc)
{
    if (rc != 0 || md_decode_entry(&op->call, &op->entry) != 0) {
        fuse_op_reply_err(op, -EIO);
        return;
    }
    fuse_op_take_grant(op, 0);
    fuse_op_reply_entry(op);
}

static void ask_made(struct fuse_op *op, uint64_t ino)
{
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;

    op->to_the_end = true;
    msg.ino = ino;
    fuse_op_ask(op, ROZO__OP__MD_GETATTR, &msg.base, on_made_seen);
}

/* Continues a create done before exportd's restart. op->plus: also opens the file. */
static void created_before(struct fuse_op *op)
{
    Rozo__MdOpenReq msg = ROZO__MD_OPEN_REQ__INIT;
    uint64_t ino;

    if (md_decode_done(&op->call, &ino) != 0 || ino == 0) {
        fuse_op_reply_err(op, -EIO);
    } else if (!op->plus) {
        ask_made(op, ino);
    } else {
        op->to_the_end = true;
        msg.ino = ino;
        msg.write = true;
        fuse_op_ask(op, ROZO__OP__MD_OPEN, &msg.base, on_made_opened);
    }
}

/* ---- mknod, mkdir, symlink, create ---- */

/* Returns true if a file that others made since the kernel's lookup may be opened here.
 * ESTALE makes the kernel look up once more, but the name may come and go. FUSE_CREATE
 * neither checks nor truncates: only the owner's mode bits count, since no ACL or
 * capability limits them. */
static bool is_surely_allowed(const struct fuse_op *op, const struct md_attr *attr)
{
    unsigned access = op->fi.flags & O_ACCMODE;
    mode_t needs = access == O_RDONLY   ? S_IRUSR
                   : access == O_WRONLY ? S_IWUSR
                                        : S_IRUSR | S_IWUSR;

    return S_ISREG(attr->mode) && attr->uid == op->uid && (attr->mode & needs) == needs &&
           ((op->fi.flags & O_TRUNC) == 0 || attr->size == 0) &&
           !op->loop->mount->writeback;
}

static void ask_create(struct fuse_op *op, const char *target);

/* Tries again, up to a limit. */
static void create_again(struct fuse_op *op)
{
    if (++op->n_tries < CREATE_TRIES_MAX)
        ask_create(op, NULL);
    else
        fuse_op_reply_err(op, -ESTALE);
}

static void on_found_opened(struct fuse_op *op, int rc)
{
    if (rc == -ESTALE) {
        create_again(op);
        return;
    }
    token_cache_forget_attr(op->loop->mount->tokens, op->entry.attr.ino, op->changes);
    if (rc == 0 && md_decode_open(&op->call, &op->entry) != 0)
        rc = -EIO;
    if (rc != 0) {
        fuse_op_reply_err(op, rc);
        return;
    }
    op->entry.existed = true;
    fuse_op_take_grant(op, 0);
    fuse_op_goto_owner(op, op->entry.attr.ino, fs_created);
}

static void on_found(struct fuse_op *op, int rc)
{
    Rozo__MdOpenReq msg = ROZO__MD_OPEN_REQ__INIT;

    if (rc == 0 && md_decode_entry(&op->call, &op->entry) != 0)
        rc = -EIO;
    if (rc == 0)
        fuse_op_take_grant(op, op->ino);
    if (rc == -ENOENT) {
        create_again(op);
    } else if (rc != 0) {
        fuse_op_reply_err(op, rc);
    } else if (is_surely_allowed(op, &op->entry.attr)) {
        msg.ino = op->entry.attr.ino;
        msg.write = (op->fi.flags & O_ACCMODE) != O_RDONLY;
        msg.append = (op->fi.flags & O_APPEND) != 0;
        fuse_op_ask(op, ROZO__OP__MD_OPEN, &msg.base, on_found_opened);
    } else {
        fuse_op_reply_err(op, -ESTALE); /* the kernel looks up again, and checks */
    }
}

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

static void on_created(struct fuse_op *op, int rc)
{
    if (rc == 0 && md_decode_create(&op->call, &op->entry) != 0)
        rc = -EIO;
    if (op->nameless && fuse_op_was_done(op)) {
        create_again(op); /* the first one is not open anywhere: exportd deletes it */
    } else if (op->nameless && rc == -EINVAL) {
        fuse_op_reply_err(op, -EOPNOTSUPP); /* exportd knows no O_TMPFILE */
    } else if (fuse_op_was_done(op)) {
        created_before(op);
    } else if (rc == -EEXIST && op->plus && (op->fi.flags & O_EXCL) == 0) {
        ask_lookup(op, op->ino, op->name, on_found);
    } else if (rc != 0) {
        fuse_op_reply_err(op, rc);
    } else {
        op->changes = fuse_op_note_change(op, op->entry.attr.ino);
        fuse_op_take_grant(op, op->nameless ? 0 : op->ino);
        if (S_ISDIR(op->entry.attr.mode))
            note_new_dir(op);
        if (op->plus)
            fuse_op_goto_owner(op, op->entry.attr.ino, fs_created);
        else
            fuse_op_reply_entry(op);
    }
}

/* Sends MD_CREATE. op->plus: also opens the file. */
static void ask_create(struct fuse_op *op, const char *target)
{
    Rozo__MdCreateReq msg = ROZO__MD_CREATE_REQ__INIT;

    msg.parent = op->ino;
    msg.name = bytes_of(op->name);
    msg.mode = op->mode;
    msg.umask = op->umask;
    msg.uid = op->uid;
    msg.gid = op->gid;
    msg.rdev = (uint32_t)op->rdev;
    if (target != NULL)
        msg.target = bytes_of(target);
    msg.open = op->plus;
    msg.exclusive = true;
    msg.nameless = op->nameless;
    fuse_op_ask(op, ROZO__OP__MD_CREATE, &msg.base, on_created);
}

static void create_start(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
                         dev_t rdev, const char *target)
{
    struct fuse_op *op = fuse_op_begin(req);

    op->ino = parent;
    op->mode = mode;
    op->rdev = rdev;
    if (fuse_op_set_name(op, op->name, name))
        ask_create(op, target);
}

void fs_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
              dev_t rdev)
{
    create_start(req, parent, name, (mode & S_IFMT) == 0 ? mode | S_IFREG : mode, rdev,
                 NULL);
}

void fs_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
    create_start(req, parent, name, S_IFDIR | (mode & 07777), 0, NULL);
}

void fs_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
    create_start(req, parent, name, S_IFLNK | 0777, 0, target);
}

void fs_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi)
{
    struct fuse_op *op = fuse_op_begin(req);

    op->ino = parent;
    op->mode = S_IFREG | (mode & 07777);
    op->fi = *fi;
    op->plus = true;
    op->nameless = op->loop->makes_nameless;
    if (fuse_op_set_name(op, op->name, op->nameless ? "" : name))
        ask_create(op, NULL);
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
        token_cache_forget_attr(t, r->removed.ino, op->changes);
        recalls_let_go(op->loop, r->removed.ino, r->removed.nlink == 0);
    }
    for (unsigned i = 0; i < 2; i++) {
        if (r->moved[i] != 0) /* an fsync of it covers the new name */
            fuse_op_note_change(op, r->moved[i]);
    }
    return 0;
}

static void on_removed(struct fuse_op *op, int rc)
{
    struct token_cache *t = op->loop->mount->tokens;
    uint64_t changes = token_cache_forget_attr(t, op->parent, op->changes);
    struct md_removed removed;

    if (rc == 0)
        rc = note_removed(op, &removed);
    if (rc == 0 && removed.dir.ino == op->parent)
        fuse_op_keep_dir(op, &removed.dir, removed.grant.number, changes);
    if (fuse_op_was_done(op))
        rc = 0;
    if (rc == 0)
        token_cache_name_gone(t, op->parent, op->name, op->changes);
    fuse_op_reply_err(op, rc);
}

void fs_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_op *op = fuse_op_begin(req);
    Rozo__MdUnlinkReq msg = ROZO__MD_UNLINK_REQ__INIT;

    if (!fuse_op_set_name(op, op->name, name))
        return;
    msg.parent = parent;
    msg.name = bytes_of(op->name);
    op->parent = parent;
    fuse_op_ask(op, ROZO__OP__MD_UNLINK, &msg.base, on_removed);
}

void fs_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
    struct fuse_op *op = fuse_op_begin(req);
    Rozo__MdRmdirReq msg = ROZO__MD_RMDIR_REQ__INIT;

    if (!fuse_op_set_name(op, op->name, name))
        return;
    msg.parent = parent;
    msg.name = bytes_of(op->name);
    op->parent = parent;
    fuse_op_ask(op, ROZO__OP__MD_RMDIR, &msg.base, on_removed);
}

/* ---- rename ---- */

/*
 * Lets the kernel keep a moved inode's new name as long as it kept the old one. grant: of
 * its new directory. Returns false if the kernel must not.
 */
static bool tell_renamed(struct fuse_op *op, uint64_t dir, const char *name,
                         enum token_mode mode, uint64_t grant)
{
    return mode != TOKEN_NONE &&
           token_cache_tell_name(op->loop->mount->tokens, dir, name, true, grant);
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
        dir_places_renamed(places,
                           &(struct dir_place){ r->moved[0], op->ino2, op->name2 });
    if (r->moved[1] != 0)
        dir_places_renamed(places,
                           &(struct dir_place){ r->moved[1], op->parent, op->name });
}

static void renamed_reply(struct fuse_op *op, const struct md_grant *grant)
{
    struct mount *m = op->loop->mount;
    bool exchange = (op->flags & RENAME_EXCHANGE) != 0;
    bool was_told = token_cache_name_moved(m->tokens, op->parent, op->name);
    bool other_was_told =
        exchange && token_cache_name_moved(m->tokens, op->ino2, op->name2);
    fuse_req_t req = op->req;
    bool told, told_other;

    op->req = NULL;
    token_cache_lock(m->tokens);
    told = tell_renamed(op, op->ino2, op->name2, grant->new_dir, grant->number);
    told_other =
        exchange && tell_renamed(op, op->parent, op->name, grant->dir, grant->number);
    fuse_reply_err(req, 0);
    token_cache_unlock(m->tokens);
    if (was_told && !told)
        drop_renamed(m, op->ino2, op->name2);
    if (other_was_told && !told_other)
        drop_renamed(m, op->parent, op->name);
    fuse_op_finish(op);
}

static void on_renamed(struct fuse_op *op, int rc)
{
    struct token_cache *t = op->loop->mount->tokens;
    uint64_t changes = op->parent == op->ino2
                           ? op->changes_ino2
                           : token_cache_forget_attr(t, op->parent, op->changes);
    struct md_removed removed;

    if ((op->flags & (RENAME_EXCHANGE | RENAME_WHITEOUT)) != 0)
        token_cache_name_comes(t, op->parent, op->name);
    if (rc == 0)
        rc = note_removed(op, &removed);
    if (fuse_op_was_done(op)) {
        renamed_reply(op, &(struct md_grant){ 0 });
        return;
    }
    if (rc != 0) {
        fuse_op_reply_err(op, rc);
        return;
    }
    note_renamed(op, &removed);
    token_cache_grant(t, op->ino2, removed.grant.new_dir, removed.grant.number);
    if (removed.dir.ino == op->parent)
        fuse_op_keep_dir(op, &removed.dir, removed.grant.number, changes);
    if (removed.new_dir.ino == op->ino2)
        fuse_op_keep_dir(op, &removed.new_dir, removed.grant.number, op->changes_ino2);
    renamed_reply(op, &removed.grant);
}

void fs_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
               const char *new_name, unsigned flags)
{
    struct fuse_op *op = fuse_op_begin(req);
    Rozo__MdRenameReq msg = ROZO__MD_RENAME_REQ__INIT;

    if (!fuse_op_set_name(op, op->name, name) ||
        !fuse_op_set_name(op, op->name2, new_name))
        return;
    if ((flags & ~(unsigned)(RENAME_NOREPLACE | RENAME_EXCHANGE | RENAME_WHITEOUT)) !=
        0) {
        fuse_op_reply_err(op, -EINVAL);
        return;
    }
    op->ino2 = new_parent;
    op->parent = parent;
    op->flags = flags;
    msg.parent = parent;
    msg.name = bytes_of(op->name);
    msg.new_parent = new_parent;
    msg.new_name = bytes_of(op->name2);
    msg.flags = flags;
    if ((flags & RENAME_WHITEOUT) != 0) {
        msg.uid = op->uid;
        msg.gid = op->gid;
    }
    rename_barrier_begin(op->loop->mount->rename_barrier, &op->renaming, parent,
                         new_parent);
    fuse_op_ask(op, ROZO__OP__MD_RENAME, &msg.base, on_renamed);
}

/* ---- link, readlink ---- */

static void on_linked(struct fuse_op *op, int rc)
{
    if (fuse_op_was_done(op)) {
        ask_made(op, op->ino2);
        return;
    }
    if (rc == 0 && md_decode_entry(&op->call, &op->entry) != 0)
        rc = -EIO;
    if (rc != 0) {
        fuse_op_reply_err(op, rc);
        return;
    }
    op->changes = op->changes_ino2;
    fuse_op_take_grant(op, op->ino);
    fuse_op_reply_entry(op);
}

void fs_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name)
{
    struct fuse_op *op = fuse_op_begin(req);
    Rozo__MdLinkReq msg = ROZO__MD_LINK_REQ__INIT;

    if (!fuse_op_set_name(op, op->name, name))
        return;
    op->ino = parent;
    op->ino2 = ino;
    msg.ino = ino;
    msg.parent = parent;
    msg.name = bytes_of(op->name);
    fuse_op_ask(op, ROZO__OP__MD_LINK, &msg.base, on_linked);
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

static void on_link_read(struct fuse_op *op, int rc)
{
    Rozo__MdReadlinkResp *msg = NULL;
    fuse_req_t req;
    char *target;

    if (rc == 0) {
        msg = rozo__md_readlink_resp__unpack(NULL, op->call.answer_len, op->call.answer);
        if (msg == NULL || msg->target.len == 0 || msg->target.len > 4095 ||
            memchr(msg->target.data, '\0', msg->target.len) != NULL)
            rc = -EIO;
    }
    if (rc != 0) {
        rozo__md_readlink_resp__free_unpacked(msg, NULL);
        fuse_op_reply_err(op, rc);
        return;
    }
    link_note_read(op, msg->attr);
    target = op->memory = xzalloc(msg->target.len + 1);
    memcpy(target, msg->target.data, msg->target.len);
    rozo__md_readlink_resp__free_unpacked(msg, NULL);
    req = op->req;
    op->req = NULL;
    fuse_reply_readlink(req, target);
    fuse_op_finish(op);
}

void fs_readlink(fuse_req_t req, fuse_ino_t ino)
{
    struct fuse_op *op = fuse_op_begin(req);
    Rozo__MdReadlinkReq msg = ROZO__MD_READLINK_REQ__INIT;

    op->ino = msg.ino = ino;
    fuse_op_ask(op, ROZO__OP__MD_READLINK, &msg.base, on_link_read);
}
