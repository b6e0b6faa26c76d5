/*
 * kernel.c - operations in the kernel, their locks, and invalidations.
 *
 * In:     kernel_ask() of programs, notices and answers of the mount.
 * Out:    requests to the mount, answers to programs.
 * Keeps:  all memory belongs to the world; locks are granted first come, first served.
 */
#include "tests/sim/cluster/kernel/kernel.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/sim/cluster/kernel/kernel_int.h"
#include "tests/sim/cluster/world/proc.h"

enum { FORGET_PPM = 30000 };

/* ---- inodes ---- */

struct kinode *kinode_find(struct kernel *k, uint64_t ino)
{
    LIST_FOREACH(n, &k->inodes) {
        struct kinode *i = container_of(n, struct kinode, link);

        if (i->ino == ino)
            return i;
    }
    return NULL;
}

struct kinode *kinode_get(struct kernel *k, uint64_t ino)
{
    struct kinode *i = kinode_find(k, ino);

    if (i != NULL)
        return i;
    i = calloc(1, sizeof(*i));
    assert(i != NULL && ino != 0);
    i->ino = ino;
    list_init(&i->lock_waiters);
    list_init(&i->page_waiters);
    list_add_tail(&k->inodes, &i->link);
    return i;
}

void kop_pin(struct kop *op, uint64_t ino)
{
    op->inode = kinode_get(op->k, ino);
    op->inode->n_pins++;
}

static void kinode_free(struct kinode *i)
{
    list_remove(&i->link);
    kpages_free(i);
    klisting_free(i);
    free(i);
}

/* ---- operations ---- */

static struct kop *kop_new(struct kernel *k)
{
    struct kop *op = calloc(1, sizeof(*op));

    assert(op != NULL);
    op->k = k;
    list_add_tail(&k->ops, &op->link);
    list_init(&op->wait);
    env_timer_init(&op->timer, NULL);
    return op;
}

static void kop_free(struct kop *op)
{
    list_remove(&op->link);
    list_remove(&op->wait);
    free(op->memory);
    free(op);
}

static void on_op_task(struct env_task *task)
{
    struct kop *op = container_of(task, struct kop, task);

    if (op->k == NULL) /* the mount died meanwhile */
        kop_free(op);
    else
        op->step(op);
}

void kop_later(struct kop *op, void (*step)(struct kop *op))
{
    op->step = step;
    op->task.fn = on_op_task;
    tasks_push(&world_clock.world.tasks, &op->task);
}

static void on_op_timer(struct env_timer *timer)
{
    struct kop *op = container_of(timer, struct kop, timer);

    op->step(op);
}

void kop_wake(struct kop *op, void (*step)(struct kop *op))
{
    if (!op->k->config.naps || !world_chance(300000)) {
        step(op);
        return;
    }
    op->step = step;
    op->timer.fn = on_op_timer;
    world_timer_start_us(&op->timer, world_below(world_chance(50000) ? 5000 : 200));
}

static void on_below(struct fuse_req *req)
{
    struct kop *op = container_of(req, struct kop, below);

    if (op->k == NULL)
        kop_free(op);
    else if (op->is_ahead)
        op->step(op);
    else
        kop_wake(op, op->step);
}

void kop_ask(struct kop *op, const struct request *r, void (*step)(struct kop *op))
{
    struct kernel *k = op->k;

    op->step = step;
    op->version = k->version;
    op->evict = k->evict;
    op->epoch = k->epoch;
    op->below.client = op->req == NULL ? NULL : op->req->client;
    op->below.done = on_below;
    op->below.entry = (struct fuse_entry_param){ 0 };
    op->below.keeps_cache = op->below.is_direct = op->below.keeps_names = false;
    op->below.is_parallel = false;
    request_begin(&op->below);
    k->config.send(k->config.arg, &op->below, r);
}

/* ---- locks ---- */

void kop_lock(struct kop *op, struct kinode *inode, bool alone)
{
    assert(op->n_locks < KLOCKS_MAX);
    for (unsigned n = 0; n < op->n_locks; n++) {
        if (op->locks[n].inode == inode)
            return;
    }
    inode->n_pins++;
    op->locks[op->n_locks++] = (struct klock){ inode, alone };
}

static bool lock_take(const struct klock *l)
{
    struct kinode *i = l->inode;

    if (i->has_writer || (l->alone && i->n_readers != 0))
        return false;
    i->has_writer = l->alone;
    i->n_readers += !l->alone;
    return true;
}

static void kop_go_on_locking(struct kop *op)
{
    for (; op->n_held < op->n_locks; op->n_held++) {
        struct kinode *i = op->locks[op->n_held].inode;

        if (!list_is_empty(&i->lock_waiters) || !lock_take(&op->locks[op->n_held])) {
            list_add_tail(&i->lock_waiters, &op->wait);
            return;
        }
    }
    op->step(op);
}

void kop_locked(struct kop *op, void (*step)(struct kop *op))
{
    op->step = step;
    kop_go_on_locking(op);
}

/* Continues an operation that got the lock it waited for. */
static void on_lock_task(struct env_task *task)
{
    struct kop *op = container_of(task, struct kop, task);

    if (op->k == NULL)
        kop_free(op);
    else
        kop_go_on_locking(op);
}

static void lock_pass_on(struct kinode *i)
{
    while (!list_is_empty(&i->lock_waiters)) {
        struct kop *op = container_of(i->lock_waiters.next, struct kop, wait);

        if (!lock_take(&op->locks[op->n_held]))
            return;
        op->n_held++;
        list_remove(&op->wait);
        op->task.fn = on_lock_task;
        tasks_push(&world_clock.world.tasks, &op->task);
    }
}

void kop_unlock(struct kop *op)
{
    while (op->n_held > 0) {
        struct klock *l = &op->locks[--op->n_held];

        if (l->alone)
            l->inode->has_writer = false;
        else
            l->inode->n_readers--;
        lock_pass_on(l->inode);
    }
    while (op->n_locks > 0)
        op->locks[--op->n_locks].inode->n_pins--;
}

/* ---- forgetting ---- */

static bool kinode_is_in_use(struct kernel *k, const struct kinode *i)
{
    if (i->ino == FUSE_ROOT_ID || i->n_pins != 0 || i->n_files != 0)
        return true;
    LIST_FOREACH(n, &k->names) {
        if (container_of(n, struct kname, link)->parent == i->ino)
            return true;
    }
    return false;
}

static void kinode_forget(struct kernel *k, struct kinode *i)
{
    const struct request forget = { .kind = REQUEST_FORGET,
                                    .ino = i->ino,
                                    .len = i->n_lookups };

    LIST_FOREACH_SAFE(n, &k->names) {
        struct kname *name = container_of(n, struct kname, link);

        if (name->ino == i->ino) {
            list_remove(&name->link);
            free(name);
        }
    }
    kinode_free(i);
    k->evict++;
    k->counts.n_forgotten++;
    if (forget.len != 0)
        kernel_tell(k, &forget);
}

/* Forgets some unused objects, as under memory pressure. */
static void forget_some(struct kernel *k)
{
    if (!k->config.forgets || !world_chance(FORGET_PPM))
        return;
    LIST_FOREACH_SAFE(n, &k->inodes) {
        struct kinode *i = container_of(n, struct kinode, link);

        if (i->listing.n != 0 && world_chance(300000))
            klisting_drop(k, i);
        if (!kinode_is_in_use(k, i) && world_chance(300000))
            kinode_forget(k, i);
    }
}

/* ---- the end of an operation ---- */

static void kop_answer(struct kop *op, int rc)
{
    struct fuse_req *req = op->req;

    req->entry = op->below.entry;
    req->st = op->below.st;
    req->fh = op->below.fh;
    req->n = op->below.n;
    if (op->r.kind == REQUEST_GETXATTR || op->r.kind == REQUEST_LISTXATTR)
        req->data_len = op->below.data_len;
    request_answered(req, rc);
}

void kop_end(struct kop *op, int rc)
{
    struct kernel *k = op->k;

    kop_unlock(op);
    if (op->inode != NULL)
        op->inode->n_pins--;
    if (op->req != NULL)
        kop_answer(op, rc);
    if (op->notice != NULL)
        op->notice->done(op->notice, rc);
    kop_free(op);
    forget_some(k);
}

struct kop *kop_spawn(struct kop *op)
{
    struct kop *more = kop_new(op->k);

    more->r = op->r;
    kop_pin(more, op->inode->ino);
    return more;
}

static void on_tell_answered(struct kop *op)
{
    kop_end(op, 0);
}

void kernel_tell(struct kernel *k, const struct request *r)
{
    struct kop *op = kop_new(k);

    op->r = *r;
    kop_ask(op, &op->r, on_tell_answered);
}

void kernel_ask(struct kernel *k, struct fuse_req *req, const struct request *r)
{
    struct kop *op = kop_new(k);

    request_begin(req);
    op->req = req;
    op->r = *r;
    if (r->name != NULL)
        op->r.name = strncpy(op->name, r->name, KNAME_MAX - 1);
    if (r->name2 != NULL)
        op->r.name2 = strncpy(op->name2, r->name2, KNAME_MAX - 1);
    op->below.data = req->data;
    switch (r->kind) {
    case REQUEST_LOOKUP:
    case REQUEST_CREATE:
    case REQUEST_MKDIR:
    case REQUEST_UNLINK:
    case REQUEST_RMDIR:
    case REQUEST_LINK:
    case REQUEST_RENAME:
    case REQUEST_GETATTR:
    case REQUEST_SETLK:
    case REQUEST_FORGET:
        knames_ask(op);
        break;
    case REQUEST_OPENDIR:
    case REQUEST_READDIR:
    case REQUEST_READDIRPLUS:
        klist_ask(op);
        break;
    case REQUEST_OPEN:
    case REQUEST_RELEASE:
    case REQUEST_RELEASEDIR:
    case REQUEST_READ:
    case REQUEST_WRITE:
    case REQUEST_FSYNC:
    case REQUEST_FLUSH:
    case REQUEST_TRUNCATE:
    case REQUEST_FALLOCATE:
    case REQUEST_SEEK:
    case REQUEST_GETXATTR:
    case REQUEST_LISTXATTR:
    case REQUEST_SETXATTR:
    case REQUEST_REMOVEXATTR:
        kfile_ask(op);
        break;
    }
}

void kernel_interrupt(struct kernel *k, const struct fuse_req *req)
{
    LIST_FOREACH(n, &k->ops) {
        struct kop *op = container_of(n, struct kop, link);

        if (op->req != req || op->r.kind != REQUEST_SETLK)
            continue;
        if (op->below.under_way && !op->below.task.queued)
            k->config.interrupt(k->config.arg, &op->below);
        return;
    }
}

/* ---- invalidations ---- */

void kernel_inval_inode(struct kernel *k, uint64_t ino, int64_t off, int64_t len,
                        struct kernel_notice *notice)
{
    struct proc *before = proc_enter(&world_clock.world);
    struct kinode *i = kinode_find(k, ino);
    struct kop *op;

    if (i == NULL || k->config.deaf) {
        notice->done(notice, -ENOENT);
    } else {
        op = kop_new(k);
        op->notice = notice;
        kop_pin(op, ino);
        kattr_drop(k, i);
        if (off >= 0)
            klisting_drop(k, i);
        if (off >= 0 && off < (int64_t)KPAGES_MAX * KPAGE) {
            op->page = (unsigned)(off / KPAGE);
            op->page_end = len <= 0 || off + len > (int64_t)KPAGES_MAX * KPAGE
                               ? KPAGES_MAX
                               : (unsigned)((off + len + KPAGE - 1) / KPAGE);
        }
        kpages_invalidate(op);
    }
    proc_leave(before);
}

static void inval_entry_locked(struct kop *op)
{
    struct kname *n = kname_find(op->k, op->inode->ino, op->name);

    if (n == NULL) {
        kop_end(op, -ENOENT);
        return;
    }
    kdir_changed(op->k, op->inode->ino);
    kname_drop(op->k, op->inode->ino, op->name);
    op->k->counts.n_invalidated++;
    kop_end(op, 0);
}

static void expire_entry_locked(struct kop *op)
{
    struct kname *n = kname_find(op->k, op->inode->ino, op->name);

    if (n == NULL) {
        kop_end(op, -ENOENT);
        return;
    }
    kdir_changed(op->k, op->inode->ino);
    op->k->counts.n_invalidated += n->until_ns != 0;
    n->until_ns = 0;
    kop_end(op, 0);
}

static void notice_entry(struct kernel *k, uint64_t parent, const char *name,
                         struct kernel_notice *notice, void (*locked)(struct kop *op))
{
    struct proc *before = proc_enter(&world_clock.world);
    struct kop *op;

    if (kinode_find(k, parent) == NULL || k->config.deaf) {
        notice->done(notice, -ENOENT);
    } else {
        op = kop_new(k);
        op->notice = notice;
        strncpy(op->name, name, KNAME_MAX - 1);
        kop_pin(op, parent);
        kop_lock(op, op->inode, true);
        kop_locked(op, locked);
    }
    proc_leave(before);
}

void kernel_inval_entry(struct kernel *k, uint64_t parent, const char *name,
                        struct kernel_notice *notice)
{
    notice_entry(k, parent, name, notice, inval_entry_locked);
}

void kernel_expire_entry(struct kernel *k, uint64_t parent, const char *name,
                         struct kernel_notice *notice)
{
    notice_entry(k, parent, name, notice, expire_entry_locked);
}

void kernel_age_names(struct kernel *k)
{
    if (!k->config.deaf)
        k->epoch++;
}

/* ---- the life of a kernel's mount ---- */

struct kernel *kernel_new(const struct kernel_config *config)
{
    struct kernel *k = calloc(1, sizeof(*k));

    assert(k != NULL);
    k->config = *config;
    k->version = 1; /* 0: no version */
    list_init(&k->inodes);
    list_init(&k->names);
    list_init(&k->files);
    list_init(&k->ops);
    kinode_get(k, FUSE_ROOT_ID)->st.st_mode = S_IFDIR | 0755;
    return k;
}

static void kop_abandon(struct kop *op)
{
    timers_stop(&world_clock.world.timers, &op->timer);
    list_remove(&op->wait);
    if (op->task.queued || op->below.task.queued) { /* the callback frees op */
        list_remove(&op->link);
        op->k = NULL;
    } else {
        kop_free(op);
    }
}

void kernel_free(struct kernel *k)
{
    if (k == NULL)
        return;
    LIST_FOREACH_SAFE(n, &k->ops)
        kop_abandon(container_of(n, struct kop, link));
    LIST_FOREACH_SAFE(n, &k->names)
        free(container_of(n, struct kname, link));
    LIST_FOREACH_SAFE(n, &k->files)
        free(container_of(n, struct kfile, link));
    LIST_FOREACH_SAFE(n, &k->inodes)
        kinode_free(container_of(n, struct kinode, link));
    free(k);
}

const struct kernel_counts *kernel_counts(const struct kernel *k)
{
    return &k->counts;
}
