/*
 * wal_job.c - make, erase and remove segments in the background; call those who wait for
 * that.
 *
 * In:     wal_check_later(), a timer. Thread: the storio loop.
 * Out:    disk requests, one job at a time; the callbacks of wal_start(),
 *         wal_forget_old() and wal_stop().
 * Keeps:  after a lack of space no segment is tried before the disk reports enough; a
 *         segment is free only when its file, space and name are stable and its old
 *         contents are erased; segments are erased oldest first.
 * Yours:  when segments are made ahead (job_run), the pauses after a failure (RETRY_MS).
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/list.h"
#include "common/base/units.h"
#include "common/wal/wal_in.h"

enum {
    RETRY_MS = 1000, /* pause after the disk refused a segment */
    FREE_AT_START = 4,
    FILES_MIN = 2,         /* fewer files at start are an error */
    FILL_BYTES = 64 << 10, /* bytes of zeros per write if space cannot be reserved */
};
static const uint8_t zeros[FILL_BYTES];

static void job_run(struct wal *wal);

/* ---- start, forget and stop: the callers that wait for the jobs ---- */

void wal_check_later(struct wal *wal)
{
    env_post(wal->config.env, &wal->check_task);
}

/* Ends wal_start() when enough segments are there. Returns true if the callback was
 * called, which may have closed the log. */
static bool start_check(struct wal *wal)
{
    bool is_enough = wal->n_in_state[SLOT_FREE] >= FREE_AT_START;
    int rc = 0;

    if (wal->life != WAL_STARTS || wal->job.kind != JOB_NONE)
        return false;
    if (wal->is_stopping) {
        rc = -EIO;
        wal_check_later(wal);
    } else if (!is_enough && wal_slot_to_make(wal) != NULL) {
        if (wal->make_rc == 0) {
            job_run(wal);
            return false;
        }
        if (wal_count_files(wal) < FILES_MIN)
            rc = wal->make_rc;
        else if (wal->make_rc != -ENOSPC)
            rc = wal->make_rc;
    }
    wal->life = rc == 0 ? WAL_RUNS : WAL_NEW;
    wal->start_done(wal->start_arg, rc);
    return true;
}

void wal_forget_finish(struct wal *wal, int rc)
{
    assert(wal_is_forgetting(wal));
    wal->life = WAL_RUNS;
    wal->forget_done(wal->forget_arg, rc);
}

/* Ends wal_forget_old() for our own segments when they are erased or cannot be. */
static void forget_check(struct wal *wal)
{
    if (wal->life != WAL_FORGETS || wal->job.kind != JOB_NONE)
        return;
    if (wal->is_stopping)
        wal_forget_finish(wal, -EIO);
    else if (wal->forget_rc != 0 || wal_slot_oldest_dead(wal) == NULL)
        wal_leftovers_start(wal); /* leftovers are not retried, unlike our own */
}

void wal_stop_check(struct wal *wal)
{
    void (*done)(void *arg);

    if (!wal->is_stopping || wal->job.kind != JOB_NONE || wal->is_writing ||
        wal->is_syncing || wal->is_saying || wal_is_listing(wal) ||
        wal_is_forgetting(wal) || wal->check_task.queued || wal->stop_done == NULL)
        return;
    done = wal->stop_done;
    wal->stop_done = NULL;
    done(wal->stop_arg); /* closes the log */
}

static void on_check(struct env_task *task)
{
    struct wal *wal = container_of(task, struct wal, check_task);

    job_run(wal);
    if (start_check(wal))
        return;
    forget_check(wal);
    wal_stop_check(wal);
}

/* ---- jobs: make, erase, remove ---- */

static void on_job(struct disk_req *dr, int rc);

static void job_submit(struct wal *wal, struct disk_req dr)
{
    assert(wal->job.kind != JOB_NONE);
    wal->job.dr = dr;
    wal->job.dr.path = wal->job.path;
    wal->job.dr.done = on_job;
    wal->job.dr.arg = wal;
    disk_submit(wal->config.disk, &wal->job.dr);
}

static void job_write_zeros(struct wal *wal, uint64_t offset, uint64_t len)
{
    struct wal_job *job = &wal->job;

    job->iov =
        (struct iovec){ .iov_base = (void *)(uintptr_t)zeros, .iov_len = (size_t)len };
    job_submit(wal, (struct disk_req){ .op = DISK_WRITE,
                                       .file = job->slot->file,
                                       .offset = offset,
                                       .len = len,
                                       .iov = &job->iov,
                                       .n_iov = 1 });
}

static void job_submit_op(struct wal *wal, enum disk_op op, uint64_t offset, uint64_t len)
{
    job_submit(wal, (struct disk_req){ .op = op,
                                       .create = true,
                                       .file = wal->job.slot->file,
                                       .offset = offset,
                                       .len = len });
}

void wal_slot_close(struct wal *wal, struct slot *s)
{
    if (s->file != NULL)
        disk_close(wal->config.disk, s->file);
    s->file = NULL;
    wal_slot_set(wal, s, SLOT_NONE);
    s->is_dirty = s->is_in_round = s->is_odd = false;
    s->h = (struct segment_header){ .number = 0 };
}

static void retry_later(struct wal *wal, uint64_t *not_before)
{
    *not_before = env_now_ns(wal->config.env) + ms_to_ns(RETRY_MS);
    env_timer_start(wal->config.env, &wal->retry, RETRY_MS);
}

static void job_end_make(struct wal *wal)
{
    struct slot *s = wal->job.slot;

    assert(s->state == SLOT_NONE);
    wal->make_rc = wal->job.rc;
    if (wal->job.rc == 0) {
        wal_slot_set(wal, s, SLOT_FREE);
        s->has_file = true;
        return;
    }
    wal_slot_close(wal, s);
    retry_later(wal, &wal->make_retry_ns);
}

static void job_end_erase(struct wal *wal)
{
    struct slot *s = wal->job.slot;

    assert(s->state == SLOT_DEAD);
    if (wal->job.rc != 0) {
        wal->forget_rc = wal->job.rc;
        retry_later(wal, &wal->erase_retry_ns);
        return;
    }
    s->is_dirty = false;
    s->h.number = 0;
    if (s->is_odd || wal_count_files(wal) > wal->config.slots)
        wal_slot_close(wal, s); /* the next step is JOB_REMOVE or JOB_MAKE */
    else
        wal_slot_set(wal, s, SLOT_FREE);
}

static void job_end(struct wal *wal)
{
    switch (wal->job.kind) {
    case JOB_MAKE:
        job_end_make(wal);
        break;
    case JOB_ERASE:
        job_end_erase(wal);
        break;
    case JOB_REMOVE:
        wal->job.slot->has_file = false; /* the next start tries again if that failed */
        break;
    case JOB_NONE:
        assert(!"a job");
    }
    wal->job.kind = JOB_NONE;
    wal_check_later(wal);
    wal_append_step(wal);
}

static void job_step(struct wal *wal)
{
    struct wal_job *job = &wal->job;
    uint64_t bytes = wal->config.segment_bytes, left;

    switch (job->state) {
    /* a try that gets only a part would use up space left free for others */
    case MAKE_SPACE:
        job_submit_op(wal, DISK_SPACE, 0, 0);
        return;
    case MAKE_OPEN:
        job_submit_op(wal, DISK_OPEN, 0, 0);
        return;
    case MAKE_CUT:
        job_submit_op(wal, DISK_TRUNCATE, bytes, job->dr.size - bytes);
        return;
    case MAKE_RESERVE:
        job_submit_op(wal, DISK_ALLOCATE, 0, bytes);
        return;
    case MAKE_FILL:
        left = bytes - job->fill_at;
        job_write_zeros(wal, job->fill_at, left < FILL_BYTES ? left : FILL_BYTES);
        return;
    case MAKE_CLEAR_FRONT:
    case ERASE_FRONT:
        job_write_zeros(wal, 0, SEGMENT_PAGE_BYTES);
        return;
    case MAKE_CLEAR_BACK: /* gives the file its final size, too */
        job_write_zeros(wal, bytes - SEGMENT_PAGE_BYTES, SEGMENT_PAGE_BYTES);
        return;
    case ERASE_BACK:
        job_write_zeros(wal, job->slot->h.bytes - SEGMENT_PAGE_BYTES, SEGMENT_PAGE_BYTES);
        return;
    case MAKE_SYNC:
    case ERASE_SYNC:
        job_submit_op(wal, DISK_SYNC, 0, 0);
        return;
    case MAKE_SYNC_NAME:
        job_submit_op(wal, DISK_SYNC_NAME, 0, 0);
        return;
    case JOB_UNLINK:
        job_submit_op(wal, DISK_REMOVE, 0, 0);
        return;
    case JOB_DONE:
        job_end(wal);
    }
}

static void job_opened(struct wal_job *job, uint64_t bytes)
{
    assert(job->slot->file == NULL && job->dr.file != NULL);
    job->slot->file = job->dr.file;
    job->is_new = job->dr.size == 0 && !job->slot->has_file;
    job->state = job->dr.size > bytes ? MAKE_CUT : MAKE_RESERVE;
}

static void job_failed(struct wal_job *job, int rc)
{
    bool is_opened = job->slot->file != NULL;

    assert(rc != 0);
    job->rc = rc;
    job->state =
        job->kind == JOB_MAKE && is_opened && job->is_new && job->state != JOB_UNLINK
            ? JOB_UNLINK
            : JOB_DONE;
}

static bool has_room(const struct wal *wal)
{
    const struct disk_req *dr = &wal->job.dr;

    return dr->free >=
           wal->config.segment_bytes + disk_reserve(wal->config.reserve_bytes, dr->total);
}

static void on_job(struct disk_req *dr, int rc)
{
    struct wal *wal = dr->arg;
    struct wal_job *job = &wal->job;
    bool has_back = job->slot->h.bytes >= 2 * SEGMENT_PAGE_BYTES;

    assert(dr == &job->dr && job->slot != NULL);
    if (rc != 0 && job->state == MAKE_RESERVE && rc == -EIO) {
        job->state = MAKE_FILL; /* some file systems cannot reserve space */
    } else if (job->state == JOB_UNLINK) {
        job->state = JOB_DONE;
    } else if (rc != 0) {
        job_failed(job, rc);
    } else {
        switch (job->state) {
        case MAKE_SPACE:
            if (has_room(wal))
                job->state = MAKE_OPEN;
            else
                job_failed(job, -ENOSPC);
            break;
        case MAKE_OPEN:
            job_opened(job, wal->config.segment_bytes);
            break;
        case MAKE_RESERVE:
            job->state = MAKE_CLEAR_FRONT;
            break;
        case MAKE_FILL:
            job->fill_at += job->iov.iov_len;
            if (job->fill_at == wal->config.segment_bytes)
                job->state = MAKE_CLEAR_FRONT;
            break;
        case ERASE_FRONT:
            job->state = has_back ? ERASE_BACK : ERASE_SYNC;
            break;
        case MAKE_SYNC_NAME:
        case ERASE_SYNC:
            job->state = JOB_DONE;
            break;
        default: /* the states are in order */
            job->state++;
        }
    }
    job_step(wal);
}

static void job_begin(struct wal *wal, enum job_kind kind, struct slot *slot)
{
    static const enum job_state first[] = { JOB_DONE, MAKE_OPEN, ERASE_FRONT,
                                            JOB_UNLINK };

    assert(wal->job.kind == JOB_NONE && kind != JOB_NONE);
    wal->job = (struct wal_job){
        .kind = kind, .slot = slot, .state = first[kind], .fill_at = 0
    };
    if (kind == JOB_MAKE && wal->make_rc == -ENOSPC && !slot->has_file)
        wal->job.state = MAKE_SPACE;
    wal_path(wal->job.path, wal->config.loop, wal_slot_index(wal, slot));
    job_step(wal);
}

static struct slot *slot_to_remove(struct wal *wal)
{
    if (wal_is_starting(wal) || wal->n_in_state[SLOT_OLD] > 0 ||
        wal_count_files(wal) <= wal->config.slots)
        return NULL;
    for (unsigned i = WAL_FILES_MAX; i-- > 0;) {
        if (wal->slots[i].state == SLOT_NONE && wal->slots[i].has_file)
            return &wal->slots[i];
    }
    return NULL;
}

/* Begins the next job if there is one: erases a dead segment, or makes a free one in
 * advance. */
static void job_run(struct wal *wal)
{
    uint64_t now = env_now_ns(wal->config.env);
    struct slot *dead = wal_slot_oldest_dead(wal), *make = wal_slot_to_make(wal), *extra;
    unsigned ahead = wal_is_starting(wal) ? FREE_AT_START : 1;

    if (wal->job.kind != JOB_NONE || wal_is_listing(wal) || wal->is_stopping)
        return;
    if (dead != NULL && wal->is_syncing && wal->sync_dr.file == dead->file)
        return; /* wait for the sync: the job may close its file */
    if (dead != NULL && now >= wal->erase_retry_ns) {
        job_begin(wal, JOB_ERASE, dead);
        return;
    }
    extra = slot_to_remove(wal);
    if (extra != NULL)
        job_begin(wal, JOB_REMOVE, extra);
    else if (make != NULL && wal->n_in_state[SLOT_FREE] < ahead &&
             now >= wal->make_retry_ns)
        job_begin(wal, JOB_MAKE, make);
}

static void on_retry(struct env_timer *timer)
{
    struct wal *wal = container_of(timer, struct wal, retry);

    job_run(wal);
}

void wal_jobs_init(struct wal *wal)
{
    wal->check_task.fn = on_check;
    env_timer_init(&wal->retry, on_retry);
}
