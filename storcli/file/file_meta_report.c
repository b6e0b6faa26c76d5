/*
 * file_meta_report.c - reports to exportd: size, that there is data, mtime.
 *
 * In:     file_changed() after each acknowledgement, file_report() from flush, sync,
 *         close. Core.
 * Out:    meta.wrote(), one at a time.
 * Keeps:  a size is reported only when the storages have acknowledged every accepted byte
 *         below it; a flush is answerable for the bytes that were accepted before it.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "storcli/file/file_int.h"

static uint64_t set_unacked(const struct file *f, const struct frunset *set,
                            uint64_t size)
{
    for (unsigned i = frunset_index(set, block_of(f, f->meta_size)); i < set->n; i++)
        if (set->v[i]->hi > f->meta_size)
            size = min_u64(size, max_u64(set->v[i]->lo, f->meta_size));
    return size;
}

/* Returns the largest size that may be reported. */
static uint64_t reportable_size(const struct file *f)
{
    uint64_t size = max_u64(f->meta_size, f->acked_end);

    size = set_unacked(f, &f->writing, set_unacked(f, &f->dirty, size));
    return max_u64(size, min_u64(f->through_end, f->acked_end));
}

static void start_report_timer(struct file *f)
{
    if (!f->closing && !env_timer_is_running(&f->report_timer))
        env_timer_start(f->env, &f->report_timer, f->config.report_delay_ms);
}

void file_changed(struct file *f)
{
    f->change++;
    start_report_timer(f);
}

void file_is_through(struct file *f, uint64_t end)
{
    if (end <= f->through_end)
        return;
    f->through_end = end;
    if (end > f->meta_size) /* an earlier report may have had less */
        file_changed(f);
}

/* False while exportd may have forgotten something, or does not know where the data
 * are. */
bool file_changes_only_time(const struct file *f)
{
    return f->inl.place == PLACE_STORAGES && f->inl.leave == LEAVE_NONE &&
           f->has_data_told && blocks_are_told(f) && !f->in_doubt && !f->unsure &&
           !f->trunc.pending && max_u64(f->size, f->acked_end) <= f->meta_size;
}

void file_acked(struct file *f, uint64_t end)
{
    bool is_telling = f->report_busy && f->report.mtime_ns == f->mtime_ns &&
                      f->report.doubt_no == f->doubt_no;
    bool is_told = file_changes_only_time(f) && (f->mtime_ns == 0 || is_telling);

    if (!is_told || f->change != f->durable_change || f->told_end != 0)
        f->fresh_end = max_u64(f->fresh_end, end);
    if (!is_told)
        file_changed(f);
}

static void send_report(struct file *f, bool sync);

static void reported(struct file *f)
{
    if (f->report.n_truncates == f->trunc.n)
        f->meta_size = max_u64(f->meta_size, f->report.size);
    f->has_data_told |= f->report.has_data;
    if (f->mtime_ns == f->report.mtime_ns)
        f->mtime_ns = 0;
    f->reported_change = f->report.change;
    if (!blocks_are_told(f))
        start_report_timer(f);
    if (f->report.left)
        inline_left(f);
    if (f->report.resent)
        inline_no_resend(f);
    if (f->report.sync) {
        f->durable_change = f->report.change;
        f->told_end = 0;
        if (f->fresh_end == f->report.fresh_end ||
            (f->fresh_end <= f->report.least_size && f->report.n_truncates == f->trunc.n))
            f->fresh_end = 0;
    } else {
        f->told_end = max_u64(f->told_end, f->report.size);
    }
}

/* Adopts the size of exportd's answer: the doubt about it has ended. */
static void doubt_ends(struct file *f, const struct file_meta_call *call)
{
    if (!f->in_doubt || !call->has_size || f->report.n_truncates != f->trunc.n)
        return;
    f->in_doubt = false;
    if (call->attr.size == f->meta_size)
        return;
    f->meta_size = call->attr.size;
    file_size_recount(f);
    clean_drop_all(f);
}

/* Handles a report that came too late: another client, or exportd for it, has cut off
 * those bytes. We were unreachable so long that others were let at the file. The bytes
 * are lost, and the size is invalid. */
static void learn_of_cut(struct file *f, const struct file_meta_call *call)
{
    uint64_t size = call->attr.size;

    f->n_losses++;
    if (f->report.n_truncates != f->trunc.n)
        return;
    f->meta_size = size;
    file_forget_beyond(f, size);
    f->in_doubt = false;
    file_size_recount(f);
    clean_drop_all(f);
    file_doubt(f);
}

/* Handles a repeated report: the bytes had been reported in time, and were cut off
 * since. */
static void learn_of_truncate(struct file *f, const struct file_meta_call *call)
{
    if (f->report.n_truncates == f->trunc.n) {
        f->meta_size = call->attr.size;
        file_forget_beyond(f, f->meta_size);
        file_size_recount(f);
        clean_drop_all(f);
    }
    f->report.size = 0;
}

void file_tell_again(struct file *f)
{
    f->in_doubt = true;
    f->doubt_no++;
    if (f->change == f->durable_change)
        return;
    inline_tell_again(f);
    f->has_data_told = false;
    blocks_tell_again(f);
    file_changed(f);
}

static void on_reported(struct file_meta_call *call, int rc)
{
    struct file *f = call->file;
    bool again = f->report_again, sync = f->report_again_sync;

    assert(f->report_busy);
    f->report_busy = f->report_again = f->report_again_sync = false;
    blocks_sent(f, rc == 0 && f->report.doubt_no == f->doubt_no, f->report.sync);
    if (rc == 0 && call->is_cut && f->report.again && !f->in_doubt) {
        learn_of_truncate(f, call);
    } else if (rc == 0 && call->is_cut) {
        learn_of_cut(f, call);
        rc = -EIO;
    }
    if (rc == 0 && f->report.doubt_no == f->doubt_no) {
        reported(f);
        doubt_ends(f, call);
    } else if (rc == 0) { /* unknown whether exportd kept it */
        start_report_timer(f);
    } else {
        if (rc == -ESTALE && f->report.resent)
            inline_refused(f);
        f->report_failed_no = f->report_no;
        start_report_timer(f);
    }
    f->report_rc = rc;
    if (again)
        send_report(f, sync);
    waitlist_wake(f, &f->report_waiters);
    file_wake(f);
}

/* Limits a size reported again with a later epoch than a pending truncate's: exportd
 * would take a larger one as the end of that truncate. It knows the size after the
 * truncate from the client that asked for it. */
static uint64_t below_truncate(const struct file *f, uint64_t size)
{
    bool is_later = f->trunc.pending && f->size_epoch > version_epoch(f->trunc.version);

    return is_later ? min_u64(size, f->trunc.size) : size;
}

/* Returns the size for a report. With sync, one reported before and not known to be
 * durable is reported again, as exportd's power may have failed meanwhile; unless another
 * client has cut the file since. */
static uint64_t size_to_tell(const struct file *f, bool sync)
{
    uint64_t size = reportable_size(f);

    if (size > f->meta_size)
        return size;
    if (f->in_doubt)
        return below_truncate(f, min_u64(size, max_u64(f->told_end, f->fresh_end)));
    return sync && f->told_end <= f->meta_size ? below_truncate(f, f->told_end) : 0;
}

static void send_report(struct file *f, bool sync)
{
    if (f->report_busy || f->queue.exclusive_held || inline_holds_report(f)) {
        f->report_again = true;
        f->report_again_sync |= sync;
        return;
    }
    f->report_busy = true;
    f->report_no++;
    f->report.size = size_to_tell(f, sync);
    f->report.again = f->report.size <= f->told_end;
    f->report.has_data = f->has_data && f->inl.place == PLACE_STORAGES;
    f->report.left = f->inl.leave != LEAVE_NONE && f->report.has_data;
    f->report.mtime_ns = f->mtime_ns;
    f->report.sync = sync;
    f->report.change = f->change;
    f->report.n_truncates = f->trunc.n;
    f->report.doubt_no = f->doubt_no;
    f->report.fresh_end = f->fresh_end;
    f->report.least_size = max_u64(f->meta_size, f->report.size);
    f->report_call = (struct file_meta_call){ .done = on_reported, .file = f };
    f->report.resent = inline_resend(f, &f->report_call);
    if (f->report.resent) {
        f->report.has_data = false;
        f->report.size = max_u64(f->report.size, f->inl.len);
    }
    if (!f->report.resent && !blocks_send(f, &f->report_call))
        f->report.change = f->reported_change; /* a further report for the rest */
    f->meta.wrote(f->meta.arg, &f->report_call, f->report.size, f->size_epoch,
                  f->report.has_data, f->report.mtime_ns, 0, sync);
    free((void *)(uintptr_t)f->report_call.allocated);
    free((void *)(uintptr_t)f->report_call.freed);
}

int file_report(struct file *f, uint64_t change, bool sync, uint64_t since)
{
    if (f->report_lost_no > since)
        return f->lost_rc;
    if ((sync ? f->durable_change : f->reported_change) >= change)
        return 1;
    if (f->report_failed_no > since)
        return f->report_rc != 0 ? f->report_rc : -EIO;
    if (!f->report_busy || f->report.change < change || (sync && !f->report.sync))
        send_report(f, sync);
    return 0;
}

bool file_tell_ahead(struct file *f, uint64_t *change)
{
    if (!file_changes_only_time(f))
        return false;
    if (f->mtime_ns != 0)
        file_changed(f);
    *change = f->change;
    file_report(f, *change, true, f->report_no);
    return true;
}

void file_report_failed(struct file *f, int rc)
{
    f->report_failed_no = ++f->report_no;
    f->report_rc = rc;
    f->report_again = f->report_again_sync = false;
    start_report_timer(f);
    waitlist_wake(f, &f->report_waiters);
}

void file_forget_report(struct file *f, int rc)
{
    assert(!f->report_busy);
    inline_lose(f);
    blocks_lose(f);
    f->n_losses++;
    f->is_untold |= f->acked_end > f->meta_size;
    file_forget_beyond(f, f->meta_size);
    f->mtime_ns = 0;
    f->report_lost_no = f->report_no;
    f->lost_rc = rc;
    f->reported_change = f->change;
    file_size_recount(f);
    clean_forget_all(f, block_of(f, f->size), UINT64_MAX);
}

void file_report_released(struct file *f)
{
    bool sync = f->report_again_sync;

    if (!f->report_again || f->report_busy || f->queue.exclusive_held)
        return;
    f->report_again = f->report_again_sync = false;
    send_report(f, sync);
}

void file_on_report_timer(struct env_timer *timer)
{
    struct file *f = container_of(timer, struct file, report_timer);

    if (f->change != f->reported_change)
        send_report(f, false);
}
