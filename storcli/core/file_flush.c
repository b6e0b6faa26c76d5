/*
 * file_flush.c - flush and sync: everything accepted is with the storages and told to exportd.
 *
 * In:     file_flush(), file_sync(). Core.
 * Out:    runs are wanted; storcli_sync(); reports.
 */
#include <errno.h>

#include "storcli/core/file_int.h"

enum flush_state { FLUSH_BEGIN, FLUSH_WRITE, FLUSH_SYNC, FLUSH_TELL };

/* The storages' sync and exportd's go side by side: neither makes the other's promise. */
struct flush_fop {
    struct fop op;
    enum flush_state state;
    bool sync, busy;
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

static void start_sync(struct flush_fop *s)
{
    struct file *f = s->op.f;

    s->state = FLUSH_TELL;
    if (!s->sync || !storcli_file_is_unsynced(f->sf))
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
        s->before_id = f->next_id;
        s->end = f->size;
        s->state = FLUSH_WRITE;
        /* fall through */
    case FLUSH_WRITE:
        if (file_is_pending(f, 0, UINT64_MAX, s->before_id, op->clock, &rc)) {
            fop_wait(op, &f->run_waiters);
            return;
        }
        if (rc != 0) {
            fop_end(op, rc);
            return;
        }
        file_is_through(f, s->end);
        s->change = f->change;
        s->report_no = f->report_no;
        start_sync(s);
        file_report(f, s->change, s->sync, s->report_no);
        /* fall through */
    case FLUSH_SYNC:
        if (s->busy)
            return;
        if (fop_denied(op, s->rc)) {
            s->state = FLUSH_WRITE;
            s->rc = 0;
            return;
        }
        s->state = FLUSH_TELL;
        /* fall through */
    case FLUSH_TELL:
        rc = file_report(f, s->change, s->sync, s->report_no);
        if (rc == 0) {
            fop_wait(op, &f->report_waiters);
            return;
        }
        fop_end(op, s->rc != 0 ? s->rc : rc < 0 ? rc : 0);
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
