/*
 * file_flush.c - flush and sync: everything accepted is with the storages and reported to
 * exportd.
 *
 * In:     file_flush(), file_sync(), file_abandon(). Core.
 * Out:    runs are wanted; storcli_sync(); reports.
 * Yours:  how much is made stable as it is written.
 */
#include <errno.h>
#include <limits.h>

#include "storcli/file/file_int.h"

enum { STABLE_RUNS_MAX = 16 }; /* each is a request to each storage */

enum flush_state { FLUSH_BEGIN, FLUSH_WRITE, FLUSH_SYNC, FLUSH_REPORT };

/* The storages' sync and exportd's go side by side: neither makes the other's promise. */
struct flush_fop {
    struct fop op;
    enum flush_state state;
    bool sync, busy;
    bool ahead; /* the time is reported beside the writes */
    int rc;
    uint64_t before_id, end, change, report_no;
};

static void on_synced(void *arg, int rc)
{
    struct flush_fop *s = arg;

    s->busy = false;
    s->rc = rc;
    fop_ready(&s->op);
}

/* Counts the blocks to write. UINT_MAX: some are under way without sync, and need one
 * later. */
static unsigned blocks_to_write(const struct file *f)
{
    unsigned n = 0;

    for (unsigned i = 0; i < f->runs.writing.n; i++) {
        if (f->runs.writing.v[i]->state == FRUN_FLYING && !f->runs.writing.v[i]->sync)
            return UINT_MAX;
        n += (unsigned)(f->runs.writing.v[i]->end - f->runs.writing.v[i]->first);
    }
    for (unsigned i = 0; i < f->runs.dirty.n; i++)
        n += (unsigned)(f->runs.dirty.v[i]->end - f->runs.dirty.v[i]->first);
    return n;
}

/* Writes little data as stable, if it only overwrites and nothing else must be synced:
 * each storage makes it stable as it takes it, in one request instead of two, and the
 * time becomes durable meanwhile. A new size must follow the data, so it goes beside a
 * sync; and for much data one sync at the end costs less. */
static void write_stable(struct flush_fop *s)
{
    struct file *f = s->op.f;

    s->ahead = file_report_early(f, &s->change);
    if (!s->ahead || storcli_file_is_unsynced(f->sf) ||
        f->runs.dirty.n + f->runs.writing.n > STABLE_RUNS_MAX ||
        blocks_to_write(f) > f->runs.blocks)
        return;
    for (unsigned i = 0; i < f->runs.writing.n; i++)
        f->runs.writing.v[i]->sync = true;
    for (unsigned i = 0; i < f->runs.dirty.n; i++)
        f->runs.dirty.v[i]->sync = true;
}

static void start_sync(struct flush_fop *s)
{
    struct file *f = s->op.f;

    s->state = FLUSH_REPORT;
    if (!s->sync || f->inl.place == PLACE_EXPORTD || !storcli_file_is_unsynced(f->sf))
        return;
    s->state = FLUSH_SYNC;
    s->busy = true;
    storcli_sync(f->sf, on_synced, s);
}

static void flush_step(struct fop *op)
{
    struct flush_fop *s = container_of(op, struct flush_fop, op);
    struct file *f = op->f;
    int rc = 0;

    switch (s->state) {
    case FLUSH_BEGIN:
        rc = s->sync ? inline_know(op) : 1; /* to know whether storages must be asked */
        if (rc == 0)
            return;
        if (rc < 0) {
            fop_end(op, rc);
            return;
        }
        rc = 0;
        s->before_id = f->runs.next_id;
        s->end = f->size.now;
        if (s->sync)
            write_stable(s);
        s->state = FLUSH_WRITE;
        /* fall through */
    case FLUSH_WRITE:
        if (file_is_pending(f, 0, UINT64_MAX, s->before_id, op->clock, &rc)) {
            fop_wait(op, &f->runs.waiters);
            return;
        }
        if (rc != 0) {
            fop_end(op, rc);
            return;
        }
        file_is_through(f, s->end);
        if (!s->ahead || !file_changes_only_time(f))
            s->change = f->report.change;
        s->report_no = f->report.no;
        start_sync(s);
        file_report(f, s->change, s->sync, s->report_no);
        /* fall through */
    case FLUSH_SYNC:
        if (s->busy)
            return;
        if (fop_denied(op, s->rc) || fop_moved(op, s->rc)) {
            s->state = FLUSH_WRITE;
            s->rc = 0;
            return;
        }
        s->state = FLUSH_REPORT;
        /* fall through */
    case FLUSH_REPORT:
        rc = file_report(f, s->change, s->sync, s->report_no);
        if (rc == 0) {
            fop_wait(op, &f->report.waiters);
            return;
        }
        fop_end(op, s->rc != 0 ? plain_errno(s->rc) : rc < 0 ? rc : 0);
    }
}

static void start(struct file *f, bool sync, file_done_cb *done, void *arg)
{
    struct flush_fop *s = fop_new(f, sizeof(*s), FOP_FLUSH, flush_step, done, arg);

    s->sync = sync;
    fop_queue(&s->op);
}

void file_flush(struct file *f, file_done_cb *done, void *arg)
{
    start(f, false, done, arg);
}

void file_sync(struct file *f, file_done_cb *done, void *arg)
{
    start(f, true, done, arg);
}

/* ---- giving up data that cannot be written ---- */

enum abandon_state { ABANDON_BEGIN, ABANDON_WRITE, ABANDON_REPORT, ABANDON_REST };

struct abandon_fop {
    struct fop op;
    enum abandon_state state;
    bool at_once; /* data not on its way is not tried */
    int rc;
    uint64_t change, report_no;
};

/* Forgets a truncate that exportd does not know: only we could finish it, but others have
 * used the file since. */
static void forget_cut(struct file *f)
{
    if (!f->trunc.pending || f->trunc.version != 0)
        return;
    trunc_forget(f);
    size_set_unreported(f);
}

/* Returns the list to wait on for requests that end by themselves; NULL: there are
 * none. */
static struct waitlist *rest_of(struct file *f)
{
    if (f->report.busy)
        return &f->report.waiters;
    if (f->inl.busy || f->inl.blocks_sync != BLOCKS_SYNC_NONE)
        return &f->report.waiters;
    if (f->queue.exclusive != NULL)
        return &f->queue.exclusive_waiters;
    return f->epoch.renew_busy ? &f->epoch.waiters : NULL;
}

static void abandon_step(struct fop *op)
{
    struct abandon_fop *g = container_of(op, struct abandon_fop, op);
    struct file *f = op->f;
    struct waitlist *rest;
    int rc = 0;

    switch (g->state) {
    case ABANDON_BEGIN:
        writeback_abandon_begin(f);
        blocks_count_stop(f);
        if (g->at_once && !file_is_clean(f))
            file_lose_unsent(f, -EIO);
        g->state = ABANDON_WRITE;
        /* fall through */
    case ABANDON_WRITE:
        if (file_is_pending(f, 0, UINT64_MAX, UINT64_MAX, op->clock, &rc)) {
            fop_wait(op, &f->runs.waiters);
            return;
        }
        g->rc = rc;
        if (f->runs.dirty.n > 0 || f->runs.writing.n > 0)
            file_lose(f, rc);
        g->change = f->report.change;
        g->report_no = f->report.no;
        g->state = ABANDON_REPORT;
        /* fall through */
    case ABANDON_REPORT:
        rc = g->at_once && !f->report.busy
                 ? -EIO
                 : file_report(f, g->change, false, g->report_no);
        if (rc == 0 || f->report.busy) {
            fop_wait(op, &f->report.waiters);
            return;
        }
        if (rc < 0) {
            file_forget_report(f, rc);
            g->rc = g->rc != 0 ? g->rc : rc;
        }
        g->state = ABANDON_REST;
        /* fall through */
    case ABANDON_REST:
        rest = rest_of(f);
        if (rest != NULL) {
            fop_wait(op, rest);
            return;
        }
        forget_cut(f);
        blocks_count_stop(f);
        file_forget_mtime(f);
        writeback_abandon_end(f);
        fop_end(op, g->rc);
    }
}

static void abandon_start(struct file *f, bool at_once, file_done_cb *done, void *arg)
{
    struct abandon_fop *g = fop_new(f, sizeof(*g), FOP_FLUSH, abandon_step, done, arg);

    g->at_once = at_once;
    fop_queue(&g->op);
}

void file_abandon(struct file *f, file_done_cb *done, void *arg)
{
    abandon_start(f, false, done, arg);
}

void file_lose_all(struct file *f, file_done_cb *done, void *arg)
{
    abandon_start(f, true, done, arg);
}
