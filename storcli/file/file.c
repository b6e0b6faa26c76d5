/*
 * file.c - one open file in bytes: opening, closing, attributes, and its turns.
 *
 * In:     the calls of file.h; answers of the engine and of exportd wake operations.
 *         Core.
 * Out:    callbacks, always from on_task(), never from inside the starting call.
 * Keeps:  a file is freed when nothing of it is under way.
 */
#include "storcli/file.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storcli/file/file_int.h"

static void file_free(struct file *f)
{
    file_done_cb *done = f->queue.close_op != NULL ? f->queue.close_op->done : NULL;
    void *arg = f->queue.close_op != NULL ? f->queue.close_op->arg : NULL;
    int rc = f->close_rc;

    cache_free(f);
    runs_free(f);
    writeback_free(f);
    report_free(f);
    inline_free(f);
    blocks_free(f);
    storcli_file_close(f->sf);
    file_pool_free(f->own_pool);
    queue_free(f);
    free(f);
    if (done != NULL)
        done(arg, rc);
}

/* Runs a turn: operations, then writes that are due, then the close. */
static void on_task(struct env_task *task)
{
    struct file *f = container_of(task, struct file, queue.task);

    do {
        inline_serve(f);
        queue_step_ready(f);
        queue_start(f);
        file_fly(f);
        if (f->queue.close_op != NULL && f->life != FILE_CLOSED &&
            list_is_empty(&f->queue.ready))
            f->queue.close_op->step(f->queue.close_op);
    } while (!list_is_empty(&f->queue.ready));
    if (f->life == FILE_CLOSED && !f->queue.task.queued)
        file_free(f);
}

/* ---- close ---- */

static bool is_quiet(const struct file *f)
{
    return f->queue.n_active == 1 && list_is_empty(&f->queue.arrived) &&
           f->cache.n_fetches == 0 && f->writeback.n_flying == 0 &&
           !f->epoch.renew_busy && !f->report.busy && inline_is_quiet(f) &&
           f->blocks.count != COUNT_BUSY && !f->blocks.seek_busy;
}

/* Runs at the end of every turn: waits for all other operations, then for all writes,
 * then for the report. */
static void close_step(struct fop *op)
{
    struct file *f = op->f;
    int rc = 0;

    list_remove(&op->link);
    if (f->queue.n_active > 1 ||
        file_is_pending(f, 0, UINT64_MAX, UINT64_MAX, op->clock, &rc))
        return;
    if (rc != 0) {
        f->close_rc = f->close_rc != 0 ? f->close_rc : rc;
        file_lose(f, rc);
        op->clock = f->writeback.clock;
    }
    rc = file_report(f, f->report.change, false, f->close_report_no);
    if (rc == 0)
        return;
    if (rc < 0 && f->close_rc == 0)
        f->close_rc = rc;
    f->life = is_quiet(f) ? FILE_CLOSED : FILE_CLOSING;
}

void file_close(struct file *f, file_done_cb *done, void *arg)
{
    struct fop *op = fop_new(f, sizeof(*op), FOP_CLOSE, close_step, done, arg);

    assert(!f->queue.exclusive_held);
    f->life = FILE_CLOSING;
    f->close_report_no = f->report.no;
    fop_queue(op);
}

/* ---- open, attributes ---- */

static uint64_t or_default(uint64_t value, uint64_t def)
{
    return value != 0 ? value : def;
}

static void config_default(struct file_config *c)
{
    c->write_behind_max = or_default(c->write_behind_max, 8 << 20);
    c->write_run_bytes = or_default(c->write_run_bytes, 1 << 20);
    c->write_delay_ms = (uint32_t)or_default(c->write_delay_ms, 1000);
    c->read_ahead_far_max = or_default(
        c->read_ahead_far_max, or_default(c->read_ahead_max, READ_AHEAD_FAR_BYTES));
    c->read_ahead_max = or_default(c->read_ahead_max, 2 << 20);
    c->report_delay_ms = (uint32_t)or_default(c->report_delay_ms, 1000);
    c->cache_ms = (uint32_t)or_default(c->cache_ms, 1000);
}

static uint32_t blocks_of(const struct file *f, uint64_t bytes, uint32_t n_max)
{
    uint64_t n = bytes / f->bs;

    return n < 1 ? 1 : n > n_max ? n_max : (uint32_t)n;
}

static void file_init(struct file *f)
{
    runs_init(f, blocks_of(f, f->config.write_run_bytes, STORCLI_RUN_MAX));
    cache_init(f, blocks_of(f, 1 << 20, FETCH_BLOCKS_MAX));
    writeback_init(f);
    queue_init(f, on_task);
    report_init(f);
    inline_init(f);
}

int file_open(struct env *env, struct storcli *cli, const struct file_config *config,
              const struct file_meta *meta, const struct storcli_target *target,
              const struct file_attr *attr, struct file **out)
{
    struct file *f = calloc(1, sizeof(*f));
    int rc;

    if (f == NULL)
        return -ENOMEM;
    f->env = env;
    f->cli = cli;
    f->meta = *meta;
    if (config != NULL)
        f->config = *config;
    config_default(&f->config);
    f->bs = target->block_bytes;
    f->pool = f->config.pool;
    rc = f->pool == NULL ? file_pool_new(0, &f->own_pool) : 0;
    if (rc == 0)
        rc = storcli_file_open(cli, target, &f->sf);
    if (rc != 0) {
        file_pool_free(f->own_pool);
        free(f);
        return rc;
    }
    if (f->pool == NULL)
        f->pool = f->own_pool;
    file_init(f);
    size_init(f, attr->size);
    if (attr->has_data)
        storcli_file_others_wrote(f->sf);
    inline_adopt(f, attr, false);
    file_adopt(f, attr, true);
    *out = f;
    return 0;
}

bool file_is_reported(const struct file *f)
{
    return f->runs.dirty.n == 0 && f->runs.writing.n == 0 && f->queue.accepting == NULL &&
           f->queue.exclusive == NULL && !f->report.busy &&
           f->report.change == f->report.reported_change;
}

void file_adopt(struct file *f, const struct file_attr *attr, bool with_data)
{
    if (with_data)
        epoch_adopt(f, attr->epoch);
    if (attr->has_data && f->inl.leave == LEAVE_NONE) {
        size_set_has_data(f, true);
        report_set_data_reported(f, true);
    }
    size_adopt(f, attr);
    if (with_data) {
        blocks_adopt(f, attr);
        trunc_adopt(f, attr);
    }
}

void file_refresh(struct file *f, const struct storcli_target *target,
                  const struct file_attr *attr)
{
    /* A read-only capability, which comes without an epoch, does not replace one for
     * writing, unless the file lies elsewhere: a writer needs a fresh epoch then. */
    if (target != NULL && (attr->epoch >= f->epoch.now ||
                           target->dist_generation > storcli_file_dist_generation(f->sf)))
        if (file_take_ref(f, target) != 0)
            return;
    if (target != NULL)
        inline_adopt(f, attr, false);
    file_adopt(f, attr, target != NULL);
    file_wake(f);
}

uint32_t file_epoch(const struct file *f)
{
    return f->epoch.now;
}

uint64_t file_losses(const struct file *f)
{
    return storcli_file_losses(f->sf) + f->writeback.n_losses;
}

bool file_is_clean(const struct file *f)
{
    return file_is_reported(f) && f->report.mtime_ns == 0 && !f->epoch.renew_busy &&
           !(f->trunc.pending && f->trunc.version == 0) &&
           list_is_empty(&f->queue.arrived);
}

bool file_has_stored(const struct file *f)
{
    return storcli_file_has_stored(f->sf) || f->runs.dirty.n > 0 || f->runs.writing.n > 0;
}

void file_drop_cache(struct file *f)
{
    storcli_file_others_wrote(f->sf); /* changed by another client, perhaps */
    clean_forget_all(f, 0, UINT64_MAX);
    blocks_forget_reserved(f, 0);
    inline_forget(f);
    blocks_forget(f);
}
