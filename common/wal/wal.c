/*
 * wal.c - append to a set of segment files; all waiting appends go in one write.
 *
 * In:     wal_append(), wal_release(), from the journal. Thread: the storio loop.
 * Out:    disk requests; at most one append at a time (and one sync, and one background
 *         job).
 * Keeps:  a segment is used only when its file, space and name are stable and its old
 *         contents are erased.
 * Yours:  when another segment is begun, WAL_FRAMES_BYTES_MAX.
 * Ask:    wal_in.h for the other files of the log.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/list.h"
#include "common/wal/wal_in.h"

/* ---- slots ---- */

unsigned wal_slot_index(const struct wal *wal, const struct slot *slot)
{
    assert(slot >= wal->slots && slot < wal->slots + WAL_FILES_MAX);
    return (unsigned)(slot - wal->slots);
}

void wal_slot_set(struct wal *wal, struct slot *s, enum slot_state state)
{
    assert(wal->n_in_state[s->state] > 0);
    assert(s->state <= SLOT_FREE || wal->used_bytes >= s->h.bytes);
    wal->n_in_state[s->state]--;
    wal->used_bytes -= s->state > SLOT_FREE ? s->h.bytes : 0;
    s->state = state;
    wal->n_in_state[s->state]++;
    wal->used_bytes += s->state > SLOT_FREE ? s->h.bytes : 0;
}

unsigned wal_count_files(const struct wal *wal)
{
    unsigned n = 0;

    for (unsigned i = 0; i < WAL_FILES_MAX; i++)
        n += wal->slots[i].has_file;
    return n;
}

unsigned wal_count_ours(const struct wal *wal)
{
    return WAL_FILES_MAX - wal->n_in_state[SLOT_NONE] - wal->n_in_state[SLOT_OLD];
}

struct slot *wal_slot_of_number(struct wal *wal, uint64_t number)
{
    for (unsigned i = 0; i < WAL_FILES_MAX; i++) {
        struct slot *s = &wal->slots[i];

        if (number != 0 && s->state > SLOT_FREE && s->h.number == number)
            return s;
    }
    return NULL;
}

struct slot *wal_slot_of(struct wal *wal, const struct wal_place *place)
{
    struct slot *s = &wal->slots[place->slot];

    assert(place->slot < WAL_FILES_MAX && s->state > SLOT_FREE &&
           s->h.number == place->segment);
    return s;
}

static struct slot *slot_first_in(struct wal *wal, enum slot_state state)
{
    if (wal->n_in_state[state] == 0)
        return NULL;
    for (unsigned i = 0; i < WAL_FILES_MAX; i++) {
        if (wal->slots[i].state == state)
            return &wal->slots[i];
    }
    return NULL;
}

struct slot *wal_slot_oldest_dead(struct wal *wal)
{
    struct slot *best = NULL;

    for (unsigned i = 0; i < WAL_FILES_MAX; i++) {
        struct slot *s = &wal->slots[i];
        bool counts =
            s->state == SLOT_DEAD ||
            (wal->config.in_order && (s->state == SLOT_FULL || s->state == SLOT_OLD));

        if (counts && (best == NULL || s->h.number < best->h.number))
            best = s;
    }
    return best != NULL && best->state == SLOT_DEAD ? best : NULL;
}

struct slot *wal_slot_to_make(struct wal *wal)
{
    struct slot *best = NULL;

    if (wal_count_ours(wal) >= wal->config.slots)
        return NULL;
    for (unsigned i = 0; i < WAL_FILES_MAX; i++) {
        struct slot *s = &wal->slots[i];

        if (s->state == SLOT_NONE && (best == NULL || (s->has_file && !best->has_file)))
            best = s;
    }
    return best;
}

void wal_slot_retire(struct wal *wal, struct slot *s)
{
    assert(s->state == SLOT_CURRENT || s->state == SLOT_OLD);
    wal_slot_set(wal, s, s->wanted == 0 ? SLOT_DEAD : SLOT_FULL);
}

/* ---- appends ---- */

static void on_append_failed(struct env_task *task)
{
    struct wal_append *a = container_of(task, struct wal_append, task);
    struct wal *wal = a->wal;

    a->done(a, a->rc);
    wal_sync_step(wal); /* a sync may wait for this append */
}

static struct wal_append *append_pop(struct wal *wal)
{
    struct wal_append *a = wal->first;

    assert(a != NULL && wal->n_done < wal->n_asked);
    wal->first = a->next;
    if (wal->first == NULL)
        wal->last = &wal->first;
    wal->n_done++;
    return a;
}

static void append_fail_later(struct wal *wal, int rc)
{
    struct wal_append *a = append_pop(wal);

    a->rc = rc;
    a->task = (struct env_task){ .fn = on_append_failed };
    env_post(wal->config.env, &a->task);
}

bool wal_append_fits(const struct wal *wal, const struct wal_append *a)
{
    return wal->current != NULL && wal->end + wal_frame_bytes(a->len, a->head_len) <=
                                       wal->config.segment_bytes - SEGMENT_PAGE_BYTES;
}

/* Takes all written appends off the list before calling their owners, who may append
 * more. */
static void on_written(struct disk_req *dr, int rc)
{
    struct wal *wal = dr->arg;
    struct wal_append *done = wal->first, *a = NULL;

    assert(wal->is_writing && wal->n_writing > 0 && wal->current != NULL);
    for (unsigned i = 0; i < wal->n_writing; i++)
        a = append_pop(wal);
    a->next = NULL;
    wal->is_writing = false;
    wal->current->is_dirty = true;
    if (rc == 0) {
        wal->end += wal->n_writing_bytes;
        wal->sequence += wal->n_writing;
    } else {
        wal->current->wanted -= wal->n_writing;
        wal->is_current_bad = true;
        rc = rc == -ENOSPC ? rc : -EIO;
    }
    for (a = done; a != NULL && rc == 0; a = a->next) {
        if (a->kind != WAL_KIND_SYNCED)
            wal->n_entries = wal->n_done;
    }
    if (rc == 0)
        wal->n_said = wal->n_saying;
    while (done != NULL) {
        a = done;
        done = a->next;
        a->done(a, rc);
    }
    wal_sync_step(wal);
    wal_append_step(wal);
    if (wal->is_stopping)
        wal_check_later(wal);
}

/* Builds the frame of an append behind those already in the write; returns its pieces. */
static unsigned frame_put(struct wal *wal, struct wal_append *a, struct iovec *iov)
{
    struct slot *s = wal->current;
    struct frame_says says = wal->synced;
    uint64_t at = wal->end + wal->n_writing_bytes,
             len = wal_frame_bytes(a->len, a->head_len);
    size_t tail;

    assert(at + len <= wal->config.segment_bytes - SEGMENT_PAGE_BYTES);
    says.sequence = wal->sequence + wal->n_writing;
    says.kind = a->kind;
    says.since = wal->since;
    tail = wal_frame_put(a->frame_header, a->frame_tail, &s->h, &says, a->iov, a->n_iov,
                         a->len, a->head_len);
    memset(a->frame_tail + tail, 0, len - WAL_FRAME_HEADER_BYTES - a->len - tail);
    iov[0] =
        (struct iovec){ .iov_base = a->frame_header, .iov_len = WAL_FRAME_HEADER_BYTES };
    if (a->n_iov > 0)
        memcpy(&iov[1], a->iov, a->n_iov * sizeof(a->iov[0]));
    iov[a->n_iov + 1] =
        (struct iovec){ .iov_base = a->frame_tail,
                        .iov_len = len - WAL_FRAME_HEADER_BYTES - a->len };
    a->place = (struct wal_place){ .segment = s->h.number,
                                   .offset = at + WAL_FRAME_HEADER_BYTES,
                                   .len = (uint32_t)a->len,
                                   .file = s->file,
                                   .slot = (uint8_t)wal_slot_index(wal, s),
                                   .sequence = says.sequence };
    s->wanted++;
    wal->n_writing++;
    wal->n_writing_bytes += len;
    return a->n_iov + 2;
}

/* True if an append fits into the write and the segment. */
static bool joins(const struct wal *wal, const struct wal_append *a, unsigned n_iov)
{
    uint64_t len = wal_frame_bytes(a->len, a->head_len);

    return n_iov + a->n_iov + 2 <= WAL_FRAMES_IOV_MAX &&
           wal->n_writing_bytes + len <= WAL_FRAMES_BYTES_MAX &&
           wal->end + wal->n_writing_bytes + len <=
               wal->config.segment_bytes - SEGMENT_PAGE_BYTES;
}

/* Returns zeros that fill up a page. Whole pages are written, so no page of an earlier
 * use has to be read first. */
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

/* Returns the bytes from the end of the write to the end of its page; 0 if that page
 * was written before. */
static uint64_t bytes_beyond(const struct wal *wal)
{
    uint64_t end = wal->end + wal->n_writing_bytes;

    return end <= page_up(wal->end) ? 0 : page_up(end) - end;
}

/* Lets a note about the log begin a page, so that it is not lost with the frames it
 * describes. */
static void page_begin(struct wal *wal)
{
    uint64_t at = page_up(wal->end);

    if (at + wal_frame_bytes(0, 0) <= wal->config.segment_bytes - SEGMENT_PAGE_BYTES)
        wal->end = at;
}

/* Writes the first waiting append, and those behind it that fit. */
static void append_write(struct wal *wal)
{
    const struct wal_append *a = wal->first;
    uint64_t beyond;
    unsigned n_iov;

    assert(a != NULL && !wal->is_writing && wal->current != NULL);
    if (a == &wal->say)
        page_begin(wal);
    wal->n_writing = 0;
    wal->n_writing_bytes = 0;
    n_iov = frame_put(wal, wal->first, wal->frames);
    while (a->next != NULL && joins(wal, a->next, n_iov)) {
        n_iov += frame_put(wal, a->next, wal->frames + n_iov);
        a = a->next;
    }
    beyond = bytes_beyond(wal);
    wal->frames[n_iov++] = zeros_iov(beyond);
    wal->n_saying = wal->n_synced;
    wal->is_writing = true;
    wal->dr = (struct disk_req){ .op = DISK_WRITE,
                                 .file = wal->current->file,
                                 .offset = wal->end,
                                 .len = wal->n_writing_bytes + beyond,
                                 .iov = wal->frames,
                                 .n_iov = n_iov,
                                 .done = on_written,
                                 .arg = wal };
    disk_submit(wal->config.disk, &wal->dr);
}

static void current_retire(struct wal *wal)
{
    if (wal->current == NULL)
        return;
    wal_slot_retire(wal, wal->current);
    wal->current = NULL;
    wal_check_later(wal);
}

static void begin_failed(struct wal *wal)
{
    assert(wal->begun != NULL && wal->begun->state == SLOT_FREE);
    wal_slot_set(wal, wal->begun, SLOT_DEAD); /* a header of it may be written */
    wal_check_later(wal);
    append_fail_later(wal, -EIO);
}

static void on_begun(struct disk_req *dr, int rc)
{
    struct wal *wal = dr->arg;

    assert(wal->is_writing && wal->begun != NULL);
    if (rc == 0 && dr->offset != 0) { /* the copy is written; now the first page */
        dr->offset = 0;
        disk_submit(wal->config.disk, dr);
        return;
    }
    wal->is_writing = false;
    if (rc == 0) {
        current_retire(wal);
        wal->current = wal->begun;
        wal_slot_set(wal, wal->current, SLOT_CURRENT);
        wal->current->is_dirty = true;
        wal->is_current_bad = false;
        wal->end = SEGMENT_PAGE_BYTES;
        wal->sequence = 1;
        wal_check_later(wal); /* makes another free segment */
    } else {
        begin_failed(wal);
    }
    wal_append_step(wal);
    if (wal->is_stopping)
        wal_check_later(wal);
}

static void segment_begin(struct wal *wal, struct slot *s)
{
    assert(s->state == SLOT_FREE && s->file != NULL && !wal->is_writing);
    if (wal->since == 0)
        wal->since = wal->next_number;
    s->h = (struct segment_header){ .number = wal->next_number++,
                                    .bytes = wal->config.segment_bytes };
    env_random(wal->config.env, &s->h.salt, sizeof(s->h.salt));
    segment_header_put(wal->header, &s->h);
    s->wanted = 0;
    wal->begun = s;
    wal->is_writing = true;
    wal->header_iov[0] =
        (struct iovec){ .iov_base = wal->header, .iov_len = sizeof(wal->header) };
    wal->header_iov[1] = zeros_iov(SEGMENT_PAGE_BYTES - sizeof(wal->header));
    wal->dr = (struct disk_req){ .op = DISK_WRITE, /* the copy; the header follows */
                                 .file = s->file,
                                 .offset = s->h.bytes - SEGMENT_PAGE_BYTES,
                                 .len = SEGMENT_PAGE_BYTES,
                                 .iov = wal->header_iov,
                                 .n_iov = 2,
                                 .done = on_begun,
                                 .arg = wal };
    disk_submit(wal->config.disk, &wal->dr);
}

static void on_begin_synced(struct wal_wait *w, int rc)
{
    struct wal *wal = container_of(w, struct wal, begin_wait);

    (void)rc; /* counted as a failure of the log */
    wal->is_begin_waiting = false;
    wal_append_step(wal);
}

/* In order, a segment begins when all frames before it are stable: no loss of power takes
 * the end of one segment and leaves frames of the next. */
static bool segment_may_begin(struct wal *wal)
{
    if (!wal->config.in_order || wal->n_synced >= wal->n_done)
        return true;
    if (!wal->is_begin_waiting) {
        wal->is_begin_waiting = true;
        wal->begin_wait.done = on_begin_synced;
        wal_sync_written(wal, &wal->begin_wait);
    }
    return false;
}

/* Returns 0 if a segment will be free (then wal_append_step() is called), else why
 * not. */
static int segment_wait(struct wal *wal)
{
    uint64_t now = env_now_ns(wal->config.env);
    struct slot *make = wal_slot_to_make(wal);

    if (wal->job.kind == JOB_NONE && wal->current != NULL && wal->current->wanted == 0)
        current_retire(wal);
    if (wal_slot_oldest_dead(wal) != NULL && now < wal->erase_retry_ns)
        return -EIO;
    if (wal->job.kind == JOB_NONE && wal_slot_oldest_dead(wal) == NULL &&
        (make == NULL || now < wal->make_retry_ns))
        return make != NULL && wal->make_rc != 0 ? wal->make_rc : -ENOSPC;
    wal_check_later(wal);
    return 0;
}

void wal_append_step(struct wal *wal)
{
    while (wal->first != NULL && !wal->is_writing) {
        struct slot *free_slot = slot_first_in(wal, SLOT_FREE);
        int rc;

        if (wal_append_fits(wal, wal->first) &&
            (!wal->is_current_bad || free_slot == NULL)) {
            append_write(wal);
            return;
        }
        if (free_slot != NULL) {
            if (segment_may_begin(wal))
                segment_begin(wal, free_slot);
            return;
        }
        rc = segment_wait(wal);
        if (rc == 0)
            return;
        append_fail_later(wal, rc == -ENOSPC ? rc : -EIO);
    }
}

void wal_append(struct wal *wal, struct wal_append *a)
{
    assert(wal->life >= WAL_RUNS && !wal->is_stopping);
    assert(a->kind != 0 && a->len <= WAL_ENTRY_MAX && a->n_iov <= WAL_IOV_MAX);
    assert(a->head_len <= WAL_HEAD_MAX && a->head_len <= a->len);
    a->wal = wal;
    a->next = NULL;
    *wal->last = a;
    wal->last = &a->next;
    wal->n_asked++;
    wal_append_step(wal);
}

void wal_release(struct wal *wal, const struct wal_place *place)
{
    struct slot *s = wal_slot_of(wal, place);

    assert(s->wanted > 0);
    s->wanted--;
    if (s->state != SLOT_FULL || s->wanted > 0)
        return;
    wal_slot_set(wal, s, SLOT_DEAD);
    /* a stopping log may be closed any time; the next start erases the segment */
    if (!wal->is_stopping)
        wal_check_later(wal);
}

/* ---- open and close ---- */

int wal_open(const struct wal_config *config, struct wal **out)
{
    struct wal *wal = calloc(1, sizeof(*wal));

    if (wal == NULL)
        return -ENOMEM;
    assert(config->slots >= 2 && config->slots <= WAL_SLOTS_MAX);
    assert(config->segment_bytes >= WAL_SEGMENT_MIN &&
           config->segment_bytes <= WAL_SEGMENT_MAX &&
           config->segment_bytes % SEGMENT_PAGE_BYTES == 0);
    assert(config->n_loops > 0);
    wal->config = *config;
    wal->n_in_state[SLOT_NONE] = WAL_FILES_MAX;
    wal->next_number = 1;
    wal->last = &wal->first;
    wal->last_wait = &wal->first_wait;
    wal_jobs_init(wal);
    wal_say_init(wal);
    *out = wal;
    return 0;
}

void wal_stop(struct wal *wal, void (*done)(void *arg), void *arg)
{
    assert(!wal->is_stopping && done != NULL);
    wal->stop_done = done;
    wal->stop_arg = arg;
    wal_say(wal);
    wal->is_stopping = true;
    env_timer_stop(wal->config.env, &wal->retry);
    env_timer_stop(wal->config.env, &wal->quiet);
    wal_check_later(wal);
}

void wal_close(struct wal *wal)
{
    if (wal == NULL)
        return;
    assert(wal->first == NULL && wal->first_wait == NULL && wal->job.kind == JOB_NONE &&
           !wal->is_writing && !wal->is_syncing && !wal_is_listing(wal));
    env_timer_stop(wal->config.env, &wal->retry);
    env_timer_stop(wal->config.env, &wal->quiet);
    for (unsigned i = 0; i < WAL_FILES_MAX; i++)
        wal_slot_close(wal, &wal->slots[i]);
    free(wal);
}

/* ---- sizes ---- */

uint64_t wal_used_bytes(const struct wal *wal)
{
    return wal->used_bytes;
}

uint64_t wal_filled_bytes(const struct wal *wal)
{
    return wal->used_bytes -
           (wal->current == NULL ? 0 : wal->config.segment_bytes - wal->end);
}

uint64_t wal_max_bytes(const struct wal *wal)
{
    unsigned n = wal->make_rc == 0 ? wal->config.slots
                                   : wal_count_ours(wal) + wal->n_in_state[SLOT_OLD];

    return n * wal->config.segment_bytes;
}

uint64_t wal_oldest(const struct wal *wal)
{
    uint64_t best = 0;

    for (unsigned i = 0; i < WAL_FILES_MAX; i++) {
        const struct slot *s = &wal->slots[i];

        if ((s->state == SLOT_OLD || s->state == SLOT_FULL || s->state == SLOT_DEAD) &&
            s->h.number != 0 && (best == 0 || s->h.number < best))
            best = s->h.number;
    }
    return best;
}

uint64_t wal_oldest_wanted(const struct wal *wal)
{
    uint64_t best = 0;

    for (unsigned i = 0; i < WAL_FILES_MAX; i++) {
        const struct slot *s = &wal->slots[i];

        if ((s->state == SLOT_OLD || s->state == SLOT_FULL) && s->wanted > 0 &&
            (best == 0 || s->h.number < best))
            best = s->h.number;
    }
    return best;
}

uint64_t wal_newest(const struct wal *wal)
{
    return wal->current == NULL ? 0 : wal->current->h.number;
}

uint64_t wal_failures(const struct wal *wal)
{
    return wal->failures;
}
