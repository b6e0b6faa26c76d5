/*
 * fuse_op.c - requests of the kernel as operations: where they run, how they end.
 *
 * In:     handlers of fs_*.c.
 * Out:    fuse_reply_*, always the last act for a request.
 * Keeps:  an op is answered once and freed once, on the loop that read it.
 */
#include "rozomount/op/fuse_op.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/wire/status.h"
#include "rozomount/inode/open_dirs.h"
#include "rozomount/kcache/name_inval.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/options/xalloc.h"

enum {
    FREE_OPS_MAX = 256,
    OP_BYTES = 2560, /* memory of an operation of any kind, to be used again */
    SIGNAL_LOOK_MS = 100,
    /* Linux hands the lock to the longest waiter after half of that */
    LET_GO_PAUSE_MS = 10,
    AGAIN_PAUSE_MAX = 6, /* the longest pause is 1 << this, in ms */
    IO_ERROR_PAUSE_MS = 1000,
    CHANGES_MAX = 255, /* requests of one operation with ids of their own */
};

void *fuse_op_begin(fuse_req_t req, size_t bytes)
{
    struct loop *loop = fuse_req_userdata(req);
    struct fuse_op *op = loop->free_ops;

    assert(bytes >= sizeof(*op) && bytes <= OP_BYTES);
    if (op != NULL) {
        loop->free_ops = op->memory;
        loop->n_free_ops--;
        memset(op, 0, bytes);
    } else {
        op = xzalloc(OP_BYTES);
    }
    op->home = op->loop = loop;
    op->req = req;
    op->unique = loop->current_unique;
    atomic_fetch_add(&loop->mount->n_ops, 1);
    return op;
}

void fuse_op_is_over(struct mount *m)
{
    if (atomic_fetch_sub(&m->n_ops, 1) == 1 && atomic_load(&m->draining))
        m->shell->drained(m);
}

void fuse_op_take_request(struct fuse_op *op)
{
    struct loop *loop = op->loop;

    assert(loop->current != NULL && op->home == loop);
    op->buf = loop->current;
    loop->current = NULL;
}

/* Frees op and all that it owns, on its home loop. */
static void fuse_op_free(struct fuse_op *op)
{
    struct loop *loop = op->home;
    struct mount *m = loop->mount;

    assert(op->loop == loop && op->req == NULL && !op->interrupt.waits);
    if (op->buf != NULL)
        m->shell->return_buf(loop, op->buf);
    free(op->memory);
    md_entry_drop(&op->entry);
    if (loop->n_free_ops < FREE_OPS_MAX) {
        op->memory = loop->free_ops;
        loop->free_ops = op;
        loop->n_free_ops++;
    } else {
        free(op);
    }
    fuse_op_is_over(m);
}

/* ---- steps ---- */

static fuse_op_step *op_take_step(struct fuse_op *op)
{
    fuse_op_step *step = op->next;

    if (step == NULL)
        return *op->steps++;
    op->next = NULL;
    return step;
}

void fuse_op_resume(struct fuse_op *op, enum step_end end)
{
    fuse_op_wait_over(op);
    while (end == STEP_GO) {
        fuse_op_step *step = op_take_step(op);

        assert(step != NULL);
        end = step(op);
    }
    if (end == STEP_END)
        fuse_op_reply_err(op, op->rc);
}

void fuse_op_next(struct fuse_op *op)
{
    fuse_op_resume(op, STEP_GO);
}

void fuse_op_start(struct fuse_op *op, fuse_op_step *const *steps)
{
    fuse_op_resume(op, fuse_op_go(op, steps));
}

void fuse_op_file_done(void *arg, int rc)
{
    struct fuse_op *op = arg;

    op->rc = rc;
    fuse_op_next(op);
}

enum step_end fuse_op_go(struct fuse_op *op, fuse_op_step *const *steps)
{
    assert(op->next == NULL);
    op->steps = steps;
    return STEP_GO;
}

enum step_end fuse_op_end(struct fuse_op *op, int rc)
{
    op->rc = rc;
    return STEP_END;
}

/* ---- loops ---- */

static void on_op_mail(struct env_mail *mail)
{
    fuse_op_next(container_of(mail, struct fuse_op, mail));
}

static void on_op_home(struct env_mail *mail)
{
    fuse_op_free(container_of(mail, struct fuse_op, mail));
}

static void op_post(struct fuse_op *op, struct loop *loop,
                    void (*fn)(struct env_mail *mail))
{
    op->loop = loop;
    op->mail.fn = fn;
    env_mailbox_post(&loop->env, &op->mail);
}

enum step_end fuse_op_goto(struct fuse_op *op, uint64_t ino)
{
    struct loop *loop = mount_owner(op->loop->mount, ino);

    assert(!op->interrupt.waits);
    if (op->loop == loop)
        return STEP_GO;
    op_post(op, loop, on_op_mail);
    return STEP_WAIT;
}

enum step_end fuse_op_goto_owner(struct fuse_op *op)
{
    return fuse_op_goto(op, op->ino);
}

/* ---- the end ---- */

void fuse_op_keep_xattrs(struct fuse_op *op, uint64_t ino, const Rozo__XattrSet *set,
                         uint64_t grant)
{
    struct all_xattrs all = { .n = (unsigned)set->n_names };

    for (unsigned i = 0; i < all.n; i++) {
        all.names[i] =
            (struct listed_name){ (const char *)set->names[i].data, set->names[i].len };
        all.values[i] =
            (struct cached_xattr){ true, set->values[i].len, set->values[i].data };
    }
    token_cache_keep_all_xattrs(op->loop->mount->tokens, ino, &all, grant,
                                op->changes.entry);
}

void fuse_op_changes_xattrs(struct fuse_op *op, uint64_t ino)
{
    assert(op->xattrs_of == 0);
    op->xattrs_of = ino;
    token_cache_xattrs_change(op->loop->mount->tokens, ino, true);
}

void fuse_op_changes_locks(struct fuse_op *op, uint64_t ino)
{
    if (op->locks_of == 0)
        lock_table_call_begins(op->loop->mount->lock_table, ino);
    assert(op->locks_of == 0 || op->locks_of == ino);
    op->locks_of = ino;
}

static void op_locks_changed(struct fuse_op *op)
{
    if (op->locks_of != 0)
        lock_table_call_ends(op->loop->mount->lock_table, op->locks_of);
    op->locks_of = 0;
}

static void op_xattrs_changed(struct fuse_op *op)
{
    if (op->xattrs_of != 0)
        token_cache_xattrs_change(op->loop->mount->tokens, op->xattrs_of, false);
    op->xattrs_of = 0;
}

enum step_end fuse_op_finish(struct fuse_op *op)
{
    struct node *node = op->node;

    assert(op->req == NULL && !op->interrupt.waits);
    fuse_op_token_done(op);
    fuse_op_rename_over(op);
    op_xattrs_changed(op);
    op_locks_changed(op);
    if (node != NULL) {
        assert(mount_owner(op->loop->mount, node->ino) == op->loop);
        op->node = NULL;
        node_put(node);
    }
    if (op->loop == op->home)
        fuse_op_free(op);
    else
        op_post(op, op->home, on_op_home);
    return STEP_WAIT;
}

/* Logs what exportd had to do with an I/O error that a program gets, at most one each
 * IO_ERROR_PAUSE_MS. */
static void op_tell_io_error(const struct fuse_op *op)
{
    const struct md_call *call = &op->call;
    const ProtobufCEnumValue *asked =
        protobuf_c_enum_descriptor_get_value(&rozo__op__descriptor, call->rq.op);
    uint64_t now_ns = env_now_ns(&op->loop->env.env);
    struct loop *loop = op->loop;

    if (loop->io_error_told_ns != 0 &&
        now_ns - loop->io_error_told_ns < ms_to_ns(IO_ERROR_PAUSE_MS))
        return;
    loop->io_error_told_ns = now_ns;
    if (asked == NULL || asked->value == ROZO__OP__OP_NONE)
        log_warn("a program got an I/O error for inode %llu",
                 (unsigned long long)op->ino);
    else
        log_warn("a program got an I/O error for inode %llu after %s, which exportd %s%s",
                 (unsigned long long)op->ino, asked->name,
                 call->answered ? "answered with " : "did not answer",
                 call->answered ? status_name(call->status) : "");
}

void fuse_op_reply_err(struct fuse_op *op, int rc)
{
    fuse_req_t req = op->req;

    if (rc == -EIO && req != NULL && op->n_copied == 0)
        op_tell_io_error(op);
    op->req = NULL;
    if (op->n_copied != 0)
        fuse_reply_write(req, op->n_copied);
    else /* ENOSYS would tell the kernel never to ask again. */
        fuse_reply_err(req, rc == -ENOSYS ? EIO : -rc);
    fuse_op_finish(op);
}

/* ---- attributes ---- */

/*
 * Returns true if this loop knows newer attributes than exportd's answer: others cannot
 * have changed the inode since the request, but we can. Called with the token lock.
 */
static bool op_knows_better(const struct fuse_op *op, const struct node *node)
{
    struct token_cache *t = op->loop->mount->tokens;

    return !token_cache_are_given(t) || node->lowered > op->changes.lowered ||
           token_cache_mode_locked(t, node->ino) >= TOKEN_RANGES;
}

/*
 * Overlays our own sizes and times. With range tokens others write, too: the later mtime
 * wins.
 */
static void op_overlay_node(const struct fuse_op *op, const struct node *node,
                            struct stat *st)
{
    const struct timespec others = st->st_mtim;
    struct timespec *ours = &st->st_mtim;

    node_overlay(node, st);
    if (token_cache_mode_locked(op->loop->mount->tokens, node->ino) == TOKEN_RANGES &&
        (ours->tv_sec < others.tv_sec ||
         (ours->tv_sec == others.tv_sec && ours->tv_nsec < others.tv_nsec)))
        *ours = others;
}

/* Returns whether a file that may be open here has no token that covers all of it. Its
 * state is perhaps old: a token counts only together with the answer that it came with,
 * or reads would count on that state. */
static bool is_perhaps_old(struct mount *m, const struct md_attr *attr)
{
    enum token_mode held = token_cache_mode_locked(m->tokens, attr->ino);

    return S_ISREG(attr->mode) && (held == TOKEN_NONE || held == TOKEN_RANGES) &&
           mount_may_be_open(m, attr->ino);
}

/* Takes the token that came with attributes. Called with the token lock. */
static void attr_grant(struct fuse_op *op, const struct md_attr *attr, uint64_t grant)
{
    struct token_cache *t = op->loop->mount->tokens;

    token_cache_grant_locked(t, attr->ino, attr->token, grant);
    token_cache_note_xattrs(t, attr->ino, attr->xattrs, grant, op->changes.entry);
}

void fuse_op_take_attr_grant(struct fuse_op *op, const struct md_attr *attr,
                             uint64_t grant)
{
    if (!is_perhaps_old(op->loop->mount, attr))
        attr_grant(op, attr, grant);
}

/*
 * Records exportd's attributes of an inode that may be open here, and sets *st to them,
 * with newer ones of our own laid over. Called with the token lock.
 */
static void op_overlay(struct fuse_op *op, struct stat *st)
{
    struct node *node = node_find(&op->loop->nodes, op->entry.attr.ino);

    op->entry.attr.atime_ns = atimes_of(op->loop->mount->atimes, &op->entry.attr);
    md_attr_to_stat(&op->entry.attr, st);
    open_dirs_note(op->loop->mount->open_dirs, &op->entry.attr);
    if (node == NULL)
        return;
    if (op->entry.grant.number != 0)
        attr_grant(op, &op->entry.attr, op->entry.grant.number);
    node_note_attr(node, &op->entry.attr);
    if (op_knows_better(op, node))
        op_overlay_node(op, node, st);
}

/* Called with the token lock. */
static void keep_dir(struct fuse_op *op, const struct md_attr *dir, uint64_t grant,
                     uint64_t changes)
{
    struct token_cache *t = op->loop->mount->tokens;

    if (dir->token == TOKEN_NONE || !loop_may_tell(op->loop))
        return;
    token_cache_keep_attr(t, dir, grant, changes);
    token_cache_note_xattrs(t, dir->ino, dir->xattrs, grant, changes);
}

void fuse_op_keep_dir(struct fuse_op *op, const struct md_attr *dir, uint64_t grant,
                      uint64_t changes)
{
    struct token_cache *t = op->loop->mount->tokens;

    token_cache_lock(t);
    keep_dir(op, dir, grant, changes);
    token_cache_unlock(t);
}

void loop_take_grant(struct loop *loop, const struct md_entry *e)
{
    struct token_cache *t = loop->mount->tokens;

    if (e->grant.others)
        token_cache_note_others(t, true);
    if (e->grant.number == 0)
        return;
    token_cache_grant(t, e->attr.ino, e->attr.token, e->grant.number);
    recalls_trim(loop);
}

void fuse_op_take_grant(struct fuse_op *op, uint64_t dir)
{
    struct token_cache *t = op->loop->mount->tokens;
    const struct md_entry *e = &op->entry;

    if (e->grant.others)
        token_cache_note_others(t, true);
    if (e->grant.number == 0)
        return;
    token_cache_lock(t);
    fuse_op_take_attr_grant(op, &e->attr, e->grant.number);
    if (dir != 0) {
        token_cache_grant_locked(t, dir, e->grant.dir, e->grant.number);
        token_cache_note_others(t, e->grant.others);
        if (e->dir.ino == dir)
            keep_dir(op, &e->dir, e->grant.number, op->changes.ino);
    }
    token_cache_unlock(t);
    recalls_trim(op->loop);
}

void fuse_op_take_data_grant(struct fuse_op *op)
{
    struct token_cache *t = op->loop->mount->tokens;

    if (op->entry.grant.number == 0)
        return;
    token_cache_lock(t);
    attr_grant(op, &op->entry.attr, op->entry.grant.number);
    token_cache_unlock(t);
}

bool loop_may_tell(struct loop *loop)
{
    const struct mount *m = loop->mount;

    return token_cache_are_given(m->tokens) &&
           mount_session_is_sure(m->session, env_now_ns(&loop->env.env));
}

bool fuse_op_is_resent(const struct fuse_op *op)
{
    return (op->unique & UNIQUE_IS_RESENT) != 0;
}

double fuse_op_name_timeout(const struct fuse_op *op, bool has_token, double otherwise_s)
{
    return has_token && op->loop->mount->takeover.forgets_names
               ? NAMES_HELD_S
               : fuse_op_timeout(op, has_token, otherwise_s);
}

double fuse_op_timeout(const struct fuse_op *op, bool has_token, double otherwise_s)
{
    return has_token                                        ? TOKEN_TIMEOUT_S
           : token_cache_are_given(op->loop->mount->tokens) ? 0
                                                            : otherwise_s;
}

/* Returns true if the kernel may keep the attributes. taken_always: it stores them even
 * if it got an invalidation meanwhile, so it must not keep them while others may change
 * them. */
static bool fuse_op_may_cache_attr(struct fuse_op *op, bool may_tell, bool taken_always)
{
    const struct md_entry *e = &op->entry;

    return may_tell && e->attr.token != TOKEN_NONE && !taken_always &&
           token_cache_tell_attr(op->loop->mount->tokens, e->attr.ino, e->grant.number);
}

/*
 * A lost lock must be reported by the next request, even where Linux finds the end of the
 * file by itself: its attributes are never kept.
 */
static double op_attr_timeout(const struct fuse_op *op, bool has_token)
{
    struct mount *m = op->loop->mount;
    const struct md_attr *attr = &op->entry.attr;
    /* With writeback_cache Linux does not ask again after it has written a file. */
    bool grows_unseen =
        m->sizes != NULL && S_ISREG(attr->mode) && mount_may_be_open(m, attr->ino);

    return grows_unseen || attr->blocks_unsure ||
                   lock_table_is_lost(m->lock_table, attr->ino)
               ? 0
               : fuse_op_timeout(op, has_token, m->opt->attr_timeout_s);
}

/* Keeps the attributes for the kernel's next GETATTR. */
static void op_keep_attr(struct fuse_op *op, bool may_tell)
{
    const struct md_entry *e = &op->entry;

    if (e->attr.token != TOKEN_NONE && may_tell && !e->attr.blocks_unsure)
        token_cache_keep_attr(op->loop->mount->tokens, &e->attr, e->grant.number,
                              op->changes.entry);
}

static enum step_end attr_answer(struct fuse_op *op, bool others)
{
    struct token_cache *t = op->loop->mount->tokens;
    fuse_req_t req = op->req;
    struct stat st;
    bool may_tell;

    op->req = NULL;
    token_cache_lock(t);
    may_tell = loop_may_tell(op->loop);
    op_overlay(op, &st);
    /*
     * The kernel asks again after it has read or changed a directory, or written a file,
     * and after each open of a file if each read counts.
     */
    if (S_ISDIR(op->entry.attr.mode) || atimes_is_strict(op->loop->mount->atimes) ||
        token_cache_mode_locked(t, op->entry.attr.ino) == TOKEN_EXCLUSIVE)
        op_keep_attr(op, may_tell);
    fuse_reply_attr(req, &st,
                    op_attr_timeout(op, fuse_op_may_cache_attr(op, may_tell, others)));
    token_cache_unlock(t);
    return fuse_op_finish(op);
}

static enum step_end reply_attr(struct fuse_op *op)
{
    return attr_answer(op, false);
}

static enum step_end reply_changed_attr(struct fuse_op *op)
{
    return attr_answer(op, token_cache_has_others(op->loop->mount->tokens));
}

/*
 * Ends op with this step, on the owner loop if the file may be open there: that loop
 * knows newer attributes.
 */
static enum step_end op_end_where_open(struct fuse_op *op, fuse_op_step *step)
{
    uint64_t ino = op->entry.attr.ino;

    assert(op->next == NULL);
    op->next = step;
    return S_ISREG(op->entry.attr.mode) && op->node == NULL &&
                   mount_may_be_open(op->loop->mount, ino)
               ? fuse_op_goto(op, ino)
               : STEP_GO;
}

enum step_end fuse_op_reply_attr(struct fuse_op *op)
{
    return op_end_where_open(op, reply_attr);
}

enum step_end fuse_op_reply_changed_attr(struct fuse_op *op)
{
    return op_end_where_open(op, reply_changed_attr);
}

/* Records the size that the kernel gets now and may keep. */
static void op_note_size(struct fuse_op *op)
{
    const struct md_attr *attr = &op->entry.attr;
    const struct kernel_size said = { attr->ino, attr->size, attr->change };

    if (op->loop->mount->sizes != NULL && S_ISREG(attr->mode))
        kernel_sizes_note(op->loop->mount->sizes, &said);
}

void fuse_op_fill_entry(struct fuse_op *op, uint64_t dir, const char *name, bool may_tell,
                        struct fuse_entry_param *e)
{
    const struct options *opt = op->loop->mount->opt;
    const struct md_grant *grant = &op->entry.grant;
    bool named =
        name != NULL && may_tell && grant->dir != TOKEN_NONE &&
        token_cache_tell_name(op->loop->mount->tokens, dir, name, op->entry.attr.ino,
                              S_ISDIR(op->entry.attr.mode), grant->number);
    struct stat st;

    if (!named && name != NULL)
        note_untokened_name(op->loop->mount, dir, name, S_ISDIR(op->entry.attr.mode));
    op_overlay(op, &st);
    op_note_size(op);
    /*
     * The kernel asks for them at once, and then keeps the answer unless an invalidation
     * came meanwhile.
     */
    if (grant->others || S_ISDIR(op->entry.attr.mode))
        op_keep_attr(op, may_tell);
    *e = (struct fuse_entry_param){
        .ino = op->entry.attr.ino,
        .generation = op->entry.attr.generation,
        .attr = st,
        .attr_timeout =
            op_attr_timeout(op, fuse_op_may_cache_attr(op, may_tell, grant->others)),
        .entry_timeout = fuse_op_name_timeout(op, named, opt->entry_timeout_s),
    };
}

void fuse_op_answer_entry(struct fuse_op *op)
{
    struct fuse_entry_param e;
    fuse_req_t req = op->req;

    op->req = NULL;
    fuse_op_fill_entry(op, op->ino, op->name, loop_may_tell(op->loop), &e);
    fuse_reply_entry(req, &e);
}

static enum step_end reply_entry(struct fuse_op *op)
{
    struct token_cache *t = op->loop->mount->tokens;

    token_cache_lock(t);
    fuse_op_answer_entry(op);
    token_cache_unlock(t);
    return fuse_op_finish(op);
}

enum step_end fuse_op_reply_entry(struct fuse_op *op)
{
    return op_end_where_open(op, reply_entry);
}

/* ---- asking exportd ---- */

static bool code_only_asks(uint16_t code)
{
    switch (code) {
    case ROZO__OP__MD_LOOKUP:
    case ROZO__OP__MD_GETATTR:
    case ROZO__OP__MD_READLINK:
    case ROZO__OP__MD_READDIR:
    case ROZO__OP__MD_GETXATTR:
    case ROZO__OP__MD_LISTXATTR:
    case ROZO__OP__MD_STATFS:
    case ROZO__OP__MD_SYNC:
    case ROZO__OP__MD_TOKEN:
        return true;
    default:
        return false;
    }
}

/*
 * Returns true for a request that changes state which an fsync of an inode or its
 * directory covers.
 */
static bool code_changes(uint16_t code)
{
    switch (code) {
    case ROZO__OP__MD_SETATTR:
    case ROZO__OP__MD_CREATE:
    case ROZO__OP__MD_UNLINK:
    case ROZO__OP__MD_RMDIR:
    case ROZO__OP__MD_LINK:
    case ROZO__OP__MD_RENAME:
    case ROZO__OP__MD_SETXATTR:
    case ROZO__OP__MD_REMOVEXATTR:
        return true;
    default:
        return false;
    }
}

/*
 * Returns true for a request about a name in a directory. The directory may be removed;
 * while the kernel has a token it does not look it up again.
 */
static bool code_names(uint16_t code)
{
    switch (code) {
    case ROZO__OP__MD_LOOKUP:
    case ROZO__OP__MD_CREATE:
    case ROZO__OP__MD_UNLINK:
    case ROZO__OP__MD_RMDIR:
    case ROZO__OP__MD_LINK:
    case ROZO__OP__MD_RENAME:
        return true;
    default:
        return false;
    }
}

/* Records that names appear: called when exportd is asked, and when it has answered. */
static void op_names_come(struct fuse_op *op, uint16_t code)
{
    struct token_cache *t = op->loop->mount->tokens;

    if ((code == ROZO__OP__MD_CREATE && op->name != NULL) || code == ROZO__OP__MD_LINK)
        token_cache_name_comes(t, op->ino, op->name);
    if (code == ROZO__OP__MD_RENAME)
        token_cache_name_comes(t, op->ino2, op->renaming->name);
    if (code == ROZO__OP__MD_RENAME &&
        (op->renaming->flags & (RENAME_EXCHANGE | RENAME_WHITEOUT)) != 0)
        token_cache_name_comes(t, op->parent, op->name);
}

/*
 * Returns true for a request before which exportd must know of our closes: the last
 * unlink, or a truncate, must not find a file open that was closed here.
 */
static bool code_minds_closes(uint16_t code)
{
    switch (code) {
    case ROZO__OP__MD_OPEN:
    case ROZO__OP__MD_SETATTR:
    case ROZO__OP__MD_UNLINK:
    case ROZO__OP__MD_RENAME:
        return true;
    default:
        return false;
    }
}

uint64_t fuse_op_note_change(struct fuse_op *op, uint64_t ino)
{
    unsynced_inodes_note(op->loop->mount->unsynced, ino, op->loop->nodes.losses);
    return token_cache_forget_attr(op->loop->mount->tokens, ino, op->changes.entry);
}

/* Ends the wait for an answer. */
static void op_answered(struct fuse_op *op, int rc)
{
    op->rc = rc;
    fuse_op_next(op);
}

static void op_give_up_asking(struct fuse_op *op)
{
    if (md_client_cancel(&op->call, !code_only_asks(op->call.rq.op)))
        op_answered(op, -EINTR);
}

/* Answers ESTALE after a pause. The kernel holds the lock of a directory until then, and
 * repeats the request once. A recalled token needs that lock: it must get it before the
 * repetition. */
static void on_op_pause(struct env_timer *timer)
{
    struct fuse_op *op = container_of(timer, struct fuse_op, pause);

    md_client_cancel(&op->call, false);
    op_answered(op, -ESTALE);
}

/*
 * Returns true if a recalled token needs a lock that the kernel holds until op is
 * answered.
 */
static bool op_must_let_go(struct fuse_op *op)
{
    const uint64_t locked[NAME_INVAL_LOCKED_MAX] = { op->ino, op->ino2, op->parent };
    struct name_inval *names = op->loop->mount->name_inval;
    uint64_t now_ns = env_now_ns(&op->loop->env.env);

    return name_inval_needs_lock(names, locked, now_ns) &&
           (!recalls_age_names(op->loop, locked) ||
            name_inval_needs_lock(names, locked, now_ns));
}

static void op_wait_for_answer(struct fuse_op *op)
{
    if (op->req != NULL && op->interrupt.by != SIGNALS_NONE)
        fuse_op_wait_interruptibly(op, op_give_up_asking);
}

void fuse_op_note_asked(struct fuse_op *op)
{
    op->changes.lowered = atomic_load(&op->loop->mount->n_lowered);
    op->changes.entry = token_cache_changes(op->loop->mount->tokens);
}

/*
 * Repeats a request that exportd has sent back because others wait for tokens of our
 * session.
 */
static void op_again(struct fuse_op *op)
{
    bool renames = op->renaming != NULL;
    unsigned n = op->n_sent_back++;

    fuse_op_rename_over(op); /* not done; the recall may wait for the rename */
    if (op_must_let_go(op)) {
        env_timer_init(&op->pause, on_op_pause);
        env_timer_start(&op->loop->env.env, &op->pause, LET_GO_PAUSE_MS);
        return;
    }
    fuse_op_note_asked(op);
    if (renames)
        rename_barrier_begin(op->loop->mount->rename_barrier, &op->renaming->dirs,
                             op->parent, op->ino2);
    if (md_client_send_again(&op->call,
                             1u << (n < AGAIN_PAUSE_MAX ? n : AGAIN_PAUSE_MAX)))
        op_wait_for_answer(op);
    else
        op_answered(op, -EIO);
}

bool fuse_op_was_done(const struct fuse_op *op)
{
    return op->call.answered && op->call.status == ROZO__STATUS__DONE_BEFORE;
}

static void on_op_answer(struct md_call *call, int rc)
{
    struct fuse_op *op = call->arg;

    fuse_op_wait_over(op);
    if (code_changes(call->rq.op) &&
        (rc == 0 || !call->answered || fuse_op_was_done(op))) {
        /* a file without a name does not change its directory */
        if (call->rq.op != ROZO__OP__MD_CREATE || op->name != NULL)
            op->changes.ino = fuse_op_note_change(op, op->ino);
        if (op->ino2 != 0)
            op->changes.ino2 = fuse_op_note_change(op, op->ino2);
        op_names_come(op, call->rq.op); /* again: a listing may have begun meanwhile */
    }
    if (code_changes(call->rq.op) && rc != 0 &&
        (!call->answered || call->maybe_repeated || fuse_op_was_done(op))) {
        /*
         * The change may be done, and exportd does not recall tokens for our own changes.
         */
        recalls_doubt(op->loop, op->ino);
        recalls_doubt(op->loop, op->ino2);
        recalls_doubt(op->loop, op->parent);
    }
    if (rc == -ROZO_ERETRY) {
        op_again(op);
        return;
    }
    op_xattrs_changed(op);
    if (rc == -ESTALE && code_names(call->rq.op) &&
        token_cache_are_given(op->loop->mount->tokens))
        rc = -ENOENT;
    op_answered(op, md_client_user_errno(rc));
}

/*
 * Stops a request that waits for the next session if its lock is lost: another client may
 * hold it.
 */
static bool op_may_go(const struct md_call *call)
{
    return !fuse_op_has_lost_its_lock(call->arg);
}

/* Returns an id under which a process that takes the mount over would repeat this change,
 * when the kernel sends it the request again. */
static uint64_t op_id_of_change(struct fuse_op *op, uint16_t code)
{
    uint64_t unique = op->unique & ~UNIQUE_IS_RESENT;
    unsigned n = op->n_changes;

    if (!op->loop->mount->takeover.resends || !code_changes(code))
        return 0;
    op->n_changes += n < CHANGES_MAX;
    return RPC_ID_CHOSEN | unique * (CHANGES_MAX + 1) | n;
}

enum step_end fuse_op_ask_within(struct fuse_op *op, uint32_t timeout_ms, uint16_t code,
                                 const ProtobufCMessage *msg)
{
    /* inode of the change */
    assert(!code_changes(code) || (op->ino | op->ino2 | op->parent) != 0);
    md_entry_drop(&op->entry);
    fuse_op_note_asked(op);
    op->n_sent_back = 0;
    op->call.chosen_id = op_id_of_change(op, code);
    op_names_come(op, code);
    if (code_minds_closes(code))
        nodes_tell_closes(&op->loop->nodes);
    md_client_send_within(&op->loop->md, &op->call, code, msg, MD_AGAIN, timeout_ms,
                          on_op_answer, op);
    if (op->locked != NULL)
        op->call.may_go = op_may_go;
    op_wait_for_answer(op);
    return STEP_WAIT;
}

enum step_end fuse_op_ask(struct fuse_op *op, uint16_t code, const ProtobufCMessage *msg)
{
    return fuse_op_ask_within(op, op->loop->mount->opt->meta_timeout_ms, code, msg);
}

/* ---- interrupts ---- */

static unsigned long long bit_of(int sig)
{
    return 1ull << (sig - 1);
}

/* Pending signals that end a process: neither blocked, nor ignored, nor handled. */
static bool status_is_doomed(FILE *f)
{
    unsigned long long pending = 0, shared = 0, others = 0, mask;
    char line[256];

    others = bit_of(SIGCHLD) | bit_of(SIGCONT) | bit_of(SIGURG) | bit_of(SIGWINCH) |
             bit_of(SIGSTOP) | bit_of(SIGTSTP) | bit_of(SIGTTIN) | bit_of(SIGTTOU);
    while (fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "SigPnd: %llx", &mask) == 1)
            pending = mask;
        else if (sscanf(line, "ShdPnd: %llx", &mask) == 1)
            shared = mask;
        else if (sscanf(line, "SigBlk: %llx", &mask) == 1 ||
                 sscanf(line, "SigIgn: %llx", &mask) == 1 ||
                 sscanf(line, "SigCgt: %llx", &mask) == 1)
            others |= mask;
    }
    return ((pending | shared) & ~others) != 0;
}

/* Returns true if a signal ends the process that waits, or if that cannot be seen. Other
 * signals end no wait: programs expect no EINTR from files, and timers and run-time
 * systems send signals often. */
static bool op_is_doomed(const struct fuse_op *op)
{
    pid_t pid = fuse_op_caller(op)->pid;
    char path[32];
    bool doomed;
    FILE *f;

    if (pid == 0) /* a process of another pid namespace */
        return true;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    f = fopen(path, "re");
    if (f == NULL)
        return true;
    doomed = status_is_doomed(f);
    fclose(f);
    return doomed;
}

/*
 * Looks again for signals that end a process: the kernel reports only the first signal.
 */
static void on_signal_timer(struct env_timer *timer)
{
    struct loop *loop = container_of(timer, struct loop, signal_timer);
    struct fuse_op *doomed = NULL;
    bool any = false;

    LIST_FOREACH(link, &loop->waiting) {
        struct fuse_op *op = container_of(link, struct fuse_op, interrupt.link);

        if (op->interrupt.signalled && doomed == NULL && op_is_doomed(op))
            doomed = op;
        any |= op->interrupt.signalled;
    }
    if (any)
        env_timer_start(&loop->env.env, &loop->signal_timer,
                        doomed != NULL ? 0 : SIGNAL_LOOK_MS);
    if (doomed != NULL) { /* one at a time: its end may end others */
        fuse_op_wait_over(doomed);
        doomed->interrupt.give_up(doomed);
    }
}

void fuse_op_init_signals(struct loop *loop)
{
    list_init(&loop->waiting);
    env_timer_init(&loop->signal_timer, on_signal_timer);
}

/* Handles a signal to the process that waits for op. */
static void op_signal(struct fuse_op *op)
{
    struct loop *loop = op->loop;

    if (op->interrupt.by == SIGNALS_ANY || op_is_doomed(op)) {
        op->interrupt.signalled = true; /* for the next wait, if this one cannot end */
        fuse_op_wait_over(op);
        op->interrupt.give_up(op);
        return;
    }
    op->interrupt.signalled = true;
    if (!env_timer_is_running(&loop->signal_timer))
        env_timer_start(&loop->env.env, &loop->signal_timer, SIGNAL_LOOK_MS);
}

/* Returns true if an interrupt for this number came earlier, and forgets it. */
static bool take_early(struct loop *loop, uint64_t unique)
{
    for (unsigned i = 0; loop->n_early != 0 && i < INTERRUPTS_EARLY; i++) {
        if (loop->early[i] != unique)
            continue;
        loop->early[i] = 0;
        loop->n_early--;
        return true;
    }
    return false;
}

static void note_early(struct loop *loop, uint64_t unique)
{
    uint64_t *early = &loop->early[loop->next_early++ % INTERRUPTS_EARLY];

    if (*early == 0)
        loop->n_early++;
    *early = unique;
}

void fuse_op_wait_interruptibly(struct fuse_op *op, void (*give_up)(struct fuse_op *op))
{
    struct loop *loop = op->loop;

    assert(!op->interrupt.waits && op->req != NULL);
    op->interrupt.give_up = give_up;
    op->interrupt.waits = true;
    list_add_tail(&loop->waiting, &op->interrupt.link);
    if (op->interrupt.signalled || /* signalled in an earlier wait */
        take_early(loop, op->unique))
        op_signal(op);
}

void fuse_op_wait_over(struct fuse_op *op)
{
    if (!op->interrupt.waits)
        return;
    op->interrupt.waits = false;
    list_remove(&op->interrupt.link);
}

static bool loop_interrupt(struct loop *loop, uint64_t unique)
{
    LIST_FOREACH(link, &loop->waiting) {
        struct fuse_op *op = container_of(link, struct fuse_op, interrupt.link);

        if (op->unique == unique) {
            op_signal(op);
            return true;
        }
    }
    note_early(loop, unique);
    return false;
}

/* An interrupt on its way to another loop. */
struct interrupt {
    struct env_mail mail;
    struct loop *loop;
    uint64_t unique;
};

static void on_interrupt_mail(struct env_mail *mail)
{
    struct interrupt *i = container_of(mail, struct interrupt, mail);

    loop_interrupt(i->loop, i->unique);
    free(i);
}

void fuse_op_interrupt(struct loop *loop, uint64_t unique)
{
    struct mount *m = loop->mount;

    if (loop_interrupt(loop, unique))
        return;
    for (unsigned i = 0; i < m->n_loops; i++) {
        struct interrupt *mail;

        if (&m->loops[i] == loop)
            continue;
        mail = xzalloc(sizeof(*mail));
        mail->mail.fn = on_interrupt_mail;
        mail->loop = &m->loops[i];
        mail->unique = unique;
        env_mailbox_post(&mail->loop->env, &mail->mail);
    }
}

/* ---- small things ---- */

static void on_node_ready(struct node_wait *wait)
{
    fuse_op_next(container_of(wait, struct fuse_op, node_wait));
}

enum step_end fuse_op_wait_for_node(struct fuse_op *op)
{
    assert(op->node != NULL);
    if (!op->node->closing)
        return STEP_GO;
    op->node_wait.ready = on_node_ready;
    node_wait(op->node, &op->node_wait);
    return STEP_WAIT;
}

const char *fuse_op_copy_name(struct fuse_op *op, char to[NAME_BYTES_MAX + 1],
                              const char *name)
{
    size_t len = strlen(name);

    if (len > NAME_BYTES_MAX) {
        fuse_op_reply_err(op, -ENAMETOOLONG);
        return NULL;
    }
    memcpy(to, name, len + 1);
    return to;
}

ProtobufCBinaryData bytes_of(const char *text)
{
    return (ProtobufCBinaryData){ .len = strlen(text), .data = (uint8_t *)text };
}
