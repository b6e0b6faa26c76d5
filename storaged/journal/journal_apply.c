/*
 * journal_apply.c - the applier: writes the committed part of a file in place.
 *
 * In:     the queue of files with anything committed. Thread: the storio loop.
 * Out:    the hooks that write in place, a sync of the projection files.
 * Keeps:  only what was committed is applied; a frame is released only when its contents
 *         are stable in place.
 * Yours:  when and how much is applied at a time.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "storaged/journal/journal_in.h"

enum {
    /* delay after the oldest commit: the same blocks may be written again */
    APPLY_AFTER_MS = 2000,
    /* longest delay, while more records keep coming and there is room */
    APPLY_LATEST_MS = 30000,
    RETRY_AFTER_MS = 2000, /* delay after a failure */
    APPLIERS_MAX = 4,
    EARLY_MAX = 16, /* files in the queue that are checked although they are not due */
    APPLY_RECORDS_MAX = 16384, /* records between two syncs of a file */
};

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

    assert(a->items == NULL && a->n == 0);
    a->items = malloc((n + 1) * sizeof(a->items[0]));
    if (a->items == NULL)
        return -ENOMEM;
    a->all_ns = journal_now(a->j);
    LIST_FOREACH(node, &f->records[true]) {
        struct pending_record *r = container_of(node, struct pending_record, link);

        if (!r->committed || r->applied)
            continue;
        if (a->n == n) {
            a->all_ns = 0;
            break;
        }
        a->items[a->n++] = (struct apply_item){ r->block, r->projection };
    }
    qsort(a->items, a->n, sizeof(a->items[0]), by_place);
    return 0;
}

void journal_apply_later(const struct journal *j, struct pending_file *f)
{
    f->retry_ns = journal_now(j) + ms_to_ns(RETRY_AFTER_MS);
    f->is_abandoned = j->stopping != NOT_STOPPING;
}

static void applier_end(struct applier *a)
{
    struct journal *j = a->j;
    struct pending_file *f = a->f;
    bool is_well = a->rc == 0;

    assert(f->applying && j->n_appliers > 0 && f->n_users > 0);
    f->applying = false;
    if (a->rc != 0) {
        log_warn("cannot apply the pending records of file %08x%08x%016llx yet: %s",
                 f->ref.id.export_id, f->ref.id.generation,
                 (unsigned long long)f->ref.id.ino, error_text(a->rc));
        journal_apply_later(j, f);
    }
    if (is_well && a->all_ns != 0)
        f->committed_ns = a->all_ns; /* the rest was committed later */
    if (a->obj != NULL)
        object_put(a->obj);
    list_remove(&a->link);
    j->n_appliers--;
    free(a->items);
    free(a);
    /* Go on at once if there was more than one round takes. Unreadable records wait
     * for the retry. */
    f->wanted_now = is_well && f->retry_ns <= journal_now(j);
    journal_queue_file(j, f);
    f->wanted_now = false;
    journal_index_put(&j->index, f);
    journal_wake(j);
    journal_run(j);
}

static void on_applied(void *arg, int rc)
{
    struct applier *a = arg;

    assert(a->state != APPLIER_SYNC);
    if (rc != 0 && a->rc == 0)
        a->rc = rc;
    applier_step(a);
}

/* Applies the next mark, oldest version first. Returns false if there is none. */
static bool applier_mark(struct applier *a)
{
    const struct journal_hooks *hooks = &a->j->config.hooks;

    assert(a->state == APPLIER_MARKS);
    if (a->rc != 0)
        return false;
    LIST_FOREACH(node, &a->f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (!m->committed || m->applied)
            continue;
        a->rc = hooks->apply_mark(hooks->arg, a->f, m, on_applied, a);
        return a->rc == 0;
    }
    return false;
}

/* Applies the next run of adjacent blocks. Returns false if there is none. */
static bool applier_records(struct applier *a)
{
    const struct journal_hooks *hooks = &a->j->config.hooks;
    const struct apply_item *i = &a->items[a->at];
    unsigned n = 1;

    assert(a->at <= a->n);
    if (a->at == a->n || a->rc != 0)
        return false;
    while (a->at + n < a->n && n < APPLY_BLOCKS_MAX && i[n].projection == i->projection &&
           i[n].block == i->block + n)
        n++;
    a->at += n;
    a->rc =
        hooks->apply_records(hooks->arg, a->f, i->projection, i->block, n, on_applied, a);
    return a->rc == 0;
}

/* Removes what is stable in place from the index. */
static void applier_release(struct applier *a)
{
    struct pending_file *f = a->f;

    assert(a->state == APPLIER_SYNC);
    LIST_FOREACH_SAFE(node, &f->records[true]) {
        struct pending_record *r = container_of(node, struct pending_record, link);

        if (r->applied)
            journal_index_remove_record(&a->j->index, r);
    }
    LIST_FOREACH_SAFE(node, &f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->applied)
            journal_index_remove_mark(&a->j->index, f, m);
    }
}

static void on_applier_synced(struct env_task *task)
{
    struct applier *a = container_of(task, struct applier, sync.task);

    assert(a->state == APPLIER_SYNC && a->obj != NULL);
    if (a->sync.rc == 0) {
        applier_release(a);
    } else { /* the kernel may have dropped dirty pages: apply all again */
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
        journal_wake(a->j);
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

    assert(!f->applying && list_is_empty(&f->apply_link));
    if (a == NULL)
        return -ENOMEM;
    rc = object_get(j->config.objects, &f->ref.id, &a->obj);
    if (rc != 0) {
        free(a);
        return rc;
    }
    a->j = j;
    a->f = f;
    a->task.fn = on_applier_task;
    pending_file_hold(f);
    f->applying = true;
    f->wanted_now = false;
    list_add_tail(&j->appliers, &a->link);
    j->n_appliers++;
    env_post(j->config.env, &a->task);
    return 0;
}

/* Decides whether to apply a file before the journal needs room. Blocks that are
 * overwritten again need not be applied, and larger runs cost less, so it waits while
 * records keep coming and there is room. Marks do not wait: requests on a file look at
 * each of its marks. */
static bool is_time(const struct journal *j, const struct pending_file *f)
{
    uint64_t now = journal_now(j);

    if (now < f->committed_ns + ms_to_ns(APPLY_AFTER_MS))
        return false;
    return f->n_marks > 0 || now >= f->added_ns + ms_to_ns(APPLY_AFTER_MS) ||
           now >= f->committed_ns + ms_to_ns(APPLY_LATEST_MS) ||
           2 * wal_used_bytes(j->wal) > wal_max_bytes(j->wal);
}

static bool is_due(const struct journal *j, const struct pending_file *f)
{
    if (f->is_abandoned)
        return false;
    if (j->stopping != NOT_STOPPING)
        return true;
    if (journal_now(j) < f->retry_ns)
        return false;
    return f->wanted_now || journal_has_pressure(j) ||
           journal_has_many_marks(f, PENDING_MARKS_MAX / 2) ||
           j->config.apply_uncommitted || is_time(j, f);
}

void journal_appliers_start(struct journal *j)
{
    unsigned n_early = 0;

    assert(j->n_appliers <= APPLIERS_MAX);
    LIST_FOREACH_SAFE(node, &j->queue) {
        struct pending_file *f = container_of(node, struct pending_file, apply_link);

        if (j->n_appliers == APPLIERS_MAX)
            return;
        if (!is_due(j, f)) {
            if (++n_early > EARLY_MAX && j->stopping == NOT_STOPPING)
                return; /* the files behind it were committed later, roughly */
            continue;
        }
        list_remove(&f->apply_link);
        if (applier_start(j, f) != 0) {
            journal_apply_later(j, f);
            list_add_tail(&j->queue, &f->apply_link);
        }
    }
}
