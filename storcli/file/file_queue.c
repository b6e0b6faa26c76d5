/*
 * file_queue.c - operations of one file: which may begin, which are stepped, which run
 * alone.
 *
 * In:     fop_queue() by each call of file.h; fop_ready() and waitlist_wake() after
 *         events. Core.
 * Out:    op->step(), always within a turn of the file, see on_task() in file.c.
 * Keeps:  writes, flushes and exclusive operations begin in order of arrival; an
 *         exclusive one runs alone; a read never waits for a write that has not been
 *         taken in.
 */
#include "storcli/file/file_queue.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "storcli/file/file_int.h"

/* ---- lists of those that wait ---- */

void waitlist_init(struct waitlist *list)
{
    list_init(&list->ops);
}

void waitlist_wake(struct file *f, struct waitlist *list)
{
    LIST_FOREACH_SAFE(node, &list->ops) {
        list_remove(node);
        list_add_tail(&f->queue.ready, node);
    }
    file_wake(f);
}

/* ---- operations ---- */

void file_wake(struct file *f)
{
    env_post(f->env, &f->queue.task);
}

void *fop_new(struct file *f, size_t bytes, enum fop_kind kind,
              void (*step)(struct fop *), file_done_cb *done, void *arg)
{
    struct fop *op = calloc(1, bytes);

    /* closing may still finish a truncate */
    assert(f->life == FILE_OPEN || kind == FOP_EXCLUSIVE);
    if (op == NULL) /* ops are small, and this cannot be reported */
        abort();
    op->f = f;
    op->kind = kind;
    op->step = step;
    op->done = done;
    op->arg = arg;
    list_init(&op->link);
    return op;
}

void fop_queue(struct fop *op)
{
    list_add_tail(&op->f->queue.arrived, &op->link);
    file_wake(op->f);
}

void fop_wait(struct fop *op, struct waitlist *list)
{
    list_remove(&op->link);
    list_add_tail(&list->ops, &op->link);
}

void fop_ready(struct fop *op)
{
    list_remove(&op->link);
    list_add_tail(&op->f->queue.ready, &op->link);
    file_wake(op->f);
}

bool fop_denied(struct fop *op, int rc)
{
    if (rc != -EACCES || op->denied)
        return false;
    op->denied = true;
    fop_wait(op, &op->f->epoch.waiters);
    file_renew(op->f);
    return true;
}

bool fop_moved(struct fop *op, int rc)
{
    if (rc != -ROZO_EMOVED || op->n_moved++ >= MOVED_TRIES_MAX)
        return false;
    file_is_refused(op->f, op->n_moved);
    fop_wait(op, &op->f->inl.moved_waiters);
    file_reload(op->f);
    return true;
}

void fop_leave(struct fop *op)
{
    assert(op->f->queue.n_active > 0);
    list_remove(&op->link);
    op->f->queue.n_active--;
}

void fop_end(struct fop *op, int rc)
{
    file_done_cb *done = op->done;
    void *arg = op->arg;

    fop_leave(op);
    free(op);
    done(arg, rc);
}

void fop_start(struct fop *op)
{
    struct file_queue *q = &op->f->queue;

    op->clock = op->f->writeback.clock;
    op->start_ns = env_now_ns(op->f->env);
    q->n_active++;
    if (op->kind == FOP_WRITE)
        q->accepting = op;
    if (op->kind == FOP_EXCLUSIVE)
        queue_run_alone(op);
    if (op->kind == FOP_CLOSE)
        q->close_op = op;
    fop_ready(op);
}

/* ---- the operation that runs alone ---- */

void queue_accepted(struct fop *op)
{
    assert(op->f->queue.accepting == op);
    op->f->queue.accepting = NULL;
    file_wake(op->f);
}

void queue_run_alone(struct fop *op)
{
    assert(op->f->queue.exclusive == NULL);
    op->f->queue.exclusive = op;
}

void queue_let_through(struct file *f, uint64_t first, uint64_t end)
{
    assert(f->queue.exclusive != NULL);
    f->queue.exclusive_first = first;
    f->queue.exclusive_end = end;
}

void file_exclusive_end(struct file *f)
{
    struct file_queue *q = &f->queue;

    q->exclusive = NULL;
    q->exclusive_first = q->exclusive_end = 0;
    waitlist_wake(f, &q->exclusive_waiters);
}

void queue_hold(struct file *f)
{
    assert(f->queue.exclusive != NULL);
    f->queue.exclusive_held = true;
}

void queue_take_hold(struct fop *op)
{
    struct file_queue *q = &op->f->queue;

    assert(q->exclusive_held);
    free(q->exclusive);
    q->exclusive = op; /* counted in n_active already */
    q->exclusive_held = false;
    q->exclusive_first = q->exclusive_end = 0;
    op->clock = op->f->writeback.clock;
    fop_ready(op);
}

void queue_release(struct file *f)
{
    struct fop *held = f->queue.exclusive;

    assert(f->queue.exclusive_held);
    f->queue.exclusive_held = false;
    fop_leave(held);
    file_exclusive_end(f);
    file_report_released(f);
    free(held);
}

/* ---- a turn ---- */

/* Starts queued operations. Reads overtake writes that wait to be taken in; nothing
 * overtakes an exclusive operation. */
void queue_start(struct file *f)
{
    bool blocked = f->queue.accepting != NULL;

    LIST_FOREACH_SAFE(node, &f->queue.arrived) {
        struct fop *op = container_of(node, struct fop, link);
        bool overtakes = op->kind == FOP_READ || op->kind == FOP_SEEK;

        if (f->queue.exclusive != NULL)
            return;
        if (blocked && (op->kind == FOP_EXCLUSIVE || op->kind == FOP_CLOSE))
            return;
        if (blocked && !overtakes)
            continue;
        fop_start(op);
        blocked |= op->kind == FOP_WRITE;
    }
}

void queue_step_ready(struct file *f)
{
    while (!list_is_empty(&f->queue.ready)) {
        struct fop *op = container_of(f->queue.ready.next, struct fop, link);

        list_remove(&op->link);
        op->step(op);
    }
}

void queue_init(struct file *f, void (*on_task)(struct env_task *task))
{
    list_init(&f->queue.arrived);
    list_init(&f->queue.ready);
    waitlist_init(&f->queue.exclusive_waiters);
    f->queue.task.fn = on_task;
}

void queue_free(struct file *f)
{
    free(f->queue.close_op);
}
