/*
 * log.c - append to a set of segment files, group syncs, make and erase segments in the background.
 *
 * In:     log_append(), log_release(), log_sync(), from the journal. Thread: the storio loop.
 * Out:    disk requests; at most one append, one sync and one background job at a time.
 * Keeps:  a segment is used only when its file, its space and its name are on stable storage and
 *         what lay in it is erased there; segments are erased oldest first.
 * Yours:  when segments are made ahead (job_pick), the pauses after a failure (RETRY_MS).
 */
#include "storaged/core/log.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storaged/core/log_list.h"

enum {
    RETRY_MS = 1000, /* before a disk that refused is asked for a segment again */
    FREE_AT_START = 2,
    FILL_BYTES = 64 << 10, /* where space cannot be reserved, zeros are written */
};

enum slot_state {
    SLOT_NONE,    /* not open; there may be a file, erased or never used */
    SLOT_FREE,    /* can be begun */
    SLOT_OLD,     /* of before, until log_forget_old() */
    SLOT_CURRENT, /* being written */
    SLOT_FULL,    /* something of it is wanted */
    SLOT_DEAD,    /* nothing is; to be erased */
};

struct slot {
    enum slot_state state;
    bool has_file;
    bool is_dirty;          /* written since the last sync began */
    bool is_in_round;       /* the sync under way covers it, still to be done */
    bool is_odd;            /* of another size: removed when it is dead */
    struct disk_file *file; /* owned, except NONE */
    struct segment_header h;
    uint64_t wanted; /* entries, and one for the append under way */
};

enum job_kind { JOB_NONE, JOB_MAKE, JOB_ERASE, JOB_REMOVE };
enum job_state {
    MAKE_OPEN,
    MAKE_CUT,
    MAKE_RESERVE,
    MAKE_FILL,
    MAKE_CLEAR_FRONT,
    MAKE_CLEAR_BACK,
    MAKE_SYNC,
    MAKE_SYNC_NAME,
    ERASE_FRONT,
    ERASE_BACK,
    ERASE_SYNC,
    JOB_UNLINK,
    JOB_DONE,
};

/* A segment being made or erased. Changes state in job_step() only. */
struct job {
    enum job_kind kind;
    enum job_state state;
    struct slot *slot;
    bool is_new; /* made by us: removed again when it cannot be finished */
    int rc;      /* what it failed with */
    uint64_t fill_at;
    char path[LOG_PATH_MAX];
    struct iovec iov;
    struct disk_req dr;
};

/* Segments of loops that are not there any more. */
struct leftovers {
    struct log_list list;
    unsigned index;
    char path[LOG_PATH_MAX];
    struct iovec iov;
    struct disk_req dr;
};

struct log {
    struct log_config config;
    struct slot slots[LOG_FILES_MAX];
    uint64_t next_number;

    struct slot *current; /* NULL: none */
    uint64_t end;         /* of its last frame */
    uint32_t sequence;    /* of its next frame */
    bool is_current_bad;  /* a write or sync failed: go on in another one */
    struct log_append *first, **last;
    bool is_writing;    /* a frame or headers */
    struct slot *begun; /* whose headers are being written */
    uint8_t header[SEGMENT_HEADER_BYTES];
    struct iovec header_iov;
    struct disk_req dr;

    uint64_t n_asked, n_done; /* appends */
    uint64_t n_synced;        /* of n_done */
    uint64_t since;           /* the first segment of this life; 0: none yet */
    struct frame_says
        sync_says; /* where the sync under way comes to, as frames will say then */
    struct frame_says synced; /* where the last good one came to */
    bool is_said;             /* a frame says so already */
    bool is_saying;
    struct log_append say;
    struct log_wait *first_wait, **last_wait;
    bool is_syncing;
    uint64_t sync_upto;
    int sync_rc;
    struct disk_req sync_dr;
    uint64_t failures;

    struct job job;
    struct env_timer retry;
    uint64_t make_retry_ns, erase_retry_ns; /* not before */
    int make_rc;                            /* of the last segment that was made */

    bool is_starting, is_listing, is_forgetting, is_stopping;
    int forget_rc;
    void (*start_done)(void *arg, int rc);
    void *start_arg;
    void (*forget_done)(void *arg, int rc);
    void *forget_arg;
    void (*stop_done)(void *arg);
    void *stop_arg;
    struct env_task check_task;
    struct leftovers left;
};

static const uint8_t zeros[FILL_BYTES];

static void append_step(struct log *log);
static void sync_step(struct log *log);
static void job_run(struct log *log);

/* ---- what there is ---- */

static unsigned slot_index(const struct log *log, const struct slot *slot)
{
    return (unsigned)(slot - log->slots);
}

static unsigned count_state(const struct log *log, enum slot_state state)
{
    unsigned n = 0;

    for (unsigned i = 0; i < LOG_FILES_MAX; i++)
        n += log->slots[i].state == state;
    return n;
}

static unsigned count_files(const struct log *log)
{
    unsigned n = 0;

    for (unsigned i = 0; i < LOG_FILES_MAX; i++)
        n += log->slots[i].has_file;
    return n;
}

/* Segments of this life. Those of before do not count until they are kept for good. */
static unsigned count_ours(const struct log *log)
{
    return LOG_FILES_MAX - count_state(log, SLOT_NONE) - count_state(log, SLOT_OLD);
}

static struct slot *slot_of_number(struct log *log, uint64_t number)
{
    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        struct slot *s = &log->slots[i];

        if (number != 0 && s->state > SLOT_FREE && s->h.number == number)
            return s;
    }
    return NULL;
}

static struct slot *slot_first_in(struct log *log, enum slot_state state)
{
    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        if (log->slots[i].state == state)
            return &log->slots[i];
    }
    return NULL;
}

static struct slot *slot_oldest_dead(struct log *log)
{
    struct slot *best = NULL;

    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        struct slot *s = &log->slots[i];

        if (s->state == SLOT_DEAD && (best == NULL || s->h.number < best->h.number))
            best = s;
    }
    return best;
}

/* A place for one more segment: first those whose file lies there already. */
static struct slot *slot_to_make(struct log *log)
{
    struct slot *best = NULL;

    if (count_ours(log) >= log->config.slots)
        return NULL;
    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        struct slot *s = &log->slots[i];

        if (s->state == SLOT_NONE && (best == NULL || (s->has_file && !best->has_file)))
            best = s;
    }
    return best;
}

static void slot_retire(struct slot *s)
{
    s->state = s->wanted == 0 ? SLOT_DEAD : SLOT_FULL;
}

/* ---- start, forget and stop: who waits for the jobs ---- */

static void check_later(struct log *log)
{
    env_post(log->config.env, &log->check_task);
}

/* True: somebody was called, who may have closed the log. */
static bool start_check(struct log *log)
{
    bool is_enough = count_state(log, SLOT_FREE) >= FREE_AT_START;
    int rc = 0;

    if (!log->is_starting || log->is_listing || log->job.kind != JOB_NONE)
        return false;
    if (log->is_stopping) {
        rc = -EIO;
        check_later(log);
    } else if (!is_enough && slot_to_make(log) != NULL) {
        if (log->make_rc == 0) {
            job_run(log);
            return false;
        }
        if (count_files(log) < 2)
            rc = log->make_rc;
        else if (log->make_rc != -ENOSPC)
            rc = log->make_rc;
    }
    log->is_starting = false;
    log->start_done(log->start_arg, rc);
    return true;
}

static void forget_finish(struct log *log, int rc)
{
    log->is_forgetting = false;
    log->forget_done(log->forget_arg, rc);
}

static void leftovers_start(struct log *log);

/* The own ones are erased, or cannot be. */
static void forget_check(struct log *log)
{
    if (!log->is_forgetting || log->is_listing || log->job.kind != JOB_NONE)
        return;
    if (log->forget_rc != 0)
        forget_finish(log, log->forget_rc);
    else if (log->is_stopping)
        forget_finish(log, -EIO);
    else if (count_state(log, SLOT_DEAD) == 0)
        leftovers_start(log);
}

static void stop_check(struct log *log)
{
    void (*done)(void *arg);

    if (!log->is_stopping || log->job.kind != JOB_NONE || log->is_writing ||
        log->is_syncing || log->is_listing || log->is_forgetting ||
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
    stop_check(log);
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

static void slot_close(struct log *log, struct slot *s)
{
    if (s->file != NULL)
        disk_close(log->config.disk, s->file);
    s->file = NULL;
    s->state = SLOT_NONE;
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
        s->state = SLOT_FREE;
        s->has_file = true;
        return;
    }
    slot_close(log, s);
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
    if (s->is_odd || count_files(log) > log->config.slots)
        slot_close(log, s); /* JOB_REMOVE or JOB_MAKE takes it from here */
    else
        s->state = SLOT_FREE;
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
    check_later(log);
    append_step(log);
}

static void job_step(struct log *log)
{
    struct job *job = &log->job;
    uint64_t bytes = log->config.segment_bytes, left;

    switch (job->state) {
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
    log_path(log->job.path, log->config.loop, slot_index(log, slot));
    job_step(log);
}

static struct slot *slot_to_remove(struct log *log)
{
    if (log->is_starting || count_state(log, SLOT_OLD) > 0 ||
        count_files(log) <= log->config.slots)
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
    struct slot *dead = slot_oldest_dead(log), *make = slot_to_make(log), *extra;
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
    else if (make != NULL && count_state(log, SLOT_FREE) < ahead &&
             now >= log->make_retry_ns)
        job_begin(log, JOB_MAKE, make);
}

static void on_retry(struct env_timer *timer)
{
    struct log *log = (struct log *)((char *)timer - offsetof(struct log, retry));

    job_run(log);
}

/* ---- appends ---- */

static void on_append_failed(struct env_task *task)
{
    struct log_append *a =
        (struct log_append *)((char *)task - offsetof(struct log_append, task));

    a->done(a, a->rc);
}

static struct log_append *append_pop(struct log *log)
{
    struct log_append *a = log->first;

    log->first = a->next;
    if (log->first == NULL)
        log->last = &log->first;
    log->n_done++;
    return a;
}

static void append_fail_later(struct log *log, int rc)
{
    struct log_append *a = append_pop(log);

    a->rc = rc;
    a->task = (struct env_task){ .fn = on_append_failed };
    env_post(log->config.env, &a->task);
}

static bool append_fits(const struct log *log, const struct log_append *a)
{
    return log->current != NULL && log->end + log_frame_bytes(a->len, a->head_len) <=
                                       log->config.segment_bytes - SEGMENT_PAGE_BYTES;
}

static void on_written(struct disk_req *dr, int rc)
{
    struct log_append *a = dr->arg;
    struct log *log = a->log;

    append_pop(log);
    log->is_writing = false;
    log->current->is_dirty = true;
    if (rc == 0) {
        log->end += log_frame_bytes(a->len, a->head_len);
        log->sequence++;
    } else {
        log->current->wanted--;
        log->is_current_bad = true;
        rc = rc == -ENOSPC ? rc : -EIO;
    }
    a->done(a, rc);
    sync_step(log);
    append_step(log);
    if (log->is_stopping)
        check_later(log);
}

static void append_write(struct log *log, struct log_append *a)
{
    struct slot *s = log->current;

    struct frame_says says = log->synced;
    size_t tail;

    says.sequence = log->sequence;
    says.kind = a->kind;
    says.since = log->since;
    tail = log_frame_put(a->frame_header, a->frame_tail, &s->h, &says, a->iov, a->n_iov,
                         a->len, a->head_len);
    a->frame[0] =
        (struct iovec){ .iov_base = a->frame_header, .iov_len = LOG_FRAME_HEADER_BYTES };
    if (a->n_iov > 0)
        memcpy(&a->frame[1], a->iov, a->n_iov * sizeof(a->iov[0]));
    a->frame[a->n_iov + 1] = (struct iovec){ .iov_base = a->frame_tail, .iov_len = tail };
    log->is_said = true;
    a->place = (struct log_place){ .segment = s->h.number,
                                   .offset = log->end + LOG_FRAME_HEADER_BYTES,
                                   .len = (uint32_t)a->len,
                                   .file = s->file,
                                   .sequence = log->sequence };
    s->wanted++;
    log->is_writing = true;
    a->dr = (struct disk_req){ .op = DISK_WRITE,
                               .file = s->file,
                               .offset = log->end,
                               .len = LOG_FRAME_HEADER_BYTES + a->len + tail,
                               .iov = a->frame,
                               .n_iov = a->n_iov + 2,
                               .done = on_written,
                               .arg = a };
    disk_submit(log->config.disk, &a->dr);
}

static void current_retire(struct log *log)
{
    if (log->current == NULL)
        return;
    slot_retire(log->current);
    log->current = NULL;
    check_later(log);
}

static void begin_failed(struct log *log)
{
    log->begun->state = SLOT_DEAD; /* one of its headers may be there */
    check_later(log);
    append_fail_later(log, -EIO);
}

static void on_begun(struct disk_req *dr, int rc)
{
    struct log *log = dr->arg;

    if (dr->op == DISK_WARM) { /* whether it could or not; now the header's copy */
        *dr = (struct disk_req){ .op = DISK_WRITE,
                                 .file = log->begun->file,
                                 .offset = log->begun->h.bytes - SEGMENT_PAGE_BYTES,
                                 .len = sizeof(log->header),
                                 .iov = &log->header_iov,
                                 .n_iov = 1,
                                 .done = on_begun,
                                 .arg = log };
        disk_submit(log->config.disk, dr);
        return;
    }
    if (rc == 0 && dr->offset != 0) { /* the copy; now the first page */
        dr->offset = 0;
        disk_submit(log->config.disk, dr);
        return;
    }
    log->is_writing = false;
    if (rc == 0) {
        current_retire(log);
        log->current = log->begun;
        log->current->state = SLOT_CURRENT;
        log->current->is_dirty = true;
        log->is_current_bad = false;
        log->end = SEGMENT_PAGE_BYTES;
        log->sequence = 1;
        check_later(log); /* one more ahead */
    } else {
        begin_failed(log);
    }
    append_step(log);
    if (log->is_stopping)
        check_later(log);
}

static void segment_begin(struct log *log, struct slot *s)
{
    if (log->since == 0)
        log->since = log->next_number;
    s->h = (struct segment_header){ .number = log->next_number++,
                                    .bytes = log->config.segment_bytes };
    env_random(log->config.env, &s->h.salt, sizeof(s->h.salt));
    segment_header_put(log->header, &s->h);
    s->wanted = 0;
    log->begun = s;
    log->is_writing = true;
    log->header_iov =
        (struct iovec){ .iov_base = log->header, .iov_len = sizeof(log->header) };
    /* Entries end anywhere in a page: one that is not in memory is read before it is written, on the loop. */
    log->dr = (struct disk_req){
        .op = DISK_WARM, .file = s->file, .len = s->h.bytes, .done = on_begun, .arg = log
    };
    disk_submit(log->config.disk, &log->dr);
}

/* 0: one will be free, and then append_step() is called; else why not. */
static int segment_wait(struct log *log)
{
    uint64_t now = env_now_ns(log->config.env);
    struct slot *make = slot_to_make(log);

    if (log->job.kind == JOB_NONE && log->current != NULL && log->current->wanted == 0)
        current_retire(log);
    if (slot_oldest_dead(log) != NULL && now < log->erase_retry_ns)
        return -EIO;
    if (log->job.kind == JOB_NONE && slot_oldest_dead(log) == NULL &&
        (make == NULL || now < log->make_retry_ns))
        return make != NULL && log->make_rc != 0 ? log->make_rc : -ENOSPC;
    check_later(log);
    return 0;
}

static void append_step(struct log *log)
{
    while (log->first != NULL && !log->is_writing) {
        struct slot *free_slot = slot_first_in(log, SLOT_FREE);
        int rc;

        if (append_fits(log, log->first) && (!log->is_current_bad || free_slot == NULL)) {
            append_write(log, log->first);
            return;
        }
        if (free_slot != NULL) {
            segment_begin(log, free_slot);
            return;
        }
        rc = segment_wait(log);
        if (rc == 0)
            return;
        append_fail_later(log, rc == -ENOSPC ? rc : -EIO);
    }
}

void log_append(struct log *log, struct log_append *a)
{
    assert(!log->is_starting && !log->is_stopping);
    assert(a->kind != 0 && a->len <= LOG_ENTRY_MAX && a->n_iov <= LOG_IOV_MAX);
    assert(a->head_len <= LOG_HEAD_MAX && a->head_len <= a->len);
    a->log = log;
    a->next = NULL;
    *log->last = a;
    log->last = &a->next;
    log->n_asked++;
    append_step(log);
}

void log_release(struct log *log, const struct log_place *place)
{
    struct slot *s = slot_of_number(log, place->segment);

    assert(s != NULL && s->wanted > 0);
    s->wanted--;
    if (s->state != SLOT_FULL || s->wanted > 0)
        return;
    s->state = SLOT_DEAD;
    check_later(log);
}

/* ---- syncs ---- */

static void on_wait(struct env_task *task)
{
    struct log_wait *w =
        (struct log_wait *)((char *)task - offsetof(struct log_wait, task));

    w->done(w, w->rc);
}

/* After a failure everybody is told: what they wait for may stand behind a gap. */
static void sync_finish(struct log *log)
{
    bool is_good = log->sync_rc == 0;

    log->is_syncing = false;
    if (is_good) {
        log->n_synced = log->sync_upto;
        log->is_said &= log->synced.synced_segment == log->sync_says.synced_segment &&
                        log->synced.synced_sequence == log->sync_says.synced_sequence;
        log->synced = log->sync_says;
    } else {
        log->failures++;
        log->is_current_bad = true;
    }
    while (log->first_wait != NULL &&
           (!is_good || log->first_wait->want <= log->sync_upto)) {
        struct log_wait *w = log->first_wait;

        log->first_wait = w->next;
        w->rc = is_good ? 0 : -EIO;
        w->task = (struct env_task){ .fn = on_wait };
        env_post(log->config.env, &w->task);
    }
    if (log->first_wait == NULL)
        log->last_wait = &log->first_wait;
    sync_step(log);
    if (log->is_stopping || slot_oldest_dead(log) != NULL)
        check_later(log);
}

static void on_synced(struct disk_req *dr, int rc);

static void sync_next(struct log *log)
{
    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        struct slot *s = &log->slots[i];

        if (!s->is_in_round)
            continue;
        s->is_in_round = false;
        if (s->state != SLOT_CURRENT && s->state != SLOT_FULL && s->state != SLOT_OLD)
            continue; /* nobody wants what was in it */
        log->sync_dr = (struct disk_req){
            .op = DISK_SYNC, .file = s->file, .done = on_synced, .arg = log
        };
        disk_submit(log->config.disk, &log->sync_dr);
        return;
    }
    sync_finish(log);
}

static void on_synced(struct disk_req *dr, int rc)
{
    struct log *log = dr->arg;

    if (rc != 0)
        log->sync_rc = rc;
    sync_next(log);
}

static void sync_step(struct log *log)
{
    if (log->is_syncing || log->first_wait == NULL || log->first_wait->want > log->n_done)
        return;
    log->is_syncing = true;
    log->sync_upto = log->n_done;
    log->sync_says = log->synced;
    if (log->current != NULL) {
        log->sync_says.synced_segment = log->current->h.number;
        log->sync_says.synced_sequence = log->sequence - 1;
    }
    log->sync_rc = 0;
    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        log->slots[i].is_in_round = log->slots[i].is_dirty;
        log->slots[i].is_dirty = false;
    }
    sync_next(log);
}

bool log_sync(struct log *log, struct log_wait *w)
{
    if (log->n_synced >= log->n_asked)
        return true;
    w->want = log->n_asked;
    w->next = NULL;
    *log->last_wait = w;
    log->last_wait = &w->next;
    sync_step(log);
    return false;
}

static void on_said(struct log_append *a, int rc)
{
    struct log *log = (struct log *)((char *)a - offsetof(struct log, say));

    log->is_saying = false;
    if (rc == 0)
        log_release(log, &a->place);
    if (log->n_synced == log->n_done - 1) /* nobody needs it on stable storage */
        log->n_synced++;
}

void log_say_synced(struct log *log)
{
    if (log->is_said || log->is_saying || log->synced.synced_segment == 0 ||
        log->is_current_bad || log->first != NULL || log->is_writing || log->is_stopping)
        return;
    log->is_saying = true;
    log->say = (struct log_append){ .kind = LOG_KIND_SYNCED, .done = on_said };
    if (append_fits(log, &log->say))
        log_append(log, &log->say);
    else
        log->is_saying = false; /* what begins the next segment will say it */
}

/* ---- what lies there from before ---- */

static int slots_take(struct log *log, struct log_list *l)
{
    for (unsigned i = 0; i < l->n; i++) {
        if (l->found[i].rc == -EPROTONOSUPPORT)
            return -EPROTONOSUPPORT;
    }
    for (unsigned i = 0; i < l->n; i++) {
        struct log_found *f = &l->found[i];
        struct slot *s = &log->slots[f->slot];

        s->has_file = true;
        if (f->rc == -ENODATA)
            continue; /* the list closes it */
        s->state = SLOT_OLD;
        s->file = f->file;
        s->h = f->h;
        s->h.bytes = f->size;
        s->is_odd = f->rc != 0 || f->size != log->config.segment_bytes;
        s->is_dirty = true; /* a process that was killed may have left it unsynced */
        log->n_asked = log->n_done = 1;
        if (s->h.number >= log->next_number)
            log->next_number = s->h.number + 1;
        f->file = NULL;
    }
    return 0;
}

static void on_list(struct log_list *l, int rc)
{
    struct log *log = (struct log *)((char *)l - offsetof(struct log, left.list));

    log->is_listing = false;
    if (rc == 0)
        rc = slots_take(log, l);
    log_list_close(l);
    if (rc != 0) {
        log->is_starting = false;
        log->start_done(log->start_arg, rc);
        stop_check(log);
        return;
    }
    check_later(log);
}

void log_start(struct log *log, void (*done)(void *arg, int rc), void *arg)
{
    log->start_done = done;
    log->start_arg = arg;
    log->is_starting = log->is_listing = true;
    log->left.list =
        (struct log_list){ .disk = log->config.disk, .loop = log->config.loop };
    log->left.list.done = on_list;
    log_list_start(&log->left.list);
}

int log_adopt(struct log *log, struct log_place *place)
{
    struct slot *s = slot_of_number(log, place->segment);

    if (s == NULL || s->state != SLOT_OLD)
        return -ENOENT;
    s->wanted++;
    place->file = s->file;
    return 0;
}

void log_forget_old(struct log *log, void (*done)(void *arg, int rc), void *arg)
{
    assert(!log->is_starting && !log->is_forgetting);
    log->forget_done = done;
    log->forget_arg = arg;
    log->forget_rc = 0;
    log->is_forgetting = true;
    log->erase_retry_ns = 0;
    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        if (log->slots[i].state == SLOT_OLD)
            slot_retire(&log->slots[i]);
    }
    check_later(log);
}

/* ---- segments of loops that are not there any more ---- */

static void leftovers_next_loop(struct log *log)
{
    struct log_list *l = &log->left.list;

    if (l->loop + 1 >= log->config.n_loops_max || log->is_stopping) {
        log->is_listing = false;
        forget_finish(log, 0);
        check_later(log);
        return;
    }
    l->loop++;
    log_list_start(l);
}

static void on_leftover(struct disk_req *dr, int rc);

/* One after the other, oldest first: header away for good, then the name. */
static void leftovers_next(struct log *log)
{
    struct leftovers *left = &log->left;
    struct log_list *l = &left->list;

    if (left->index == l->n) {
        log_list_close(l);
        leftovers_next_loop(log);
        return;
    }
    log_path(left->path, l->loop, l->found[left->index].slot);
    left->iov = (struct iovec){ .iov_base = (void *)(uintptr_t)zeros,
                                .iov_len = SEGMENT_PAGE_BYTES };
    left->dr = (struct disk_req){ .op = DISK_WRITE,
                                  .path = left->path,
                                  .file = l->found[left->index].file,
                                  .len = SEGMENT_PAGE_BYTES,
                                  .iov = &left->iov,
                                  .n_iov = 1,
                                  .done = on_leftover,
                                  .arg = log };
    disk_submit(log->config.disk, &left->dr);
}

static void on_leftover(struct disk_req *dr, int rc)
{
    struct log *log = dr->arg;

    if (rc != 0 && rc != -ENOENT) {
        log_list_close(&log->left.list);
        log->is_listing = false;
        forget_finish(log, rc);
        check_later(log);
        return;
    }
    if (dr->op == DISK_REMOVE) {
        log->left.index++;
        leftovers_next(log);
        return;
    }
    dr->op = dr->op == DISK_WRITE ? DISK_SYNC : DISK_REMOVE;
    disk_submit(log->config.disk, dr);
}

static void on_leftovers(struct log_list *l, int rc)
{
    struct log *log = (struct log *)((char *)l - offsetof(struct log, left.list));

    if (rc != 0) {
        log->is_listing = false;
        forget_finish(log, rc);
        check_later(log);
        return;
    }
    log->left.index = 0;
    leftovers_next(log);
}

static void leftovers_start(struct log *log)
{
    if (log->config.loop != 0 || log->config.n_loops >= log->config.n_loops_max) {
        forget_finish(log, 0);
        return;
    }
    log->is_listing = true;
    log->left.list =
        (struct log_list){ .disk = log->config.disk, .loop = log->config.n_loops };
    log->left.list.done = on_leftovers;
    log_list_start(&log->left.list);
}

/* ---- open and close ---- */

int log_open(const struct log_config *config, struct log **out)
{
    struct log *log = calloc(1, sizeof(*log));

    if (log == NULL)
        return -ENOMEM;
    assert(config->slots >= 2 && config->slots <= LOG_SLOTS_MAX);
    assert(config->segment_bytes >= LOG_SEGMENT_MIN &&
           config->segment_bytes <= LOG_SEGMENT_MAX &&
           config->segment_bytes % SEGMENT_PAGE_BYTES == 0);
    assert(config->n_loops > 0);
    log->config = *config;
    log->next_number = 1;
    log->last = &log->first;
    log->last_wait = &log->first_wait;
    log->check_task.fn = on_check;
    env_timer_init(&log->retry, on_retry);
    *out = log;
    return 0;
}

void log_stop(struct log *log, void (*done)(void *arg), void *arg)
{
    log->stop_done = done;
    log->stop_arg = arg;
    log->is_stopping = true;
    env_timer_stop(log->config.env, &log->retry);
    check_later(log);
}

void log_close(struct log *log)
{
    if (log == NULL)
        return;
    assert(log->first == NULL && log->first_wait == NULL && log->job.kind == JOB_NONE &&
           !log->is_writing && !log->is_syncing && !log->is_listing);
    env_timer_stop(log->config.env, &log->retry);
    for (unsigned i = 0; i < LOG_FILES_MAX; i++)
        slot_close(log, &log->slots[i]);
    free(log);
}

/* ---- how much ---- */

uint64_t log_used_bytes(const struct log *log)
{
    uint64_t n = 0;

    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        if (log->slots[i].state > SLOT_FREE)
            n += log->slots[i].h.bytes;
    }
    return n;
}

uint64_t log_max_bytes(const struct log *log)
{
    unsigned n = log->make_rc == 0 ? log->config.slots
                                   : count_ours(log) + count_state(log, SLOT_OLD);

    return n * log->config.segment_bytes;
}

uint64_t log_oldest(const struct log *log)
{
    uint64_t best = 0;

    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        const struct slot *s = &log->slots[i];

        if ((s->state == SLOT_OLD || s->state == SLOT_FULL || s->state == SLOT_DEAD) &&
            s->h.number != 0 && (best == 0 || s->h.number < best))
            best = s->h.number;
    }
    return best;
}

uint64_t log_oldest_wanted(const struct log *log)
{
    uint64_t best = 0;

    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        const struct slot *s = &log->slots[i];

        if ((s->state == SLOT_OLD || s->state == SLOT_FULL) && s->wanted > 0 &&
            (best == 0 || s->h.number < best))
            best = s->h.number;
    }
    return best;
}

uint64_t log_newest(const struct log *log)
{
    return log->current == NULL ? 0 : log->current->h.number;
}

uint64_t log_failures(const struct log *log)
{
    return log->failures;
}
