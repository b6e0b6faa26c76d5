/*
 * sim_inval.c - replacement of rozomount/kcache/kernel_inval.c, without a thread, and of
 * the mailbox.
 *
 * In:     rozomount's loop. Out: notices to the kernel model.
 * Keeps:  one notice at a time, as with the thread.
 */
#include "tests/sim/cluster/kernel/sim_inval.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/list.h"
#include "rozomount/options/xalloc.h"
#include "tests/sim/cluster/world/proc.h"

struct inval_job {
    struct inval_job *next;
    uint64_t ino;
    bool is_name;
    char name[]; /* if is_name */
};

struct kernel_inval {
    struct proc *proc;
    struct kernel *kernel;
    bool expires;
    struct inval_job *jobs, **jobs_end;
    struct kernel_notice notice;
    struct env_task task;
    bool busy;
    uint64_t n_added, n_done;
    struct kernel_inval_wait *waits, **waits_end; /* in order of `after` */
};

/* ---- mail ---- */

struct mail_task {
    struct env_task task;
    struct env_mail *mail;
};

static void on_mail_task(struct env_task *task)
{
    struct mail_task *t = container_of(task, struct mail_task, task);
    struct env_mail *mail = t->mail;

    free(t);
    mail->fn(mail);
}

/* Posts to the process that runs: a mount in the simulator has one loop. */
void env_mailbox_post(struct env_uv *e, struct env_mail *mail)
{
    struct mail_task *t = xzalloc(sizeof(*t));

    t->task.fn = on_mail_task;
    t->mail = mail;
    env_post(&e->env, &t->task);
}

/* ---- one after the other ---- */

static void invalidator_tell(struct kernel_inval *inv)
{
    while (inv->waits != NULL && inv->waits->after <= inv->n_done) {
        struct kernel_inval_wait *wait = inv->waits;

        inv->waits = wait->next;
        if (inv->waits == NULL)
            inv->waits_end = &inv->waits;
        env_mailbox_post(wait->env, &wait->mail);
    }
}

static void invalidator_go_on(struct kernel_inval *inv)
{
    if (!inv->busy && inv->jobs != NULL)
        tasks_push(&inv->proc->tasks, &inv->task);
}

static void on_noticed(struct kernel_notice *notice, int rc)
{
    struct kernel_inval *inv = container_of(notice, struct kernel_inval, notice);
    struct proc *before = proc_enter(inv->proc);

    (void)rc;
    inv->busy = false;
    inv->n_done++;
    invalidator_tell(inv);
    invalidator_go_on(inv);
    proc_leave(before);
}

static void on_invalidator_task(struct env_task *task)
{
    struct kernel_inval *inv = container_of(task, struct kernel_inval, task);
    struct inval_job *job = inv->jobs;

    inv->jobs = job->next;
    if (inv->jobs == NULL)
        inv->jobs_end = &inv->jobs;
    inv->busy = true;
    if (job->is_name && !inv->expires)
        kernel_inval_entry(inv->kernel, job->ino, job->name, &inv->notice);
    else if (job->is_name)
        kernel_expire_entry(inv->kernel, job->ino, job->name, &inv->notice);
    else
        kernel_inval_inode(inv->kernel, job->ino, 0, 0, &inv->notice);
    free(job);
}

static struct inval_job *invalidator_new_job(struct kernel_inval *inv, uint64_t ino,
                                             size_t name_room)
{
    struct inval_job *job = xzalloc(sizeof(*job) + name_room);

    job->ino = ino;
    *inv->jobs_end = job;
    inv->jobs_end = &job->next;
    inv->n_added++;
    invalidator_go_on(inv);
    return job;
}

void kernel_inval_add(struct kernel_inval *inv, uint64_t ino)
{
    invalidator_new_job(inv, ino, 0);
}

void kernel_inval_add_name(struct kernel_inval *inv, uint64_t dir, const char *name)
{
    size_t room = strlen(name) + 1;
    struct inval_job *job = invalidator_new_job(inv, dir, room);

    job->is_name = true;
    memcpy(job->name, name, room);
}

void kernel_inval_wait(struct kernel_inval *inv, struct kernel_inval_wait *wait)
{
    wait->after = inv->n_added;
    wait->next = NULL;
    *inv->waits_end = wait;
    inv->waits_end = &wait->next;
    invalidator_tell(inv);
}

struct kernel_inval *sim_kernel_inval_new(struct proc *proc, struct kernel *kernel,
                                          bool expires)
{
    struct kernel_inval *inv = xzalloc(sizeof(*inv));

    inv->proc = proc;
    inv->kernel = kernel;
    inv->expires = expires;
    inv->jobs_end = &inv->jobs;
    inv->waits_end = &inv->waits;
    inv->notice.done = on_noticed;
    inv->task.fn = on_invalidator_task;
    return inv;
}
