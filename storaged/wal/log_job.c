/*
 * log_job.c - segments of the log made, erased and removed in the background; who waits for that.
 *
 * In:     log_check_later(), a timer. Thread: the storio loop.
 * Out:    disk requests, one job at a time; the callbacks of log_start(), log_forget_old() and log_stop().
 * Keeps:  who had no space for a segment does not try again before the disk has told of enough;
 *         a segment is free only when its file, its space and its name are on stable storage and what lay
 *         in it is erased there; segments are erased oldest first.
 * Yours:  when segments are made ahead (job_run), the pauses after a failure (RETRY_MS).
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storaged/wal/log_in.h"

enum {
    RETRY_MS = 1000, /* before a disk that refused is asked for a segment again */
    FREE_AT_START = 4,
    FILES_MIN = 2,         /* without these it does not start */
    FILL_BYTES = 64 << 10, /* where space cannot be reserved, zeros are written */
};
static const uint8_t zeros[FILL_BYTES];

static void job_run(struct log *log);

/* ---- start, forget and stop: who waits for the jobs ---- */

void log_check_later(struct log *log)
{
    env_post(log->config.env, &log->check_task);
}

/* True: somebody was called, who may have closed the log. */
static bool start_check(struct log *log)
{
    bool is_enough = log->n_in_state[SLOT_FREE] >= FREE_AT_START;
    int rc = 0;

    if (!log->is_starting || log->is_listing || log->job.kind != JOB_NONE)
        return false;
    if (log->is_stopping) {
        rc = -EIO;
        log_check_later(log);
    } else if (!is_enough && log_slot_to_make(log) != NULL) {
        if (log->make_rc == 0) {
            job_run(log);
            return false;
        }
        if (log_count_files(log) < FILES_MIN)
            rc = log->make_rc;
        else if (log->make_rc != -ENOSPC)
            rc = log->make_rc;
    }
    log->is_starting = false;
    log->start_done(log->start_arg, rc);
    return true;
}

void log_forget_finish(struct log *log, int rc)
{
    log->is_forgetting = false;
    log->forget_done(log->forget_arg, rc);
}

/* The own ones are erased, or cannot be. */
static void forget_check(struct log *log)
{
    if (!log->is_forgetting || log->is_listing || log->job.kind != JOB_NONE)
        return;
    if (log->is_stopping)
        log_forget_finish(log, -EIO);
    else if (log->forget_rc != 0 || log->n_in_state[SLOT_DEAD] == 0)
        log_leftovers_start(log); /* nobody tries these again; our own are */
}

void log_stop_check(struct log *log)
{
    void (*done)(void *arg);

    if (!log->is_stopping || log->job.kind != JOB_NONE || log->is_writing ||
        log->is_syncing || log->is_saying || log->is_listing || log->is_forgetting ||
        log->check_task.queued || log->stop_done == NULL)
        return;
    done = log->stop_done;
    log->stop_done = NULL;
    done(log->stop_arg); /* closes it */
}

static void on_check(struct env_task *task)
{
    struct log *log = (struct log *)((char *)task - offsetof(struct log, check_task));

    job_run(log);
    if (start_check(log))
        return;
    forget_check(log);
    log_stop_check(log);
}

/* ---- jobs: make, erase, remove ---- */

static void on_job(struct disk_req *dr, int rc);

static void job_submit(struct log *log, struct disk_req dr)
{
    log->job.dr = dr;
    log->job.dr.path = log->job.path;
    log->job.dr.done = on_job;
    log->job.dr.arg = log;
    disk_submit(log->config.disk, &log->job.dr);
}

static void job_write_zeros(struct log *log, uint64_t offset, uint64_t len)
{
    struct job *job = &log->job;

    job->iov =
        (struct iovec){ .iov_base = (void *)(uintptr_t)zeros, .iov_len = (size_t)len };
    job_submit(log, (struct disk_req){ .op = DISK_WRITE,
                                       .file = job->slot->file,
                                       .offset = offset,
                                       .len = len,
                                       .iov = &job->iov,
                                       .n_iov = 1 });
}

static void job_submit_op(struct log *log, enum disk_op op, uint64_t offset, uint64_t len)
{
    job_submit(log, (struct disk_req){ .op = op,
                                       .create = true,
                                       .file = log->job.slot->file,
                                       .offset = offset,
                                       .len = len });
}

void log_slot_close(struct log *log, struct slot *s)
{
    if (s->file != NULL)
        disk_close(log->config.disk, s->file);
    s->file = NULL;
    log_slot_set(log, s, SLOT_NONE);
    s->is_dirty = s->is_in_round = s->is_odd = false;
    s->h = (struct segment_header){ .number = 0 };
}

static void retry_later(struct log *log, uint64_t *not_before)
{
    *not_before = env_now_ns(log->config.env) + (uint64_t)RETRY_MS * 1000000;
    env_timer_start(log->config.env, &log->retry, RETRY_MS);
}

static void job_end_make(struct log *log)
{
    struct slot *s = log->job.slot;

    log->make_rc = log->job.rc;
    if (log->job.rc == 0) {
        log_slot_set(log, s, SLOT_FREE);
        s->has_file = true;
        return;
    }
    log_slot_close(log, s);
    retry_later(log, &log->make_retry_ns);
}

static void job_end_erase(struct log *log)
{
    struct slot *s = log->job.slot;

    if (log->job.rc != 0) {
        log->forget_rc = log->job.rc;
        retry_later(log, &log->erase_retry_ns);
        return;
    }
    s->is_dirty = false;
    s->h.number = 0;
    if (s->is_odd || log_count_files(log) > log->config.slots)
        log_slot_close(log, s); /* JOB_REMOVE or JOB_MAKE takes it from here */
    else
        log_slot_set(log, s, SLOT_FREE);
}

static void job_end(struct log *log)
{
    switch (log->job.kind) {
    case JOB_MAKE:
        job_end_make(log);
        break;
    case JOB_ERASE:
        job_end_erase(log);
        break;
    case JOB_REMOVE:
        log->job.slot->has_file = false; /* or it stays, and is tried at the next start */
        break;
    case JOB_NONE:
        assert(!"a job");
    }
    log->job.kind = JOB_NONE;
    log_check_later(log);
    log_append_step(log);
}

static void job_step(struct log *log)
{
    struct job *job = &log->job;
    uint64_t bytes = log->config.segment_bytes, left;

    switch (job->state) {
    case MAKE_SPACE: /* a try that gets only a part of it would take what is left to others */
        job_submit_op(log, DISK_SPACE, 0, 0);
        return;
    case MAKE_OPEN:
        job_submit_op(log, DISK_OPEN, 0, 0);
        return;
    case MAKE_CUT:
        job_submit_op(log, DISK_TRUNCATE, bytes, job->dr.size - bytes);
        return;
    case MAKE_RESERVE:
        job_submit_op(log, DISK_ALLOCATE, 0, bytes);
        return;
    case MAKE_FILL:
        left = bytes - job->fill_at;
        job_write_zeros(log, job->fill_at, left < FILL_BYTES ? left : FILL_BYTES);
        return;
    case MAKE_CLEAR_FRONT:
    case ERASE_FRONT:
        job_write_zeros(log, 0, SEGMENT_PAGE_BYTES);
        return;
    case MAKE_CLEAR_BACK: /* also gives the file its size for ever */
        job_write_zeros(log, bytes - SEGMENT_PAGE_BYTES, SEGMENT_PAGE_BYTES);
        return;
    case ERASE_BACK:
        job_write_zeros(log, job->slot->h.bytes - SEGMENT_PAGE_BYTES, SEGMENT_PAGE_BYTES);
        return;
    case MAKE_SYNC:
    case ERASE_SYNC:
        job_submit_op(log, DISK_SYNC, 0, 0);
        return;
    case MAKE_SYNC_NAME:
        job_submit_op(log, DISK_SYNC_NAME, 0, 0);
        return;
    case JOB_UNLINK:
        job_submit_op(log, DISK_REMOVE, 0, 0);
        return;
    case JOB_DONE:
        job_end(log);
    }
}

static void job_opened(struct job *job, uint64_t bytes)
{
    job->slot->file = job->dr.file;
    job->is_new = job->dr.size == 0 && !job->slot->has_file;
    job->state = job->dr.size > bytes ? MAKE_CUT : MAKE_RESERVE;
}

static void job_failed(struct job *job, int rc)
{
    bool is_opened = job->slot->file != NULL;

    job->rc = rc;
    job->state =
        job->kind == JOB_MAKE && is_opened && job->is_new && job->state != JOB_UNLINK
            ? JOB_UNLINK
            : JOB_DONE;
}

static bool has_room(const struct log *log)
{
    const struct disk_req *dr = &log->job.dr;

    return dr->free >=
           log->config.segment_bytes + disk_reserve(log->config.reserve_bytes, dr->total);
}

static void on_job(struct disk_req *dr, int rc)
{
    struct log *log = dr->arg;
    struct job *job = &log->job;
    bool has_back = job->slot->h.bytes >= 2 * SEGMENT_PAGE_BYTES;

    if (rc != 0 && job->state == MAKE_RESERVE && rc == -EIO) {
        job->state = MAKE_FILL; /* not every file system can reserve */
    } else if (job->state == JOB_UNLINK) {
        job->state = JOB_DONE;
    } else if (rc != 0) {
        job_failed(job, rc);
    } else {
        switch (job->state) {
        case MAKE_SPACE:
            if (has_room(log))
                job->state = MAKE_OPEN;
            else
                job_failed(job, -ENOSPC);
            break;
        case MAKE_OPEN:
            job_opened(job, log->config.segment_bytes);
            break;
        case MAKE_RESERVE:
            job->state = MAKE_CLEAR_FRONT;
            break;
        case MAKE_FILL:
            job->fill_at += job->iov.iov_len;
            if (job->fill_at == log->config.segment_bytes)
                job->state = MAKE_CLEAR_FRONT;
            break;
        case ERASE_FRONT:
            job->state = has_back ? ERASE_BACK : ERASE_SYNC;
            break;
        case MAKE_SYNC_NAME:
        case ERASE_SYNC:
            job->state = JOB_DONE;
            break;
        default: /* the steps in their order */
            job->state++;
        }
    }
    job_step(log);
}

static void job_begin(struct log *log, enum job_kind kind, struct slot *slot)
{
    static const enum job_state first[] = { JOB_DONE, MAKE_OPEN, ERASE_FRONT,
                                            JOB_UNLINK };

    log->job =
        (struct job){ .kind = kind, .slot = slot, .state = first[kind], .fill_at = 0 };
    if (kind == JOB_MAKE && log->make_rc == -ENOSPC && !slot->has_file)
        log->job.state = MAKE_SPACE;
    log_path(log->job.path, log->config.loop, log_slot_index(log, slot));
    job_step(log);
}

static struct slot *slot_to_remove(struct log *log)
{
    if (log->is_starting || log->n_in_state[SLOT_OLD] > 0 ||
        log_count_files(log) <= log->config.slots)
        return NULL;
    for (unsigned i = LOG_FILES_MAX; i-- > 0;) {
        if (log->slots[i].state == SLOT_NONE && log->slots[i].has_file)
            return &log->slots[i];
    }
    return NULL;
}

/* Begin the next job, if there is one: erase what is dead, then have a free segment ahead. */
static void job_run(struct log *log)
{
    uint64_t now = env_now_ns(log->config.env);
    struct slot *dead = log_slot_oldest_dead(log), *make = log_slot_to_make(log), *extra;
    unsigned ahead = log->is_starting ? FREE_AT_START : 1;

    if (log->job.kind != JOB_NONE || log->is_listing || log->is_stopping)
        return;
    if (dead != NULL && log->is_syncing && log->sync_dr.file == dead->file)
        return; /* its file may be closed then; when the sync is done */
    if (dead != NULL && now >= log->erase_retry_ns) {
        job_begin(log, JOB_ERASE, dead);
        return;
    }
    extra = slot_to_remove(log);
    if (extra != NULL)
        job_begin(log, JOB_REMOVE, extra);
    else if (make != NULL && log->n_in_state[SLOT_FREE] < ahead &&
             now >= log->make_retry_ns)
        job_begin(log, JOB_MAKE, make);
}

static void on_retry(struct env_timer *timer)
{
    struct log *log = (struct log *)((char *)timer - offsetof(struct log, retry));

    job_run(log);
}

void log_jobs_init(struct log *log)
{
    log->check_task.fn = on_check;
    env_timer_init(&log->retry, on_retry);
}
