/*
 * log.c - append to a set of segment files; what waits at a time goes in one write.
 *
 * In:     log_append(), log_release(), from the journal. Thread: the storio loop.
 * Out:    disk requests; at most one append at a time (and one sync, and one background job).
 * Keeps:  a segment is used only when its file, its space and its name are on stable storage and
 *         what lay in it is erased there.
 * Yours:  when another segment is begun, LOG_FRAMES_BYTES_MAX.
 * Ask:    log_in.h for who does the rest.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storaged/wal/log_in.h"

/* ---- what there is ---- */

unsigned log_slot_index(const struct log *log, const struct slot *slot)
{
    return (unsigned)(slot - log->slots);
}

void log_slot_set(struct log *log, struct slot *s, enum slot_state state)
{
    log->n_in_state[s->state]--;
    log->used_bytes -= s->state > SLOT_FREE ? s->h.bytes : 0;
    s->state = state;
    log->n_in_state[s->state]++;
    log->used_bytes += s->state > SLOT_FREE ? s->h.bytes : 0;
}

unsigned log_count_files(const struct log *log)
{
    unsigned n = 0;

    for (unsigned i = 0; i < LOG_FILES_MAX; i++)
        n += log->slots[i].has_file;
    return n;
}

unsigned log_count_ours(const struct log *log)
{
    return LOG_FILES_MAX - log->n_in_state[SLOT_NONE] - log->n_in_state[SLOT_OLD];
}

struct slot *log_slot_of_number(struct log *log, uint64_t number)
{
    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        struct slot *s = &log->slots[i];

        if (number != 0 && s->state > SLOT_FREE && s->h.number == number)
            return s;
    }
    return NULL;
}

struct slot *log_slot_of(struct log *log, const struct log_place *place)
{
    struct slot *s = &log->slots[place->slot];

    assert(place->slot < LOG_FILES_MAX && s->state > SLOT_FREE &&
           s->h.number == place->segment);
    return s;
}

static struct slot *slot_first_in(struct log *log, enum slot_state state)
{
    if (log->n_in_state[state] == 0)
        return NULL;
    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        if (log->slots[i].state == state)
            return &log->slots[i];
    }
    return NULL;
}

struct slot *log_slot_oldest_dead(struct log *log)
{
    struct slot *best = NULL;

    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        struct slot *s = &log->slots[i];

        if (s->state == SLOT_DEAD && (best == NULL || s->h.number < best->h.number))
            best = s;
    }
    return best;
}

struct slot *log_slot_to_make(struct log *log)
{
    struct slot *best = NULL;

    if (log_count_ours(log) >= log->config.slots)
        return NULL;
    for (unsigned i = 0; i < LOG_FILES_MAX; i++) {
        struct slot *s = &log->slots[i];

        if (s->state == SLOT_NONE && (best == NULL || (s->has_file && !best->has_file)))
            best = s;
    }
    return best;
}

void log_slot_retire(struct log *log, struct slot *s)
{
    log_slot_set(log, s, s->wanted == 0 ? SLOT_DEAD : SLOT_FULL);
}

/* ---- appends ---- */

static void on_append_failed(struct env_task *task)
{
    struct log_append *a =
        (struct log_append *)((char *)task - offsetof(struct log_append, task));
    struct log *log = a->log;

    a->done(a, a->rc);
    log_sync_step(log); /* one may have waited for it */
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

bool log_append_fits(const struct log *log, const struct log_append *a)
{
    return log->current != NULL && log->end + log_frame_bytes(a->len, a->head_len) <=
                                       log->config.segment_bytes - SEGMENT_PAGE_BYTES;
}

/* Those that were written leave the list before any of them is told: whoever is may append more. */
static void on_written(struct disk_req *dr, int rc)
{
    struct log *log = dr->arg;
    struct log_append *done = log->first, *a = NULL;

    for (unsigned i = 0; i < log->n_writing; i++)
        a = append_pop(log);
    a->next = NULL;
    log->is_writing = false;
    log->current->is_dirty = true;
    if (rc == 0) {
        log->end += log->n_writing_bytes;
        log->sequence += log->n_writing;
    } else {
        log->current->wanted -= log->n_writing;
        log->is_current_bad = true;
        rc = rc == -ENOSPC ? rc : -EIO;
    }
    for (a = done; a != NULL && rc == 0; a = a->next) {
        if (a->kind != LOG_KIND_SYNCED)
            log->n_entries = log->n_done;
    }
    if (rc == 0)
        log->n_said = log->n_saying;
    while (done != NULL) {
        a = done;
        done = a->next;
        a->done(a, rc);
    }
    log_sync_step(log);
    log_append_step(log);
    if (log->is_stopping)
        log_check_later(log);
}

/* The frame of an append behind those that are in the write; returns its pieces. */
static unsigned frame_put(struct log *log, struct log_append *a, struct iovec *iov)
{
    struct slot *s = log->current;
    struct frame_says says = log->synced;
    uint64_t at = log->end + log->n_writing_bytes,
             len = log_frame_bytes(a->len, a->head_len);
    size_t tail;

    says.sequence = log->sequence + log->n_writing;
    says.kind = a->kind;
    says.since = log->since;
    tail = log_frame_put(a->frame_header, a->frame_tail, &s->h, &says, a->iov, a->n_iov,
                         a->len, a->head_len);
    memset(a->frame_tail + tail, 0, len - LOG_FRAME_HEADER_BYTES - a->len - tail);
    iov[0] =
        (struct iovec){ .iov_base = a->frame_header, .iov_len = LOG_FRAME_HEADER_BYTES };
    if (a->n_iov > 0)
        memcpy(&iov[1], a->iov, a->n_iov * sizeof(a->iov[0]));
    iov[a->n_iov + 1] =
        (struct iovec){ .iov_base = a->frame_tail,
                        .iov_len = len - LOG_FRAME_HEADER_BYTES - a->len };
    a->place = (struct log_place){ .segment = s->h.number,
                                   .offset = at + LOG_FRAME_HEADER_BYTES,
                                   .len = (uint32_t)a->len,
                                   .file = s->file,
                                   .slot = (uint8_t)log_slot_index(log, s),
                                   .sequence = says.sequence };
    s->wanted++;
    log->n_writing++;
    log->n_writing_bytes += len;
    return a->n_iov + 2;
}

/* Is there room for it in the write, and in the segment? */
static bool joins(const struct log *log, const struct log_append *a, unsigned n_iov)
{
    uint64_t len = log_frame_bytes(a->len, a->head_len);

    return n_iov + a->n_iov + 2 <= LOG_FRAMES_IOV_MAX &&
           log->n_writing_bytes + len <= LOG_FRAMES_BYTES_MAX &&
           log->end + log->n_writing_bytes + len <=
               log->config.segment_bytes - SEGMENT_PAGE_BYTES;
}

/* Whole pages are written: no page of an earlier use has to be read for what lies beside an entry. */
static struct iovec zeros_iov(uint64_t len)
{
    static const uint8_t zeros[SEGMENT_PAGE_BYTES];

    assert(len < sizeof(zeros));
    return (struct iovec){ .iov_base = (void *)(uintptr_t)zeros, .iov_len = len };
}

static uint64_t page_up(uint64_t at)
{
    return (at + SEGMENT_PAGE_BYTES - 1) / SEGMENT_PAGE_BYTES * SEGMENT_PAGE_BYTES;
}

/* From the end of the write to that of its page, unless that page was written before. */
static uint64_t bytes_beyond(const struct log *log)
{
    uint64_t end = log->end + log->n_writing_bytes;

    return end <= page_up(log->end) ? 0 : page_up(end) - end;
}

/* What the log says of itself begins a page, so that it is not lost with the frames it speaks of. */
static void page_begin(struct log *log)
{
    uint64_t at = page_up(log->end);

    if (at + log_frame_bytes(0, 0) <= log->config.segment_bytes - SEGMENT_PAGE_BYTES)
        log->end = at;
}

/* The first of those that wait, and what fits behind it. */
static void append_write(struct log *log)
{
    const struct log_append *a = log->first;
    uint64_t beyond;
    unsigned n_iov;

    if (a == &log->say)
        page_begin(log);
    log->n_writing = 0;
    log->n_writing_bytes = 0;
    n_iov = frame_put(log, log->first, log->frames);
    while (a->next != NULL && joins(log, a->next, n_iov)) {
        n_iov += frame_put(log, a->next, log->frames + n_iov);
        a = a->next;
    }
    beyond = bytes_beyond(log);
    log->frames[n_iov++] = zeros_iov(beyond);
    log->n_saying = log->n_synced;
    log->is_writing = true;
    log->dr = (struct disk_req){ .op = DISK_WRITE,
                                 .file = log->current->file,
                                 .offset = log->end,
                                 .len = log->n_writing_bytes + beyond,
                                 .iov = log->frames,
                                 .n_iov = n_iov,
                                 .done = on_written,
                                 .arg = log };
    disk_submit(log->config.disk, &log->dr);
}

static void current_retire(struct log *log)
{
    if (log->current == NULL)
        return;
    log_slot_retire(log, log->current);
    log->current = NULL;
    log_check_later(log);
}

static void begin_failed(struct log *log)
{
    log_slot_set(log, log->begun, SLOT_DEAD); /* one of its headers may be there */
    log_check_later(log);
    append_fail_later(log, -EIO);
}

static void on_begun(struct disk_req *dr, int rc)
{
    struct log *log = dr->arg;

    if (rc == 0 && dr->offset != 0) { /* the copy; now the first page */
        dr->offset = 0;
        disk_submit(log->config.disk, dr);
        return;
    }
    log->is_writing = false;
    if (rc == 0) {
        current_retire(log);
        log->current = log->begun;
        log_slot_set(log, log->current, SLOT_CURRENT);
        log->current->is_dirty = true;
        log->is_current_bad = false;
        log->end = SEGMENT_PAGE_BYTES;
        log->sequence = 1;
        log_check_later(log); /* one more ahead */
    } else {
        begin_failed(log);
    }
    log_append_step(log);
    if (log->is_stopping)
        log_check_later(log);
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
    log->header_iov[0] =
        (struct iovec){ .iov_base = log->header, .iov_len = sizeof(log->header) };
    log->header_iov[1] = zeros_iov(SEGMENT_PAGE_BYTES - sizeof(log->header));
    log->dr = (struct disk_req){ .op = DISK_WRITE, /* the copy, then the header */
                                 .file = s->file,
                                 .offset = s->h.bytes - SEGMENT_PAGE_BYTES,
                                 .len = SEGMENT_PAGE_BYTES,
                                 .iov = log->header_iov,
                                 .n_iov = 2,
                                 .done = on_begun,
                                 .arg = log };
    disk_submit(log->config.disk, &log->dr);
}

/* 0: one will be free, and then log_append_step() is called; else why not. */
static int segment_wait(struct log *log)
{
    uint64_t now = env_now_ns(log->config.env);
    struct slot *make = log_slot_to_make(log);

    if (log->job.kind == JOB_NONE && log->current != NULL && log->current->wanted == 0)
        current_retire(log);
    if (log_slot_oldest_dead(log) != NULL && now < log->erase_retry_ns)
        return -EIO;
    if (log->job.kind == JOB_NONE && log_slot_oldest_dead(log) == NULL &&
        (make == NULL || now < log->make_retry_ns))
        return make != NULL && log->make_rc != 0 ? log->make_rc : -ENOSPC;
    log_check_later(log);
    return 0;
}

void log_append_step(struct log *log)
{
    while (log->first != NULL && !log->is_writing) {
        struct slot *free_slot = slot_first_in(log, SLOT_FREE);
        int rc;

        if (log_append_fits(log, log->first) &&
            (!log->is_current_bad || free_slot == NULL)) {
            append_write(log);
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
    log_append_step(log);
}

void log_release(struct log *log, const struct log_place *place)
{
    struct slot *s = log_slot_of(log, place);

    assert(s->wanted > 0);
    s->wanted--;
    if (s->state != SLOT_FULL || s->wanted > 0)
        return;
    log_slot_set(log, s, SLOT_DEAD);
    if (!log->is_stopping) /* then the next start erases it; and we may be closed any time */
        log_check_later(log);
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
    log->n_in_state[SLOT_NONE] = LOG_FILES_MAX;
    log->next_number = 1;
    log->last = &log->first;
    log->last_wait = &log->first_wait;
    log_jobs_init(log);
    log_say_init(log);
    *out = log;
    return 0;
}

void log_stop(struct log *log, void (*done)(void *arg), void *arg)
{
    log->stop_done = done;
    log->stop_arg = arg;
    log_say(log);
    log->is_stopping = true;
    env_timer_stop(log->config.env, &log->retry);
    env_timer_stop(log->config.env, &log->quiet);
    log_check_later(log);
}

void log_close(struct log *log)
{
    if (log == NULL)
        return;
    assert(log->first == NULL && log->first_wait == NULL && log->job.kind == JOB_NONE &&
           !log->is_writing && !log->is_syncing && !log->is_listing);
    env_timer_stop(log->config.env, &log->retry);
    env_timer_stop(log->config.env, &log->quiet);
    for (unsigned i = 0; i < LOG_FILES_MAX; i++)
        log_slot_close(log, &log->slots[i]);
    free(log);
}

/* ---- how much ---- */

uint64_t log_used_bytes(const struct log *log)
{
    return log->used_bytes;
}

uint64_t log_filled_bytes(const struct log *log)
{
    return log->used_bytes -
           (log->current == NULL ? 0 : log->config.segment_bytes - log->end);
}

uint64_t log_max_bytes(const struct log *log)
{
    unsigned n = log->make_rc == 0 ? log->config.slots
                                   : log_count_ours(log) + log->n_in_state[SLOT_OLD];

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
