/*
 * quorum_log_start.c - reads the log of the previous run.
 *
 * In:     quorum_log_start(): the vote, then the segments.
 * Out:    lines of the entries that count, quorum_log_found.
 * Keeps:  an entry that was on stable storage and is damaged or missing is never passed
 *         over in silence; entries behind it do not count, since they would not follow.
 *         Nor do entries behind one that was never stable, up to the end of their run.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "exportd/quorum/log/quorum_log_in.h"

static void start_end(struct quorum_log *log, int rc)
{
    log->state = rc == 0 ? LOG_RUNS : LOG_NEW;
    log->started(log->started_arg, rc);
}

/* Drops this entry and all after it, which are not adopted yet. */
static void lines_cut(struct quorum_log *log, uint64_t from)
{
    while (log->n > 0 && log->first + log->n > from) {
        struct line *line = quorum_log_line(log, log->first + log->n - 1);

        if (line->entry != NULL)
            log->memory -= sizeof(*line->entry) + line->len;
        quorum_entry_free(line->entry);
        log->n--;
    }
    if (log->in_memory > from)
        log->in_memory = from;
}

/* Keeps the newest entries in memory. Those that do not fit are read when needed. */
static int data_keep(struct quorum_log *log, uint64_t index, struct line *line,
                     const struct raft_log_entry *e, const uint8_t *data)
{
    struct quorum_entry *entry = quorum_entry_new(e->kind, e->len);

    if (entry == NULL)
        return -ENOMEM;
    memcpy(entry->bytes, data, e->len);
    entry->e.index = e->index;
    entry->e.term = e->term;
    quorum_log_line_set(log, line, entry);
    if (log->in_memory < log->first)
        log->in_memory = log->first;
    while (log->memory > log->config.memory_bytes && log->in_memory < index)
        quorum_log_line_clear(log, quorum_log_line(log, log->in_memory++));
    return 0;
}

static int entry_found(struct quorum_log *log, const struct wal_place *place,
                       const uint8_t *data, const struct raft_log_entry *e)
{
    struct line *line;
    int rc;

    if (place->is_behind_gap) { /* the lost one may have replaced others */
        if (log->gap_at == 0)
            log->gap_at = log->first + log->n;
        return 0;
    }
    if (log->n == 0)
        log->first = e->index;
    if (e->index > log->first + log->n)
        return 0;                /* one before it was lost, or never written */
    if (e->index < log->first) { /* a new run of entries that replaces all of these */
        lines_cut(log, log->first);
        log->first = e->index;
    }
    lines_cut(log, e->index);
    rc = quorum_log_reserve(log);
    if (rc != 0)
        return rc;
    log->n++;
    line = quorum_log_line(log, e->index);
    *line = (struct line){
        .term = e->term,
        .len = e->len,
        .kind = (uint8_t)e->kind,
        .place = *place,
    };
    return place->is_damaged
               ? 0
               : data_keep(log, e->index, line, e, data + QUORUM_LOG_HEAD_BYTES);
}

static int on_found(void *arg, unsigned loop, uint8_t kind, const struct wal_place *place,
                    const uint8_t *data, size_t len)
{
    struct quorum_log *log = arg;
    struct raft_log_entry e;

    if (loop != 0 || kind != QUORUM_LOG_KIND)
        return 0;
    if (quorum_log_head_get(data, len, &e) != 0 ||
        (!place->is_damaged &&
         !quorum_log_data_is_right(data, data + QUORUM_LOG_HEAD_BYTES,
                                   len - QUORUM_LOG_HEAD_BYTES))) {
        log_error("metadata log: segment %llu has a frame that is not an entry",
                  (unsigned long long)place->segment);
        return -ROZO_EDAMAGED;
    }
    return entry_found(log, place, data, &e);
}

/* Cuts the log before the first damaged entry. */
static void damaged_cut(struct quorum_log *log, const struct wal_scan_result *result)
{
    uint64_t last = log->first + log->n;

    for (uint64_t i = log->first; i < last; i++) {
        const struct line *line = quorum_log_line(log, i);

        if (!line->place.is_damaged)
            continue;
        if (wal_was_synced(result, 0, &line->place))
            log->found.lost = i;
        lines_cut(log, i);
        break;
    }
    if (result->n_lost > 0 && log->gap_at != 0)
        lines_cut(log, log->gap_at);
    if (log->found.lost > log->first + log->n ||
        (log->found.lost == 0 && (result->n_lost > 0 || result->n_unreadable > 0)))
        log->found.lost = log->first + log->n;
    if (log->found.lost != 0)
        log_error("metadata log: entries from %llu on were on stable storage and are "
                  "lost; they are fetched from another member",
                  (unsigned long long)log->found.lost);
}

/* The note stays as long as the segments that it is about, since these are erased first.
 * Without space for it the log waits for space, too. */
static void on_note_appended(struct wal_append *a, int rc)
{
    struct quorum_log *log = container_of(a, struct quorum_log, note);

    if (rc == 0)
        wal_release(log->wal, &a->place);
    start_end(log, rc == -ENOSPC ? 0 : rc);
}

/* Appends the note that all that was found is stable, if the disk does not say so. */
static void note_append(struct quorum_log *log)
{
    if (log->note_iov.iov_len == 0) {
        start_end(log, 0);
        return;
    }
    log->note = (struct wal_append){ .kind = WAL_KIND_SYNCED,
                                     .iov = &log->note_iov,
                                     .n_iov = 1,
                                     .len = log->note_iov.iov_len,
                                     .done = on_note_appended };
    wal_append(log->wal, &log->note);
}

static void on_adopted_synced(struct wal_wait *w, int rc)
{
    struct quorum_log *log = container_of(w, struct quorum_log, start_wait);

    if (rc == 0)
        note_append(log);
    else
        start_end(log, rc);
}

/* The entries that are found count as persisted. A process that was killed may have left
 * them unsynced. */
static void on_wal_started(void *arg, int rc)
{
    struct quorum_log *log = arg;

    for (uint64_t i = 0; rc == 0 && i < log->n; i++)
        if (wal_adopt(log->wal, &quorum_log_line(log, log->first + i)->place) != 0)
            rc = -EIO; /* the scan found its segment a moment ago */
    log->start_wait.done = on_adopted_synced;
    if (rc != 0)
        start_end(log, rc);
    else if (wal_sync(log->wal, &log->start_wait))
        note_append(log);
}

/* Returns whether the disk says of all entries that they are on stable storage. */
static bool all_are_noted(const struct quorum_log *log,
                          const struct wal_scan_result *result)
{
    for (uint64_t i = 0; i < log->n; i++)
        if (!wal_was_synced(result, 0, &quorum_log_line(log, log->first + i)->place))
            return false;
    return true;
}

static void on_scanned(void *arg, int rc, const struct wal_scan_result *result)
{
    struct quorum_log *log = arg;
    const struct wal_config config = {
        .env = log->config.env,
        .disk = log->config.disk,
        .n_loops = 1,
        .n_loops_max = 1,
        .segment_bytes = log->config.segment_bytes,
        .slots = log->config.segments,
        .in_order = true,
    };

    if (rc == 0) {
        damaged_cut(log, result);
        log->note_iov.iov_base = log->note_bytes;
        if (!all_are_noted(log, result))
            log->note_iov.iov_len = wal_synced_put(result, 0, log->note_bytes);
        rc = wal_open(&config, &log->wal);
    }
    if (rc == 0)
        wal_start(log->wal, on_wal_started, log);
    else
        start_end(log, rc);
}

static void on_boot_started(void *arg, int rc)
{
    struct quorum_log *log = arg;

    log->found.in_doubt = log->boot.in_doubt;
    log->found.loss_term = log->boot.loss_term;
    if (rc == 0)
        rc = wal_scan(log->config.env, log->config.disk, 1, 0, on_found, on_scanned, log);
    if (rc != 0)
        start_end(log, rc);
}

static void on_vote_started(void *arg, int rc)
{
    struct quorum_log *log = arg;

    log->found.term = log->vote.found.term;
    log->found.vote = log->vote.found.vote;
    log->found.vote_is_damaged = log->vote.is_damaged;
    if (rc == 0)
        quorum_boot_start(&log->boot, log->config.disk, on_boot_started);
    else
        start_end(log, rc);
}

static void on_vote_saved(void *arg, int rc, struct quorum_ballot ballot)
{
    struct quorum_log *log = arg;
    const struct quorum_log_hooks *hooks = log->config.hooks;

    if (rc == 0)
        hooks->voted(hooks->arg, ballot.term, ballot.vote);
    else
        hooks->failed(hooks->arg, rc);
    quorum_log_stop_look(log);
}

void quorum_log_start(struct quorum_log *log, void (*done)(void *arg, int rc), void *arg)
{
    assert(log->state == LOG_NEW);
    log->state = LOG_STARTS;
    log->started = done;
    log->started_arg = arg;
    log->boot = (struct quorum_boot){ .boot = log->config.boot,
                                      .is_lazy = log->config.is_lazy,
                                      .saved = quorum_log_boot_saved,
                                      .arg = log };
    log->vote.disk = log->config.disk;
    log->vote.path = "vote";
    log->vote.started = on_vote_started;
    log->vote.saved = on_vote_saved;
    log->vote.arg = log;
    quorum_vote_start(&log->vote);
}

const struct quorum_log_found *quorum_log_found(const struct quorum_log *log)
{
    return &log->found;
}

static void on_forgotten(void *arg, int rc)
{
    struct quorum_log *log = arg;

    log->is_forgetting = false;
    if (rc != 0)
        log_error("metadata log: erase old segments: %s", error_text(rc));
    quorum_log_stop_look(log);
}

void quorum_log_forget_old(struct quorum_log *log)
{
    assert(log->state == LOG_RUNS && !log->is_forgetting);
    log->is_forgetting = true;
    wal_forget_old(log->wal, on_forgotten, log);
}
