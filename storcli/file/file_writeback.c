/*
 * file_writeback.c - exchange with the storages: runs on their way, versions, epochs.
 *
 * In:     runs that are wanted. Core.
 * Out:    storcli_write(), meta.renew().
 * Keeps:  no block is in two writes at a time; versions of one block grow in the order
 *         its bytes were accepted; a run that could not be written is parked, not lost.
 * Yours:  how many runs fly, when failed ones are tried again.
 */
#include "storcli/file/file_writeback.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/units.h"
#include "storcli/file/file_int.h"

enum {
    FLYING_MAX = 64,     /* runs of one file on their way */
    RETRY_MS_MIN = 1000, /* first pause before a parked run is tried again by itself */
    RETRY_MS_MAX = 30000,
};

/* ---- epochs, versions, refs ---- */

void epoch_adopt(struct file *f, uint32_t epoch)
{
    if (epoch <= f->epoch.now)
        return;
    f->epoch.now = epoch;
    f->epoch.sequence = 0;
}

void epoch_is_sure(struct file *f)
{
    f->epoch.unsure = false;
}

void file_is_refused(struct file *f, unsigned n)
{
    f->epoch.outdated = f->epoch.outdated || n > 1;
}

int file_take_ref(struct file *f, const struct storcli_target *target)
{
    uint32_t generation = storcli_file_dist_generation(f->sf);
    int rc = storcli_file_update(f->sf, target);

    if (storcli_file_dist_generation(f->sf) != generation) {
        blocks_forget_reserved(f, 0); /* new storages have nothing reserved */
        f->epoch.outdated = false;
    }
    return rc;
}

bool file_next_version(struct file *f, uint64_t *version)
{
    if (f->epoch.now == 0 || f->epoch.unsure || f->epoch.sequence == UINT32_MAX)
        return false;
    *version = version_make(f->epoch.now, ++f->epoch.sequence);
    return true;
}

static void relaunch(struct frun *run);

/* Continues runs that waited for an epoch, or fails them. Each leaves its state, so the
 * scan ends. */
static void renewed_runs(struct file *f)
{
    for (unsigned i = 0; i < f->runs.writing.n;) {
        struct frun *run = f->runs.writing.v[i];

        if (run->state != FRUN_EPOCH) {
            i++;
            continue;
        }
        if (f->epoch.renew_rc == 0)
            relaunch(run);
        else
            file_failed(run, f->epoch.renew_rc);
        i = 0;
    }
}

/* Takes the outcome of a truncate that exportd had not answered. No write went to the
 * storages since, so everything in memory is newer. */
static void learn_of_truncate(struct file *f, const struct file_attr *attr)
{
    f->epoch.unsure = false;
    trunc_happened(f);
    if (attr->size < f->size.meta || attr->truncate_pending) {
        trunc_is(f, attr);
        size_cut(f, attr->size);
    }
    clean_forget_all(f, 0, UINT64_MAX);
}

int file_be_sure(struct fop *op, uint64_t *asked_no)
{
    struct file *f = op->f;

    if (!f->epoch.unsure && f->inl.place != PLACE_UNKNOWN)
        return 1;
    if (*asked_no != 0 && f->epoch.renew_no >= *asked_no &&
        (f->epoch.unsure || f->epoch.renew_rc != 0))
        return f->epoch.renew_rc != 0 ? f->epoch.renew_rc : -EIO;
    if (*asked_no != 0 && f->epoch.renew_no >= *asked_no)
        *asked_no = 0; /* the place of the data may have changed since */
    if (*asked_no == 0)
        *asked_no = max_u64(f->epoch.sure_no, f->epoch.renew_no + 1);
    fop_wait(op, &f->epoch.waiters);
    file_renew(f);
    return 0;
}

static void on_renewed(struct file_meta_call *call, int rc)
{
    struct file *f = call->file;

    assert(f->epoch.renew_busy);
    f->epoch.renew_busy = false;
    if (rc == 0 && call->attr.epoch <= f->epoch.now) /* exportd owes us a new one */
        rc = -EIO;
    call->target.session = 0; /* waiting requests began under our present session */
    if (rc == 0)
        rc = file_take_ref(f, &call->target);
    if (rc == 0 && f->epoch.place_no == f->inl.no)
        inline_adopt(f, &call->attr, f->inl.place != PLACE_STORAGES);
    if (rc == 0)
        file_adopt(f, &call->attr, true);
    inline_renewed(f, rc);
    f->epoch.renew_no++;
    f->epoch.renew_rc = rc;
    if (f->epoch.unsure && f->epoch.renew_no < f->epoch.sure_no)
        file_renew(f); /* asked before the truncate */
    else if (f->epoch.unsure && rc == 0)
        learn_of_truncate(f, &call->attr);
    if (rc != 0 || !f->epoch.unsure)
        renewed_runs(f);
    fetches_renewed(f, f->epoch.renew_rc);
    waitlist_wake(f, &f->epoch.waiters);
    file_wake(f);
}

void file_meta_unsure(struct file *f)
{
    f->epoch.unsure = true;
    f->epoch.sure_no = f->epoch.renew_no + (f->epoch.renew_busy ? 2 : 1);
    file_renew(f);
}

static void renew_send(struct file *f)
{
    f->epoch.place_no = f->inl.no;
    f->epoch.call =
        (struct file_meta_call){ .done = on_renewed,
                                 .file = f,
                                 .moved = f->epoch.outdated,
                                 .dist_generation = storcli_file_dist_generation(f->sf) };
    f->meta.renew(f->meta.arg, &f->epoch.call);
}

void file_renew(struct file *f)
{
    if (f->epoch.renew_busy)
        return;
    f->epoch.renew_busy = true;
    if (f->epoch.outdated)
        env_timer_start(f->env, &f->epoch.timer, OUTDATED_PAUSE_MS);
    else
        renew_send(f);
}

static void on_renew_timer(struct env_timer *timer)
{
    renew_send(container_of(timer, struct file, epoch.timer));
}

/* ---- writing ---- */

void frun_want(struct frun *run)
{
    if (run->want != WANT_NOT)
        return;
    assert(run->state == FRUN_DIRTY || run->state == FRUN_PARKED);
    run->want = WANT_SOON;
    list_add_tail(&run->f->writeback.want, &run->link);
    file_wake(run->f);
}

void frun_unwant(struct frun *run)
{
    run->want = WANT_NOT;
    list_remove(&run->link);
}

void file_want_all(struct file *f)
{
    for (unsigned i = 0; i < f->runs.dirty.n; i++)
        frun_want(f->runs.dirty.v[i]);
    for (unsigned i = 0; i < f->runs.writing.n; i++)
        if (f->runs.writing.v[i]->state == FRUN_PARKED)
            frun_want(f->runs.writing.v[i]);
}

static bool any_parked(const struct file *f)
{
    for (unsigned i = 0; i < f->runs.writing.n; i++)
        if (f->runs.writing.v[i]->state == FRUN_PARKED)
            return true;
    for (unsigned i = 0; i < f->runs.dirty.n; i++)
        if (f->runs.dirty.v[i]->failed_clock != 0)
            return true;
    return false;
}

static void start_retry(struct file *f)
{
    if (f->writeback.retry_at_ns == 0) {
        f->writeback.retry_at_ns = env_now_ns(f->env) + ms_to_ns(f->writeback.retry_ms);
        f->writeback.retry_ms = min_u64(f->writeback.retry_ms * 2, RETRY_MS_MAX);
    }
    file_start_write_timer(f);
}

static void mark_failed(struct frun *run, int rc)
{
    frun_unwant(run);
    run->rc = rc;
    run->failed_clock = run->f->writeback.clock;
    run->has_failed = true;
}

/* Keeps a dirty run that could not be completed, or a writing one that could not be
 * written. Runs above a failed writing run cannot be written before it, so they failed
 * too. */
void file_failed(struct frun *run, int rc)
{
    struct file *f = run->f;
    struct write_fop *direct = run->direct;

    f->writeback.clock++;
    mark_failed(run, rc);
    waitlist_wake(f, &f->runs.waiters);
    file_wake(f);
    if (run->state == FRUN_DIRTY) {
        start_retry(f);
        return;
    }
    run->n_stale = run->n_denied = 0;
    run->state = FRUN_PARKED;
    if (direct == NULL) {
        for (unsigned i = frunset_index(&f->runs.dirty, run->first);
             i < f->runs.dirty.n && f->runs.dirty.v[i]->first < run->end; i++)
            mark_failed(f->runs.dirty.v[i], rc);
        start_retry(f);
        return;
    }
    runs_take_out(run); /* the memory is the caller's, who gets the error */
    if (run->hi > f->size.meta)
        size_set_unreported(f);
    frun_free(run);
    file_size_recount(f);
    if (f->size.acked_end > f->size.meta)
        file_changed(f); /* the run held back the size of data after it */
    write_on_direct(direct, rc);
}

void file_count_loss(struct file *f)
{
    f->writeback.n_losses++;
}

void file_lost_for(struct file *f, int rc)
{
    file_count_loss(f);
    f->writeback.lost_rc = rc;
}

void writeback_abandon_begin(struct file *f)
{
    f->writeback.n_abandoning++;
}

void writeback_abandon_end(struct file *f)
{
    assert(f->writeback.n_abandoning > 0);
    f->writeback.n_abandoning--;
}

/* Records that data was dropped. */
static void note_lost(struct file *f, int rc)
{
    clean_forget_all(f, 0, UINT64_MAX);
    inline_lose(f);
    f->writeback.lost_clock = ++f->writeback.clock;
    file_lost_for(f, rc);
    size_set_unreported(f);
    f->writeback.retry_at_ns = 0;
    f->writeback.retry_ms = RETRY_MS_MIN;
    report_count_change(f);
    waitlist_wake(f, &f->runs.waiters);
}

void file_lose(struct file *f, int rc)
{
    frun_drop_dirty(f);
    note_lost(f, rc);
}

void file_lose_unsent(struct file *f, int rc)
{
    frun_drop_unsent(f);
    note_lost(f, rc);
}

/* Returns true for a run of a long sequence: its writer does not come back, and its next
 * runs get this memory while it is in the processor's caches. */
static bool is_streamed(const struct frun *run)
{
    return run->end - run->first == run->f->runs.blocks;
}

void frun_written(struct frun *run)
{
    struct file *f = run->f;
    struct write_fop *direct = run->direct;
    uint64_t end = min_u64(run->hi, f->size.now);

    runs_take_out(run);
    size_acked(f, end, version_epoch(run->version));
    blocks_allocated(f, run->first, run->end);
    if (direct == NULL && run->cut == UINT64_MAX && !is_streamed(run))
        clean_add(f, run->buf, run->first, (uint32_t)(run->end - run->first), NULL);
    frun_free(run);
    if (f->writeback.retry_ms != RETRY_MS_MIN && !any_parked(f)) {
        f->writeback.retry_at_ns = 0;
        f->writeback.retry_ms = RETRY_MS_MIN;
    }
    file_acked(f, end);
    waitlist_wake(f, &f->runs.waiters);
    file_wake(f);
    if (direct != NULL)
        write_on_direct(direct, 0);
}

void frun_takes_off(struct frun *run)
{
    run->state = FRUN_FLYING;
    run->f->writeback.n_flying++;
}

void frun_lands(struct frun *run)
{
    assert(run->f->writeback.n_flying > 0);
    run->f->writeback.n_flying--;
}

bool file_is_landed(const struct file *f)
{
    for (unsigned i = 0; i < f->runs.writing.n; i++)
        if (f->runs.writing.v[i]->state != FRUN_PARKED)
            return false;
    return true;
}

static void on_written(void *arg, int rc)
{
    struct frun *run = arg;
    struct file *f = run->f;
    /* Data reported as lost must not replace what others wrote since. */
    bool is_abandoned =
        (f->life != FILE_OPEN || f->writeback.n_abandoning != 0) && run->has_failed;
    bool is_stale = rc == -ESTALE || rc == -ROZO_EMOVED;
    bool again = (is_stale && !is_abandoned && run->n_stale++ < STALE_TRIES_MAX) ||
                 (rc == -EACCES && run->n_denied++ < DENIED_TRIES_MAX);

    if (rc == -ROZO_EMOVED)
        file_is_refused(f, run->n_stale);
    assert(run->state == FRUN_FLYING);
    frun_lands(run);
    if (rc == 0) {
        frun_written(run);
        inline_look(f);
    } else if (!again) {
        file_failed(run, plain_errno(rc));
    } else {
        run->state = FRUN_EPOCH;
        if (f->epoch.now > version_epoch(run->version))
            relaunch(run);
        else
            file_renew(f);
    }
}

/* Sends a run of the writing set to the storages, under a version of its own. */
static void launch(struct frun *run)
{
    struct file *f = run->f;
    uint64_t last = block_start(f, run->end - 1);

    if (!file_next_version(f, &run->version)) {
        run->state = FRUN_EPOCH;
        file_renew(f);
        return;
    }
    assert(f->size.now > last);
    frun_apply_cut(run);
    frun_takes_off(run);
    storcli_write(f->sf, run->version, run->first, (uint32_t)(run->end - run->first),
                  run->data, min_u64(f->bs, f->size.now - last), run->sync, on_written,
                  run);
}

/* Sends a run again, unless a truncate came with the fresh epoch: that goes first. */
static void relaunch(struct frun *run)
{
    if (!frun_is_beyond(run)) {
        launch(run);
    } else if (run->direct != NULL) {
        file_failed(run, -EIO);
    } else {
        run->state = FRUN_PARKED;
        frun_want(run);
        /* the exclusive operation must finish it */
        waitlist_wake(run->f, &run->f->runs.waiters);
    }
}

/* Returns true if a dirty run must wait for runs of the writing set; parked ones are
 * wanted first. */
static bool is_above_writing(struct frun *run)
{
    struct file *f = run->f;
    bool is_above = false;

    for (unsigned i = frunset_index(&f->runs.writing, run->first);
         i < f->runs.writing.n && f->runs.writing.v[i]->first < run->end; i++) {
        is_above = true;
        if (f->runs.writing.v[i]->state != FRUN_PARKED ||
            f->runs.writing.v[i]->want == WANT_BELOW)
            continue;
        frun_want(f->runs.writing.v[i]);
        f->runs.writing.v[i]->want = WANT_BELOW;
        file_wake(f);
    }
    return is_above;
}

static bool may_fly(struct frun *run)
{
    struct file *f = run->f;

    if (frun_is_beyond(run)) {
        file_finish_truncate(f);
        return false;
    }
    if (f->queue.exclusive != NULL && run->want != WANT_BELOW &&
        (run->end <= f->queue.exclusive_first || run->first >= f->queue.exclusive_end))
        return false;
    if (run->state == FRUN_PARKED)
        return true;
    return !is_above_writing(run) && frun_complete(run);
}

void file_fly(struct file *f)
{
    if (inline_fly(f))
        return;
    LIST_FOREACH_SAFE(node, &f->writeback.want) {
        struct frun *run = container_of(node, struct frun, link);

        if (f->writeback.n_flying >= FLYING_MAX)
            return;
        if (!may_fly(run))
            continue;
        frun_unwant(run);
        if (run->state == FRUN_DIRTY)
            runs_set_off(run);
        run->failed_clock = 0;
        launch(run);
    }
}

int frun_fly_direct(struct file *f, struct write_fop *w, uint64_t first, uint64_t end,
                    const uint8_t *data, bool sync)
{
    struct frun *run = runs_add_direct(f, w, first, end, data, sync);

    if (run == NULL)
        return -ENOMEM;
    size_grows(f, run->hi);
    launch(run);
    return 0;
}

static bool set_is_pending(struct frunset *set, uint64_t first, uint64_t end,
                           uint64_t before_id, uint64_t clock, int *rc)
{
    bool pending = false;

    for (unsigned i = frunset_index(set, first); i < set->n && set->v[i]->first < end;
         i++) {
        struct frun *run = set->v[i];

        if (run->id >= before_id)
            continue;
        if (run->failed_clock > clock) {
            *rc = *rc != 0 ? *rc : run->rc;
            continue;
        }
        pending = true;
        if (run->state == FRUN_DIRTY || run->state == FRUN_PARKED)
            frun_want(run);
    }
    return pending;
}

bool file_is_pending(struct file *f, uint64_t first, uint64_t end, uint64_t before_id,
                     uint64_t clock, int *rc)
{
    bool pending = set_is_pending(&f->runs.writing, first, end, before_id, clock, rc);

    if (f->writeback.lost_clock > clock && *rc == 0)
        *rc = f->writeback.lost_rc;
    return set_is_pending(&f->runs.dirty, first, end, before_id, clock, rc) || pending;
}

/* ---- the delay ---- */

static uint64_t due_ns(const struct frun *run)
{
    const struct file *f = run->f;

    if (run->state == FRUN_FLYING || run->state == FRUN_EPOCH || run->want != WANT_NOT)
        return UINT64_MAX;
    if (run->failed_clock != 0)
        return f->writeback.n_abandoning != 0 ? UINT64_MAX : f->writeback.retry_at_ns;
    return run->born_ns + f->config.write_delay_ms * 1000000ull;
}

static uint64_t set_due_ns(const struct frunset *set)
{
    uint64_t due = UINT64_MAX;

    for (unsigned i = 0; i < set->n; i++)
        due = min_u64(due, due_ns(set->v[i]));
    return due;
}

/* Starts the timer. A running one is early enough for new dirty runs: it was started for
 * older ones. */
void file_start_write_timer(struct file *f)
{
    uint64_t now_ns = env_now_ns(f->env), due, after_ms;

    if (env_timer_is_running(&f->writeback.timer))
        return;
    due = min_u64(set_due_ns(&f->runs.dirty), set_due_ns(&f->runs.writing));
    if (due == UINT64_MAX)
        return;
    after_ms = due > now_ns ? ns_to_ms_up(due - now_ns) : 0;
    env_timer_start(f->env, &f->writeback.timer,
                    min_u64(after_ms, f->config.write_delay_ms));
}

static void want_due(struct frunset *set, uint64_t now_ns)
{
    for (unsigned i = 0; i < set->n; i++)
        if (due_ns(set->v[i]) <= now_ns)
            frun_want(set->v[i]);
}

static void on_write_timer(struct env_timer *timer)
{
    struct file *f = container_of(timer, struct file, writeback.timer);
    uint64_t now_ns = env_now_ns(f->env);

    want_due(&f->runs.dirty, now_ns);
    want_due(&f->runs.writing, now_ns);
    if (f->writeback.retry_at_ns != 0 && f->writeback.retry_at_ns <= now_ns)
        f->writeback.retry_at_ns = 0; /* the next failure sets it again */
    file_start_write_timer(f);
}

void writeback_init(struct file *f)
{
    list_init(&f->writeback.want);
    f->writeback.retry_ms = RETRY_MS_MIN;
    env_timer_init(&f->writeback.timer, on_write_timer);
    env_timer_init(&f->epoch.timer, on_renew_timer);
    waitlist_init(&f->epoch.waiters);
}

void writeback_free(struct file *f)
{
    env_timer_stop(f->env, &f->writeback.timer);
}
