/*
 * kernel_inval.c - a thread with a queue of kernel invalidations.
 *
 * In:     kernel_inval_add() and kernel_inval_add_name(), any thread. Out:
 *         fuse_lowlevel_notify_*().
 */
#include "rozomount/kcache/kernel_inval.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include "common/base/log.h"
#include "rozomount/options/xalloc.h"

enum { STOP_WAIT_S = 2 };

/* One job: a name in a directory (ino), or all cached data of an inode. */
struct inval_job {
    struct inval_job *next;
    uint64_t ino;
    bool may_be_dropped; /* counted in n_droppable */
    bool is_name;
    char name[]; /* if is_name */
};

struct kernel_inval {
    struct fuse_session *se; /* borrowed */
    bool expires;
    pthread_t thread;
    pthread_mutex_t lock; /* guards all members below */
    pthread_cond_t wake;
    struct inval_job *jobs, **jobs_end; /* owned, oldest first */
    unsigned n_droppable;
    uint64_t n_added, n_done;
    struct kernel_inval_wait *waits, **waits_end; /* sorted by `after` */
    bool stop, reported_full;
};

/* Needs the lock. */
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

void kernel_inval_wait(struct kernel_inval *inv, struct kernel_inval_wait *wait)
{
    pthread_mutex_lock(&inv->lock);
    wait->after = inv->stop ? 0 : inv->n_added;
    wait->next = NULL;
    *inv->waits_end = wait;
    inv->waits_end = &wait->next;
    invalidator_tell(inv);
    pthread_mutex_unlock(&inv->lock);
}

void kernel_drop_name(struct fuse_session *se, uint64_t dir, const char *name,
                      bool expire)
{
    size_t len = strlen(name);

    if (!expire)
        fuse_lowlevel_notify_inval_entry(se, dir, name, len);
    else
#ifdef EXPIRE_ENTRY_HAS_FLAGS /* libfuse 3.14.0 only */
        fuse_lowlevel_notify_expire_entry(se, dir, name, len, FUSE_LL_EXPIRE_ONLY);
#else
        fuse_lowlevel_notify_expire_entry(se, dir, name, len);
#endif
}

static void notify(const struct kernel_inval *inv, const struct inval_job *job)
{
    if (job->is_name)
        kernel_drop_name(inv->se, job->ino, job->name, inv->expires);
    else
        fuse_lowlevel_notify_inval_inode(inv->se, job->ino, 0, 0);
}

/* Needs the lock and a non-empty queue. */
static struct inval_job *invalidator_take(struct kernel_inval *inv)
{
    struct inval_job *job = inv->jobs;

    inv->jobs = job->next;
    if (inv->jobs == NULL)
        inv->jobs_end = &inv->jobs;
    inv->n_droppable -= job->may_be_dropped;
    return job;
}

static void *invalidator_run(void *arg)
{
    struct kernel_inval *inv = arg;

    pthread_mutex_lock(&inv->lock);
    for (;;) {
        struct inval_job *job;

        while (inv->jobs == NULL && !inv->stop)
            pthread_cond_wait(&inv->wake, &inv->lock);
        if (inv->stop)
            break;
        job = invalidator_take(inv);
        pthread_mutex_unlock(&inv->lock);
        notify(inv, job);
        free(job);
        pthread_mutex_lock(&inv->lock);
        inv->n_done++;
        invalidator_tell(inv);
    }
    inv->n_done = inv->n_added; /* the kernel reads nothing any more */
    invalidator_tell(inv);
    pthread_mutex_unlock(&inv->lock);
    return NULL;
}

struct kernel_inval *kernel_inval_start(struct fuse_session *se, bool expires)
{
    struct kernel_inval *inv = xzalloc(sizeof(*inv));

    inv->se = se;
    inv->expires = expires;
    inv->jobs_end = &inv->jobs;
    inv->waits_end = &inv->waits;
    pthread_mutex_init(&inv->lock, NULL);
    pthread_cond_init(&inv->wake, NULL);
    if (pthread_create(&inv->thread, NULL, invalidator_run, inv) != 0) {
        free(inv);
        return NULL;
    }
    return inv;
}

/* Queues a job and takes ownership of it. */
static void invalidator_add_job(struct kernel_inval *inv, struct inval_job *job)
{
    pthread_mutex_lock(&inv->lock);
    if (inv->stop || (job->may_be_dropped && inv->n_droppable == INVALIDATOR_MAX)) {
        if (!inv->stop && !inv->reported_full) {
            inv->reported_full = true;
            log_warn("too many files were changed by other mounts at once; "
                     "stale pages of some files stay until they are opened again");
        }
        free(job);
    } else {
        *inv->jobs_end = job;
        inv->jobs_end = &job->next;
        inv->n_droppable += job->may_be_dropped;
        inv->n_added++;
        pthread_cond_signal(&inv->wake);
    }
    pthread_mutex_unlock(&inv->lock);
}

void kernel_inval_add(struct kernel_inval *inv, uint64_t ino)
{
    struct inval_job *job = xzalloc(sizeof(*job));

    job->ino = ino;
    job->may_be_dropped = true;
    invalidator_add_job(inv, job);
}

void kernel_inval_add_name(struct kernel_inval *inv, uint64_t dir, const char *name)
{
    size_t room = strlen(name) + 1;
    struct inval_job *job = xzalloc(sizeof(*job) + room);

    job->ino = dir;
    job->is_name = true;
    memcpy(job->name, name, room);
    invalidator_add_job(inv, job);
}

void kernel_inval_stop(struct kernel_inval *inv)
{
    struct timespec until;

    if (inv == NULL)
        return;
    pthread_mutex_lock(&inv->lock);
    inv->stop = true;
    pthread_cond_signal(&inv->wake);
    pthread_mutex_unlock(&inv->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_WAIT_S;
    /* the kernel holds the thread; the end of the process frees all of this */
    if (pthread_timedjoin_np(inv->thread, NULL, &until) != 0)
        return;
    while (inv->jobs != NULL)
        free(invalidator_take(inv));
    pthread_cond_destroy(&inv->wake);
    pthread_mutex_destroy(&inv->lock);
    free(inv);
}
