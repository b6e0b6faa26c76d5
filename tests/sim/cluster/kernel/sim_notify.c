/*
 * sim_notify.c - replacement of rozomount/kcache/kernel_notify.c without threads.
 *
 * In:     rozomount's loop. Out: notices to the kernel model.
 * Keeps:  each job has one notice at a time, as a thread does; jobs do not wait for each
 *         other.
 */
#include "tests/sim/cluster/kernel/sim_notify.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/list.h"
#include "common/base/range_map.h"
#include "rozomount/options/xalloc.h"
#include "tests/sim/cluster/world/proc.h"

struct kernel_notify {
    struct proc *proc;
    struct kernel *kernel;
    bool expires, ages;
    unsigned n_threads;
};

/* A job in progress. */
struct thread {
    struct kernel_notify *notify;
    struct notify_job *job;
    struct kernel_name *name; /* next name; NULL: all are sent */
    size_t more;              /* index of the next of job->more */
    struct kernel_notice notice;
    struct env_task task;
};

static void on_thread_task(struct env_task *task);

static void thread_end(struct thread *t)
{
    struct notify_job *job = t->job;

    t->notify->n_threads--;
    free(t);
    kernel_names_free(job->names);
    job->names = NULL;
    env_mailbox_post(job->env, &job->mail);
}

static void on_inode_noticed(struct kernel_notice *notice, int rc)
{
    struct thread *t = container_of(notice, struct thread, notice);
    struct proc *before = proc_enter(t->notify->proc);

    (void)rc;
    if (t->more == t->job->n_more)
        thread_end(t);
    else
        tasks_push(&t->notify->proc->tasks, &t->task);
    proc_leave(before);
}

static void drop_more(struct thread *t)
{
    t->notice.done = on_inode_noticed;
    kernel_inval_inode(t->notify->kernel, t->job->more[t->more++], -1, 0, &t->notice);
}

static void drop_inode(struct thread *t)
{
    const struct notify_job *job = t->job;
    bool pages = job->from < job->to;
    uint64_t len = job->to == SPAN_END ? 0 : job->to - job->from;

    t->notice.done = on_inode_noticed;
    kernel_inval_inode(t->notify->kernel, job->ino, pages ? (int64_t)job->from : -1,
                       (int64_t)len, &t->notice);
}

static void on_name_noticed(struct kernel_notice *notice, int rc)
{
    struct thread *t = container_of(notice, struct thread, notice);
    struct proc *before = proc_enter(t->notify->proc);

    (void)rc;
    t->name = t->name->next;
    tasks_push(&t->notify->proc->tasks, &t->task);
    proc_leave(before);
}

static void on_thread_task(struct env_task *task)
{
    struct thread *t = container_of(task, struct thread, task);

    if (t->job->ino == 0 || t->more != 0) {
        drop_more(t);
        return;
    }
    if (t->name == NULL) {
        drop_inode(t);
        return;
    }
    t->notice.done = on_name_noticed;
    if (t->notify->expires && t->name->is_dir)
        kernel_expire_entry(t->notify->kernel, t->job->ino, t->name->name, &t->notice);
    else
        kernel_inval_entry(t->notify->kernel, t->job->ino, t->name->name, &t->notice);
}

void kernel_notify_submit(struct kernel_notify *r, struct notify_job *job)
{
    struct thread *t = xzalloc(sizeof(*t));

    t->notify = r;
    t->job = job;
    t->name = job->names;
    t->task.fn = on_thread_task;
    r->n_threads++;
    tasks_push(&r->proc->tasks, &t->task);
}

bool sim_recaller_is_busy(const struct kernel_notify *r)
{
    return r->n_threads != 0;
}

bool kernel_notify_can_age(const struct kernel_notify *r)
{
    return r->ages;
}

bool kernel_notify_age(const struct kernel_notify *r)
{
    kernel_age_names(r->kernel);
    return true;
}

/* The model has no dentries: a directory moves when it is found, also inside a rename. */
bool kernel_notify_can_prune(const struct kernel_notify *r)
{
    (void)r;
    return false;
}

void kernel_notify_prune(const struct kernel_notify *r, uint64_t ino)
{
    (void)r;
    (void)ino;
}

bool kernel_notify_is_known(const struct kernel_notify *r, uint64_t ino)
{
    (void)r;
    (void)ino;
    return true;
}

struct kernel_notify *sim_kernel_notify_new(struct proc *proc, struct kernel *kernel,
                                            bool expires, bool ages)
{
    struct kernel_notify *r = xzalloc(sizeof(*r));

    *r = (struct kernel_notify){
        .proc = proc, .kernel = kernel, .expires = expires, .ages = ages
    };
    return r;
}
