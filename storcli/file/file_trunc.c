/*
 * file_trunc.c - finishes a truncate on the storages: our own, or one whose client died.
 *
 * In:     trunc_start(), then trunc_step() by the exclusive operation. Core.
 * Out:    storcli_mark(), the last partial block written short, meta.truncated().
 * Keeps:  the truncate stays pending until exportd knows that it is finished; until then
 *         nothing makes the file longer.
 */
#include "storcli/file/file_trunc.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "storcli/file/file_int.h"

/* ---- the truncate that is pending ---- */

void trunc_is(struct file *f, const struct file_attr *attr)
{
    f->trunc.pending = attr->truncate_pending;
    f->trunc.size = attr->truncate_size;
    f->trunc.version = attr->truncate_version;
}

void trunc_is_unknown(struct file *f, uint64_t size)
{
    f->trunc.pending = true;
    f->trunc.size = size;
    f->trunc.version = 0;
}

void trunc_adopt(struct file *f, const struct file_attr *attr)
{
    if (f->trunc.state != TRUNC_IDLE || (f->trunc.pending && f->trunc.version == 0))
        return; /* exportd cannot say "finished" of a truncate that it does not know */
    if (attr->truncate_pending && attr->truncate_version > f->trunc.version &&
        f->inl.place == PLACE_STORAGES)
        frun_forget_beyond(f, attr->truncate_size);
    trunc_is(f, attr);
}

void trunc_happened(struct file *f)
{
    f->trunc.n++;
}

void trunc_forget(struct file *f)
{
    f->trunc.pending = false;
}

/* ---- its steps ---- */

static void on_trunc_answer(void *arg, int rc)
{
    struct file *f = arg;

    f->trunc.answer = ANSWER_HERE;
    f->trunc.rc = rc;
    fop_ready(f->queue.exclusive);
}

static void on_truncated(struct file_meta_call *call, int rc)
{
    on_trunc_answer(call->file, rc);
}

static void on_looked(struct fetch *fetch, void *arg)
{
    struct file *f = arg;

    f->trunc.look = fetch;
    on_trunc_answer(f, fetch->rc);
}

static bool ask_begin(struct file_trunc *t)
{
    if (t->answer != ANSWER_NONE)
        return false;
    t->answer = ANSWER_AWAITED;
    return true;
}

static void next_state(struct file_trunc *t, enum trunc_state state)
{
    t->state = state;
    t->answer = ANSWER_NONE;
    t->rc = 0;
}

static void need_renewal(struct file *f, struct fop *op)
{
    next_state(&f->trunc, TRUNC_EPOCH);
    f->trunc.answer = ANSWER_AWAITED;
    fop_wait(op, &f->epoch.waiters);
    file_renew(f);
}

/* Looks at exportd's answer with a fresh epoch: is the truncate still pending, and
 * unchanged? 1: it is finished; 0: go on; -errno. */
static int look_at_renewal(struct file *f)
{
    const struct file_attr *attr = &f->epoch.call.attr;
    struct file_trunc *t = &f->trunc;

    if (f->epoch.renew_rc != 0)
        return f->epoch.renew_rc;
    if (f->trunc.version == 0) /* exportd does not know of it */
        return 0;
    if (!attr->truncate_pending) {
        trunc_forget(f);
        return 1;
    }
    if (attr->truncate_version != t->version) {
        trunc_is(f, attr);
        t->mark = MARK_AS_ACCEPTED;
    }
    if (t->mark == MARK_REFUSED)
        t->mark = MARK_BELOW;
    return 0;
}

/* Waits for a usable epoch. 1: epoch is good; 0: waits; 2: another client has finished
 * the truncate; -errno. */
static int step_epoch(struct file *f, struct fop *op)
{
    struct file_trunc *t = &f->trunc;
    bool renewed = t->answer != ANSWER_NONE;
    int rc = renewed ? look_at_renewal(f) : 0;

    if (rc != 0)
        return rc > 0 ? 2 : rc;
    if (f->epoch.now != 0 && f->epoch.now >= version_epoch(f->trunc.version) &&
        f->epoch.sequence < UINT32_MAX - 2)
        return 1;
    if (renewed) /* a fresh epoch below an older one */
        return -EIO;
    need_renewal(f, op);
    return 0;
}

/* Refused for its version, or for the first time for its capability. */
static bool may_try_again(struct file *f, struct file_trunc *t)
{
    if (t->rc == -EACCES && !t->denied)
        return t->denied = true;
    if (t->rc == -ROZO_EMOVED)
        file_is_refused(f, t->n_tries + 1);
    return (t->rc == -ESTALE || t->rc == -ROZO_EMOVED) && t->n_tries++ < STALE_TRIES_MAX;
}

/* Handles the storages' answer. 1: done; 0: not yet, or once more with a fresh epoch;
 * -errno. */
static int answered(struct file *f, struct fop *op)
{
    struct file_trunc *t = &f->trunc;

    if (t->answer == ANSWER_AWAITED)
        return 0;
    if (t->rc == 0)
        return 1;
    if (!may_try_again(f, t))
        return plain_errno(t->rc);
    need_renewal(f, op);
    return 0;
}

/* Marks the blocks beyond the end. 1: marked; 0: waits; -errno. */
static int step_mark(struct file *f, struct fop *op)
{
    struct file_trunc *t = &f->trunc;
    uint64_t version = f->trunc.version;

    if (ask_begin(t)) {
        if ((t->mark == MARK_FRESH || version == 0) && !file_next_version(f, &version))
            return -EIO; /* checked by step_epoch() */
        (t->mark == MARK_BELOW ? storcli_mark_below : storcli_mark)(
            f->sf, version, block_past(f, f->trunc.size), 0, on_trunc_answer, f);
        return 0;
    }
    /* Newer blocks beyond our own truncate are ours, from before it. Beyond another
     * client's: either exportd will say that it is finished, or that client marked them
     * with a newer version and died before its report. */
    if (t->answer == ANSWER_HERE && t->rc == -ESTALE && t->mark != MARK_BELOW)
        t->mark = t->own ? MARK_FRESH : MARK_REFUSED;
    return answered(f, op);
}

/* Returns true if a run holds the last partial block and nothing after it: writing it is
 * the cut. */
static bool is_cut_by_run(struct file *f)
{
    uint64_t block = block_of(f, f->trunc.size);
    struct frun *run = frunset_find(&f->runs.dirty, block);

    if (run == NULL)
        run = frunset_find(&f->runs.writing, block);
    return run != NULL && run->end == block + 1;
}

static void forget_look(struct file_trunc *t)
{
    fetch_free(t->look);
    t->look = NULL;
}

/* Reads the last partial block if it must be cut. 1: done; 0: waits; -errno. Also when
 * exportd knows of no data: a client that died may not have reported them. */
static int step_look(struct file *f)
{
    struct file_trunc *t = &f->trunc;
    uint32_t keep = (uint32_t)(f->trunc.size % f->bs);
    struct fetch *fetch;
    int rc = 0;

    t->by_run = keep != 0 && is_cut_by_run(f);
    if (keep == 0 || (t->by_run && t->look == NULL && t->answer != ANSWER_AWAITED))
        return 1;
    if (ask_begin(t)) {
        rc = fetch_start(f, FETCH_OWN, block_of(f, f->trunc.size), 1, &fetch);
        if (rc == 0) {
            fetch->done = on_looked;
            fetch->arg = f;
        }
        return rc;
    }
    if (t->answer == ANSWER_AWAITED)
        return 0;
    t->by_run = false;
    if (t->rc == 0 && t->look->user_bytes[0] <= keep) /* short enough already */
        forget_look(t);
    return t->rc != 0 ? t->rc : 1;
}

/* Writes the storages' block again, short; newer bytes are written over it later. */
static int cut_by_look(struct file *f, struct fop *op)
{
    struct file_trunc *t = &f->trunc;
    uint64_t version;

    if (ask_begin(t)) {
        if (!file_next_version(f, &version))
            return -EIO;
        clean_forget(f, t->look->first, t->look->first + 1);
        storcli_file_completes(f->sf, t->look->first);
        storcli_write(f->sf, version, t->look->first, 1, t->look->buf->data,
                      f->trunc.size % f->bs, false, on_trunc_answer, f);
        return 0;
    }
    if (t->answer == ANSWER_HERE)
        forget_look(t);
    return answered(f, op);
}

static int step_cut(struct file *f, struct fop *op)
{
    struct file_trunc *t = &f->trunc;
    uint64_t block = block_of(f, f->trunc.size);
    int rc = 0;

    if (t->look != NULL)
        return cut_by_look(f, op);
    if (!t->by_run)
        return 1;
    if (frunset_overlaps(&f->runs.dirty, block, block + 1) && !is_cut_by_run(f)) {
        next_state(t, TRUNC_LOOK); /* the run has grown, and may not be written yet */
        fop_ready(op);
        return 0;
    }
    queue_let_through(f, block, block + 1);
    if (!file_is_pending(f, block, block + 1, UINT64_MAX, t->clock, &rc))
        return rc != 0 ? rc : 1;
    fop_wait(op, &f->runs.waiters);
    return 0;
}

/* Syncs the marks: if they were lost in a power cut that exportd's record of them
 * survives, old bytes would come back when the file grows again. */
static int step_sync(struct file *f, struct fop *op)
{
    struct file_trunc *t = &f->trunc;

    if (f->trunc.version == 0 ||
        (t->answer == ANSWER_NONE && !storcli_file_is_unsynced(f->sf)))
        return 1;
    if (ask_begin(t)) {
        storcli_sync_layer(f->sf, on_trunc_answer, f);
        return 0;
    }
    return answered(f, op);
}

static int step_report(struct file *f)
{
    struct file_trunc *t = &f->trunc;

    if (f->trunc.version == 0)
        return 1;
    if (ask_begin(t)) {
        t->call = (struct file_meta_call){ .done = on_truncated, .file = f };
        f->meta.truncated(f->meta.arg, &t->call, f->trunc.version);
        return 0;
    }
    if (t->answer == ANSWER_AWAITED)
        return 0;
    return t->rc != 0 ? t->rc : 1;
}

static int step_drain(struct file *f, struct fop *op)
{
    if (file_is_landed(f))
        return 1;
    fop_wait(op, &f->runs.waiters);
    return 0;
}

static int take_steps(struct file *f, struct fop *op)
{
    struct file_trunc *t = &f->trunc;
    int rc = 1;

    assert(f->queue.exclusive == op);
    while (rc == 1) {
        enum trunc_state state = t->state;

        switch (state) {
        case TRUNC_IDLE:
            assert(!"trunc_start() comes first");
            break;
        case TRUNC_DRAIN:
            rc = step_drain(f, op);
            break;
        case TRUNC_EPOCH:
            rc = step_epoch(f, op);
            break;
        case TRUNC_MARK:
            rc = step_mark(f, op);
            break;
        case TRUNC_LOOK:
            rc = step_look(f);
            break;
        case TRUNC_CUT:
            rc = step_cut(f, op);
            break;
        case TRUNC_SYNC:
            rc = step_sync(f, op);
            break;
        case TRUNC_REPORT:
            rc = step_report(f);
            if (rc == 1) {
                trunc_forget(f);
                return 1;
            }
            break;
        }
        if (rc == 1)
            next_state(t, state + 1);
    }
    if (rc != 0)
        forget_look(t);
    return rc == 2 ? 1 : rc;
}

int trunc_step(struct file *f, struct fop *op)
{
    int rc = take_steps(f, op);

    if (rc != 0)
        f->trunc.state = TRUNC_IDLE;
    return rc;
}

void trunc_start(struct file *f, bool own)
{
    struct file_trunc *t = &f->trunc;

    assert(f->trunc.pending && t->look == NULL);
    next_state(t, TRUNC_DRAIN);
    t->own = own;
    t->mark = MARK_AS_ACCEPTED;
    t->denied = t->by_run = false;
    t->n_tries = 0;
    t->clock = f->writeback.clock;
}
