/*
 * file_exclusive.c - operations that run alone: truncate, punch, allocate.
 *
 * In:     file_truncate() and its begin and cancel, file_punch(), file_allocate(). Core.
 * Out:    trunc_step(), storcli_mark(), storcli_alloc(), zeros for the edges of a punch.
 * Keeps:  while one of them runs no write is taken in, and only the blocks that it needs
 *         itself are written.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "storcli/file/file_int.h"

struct alone_fop {
    struct fop op;
    unsigned state; /* enum of its kind */
    enum file_answer answer;
    int rc; /* the engine's answer */
    unsigned n_tries;
    uint64_t renew_no, sure_no;
    uint64_t change, report_no;
    struct file_attr attr;
    struct storcli_target target;
    uint64_t offset, end, pos, version;
    uint64_t n_ahead; /* blocks reserved beyond the requested range */
    bool keep_size, is_to_end, finishing, exactly;
};

static void alone_end(struct alone_fop *a, int rc)
{
    file_exclusive_end(a->op.f);
    fop_end(&a->op, rc);
}

static void on_alone_answer(void *arg, int rc)
{
    struct alone_fop *a = arg;

    a->answer = ANSWER_HERE;
    a->rc = rc;
    fop_ready(&a->op);
}

static struct alone_fop *alone_new(struct file *f, void (*step)(struct fop *),
                                   file_done_cb *done, void *arg)
{
    return fop_new(f, sizeof(struct alone_fop), FOP_EXCLUSIVE, step, done, arg);
}

/* ---- a truncate left unfinished by another client ---- */

/* Returns the first wanted run that cannot be written before the truncate is finished. */
static struct frun *wanted_beyond(struct file *f)
{
    LIST_FOREACH(node, &f->writeback.want) {
        struct frun *run = container_of(node, struct frun, link);

        if (frun_is_beyond(run))
            return run;
    }
    return NULL;
}

static void finish_step(struct fop *op)
{
    struct alone_fop *a = container_of(op, struct alone_fop, op);
    int rc = trunc_step(op->f, op);
    struct frun *run;

    if (rc == 0)
        return;
    while (rc < 0 && (run = wanted_beyond(op->f)) != NULL)
        file_failed(run, rc);
    alone_end(a, rc < 0 ? rc : 0);
}

static void on_finished(void *arg, int rc)
{
    (void)arg;
    (void)rc; /* the runs that waited for it report */
}

void file_finish_truncate(struct file *f)
{
    struct alone_fop *a;

    if (f->queue.exclusive != NULL)
        return;
    a = alone_new(f, finish_step, on_finished, NULL);
    fop_start(&a->op);
    trunc_start(f, false);
}

/* Finishes a truncate within an exclusive operation, which cannot wait for another one.
 * 1: no run of ours reaches beyond an unfinished truncate (or need_it and there is none);
 * 0: waits; -errno. */
static int try_finish_first(struct alone_fop *a, bool need_it)
{
    struct file *f = a->op.f;
    bool is_beyond =
        (f->runs.dirty.n > 0 && frun_is_beyond(f->runs.dirty.v[f->runs.dirty.n - 1])) ||
        (f->runs.writing.n > 0 &&
         frun_is_beyond(f->runs.writing.v[f->runs.writing.n - 1]));
    int rc = file_be_sure(&a->op, &a->sure_no);

    if (rc <= 0)
        return rc;
    if (!a->finishing) {
        if (!f->trunc.pending || (!is_beyond && !need_it))
            return 1;
        a->finishing = true;
        trunc_start(f, false);
    }
    rc = trunc_step(f, &a->op);
    a->finishing = rc == 0; /* news of another one may come later */
    return rc;
}

/* Finishes a truncate first. True: go on. False: the op waits, or has ended with an
 * error. */
static bool finish_first(struct alone_fop *a, bool need_it)
{
    int rc = try_finish_first(a, need_it);

    if (rc < 0)
        alone_end(a, rc);
    return rc == 1;
}

/* Moves the data from exportd to storages first. True: go on. False: the op waits, or has
 * ended. */
static bool leave_first(struct alone_fop *a)
{
    int rc = inline_leave_first(&a->op);

    if (rc < 0)
        alone_end(a, rc);
    return rc == 1;
}

/* ---- truncate ---- */

enum { TRUNCATE_DRAIN, TRUNCATE_FINISH };

static void truncate_apply(struct alone_fop *a)
{
    struct file *f = a->op.f;
    uint64_t size = a->attr.size;
    bool storages_know_more =
        f->size.has_data && f->size.acked_end > size && f->inl.place == PLACE_STORAGES;

    trunc_happened(f);
    epoch_is_sure(f); /* about the truncate before: this is exportd's result of both */
    epoch_adopt(f, a->attr.epoch);
    if (a->attr.has_data) {
        size_set_has_data(f, true);
        report_set_data_reported(f, true);
    }
    if (size < f->size.now)
        frun_cut(f, size);
    inline_no_resend(f);
    inline_adopt(f, &a->attr, f->inl.place != PLACE_STORAGES);
    file_forget_beyond(f, size);
    size_truncated(f, size);
    file_forget_mtime(f); /* exportd's, of the truncate, is newer */
    trunc_is(f, &a->attr);
    if (!f->trunc.pending && storages_know_more)
        trunc_is_unknown(f, size);
}

static void truncate_step(struct fop *op)
{
    struct alone_fop *a = container_of(op, struct alone_fop, op);
    struct file *f = op->f;
    int rc;

    switch (a->state) {
    case TRUNCATE_DRAIN:
        if (!file_is_landed(f) || f->report.busy) {
            fop_wait(op, f->report.busy ? &f->report.waiters : &f->runs.waiters);
            return;
        }
        rc = file_take_ref(f, &a->target);
        truncate_apply(a);
        if (rc != 0 || !f->trunc.pending) {
            alone_end(a, rc);
            return;
        }
        trunc_start(f, !a->attr.truncate_is_old);
        a->state = TRUNCATE_FINISH;
        /* fall through */
    case TRUNCATE_FINISH:
        rc = trunc_step(f, op);
        if (rc != 0)
            alone_end(a, rc < 0 ? rc : 0);
    }
}

void file_truncate(struct file *f, const struct storcli_target *target,
                   const struct file_attr *attr, file_done_cb *done, void *arg)
{
    struct alone_fop *a = alone_new(f, truncate_step, done, arg);

    a->attr = *attr;
    a->target = *target;
    if (f->queue.exclusive_held)
        queue_take_hold(&a->op);
    else
        fop_queue(&a->op);
}

/* ---- held for a truncate to come ---- */

enum { HOLD_BEGIN, HOLD_WRITE, HOLD_REPORT, HOLD_QUIET };

static void hold_step(struct fop *op)
{
    struct alone_fop *a = container_of(op, struct alone_fop, op);
    struct file *f = op->f;
    int rc = 0;

    switch (a->state) {
    case HOLD_BEGIN:
        if (!finish_first(a, false))
            return;
        a->state = HOLD_WRITE;
        /* fall through */
    case HOLD_WRITE:
        /* news of another truncate may have come with an epoch */
        if (!finish_first(a, false))
            return;
        queue_let_through(f, 0, UINT64_MAX);
        if (file_is_pending(f, 0, UINT64_MAX, UINT64_MAX, op->clock, &rc)) {
            fop_wait(op, &f->runs.waiters);
            return;
        }
        if (rc != 0) {
            alone_end(a, rc);
            return;
        }
        a->change = f->report.change;
        a->report_no = f->report.no;
        a->state = HOLD_REPORT;
        /* fall through */
    case HOLD_REPORT:
        rc = file_report(f, a->change, false, a->report_no);
        if (rc == 0 || f->report.busy) {
            fop_wait(op, &f->report.waiters);
            return;
        }
        if (rc < 0) {
            alone_end(a, rc);
            return;
        }
        queue_hold(f); /* until truncate or cancel */
        a->state = HOLD_QUIET;
        op->done(op->arg, 0);
        return;
    case HOLD_QUIET:
        assert(!"nobody wakes it");
    }
}

void file_truncate_begin(struct file *f, file_done_cb *done, void *arg)
{
    fop_queue(&alone_new(f, hold_step, done, arg)->op);
}

void file_truncate_cancel(struct file *f)
{
    queue_release(f);
}

void file_truncate_unsure(struct file *f)
{
    if (f->queue.exclusive_held)
        file_truncate_cancel(f);
    file_meta_unsure(f);
}

/* ---- punch ---- */

enum { PUNCH_BEGIN, PUNCH_DRAIN, PUNCH_MARK, PUNCH_EDGES };

/* Computes the whole blocks of the range; beyond the end of the file a part counts as
 * whole. */
static void punched_blocks(const struct alone_fop *a, uint64_t *first, uint64_t *end)
{
    const struct file *f = a->op.f;

    *first = block_past(f, a->offset);
    *end = a->is_to_end ? block_past(f, a->end) : block_of(f, a->end);
}

static void punch_free(struct alone_fop *a)
{
    uint64_t first, end;

    punched_blocks(a, &first, &end);
    blocks_freed(a->op.f, first, end);
}

/* Marks the whole blocks. 1: marked; 0: waits; -errno. */
static int punch_mark(struct alone_fop *a)
{
    struct file *f = a->op.f;
    uint64_t first, end;
    bool is_refused;

    punched_blocks(a, &first, &end);
    if (first >= end)
        return 1;
    if (a->renew_no != 0 && f->epoch.renew_no >= a->renew_no && f->epoch.renew_rc != 0)
        return f->epoch.renew_rc;
    if (a->answer == ANSWER_NONE) {
        if (!file_next_version(f, &a->version)) {
            if (a->renew_no != 0)
                return -EIO;
            a->renew_no = f->epoch.renew_no + 1;
            fop_wait(&a->op, &f->epoch.waiters);
            file_renew(f);
            return 0;
        }
        a->answer = ANSWER_AWAITED;
        storcli_mark(f->sf, a->version, first, end - first, on_alone_answer, a);
        return 0;
    }
    if (a->answer == ANSWER_AWAITED)
        return 0;
    clean_forget_all(f, first, end);
    blocks_unreserved(f, first, end);
    if (a->rc == 0)
        punch_free(a);
    is_refused =
        a->rc == -ESTALE || a->rc == -ROZO_EMOVED || (a->rc == -EACCES && !a->op.denied);
    if (!is_refused || a->n_tries++ >= STALE_TRIES_MAX)
        return a->rc == 0 ? 1 : plain_errno(a->rc);
    if (a->rc == -ROZO_EMOVED)
        file_is_refused(f, a->n_tries);
    a->op.denied |= a->rc == -EACCES;
    a->answer = ANSWER_NONE;
    a->renew_no = f->epoch.renew_no + 1;
    fop_wait(&a->op, &f->epoch.waiters);
    file_renew(f);
    return 0;
}

/* Writes zeros to the partial blocks. 1: taken in; 0: waits; -errno. */
static int punch_edges(struct alone_fop *a)
{
    struct file *f = a->op.f;
    uint64_t first, end;
    int64_t n = 1;

    punched_blocks(a, &first, &end);
    queue_let_through(f, 0, UINT64_MAX); /* the marks are made: later writes are newer */
    while (a->pos < a->end && n > 0) {
        if (first < end && a->pos == block_start(f, first)) {
            a->pos = min_u64(a->end, block_start(f, end));
            continue;
        }
        n = frun_place(f, a->pos,
                       first < end && a->pos < block_start(f, first)
                           ? block_start(f, first)
                           : a->end,
                       NULL, false, &a->op);
        a->pos += n > 0 ? (uint64_t)n : 0;
    }
    return n > 0 ? 1 : (int)n;
}

static void punch_end(struct alone_fop *a, int rc)
{
    struct file *f = a->op.f;

    if (rc > 0) {
        report_touch(f);
        file_changed(f);
    }
    alone_end(a, rc < 0 ? rc : 0);
}

/* Clips the range: bytes that an unfinished truncate will remove need no punching. */
static void punch_clip(struct alone_fop *a)
{
    const struct file *f = a->op.f;
    uint64_t end = f->trunc.pending ? min_u64(f->size.now, f->trunc.size) : f->size.now;

    a->is_to_end = a->end >= end;
    a->end = min_u64(a->end, end);
}

static void punch_step(struct fop *op)
{
    struct alone_fop *a = container_of(op, struct alone_fop, op);
    struct file *f = op->f;
    int rc = 0;

    switch (a->state) {
    case PUNCH_BEGIN:
        if (!finish_first(a, false) || !leave_first(a))
            return;
        /* blocks that have just left exportd may lie beyond it */
        if (!finish_first(a, false))
            return;
        punch_clip(a);
        a->pos = a->offset;
        if (a->offset >= a->end) {
            alone_end(a, 0);
            return;
        }
        runs_end_sequence(f);
        a->state = PUNCH_DRAIN;
        /* fall through */
    case PUNCH_DRAIN:
        if (!finish_first(a, false)) /* a truncate may have appeared meanwhile */
            return;
        queue_let_through(f, block_of(f, a->offset), block_past(f, a->end));
        if (file_is_pending(f, block_of(f, a->offset), block_past(f, a->end), UINT64_MAX,
                            op->clock, &rc)) {
            fop_wait(op, &f->runs.waiters);
            return;
        }
        if (rc != 0 || (!f->size.has_data && blocks_are_none(f))) {
            punch_end(a, rc != 0 ? rc : 1); /* all of it is a hole */
            return;
        }
        a->state = PUNCH_MARK;
        /* fall through */
    case PUNCH_MARK:
        rc = punch_mark(a);
        if (rc == 0)
            return;
        if (rc < 0) {
            punch_end(a, rc);
            return;
        }
        a->state = PUNCH_EDGES;
        /* fall through */
    case PUNCH_EDGES:
        if (!finish_first(a, false))
            return;
        a->end =
            min_u64(a->end, f->size.now); /* cut by another client meanwhile, perhaps */
        rc = punch_edges(a);
        if (rc != 0)
            punch_end(a, rc);
    }
}

void file_punch(struct file *f, uint64_t offset, uint64_t len, file_done_cb *done,
                void *arg)
{
    struct alone_fop *a = alone_new(f, punch_step, done, arg);

    a->offset = offset;
    a->end = offset > UINT64_MAX - len ? UINT64_MAX : offset + len;
    fop_queue(&a->op);
}

/* ---- allocate ---- */

enum { ALLOCATE_BEGIN, ALLOCATE_RESERVE, ALLOCATE_GROW };

/* Returns the number of blocks to reserve beyond `end` if the file is being reserved in
 * small steps: as many as are reserved before `first`. */
static uint64_t blocks_ahead(const struct alone_fop *a, uint64_t first, uint64_t end)
{
    const struct file *f = a->op.f;
    const struct mapped_range *before =
        first == 0 ? NULL : range_map_find(&f->blocks.reserved, first - 1);
    uint64_t max = block_of(f, FILE_DATA_END_MAX) - end;

    if (a->exactly || before == NULL || before->from >= first ||
        end != block_past(f, a->end) ||
        range_map_least(&f->blocks.reserved, end, end + 1) != 0)
        return 0;
    return min_u64(max, min_u64(first - before->from, AHEAD_BLOCKS_MAX));
}

/* Asks the storages to reserve. They may have reserved space whatever they answer:
 * exportd must know that they have something, or it would never be removed. */
static void allocate_ask(struct alone_fop *a, uint64_t first, uint64_t end)
{
    struct file *f = a->op.f;

    a->answer = ANSWER_AWAITED;
    a->n_ahead = blocks_ahead(a, first, end);
    size_set_has_data(f, true);
    if (!f->report.has_data_reported)
        file_changed(f);
    storcli_alloc(f->sf, first, end + a->n_ahead - first, a->n_tries++ > 0,
                  on_alone_answer, a);
}

/* Reserves the range. 1: reserved; 0: waits; -errno. */
static int allocate_reserve(struct alone_fop *a)
{
    struct file *f = a->op.f;
    uint64_t first = block_of(f, a->offset), end = block_past(f, a->end);

    if (a->answer == ANSWER_AWAITED)
        return 0;
    blocks_not_reserved(f, &first, &end);
    if (a->answer == ANSWER_HERE && a->rc == -ENOSPC && a->n_ahead > 0) {
        a->exactly = true;
        a->answer = ANSWER_NONE;
    }
    if (a->answer == ANSWER_NONE && first < end) {
        allocate_ask(a, first, end);
        return 0;
    }
    if (a->answer == ANSWER_NONE)
        return 1;
    a->answer = ANSWER_NONE;
    if (fop_denied(&a->op, a->rc) || fop_moved(&a->op, a->rc))
        return 0;
    if (a->rc == 0)
        blocks_reserved(f, first, end + a->n_ahead);
    return a->rc != 0 ? plain_errno(a->rc) : 1;
}

/* Grows the file. The size is reported like that of a write. */
static void allocate_grow(struct alone_fop *a)
{
    struct file *f = a->op.f;

    blocks_allocated(f, block_of(f, a->offset), block_past(f, a->end));
    if (a->keep_size || a->end <= f->size.now)
        return;
    size_allocated(f, a->end);
    report_touch(f);
    file_changed(f);
}

static void allocate_step(struct fop *op)
{
    struct alone_fop *a = container_of(op, struct alone_fop, op);
    struct file *f = op->f;
    int rc;

    switch (a->state) {
    case ALLOCATE_BEGIN:
        if (a->end > FILE_DATA_END_MAX) {
            alone_end(a, -EFBIG);
            return;
        }
        if (!finish_first(a, !a->keep_size && a->end > f->size.now) || !leave_first(a))
            return;
        a->state = ALLOCATE_RESERVE;
        /* fall through */
    case ALLOCATE_RESERVE:
        rc = allocate_reserve(a);
        if (rc == 0)
            return;
        if (rc < 0) {
            alone_end(a, rc);
            return;
        }
        a->state = ALLOCATE_GROW;
        /* fall through */
    case ALLOCATE_GROW:
        if (!finish_first(a, !a->keep_size && a->end > f->size.now))
            return;
        allocate_grow(a);
        alone_end(a, 0);
    }
}

void file_allocate(struct file *f, uint64_t offset, uint64_t len, bool keep_size,
                   file_done_cb *done, void *arg)
{
    struct alone_fop *a = alone_new(f, allocate_step, done, arg);

    a->offset = offset;
    a->end = offset > UINT64_MAX - len ? UINT64_MAX : offset + len;
    a->keep_size = keep_size;
    fop_queue(&a->op);
}
