/*
 * wal_sync.c - syncs of the log, shared by their callers; notes of how far the log is
 * stable.
 *
 * In:     wal_sync(); ends of appends; a timer. Thread: the storio loop.
 * Out:    disk requests; one at a time.
 * Keeps:  a wait ends after a sync that began when all it waits for was written; a failed
 *         sync ends all waits with an error and counts (wal_failures()).
 * Yours:  WAL_QUIET_MS: so long after a sync, if the power fails then, damage to synced
 *         entries may be taken for a torn end.
 */
#include <assert.h>
#include <errno.h>

#include "common/base/list.h"
#include "common/wal/wal_in.h"

static void quiet_begins(struct wal *wal)
{
    env_timer_stop(wal->config.env, &wal->quiet);
    env_timer_start(wal->config.env, &wal->quiet, WAL_QUIET_MS);
}

static void on_wait(struct env_task *task)
{
    struct wal_wait *w = container_of(task, struct wal_wait, task);

    w->done(w, w->rc);
}

/* Ends the waits. After a failure all of them fail: entries may lie behind a gap. */
static void sync_finish(struct wal *wal)
{
    bool is_good = wal->sync_rc == 0;

    assert(wal->is_syncing && wal->sync_upto <= wal->n_done);
    wal->is_syncing = false;
    if (is_good) {
        wal->n_synced = wal->sync_upto;
        wal->synced = wal->sync_says;
        wal->n_entries_synced = wal->sync_entries;
        wal->n_told = wal->sync_said;
        if (wal->n_entries_synced > wal->n_told && !wal->is_stopping)
            quiet_begins(wal);
    } else {
        wal->failures++;
        wal->is_current_bad = true;
    }
    while (wal->first_wait != NULL &&
           (!is_good || wal->first_wait->want <= wal->sync_upto)) {
        struct wal_wait *w = wal->first_wait;

        wal->first_wait = w->next;
        w->rc = is_good ? 0 : -EIO;
        w->task = (struct env_task){ .fn = on_wait };
        env_post(wal->config.env, &w->task);
    }
    if (wal->first_wait == NULL)
        wal->last_wait = &wal->first_wait;
    wal_sync_step(wal);
    if (wal->is_stopping || wal_slot_oldest_dead(wal) != NULL)
        wal_check_later(wal);
}

static void on_synced(struct disk_req *dr, int rc);

static void sync_next(struct wal *wal)
{
    for (unsigned i = 0; i < WAL_FILES_MAX; i++) {
        struct slot *s = &wal->slots[i];

        if (!s->is_in_round)
            continue;
        s->is_in_round = false;
        if (s->state != SLOT_CURRENT && s->state != SLOT_FULL && s->state != SLOT_OLD)
            continue; /* nothing in it is wanted */
        wal->sync_dr = (struct disk_req){
            .op = DISK_SYNC, .file = s->file, .done = on_synced, .arg = wal
        };
        disk_submit(wal->config.disk, &wal->sync_dr);
        return;
    }
    sync_finish(wal);
}

static void on_synced(struct disk_req *dr, int rc)
{
    struct wal *wal = dr->arg;

    assert(wal->is_syncing && dr == &wal->sync_dr);
    if (rc != 0)
        wal->sync_rc = rc;
    sync_next(wal);
}

void wal_sync_step(struct wal *wal)
{
    assert(wal->n_synced <= wal->n_done && wal->n_done <= wal->n_asked);
    if (wal->is_syncing || wal->first_wait == NULL || wal->first_wait->want > wal->n_done)
        return;
    wal->is_syncing = true;
    wal->sync_upto = wal->n_done;
    wal->sync_entries = wal->n_entries;
    wal->sync_said = wal->n_said;
    wal->sync_says = wal->synced;
    if (wal->current != NULL) {
        wal->sync_says.synced_segment = wal->current->h.number;
        wal->sync_says.synced_sequence = wal->sequence - 1;
    }
    wal->sync_rc = 0;
    for (unsigned i = 0; i < WAL_FILES_MAX; i++) {
        wal->slots[i].is_in_round = wal->slots[i].is_dirty;
        wal->slots[i].is_dirty = false;
    }
    sync_next(wal);
}

static void wait_add(struct wal *wal, struct wal_wait *w, uint64_t want)
{
    struct wal_wait **at = wal->last_wait;

    assert(w->done != NULL && want <= wal->n_asked);
    if (want < wal->n_asked)
        for (at = &wal->first_wait; *at != NULL && (*at)->want <= want;)
            at = &(*at)->next;
    w->want = want;
    w->next = *at;
    *at = w;
    if (w->next == NULL)
        wal->last_wait = &w->next;
    wal_sync_step(wal);
}

void wal_sync_written(struct wal *wal, struct wal_wait *w)
{
    wait_add(wal, w, wal->n_done);
}

bool wal_sync(struct wal *wal, struct wal_wait *w)
{
    if (wal->n_synced >= wal->n_asked)
        return true;
    wait_add(wal, w, wal->n_asked);
    return false;
}

/* ---- notes of how far the log is stable ---- */

static void say_ends(struct wal *wal)
{
    assert(wal->is_saying);
    wal->is_saying = false;
    if (wal->is_stopping)
        wal_check_later(wal);
}

static void on_said_synced(struct wal_wait *w, int rc)
{
    (void)rc; /* counted as a failure of the log */
    say_ends(container_of(w, struct wal, say_wait));
}

static void say_sync(struct wal *wal)
{
    wait_add(wal, &wal->say_wait, wal->n_asked);
    if (wal->n_synced == wal->n_done - 1) /* callers need not wait for the note */
        wal->n_synced++;
}

static void on_said(struct wal_append *a, int rc)
{
    struct wal *wal = container_of(a, struct wal, say);

    assert(a == &wal->say && wal->is_saying);
    if (rc == 0)
        wal_release(wal, &a->place);
    if (rc == 0)
        say_sync(wal);
    else
        say_ends(wal);
}

/* A frame says how far the log was stable when the frame was written. So a later frame
 * must become stable before the disk says how far the last sync came. If no frame
 * follows, the log appends one. */
void wal_say(struct wal *wal)
{
    if (wal->is_saying || wal->n_entries_synced <= wal->n_told || wal->is_current_bad)
        return;
    if (wal->first != NULL || wal->is_writing) {
        quiet_begins(wal);
        return;
    }
    wal->is_saying = true;
    wal->say_wait.done = on_said_synced;
    if (wal->n_said >= wal->n_entries_synced) {
        wait_add(wal, &wal->say_wait, wal->n_asked);
        return;
    }
    wal->say = (struct wal_append){ .kind = WAL_KIND_SYNCED, .done = on_said };
    if (wal_append_fits(wal, &wal->say))
        wal_append(wal, &wal->say);
    else
        wal->is_saying = false; /* the first frame of the next segment will say it */
}

static void on_quiet(struct env_timer *timer)
{
    wal_say(container_of(timer, struct wal, quiet));
}

void wal_say_init(struct wal *wal)
{
    env_timer_init(&wal->quiet, on_quiet);
}
