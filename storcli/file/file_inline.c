/*
 * file_inline.c - small files, whose data exportd keeps itself.
 *
 * In:     exportd's answers on a file's place, runs that are wanted, fetches. Core.
 * Out:    meta.wrote() with all data of the file, meta.load(); runs that move the data to
 *         the storages.
 * Keeps:  the data sent to exportd are those it had as of our epoch, and all that was
 *         acknowledged since: it takes nothing under an older epoch. When the file grows
 *         too large its data are made dirty, so that they go to the storages; exportd
 *         gets the report, atomically with the size, when the storages have them (synced,
 *         if exportd's copy may be durable). If the client dies before that, the file
 *         stays as exportd has it.
 */
#include "storcli/file/file_inline.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "storcli/file/file_int.h"

/* ---- what exportd has ---- */

static void bytes_set(struct file_inline *inl, uint8_t *bytes, uint64_t len,
                      uint64_t version)
{
    free(inl->bytes);
    inl->bytes = bytes;
    inl->len = len;
    inl->version = version;
}

static uint8_t *bytes_new(uint64_t len)
{
    uint8_t *bytes = malloc(len + 1); /* never NULL, also when empty */

    if (bytes == NULL) /* as small as an operation; this cannot be reported */
        abort();
    return bytes;
}

static int leave(struct file *f);

void inline_adopt(struct file *f, const struct file_attr *attr, bool overrules)
{
    struct file_inline *inl = &f->inl;
    bool stays = attr->inline_max == 0 || attr->on_storages;

    inl->max = attr->inline_max;
    if (inl->leave != LEAVE_NONE || (attr->size_age == SIZE_OLD && !overrules))
        return;
    if (inl->place == PLACE_STORAGES && !stays && !overrules)
        return; /* the answer is older than the move */
    if (stays) {
        /* Our report was forgotten, and the file is not small any more. */
        if (inl->place == PLACE_EXPORTD && inl->resend && !inl->busy && leave(f) == 0)
            return;
        inl->place = PLACE_STORAGES;
        bytes_set(inl, NULL, 0, 0);
        return;
    }
    if (inl->place == PLACE_EXPORTD && attr->inline_version <= inl->version &&
        (!overrules || inl->resend || attr->inline_version == inl->version))
        return; /* ours is as new */
    if (inl->resend && attr->inline_version != inl->version)
        file_count_loss(f); /* forgotten, and others have written since */
    assert(attr->inline_len == 0 || attr->inline_data != NULL);
    inl->resend = false;
    inl->place = PLACE_EXPORTD;
    bytes_set(inl, bytes_new(attr->inline_len), attr->inline_len, attr->inline_version);
    if (inl->len > 0)
        memcpy(inl->bytes, attr->inline_data, inl->len);
    clean_forget_all(f, 0, UINT64_MAX);
}

/* Ends a move that failed: exportd's data count, so it is asked for them, whatever
 * storages are known to have. */
static void leave_not(struct file *f)
{
    if (f->inl.leave != LEAVE_NONE)
        size_set_has_data(f, true);
    f->inl.leave = LEAVE_NONE;
}

void inline_forget(struct file *f)
{
    struct file_inline *inl = &f->inl;

    if (inl->max == 0 || inl->place == PLACE_UNKNOWN || f->runs.dirty.n > 0 ||
        f->runs.writing.n > 0 || f->queue.accepting != NULL ||
        (inl->leave != LEAVE_NONE && f->report.change != f->report.reported_change))
        return;
    leave_not(f);
    if (inl->resend) /* the outcome can never be known */
        file_count_loss(f);
    inl->resend = false;
    inl->place = PLACE_UNKNOWN;
    inl->no++;
    bytes_set(inl, NULL, 0, 0);
}

/* ---- asking for it ---- */

static void load_start(struct file *f);
static void on_leave_synced(void *arg, int rc);

static void leave_sync(struct file *f)
{
    f->inl.blocks_sync = BLOCKS_SYNC_BUSY;
    storcli_sync_layer(f->sf, on_leave_synced, f);
}

/* Repeats requests that met a later distribution, even if exportd does not know it: the
 * storages do. */
static void moved_end(struct file *f)
{
    LIST_FOREACH_SAFE(node, &f->cache.fetches) {
        struct fetch *fetch = container_of(node, struct fetch, link);

        if (!fetch->moved)
            continue;
        fetch->moved = false;
        fetch_read(fetch);
    }
    if (f->inl.blocks_sync == BLOCKS_SYNC_MOVED)
        leave_sync(f);
    waitlist_wake(f, &f->inl.moved_waiters);
}

static void load_end(struct file *f, int rc)
{
    LIST_FOREACH_SAFE(node, &f->cache.fetches) {
        struct fetch *fetch = container_of(node, struct fetch, link);

        if (!fetch->inlined)
            continue;
        if (rc != 0)
            fetch_answered(fetch, rc);
    }
    LIST_FOREACH(node, &f->inl.load_waiters.ops)
        container_of(node, struct fop, link)->fetch_rc = rc;
    waitlist_wake(f, &f->inl.load_waiters);
    moved_end(f);
    file_wake(f);
}

static void on_loaded(struct file_meta_call *call, int rc)
{
    struct file *f = call->file;

    f->inl.load_busy = false;
    call->target.session = 0; /* as in on_renewed() */
    if (rc == 0 && call->target.dist_generation > storcli_file_dist_generation(f->sf))
        rc = file_take_ref(f, &call->target);
    if (rc == 0 && f->inl.load_no == f->inl.no) {
        size_set_has_data(f, f->size.has_data || call->attr.has_data);
        inline_adopt(f, &call->attr, f->inl.place != PLACE_STORAGES);
    }
    if (rc == 0 && f->inl.place == PLACE_UNKNOWN)
        load_start(f); /* the place changed meanwhile */
    else
        load_end(f, rc);
}

static void load_send(struct file *f)
{
    f->inl.load_no = f->inl.no;
    f->inl.load_call =
        (struct file_meta_call){ .done = on_loaded,
                                 .file = f,
                                 .moved = f->epoch.outdated,
                                 .dist_generation = storcli_file_dist_generation(f->sf) };
    f->meta.load(f->meta.arg, &f->inl.load_call);
}

static void load_start(struct file *f)
{
    if (f->inl.load_busy)
        return;
    f->inl.load_busy = true;
    if (f->epoch.outdated)
        env_timer_start(f->env, &f->inl.load_timer, OUTDATED_PAUSE_MS);
    else
        load_send(f);
}

static void on_load_timer(struct env_timer *timer)
{
    load_send(container_of(timer, struct file, inl.load_timer));
}

void file_reload(struct file *f)
{
    load_start(f);
}

int inline_know(struct fop *op)
{
    struct file *f = op->f;
    int rc = op->fetch_rc;

    if (f->inl.place != PLACE_UNKNOWN)
        return 1;
    op->fetch_rc = 0;
    if (rc != 0)
        return rc;
    fop_wait(op, &f->inl.load_waiters);
    load_start(f);
    return 0;
}

/* ---- reading ---- */

void inline_copy(const struct file *f, uint8_t *dst, uint64_t from, uint64_t to)
{
    uint64_t end = max_u64(from, min_u64(to, f->inl.len));

    if (end > from)
        memcpy(dst, f->inl.bytes + from, end - from);
    memset(dst + (end - from), 0, to - end);
}

void inline_read(struct fetch *fetch)
{
    fetch->inlined = true;
    if (fetch->f->inl.place == PLACE_UNKNOWN)
        load_start(fetch->f);
    else
        file_wake(fetch->f);
}

static void fetch_serve(struct fetch *fetch)
{
    struct file *f = fetch->f;
    uint64_t start = block_start(f, fetch->first);

    fetch->inlined = false;
    if (f->inl.place != PLACE_EXPORTD) {
        fetch_read(fetch);
        return;
    }
    inline_copy(f, fetch->buf->data, start, start + (uint64_t)fetch->n * f->bs);
    for (uint32_t i = 0; i < fetch->n; i++) {
        uint64_t from = start + (uint64_t)i * f->bs;

        fetch->user_bytes[i] =
            (uint16_t)(f->inl.len > from ? min_u64(f->bs, f->inl.len - from) : 0);
    }
    fetch_answered(fetch, 0);
}

void inline_serve(struct file *f)
{
    if (f->inl.place == PLACE_UNKNOWN)
        return;
    LIST_FOREACH_SAFE(node, &f->cache.fetches) {
        struct fetch *fetch = container_of(node, struct fetch, link);

        if (fetch->inlined)
            fetch_serve(fetch);
    }
}

/* ---- from exportd to the storages ---- */

/* Makes blocks that are not in memory dirty; no data may be on its way to exportd. */
static int leave(struct file *f)
{
    struct file_inline *inl = &f->inl;

    assert(inl->place == PLACE_EXPORTD && !inl->busy);
    for (unsigned i = 0; i < f->runs.dirty.n; i++)
        frun_complete(f->runs.dirty.v[i]); /* from exportd's data, at once */
    for (uint64_t b = 0; b < block_past(f, inl->len); b++) {
        uint64_t from = block_start(f, b), to = min_u64(inl->len, from + f->bs);
        int64_t n;

        if (frunset_find(&f->runs.dirty, b) != NULL ||
            frunset_find(&f->runs.writing, b) != NULL)
            continue;
        n = frun_place(f, from, to, inl->bytes + from, false, NULL);
        if (n < 0)
            return (int)n;
        assert((uint64_t)n == to - from);
    }
    inl->place = PLACE_STORAGES;
    inl->leave = LEAVE_WRITING;
    inl->leave_id = f->runs.next_id;
    inl->leave_syncs = inl->len > 0;
    inl->leave_losses = storcli_file_losses(f->sf);
    inl->resend = inl->stale = false;
    inl->unsynced_change = 0;
    inl->no++;
    bytes_set(inl, NULL, 0, 0);
    size_set_has_data(f, false);
    report_set_data_reported(f, false); /* known again when storages acknowledge */
    clean_forget_all(f, 0, UINT64_MAX);
    return 0;
}

int inline_leave_first(struct fop *op)
{
    struct file *f = op->f;
    int rc;

    if (f->inl.place == PLACE_STORAGES)
        return 1;
    if (f->inl.busy) {
        fop_wait(op, &f->runs.waiters);
        return 0;
    }
    rc = leave(f);
    return rc == 0 ? 1 : rc;
}

void inline_expect(struct file *f, uint64_t end)
{
    if (f->inl.place == PLACE_EXPORTD && !f->inl.busy && end > f->inl.max)
        (void)leave(f); /* on failure again when it must be written */
}

/* Returns whether storages have lost something since the move began: perhaps bytes that
 * only exportd still has. */
static bool leave_is_lost(const struct file *f)
{
    return f->inl.leave == LEAVE_WRITING && f->inl.leave_syncs &&
           f->inl.leave_losses != storcli_file_losses(f->sf);
}

/* Undoes a move during which storages have lost something, as soon as nothing is on its
 * way to them: the file is as exportd has it, and what was written since is lost. */
static void leave_undo(struct file *f)
{
    if (leave_is_lost(f) && file_is_landed(f) && !f->queue.exclusive_held)
        file_lose(f, -EIO);
}

static void on_leave_synced(void *arg, int rc)
{
    struct file *f = arg;

    if (rc == -ROZO_EMOVED && f->inl.n_sync_moved++ < MOVED_TRIES_MAX) {
        f->inl.blocks_sync = BLOCKS_SYNC_MOVED;
        file_is_refused(f, f->inl.n_sync_moved);
        file_reload(f);
        return;
    }
    rc = leave_is_lost(f) ? -EIO : plain_errno(rc);
    f->inl.n_sync_moved = 0;
    f->inl.blocks_sync = BLOCKS_SYNC_NONE;
    if (f->inl.leave != LEAVE_NONE)
        f->inl.leave = rc == 0 ? LEAVE_SYNCED : LEAVE_WRITING;
    if (rc == -EACCES)
        file_renew(f);
    if (rc == 0)
        file_report_released(f);
    else
        file_report_failed(f, rc);
    leave_undo(f);
    waitlist_wake(f, &f->report.waiters);
    file_wake(f);
}

/* Returns true if the set has older runs; wants them, unless they failed. */
static bool any_older(const struct frunset *set, uint64_t id)
{
    bool found = false;

    for (unsigned i = 0; i < set->n; i++) {
        struct frun *run = set->v[i];

        found |= run->id < id;
        if (run->id < id && run->state == FRUN_DIRTY && run->failed_clock == 0)
            frun_want(run);
    }
    return found;
}

bool inline_holds_report(struct file *f)
{
    struct file_inline *inl = &f->inl;

    if (inl->busy)
        return true;
    leave_undo(f);
    if (inl->leave != LEAVE_WRITING)
        return false;
    if (leave_is_lost(f) || any_older(&f->runs.dirty, inl->leave_id) ||
        any_older(&f->runs.writing, inl->leave_id))
        return true;
    if (!inl->leave_syncs) {
        inl->leave = LEAVE_SYNCED;
        return false;
    }
    if (inl->blocks_sync == BLOCKS_SYNC_NONE)
        leave_sync(f);
    return true;
}

void inline_look(struct file *f)
{
    leave_undo(f);
    if (f->inl.leave == LEAVE_WRITING && !f->queue.exclusive_held)
        file_report_released(f);
}

void inline_left(struct file *f)
{
    f->inl.leave = LEAVE_NONE;
}

void inline_lose(struct file *f)
{
    struct file_inline *inl = &f->inl;

    if (inl->leave == LEAVE_NONE)
        return;
    leave_not(f);
    inl->place = PLACE_UNKNOWN;
    inl->no++;
    size_set_unreported(f);
    file_forget_beyond(f, f->size.meta);
    file_size_recount(f);
    clean_forget_all(f, 0, UINT64_MAX);
}

/* ---- writing ---- */

/* Fails all wanted runs. */
static void wanted_fail(struct file *f, int rc)
{
    while (!list_is_empty(&f->writeback.want))
        file_failed(container_of(f->writeback.want.next, struct frun, link), rc);
}

void inline_renewed(struct file *f, int rc)
{
    if (rc != 0 && (f->inl.stale || f->inl.place == PLACE_UNKNOWN))
        wanted_fail(f, rc);
    if (rc == 0)
        f->inl.stale = false;
}

/* Returns true if the run was sent with this version. */
static bool is_out(const struct frun *run, uint64_t version)
{
    return run->state == FRUN_FLYING && run->version == version;
}

static struct frun *next_out(struct file *f)
{
    for (unsigned i = 0; i < f->runs.writing.n; i++)
        if (is_out(f->runs.writing.v[i], f->inl.out.version))
            return f->runs.writing.v[i];
    return NULL;
}

/* Handles success: exportd has the data, with size and time. */
static void all_written(struct file *f)
{
    struct file_inline *inl = &f->inl;
    bool is_all = f->report.change == inl->out.change,
         is_sure = inl->out.unsure_no == f->report.unsure_no;
    struct frun *run;

    if (inl->out.no == inl->no && inl->out.version > inl->version) {
        bytes_set(inl, inl->sent, inl->out.len, inl->out.version);
        inl->sent = NULL;
    }
    while ((run = next_out(f)) != NULL) {
        frun_lands(run);
        frun_written(run);
    }
    if (!inl->out.sync || !is_sure)
        inl->unsynced_change = f->report.change;
    size_reported(f, inl->out.size, inl->out.n_truncates == f->trunc.n,
                  inl->out.sync && is_sure);
    report_time_taken(f, inl->out.mtime_ns);
    if (!is_sure) { /* unknown whether exportd kept it */
        inl->resend = inl->place == PLACE_EXPORTD;
        return;
    }
    report_changes_taken(f, is_all ? f->report.change : inl->out.change, inl->out.sync);
}

static void all_failed(struct file *f, int rc)
{
    bool again = rc == -ESTALE && f->inl.n_stale++ < STALE_TRIES_MAX;
    struct frun *run;

    if (again) {
        f->inl.stale = true;
        file_renew(f);
    }
    while ((run = next_out(f)) != NULL) {
        frun_lands(run);
        if (again) {
            run->state = FRUN_PARKED;
            frun_want(run);
        } else {
            file_failed(run, rc == -ESTALE ? -EIO : rc);
        }
    }
}

static void on_data_wrote(struct file_meta_call *call, int rc)
{
    struct file *f = call->file;
    struct file_inline *inl = &f->inl;

    assert(inl->busy);
    inl->busy = false;
    if (rc == 0) {
        inl->n_stale = 0;
        all_written(f);
    } else {
        all_failed(f, rc);
    }
    free(inl->sent);
    inl->sent = NULL;
    file_report_released(f);
    waitlist_wake(f, &f->runs.waiters);
    waitlist_wake(f, &f->report.waiters);
    file_wake(f);
}

static uint64_t set_end(const struct frunset *set)
{
    return set->n == 0 ? 0 : set->v[set->n - 1]->hi;
}

/* Copies the run's bytes into the message; it is on its way from now on. */
static void run_goes(struct frun *run)
{
    struct file *f = run->f;
    struct file_inline *inl = &f->inl;
    uint64_t from = block_start(f, run->first);
    uint64_t to = min_u64(block_start(f, run->end), inl->out.len);

    frun_unwant(run);
    frun_apply_cut(run);
    if (to > from)
        memcpy(inl->sent + from, run->data, to - from);
    run->failed_clock = 0;
    run->version = inl->out.version;
    inl->out.sync |= run->sync;
    frun_takes_off(run);
}

/* Sends the data. Runs that failed before go first, alone: runs above them may be
 * newer. */
static void data_send(struct file *f, uint64_t version)
{
    struct file_inline *inl = &f->inl;
    bool again = f->runs.writing.n > 0;
    const struct frunset *set = again ? &f->runs.writing : &f->runs.dirty;
    uint64_t end = set_end(set);

    inl->busy = true;
    inl->out.size =
        again ? max_u64(f->size.meta, min_u64(end, f->size.now)) : f->size.now;
    inl->out.len = min_u64(max_u64(inl->len, end), inl->out.size);
    inl->out.version = version;
    inl->out.no = inl->no;
    inl->out.change = f->report.change;
    inl->out.n_truncates = f->trunc.n;
    inl->out.unsure_no = f->report.unsure_no;
    inl->out.mtime_ns = f->report.mtime_ns;
    inl->out.sync = false;
    inl->sent = bytes_new(inl->out.len);
    inline_copy(f, inl->sent, 0, inl->out.len);
    while (!again && f->runs.dirty.n > 0)
        runs_set_off(f->runs.dirty.v[0]);
    for (unsigned i = 0; i < f->runs.writing.n; i++)
        run_goes(f->runs.writing.v[i]);
    inl->call = (struct file_meta_call){ .done = on_data_wrote,
                                         .file = f,
                                         .inline_version = version,
                                         .inline_data = inl->sent,
                                         .inline_len = (uint32_t)inl->out.len };
    f->meta.wrote(f->meta.arg, &inl->call, inl->out.size, version_epoch(version), false,
                  inl->out.mtime_ns, 0, inl->out.sync);
}

bool inline_fly(struct file *f)
{
    struct file_inline *inl = &f->inl;
    uint64_t version, end;
    int rc;

    leave_undo(f);
    if (inl->place == PLACE_STORAGES) /* if it is lost, nothing more goes there */
        return leave_is_lost(f) && !f->queue.exclusive_held;
    if (list_is_empty(&f->writeback.want) || inl->busy || f->report.busy ||
        f->epoch.renew_busy)
        return true;
    if (f->trunc.pending) { /* exportd takes nothing before that is finished */
        file_finish_truncate(f);
        return true;
    }
    if (f->queue.exclusive != NULL && f->queue.exclusive_end != UINT64_MAX)
        return true;
    end = max_u64(inl->len, max_u64(set_end(&f->runs.dirty), set_end(&f->runs.writing)));
    if (inl->place == PLACE_EXPORTD && end > inl->max) {
        rc = leave(f);
        if (rc != 0)
            wanted_fail(f, rc);
        return rc != 0;
    }
    if (inl->place == PLACE_UNKNOWN || inl->stale || !file_next_version(f, &version)) {
        inl->stale = true;
        file_renew(f);
        return true;
    }
    for (unsigned i = 0; i < f->runs.dirty.n; i++)
        frun_complete(f->runs.dirty.v[i]);
    data_send(f, version);
    return true;
}

/* ---- data that exportd may have forgotten ---- */

void inline_report_again(struct file *f)
{
    struct file_inline *inl = &f->inl;

    if (inl->place == PLACE_EXPORTD && inl->version != 0 && f->epoch.now != 0) {
        inl->resend = true;
    } else if (inl->unsynced_change > f->report.durable_change) {
        /* The token was given back, and the bytes are not here any more. */
        inl->unsynced_change = 0;
        file_count_loss(f);
        size_lost(f);
    }
}

void inline_no_resend(struct file *f)
{
    f->inl.resend = false;
}

bool inline_resend(struct file *f, struct file_meta_call *call)
{
    struct file_inline *inl = &f->inl;
    uint64_t version = inl->version;

    if (!inl->resend || inl->place != PLACE_EXPORTD ||
        (version_epoch(version) != f->epoch.now && !file_next_version(f, &version)))
        return false;
    inl->version = version;
    call->inline_version = version;
    call->inline_data = inl->bytes;
    call->inline_len = (uint32_t)inl->len;
    return true;
}

void inline_refused(struct file *f)
{
    f->inl.stale = true;
    file_renew(f); /* a fresh epoch brings exportd's state */
}

/* ---- begin and end ---- */

bool inline_is_quiet(const struct file *f)
{
    return !f->inl.busy && !f->inl.load_busy && f->inl.blocks_sync == BLOCKS_SYNC_NONE;
}

void inline_init(struct file *f)
{
    f->inl.place = PLACE_UNKNOWN;
    waitlist_init(&f->inl.load_waiters);
    waitlist_init(&f->inl.moved_waiters);
    env_timer_init(&f->inl.load_timer, on_load_timer);
}

void inline_free(struct file *f)
{
    assert(inline_is_quiet(f));
    free(f->inl.bytes);
}
