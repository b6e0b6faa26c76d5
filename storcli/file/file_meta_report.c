/*
 * file_meta_report.c - reports to exportd: size, that there is data, mtime.
 *
 * In:     file_changed() after each acknowledgement, file_report() from flush, sync,
 *         close. Core.
 * Out:    meta.wrote(), one at a time.
 * Keeps:  a size is reported only when the storages have acknowledged every accepted byte
 *         below it; a flush is answerable for the bytes that were accepted before it.
 */
#include "storcli/file/file_meta_report.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "storcli/file/file_int.h"

static void start_report_timer(struct file *f)
{
    if (f->life == FILE_OPEN && !env_timer_is_running(&f->report.timer))
        env_timer_start(f->env, &f->report.timer, f->config.report_delay_ms);
}

void file_changed(struct file *f)
{
    f->report.change++;
    start_report_timer(f);
}

void report_count_change(struct file *f)
{
    f->report.change++;
}

void report_touch(struct file *f)
{
    f->report.mtime_ns =
        f->meta.clock_ns != NULL ? f->meta.clock_ns(f->meta.arg) : env_wall_ns(f->env);
}

void report_set_data_reported(struct file *f, bool is_reported)
{
    f->report.has_data_reported = is_reported;
}

int64_t file_mtime_ns(const struct file *f)
{
    return f->report.mtime_ns;
}

void file_forget_mtime(struct file *f)
{
    f->report.mtime_ns = 0;
}

void report_time_taken(struct file *f, int64_t mtime_ns)
{
    if (f->report.mtime_ns == mtime_ns)
        f->report.mtime_ns = 0;
}

void report_changes_taken(struct file *f, uint64_t change, bool durable)
{
    f->report.has_data_reported = true;
    f->report.reported_change = max_u64(f->report.reported_change, change);
    if (durable)
        f->report.durable_change = max_u64(f->report.durable_change, change);
}

/* False while exportd may have forgotten something, or does not know where the data
 * are. */
bool file_changes_only_time(const struct file *f)
{
    return f->inl.place == PLACE_STORAGES && f->inl.leave == LEAVE_NONE &&
           f->report.has_data_reported && blocks_are_reported(f) && !f->size.is_unsure &&
           !f->epoch.unsure && !f->trunc.pending &&
           max_u64(f->size.now, f->size.acked_end) <= f->size.meta;
}

void file_acked(struct file *f, uint64_t end)
{
    bool is_reporting = f->report.busy && f->report.sent.mtime_ns == f->report.mtime_ns &&
                        f->report.sent.unsure_no == f->report.unsure_no;
    bool is_reported =
        file_changes_only_time(f) && (f->report.mtime_ns == 0 || is_reporting);

    if (!is_reported || f->report.change != f->report.durable_change ||
        f->size.reported_end != 0)
        size_is_fresh(f, end);
    if (!is_reported)
        file_changed(f);
}

static void send_report(struct file *f, bool sync);

static void reported(struct file *f)
{
    bool is_same = f->report.sent.n_truncates == f->trunc.n;

    size_reported(f, f->report.sent.size, is_same, f->report.sent.sync);
    f->report.has_data_reported |= f->report.sent.has_data;
    report_time_taken(f, f->report.sent.mtime_ns);
    f->report.reported_change = f->report.sent.change;
    if (!blocks_are_reported(f))
        start_report_timer(f);
    if (f->report.sent.left)
        inline_left(f);
    if (f->report.sent.resent)
        inline_no_resend(f);
    if (f->report.sent.sync) {
        f->report.durable_change = f->report.sent.change;
        if (f->size.fresh_end == f->report.sent.fresh_end ||
            (f->size.fresh_end <= f->report.sent.least_size && is_same))
            size_nothing_fresh(f);
    }
}

/* Adopts the size of exportd's answer: the doubt about it has ended. */
static void doubt_ends(struct file *f, const struct file_meta_call *call)
{
    if (!f->size.is_unsure || !call->has_size || f->report.sent.n_truncates != f->trunc.n)
        return;
    size_known(f, call->attr.size);
}

/* Handles a report that came too late: another client, or exportd for it, has cut off
 * those bytes. We were unreachable so long that others were let at the file. The bytes
 * are lost, and the size is invalid. */
static void learn_of_cut(struct file *f, const struct file_meta_call *call)
{
    uint64_t size = call->attr.size;

    file_count_loss(f);
    if (f->report.sent.n_truncates != f->trunc.n)
        return;
    size_cut(f, size);
    size_sure(f);
    clean_drop_all(f);
    file_meta_unsure(f);
}

/* Handles a repeated report: the bytes had been reported in time, and were cut off
 * since. */
static void learn_of_truncate(struct file *f, const struct file_meta_call *call)
{
    if (f->report.sent.n_truncates == f->trunc.n) {
        size_cut(f, call->attr.size);
        clean_drop_all(f);
    }
    f->report.sent.size = 0;
}

void file_report_again(struct file *f)
{
    size_unsure(f);
    f->report.unsure_no++;
    if (f->report.change == f->report.durable_change)
        return;
    inline_report_again(f);
    f->report.has_data_reported = false;
    blocks_report_again(f);
    file_changed(f);
}

static void on_reported(struct file_meta_call *call, int rc)
{
    struct file *f = call->file;
    enum report_next next = f->report.next;

    assert(f->report.busy);
    f->report.busy = false;
    f->report.next = NEXT_NONE;
    blocks_sent(f, rc == 0 && f->report.sent.unsure_no == f->report.unsure_no,
                f->report.sent.sync);
    if (rc == 0 && call->is_cut && f->report.sent.again && !f->size.is_unsure) {
        learn_of_truncate(f, call);
    } else if (rc == 0 && call->is_cut) {
        learn_of_cut(f, call);
        rc = -EIO;
    }
    if (rc == 0 && f->report.sent.unsure_no == f->report.unsure_no) {
        reported(f);
        doubt_ends(f, call);
    } else if (rc == 0) { /* unknown whether exportd kept it */
        start_report_timer(f);
    } else {
        if (rc == -ESTALE && f->report.sent.resent)
            inline_refused(f);
        f->report.failed_no = f->report.no;
        start_report_timer(f);
    }
    f->report.rc = rc;
    if (next != NEXT_NONE)
        send_report(f, next == NEXT_DURABLE);
    waitlist_wake(f, &f->report.waiters);
    file_wake(f);
}

static void send_report(struct file *f, bool sync)
{
    if (f->report.busy || f->queue.exclusive_held || inline_holds_report(f)) {
        if (f->report.next != NEXT_DURABLE)
            f->report.next = sync ? NEXT_DURABLE : NEXT_REPORT;
        return;
    }
    f->report.busy = true;
    f->report.no++;
    f->report.sent.size = size_to_report(f, sync);
    f->report.sent.again = f->report.sent.size <= f->size.reported_end;
    f->report.sent.has_data = f->size.has_data && f->inl.place == PLACE_STORAGES;
    f->report.sent.left = f->inl.leave != LEAVE_NONE && f->report.sent.has_data;
    f->report.sent.mtime_ns = f->report.mtime_ns;
    f->report.sent.sync = sync;
    f->report.sent.change = f->report.change;
    f->report.sent.n_truncates = f->trunc.n;
    f->report.sent.unsure_no = f->report.unsure_no;
    f->report.sent.fresh_end = f->size.fresh_end;
    f->report.sent.least_size = max_u64(f->size.meta, f->report.sent.size);
    f->report.call = (struct file_meta_call){ .done = on_reported, .file = f };
    f->report.sent.resent = inline_resend(f, &f->report.call);
    if (f->report.sent.resent) {
        f->report.sent.has_data = false;
        f->report.sent.size = max_u64(f->report.sent.size, f->inl.len);
    }
    if (!f->report.sent.resent && !blocks_send(f, &f->report.call))
        f->report.sent.change =
            f->report.reported_change; /* a further report for the rest */
    f->meta.wrote(f->meta.arg, &f->report.call, f->report.sent.size, f->size.epoch,
                  f->report.sent.has_data, f->report.sent.mtime_ns, 0, sync);
    free((void *)(uintptr_t)f->report.call.allocated);
    free((void *)(uintptr_t)f->report.call.freed);
}

int file_report(struct file *f, uint64_t change, bool sync, uint64_t since)
{
    if (f->report.lost_no > since)
        return f->writeback.lost_rc;
    if ((sync ? f->report.durable_change : f->report.reported_change) >= change)
        return 1;
    if (f->report.failed_no > since)
        return f->report.rc != 0 ? f->report.rc : -EIO;
    if (!f->report.busy || f->report.sent.change < change ||
        (sync && !f->report.sent.sync))
        send_report(f, sync);
    return 0;
}

bool file_report_early(struct file *f, uint64_t *change)
{
    if (!file_changes_only_time(f))
        return false;
    if (f->report.mtime_ns != 0)
        file_changed(f);
    *change = f->report.change;
    file_report(f, *change, true, f->report.no);
    return true;
}

void file_report_failed(struct file *f, int rc)
{
    f->report.failed_no = ++f->report.no;
    f->report.rc = rc;
    f->report.next = NEXT_NONE;
    start_report_timer(f);
    waitlist_wake(f, &f->report.waiters);
}

void file_forget_report(struct file *f, int rc)
{
    assert(!f->report.busy);
    inline_lose(f);
    blocks_lose(f);
    file_lost_for(f, rc);
    if (f->size.acked_end > f->size.meta)
        size_set_unreported(f);
    file_forget_beyond(f, f->size.meta);
    f->report.mtime_ns = 0;
    f->report.lost_no = f->report.no;
    f->report.reported_change = f->report.change;
    file_size_recount(f);
    clean_forget_all(f, block_of(f, f->size.now), UINT64_MAX);
}

void file_report_released(struct file *f)
{
    enum report_next next = f->report.next;

    if (next == NEXT_NONE || f->report.busy || f->queue.exclusive_held)
        return;
    f->report.next = NEXT_NONE;
    send_report(f, next == NEXT_DURABLE);
}

static void on_report_timer(struct env_timer *timer)
{
    struct file *f = container_of(timer, struct file, report.timer);

    if (f->report.change != f->report.reported_change)
        send_report(f, false);
}

void report_init(struct file *f)
{
    waitlist_init(&f->report.waiters);
    env_timer_init(&f->report.timer, on_report_timer);
}

void report_free(struct file *f)
{
    env_timer_stop(f->env, &f->report.timer);
}
