/*
 * sync_generation.c - ends a generation every few minutes: syncfs(), and a note of it.
 *
 * In:     the timer of the first loop; the stop of the daemon.
 * Out:    syncfs() on a worker, DATA/storage.generations.
 * Keeps:  a generation counts as stable only if syncfs() began after its end and did not
 *         fail; the file always names more generations than are in use.
 * Yours:  PERIOD_MS: after a power loss, notes of that period may be uncertain.
 */
#include "storaged/daemon/sync_generation.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/base/err.h"
#include "common/base/list.h"
#include "common/base/log.h"
#include "storaged/daemon/data_dir.h"

enum { PERIOD_MS = 300 * 1000 };

static int save(struct generations *all, int dir_fd)
{
    char text[GENERATIONS_TEXT_MAX];
    size_t len;

    generations_prepare(all);
    len = generations_print(text, &all->file);
    return data_dir_save_generations(dir_fd, text, len);
}

int sync_generation_load(struct generations *all, int dir_fd, uint64_t boot,
                         struct err *err)
{
    struct generations_file file;
    int rc = data_dir_load_generations(dir_fd, &file, err);

    if (rc != 0)
        return err_wrap(
            err, rc,
            "data directory (if the disk is sound, move it away: then storaged "
            "creates a new one)");
    generations_begin(all, &file, boot);
    rc = save(all, dir_fd);
    if (rc != 0) { /* a full disk: serve anyway */
        log_warn("cannot write storage.generations: %s", error_text(rc));
        atomic_store(&all->muted, true);
    }
    return 0;
}

/* Does one round, on a worker. A failed round is repeated at the next timer. */
static int sync_and_mark(struct generations *all, int dir_fd)
{
    uint64_t ended;
    bool muted = atomic_load(&all->muted);
    int rc = generations_may_advance(all) && !muted ? 0 : save(all, dir_fd);

    if (rc != 0)
        return rc;
    atomic_store(&all->muted, false);
    ended = generations_advance(all);
    if (syncfs(dir_fd) != 0)
        return -errno;
    generations_mark_stable(all, ended);
    return save(all, dir_fd);
}

static void on_work(uv_work_t *work)
{
    struct sync_generation *s = work->data;
    int rc = sync_and_mark(s->all, s->dir_fd);

    if (rc != 0)
        log_warn("cannot bring the data directory to stable storage: %s", error_text(rc));
}

static void on_work_done(uv_work_t *work, int status)
{
    struct sync_generation *s = work->data;

    (void)status;
    s->busy = false;
    if (!s->stopping)
        env_timer_start(&s->env->env, &s->timer, PERIOD_MS);
}

static void on_timer(struct env_timer *timer)
{
    struct sync_generation *s = container_of(timer, struct sync_generation, timer);

    if (atomic_load(&s->all->n_open) == 0) { /* nothing was noted: let the disk sleep */
        env_timer_start(&s->env->env, &s->timer, PERIOD_MS);
        return;
    }
    s->busy = true;
    s->work.data = s;
    uv_queue_work(s->env->loop, &s->work, on_work, on_work_done);
}

void sync_generation_start(struct sync_generation *s, struct env_uv *env,
                           struct generations *all, int dir_fd)
{
    *s = (struct sync_generation){ .env = env, .all = all, .dir_fd = dir_fd };
    env_timer_init(&s->timer, on_timer);
    env_timer_start(&env->env, &s->timer, PERIOD_MS);
}

void sync_generation_stop(struct sync_generation *s)
{
    s->stopping = true;
    env_timer_stop(&s->env->env, &s->timer);
}

void sync_generation_end(struct generations *all, int dir_fd)
{
    int rc = syncfs(dir_fd) == 0 ? 0 : -errno, saved;

    if (rc == 0)
        generations_end(all);
    saved = save(all, dir_fd);
    rc = rc != 0 ? rc : saved;
    if (rc != 0)
        log_warn("cannot bring the data directory to stable storage: %s", error_text(rc));
}
