/*
 * unalias.c - a LOOKUP that finds a moved directory makes the kernel drop the old dentry
 * first.
 *
 * In:     answers to LOOKUP.
 * Out:    notices to the kernel; the answer may wait for them.
 * Keeps:  rename() works for a directory that another mount moved. The kernel can move
 *         its only dentry of a directory, but not inside a rename(), which holds the lock
 *         that this takes; without an old dentry there is nothing to move. Only dentries
 *         that no program uses and on which nothing is mounted are dropped: the kernel
 *         checks that under its own locks.
 */
#include "rozomount/ops/unalias.h"

#include <stdlib.h>

#include "rozomount/kcache/dir_places.h"
#include "rozomount/kcache/kernel_notify.h"
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
    NAMES_WAIT_MS = 1000, /* limit: a call that waits for this one may lock a directory */
    DIRS_AT_A_TIME = 16,
};

/* Drop of the names below a moved directory. Lives until the last notice is sent. */
struct unalias {
    struct fuse_op *op; /* waits for it; NULL: not any more */
    struct env_timer timer;
    uint64_t *dirs; /* owned; deepest first, the moved one last */
    size_t n_dirs, next;
    size_t n_out;
};

/* The names of one directory, as a job. */
struct unalias_job {
    struct notify_job job;
    struct unalias *unalias;
};

bool fuse_op_dir_is_free(struct fuse_op *op)
{
    struct mount *m = op->loop->mount;
    pid_t pid = fuse_op_caller(op)->pid;
    const struct dir_place at = { op->entry.attr.ino, op->ino, op->name };
    uint64_t now_ns = env_now_ns(&op->loop->env.env);

    if (!S_ISDIR(op->entry.attr.mode) || !mount_prunes(m))
        return true;
    switch (dir_places_found(m->dir_places, &at, pid, now_ns)) {
    case DIR_PLACE_SAME:
        return true;
    case DIR_PLACE_UNKNOWN:
        kernel_notify_prune(m->notify, at.ino);
        return true;
    case DIR_PLACE_MOVED:
        kernel_notify_prune(m->notify, at.ino);
        if (kernel_notify_is_known(m->notify, at.ino))
            dir_places_stuck(m->dir_places, at.ino, pid, now_ns);
        return true;
    default:
        return false;
    }
}

static void unalias_answer(struct unalias *u)
{
    struct fuse_op *op = u->op;

    u->op = NULL;
    env_timer_stop(&op->loop->env.env, &u->timer);
    for (size_t i = 0; i < u->n_dirs; i++)
        kernel_notify_prune(op->loop->mount->notify, u->dirs[i]);
    fuse_op_next(op);
}

static void on_names_wait(struct env_timer *timer)
{
    unalias_answer(container_of(timer, struct unalias, timer));
}

static void names_drop(struct unalias *u, uint64_t dir);

static void unalias_step(struct unalias *u)
{
    while (u->op != NULL && u->next < u->n_dirs && u->n_out < DIRS_AT_A_TIME)
        names_drop(u, u->dirs[u->next++]);
    if (u->n_out != 0)
        return;
    if (u->op != NULL)
        unalias_answer(u);
    free(u->dirs);
    free(u);
}

static void on_names_dropped(struct env_mail *mail)
{
    struct unalias_job *j = container_of(mail, struct unalias_job, job.mail);
    struct unalias *u = j->unalias;

    free(j);
    u->n_out--;
    unalias_step(u);
}

/* Returns all names that the kernel has a dentry of. */
static struct kernel_name *names_known(struct mount *m, uint64_t dir)
{
    struct kernel_name *list = token_cache_copy_names(m->tokens, dir), **end = &list;

    while (*end != NULL)
        end = &(*end)->next;
    *end = dir_places_take_untokened(m->dir_places, dir);
    return list;
}

static void names_drop(struct unalias *u, uint64_t dir)
{
    struct loop *loop = u->op->loop;
    struct unalias_job *j = xzalloc(sizeof(*j));

    u->n_out++;

    j->unalias = u;
    j->job.ino = dir;
    j->job.names = names_known(loop->mount, dir);
    j->job.env = &loop->env;
    j->job.mail.fn = on_names_dropped;
    kernel_notify_submit(loop->mount->notify, &j->job);
}

enum step_end fuse_op_reply_free_dir(struct fuse_op *op)
{
    struct unalias *u = xzalloc(sizeof(*u));

    u->op = op;
    u->dirs =
        dir_places_below(op->loop->mount->dir_places, op->entry.attr.ino, &u->n_dirs);
    env_timer_init(&u->timer, on_names_wait);
    env_timer_start(&op->loop->env.env, &u->timer, NAMES_WAIT_MS);
    op->next = fuse_op_reply_entry;
    unalias_step(u);
    return STEP_WAIT;
}
