/*
 * log_sync.c - syncs of the log, shared by all who wait for one; and the log saying how far it is on stable storage.
 *
 * In:     log_sync(); ends of appends; a timer. Thread: the storio loop.
 * Out:    disk requests; one at a time.
 * Keeps:  who waits is told after a sync that began when all it waits for was written; after a failure
 *         everybody is, and it counts (log_failures()).
 * Yours:  LOG_QUIET_MS: for so long damage to what was synced last may be taken for a torn end, if the power goes then.
 */
#include <errno.h>

#include "storaged/wal/log_in.h"

static void quiet_begins(struct log *log)
{
    env_timer_stop(log->config.env, &log->quiet);
    env_timer_start(log->config.env, &log->quiet, LOG_QUIET_MS);
}

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
        log->synced = log->sync_says;
        log->n_entries_synced = log->sync_entries;
        log->n_told = log->sync_said;
        if (log->n_entries_synced > log->n_told && !log->is_stopping)
            quiet_begins(log);
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
    log_sync_step(log);
    if (log->is_stopping || log_slot_oldest_dead(log) != NULL)
        log_check_later(log);
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

void log_sync_step(struct log *log)
{
    if (log->is_syncing || log->first_wait == NULL || log->first_wait->want > log->n_done)
        return;
    log->is_syncing = true;
    log->sync_upto = log->n_done;
    log->sync_entries = log->n_entries;
    log->sync_said = log->n_said;
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

static void wait_add(struct log *log, struct log_wait *w)
{
    w->want = log->n_asked;
    w->next = NULL;
    *log->last_wait = w;
    log->last_wait = &w->next;
    log_sync_step(log);
}

bool log_sync(struct log *log, struct log_wait *w)
{
    if (log->n_synced >= log->n_asked)
        return true;
    wait_add(log, w);
    return false;
}

/* ---- the log says how far it is on stable storage ---- */

static void say_ends(struct log *log)
{
    log->is_saying = false;
    if (log->is_stopping)
        log_check_later(log);
}

static void on_said_synced(struct log_wait *w, int rc)
{
    (void)rc; /* it counts as a failure of the log */
    say_ends((struct log *)((char *)w - offsetof(struct log, say_wait)));
}

static void say_sync(struct log *log)
{
    wait_add(log, &log->say_wait);
    if (log->n_synced == log->n_done - 1) /* nobody else waits for what it says */
        log->n_synced++;
}

static void on_said(struct log_append *a, int rc)
{
    struct log *log = (struct log *)((char *)a - offsetof(struct log, say));

    if (rc == 0)
        log_release(log, &a->place);
    if (rc == 0)
        say_sync(log);
    else
        say_ends(log);
}

/*
 * Frames say how far the log was on stable storage when they were written, so what the last sync made stable nobody has said. What
 * was written since says it, once it is stable; else the log does.
 */
void log_say(struct log *log)
{
    if (log->is_saying || log->n_entries_synced <= log->n_told || log->is_current_bad)
        return;
    if (log->first != NULL || log->is_writing) {
        quiet_begins(log);
        return;
    }
    log->is_saying = true;
    log->say_wait.done = on_said_synced;
    if (log->n_said >= log->n_entries_synced) {
        wait_add(log, &log->say_wait);
        return;
    }
    log->say = (struct log_append){ .kind = LOG_KIND_SYNCED, .done = on_said };
    if (log_append_fits(log, &log->say))
        log_append(log, &log->say);
    else
        log->is_saying = false; /* what begins the next segment will say it */
}

static void on_quiet(struct env_timer *timer)
{
    log_say((struct log *)((char *)timer - offsetof(struct log, quiet)));
}

void log_say_init(struct log *log)
{
    env_timer_init(&log->quiet, on_quiet);
}
