/*
 * log_sync.c - syncs of the log, shared by all who wait for one; and the log saying how far it is on stable storage.
 *
 * In:     log_sync(), log_say_synced(); ends of appends. Thread: the storio loop.
 * Out:    disk requests; one at a time.
 * Keeps:  who waits is told after a sync that began when all it waits for was written; after a failure
 *         everybody is, and it counts (log_failures()).
 */
#include <errno.h>

#include "storaged/core/log_in.h"

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
    log_sync_step(log);
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
    if (log_append_fits(log, &log->say))
        log_append(log, &log->say);
    else
        log->is_saying = false; /* what begins the next segment will say it */
}
