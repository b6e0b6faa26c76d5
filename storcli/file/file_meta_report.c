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

/* False while exportd may have forgotten something, or does not know where the data
 * are. */
bool file_changes_only_time(const struct file *f)
{
    return f->inl.place == PLACE_STORAGES && f->inl.leave == LEAVE_NONE &&
           f->has_data_told && blocks_are_told(f) && !f->size.in_doubt && !f->unsure &&
           !f->trunc.pending && max_u64(f->size.now, f->size.acked_end) <= f->size.meta;
}

void file_acked(struct file *f, uint64_t end)
{
    bool is_telling = f->report_busy && f->report.mtime_ns == f->mtime_ns &&
                      f->report.doubt_no == f->doubt_no;
    bool is_told = file_changes_only_time(f) && (f->mtime_ns == 0 || is_telling);

    if (!is_told || f->change != f->durable_change || f->size.told_end != 0)
        size_is_fresh(f, end);
    if (!is_told)
        file_changed(f);
}

static void send_report(struct file *f, bool sync);

static void reported(struct file *f)
{
    bool is_same = f->report.n_truncates == f->trunc.n;

    size_reported(f, f->report.size, is_same, f->report.sync);
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
        if (f->size.fresh_end == f->report.fresh_end ||
            (f->size.fresh_end <= f->report.least_size && is_same))
            size_nothing_fresh(f);
    }
}

/* Adopts the size of exportd's answer: the doubt about it has ended. */
static void doubt_ends(struct file *f, const struct file_meta_call *call)
{
    if (!f->size.in_doubt || !call->has_size || f->report.n_truncates != f->trunc.n)
        return;
    size_known(f, call->attr.size);
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
    size_cut(f, size);
    size_doubt_ends(f);
    clean_drop_all(f);
    file_doubt(f);
}

/* Handles a repeated report: the bytes had been reported in time, and were cut off
 * since. */
static void learn_of_truncate(struct file *f, const struct file_meta_call *call)
{
    if (f->report.n_truncates == f->trunc.n) {
        size_cut(f, call->attr.size);
        clean_drop_all(f);
    }
    f->report.size = 0;
}

void file_tell_again(struct file *f)
{
    size_doubt(f);
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
    if (rc == 0 && call->is_cut && f->report.again && !f->size.in_doubt) {
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
    f->report.again = f->report.size <= f->size.told_end;
    f->report.has_data = f->size.has_data && f->inl.place == PLACE_STORAGES;
    f->report.left = f->inl.leave != LEAVE_NONE && f->report.has_data;
    f->report.mtime_ns = f->mtime_ns;
    f->report.sync = sync;
    f->report.change = f->change;
    f->report.n_truncates = f->trunc.n;
    f->report.doubt_no = f->doubt_no;
    f->report.fresh_end = f->size.fresh_end;
    f->report.least_size = max_u64(f->size.meta, f->report.size);
    f->report_call = (struct file_meta_call){ .done = on_reported, .file = f };
    f->report.resent = inline_resend(f, &f->report_call);
    if (f->report.resent) {
        f->report.has_data = false;
        f->report.size = max_u64(f->report.size, f->inl.len);
    }
    if (!f->report.resent && !blocks_send(f, &f->report_call))
        f->report.change = f->reported_change; /* a further report for the rest */
    f->meta.wrote(f->meta.arg, &f->report_call, f->report.size, f->size.epoch,
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
    if (f->size.acked_end > f->size.meta)
        size_set_untold(f);
    file_forget_beyond(f, f->size.meta);
    f->mtime_ns = 0;
    f->report_lost_no = f->report_no;
    f->lost_rc = rc;
    f->reported_change = f->change;
    file_size_recount(f);
    clean_forget_all(f, block_of(f, f->size.now), UINT64_MAX);
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
