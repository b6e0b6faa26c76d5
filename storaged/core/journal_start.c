/*
 * journal_start.c - replay: what the segments of all loops hold becomes what is pending here.
 *
 * In:     journal_start(), journal_serve(). Thread: the storio loop.
 * Out:    log_scan(), storage_resolve(), the copier.
 * Keeps:  interrupted, or done twice, the outcome is the same.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "storaged/core/journal_in.h"

enum { RESOLVERS_MAX = 16 };

static int found_records(struct journal *j, struct pending_entry *entry,
                         const struct entry *e, const uint8_t *data, size_t len)
{
    size_t head = RECORD_HEADER_BYTES + codec_overhang_bytes(e->codec, e->projection);
    struct entry_record records[ENTRY_BLOCKS_MAX];
    struct pending_file *f;
    int n = entry_records(e, data, len, records), rc = 0;

    if (n < 0) {
        log_error("journal: a frame of records that makes no sense is left out");
        return 0;
    }
    f = pending_get(&j->pending, &e->file, e->codec);
    if (f == NULL)
        return -ENOMEM;
    if (f->codec != e->codec) {
        log_error("journal: a frame of records in another code is left out");
        return 0;
    }
    for (int i = 0; i < n && rc == 0; i++)
        rc = pending_add_record(&j->pending, f, entry, e->projection,
                                data + records[i].head_at, head, &records[i].header,
                                records[i].body_at, records[i].body_len, journal_now(j));
    return rc;
}

static int found_mark(struct journal *j, struct pending_entry *entry,
                      const struct entry *e)
{
    struct pending_file *f = pending_get(&j->pending, &e->file, e->codec);
    struct pending_mark m = { .first = e->first,
                              .end = e->end,
                              .version = e->version,
                              .since_ns = journal_now(j),
                              .projection = e->projection,
                              .keep_newer = e->keep_newer };

    return f == NULL ? -ENOMEM : pending_add_mark(&j->pending, f, entry, &m);
}

static int found_drop(struct journal *j, struct pending_entry *entry,
                      const struct entry *e)
{
    struct pending_file *f = pending_find(&j->pending, &e->file.id);
    struct pending_drop d = { e->first, e->end, e->version, e->epoch, e->projections };
    int n = f == NULL ? 0 : pending_drop(&j->pending, f, &d);

    if (n < 0)
        return n;
    entry->n_refs++;
    journal_drop_note(j, entry);
    return 0;
}

static int on_found(void *arg, unsigned loop, uint8_t kind, const struct log_place *place,
                    const uint8_t *data, size_t len)
{
    struct journal *j = arg;
    struct pending_entry *entry;
    struct entry e;
    int rc = 0;

    if (entry_get(kind, data, len, &e) != 0) {
        log_error("journal: a frame that makes no sense is left out");
        return 0;
    }
    if (!storage_owns(j->st, &e.file.id))
        return 0;
    entry = pending_entry_new(&j->pending, place);
    if (entry == NULL)
        return -ENOMEM;
    entry->kind = kind;
    entry->place.file = NULL;
    if (loop != j->st->config.loop) { /* it will have to be appended here */
        entry->data = malloc(len);
        if (entry->data != NULL)
            memcpy(entry->data, data, len);
        rc = entry->data == NULL ? -ENOMEM : 0;
    }
    if (rc == 0 && kind == ENTRY_RECORDS) {
        rc = found_records(j, entry, &e, data, len);
    } else if (rc == 0 && kind == ENTRY_MARK) {
        rc = found_mark(j, entry, &e);
    } else if (rc == 0 && kind == ENTRY_FENCE) {
        entry->n_refs++;
        rc = journal_fence_note(j, &e.file.id, e.epoch, entry);
    } else if (rc == 0) {
        rc = found_drop(j, entry, &e);
    }
    pending_entry_put(&j->pending, entry);
    return rc;
}

static void on_scanned(void *arg, int rc, const struct log_scan_result *result)
{
    struct journal *j = arg;

    if (rc == 0 && result->n_damaged > 0)
        log_warn(
            "journal: %llu frames are damaged, as a loss of power leaves them: what no sync had "
            "covered of them is lost here",
            (unsigned long long)result->n_damaged);
    j->start_rc = rc;
    journal_start_step(j);
}

static void on_log_started(void *arg, int rc)
{
    struct journal *j = arg;

    j->start_rc = rc;
    j->log_started = rc == 0;
    LIST_FOREACH(node, &j->pending.entries) {
        struct pending_entry *e = container_of(node, struct pending_entry, link);

        if (rc == 0 && e->data == NULL && log_adopt(j->log, &e->place) != 0)
            j->start_rc = -EIO; /* it was there a moment ago */
    }
    journal_start_step(j);
}

static int start_log(struct journal *j)
{
    const struct storage_config *c = &j->st->config;
    struct log_config config = {
        .env = j->st->env,
        .disk = j->st->disk,
        .loop = c->loop,
        .n_loops = c->n_loops == 0 ? 1 : c->n_loops,
        .n_loops_max = JOURNAL_LOOPS_MAX,
        .segment_bytes = journal_segment_bytes(j),
        .slots = journal_slots(j),
    };
    int rc = log_open(&config, &j->log);

    if (rc == 0)
        log_start(j->log, on_log_started, j);
    return rc;
}

static void on_resolved(void *arg, int rc)
{
    struct journal *j = arg;

    j->n_resolving--;
    if (rc != 0 && j->start_rc == 0)
        j->start_rc = rc;
    journal_start_step(j);
}

/* Held, so that it is known where the list goes on. */
static struct pending_file *resolve_next(struct journal *j)
{
    struct list_node *files = &j->pending.files;
    struct list_node *node = j->resolved == NULL ? files->next : j->resolved->link.next;
    struct pending_file *next =
        node == files ? NULL : container_of(node, struct pending_file, link);

    if (next != NULL)
        pending_hold(next);
    if (j->resolved != NULL)
        pending_put(&j->pending, j->resolved);
    j->resolved = next;
    j->resolved_all = next == NULL;
    return next;
}

/* The next files: what lies in place of what we found? False: all are done. */
static bool start_resolve(struct journal *j)
{
    while (j->start_rc == 0 && j->n_resolving < RESOLVERS_MAX && !j->resolved_all) {
        struct pending_file *next = resolve_next(j);

        if (next == NULL)
            break;
        j->start_rc = storage_resolve(j->st, next, on_resolved, j);
        j->n_resolving += j->start_rc == 0;
    }
    return j->n_resolving > 0;
}

static void on_start_synced(struct log_wait *w, int rc)
{
    struct journal *j = container_of(w, struct journal, stop_wait);

    j->start_rc = rc;
    journal_start_step(j);
}

static void start_end(struct journal *j)
{
    j->starting = START_DONE;
    j->start_done(j->start_arg, j->start_rc);
}

void journal_start_step(struct journal *j)
{
    if (j->start_rc != 0 && j->n_resolving == 0) {
        start_end(j);
        return;
    }
    switch (j->starting) {
    case START_SCAN:
        j->starting = START_LOG;
        j->start_rc = start_log(j);
        if (j->start_rc != 0)
            start_end(j);
        return;
    case START_LOG:
        j->starting = START_RESOLVE;
        /* fall through */
    case START_RESOLVE:
        if (start_resolve(j))
            return;
        if (j->start_rc != 0) {
            start_end(j);
            return;
        }
        j->starting = START_COPY;
        journal_copy_start(j);
        return;
    case START_COPY:
        j->starting = START_SYNC;
        j->stop_wait.done = on_start_synced;
        if (!log_sync(j->log, &j->stop_wait))
            return;
        /* fall through */
    case START_SYNC:
        if (j->pending.n_uncommitted > 0)
            log_info("journal: %llu records and marks wait for a commit",
                     (unsigned long long)j->pending.n_uncommitted);
        start_end(j);
        return;
    case START_DONE:
        return;
    }
}

void journal_start(struct journal *j, void (*done)(void *arg, int rc), void *arg)
{
    j->start_done = done;
    j->start_arg = arg;
    j->start_rc = ((j->st->config.mutant & MUTANT_NO_CRC_CHECK) != 0
                       ? log_scan_any_crc
                       : log_scan)(j->st->env, j->st->disk, JOURNAL_LOOPS_MAX,
                                   j->st->config.loop, on_found, on_scanned, j);
    if (j->start_rc != 0)
        start_end(j);
}

static void on_forgotten(void *arg, int rc)
{
    struct journal *j = arg;

    if (rc != 0)
        log_warn("journal: old segments stay for now: %s", strerror(-rc));
    LIST_FOREACH(node, &j->pending.files)
        journal_queue_file(j, container_of(node, struct pending_file, link));
    if (!list_is_empty(&j->pending.entries))
        journal_timer_start(j);
    j->serve_done(j->serve_arg);
}

void journal_serve(struct journal *j, void (*done)(void *arg), void *arg)
{
    j->serve_done = done;
    j->serve_arg = arg;
    log_forget_old(j->log, on_forgotten, j);
}
