/*
 * fs_lock.c - fcntl and flock locks: held at exportd, for all mounts.
 *
 * In:     GETLK, SETLK, FLOCK of the kernel; events of the session; FLUSH and RELEASE,
 *         from fs_open.c.
 * Out:    MD_LOCK*. Held locks are recorded in mount->lock_table, for an exportd that
 *         restarts.
 *         Where exportd has said that no other mount has locks of an inode, and this one
 *         has none, GETLK is answered here until the token of that is recalled.
 * Keeps:  I10. Written data are on the storages before a lock is released, or the unlock
 *         fails; data of others are seen after a lock is taken; after a lock is lost, its
 *         holder neither reads nor writes until it unlocks.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/file.h>

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/loop.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/options/xalloc.h"

/* Progress of an operation that may have to wait for a lock. */
enum lock_state {
    LOCKING_NO,
    LOCKING_ASKS,      /* MD_LOCK is out */
    LOCKING_WAITS,     /* waits for the event that grants it */
    LOCKING_CANCELS,   /* a signal came: MD_LOCK_CANCEL is out */
    LOCKING_EVENT_DUE, /* MD_LOCK_CANCEL came too late: the event is on its way */
};

/* GETLK, SETLK or FLOCK. */
struct lock_op {
    struct fuse_op op; /* must be first */
    struct table_lock lock;
    bool sleeps;        /* the caller waits for the lock */
    bool was_cancelled; /* abandoned the wait once: a repeated request does not wait */
    bool has_event;     /* the event came, with event_rc */
    bool weakens;       /* lock_table_weaken() has noted it */
    enum lock_state state;
    uint64_t waiter; /* number of the wait; key in loop->lock_waits */
    int event_rc;
    int flush_rc; /* UNLOCK: of the flush before */
    struct kernel_inval_wait pages;
    UT_hash_handle hh;
};

enum {
    LOOP_BITS = 8, /* low bits of a waiter's number: the loop that waits */
};

/*
 * Returns a timeout after which exportd has answered, or ended our session, or forgotten
 * the lock by a restart.
 */
static uint32_t lock_timeout_ms(const struct mount *m)
{
    return m->opt->meta_timeout_ms + 2 * m->info.lease_ms;
}

/* ---- arguments of the kernel ---- */

static unsigned mode_of(int type)
{
    return type == F_RDLCK   ? ROZO__LOCK__MODE__READ
           : type == F_WRLCK ? ROZO__LOCK__MODE__WRITE
                             : ROZO__LOCK__MODE__UNLOCK;
}

static struct table_lock range_of(uint64_t ino, const struct fuse_file_info *fi,
                                  const struct flock *fl)
{
    return (struct table_lock){
        .ino = ino,
        .owner = fi->lock_owner,
        .pid = (uint32_t)fl->l_pid,
        .from = (uint64_t)fl->l_start,
        .to = fl->l_len == 0 ? UINT64_MAX : (uint64_t)fl->l_start + (uint64_t)fl->l_len,
        .mode = mode_of(fl->l_type),
    };
}

static enum step_end ask_lock(struct fuse_op *op, const struct table_lock *lock,
                              uint64_t waiter)
{
    Rozo__MdLockReq msg = ROZO__MD_LOCK_REQ__INIT;
    Rozo__Lock wire;

    lock_table_to_wire(lock, &wire);
    msg.lock = &wire;
    msg.waiter = waiter;
    return fuse_op_ask_within(op, lock_timeout_ms(op->loop->mount), ROZO__OP__MD_LOCK,
                              &msg.base);
}

/* ---- taking ---- */

/* Unlocks even if the flush failed: otherwise waiters would wait for data that may never
 * be stored. One unlock reports losses so far, so that programs that rely on locks only
 * can go on. */
static enum step_end lock_flush(struct fuse_op *op)
{
    const struct lock_op *l = (struct lock_op *)op;

    op->rc = 0;
    if (l->lock.mode != ROZO__LOCK__MODE__UNLOCK)
        return handle_locks(op->loop, op->handle, l->lock.owner)
                   ? STEP_GO
                   : fuse_op_end(op, -ENOLCK);
    file_flush(op->handle->node->file, fuse_op_file_done, op);
    return STEP_WAIT;
}

static void unlock_note_losses(struct lock_op *l)
{
    struct handle *handle = l->op.handle;
    int rc = l->op.rc;

    if (rc == 0 && handle->unlocked != handle->node->n_abandoned)
        rc = handle_has_lost(handle);
    handle->unlocked = handle->node->n_abandoned;
    l->flush_rc = md_client_user_errno(rc);
}

static enum step_end lock_check(struct fuse_op *op)
{
    struct lock_op *l = (struct lock_op *)op;
    struct lock_table *table = op->loop->mount->lock_table;

    if (l->lock.mode == ROZO__LOCK__MODE__UNLOCK)
        unlock_note_losses(l);
    else if ((lock_table_look(table, op->ino, l->lock.owner) & LOCK_TABLE_LOST) != 0)
        return fuse_op_end(op, -EIO);
    return STEP_GO;
}

static void on_events_mail(struct env_mail *mail)
{
    mount_session_want_events(container_of(mail, struct mount, events_mail)->session);
}

/* Asks for events once a program of this mount waits for a lock. */
static void want_events(struct mount *m)
{
    if (atomic_exchange(&m->wants_events, true))
        return;
    m->events_mail.fn = on_events_mail;
    env_mailbox_post(&m->loops[0].env, &m->events_mail);
}

static enum step_end lock_begin(struct fuse_op *op)
{
    struct lock_op *l = (struct lock_op *)op;
    struct loop *loop = op->loop;

    if (!l->sleeps)
        return STEP_GO;
    want_events(loop->mount);
    l->waiter = ++loop->last_waiter << LOOP_BITS | loop->index;
    l->state = LOCKING_ASKS;
    l->has_event = false;
    HASH_ADD(hh, loop->lock_waits, waiter, sizeof(l->waiter), l);
    return STEP_GO;
}

/*
 * After its start exportd grants no lock until all clients are back, at most for a lease.
 */
static enum step_end lock_send(struct fuse_op *op)
{
    struct lock_op *l = (struct lock_op *)op;

    l->lock.era = lock_table_era(op->loop->mount->lock_table);
    if (l->lock.mode == ROZO__LOCK__MODE__UNLOCK)
        lock_table_release(op->loop->mount->lock_table, &l->lock);
    if (l->lock.mode == ROZO__LOCK__MODE__READ &&
        lock_table_weaken(op->loop->mount->lock_table, &l->lock)) {
        l->weakens = true;
        op->interrupt.by = SIGNALS_NONE; /* the old lock may not be claimed any more */
    }
    return ask_lock(op, &l->lock, l->waiter);
}

static enum step_end wait_over(struct lock_op *l, int rc)
{
    HASH_DELETE(hh, l->op.loop->lock_waits, l);
    l->state = LOCKING_NO;
    return rc == 0 ? STEP_GO : fuse_op_end(&l->op, rc);
}

/*
 * Returns true if the request was sent before the session was opened again: its answer is
 * out of date.
 */
static bool lock_is_old(const struct lock_op *l)
{
    return l->lock.era != lock_table_era(l->op.loop->mount->lock_table);
}

static enum step_end ask_once_more(struct lock_op *l);
static enum step_end wait_cancel(struct lock_op *l);
static void wait_give_up(struct fuse_op *op);

/* Ends a lock that was to become weaker: nobody knows which one exportd has. */
static void weaker_failed(const struct lock_op *l)
{
    struct mount *m = l->op.loop->mount;

    lock_table_lose(m->lock_table, &l->lock);
    if (m->inval != NULL)
        kernel_inval_add(m->inval, l->op.ino);
}

static enum step_end lock_answered(struct fuse_op *op)
{
    struct lock_op *l = (struct lock_op *)op;

    if (l->weakens && op->rc != 0 && op->rc != -EINPROGRESS)
        weaker_failed(l);
    if (l->state == LOCKING_NO) /* does not wait */
        return op->rc == 0 ? STEP_GO : STEP_END;
    if (l->has_event) /* the event came before the answer */
        return wait_over(l, l->event_rc);
    if (op->rc != -EINPROGRESS)
        return wait_over(l, op->rc);
    if (lock_is_old(l))
        return ask_once_more(l);
    if (l->was_cancelled || atomic_load(&op->loop->mount->stop_sent))
        return wait_cancel(l);
    l->state = LOCKING_WAITS;
    op->interrupt.by = SIGNALS_ANY;
    fuse_op_wait_interruptibly(op, wait_give_up);
    return STEP_WAIT;
}

static enum step_end lock_note(struct fuse_op *op);

/* Takes the attributes after a lock is granted: they show changes by earlier holders. */
static enum step_end lock_ask_attr(struct fuse_op *op)
{
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;

    /* too late for a signal: the program must not read old pages */
    op->interrupt.by = SIGNALS_NONE;
    msg.ino = op->ino;
    return fuse_op_ask(op, ROZO__OP__MD_GETATTR, &msg.base);
}

static void on_pages_mail(struct env_mail *mail)
{
    struct lock_op *l = container_of(mail, struct lock_op, pages.mail);

    fuse_op_next(&l->op);
}

/* Waits until the kernel has dropped all pages that it was asked to drop until now. */
static enum step_end lock_wait_for_pages(struct lock_op *l)
{
    struct kernel_inval *inv = l->op.loop->mount->inval;

    if (inv == NULL)
        return STEP_GO;
    l->pages.env = &l->op.loop->env;
    l->pages.mail.fn = on_pages_mail;
    kernel_inval_wait(inv, &l->pages);
    return STEP_WAIT;
}

/* Drops our old pages. */
static enum step_end lock_take_attr(struct fuse_op *op)
{
    const struct nodes_config *config = &op->loop->nodes.config;
    struct node *node = op->handle->node;

    if (op->rc == 0 && md_decode_entry(&op->call, &op->entry) == 0) {
        node_note_attr(node, &op->entry.attr);
    } else { /* unknown if the cache is old */
        file_drop_cache(node->file);
        if (config->invalidate != NULL)
            config->invalidate(config->arg, op->ino);
    }
    return lock_wait_for_pages((struct lock_op *)op);
}

static enum step_end lock_end(struct fuse_op *op)
{
    return fuse_op_end(op, 0); /* the lock is held in any case */
}

static fuse_op_step *const ask_steps[] = {
    lock_send, lock_answered, lock_note, lock_ask_attr, lock_take_attr, lock_end, NULL,
};
static fuse_op_step *const lock_steps[] = {
    fuse_op_goto_owner, fuse_op_use_handle, lock_flush,    lock_check,
    lock_begin,         lock_send,          lock_answered, lock_note,
    lock_ask_attr,      lock_take_attr,     lock_end,      NULL,
};

/*
 * Asks for the same lock again. exportd may have granted it already, so no signal ends
 * this request, not even one that is not sent yet: the caller must get the answer.
 */
static enum step_end ask_again(struct lock_op *l)
{
    l->op.interrupt.by = SIGNALS_NONE;
    return fuse_op_go(&l->op, ask_steps);
}

static enum step_end ask_once_more(struct lock_op *l)
{
    l->state = LOCKING_ASKS;
    return ask_again(l);
}

/* Records what exportd has done. */
static enum step_end lock_note(struct fuse_op *op)
{
    struct lock_op *l = (struct lock_op *)op;
    int rc = lock_table_set(op->loop->mount->lock_table, &l->lock);

    if (rc == -EAGAIN) { /* the present exportd may not know it */
        lock_begin(op);
        return ask_again(l);
    }
    if (l->lock.mode == ROZO__LOCK__MODE__UNLOCK)
        return fuse_op_end(op, rc != 0 ? rc : l->flush_rc);
    return STEP_GO;
}

/* ---- waiting ---- */

/* Ends a cancelled wait. The lock may have been granted meanwhile: then it is held. */
static enum step_end cancel_answered(struct fuse_op *op)
{
    struct lock_op *l = (struct lock_op *)op;

    if (l->has_event)
        return wait_over(l, l->event_rc);
    /* either held, or the wait was forgotten */
    if (op->rc == -ENOENT && lock_is_old(l))
        return ask_once_more(l);
    if (op->rc == -ENOENT) {
        l->state = LOCKING_EVENT_DUE; /* the event is on its way */
        return STEP_WAIT;
    }
    /* No signal came: on EINTR the kernel would restart the call. */
    return wait_over(l, atomic_load(&op->loop->mount->stop_sent) ? -EIO : -EINTR);
}

static enum step_end wait_cancel(struct lock_op *l)
{
    struct fuse_op *op = &l->op;
    Rozo__MdLockCancelReq msg = ROZO__MD_LOCK_CANCEL_REQ__INIT;

    l->state = LOCKING_CANCELS;
    l->was_cancelled = true;
    op->interrupt.by = SIGNALS_NONE;
    msg.waiter = l->waiter;
    op->next = cancel_answered;
    return fuse_op_ask_within(op, lock_timeout_ms(op->loop->mount),
                              ROZO__OP__MD_LOCK_CANCEL, &msg.base);
}

static void wait_give_up(struct fuse_op *op)
{
    wait_cancel((struct lock_op *)op);
}

void locks_event(struct loop *loop, uint64_t waiter, int rc)
{
    struct lock_op *l;

    HASH_FIND(hh, loop->lock_waits, &waiter, sizeof(waiter), l);
    if (l == NULL)
        return;
    l->has_event = true;
    l->event_rc = rc;
    if (l->state == LOCKING_WAITS || l->state == LOCKING_EVENT_DUE)
        fuse_op_resume(&l->op, wait_over(l, rc));
}

struct loop *locks_loop(struct mount *m, uint64_t waiter)
{
    unsigned index = (unsigned)(waiter & ((1u << LOOP_BITS) - 1));

    return index < m->n_loops ? &m->loops[index] : NULL;
}

void locks_give_up(struct loop *loop)
{
    struct lock_op *l, *next;

    HASH_ITER(hh, loop->lock_waits, l, next)
    {
        if (l->state != LOCKING_WAITS)
            continue; /* ends when it is answered */
        fuse_op_wait_over(&l->op);
        wait_cancel(l);
    }
}

void locks_ask_again(struct loop *loop)
{
    struct lock_op *l, *next;

    HASH_ITER(hh, loop->lock_waits, l, next)
    {
        /* a request is on its way, and is repeated if needed */
        if (l->state == LOCKING_WAITS || l->state == LOCKING_EVENT_DUE)
            fuse_op_resume(&l->op, ask_once_more(l));
    }
}

static void setlk(fuse_req_t req, const struct fuse_file_info *fi,
                  const struct table_lock *lock, bool sleep)
{
    struct lock_op *l = fuse_op_begin(req, sizeof(*l));

    l->op.ino = lock->ino;
    l->op.handle = handle_of(req, lock->ino, fi);
    l->lock = *lock;
    l->sleeps = sleep && lock->mode != ROZO__LOCK__MODE__UNLOCK;
    if (!lock->flock)
        fuse_op_changes_locks(&l->op, lock->ino);
    fuse_op_start(&l->op, lock_steps);
}

void fs_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *fl,
              int sleep)
{
    struct table_lock lock = range_of(ino, fi, fl);

    setlk(req, fi, &lock, sleep != 0);
}

void fs_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int how)
{
    const struct table_lock lock = {
        .ino = ino,
        .flock = true,
        .owner = fi->lock_owner,
        .to = UINT64_MAX,
        .mode = (how & LOCK_SH) != 0   ? ROZO__LOCK__MODE__READ
                : (how & LOCK_EX) != 0 ? ROZO__LOCK__MODE__WRITE
                                       : ROZO__LOCK__MODE__UNLOCK,
    };

    setlk(req, fi, &lock, (how & LOCK_NB) == 0);
}

/* ---- testing ---- */

static enum step_end test_reply(struct fuse_op *op, const struct flock *fl)
{
    fuse_req_t req = op->req;

    op->req = NULL;
    fuse_reply_lock(req, fl);
    return fuse_op_finish(op);
}

/* Answers without exportd if there are no locks. Both facts are looked at in one moment,
 * under the lock of the tokens: no other session gets a lock before we have given back
 * the token. */
static enum step_end test_here(struct fuse_op *op)
{
    static const struct flock none = { .l_type = F_UNLCK, .l_whence = SEEK_SET };
    struct mount *m = op->loop->mount;
    bool free;

    token_cache_lock(m->tokens);
    free = loop_may_tell(op->loop) &&
           token_cache_mode_locked(m->tokens, token_of_locks(op->ino)) >= TOKEN_SHARED &&
           !lock_table_is_busy(m->lock_table, op->ino);
    token_cache_unlock(m->tokens);
    return free ? test_reply(op, &none) : STEP_GO;
}

static enum step_end test_ask(struct fuse_op *op)
{
    const struct lock_op *l = (struct lock_op *)op;
    Rozo__MdLockTestReq msg = ROZO__MD_LOCK_TEST_REQ__INIT;
    Rozo__Lock wire;

    lock_table_to_wire(&l->lock, &wire);
    msg.lock = &wire;
    msg.wants_token = true;
    return fuse_op_ask(op, ROZO__OP__MD_LOCK_TEST, &msg.base);
}

static enum step_end test_answered(struct fuse_op *op)
{
    Rozo__MdLockTestResp *msg;
    struct flock fl = { .l_type = F_UNLCK, .l_whence = SEEK_SET };

    if (op->rc != 0)
        return STEP_END;
    msg = rozo__md_lock_test_resp__unpack(NULL, op->call.answer_len, op->call.answer);
    if (msg == NULL)
        return fuse_op_end(op, -EIO);
    if (msg->lock != NULL) {
        fl.l_type = msg->lock->mode == ROZO__LOCK__MODE__READ ? F_RDLCK : F_WRLCK;
        fl.l_start = (off_t)msg->lock->from;
        fl.l_len =
            msg->lock->to > INT64_MAX ? 0 : (off_t)(msg->lock->to - msg->lock->from);
        fl.l_pid = (pid_t)msg->lock->pid;
    }
    if (msg->grant != 0)
        token_cache_grant(op->loop->mount->tokens, token_of_locks(op->ino), TOKEN_SHARED,
                          msg->grant);
    rozo__md_lock_test_resp__free_unpacked(msg, NULL);
    return test_reply(op, &fl);
}

void fs_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *fl)
{
    static fuse_op_step *const steps[] = { test_here, test_ask, test_answered, NULL };
    struct lock_op *l = fuse_op_begin(req, sizeof(*l));

    l->op.ino = ino;
    l->lock = range_of(ino, fi, fl);
    fuse_op_start(&l->op, steps);
}

/* ---- releases by a close ---- */

/* Asks for no answer in particular: no caller is left to report to. */
static enum step_end release_all(struct close_op *c, bool flock, uint64_t owner)
{
    const struct table_lock all = {
        .ino = c->op.ino, .flock = flock, .owner = owner, .to = UINT64_MAX
    };

    c->op.next = locks_release;
    return ask_lock(&c->op, &all, 0);
}

enum step_end locks_release(struct fuse_op *op)
{
    struct close_op *c = (struct close_op *)op;
    struct lock_table *lock_table = op->loop->mount->lock_table;

    op->interrupt.by = SIGNALS_NONE;
    if (c->n_owners > 0 && lock_table_is_busy(lock_table, op->ino))
        fuse_op_changes_locks(op, op->ino);
    for (; c->n_owners > 0; c->n_owners--) {
        uint64_t owner = c->owners[c->n_owners - 1];

        for (int flock = c->releases_flock ? 1 : 0; flock >= 0; flock--) {
            unsigned had = lock_table_take(lock_table, op->ino, flock != 0, owner);

            c->lock_lost |= (had & LOCK_TABLE_LOST) != 0;
            if (had != 0)
                return release_all(c, flock != 0, owner);
        }
    }
    return STEP_GO;
}
