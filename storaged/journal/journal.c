/*
 * journal.c - the overwrite journal of one loop: its size, waiters, commits, timer, stop.
 *
 * In:     commits from the ops; a timer. Thread: the storio loop.
 * Out:    the other journal_*.c, wal.h.
 * Keeps:  a frame is released only when none of its contents can be wanted any more.
 * Yours:  sizes of segments, TICK_MS.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "storaged/journal/journal_in.h"

enum {
    TICK_MS = 500,
    SEGMENT_BYTES = 8 << 20,
    SEGMENTS_MIN = 4,
};

struct journal_index *journal_get_index(struct journal *j)
{
    return &j->index;
}

/* ---- size ---- */

uint64_t journal_segment_bytes(const struct journal *j)
{
    const struct journal_config *c = &j->config;
    uint64_t n = c->journal_bytes / (c->n_loops == 0 ? 1 : c->n_loops) / SEGMENTS_MIN;

    n = n < SEGMENT_BYTES ? n : SEGMENT_BYTES;
    n = n / PROJFILE_PAGE_BYTES * PROJFILE_PAGE_BYTES;
    return n > WAL_SEGMENT_MIN ? n : WAL_SEGMENT_MIN;
}

unsigned journal_slots(const struct journal *j)
{
    const struct journal_config *c = &j->config;
    uint64_t n =
        c->journal_bytes / (c->n_loops == 0 ? 1 : c->n_loops) / journal_segment_bytes(j);

    n = n > SEGMENTS_MIN ? n : SEGMENTS_MIN;
    return n < WAL_SLOTS_MAX ? (unsigned)n : WAL_SLOTS_MAX;
}

/* Reports pressure at five eighths of what requests may use, before they have to wait,
 * even if there are few segments. */
bool journal_has_pressure(const struct journal *j)
{
    return 8 * wal_filled_bytes(j->wal) + 5 * journal_segment_bytes(j) >
           5 * wal_max_bytes(j->wal);
}

/* Keeps one segment free for frames that make room: copies, fences, drops. */
bool journal_is_full(const struct journal *j)
{
    return wal_used_bytes(j->wal) + journal_segment_bytes(j) > wal_max_bytes(j->wal);
}

void journal_tell_failures(struct journal *j)
{
    assert(j->wal == NULL || j->failures_told <= wal_failures(j->wal));
    for (; j->wal != NULL && j->failures_told < wal_failures(j->wal); j->failures_told++)
        generations_lost_bytes(j->config.generations);
}

void journal_health(const struct journal *j, Rozo__StHealthResp *out)
{
    static char lost[] =
        "its journal lost frames of unknown contents: scrub this storage";
    static char damaged[] = "its journal was damaged; healing replaces the lost records";

    if (j->n_lost > 0)
        out->problem = lost;
    else if (j->n_damaged > 0 && out->problem != lost)
        out->problem = damaged;
    if (j->wal != NULL) {
        out->journal_bytes += wal_used_bytes(j->wal);
        out->journal_max_bytes += wal_max_bytes(j->wal);
    }
    out->pending_records += j->index.n_records + j->index.n_marks;
    out->uncommitted += j->index.n_uncommitted;
}

/* ---- waiters ---- */

void journal_wake(struct journal *j)
{
    while (!list_is_empty(&j->waiters)) {
        struct journal_waiter *w =
            container_of(j->waiters.next, struct journal_waiter, link);

        list_remove(&w->link);
        env_post(j->config.env, w->task);
    }
}

void journal_wait(struct journal *j, struct journal_waiter *waiter)
{
    assert(waiter->task != NULL && list_is_empty(&waiter->link));
    list_add_tail(&j->waiters, &waiter->link);
}

void journal_wait_for_room(struct journal *j, struct journal_waiter *waiter)
{
    journal_wait(j, waiter);
    journal_timer_start(j);
    journal_run(j);
}

/* Bounds the marks of a file, since requests that need the marks look at each of them. */
bool journal_has_many_marks(const struct pending_file *f, unsigned max)
{
    return f != NULL && f->n_marks >= max;
}

/* ---- for callers that append ---- */

struct wal *journal_log(struct journal *j)
{
    return j->wal;
}

struct journal_frame *journal_frame_new(struct journal *j, const struct wal_append *a)
{
    struct journal_frame *entry = journal_index_add_frame(&j->index, &a->place);

    assert(a->kind != 0);
    if (entry == NULL) {
        wal_release(j->wal, &a->place);
        return NULL;
    }
    journal_frame_init(j, entry, a->kind);
    journal_timer_start(j);
    return entry;
}

uint64_t journal_newest(const struct journal *j)
{
    return j->index.n_numbers;
}

void journal_synced(struct journal *j, uint64_t number)
{
    assert(number <= j->index.n_numbers);
    if (number > j->synced_number)
        j->synced_number = number;
}

bool journal_file_is_synced(const struct journal *j, const struct pending_file *f)
{
    return f == NULL || f->last_number <= j->synced_number;
}

static void on_unwanted(void *arg, struct journal_frame *entry)
{
    struct journal *j = arg;

    assert(entry->n_refs == 0);
    free(entry->data);
    entry->data = NULL;
    if (j->wal_started && entry->place.file != NULL)
        wal_release(j->wal, &entry->place);
}

void journal_timer_start(struct journal *j)
{
    if (j->stopping == NOT_STOPPING && !env_timer_is_running(&j->timer))
        env_timer_start(j->config.env, &j->timer, TICK_MS);
}

/* ---- commits ---- */

/* Keeps the queue in the order in which files are due; a file wanted now goes to the
 * front. */
void journal_queue_file(struct journal *j, struct pending_file *f)
{
    assert(f->n_committed <= f->n_records + f->n_marks);
    if (f->wanted_now)
        list_remove(&f->apply_link);
    if (f->n_committed > 0 && !f->applying && list_is_empty(&f->apply_link))
        list_add_after(f->wanted_now ? &j->queue : j->queue.prev, &f->apply_link);
    journal_timer_start(j);
}

void journal_poke(struct journal *j, struct pending_file *f)
{
    assert(j->starting == START_DONE);
    journal_queue_file(j, f);
    journal_run(j);
}

void journal_commit(struct journal *j, const struct file_id *id, const uint64_t *durable,
                    size_t n)
{
    struct pending_file *f = n == 0 ? NULL : journal_index_find(&j->index, id);

    if (f == NULL)
        return;
    for (size_t i = 0; i < n; i++)
        journal_index_commit(&j->index, f, durable[i], journal_now(j));
    if (f->n_committed > 0)
        journal_poke(j, f);
}

void journal_commit_range(struct journal *j, const struct file_id *id, uint64_t first,
                          uint64_t end, uint64_t version)
{
    struct pending_file *f = journal_index_find(&j->index, id);

    assert(first < end);
    if (f == NULL)
        return;
    journal_index_commit_range(&j->index, f, first, end, version, journal_now(j));
    if (f->n_committed > 0)
        journal_poke(j, f);
}

/* ---- the timer ---- */

static void stop_maybe_done(struct journal *j);

void journal_run(struct journal *j)
{
    if (j->starting < START_DONE)
        return;
    journal_appliers_start(j);
    if (j->stopping != NOT_STOPPING)
        stop_maybe_done(j);
}

static void on_tick(struct env_timer *timer)
{
    struct journal *j = container_of(timer, struct journal, timer);

    if (j->stopping != NOT_STOPPING)
        return;
    journal_notes_expire(j);
    journal_run(j);
    journal_copy_maybe_start(j);
    journal_wake(j); /* waiters check again and may time out */
    if (j->index.n_files > 0 || !list_is_empty(&j->index.entries) || j->n_held > 0)
        journal_timer_start(j);
}

/* ---- the stop ---- */

static void on_log_stopped(void *arg)
{
    struct journal *j = arg;

    assert(j->stopping == STOP_SYNCS && j->n_appliers == 0);
    j->stop_done(j->stop_arg);
}

static void on_stop_synced(struct wal_wait *w, int rc)
{
    struct journal *j = container_of(w, struct journal, stop_wait);

    (void)rc; /* a failure is counted by the log */
    wal_stop(j->wal, on_log_stopped, j);
}

static bool has_work(const struct journal *j)
{
    if (j->n_appliers > 0 || j->copying != COPY_IDLE)
        return true;
    LIST_FOREACH(node, &j->queue) {
        if (!container_of(node, struct pending_file, apply_link)->is_abandoned)
            return true;
    }
    return false;
}

static void stop_maybe_done(struct journal *j)
{
    if (j->stopping != STOP_APPLIES || has_work(j))
        return;
    j->stopping = STOP_SYNCS;
    j->stop_wait.done = on_stop_synced;
    if (wal_sync(j->wal, &j->stop_wait))
        on_stop_synced(&j->stop_wait, 0);
}

void journal_stop(struct journal *j, void (*done)(void *arg), void *arg)
{
    assert(j->stopping == NOT_STOPPING);
    env_timer_stop(j->config.env, &j->timer);
    j->stopping = STOP_APPLIES;
    j->stop_done = done;
    j->stop_arg = arg;
    journal_run(j);
}

int journal_new(const struct journal_config *config, struct journal **out)
{
    struct journal *j = calloc(1, sizeof(*j));
    int rc;

    assert(config->n_loops <= 1 || config->loop < config->n_loops);
    if (j == NULL)
        return -ENOMEM;
    j->config = *config;
    list_init(&j->fences);
    list_init(&j->drops);
    list_init(&j->appliers);
    list_init(&j->queue);
    list_init(&j->waiters);
    env_timer_init(&j->timer, on_tick);
    rc = journal_index_init(&j->index, on_unwanted, j);
    if (rc != 0) {
        journal_free(j);
        return rc;
    }
    *out = j;
    return 0;
}

void journal_free(struct journal *j)
{
    if (j == NULL)
        return;
    assert(j->n_appliers == 0 && list_is_empty(&j->waiters));
    env_timer_stop(j->config.env, &j->timer);
    journal_copier_free(&j->copier);
    j->wal_started = false; /* segments keep their wanted entries */
    journal_notes_free(j);
    journal_index_close(&j->index);
    free(j->held);
    free(j->scanned);
    free(j->said);
    wal_close(j->wal);
    free(j);
}
