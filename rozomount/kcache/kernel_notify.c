/*
 * kernel_notify.c - a pool of threads that notify the kernel; grows when all of them
 * wait.
 *
 * In:     kernel_notify_submit(), any thread.
 * Out:    fuse_lowlevel_notify_*(), then the job's mail; messages that libfuse 3.14
 *         cannot send are written to the device directly.
 */
#include "rozomount/kcache/kernel_notify.h"

#include <errno.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include "common/base/range_map.h"
#include "rozomount/kcache/kernel_inval.h"
#include "rozomount/options/mountpoint.h"
#include "rozomount/options/xalloc.h"

enum {
    NOTIFY_RESEND = 7,    /* FUSE_NOTIFY_RESEND of Linux 6.9 */
    NOTIFY_INC_EPOCH = 8, /* FUSE_NOTIFY_INC_EPOCH of Linux 6.16 */
    NOTIFY_PRUNE = 9,     /* FUSE_NOTIFY_PRUNE of Linux 6.18 */
    /* more than the kernel has requests under way that one may have to wait for */
    THREADS_MAX = 1024,
    THREAD_STACK = 64 << 10, /* bytes */
    STOP_WAIT_S = 2,
};

/* Message of Linux 6.18; the inode numbers follow it. */
struct prune_out {
    uint32_t count;
    uint32_t padding;
    uint64_t spare;
};

struct kernel_notify {
    struct fuse_session *se;     /* borrowed */
    const struct mountpoint *at; /* borrowed */
    bool expires, ages, prunes;
    pthread_mutex_t lock; /* guards all members below */
    pthread_cond_t wake;  /* a job was queued, or stop is set */
    pthread_cond_t gone;  /* a thread has ended */
    struct notify_job *jobs, **jobs_end;
    unsigned n_threads, n_idle, n_jobs;
    bool stop;
    bool left; /* the kernel holds a thread; its job is never posted */
};

static void drop_names(const struct kernel_notify *r, uint64_t dir,
                       struct kernel_name *names)
{
    for (struct kernel_name *n = names; n != NULL; n = n->next)
        kernel_drop_name(r->se, dir, n->name, r->expires && n->is_dir);
}

static void drop_inode(const struct kernel_notify *r, const struct notify_job *job)
{
    bool pages = job->from < job->to;
    uint64_t len = job->to == SPAN_END ? 0 : job->to - job->from;

    fuse_lowlevel_notify_inval_inode(r->se, job->ino, pages ? (off_t)job->from : -1,
                                     (off_t)len);
}

static void drop_more(const struct kernel_notify *r, const struct notify_job *job)
{
    for (size_t i = 0; i < job->n_more; i++)
        fuse_lowlevel_notify_inval_inode(r->se, job->more[i], -1, 0);
}

static void job_end(struct notify_job *job)
{
    kernel_names_free(job->names);
    job->names = NULL;
    env_mailbox_post(job->env, &job->mail);
}

static void *recaller_run(void *arg)
{
    struct kernel_notify *r = arg;

    pthread_mutex_lock(&r->lock);
    for (;;) {
        struct notify_job *job;

        r->n_idle++;
        while (r->jobs == NULL && !r->stop)
            pthread_cond_wait(&r->wake, &r->lock);
        r->n_idle--;
        job = r->jobs;
        if (job == NULL)
            break;
        r->jobs = job->next;
        if (r->jobs == NULL)
            r->jobs_end = &r->jobs;
        r->n_jobs--;
        pthread_mutex_unlock(&r->lock);
        drop_names(r, job->ino, job->names);
        if (job->ino != 0)
            drop_inode(r, job);
        drop_more(r, job);
        pthread_mutex_lock(&r->lock);
        if (!r->left)
            job_end(job);
    }
    r->n_threads--;
    pthread_cond_signal(&r->gone);
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* Needs the lock. */
static bool thread_add(struct kernel_notify *r)
{
    pthread_attr_t attr;
    pthread_t thread;
    int rc;

    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attr, THREAD_STACK);
    rc = pthread_create(&thread, &attr, recaller_run, r);
    pthread_attr_destroy(&attr);
    r->n_threads += rc == 0;
    return rc == 0;
}

static bool notify_plain(const struct kernel_notify *r, int what)
{
    const struct fuse_out_header head = { .len = sizeof(head), .error = what };

    return write(fuse_session_fd(r->se), &head, sizeof(head)) == (ssize_t)sizeof(head);
}

bool kernel_notify_age(const struct kernel_notify *r)
{
    return notify_plain(r, NOTIFY_INC_EPOCH);
}

bool kernel_notify_has_aged(const struct kernel_notify *r)
{
    return r->ages;
}

void kernel_notify_resend(const struct kernel_notify *r)
{
    notify_plain(r, NOTIFY_RESEND);
}

bool kernel_notify_can_age(const struct kernel_notify *r)
{
    return r->ages && !mountpoint_is_covered_now(r->at);
}

static bool prune(const struct kernel_notify *r, const uint64_t *inos, uint32_t n)
{
    struct prune_out out = { .count = n };
    struct fuse_out_header head = { .len = sizeof(head) + sizeof(out) + n * sizeof(*inos),
                                    .error = NOTIFY_PRUNE };
    const struct iovec iov[] = {
        { &head, sizeof(head) },
        { &out, sizeof(out) },
        { (void *)(uintptr_t)inos, n * sizeof(*inos) },
    };

    return writev(fuse_session_fd(r->se), iov, n == 0 ? 2 : 3) == (ssize_t)head.len;
}

bool kernel_notify_can_prune(const struct kernel_notify *r)
{
    return r->prunes;
}

void kernel_notify_prune(const struct kernel_notify *r, uint64_t ino)
{
    prune(r, &ino, 1);
}

bool kernel_notify_is_known(const struct kernel_notify *r, uint64_t ino)
{
    return fuse_lowlevel_notify_inval_inode(r->se, ino, -1, 0) != -ENOENT;
}

struct kernel_notify *kernel_notify_start(struct fuse_session *se,
                                          const struct mountpoint *at, bool expires)
{
    struct kernel_notify *r = xzalloc(sizeof(*r));
    bool started;

    r->se = se;
    r->at = at;
    r->expires = expires;
    r->ages = at != NULL && kernel_notify_age(r);
    r->prunes = prune(r, NULL, 0);
    r->jobs_end = &r->jobs;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->wake, NULL);
    pthread_cond_init(&r->gone, NULL);
    pthread_mutex_lock(&r->lock);
    started = thread_add(r);
    pthread_mutex_unlock(&r->lock);
    if (started)
        return r;
    free(r);
    return NULL;
}

void kernel_notify_submit(struct kernel_notify *r, struct notify_job *job)
{
    bool stop;

    job->next = NULL;
    pthread_mutex_lock(&r->lock);
    stop = r->stop;
    if (!stop) {
        *r->jobs_end = job;
        r->jobs_end = &job->next;
        r->n_jobs++;
        if (r->n_jobs > r->n_idle && r->n_threads < THREADS_MAX)
            thread_add(r); /* if it fails, a running thread takes the job */
        pthread_cond_signal(&r->wake);
    }
    pthread_mutex_unlock(&r->lock);
    if (stop)
        job_end(job);
}

void kernel_notify_stop(struct kernel_notify *r)
{
    struct notify_job *job, *next;
    struct timespec until;
    bool left;
    int rc = 0;

    if (r == NULL)
        return;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_WAIT_S;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    job = r->jobs;
    r->jobs = NULL;
    r->jobs_end = &r->jobs;
    pthread_cond_broadcast(&r->wake);
    for (; job != NULL; job = next) {
        next = job->next;
        job_end(job);
    }
    while (r->n_threads > 0 && rc == 0)
        rc = pthread_cond_timedwait(&r->gone, &r->lock, &until);
    left = r->left = r->n_threads > 0;
    pthread_mutex_unlock(&r->lock);
    if (left)
        return; /* the kernel holds a thread; the end of the process frees all of this */
    pthread_cond_destroy(&r->wake);
    pthread_cond_destroy(&r->gone);
    pthread_mutex_destroy(&r->lock);
    free(r);
}
