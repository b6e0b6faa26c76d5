/*
 * journal_start.c - replay: builds the index from the segments of all loops.
 *
 * In:     journal_start(), journal_serve(). Thread: the storio loop.
 * Out:    wal_scan(), the hook `resolve`, the copier.
 * Keeps:  a replay that is interrupted or repeated has the same outcome.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "storaged/format/projfile.h"
#include "storaged/journal/journal_in.h"

enum { RESOLVERS_MAX = 16 };

static int found_records(struct journal *j, struct journal_frame *entry,
                         const struct journal_record *e, const uint8_t *data, size_t len)
{
    size_t head = RECORD_HEADER_BYTES + codec_overhang_bytes(e->codec, e->projection);
    struct journal_block records[JOURNAL_RECORD_BLOCKS_MAX];
    struct pending_file *f;
    int n = journal_record_blocks(e, data, len, records), rc = 0;

    if (n < 0) {
        log_error("journal: ignored a corrupt frame of records");
        return 0;
    }
    f = journal_index_get(&j->index, &e->file, e->codec);
    if (f == NULL)
        return -ENOMEM;
    if (f->codec != e->codec) {
        log_error("journal: ignored a frame of records in another code");
        return 0;
    }
    for (int i = 0; i < n && rc == 0; i++)
        rc = journal_index_add_record(
            &j->index, f, entry, e->projection, data + records[i].head_at, head,
            &records[i].header, records[i].body_at, records[i].body_len, journal_now(j));
    return rc;
}

static int found_mark(struct journal *j, struct journal_frame *entry,
                      const struct journal_record *e)
{
    struct pending_file *f = journal_index_get(&j->index, &e->file, e->codec);
    struct pending_mark m = { .first = e->first,
                              .end = e->end,
                              .version = e->version,
                              .since_ns = journal_now(j),
                              .projection = e->projection,
                              .keep_newer = e->keep_newer,
                              .passed = true };

    return f == NULL ? -ENOMEM : journal_index_add_mark(&j->index, f, entry, &m);
}

static int found_drop(struct journal *j, struct journal_frame *entry,
                      const struct journal_record *e)
{
    struct pending_file *f = journal_index_find(&j->index, &e->file.id);
    struct pending_drop d = { e->first, e->end, e->version, e->epoch, e->projections };
    int n = f == NULL ? 0 : journal_index_drop(&j->index, f, &d);

    if (n < 0)
        return n;
    entry->n_refs++;
    journal_drop_note(j, entry);
    return 0;
}

/* Adds damaged records: the bytes are lost, but the frame's header is known. Versions
 * up to the frame's are uncertain here; the newest that may have been here is answered
 * as damaged. */
static int found_damaged(struct journal *j, struct journal_frame *entry,
                         const struct journal_record *e)
{
    size_t head_len = RECORD_HEADER_BYTES + codec_overhang_bytes(e->codec, e->projection);
    uint8_t head[RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX] = { 0 };
    struct pending_file *f = journal_index_get(&j->index, &e->file, e->codec);
    int rc = f == NULL ? -ENOMEM : 0;

    if (f == NULL || f->codec != e->codec || e->version == 0)
        return rc;
    for (unsigned i = 0; i < JOURNAL_RECORD_BLOCKS_MAX && rc == 0; i++) {
        struct record_header h = { .flags = RECORD_DAMAGED,
                                   .version = e->version,
                                   .block = e->first + i };

        if (!journal_record_has_block(e, i))
            continue;
        damaged_head_put(head, f->hash, e->projection, h.block, h.version, false);
        rc = journal_index_add_record(&j->index, f, entry, e->projection, head, head_len,
                                      &h, 0, 0, journal_now(j));
    }
    return rc;
}

/* Keeps the bytes of a frame that must be appended to this log: it lies in another
 * loop's segment, or is damaged. */
static int found_keep(struct journal_frame *entry, const uint8_t *data, size_t len)
{
    assert(entry->data == NULL && len > 0);
    entry->data = malloc(len);
    if (entry->data == NULL)
        return -ENOMEM;
    memcpy(entry->data, data, len);
    entry->place.len = (uint32_t)len;
    return 0;
}

static int found(struct journal *j, struct journal_frame *entry,
                 const struct journal_record *e, const uint8_t *data, size_t len)
{
    switch (entry->kind) {
    case JOURNAL_RECORDS:
        return found_records(j, entry, e, data, len);
    case JOURNAL_DAMAGED:
        return found_damaged(j, entry, e);
    case JOURNAL_MARK:
        return found_mark(j, entry, e);
    case JOURNAL_FENCE:
        entry->n_refs++;
        return journal_fence_note(j, &e->file.id, e->epoch, entry);
    default:
        return found_drop(j, entry, e);
    }
}

static int on_found(void *arg, unsigned loop, uint8_t kind, const struct wal_place *place,
                    const uint8_t *data, size_t len)
{
    struct journal *j = arg;
    uint8_t wide[JOURNAL_RECORD_HEADER_BYTES];
    struct journal_frame *entry;
    struct journal_record e;
    int rc = 0;

    if (place->is_damaged) { /* for all kinds but records, the head is the whole entry */
        if (!journal_record_head_widen(data, len, wide))
            return 0;
        data = wide;
        len = sizeof(wide);
    }
    if (journal_record_get(kind, data, len, &e) != 0) {
        log_error("journal: ignored a corrupt frame");
        return 0;
    }
    if (!j->config.hooks.owns(j->config.hooks.arg, &e.file.id) &&
        !journal_is_doubt(&e.file.id))
        return 0;
    entry = journal_index_add_frame(&j->index, place);
    if (entry == NULL)
        return -ENOMEM;
    entry->kind = kind;
    entry->loop = (uint8_t)loop;
    entry->place.file = NULL;
    if (place->is_damaged && kind == JOURNAL_RECORDS) {
        entry->suspect = true;
        entry->kind = e.kind = JOURNAL_DAMAGED;
        if (e.version != 0)
            journal_record_put(wide, &e);
    }
    if (loop != j->config.loop || place->is_damaged)
        rc = found_keep(entry, data, len);
    if (rc == 0)
        rc = found(j, entry, &e, data, len);
    journal_index_put_frame(&j->index, entry);
    return rc;
}

/* Removes damaged records that were never synced: those are a torn end and were never
 * acknowledged. */
static void suspects_judge(struct journal *j)
{
    struct journal_index *p = &j->index;

    assert(j->scanned != NULL);
    LIST_FOREACH_SAFE(file_node, &p->files) {
        struct pending_file *f = container_of(file_node, struct pending_file, link);

        pending_file_hold(f);
        PENDING_FOREACH_SAFE(node, f)
        {
            struct pending_record *r = container_of(node, struct pending_record, link);

            if (!r->entry->suspect)
                continue;
            if (wal_was_synced(j->scanned, r->entry->loop, &r->entry->place))
                j->n_damaged++;
            else
                journal_index_remove_record(p, r);
        }
        journal_index_put(p, f);
    }
    j->n_lost = j->scanned->n_lost;
    if (j->n_damaged > 0)
        log_error("journal: %llu records are damaged; reads report them as damaged until "
                  "healing has replaced them",
                  (unsigned long long)j->n_damaged);
    if (j->n_lost > 0)
        log_error(
            "journal: %llu frames or segments that were on stable storage are lost, with "
            "their contents; readers ask other storages, too, until a scrub of this one",
            (unsigned long long)j->n_lost);
}

static void on_scanned(void *arg, int rc, const struct wal_scan_result *result)
{
    struct journal *j = arg;

    assert(j->starting == START_SCAN);
    if (rc == 0 && (j->scanned = malloc(sizeof(*result))) == NULL)
        rc = -ENOMEM;
    if (rc == 0) {
        *j->scanned = *result;
        suspects_judge(j);
    }
    if (rc == -ROZO_EUNKNOWN_FORMAT)
        log_error(
            "the journal was written by a later version of rozo: start that version");
    j->start_rc = rc;
    journal_start_step(j);
}

static void on_log_started(void *arg, int rc)
{
    struct journal *j = arg;

    assert(j->starting == START_LOG);
    j->start_rc = rc;
    j->wal_started = rc == 0;
    LIST_FOREACH(node, &j->index.entries) {
        struct journal_frame *e = container_of(node, struct journal_frame, link);

        if (rc == 0 && e->data == NULL && wal_adopt(j->wal, &e->place) != 0)
            j->start_rc = -EIO; /* the scan found its segment a moment ago */
    }
    journal_start_step(j);
}

static int start_log(struct journal *j)
{
    const struct journal_config *c = &j->config;
    struct wal_config config = {
        .env = j->config.env,
        .disk = j->config.disk,
        .loop = c->loop,
        .n_loops = c->n_loops == 0 ? 1 : c->n_loops,
        .n_loops_max = JOURNAL_LOOPS_MAX,
        .reserve_bytes = c->reserve_bytes,
        .segment_bytes = journal_segment_bytes(j),
        .slots = journal_slots(j),
    };
    int rc = wal_open(&config, &j->wal);

    if (rc == 0)
        wal_start(j->wal, on_log_started, j);
    return rc;
}

static void on_resolved(void *arg, int rc)
{
    struct journal *j = arg;

    assert(j->n_resolving > 0);
    j->n_resolving--;
    if (rc != 0 && j->start_rc == 0)
        j->start_rc = rc;
    journal_start_step(j);
}

/* Returns the next file to resolve. Holds it, to know where the list goes on. */
static struct pending_file *resolve_next(struct journal *j)
{
    struct list_node *files = &j->index.files;
    struct list_node *node = j->resolved == NULL ? files->next : j->resolved->link.next;
    struct pending_file *next =
        node == files ? NULL : container_of(node, struct pending_file, link);

    assert(!j->resolved_all);
    if (next != NULL)
        pending_file_hold(next);
    if (j->resolved != NULL)
        journal_index_put(&j->index, j->resolved);
    j->resolved = next;
    j->resolved_all = next == NULL;
    return next;
}

/* Resolves the next files against what lies in place. Returns false if all are done. */
static bool start_resolve(struct journal *j)
{
    while (j->start_rc == 0 && j->n_resolving < RESOLVERS_MAX && !j->resolved_all) {
        struct pending_file *next = resolve_next(j);

        if (next == NULL)
            break;
        j->start_rc = j->config.hooks.resolve(j->config.hooks.arg, next, on_resolved, j);
        j->n_resolving += j->start_rc == 0;
    }
    return j->n_resolving > 0;
}

/* Notes the doubt. It must be stable before the old frames go, which are the only sign
 * of the loss. If there is no room, the old frames stay. */
static void on_doubt_said(struct wal_append *a, int rc)
{
    struct journal *j = container_of(a, struct journal, say);

    assert(j->said != NULL && j->doubt == NULL);
    if (rc == 0 && (j->doubt = journal_index_add_frame(&j->index, &a->place)) != NULL)
        journal_frame_init(j, j->doubt, JOURNAL_FENCE);
    else if (rc == 0)
        wal_release(j->wal, &a->place);
    j->keep_old |= j->doubt == NULL;
    free(j->said);
    j->said = NULL;
    journal_start_step(j);
}

/* Appends a doubt if frames were lost. Returns false if there is nothing to append. */
static bool start_doubt(struct journal *j)
{
    const struct journal_record e = { .kind = JOURNAL_FENCE,
                                      .file = { .codec = CODEC_MOJETTE,
                                                .n_storages = (uint8_t)codec_layout(0)->n,
                                                .block_bytes = 8192 },
                                      .epoch = 1 };

    assert(j->said == NULL);
    if (j->n_lost > 0 || j->doubt != NULL)
        atomic_fetch_add(&j->config.identity->losses, 1);
    if (j->n_lost == 0 || j->doubt != NULL)
        return false;
    j->said = malloc(JOURNAL_RECORD_HEADER_BYTES);
    if (j->said == NULL) {
        j->keep_old = true;
        return false;
    }
    journal_record_put(j->said, &e);
    j->said_iov =
        (struct iovec){ .iov_base = j->said, .iov_len = JOURNAL_RECORD_HEADER_BYTES };
    j->say = (struct wal_append){ .kind = JOURNAL_FENCE,
                                  .iov = &j->said_iov,
                                  .n_iov = 1,
                                  .len = JOURNAL_RECORD_HEADER_BYTES,
                                  .head_len = journal_record_head_bytes(j->said),
                                  .done = on_doubt_said };
    wal_append(j->wal, &j->say);
    return true;
}

/* Goes on after the sync. If it failed, old frames stay where they are, and clients
 * learn from the verifier that their writes may be lost. */
static void on_start_synced(struct wal_wait *w, int rc)
{
    struct journal *j = container_of(w, struct journal, stop_wait);

    j->keep_old |= rc != 0;
    journal_start_step(j);
}

static void on_start_said(struct wal_append *a, int rc)
{
    struct journal *j = container_of(a, struct journal, say);
    struct journal_frame *entry =
        rc == 0 ? journal_index_add_frame(&j->index, &a->place) : NULL;

    assert(j->starting == START_SAY);
    if (entry != NULL) {
        entry->kind = WAL_KIND_SYNCED;
        /* kept while the segments that it describes may lie in the log */
        journal_drop_note(j, entry);
    } else if (rc == 0) {
        wal_release(j->wal, &a->place);
    }
    j->starting = START_SAID;
    j->stop_wait.done = on_start_synced;
    if (wal_sync(j->wal, &j->stop_wait))
        journal_start_step(j);
}

/* Appends a note that all found frames are stable now, for a later start. Returns
 * false if there is nothing to append. */
static bool start_say(struct journal *j)
{
    size_t len;

    assert(j->said == NULL && j->scanned != NULL);
    if (j->keep_old || (j->said = malloc(WAL_SYNCED_MAX)) == NULL)
        return false;
    len = wal_synced_put(j->scanned, j->config.loop, j->said);
    if (len == 0)
        return false;
    j->said_iov = (struct iovec){ .iov_base = j->said, .iov_len = len };
    j->say = (struct wal_append){ .kind = WAL_KIND_SYNCED,
                                  .iov = &j->said_iov,
                                  .n_iov = 1,
                                  .len = len,
                                  .done = on_start_said };
    wal_append(j->wal, &j->say);
    return true;
}

static void start_end(struct journal *j)
{
    assert(j->starting != START_DONE && j->n_resolving == 0);
    free(j->said);
    j->said = NULL;
    free(j->scanned);
    j->scanned = NULL;
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
        j->starting = START_DOUBT;
        if (start_doubt(j))
            return;
        /* fall through */
    case START_DOUBT:
        j->starting = START_SYNC;
        j->stop_wait.done = on_start_synced;
        if (!wal_sync(j->wal, &j->stop_wait))
            return;
        /* fall through */
    case START_SYNC:
        j->starting = START_SAY;
        if (start_say(j))
            return;
        /* fall through */
    case START_SAY:
    case START_SAID:
        if (j->index.n_uncommitted > 0)
            log_info("journal: %llu records and marks wait for a commit",
                     (unsigned long long)j->index.n_uncommitted);
        start_end(j);
        return;
    case START_DONE:
        return;
    }
}

void journal_start(struct journal *j, void (*done)(void *arg, int rc), void *arg)
{
    assert(j->starting == START_SCAN && j->wal == NULL);
    j->start_done = done;
    j->start_arg = arg;
    j->start_rc = (j->config.believe_any_crc ? wal_scan_any_crc : wal_scan)(
        j->config.env, j->config.disk, JOURNAL_LOOPS_MAX, j->config.loop, on_found,
        on_scanned, j);
    if (j->start_rc != 0)
        start_end(j);
}

static void serve(struct journal *j)
{
    LIST_FOREACH(node, &j->index.files)
        journal_queue_file(j, container_of(node, struct pending_file, link));
    if (!list_is_empty(&j->index.entries))
        journal_timer_start(j);
    j->serve_done(j->serve_arg);
}

/* Serves even if old segments could not be erased. Our own are tried again every
 * second; until then drops keep their frames. Segments of loops that no longer exist
 * are tried at the next start, which finds their contents again, also what was dropped
 * since. */
static void on_forgotten(void *arg, int rc)
{
    struct journal *j = arg;

    if (rc != 0)
        log_warn("journal: old segments stay for now: %s", error_text(rc));
    serve(j);
}

static void on_serve_task(struct env_task *task)
{
    serve(container_of(task, struct journal, serve_task));
}

void journal_serve(struct journal *j, void (*done)(void *arg), void *arg)
{
    assert(j->starting == START_DONE && j->start_rc == 0);
    j->serve_done = done;
    j->serve_arg = arg;
    j->serve_task.fn = on_serve_task;
    if (j->keep_old)
        env_post(j->config.env, &j->serve_task);
    else
        wal_forget_old(j->wal, on_forgotten, j);
}
