/*
 * journal.c - the overwrite journal of one loop: start, commits, the applier, copying forward, the end.
 *
 * In:     commits and appended frames from the ops; a timer. Thread: the storio loop.
 * Out:    log.h; internal ops that write in place (storage_apply_*()).
 * Keeps:  nothing is applied that was not committed; a frame is given up only when what it held lies in place
 *         on stable storage, or nobody can want it any more; a frame that was copied, when the copy is.
 * Yours:  when and how much is applied at a time.
 */
#include "storaged/core/journal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "storaged/core/op.h"

enum {
    LOOPS_MAX = 16,
    TICK_MS = 500,
    APPLY_AFTER_MS =
        2000, /* of the oldest commit: until then more may come of the same blocks */
    RETRY_AFTER_MS = 2000, /* when it failed */
    APPLIERS_MAX = 4,
    EARLY_MAX = 16, /* files of the queue that are looked at though they are not due */
    APPLY_RECORDS_MAX = 4096, /* between two syncs of a file */
    RESOLVERS_MAX = 16,
    FENCES_MAX = 65536,
    FENCE_BUCKETS = 1024,
    FENCE_HOURS = 24,
    SEGMENT_BYTES = 8 << 20,
    SEGMENTS_MIN = 4,
};

#define MS UINT64_C(1000000)

struct fence {
    struct fence *hash_next;
    struct list_node link; /* in journal.fences, oldest first */
    struct file_id id;
    uint32_t epoch;
    uint64_t since_ns;
    struct pending_entry *entry; /* referenced */
};

struct drop_note {
    struct list_node link;
    struct pending_entry *entry; /* referenced */
};

enum applier_state { APPLIER_MARKS, APPLIER_RECORDS, APPLIER_SYNC };

struct apply_item {
    uint64_t block;
    uint8_t projection;
};

/* Brings what is committed of one file into place: marks, then records, then a sync. */
struct applier {
    struct list_node link; /* in journal.appliers */
    struct journal *j;
    struct pending_file *f; /* held */
    struct object
        *obj; /* referenced, so that what we write is not forgotten before the sync */
    enum applier_state state;
    struct apply_item *items; /* owned; sorted */
    unsigned n, at;
    struct sync_wait sync;
    struct env_task task;
    int rc; /* the first failure */
};

/* Appends anew what is still wanted of some frames. */
struct copier {
    struct journal *j;
    struct pending_entry *entry; /* being copied; held */
    uint8_t *bytes;              /* of it, owned */
    uint8_t *out;                /* the new frame, owned */
    struct entry e;              /* what is in the new one */
    struct pending_mark *mark;   /* of MARK */
    struct iovec iov;
    struct disk_req dr;
    struct log_append append;
};

enum start_state {
    START_SCAN,
    START_LOG,
    START_RESOLVE,
    START_COPY,
    START_SYNC,
    START_DONE,
};

struct journal {
    struct storage *st; /* borrowed */
    struct log *log;    /* owned; NULL before it is open */
    bool log_started;
    uint64_t failures_told; /* of the log's */
    uint64_t synced_number; /* frames up to this one are on stable storage */
    struct pending pending;

    struct fence *fence_buckets[FENCE_BUCKETS];
    struct list_node fences;
    unsigned n_fences;
    struct list_node drops;

    struct list_node appliers;
    unsigned n_appliers;
    struct list_node queue;   /* files with something committed */
    struct list_node waiters; /* ops that wait for room, or for an applier */
    struct env_timer timer;

    struct copier copier;
    bool copying;
    uint64_t copy_segment;  /* being emptied */
    uint64_t copy_failures; /* of the log, when the first of those held was copied */
    struct pending_entry *
        *held; /* copied, until the copies are on stable storage; owned */
    unsigned n_held, held_max;
    struct log_wait copy_wait;
    bool copy_syncing;

    enum start_state starting;
    int start_rc;
    unsigned n_resolving;
    struct pending_file *resolved; /* the last one given to a resolver; held */
    bool resolved_all;
    void (*start_done)(void *arg, int rc);
    void *start_arg;
    void (*serve_done)(void *arg);
    void *serve_arg;
    bool stopping, is_stopped;
    void (*stop_done)(void *arg);
    void *stop_arg;
    struct log_wait stop_wait;
};

static uint64_t now(const struct journal *j)
{
    return env_now_ns(j->st->env);
}

struct pending *journal_pending(struct journal *j)
{
    return &j->pending;
}

struct storage_file journal_file(const struct file_ref *ref)
{
    struct storage_file f = {
        .id = ref->id,
        .codec = ref->kind,
        .layout = ref->layout,
        .n_storages = ref->n_storages,
        .block_bytes = ref->block_bytes,
    };

    memcpy(f.storages, ref->storages, ref->n_storages * sizeof(f.storages[0]));
    return f;
}

/* ---- how full ---- */

static uint64_t segment_bytes(const struct journal *j)
{
    const struct storage_config *c = &j->st->config;
    uint64_t n = c->journal_bytes / (c->n_loops == 0 ? 1 : c->n_loops) / SEGMENTS_MIN;

    n = n < SEGMENT_BYTES ? n : SEGMENT_BYTES;
    n = n / PROJFILE_PAGE_BYTES * PROJFILE_PAGE_BYTES;
    return n > LOG_SEGMENT_MIN ? n : LOG_SEGMENT_MIN;
}

static unsigned slots(const struct journal *j)
{
    const struct storage_config *c = &j->st->config;
    uint64_t n = c->journal_bytes / (c->n_loops == 0 ? 1 : c->n_loops) / segment_bytes(j);

    n = n > SEGMENTS_MIN ? n : SEGMENTS_MIN;
    return n < LOG_SLOTS_MAX ? (unsigned)n : LOG_SLOTS_MAX;
}

bool journal_has_pressure(const struct journal *j)
{
    return 2 * log_used_bytes(j->log) > log_max_bytes(j->log);
}

/* One segment is kept free for what makes room: copies, fences, drops. */
static bool is_full(const struct journal *j)
{
    return log_used_bytes(j->log) + segment_bytes(j) > log_max_bytes(j->log);
}

void journal_tell_failures(struct journal *j)
{
    for (; j->log != NULL && j->failures_told < log_failures(j->log); j->failures_told++)
        generations_lost_bytes(j->st->config.generations);
}

void journal_health(const struct journal *j, Rozo__StHealthResp *out)
{
    if (j->log != NULL) {
        out->journal_bytes += log_used_bytes(j->log);
        out->journal_max_bytes += log_max_bytes(j->log);
    }
    out->pending_records += j->pending.n_records + j->pending.n_marks;
    out->uncommitted += j->pending.n_uncommitted;
}

/* ---- ops that wait ---- */

static void wake_waiters(struct journal *j)
{
    while (!list_is_empty(&j->waiters)) {
        struct op *op = container_of(j->waiters.next, struct op, room_link);

        list_remove(&op->room_link);
        env_post(j->st->env, &op->task);
    }
}

static void on_unwanted(void *arg, struct pending_entry *entry)
{
    struct journal *j = arg;

    free(entry->data);
    entry->data = NULL;
    if (j->log_started && entry->place.file != NULL)
        log_release(j->log, &entry->place);
}

static void timer_start(struct journal *j)
{
    if (!j->stopping && !env_timer_is_running(&j->timer))
        env_timer_start(j->st->env, &j->timer, TICK_MS);
}

static void journal_run(struct journal *j);

/* Whoever looks at the marks of a file looks at each of them. */
static bool has_many_marks(const struct pending_file *f, unsigned max)
{
    return f != NULL && f->n_marks >= max;
}

bool op_has_pressure(const struct op *op)
{
    return journal_has_pressure(op->st->journal) ||
           has_many_marks(op_pending(op), PENDING_MARKS_MAX / 2);
}

enum op_next op_journal_room(struct op *op, bool is_mark)
{
    struct journal *j = op->st->journal;
    uint64_t t = now(j);

    if (!is_full(j) && !(is_mark && has_many_marks(op_pending(op), PENDING_MARKS_MAX)))
        return OP_GO;
    if (op->room_deadline_ns == 0)
        op->room_deadline_ns = t + ROOM_WAIT_MS * MS;
    if (t >= op->room_deadline_ns || op->st->stopping)
        return op_bad(op, -EBUSY);
    op_unlock(op); /* who applies what is in the way needs it */
    list_add_tail(&j->waiters, &op->room_link);
    timer_start(j);
    journal_run(j);
    return OP_WAIT;
}

enum op_next op_marks_first(struct op *op)
{
    struct journal *j = op->st->journal;
    struct pending_file *f = pending_find(&j->pending, &op->ref.id);

    if (f == NULL || f->n_marks == 0 || op->waited_marks || f->applying)
        return OP_GO;
    LIST_FOREACH(node, &f->marks) {
        if (!container_of(node, struct pending_mark, link)->committed)
            continue;
        op->waited_marks = true; /* once, however it ends */
        f->wanted_now = true;
        journal_poke(j, f);
        if (!f->applying)
            return OP_GO;
        list_add_tail(&j->waiters, &op->room_link);
        return OP_WAIT;
    }
    return OP_GO;
}

/* ---- appending for an op ---- */

static void entry_init(const struct journal *j, struct pending_entry *e, uint8_t kind)
{
    e->kind = kind;
    e->failures = log_failures(j->log);
}

struct op_append {
    struct log_append a;
    struct op *op; /* borrowed */
};

static void on_op_appended(struct log_append *a, int rc)
{
    struct op *op = container_of(a, struct op_append, a)->op;

    op->rc = rc;
    op->step(op);
}

enum op_next op_append(struct op *op, uint8_t kind, const struct iovec *iov,
                       unsigned n_iov, size_t len)
{
    struct journal *j = op->st->journal;

    if (op->append == NULL) {
        op->append = malloc(sizeof(*op->append)); /* large, and the log fills it */
        if (op->append == NULL)
            return op_bad(op, -ENOMEM);
        op->append->op = op;
        op->append->a.kind = kind;
        op->append->a.iov = iov;
        op->append->a.n_iov = n_iov;
        op->append->a.len = len;
        op->append->a.done = on_op_appended;
        log_append(j->log, &op->append->a);
        return OP_WAIT;
    }
    if (op->rc != 0) {
        free(op->append);
        op->append = NULL;
        return OP_BAD;
    }
    op->entry = pending_entry_new(&j->pending, &op->append->a.place);
    if (op->entry == NULL)
        log_release(j->log, &op->append->a.place);
    else
        entry_init(j, op->entry, op->append->a.kind);
    free(op->append);
    op->append = NULL;
    if (op->entry == NULL)
        return op_bad(op, -ENOMEM);
    timer_start(j);
    return OP_GO;
}

bool op_entry_is_good(const struct op *op, const struct pending_entry *entry)
{
    return entry->failures == log_failures(op->st->journal->log);
}

static void on_op_log_synced(struct log_wait *w, int rc)
{
    struct op *op = container_of(w, struct op, log_wait);

    op->log_waiting = false;
    op->log_rc = rc;
    if (rc == 0 && op->log_number > op->st->journal->synced_number)
        op->st->journal->synced_number = op->log_number;
    if (op->log_joined)
        op->step(op);
}

bool op_file_is_synced(const struct op *op)
{
    const struct pending_file *f = op_pending(op);

    return f == NULL || f->last_number <= op->st->journal->synced_number;
}

void op_log_sync_start(struct op *op)
{
    struct journal *j = op->st->journal;

    if ((op->st->config.mutant & MUTANT_NO_JOURNAL_SYNC) != 0)
        return;
    op->log_number = j->pending.n_numbers;
    op->log_wait.done = on_op_log_synced;
    op->log_waiting = !log_sync(j->log, &op->log_wait);
}

enum op_next op_log_sync_join(struct op *op)
{
    op->log_joined = true;
    if (op->log_waiting)
        return OP_WAIT;
    return op->log_rc == 0 ? OP_GO : op_bad(op, op->log_rc);
}

/* ---- commits ---- */

/* The queue is in the order in which files are due; a file that is wanted now goes to its front. */
static void file_queue(struct journal *j, struct pending_file *f)
{
    if (f->wanted_now)
        list_remove(&f->apply_link);
    if (f->n_committed > 0 && !f->applying && list_is_empty(&f->apply_link))
        list_add_after(f->wanted_now ? &j->queue : j->queue.prev, &f->apply_link);
    timer_start(j);
}

void journal_poke(struct journal *j, struct pending_file *f)
{
    file_queue(j, f);
    journal_run(j);
}

void journal_commit(struct journal *j, const struct file_id *id, const uint64_t *durable,
                    size_t n)
{
    struct pending_file *f = n == 0 ? NULL : pending_find(&j->pending, id);

    if (f == NULL)
        return;
    for (size_t i = 0; i < n; i++)
        pending_commit(&j->pending, f, durable[i], now(j));
    if (f->n_committed > 0)
        journal_poke(j, f);
}

void journal_commit_range(struct journal *j, const struct file_id *id, uint64_t first,
                          uint64_t end, uint64_t version)
{
    struct pending_file *f = pending_find(&j->pending, id);

    if (f == NULL)
        return;
    pending_commit_range(&j->pending, f, first, end, version, now(j));
    if (f->n_committed > 0)
        journal_poke(j, f);
}

/* ---- fences and drops ---- */

static struct fence **fence_link(struct journal *j, const struct file_id *id)
{
    struct fence **at = &j->fence_buckets[file_id_hash(id) % FENCE_BUCKETS];

    while (*at != NULL &&
           ((*at)->id.ino != id->ino || (*at)->id.generation != id->generation ||
            (*at)->id.export_id != id->export_id))
        at = &(*at)->hash_next;
    return at;
}

uint32_t journal_fence(const struct journal *j, const struct file_id *id)
{
    const struct fence *f;

    if (j->n_fences == 0)
        return 0;
    f = *fence_link((struct journal *)(uintptr_t)j, id);
    return f == NULL ? 0 : f->epoch;
}

bool journal_fence_is_good(const struct journal *j, const struct file_id *id)
{
    const struct fence *f = *fence_link((struct journal *)(uintptr_t)j, id);

    return f != NULL && f->entry->failures == log_failures(j->log);
}

bool journal_has_failed(const struct journal *j)
{
    return log_failures(j->log) != 0;
}

bool journal_is_copying(const struct journal *j)
{
    return j->copying && j->copier.out != NULL;
}

static void fence_free(struct journal *j, struct fence **at)
{
    struct fence *f = *at;

    *at = f->hash_next;
    list_remove(&f->link);
    pending_entry_put(&j->pending, f->entry);
    free(f);
    j->n_fences--;
}

int journal_fence_note(struct journal *j, const struct file_id *id, uint32_t epoch,
                       struct pending_entry *entry)
{
    struct fence **at = fence_link(j, id), *f = *at;

    if (f != NULL && f->epoch > epoch) {
        pending_entry_put(&j->pending, entry);
        return 0;
    }
    if (f != NULL)
        fence_free(j, at);
    f = calloc(1, sizeof(*f));
    if (f == NULL) {
        pending_entry_put(&j->pending, entry);
        return -ENOMEM;
    }
    *f = (struct fence){ .id = *id, .epoch = epoch, .since_ns = now(j), .entry = entry };
    at = &j->fence_buckets[file_id_hash(id) % FENCE_BUCKETS];
    f->hash_next = *at;
    *at = f;
    list_add_tail(&j->fences, &f->link);
    if (++j->n_fences > FENCES_MAX)
        fence_free(j,
                   fence_link(j, &container_of(j->fences.next, struct fence, link)->id));
    timer_start(j);
    return 0;
}

/* Without the note in memory the frame would go, and what it took away could come back. */
void journal_drop_note(struct journal *j, struct pending_entry *entry)
{
    struct drop_note *n = malloc(sizeof(*n));

    if (n == NULL)
        return; /* the frame stays wanted for ever, that is: until the next start */
    n->entry = entry;
    list_add_tail(&j->drops, &n->link);
    timer_start(j);
}

static void notes_expire(struct journal *j)
{
    uint64_t oldest = log_oldest(j->log);

    while (!list_is_empty(&j->fences)) {
        struct fence *f = container_of(j->fences.next, struct fence, link);

        if (now(j) - f->since_ns < FENCE_HOURS * 3600 * 1000 * MS)
            break;
        fence_free(j, fence_link(j, &f->id));
    }
    LIST_FOREACH_SAFE(node, &j->drops) {
        struct drop_note *n = container_of(node, struct drop_note, link);

        if (oldest != 0 && oldest < n->entry->place.segment)
            continue;
        list_remove(&n->link);
        pending_entry_put(&j->pending, n->entry);
        free(n);
    }
}

/* ---- the applier ---- */

static void applier_step(struct applier *a);

static int by_place(const void *a, const void *b)
{
    const struct apply_item *x = a, *y = b;

    if (x->projection != y->projection)
        return x->projection < y->projection ? -1 : 1;
    return x->block < y->block ? -1 : x->block > y->block;
}

static int applier_collect(struct applier *a)
{
    struct pending_file *f = a->f;
    unsigned n = f->n_records < APPLY_RECORDS_MAX ? f->n_records : APPLY_RECORDS_MAX;

    a->items = malloc((n + 1) * sizeof(a->items[0]));
    if (a->items == NULL)
        return -ENOMEM;
    LIST_FOREACH(node, &f->records[true]) {
        struct pending_record *r = container_of(node, struct pending_record, link);

        if (!r->committed || r->applied)
            continue;
        if (a->n == n)
            break;
        a->items[a->n++] = (struct apply_item){ r->block, r->projection };
    }
    qsort(a->items, a->n, sizeof(a->items[0]), by_place);
    return 0;
}

static void applier_end(struct applier *a)
{
    struct journal *j = a->j;
    struct pending_file *f = a->f;
    bool is_well = a->rc == 0;

    f->applying = false;
    if (a->rc != 0) {
        log_warn("cannot apply what is pending of file %08x%08x%016llx yet: %s",
                 f->ref.id.export_id, f->ref.id.generation,
                 (unsigned long long)f->ref.id.ino, strerror(-a->rc));
        f->retry_ns = now(j) + RETRY_AFTER_MS * MS;
        f->gave_up = j->stopping;
    }
    if (a->obj != NULL)
        object_put(a->obj);
    list_remove(&a->link);
    j->n_appliers--;
    free(a->items);
    free(a);
    f->wanted_now = is_well; /* was there more than one go takes? */
    file_queue(j, f);
    f->wanted_now = false;
    pending_put(&j->pending, f);
    wake_waiters(j);
    journal_run(j);
}

static void on_applied(void *arg, int rc)
{
    struct applier *a = arg;

    if (rc != 0 && a->rc == 0)
        a->rc = rc;
    applier_step(a);
}

/* The next mark, oldest version first; false: none. */
static bool applier_mark(struct applier *a)
{
    if (a->rc != 0)
        return false;
    LIST_FOREACH(node, &a->f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (!m->committed || m->applied)
            continue;
        a->rc = storage_apply_mark(a->j->st, a->f, m, on_applied, a);
        return a->rc == 0;
    }
    return false;
}

/* Neighbours in one go. */
static bool applier_records(struct applier *a)
{
    const struct apply_item *i = &a->items[a->at];
    unsigned n = 1;

    if (a->at == a->n || a->rc != 0)
        return false;
    while (a->at + n < a->n && n < BLOCKS_PER_REQUEST_MAX &&
           i[n].projection == i->projection && i[n].block == i->block + n)
        n++;
    a->at += n;
    a->rc =
        storage_apply_records(a->j->st, a->f, i->projection, i->block, n, on_applied, a);
    return a->rc == 0;
}

/* What lies in place on stable storage is not needed here any more. */
static void applier_release(struct applier *a)
{
    struct pending_file *f = a->f;

    LIST_FOREACH_SAFE(node, &f->records[true]) {
        struct pending_record *r = container_of(node, struct pending_record, link);

        if (r->applied)
            pending_remove_record(&a->j->pending, r);
    }
    LIST_FOREACH_SAFE(node, &f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->applied)
            pending_remove_mark(&a->j->pending, f, m);
    }
}

static void on_applier_synced(struct env_task *task)
{
    struct applier *a = container_of(task, struct applier, sync.task);

    if (a->sync.rc == 0) {
        applier_release(a);
    } else { /* what the kernel could not write out it may have dropped: again */
        a->rc = a->sync.rc;
        LIST_FOREACH(node, &a->f->records[true])
            container_of(node, struct pending_record, link)->applied = false;
        LIST_FOREACH(node, &a->f->marks)
            container_of(node, struct pending_mark, link)->applied = false;
    }
    applier_end(a);
}

static void applier_step(struct applier *a)
{
    switch (a->state) {
    case APPLIER_MARKS:
        if (applier_mark(a))
            return;
        wake_waiters(a->j);
        a->state = APPLIER_RECORDS;
        if (a->rc == 0)
            a->rc = applier_collect(a);
        /* fall through */
    case APPLIER_RECORDS:
        if (applier_records(a))
            return;
        a->state = APPLIER_SYNC;
        a->sync.task.fn = on_applier_synced;
        if (!object_sync(a->obj, &a->sync))
            return;
        applier_release(a);
        /* fall through */
    case APPLIER_SYNC:
        applier_end(a);
    }
}

static void on_applier_task(struct env_task *task)
{
    applier_step(container_of(task, struct applier, task));
}

static int applier_start(struct journal *j, struct pending_file *f)
{
    struct applier *a = calloc(1, sizeof(*a));
    int rc;

    if (a == NULL)
        return -ENOMEM;
    rc = object_get(&j->st->objects, &f->ref.id, &a->obj);
    if (rc != 0) {
        free(a);
        return rc;
    }
    a->j = j;
    a->f = f;
    a->task.fn = on_applier_task;
    pending_hold(f);
    f->applying = true;
    f->wanted_now = false;
    list_add_tail(&j->appliers, &a->link);
    j->n_appliers++;
    env_post(j->st->env, &a->task);
    return 0;
}

static bool is_due(const struct journal *j, const struct pending_file *f)
{
    if (f->gave_up)
        return false;
    if (j->stopping)
        return true;
    if (now(j) < f->retry_ns)
        return false;
    return f->wanted_now || journal_has_pressure(j) ||
           has_many_marks(f, PENDING_MARKS_MAX / 2) ||
           (j->st->config.mutant & MUTANT_NO_COMMIT_RULE) != 0 ||
           now(j) >= f->committed_ns + APPLY_AFTER_MS * MS;
}

static void appliers_start(struct journal *j)
{
    unsigned n_early = 0;

    LIST_FOREACH_SAFE(node, &j->queue) {
        struct pending_file *f = container_of(node, struct pending_file, apply_link);

        if (j->n_appliers == APPLIERS_MAX)
            return;
        if (!is_due(j, f)) {
            if (++n_early > EARLY_MAX && !j->stopping)
                return; /* those behind were committed later, about */
            continue;
        }
        list_remove(&f->apply_link);
        if (applier_start(j, f) != 0) {
            f->retry_ns = now(j) + RETRY_AFTER_MS * MS;
            f->gave_up = j->stopping;
            list_add_tail(&j->queue, &f->apply_link);
        }
    }
}

/* ---- copying forward, so that one stuck record does not hold the log ---- */

static void copy_next(struct journal *j);
static void start_step(struct journal *j);

static void copier_free(struct copier *c)
{
    free(c->bytes);
    free(c->out);
    c->bytes = c->out = NULL;
}

/* Of a frame nothing is left to copy: it goes when the copies are on stable storage. */
static void copy_entry_end(struct journal *j)
{
    copier_free(&j->copier);
    copy_next(j);
}

static void copy_give_up(struct journal *j, int rc)
{
    j->copier.entry->copied = false;
    copier_free(&j->copier);
    j->copying = false;
    if (j->starting < START_DONE) {
        j->start_rc = rc;
        start_step(j);
    } else {
        timer_start(j);
        journal_run(j);
    }
}

static void copy_switch_records(struct copier *c, struct pending_entry *to)
{
    struct pending *p = &c->j->pending;
    struct pending_file *f = pending_find(p, &c->e.file.id);
    struct entry_record records[ENTRY_BLOCKS_MAX];
    int n = entry_records(&c->e, c->out, c->append.len, records);

    assert(n > 0);
    for (int i = 0; f != NULL && i < n; i++) {
        struct pending_record *r = pending_at_most(
            p, f, c->e.projection, records[i].block, records[i].header.version);

        if (r == NULL || r->entry != c->entry || r->version != records[i].header.version)
            continue; /* it went meanwhile */
        r->entry = to;
        r->body_at = (uint32_t)records[i].body_at;
        to->n_refs++;
        to->n_bytes += (unsigned)r->head_len + r->body_len;
        c->entry->n_bytes -= (unsigned)r->head_len + r->body_len;
        pending_entry_put(p, c->entry);
    }
}

static void copy_switch_mark(struct copier *c, struct pending_entry *to)
{
    struct pending *p = &c->j->pending;
    struct pending_file *f = pending_find(p, &c->e.file.id);

    if (f == NULL)
        return;
    LIST_FOREACH(node, &f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->entry != c->entry || m->first != c->e.first || m->end != c->e.end ||
            m->version != c->e.version)
            continue;
        m->entry = to;
        to->n_refs++;
        pending_entry_put(p, c->entry);
        return;
    }
}

static void copy_switch_fence(struct copier *c, struct pending_entry *to)
{
    struct fence *f = *fence_link(c->j, &c->e.file.id);

    if (f == NULL || f->entry != c->entry)
        return;
    f->entry = to;
    to->n_refs++;
    pending_entry_put(&c->j->pending, c->entry);
}

static void copy_entry(struct journal *j);

static void on_copied(struct log_append *append, int rc)
{
    struct copier *c = container_of(append, struct copier, append);
    struct journal *j = c->j;
    struct pending_entry *to =
        rc == 0 ? pending_entry_new(&j->pending, &append->place) : NULL;

    if (rc == 0 && to == NULL) {
        log_release(j->log, &append->place);
        rc = -ENOMEM;
    }
    if (rc != 0) {
        copy_give_up(j, rc);
        return;
    }
    entry_init(j, to, c->entry->kind);
    switch (c->entry->kind) {
    case ENTRY_RECORDS:
        copy_switch_records(c, to);
        break;
    case ENTRY_MARK:
        copy_switch_mark(c, to);
        break;
    case ENTRY_FENCE:
        copy_switch_fence(c, to);
        break;
    default:
        to->n_refs++;
        journal_drop_note(j, to);
        break;
    }
    pending_entry_put(&j->pending, to);
    free(c->out);
    c->out = NULL;
    if (c->entry->kind == ENTRY_MARK)
        copy_entry(j); /* it may be in pieces */
    else
        copy_entry_end(j);
}

/* What is still wanted of the records in c->bytes, as a new frame; false: nothing. */
static bool copy_make_records(struct copier *c, const struct entry *e,
                              struct entry_record *records, int n)
{
    struct pending *p = &c->j->pending;
    struct pending_file *f = pending_find(p, &e->file.id);
    size_t head = RECORD_HEADER_BYTES + codec_overhang_bytes(e->codec, e->projection);
    size_t at = ENTRY_HEADER_BYTES;
    int n_wanted = 0;

    c->e = *e;
    c->e.blocks[0] = c->e.blocks[1] = 0;
    for (int i = 0; f != NULL && i < n; i++) {
        struct pending_record *r = pending_at_most(p, f, e->projection, records[i].block,
                                                   records[i].header.version);
        unsigned bit = (unsigned)(records[i].block - e->first);

        if (r == NULL || r->entry != c->entry || r->version != records[i].header.version)
            continue;
        c->e.blocks[bit / 64] |= UINT64_C(1) << bit % 64;
        records[n_wanted++] = records[i];
    }
    for (int i = 0; i < n_wanted; i++) {
        memcpy(c->out + at, c->bytes + records[i].head_at, head);
        at += head;
    }
    for (int i = 0; i < n_wanted; i++) {
        memcpy(c->out + at, c->bytes + records[i].body_at, records[i].body_len);
        at += records[i].body_len;
    }
    c->iov.iov_len = at;
    return n_wanted > 0;
}

static bool copy_make_mark(struct copier *c, const struct entry *e)
{
    struct pending_file *f = pending_find(&c->j->pending, &e->file.id);

    c->e = *e;
    c->iov.iov_len = ENTRY_HEADER_BYTES;
    if (f == NULL)
        return false;
    LIST_FOREACH(node, &f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->entry != c->entry)
            continue;
        c->e.first = m->first;
        c->e.end = m->end;
        return true;
    }
    return false;
}

/* c->bytes has the frame. */
static void copy_entry(struct journal *j)
{
    struct copier *c = &j->copier;
    struct entry_record records[ENTRY_BLOCKS_MAX];
    uint32_t len = c->entry->place.len;
    struct entry e;
    bool any = true;
    int n = 0;
    int rc = entry_get(c->entry->kind, c->bytes, len, &e);

    if (rc == 0 && e.kind == ENTRY_RECORDS)
        n = entry_records(&e, c->bytes, len, records);
    c->out = malloc(len);
    if (rc != 0 || n < 0 || c->out == NULL) {
        copy_give_up(j, c->out == NULL ? -ENOMEM : -EIO);
        return;
    }
    c->iov.iov_base = c->out;
    if (e.kind == ENTRY_RECORDS) {
        any = copy_make_records(c, &e, records, n);
    } else if (e.kind == ENTRY_MARK) {
        any = copy_make_mark(c, &e);
    } else {
        c->e = e;
        c->iov.iov_len = ENTRY_HEADER_BYTES;
    }
    if (!any) {
        copy_entry_end(j);
        return;
    }
    entry_put(c->out, &c->e);
    c->append = (struct log_append){ .kind = e.kind,
                                     .iov = &c->iov,
                                     .n_iov = 1,
                                     .len = c->iov.iov_len,
                                     .done = on_copied };
    log_append(j->log, &c->append);
}

static void on_copy_read(struct disk_req *dr, int rc)
{
    struct copier *c = dr->arg;

    if (rc == 0 && dr->n_read != c->entry->place.len)
        rc = -EIO;
    if (rc != 0)
        copy_give_up(c->j, rc);
    else
        copy_entry(c->j);
}

/* Take the frame in hand: read it, unless its bytes are here. */
static void copy_entry_start(struct journal *j, struct pending_entry *entry)
{
    struct copier *c = &j->copier;

    c->j = j;
    c->entry = entry;
    if (j->n_held == 0)
        j->copy_failures = log_failures(j->log);
    if (j->n_held == j->held_max) {
        unsigned max = j->held_max * 2 + 64;
        struct pending_entry **more = realloc(j->held, max * sizeof(*more));

        if (more == NULL) {
            copy_give_up(j, -ENOMEM);
            return;
        }
        j->held = more;
        j->held_max = max;
    }
    j->held[j->n_held++] = entry;
    entry->n_refs++;
    entry->copied = true;
    c->bytes = entry->data;
    entry->data = NULL;
    if (c->bytes != NULL) {
        copy_entry(j);
        return;
    }
    c->bytes = malloc(entry->place.len);
    if (c->bytes == NULL || entry->place.file == NULL) {
        copy_give_up(j, c->bytes == NULL ? -ENOMEM : -EIO);
        return;
    }
    c->iov = (struct iovec){ .iov_base = c->bytes, .iov_len = entry->place.len };
    c->dr = (struct disk_req){ .op = DISK_READ,
                               .file = entry->place.file,
                               .offset = entry->place.offset,
                               .iov = &c->iov,
                               .n_iov = 1,
                               .done = on_copy_read,
                               .arg = c };
    disk_submit(j->st->disk, &c->dr);
}

/* The copies are on stable storage. But if a sync failed since, perhaps not, and no later sync would tell: then
 * what was copied stays wanted, too, until the next start. */
static void held_release(struct journal *j)
{
    if (j->n_held > 0 && j->copy_failures != log_failures(j->log)) {
        log_error("journal: a sync failed; what was copied stays where it was");
        j->n_held = 0;
    }
    while (j->n_held > 0)
        pending_entry_put(&j->pending, j->held[--j->n_held]);
    wake_waiters(j);
}

static void on_copies_synced(struct log_wait *w, int rc)
{
    struct journal *j = container_of(w, struct journal, copy_wait);

    j->copy_syncing = false;
    held_release(j);
    if (j->starting < START_DONE) {
        j->start_rc = rc;
        start_step(j);
        return;
    }
    timer_start(j);
    journal_run(j);
}

/* All frames are copied. */
static void copies_sync(struct journal *j)
{
    j->copying = false;
    if (j->n_held > 0) {
        j->copy_wait.done = on_copies_synced;
        j->copy_syncing = !log_sync(j->log, &j->copy_wait);
        if (j->copy_syncing)
            return;
        held_release(j);
    }
    if (j->starting < START_DONE)
        start_step(j);
    else
        journal_run(j);
}

/* At the start: those whose bytes lie in no segment of ours. Later: those of the segment to be emptied. */
static bool is_to_be_copied(const struct journal *j, const struct pending_entry *e)
{
    if (e->copied)
        return false;
    if (j->starting < START_DONE)
        return e->data != NULL;
    return e->place.segment == j->copy_segment && e->kind != ENTRY_DROP;
}

static void copy_next(struct journal *j)
{
    LIST_FOREACH(node, &j->pending.entries) {
        struct pending_entry *e = container_of(node, struct pending_entry, link);

        if (is_to_be_copied(j, e)) {
            copy_entry_start(j, e);
            return;
        }
    }
    copies_sync(j);
}

/* Is it worth it? What is committed will be applied instead. */
static void copy_maybe_start(struct journal *j)
{
    uint64_t segment = log_oldest_wanted(j->log);
    uint64_t bytes = 0;

    if (j->copying || j->copy_syncing || j->stopping || !journal_has_pressure(j) ||
        segment == 0 || segment == log_newest(j->log))
        return;
    if (j->n_held > 0) { /* the last sync failed: those first */
        copies_sync(j);
        return;
    }
    LIST_FOREACH(node, &j->pending.entries) {
        const struct pending_entry *e = container_of(node, struct pending_entry, link);

        if (e->place.segment == segment)
            bytes += e->n_bytes + ENTRY_HEADER_BYTES;
    }
    if (bytes > segment_bytes(j) / 2)
        return;
    j->copying = true;
    j->copy_segment = segment;
    copy_next(j);
}

/* ---- what runs by itself ---- */

static void stop_maybe_done(struct journal *j);

static void journal_run(struct journal *j)
{
    if (j->starting < START_DONE)
        return;
    appliers_start(j);
    if (j->stopping)
        stop_maybe_done(j);
}

static void on_tick(struct env_timer *timer)
{
    struct journal *j = container_of(timer, struct journal, timer);

    if (j->stopping)
        return;
    notes_expire(j);
    journal_run(j);
    copy_maybe_start(j);
    wake_waiters(j); /* they look again, and give up in time */
    if (j->pending.n_files > 0 || !list_is_empty(&j->pending.entries) || j->n_held > 0)
        timer_start(j);
}

/* ---- the start ---- */

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
                                records[i].body_at, records[i].body_len, now(j));
    return rc;
}

static int found_mark(struct journal *j, struct pending_entry *entry,
                      const struct entry *e)
{
    struct pending_file *f = pending_get(&j->pending, &e->file, e->codec);
    struct pending_mark m = { .first = e->first,
                              .end = e->end,
                              .version = e->version,
                              .since_ns = now(j),
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
    start_step(j);
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
    start_step(j);
}

static int start_log(struct journal *j)
{
    const struct storage_config *c = &j->st->config;
    struct log_config config = {
        .env = j->st->env,
        .disk = j->st->disk,
        .loop = c->loop,
        .n_loops = c->n_loops == 0 ? 1 : c->n_loops,
        .n_loops_max = LOOPS_MAX,
        .segment_bytes = segment_bytes(j),
        .slots = slots(j),
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
    start_step(j);
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
    start_step(j);
}

static void start_end(struct journal *j)
{
    j->starting = START_DONE;
    j->start_done(j->start_arg, j->start_rc);
}

static void start_step(struct journal *j)
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
        j->copying = true;
        copy_next(j);
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
    j->start_rc = ((j->st->config.mutant & MUTANT_NO_CRC_CHECK) != 0 ? log_scan_any_crc
                                                                     : log_scan)(
        j->st->env, j->st->disk, LOOPS_MAX, j->st->config.loop, on_found, on_scanned, j);
    if (j->start_rc != 0)
        start_end(j);
}

static void on_forgotten(void *arg, int rc)
{
    struct journal *j = arg;

    if (rc != 0)
        log_warn("journal: old segments stay for now: %s", strerror(-rc));
    LIST_FOREACH(node, &j->pending.files)
        file_queue(j, container_of(node, struct pending_file, link));
    if (!list_is_empty(&j->pending.entries))
        timer_start(j);
    j->serve_done(j->serve_arg);
}

void journal_serve(struct journal *j, void (*done)(void *arg), void *arg)
{
    j->serve_done = done;
    j->serve_arg = arg;
    log_forget_old(j->log, on_forgotten, j);
}

/* ---- the end ---- */

static void on_log_stopped(void *arg)
{
    struct journal *j = arg;

    j->stop_done(j->stop_arg);
}

static void on_stop_synced(struct log_wait *w, int rc)
{
    struct journal *j = container_of(w, struct journal, stop_wait);

    (void)rc; /* a failure was told by the log's failures */
    log_stop(j->log, on_log_stopped, j);
}

static bool has_work(const struct journal *j)
{
    if (j->n_appliers > 0 || j->copying || j->copy_syncing)
        return true;
    LIST_FOREACH(node, &j->queue) {
        if (!container_of(node, struct pending_file, apply_link)->gave_up)
            return true;
    }
    return false;
}

static void stop_maybe_done(struct journal *j)
{
    if (j->stop_done == NULL || j->is_stopped || has_work(j))
        return;
    j->is_stopped = true;
    j->stop_wait.done = on_stop_synced;
    if (log_sync(j->log, &j->stop_wait))
        on_stop_synced(&j->stop_wait, 0);
}

void journal_stop(struct journal *j, void (*done)(void *arg), void *arg)
{
    env_timer_stop(j->st->env, &j->timer);
    j->stopping = true;
    j->stop_done = done;
    j->stop_arg = arg;
    journal_run(j);
}

int journal_new(struct storage *st, struct journal **out)
{
    struct journal *j = calloc(1, sizeof(*j));
    int rc;

    if (j == NULL)
        return -ENOMEM;
    j->st = st;
    list_init(&j->fences);
    list_init(&j->drops);
    list_init(&j->appliers);
    list_init(&j->queue);
    list_init(&j->waiters);
    env_timer_init(&j->timer, on_tick);
    rc = pending_init(&j->pending, on_unwanted, j);
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
    env_timer_stop(j->st->env, &j->timer);
    copier_free(&j->copier);
    j->log_started = false; /* what is wanted stays wanted in the segments */
    while (!list_is_empty(&j->fences))
        fence_free(j,
                   fence_link(j, &container_of(j->fences.next, struct fence, link)->id));
    while (!list_is_empty(&j->drops)) {
        struct drop_note *n = container_of(j->drops.next, struct drop_note, link);

        list_remove(&n->link);
        free(n);
    }
    pending_close(&j->pending);
    free(j->held);
    log_close(j->log);
    free(j);
}
