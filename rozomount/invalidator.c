/*
 * invalidator.c - a thread with a queue of inode numbers.
 *
 * In:     invalidator_add(), any thread. Out: fuse_lowlevel_notify_inval_inode().
 */
#include "rozomount/invalidator.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include "common/log.h"
#include "rozomount/mem.h"

enum { STOP_WAIT_S = 2 };

struct invalidator {
    struct fuse_session *se; /* borrowed */
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t wake;
    uint64_t *inos; /* a ring */
    unsigned first, n;
    uint64_t n_added, n_done;
    struct invalidator_wait *waits, **waits_end; /* in order of `after` */
    bool stop, told_full;
};

/* With the lock. */
static void invalidator_tell(struct invalidator *inv)
{
    while (inv->waits != NULL && inv->waits->after <= inv->n_done) {
        struct invalidator_wait *wait = inv->waits;

        inv->waits = wait->next;
        if (inv->waits == NULL)
            inv->waits_end = &inv->waits;
        env_mailbox_post(wait->env, &wait->mail);
    }
}

void invalidator_wait(struct invalidator *inv, struct invalidator_wait *wait)
{
    pthread_mutex_lock(&inv->lock);
    wait->after = inv->stop ? 0 : inv->n_added;
    wait->next = NULL;
    *inv->waits_end = wait;
    inv->waits_end = &wait->next;
    invalidator_tell(inv);
    pthread_mutex_unlock(&inv->lock);
}

static void *invalidator_run(void *arg)
{
    struct invalidator *inv = arg;

    pthread_mutex_lock(&inv->lock);
    for (;;) {
        uint64_t ino;

        while (inv->n == 0 && !inv->stop)
            pthread_cond_wait(&inv->wake, &inv->lock);
        if (inv->stop)
            break;
        ino = inv->inos[inv->first];
        inv->first = (inv->first + 1) % INVALIDATOR_MAX;
        inv->n--;
        pthread_mutex_unlock(&inv->lock);
        fuse_lowlevel_notify_inval_inode(inv->se, ino, 0, 0);
        pthread_mutex_lock(&inv->lock);
        inv->n_done++;
        invalidator_tell(inv);
    }
    inv->n_done = inv->n_added; /* nobody will read any more */
    invalidator_tell(inv);
    pthread_mutex_unlock(&inv->lock);
    return NULL;
}

struct invalidator *invalidator_start(struct fuse_session *se)
{
    struct invalidator *inv = mem_new(sizeof(*inv));

    inv->se = se;
    inv->waits_end = &inv->waits;
    inv->inos = mem_new(INVALIDATOR_MAX * sizeof(*inv->inos));
    pthread_mutex_init(&inv->lock, NULL);
    pthread_cond_init(&inv->wake, NULL);
    if (pthread_create(&inv->thread, NULL, invalidator_run, inv) != 0) {
        free(inv->inos);
        free(inv);
        return NULL;
    }
    return inv;
}

void invalidator_add(struct invalidator *inv, uint64_t ino)
{
    pthread_mutex_lock(&inv->lock);
    if (inv->n < INVALIDATOR_MAX) {
        inv->inos[(inv->first + inv->n++) % INVALIDATOR_MAX] = ino;
        inv->n_added++;
        pthread_cond_signal(&inv->wake);
    } else if (!inv->told_full) {
        inv->told_full = true;
        log_warn(
            "so many files changed elsewhere that some stale pages stay until reopened");
    }
    pthread_mutex_unlock(&inv->lock);
}

void invalidator_stop(struct invalidator *inv)
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
    if (pthread_timedjoin_np(inv->thread, NULL, &until) != 0)
        return; /* the kernel holds it; the end of the process will free all of this */
    pthread_cond_destroy(&inv->wake);
    pthread_mutex_destroy(&inv->lock);
    free(inv->inos);
    free(inv);
}
