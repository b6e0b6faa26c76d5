/*
 * file_write.c - taking in writes: into dirty memory, or straight from the caller's.
 *
 * In:     file_write(). Core.
 * Out:    frun_place(), frun_fly_direct(); an unfinished truncate is finished before
 *         growing.
 * Keeps:  one write is taken in at a time, in order of arrival; it waits for room there.
 */
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>

#include "storcli/file/file_int.h"

enum write_state {
    WRITE_BEGIN,
    WRITE_FINISH, /* exclusive: an unfinished truncate first */
    WRITE_TAKE,   /* piece by piece; waits for room, fills, older runs below */
    WRITE_WAIT,   /* SYNC, THROUGH: until the storages have it */
    WRITE_REPORT, /* SYNC: until exportd knows, durably */
};

struct write_fop {
    struct fop op;
    enum write_state state;
    unsigned flags;
    uint64_t offset, pos, end;
    uint64_t direct_from, direct_to; /* bytes that go straight from the caller's memory */
    unsigned n_direct;               /* pieces of that still flying */
    int rc;                          /* the first failure */
    bool ahead;                      /* the time is reported beside the writes */
    uint64_t before_id, change, report_no, sure_no;
    unsigned n_iov;
    struct iovec iov[];
};

/* Returns the caller's byte at pos, and how many follow it in one piece. */
static const uint8_t *source_at(const struct write_fop *w, uint64_t pos, uint64_t *len)
{
    uint64_t skip = pos - w->offset;
    unsigned i = 0;

    while (skip >= w->iov[i].iov_len)
        skip -= w->iov[i++].iov_len;
    *len = w->iov[i].iov_len - skip;
    return (const uint8_t *)w->iov[i].iov_base + skip;
}

/* Chooses the whole blocks in one piece of the caller's memory: they need no copy if the
 * caller waits for the storages anyway. */
static void choose_direct(struct write_fop *w)
{
    struct file *f = w->op.f;
    uint64_t from = block_start(f, block_past(f, w->offset));
    uint64_t to = block_start(f, block_of(f, w->end)), len;

    if (!pool_make_room(f->pool, 1)) /* other files have it all: add nothing */
        w->flags |= FILE_WRITE_THROUGH;
    w->direct_from = w->direct_to = w->end;
    if ((w->flags & (FILE_WRITE_SYNC | FILE_WRITE_THROUGH)) == 0 || from >= to ||
        f->inl.place != PLACE_STORAGES || f->inl.leave == LEAVE_WRITING)
        return;
    source_at(w, from, &len);
    if (len < to - from)
        return;
    w->direct_from = from;
    w->direct_to = to;
}

/* Wants runs when more than half of the dirty limit is used: all but the last; below,
 * runs may gather more. */
static void keep_flowing(struct file *f, uint64_t end)
{
    if (f->runs.bytes * 2 <= f->config.write_behind_max)
        return;
    for (unsigned i = 0; i < f->runs.dirty.n; i++)
        if (f->runs.dirty.v[i]->failed_clock == 0 &&
            (block_of(f, end - 1) < f->runs.dirty.v[i]->first ||
             block_of(f, end - 1) >= f->runs.dirty.v[i]->end))
            frun_want(f->runs.dirty.v[i]);
}

static void write_take_end(struct write_fop *w)
{
    struct file *f = w->op.f;

    if (w->pos > w->offset)
        keep_flowing(f, w->pos);
    runs_wrote(f, w->offset, w->pos);
    w->before_id = f->runs.next_id;
    w->state = WRITE_WAIT;
    queue_accepted(&w->op);
}

/* Checks the dirty limit. 1: there is room; 0: waits for it; -errno: the present data
 * cannot be written. */
static int wait_for_room(struct write_fop *w)
{
    struct file *f = w->op.f;
    bool full = f->runs.bytes + f->bs > f->config.write_behind_max ||
                !pool_make_room(f->pool, f->bs);
    int rc = 0;

    if (!full || f->runs.bytes == 0)
        return 1;
    file_is_pending(f, 0, UINT64_MAX, UINT64_MAX, w->op.clock, &rc);
    if (rc == 0)
        fop_wait(&w->op, &f->runs.waiters);
    return rc;
}

/* Takes in a piece by copy. 1: something was taken in; 0: waits; -errno. */
static int take_copy(struct write_fop *w)
{
    struct file *f = w->op.f;
    uint64_t len, to = w->pos < w->direct_from ? w->direct_from : w->end;
    const uint8_t *src = source_at(w, w->pos, &len);
    bool waits = (w->flags & (FILE_WRITE_SYNC | FILE_WRITE_THROUGH)) != 0;
    int rc = wait_for_room(w);
    int64_t n;

    if (rc <= 0)
        return rc;
    n = frun_place(f, w->pos, min_u64(to, w->pos + len), src,
                   (w->flags & FILE_WRITE_SYNC) != 0, &w->op);
    if (n <= 0)
        return (int)n;
    if (waits)
        file_is_pending(f, block_of(f, w->pos), block_past(f, w->pos + (uint64_t)n),
                        UINT64_MAX, w->op.clock, &rc);
    w->pos += (uint64_t)n;
    return 1;
}

static int take_direct(struct write_fop *w)
{
    struct file *f = w->op.f;
    uint64_t first = block_of(f, w->pos), len;
    uint64_t end = min_u64(first - first % f->runs.blocks + f->runs.blocks,
                           block_of(f, w->direct_to));
    const uint8_t *src = source_at(w, w->pos, &len);
    int rc = 0;

    if (f->queue.exclusive != NULL) {
        fop_wait(&w->op, &f->queue.exclusive_waiters);
        return 0;
    }
    if (f->trunc.pending && end > block_past(f, f->trunc.size))
        return -EIO; /* cut by another client at this moment: order unknown */
    if (file_is_pending(f, first, end, UINT64_MAX, w->op.clock, &rc) && rc == 0) {
        fop_wait(&w->op, &f->runs.waiters);
        return 0;
    }
    if (rc == 0)
        rc = frun_fly_direct(f, w, first, end, src, (w->flags & FILE_WRITE_SYNC) != 0);
    if (rc != 0)
        return rc;
    w->n_direct++;
    w->pos = block_start(f, end);
    return 1;
}

static bool write_take(struct write_fop *w)
{
    int rc = 1;

    while (w->pos < w->end && rc > 0)
        rc = w->pos >= w->direct_from && w->pos < w->direct_to ? take_direct(w)
                                                               : take_copy(w);
    if (rc == 0)
        return false;
    if (rc < 0)
        w->rc = rc;
    write_take_end(w);
    return true;
}

static int write_begin(struct write_fop *w)
{
    struct file *f = w->op.f;
    uint64_t len = w->end;

    if ((w->flags & FILE_WRITE_APPEND) != 0)
        w->offset = f->size.now;
    if (len > FILE_DATA_END_MAX || w->offset > FILE_DATA_END_MAX - len)
        return -EFBIG;
    w->pos = w->offset;
    w->end = w->offset + len;
    inline_expect(f, w->end);
    choose_direct(w);
    if (len == 0 || !f->trunc.pending || w->end <= f->trunc.size) {
        w->state = WRITE_TAKE;
        return 0;
    }
    queue_run_alone(&w->op); /* free: this write is being taken in */
    trunc_start(f, false);
    w->state = WRITE_FINISH;
    return 0;
}

static void write_take_start(struct write_fop *w)
{
    struct file *f = w->op.f;

    runs_write_begins(f, w->offset);
    if (w->end > w->offset)
        report_touch(f);
    w->state = WRITE_TAKE;
}

static void write_end(struct write_fop *w)
{
    if (w->op.f->queue.accepting == &w->op)
        queue_accepted(&w->op);
    fop_end(&w->op, w->rc);
}

/* Returns the start of the range to wait for: a size report promises all bytes below it,
 * too. */
static uint64_t write_waits_from(const struct write_fop *w)
{
    const struct file *f = w->op.f;

    if ((w->flags & FILE_WRITE_SYNC) != 0 && w->pos > f->size.meta)
        return min_u64(w->offset, f->size.meta);
    return w->offset;
}

/* Returns true when all of it, and all older bytes in its blocks, is with the storages,
 * or failed. */
static bool write_is_through(struct write_fop *w)
{
    struct file *f = w->op.f;

    if ((w->flags & (FILE_WRITE_SYNC | FILE_WRITE_THROUGH)) == 0 || w->pos == w->offset)
        return w->n_direct == 0;
    if (file_is_pending(f, block_of(f, write_waits_from(w)), block_past(f, w->pos),
                        w->before_id, w->op.clock, &w->rc)) {
        fop_wait(&w->op, &f->runs.waiters);
        return false;
    }
    return w->n_direct == 0; /* the last one wakes this op */
}

static void write_step(struct fop *op)
{
    struct write_fop *w = container_of(op, struct write_fop, op);
    struct file *f = op->f;
    int rc;

    switch (w->state) {
    case WRITE_BEGIN:
        if (f->queue.exclusive != NULL) { /* began in the same turn */
            fop_wait(op, &f->queue.exclusive_waiters);
            return;
        }
        rc = file_be_sure(op, &w->sure_no);
        if (rc == 0)
            return;
        w->rc = rc < 0 ? rc : write_begin(w);
        if (w->rc != 0) {
            write_end(w);
            return;
        }
        /* fall through */
    case WRITE_FINISH:
        rc = w->state == WRITE_FINISH ? trunc_step(f, op) : 1;
        if (rc == 0)
            return;
        if (w->state == WRITE_FINISH)
            file_exclusive_end(f);
        if (rc < 0) {
            w->rc = rc;
            write_end(w);
            return;
        }
        write_take_start(w);
        /* fall through */
    case WRITE_TAKE:
        if (!write_take(w))
            return;
        if ((w->flags & FILE_WRITE_SYNC) != 0 && w->rc == 0 && w->pos > w->offset)
            w->ahead = file_report_early(f, &w->change);
        /* fall through */
    case WRITE_WAIT:
        if (!write_is_through(w))
            return;
        if (w->rc != 0 || (w->flags & FILE_WRITE_SYNC) == 0 || w->pos == w->offset) {
            write_end(w);
            return;
        }
        file_is_through(f, w->pos);
        if (!w->ahead || !file_changes_only_time(f))
            w->change = f->report.change;
        w->report_no = f->report.no;
        w->state = WRITE_REPORT;
        /* fall through */
    case WRITE_REPORT:
        rc = file_report(f, w->change, true, w->report_no);
        if (rc == 0) {
            fop_wait(op, &f->report.waiters);
            return;
        }
        w->rc = rc < 0 ? rc : 0;
        write_end(w);
    }
}

void write_on_direct(struct write_fop *w, int rc)
{
    w->n_direct--;
    if (w->rc == 0)
        w->rc = rc;
    if (w->state == WRITE_WAIT && w->n_direct == 0)
        fop_ready(&w->op);
}

void file_write(struct file *f, uint64_t offset, const struct iovec *iov, unsigned n_iov,
                unsigned flags, file_done_cb *done, void *arg)
{
    struct write_fop *w = fop_new(f, sizeof(*w) + n_iov * sizeof(struct iovec), FOP_WRITE,
                                  write_step, done, arg);

    for (unsigned i = 0; i < n_iov; i++) {
        w->iov[i] = iov[i];
        w->end += iov[i].iov_len; /* the length, until it begins */
    }
    w->n_iov = n_iov;
    w->offset = offset;
    w->flags = flags;
    fop_queue(&w->op);
}
