/*
 * fs_lock.c - fcntl and flock locks: held at exportd, for all mounts.
 *
 * In:     GETLK, SETLK, FLOCK of the kernel; events of the session; FLUSH and RELEASE,
 *         from fs_file.c.
 * Out:    MD_LOCK*. Held locks are recorded in mount->lock_table, for an exportd that
 *         restarts.
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

enum {
    LOOP_BITS = 8, /* low bits of a waiter's number: the loop that waits */
};

/*
 * Returns a timeout after which exportd has answered, or ended our session, or forgotten
 * the lock by a restart.
 */
static uint32_t patience_ms(const struct mount *m)
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

static void ask_lock(struct fuse_op *op, const struct table_lock *lock, uint64_t waiter,
                     uint32_t timeout_ms, void (*on_answer)(struct fuse_op *op, int rc))
{
    Rozo__MdLockReq msg = ROZO__MD_LOCK_REQ__INIT;
    Rozo__Lock wire;

    lock_table_to_wire(lock, &wire);
    msg.lock = &wire;
    msg.waiter = waiter;
    fuse_op_ask_within(op, timeout_ms, ROZO__OP__MD_LOCK, &msg.base, on_answer);
}

/* ---- taking ---- */

static void lock_reply(struct fuse_op *op)
{
    fuse_op_reply_err(op, 0);
}

/*
 * Takes the attributes after a lock is granted: they show changes by earlier holders, and
 * drop our old pages.
 */
static void on_seen(struct fuse_op *op, int rc)
{
    struct nodes *nodes = &op->loop->nodes;

    if (rc == 0 && md_decode_entry(&op->call, &op->entry) == 0) {
        node_note_attr(op->handle->node, &op->entry.attr);
    } else { /* unknown if the cache is old */
        file_drop_cache(op->handle->node->file);
        if (nodes->config.invalidate != NULL)
            nodes->config.invalidate(nodes->config.arg, op->ino);
    }
    fuse_op_after_pages(op, lock_reply); /* the lock is held in any case */
}

static void setlk_send(struct fuse_op *op);

static void lock_taken(struct fuse_op *op)
{
    Rozo__MdGetattrReq msg = ROZO__MD_GETATTR_REQ__INIT;
    int rc = lock_table_set(op->loop->mount->lock_table, &op->lock);

    if (rc == -EAGAIN) { /* the present exportd may not know it */
        setlk_send(op);
        return;
    }
    if (op->lock.mode == ROZO__LOCK__MODE__UNLOCK) {
        fuse_op_reply_err(op, rc != 0 ? rc : op->rc);
        return;
    }
    handle_locks(op->handle, op->lock.owner);
    /* too late for a signal: the program must not read old pages */
    op->to_the_end = true;
    msg.ino = op->ino;
    fuse_op_ask(op, ROZO__OP__MD_GETATTR, &msg.base, on_seen);
}

static void on_lock_answer(struct fuse_op *op, int rc);

static void lock_send(struct fuse_op *op)
{
    op->lock.era = lock_table_era(op->loop->mount->lock_table);
    /*
     * After its start exportd grants no lock until all clients are back, at most for a
     * lease.
     */
    ask_lock(op, &op->lock, op->found, patience_ms(op->loop->mount), on_lock_answer);
}

/* ---- waiting ---- */

static void wait_end(struct fuse_op *op)
{
    HASH_DELETE(lock_hh, op->loop->lock_waits, op);
    op->locking = LOCKING_NO;
}

static void on_cancel_answer(struct fuse_op *op, int rc);

static void wait_give_up(struct fuse_op *op)
{
    Rozo__MdLockCancelReq msg = ROZO__MD_LOCK_CANCEL_REQ__INIT;

    op->locking = LOCKING_GIVES_UP;
    op->gives_up = true;
    op->any_signal = false;
    op->to_the_end = true;
    msg.waiter = op->found;
    fuse_op_ask_within(op, patience_ms(op->loop->mount), ROZO__OP__MD_LOCK_CANCEL,
                       &msg.base, on_cancel_answer);
}

static void wait_over(struct fuse_op *op, int rc)
{
    wait_end(op);
    if (rc == 0)
        lock_taken(op);
    else
        fuse_op_reply_err(op, rc);
}

static void ask_once_more(struct fuse_op *op)
{
    op->locking = LOCKING_ASKS;
    lock_send(op);
}

/*
 * Returns true if the request was sent before the session was opened again: its answer is
 * out of date.
 */
static bool lock_is_old(const struct fuse_op *op)
{
    return op->lock.era != lock_table_era(op->loop->mount->lock_table);
}

/* Ends a cancelled wait. The lock may have been granted meanwhile: then it is held. */
static void on_cancel_answer(struct fuse_op *op, int rc)
{
    if (op->lock_granted)
        wait_over(op, op->rc);
    /* either held, or the wait was forgotten */
    else if (rc == -ENOENT && lock_is_old(op))
        ask_once_more(op);
    else if (rc == -ENOENT)
        op->locking = LOCKING_LATE; /* the event is on its way */
    /* No signal came: on EINTR the kernel would restart the call. */
    else if (atomic_load(&op->loop->mount->stop_sent))
        wait_over(op, -EIO);
    else
        wait_over(op, -EINTR);
}

static void on_lock_answer(struct fuse_op *op, int rc)
{
    if (op->locking == LOCKING_NO) { /* does not wait */
        if (rc == 0)
            lock_taken(op);
        else
            fuse_op_reply_err(op, rc);
        return;
    }
    if (op->lock_granted) { /* the event came before the answer */
        wait_over(op, op->rc);
        return;
    }
    if (rc != -EINPROGRESS) {
        wait_over(op, rc);
        return;
    }
    if (lock_is_old(op)) {
        ask_once_more(op);
        return;
    }
    if (op->gives_up || atomic_load(&op->loop->mount->stop_sent)) {
        wait_give_up(op);
        return;
    }
    op->locking = LOCKING_WAITS;
    op->any_signal = true;
    fuse_op_wait_interruptibly(op, wait_give_up);
}

void locks_event(struct loop *loop, uint64_t waiter, int rc)
{
    struct fuse_op *op;

    HASH_FIND(lock_hh, loop->lock_waits, &waiter, sizeof(waiter), op);
    if (op == NULL)
        return;
    op->lock_granted = true;
    op->rc = rc;
    if (op->locking == LOCKING_WAITS)
        fuse_op_wait_over(op);
    if (op->locking == LOCKING_WAITS || op->locking == LOCKING_LATE)
        wait_over(op, rc);
}

struct loop *locks_loop(struct mount *m, uint64_t waiter)
{
    unsigned index = (unsigned)(waiter & ((1u << LOOP_BITS) - 1));

    return index < m->n_loops ? &m->loops[index] : NULL;
}

void locks_give_up(struct loop *loop)
{
    struct fuse_op *op, *next;

    HASH_ITER(lock_hh, loop->lock_waits, op, next)
    {
        if (op->locking != LOCKING_WAITS)
            continue; /* ends when it is answered */
        fuse_op_wait_over(op);
        wait_give_up(op);
    }
}

void locks_ask_again(struct loop *loop)
{
    struct fuse_op *op, *next;

    HASH_ITER(lock_hh, loop->lock_waits, op, next)
    {
        /* a request is on its way, and is repeated if needed */
        if (op->locking != LOCKING_WAITS && op->locking != LOCKING_LATE)
            continue;
        fuse_op_wait_over(op);
        ask_once_more(op);
    }
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

static void setlk_send(struct fuse_op *op)
{
    struct loop *loop = op->loop;

    if (op->plus) { /* the caller would wait */
        want_events(loop->mount);
        op->found = ++loop->last_waiter << LOOP_BITS | loop->index;
        op->locking = LOCKING_ASKS;
        op->lock_granted = false;
        HASH_ADD(lock_hh, loop->lock_waits, found, sizeof(op->found), op);
    }
    lock_send(op);
}

/* Unlocks even if the flush failed: otherwise waiters would wait for data that may never
 * be stored. One unlock reports losses so far, so that programs that rely on locks only
 * can go on. */
static void on_flushed_before(void *arg, int rc)
{
    struct fuse_op *op = arg;
    struct handle *handle = op->handle;

    if (rc == 0 && handle->unlocked != handle->node->n_given_up)
        rc = handle_has_lost(handle);
    handle->unlocked = handle->node->n_given_up;
    op->rc = md_client_user_errno(rc);
    setlk_send(op);
}

static void setlk_on_owner(struct fuse_op *op)
{
    if (op->lock.mode == ROZO__LOCK__MODE__UNLOCK)
        file_flush(op->handle->node->file, on_flushed_before, op);
    else if ((lock_table_look(op->loop->mount->lock_table, op->ino, op->lock.owner) &
              LOCK_TABLE_LOST) != 0)
        fuse_op_reply_err(op, -EIO);
    else
        setlk_send(op);
}

static void setlk(struct fuse_op *op, const struct fuse_file_info *fi,
                  const struct table_lock *lock, bool sleep)
{
    op->ino = lock->ino;
    op->fi = *fi;
    op->handle = (struct handle *)(uintptr_t)fi->fh;
    op->lock = *lock;
    op->plus = sleep && lock->mode != ROZO__LOCK__MODE__UNLOCK;
    fuse_op_goto_owner(op, op->ino, setlk_on_owner);
}

void fs_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *fl,
              int sleep)
{
    struct table_lock lock = range_of(ino, fi, fl);

    setlk(fuse_op_begin(req), fi, &lock, sleep != 0);
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

    setlk(fuse_op_begin(req), fi, &lock, (how & LOCK_NB) == 0);
}

/* ---- testing ---- */

static void on_tested(struct fuse_op *op, int rc)
{
    Rozo__MdLockTestResp *msg;
    struct flock fl = { .l_type = F_UNLCK, .l_whence = SEEK_SET };
    fuse_req_t req = op->req;

    msg = rc != 0 ? NULL
                  : rozo__md_lock_test_resp__unpack(NULL, op->call.answer_len,
                                                    op->call.answer);
    if (msg == NULL) {
        fuse_op_reply_err(op, rc == 0 ? -EIO : rc);
        return;
    }
    if (msg->lock != NULL) {
        fl.l_type = msg->lock->mode == ROZO__LOCK__MODE__READ ? F_RDLCK : F_WRLCK;
        fl.l_start = (off_t)msg->lock->from;
        fl.l_len =
            msg->lock->to > INT64_MAX ? 0 : (off_t)(msg->lock->to - msg->lock->from);
        fl.l_pid = (pid_t)msg->lock->pid;
    }
    rozo__md_lock_test_resp__free_unpacked(msg, NULL);
    op->req = NULL;
    fuse_reply_lock(req, &fl);
    fuse_op_finish(op);
}

void fs_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *fl)
{
    struct fuse_op *op = fuse_op_begin(req);
    Rozo__MdLockTestReq msg = ROZO__MD_LOCK_TEST_REQ__INIT;
    Rozo__Lock wire;

    op->ino = ino;
    op->lock = range_of(ino, fi, fl);
    lock_table_to_wire(&op->lock, &wire);
    msg.lock = &wire;
    fuse_op_ask(op, ROZO__OP__MD_LOCK_TEST, &msg.base, on_tested);
}

/* ---- releases by a close ---- */

static void release_next(struct fuse_op *op);

static void on_released(struct fuse_op *op, int rc)
{
    (void)rc; /* no caller to report to */
    release_next(op);
}

static void release_all(struct fuse_op *op, bool flock, uint64_t owner)
{
    const struct table_lock all = {
        .ino = op->ino, .flock = flock, .owner = owner, .to = UINT64_MAX
    };

    ask_lock(op, &all, 0, patience_ms(op->loop->mount), on_released);
}

/* Releases the next kind of locks of the next owner. */
static void release_next(struct fuse_op *op)
{
    struct lock_table *lock_table = op->loop->mount->lock_table;

    while (op->n_owners > 0) {
        uint64_t owner = op->owners[op->n_owners - 1];

        for (int flock = op->owners_flock ? 1 : 0; flock >= 0; flock--) {
            unsigned had = lock_table_take(lock_table, op->ino, flock != 0, owner);

            op->lock_lost |= (had & LOCK_TABLE_LOST) != 0;
            if (had != 0) {
                release_all(op, flock != 0, owner);
                return;
            }
        }
        op->n_owners--;
    }
    op->released(op);
}

void locks_release(struct fuse_op *op, const uint64_t *owners, unsigned n, bool flock,
                   void (*step)(struct fuse_op *op))
{
    op->owners = owners;
    op->n_owners = n;
    op->owners_flock = flock;
    op->released = step;
    op->to_the_end = true;
    release_next(op);
}
