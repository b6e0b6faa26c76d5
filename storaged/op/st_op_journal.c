/*
 * st_op_journal.c - requests and the journal: room, appended frames, syncs (st_op.h has
 * the contracts).
 *
 * In:     the requests of storaged/ops. Thread: the storio loop.
 * Out:    wal.h; the step of an op that waited.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/units.h"
#include "storaged/op/st_op.h"

/* ---- room ---- */

bool st_op_has_pressure(const struct st_op *op)
{
    return journal_has_pressure(op->st->journal) ||
           journal_has_many_marks(st_op_pending_file(op), PENDING_MARKS_MAX / 2);
}

enum st_op_next st_op_journal_room(struct st_op *op, bool is_mark)
{
    struct journal *j = op->st->journal;
    uint64_t t = env_now_ns(op->st->env);

    assert(op->held == OP_HOLDS_EXCLUSIVE && list_is_empty(&op->journal.room.link));
    if (!journal_is_full(j) &&
        !(is_mark && journal_has_many_marks(st_op_pending_file(op), PENDING_MARKS_MAX)))
        return OP_GO;
    if (op->journal.room_deadline_ns == 0)
        op->journal.room_deadline_ns = t + ms_to_ns(ROOM_WAIT_MS);
    if (t >= op->journal.room_deadline_ns || op->st->stopping)
        return st_op_bad(op, -EBUSY);
    st_op_unlock(op); /* the applier needs it to make room */
    op->journal.room.task = &op->task;
    journal_wait_for_room(j, &op->journal.room);
    return OP_WAIT;
}

enum st_op_next st_op_marks_first(struct st_op *op)
{
    struct journal *j = op->st->journal;
    struct pending_file *f = st_op_pending_file(op);

    assert(op->held == OP_HOLDS_NOTHING && list_is_empty(&op->journal.room.link));
    if (f == NULL || f->n_marks == 0 || op->journal.waited_marks || f->applying)
        return OP_GO;
    LIST_FOREACH(node, &f->marks) {
        if (!container_of(node, struct pending_mark, link)->committed)
            continue;
        op->journal.waited_marks = true; /* waits once, whatever the result */
        f->wanted_now = true;
        journal_poke(j, f);
        if (!f->applying)
            return OP_GO;
        op->journal.room.task = &op->task;
        journal_wait(j, &op->journal.room);
        return OP_WAIT;
    }
    return OP_GO;
}

/* ---- appending ---- */

struct st_op_append {
    struct wal_append a;
    struct st_op *op; /* borrowed */
};

static void on_op_appended(struct wal_append *a, int rc)
{
    struct st_op *op = container_of(a, struct st_op_append, a)->op;

    assert(a == &op->journal.append->a);
    op->rc = rc;
    st_op_run_next(op);
}

enum st_op_next st_op_append(struct st_op *op, uint8_t kind, const struct iovec *iov,
                             unsigned n_iov, size_t len)
{
    struct journal *j = op->st->journal;

    assert(n_iov > 0 && op->journal.entry == NULL);
    if (op->journal.append == NULL) {
        /* malloc, since it is large and the log fills it */
        op->journal.append = malloc(sizeof(*op->journal.append));
        if (op->journal.append == NULL)
            return st_op_bad(op, -ENOMEM);
        op->journal.append->op = op;
        op->journal.append->a.kind = kind;
        op->journal.append->a.iov = iov;
        op->journal.append->a.n_iov = n_iov;
        op->journal.append->a.len = len;
        op->journal.append->a.head_len = journal_record_head_bytes(iov[0].iov_base);
        op->journal.append->a.done = on_op_appended;
        wal_append(journal_log(j), &op->journal.append->a);
        return OP_WAIT;
    }
    if (op->rc != 0) {
        free(op->journal.append);
        op->journal.append = NULL;
        /* journal full: room comes soon, as overwriting needs no space (I12) */
        return st_op_bad(op, op->rc == -ENOSPC ? -EBUSY : op->rc);
    }
    op->journal.entry = journal_frame_new(j, &op->journal.append->a);
    free(op->journal.append);
    op->journal.append = NULL;
    return op->journal.entry == NULL ? st_op_bad(op, -ENOMEM) : OP_GO;
}

/* Appends the frame before changing the index: a crash in between leaves all of it or
 * nothing. */
static enum st_op_next drop_once(struct st_op *op, const struct pending_drop *d,
                                 uint8_t *header)
{
    struct journal *j = op->st->journal;
    struct journal_record e = { .kind = JOURNAL_DROP,
                                .file = st_op_file(op),
                                .first = d->first,
                                .end = d->end,
                                .version = d->keep,
                                .epoch = d->epoch,
                                .projections = d->projections };
    struct journal_frame *entry;
    enum st_op_next next;

    assert(d->first < d->end);
    if (op->journal.append == NULL) {
        journal_record_put(header, &e);
        op->iov =
            (struct iovec){ .iov_base = header, .iov_len = JOURNAL_RECORD_HEADER_BYTES };
    }
    next = st_op_append(op, JOURNAL_DROP, &op->iov, 1, JOURNAL_RECORD_HEADER_BYTES);
    if (next != OP_GO)
        return next;
    entry = op->journal.entry;
    op->journal.entry = NULL;
    journal_drop_note(j, entry);
    op->rc = 0;
    if (st_op_pending_file(op) != NULL &&
        journal_index_drop(journal_get_index(j), st_op_pending_file(op), d) < 0)
        return st_op_bad(op, -ENOMEM);
    return OP_GO;
}

enum st_op_next st_op_append_drop(struct st_op *op, const struct pending_drop *d,
                                  uint8_t *header)
{
    do {
        enum st_op_next next = drop_once(op, d, header);

        if (next != OP_GO)
            return next;
        /* a copy of dropped records may lie behind our frame */
        op->journal.dropping_again =
            !op->journal.dropping_again && journal_is_copying(op->st->journal);
    } while (op->journal.dropping_again);
    return OP_GO;
}

bool st_op_frame_is_good(const struct st_op *op, const struct journal_frame *entry)
{
    return entry->failures == wal_failures(journal_log(op->st->journal));
}

static void on_op_wal_synced(struct wal_wait *w, int rc)
{
    struct st_op *op = container_of(w, struct st_op, journal.wait);

    bool is_awaited = op->journal.sync == WAL_SYNC_AWAITED;

    assert(is_awaited || op->journal.sync == WAL_SYNC_RUNS);
    op->journal.sync = is_awaited ? WAL_SYNC_JOINED : WAL_SYNC_NONE;
    op->journal.rc = rc;
    if (rc == 0)
        journal_synced(op->st->journal, op->journal.number);
    if (is_awaited)
        st_op_run_next(op);
}

bool st_op_file_is_synced(const struct st_op *op)
{
    return journal_file_is_synced(op->st->journal, st_op_pending_file(op));
}

void st_op_wal_sync_start(struct st_op *op)
{
    struct journal *j = op->st->journal;

    assert(op->journal.sync == WAL_SYNC_NONE);
    if ((op->st->config.mutant & MUTANT_NO_JOURNAL_SYNC) != 0)
        return;
    op->journal.number = journal_newest(j);
    op->journal.wait.done = on_op_wal_synced;
    if (!wal_sync(journal_log(j), &op->journal.wait))
        op->journal.sync = WAL_SYNC_RUNS;
}

bool st_op_wal_is_joined(const struct st_op *op)
{
    return op->journal.sync == WAL_SYNC_AWAITED || op->journal.sync == WAL_SYNC_JOINED;
}

enum st_op_next st_op_sync_both(struct st_op *op, bool files)
{
    enum st_op_next next = files && !st_op_wal_is_joined(op) ? st_op_sync(op) : OP_GO;

    assert(op->held == OP_HOLDS_NOTHING);
    if (next == OP_WAIT)
        return next;
    if (next == OP_BAD) /* the op must stay until the journal's sync ends */
        op->journal.files_rc = op->rc;
    return st_op_wal_sync_join(op);
}

enum st_op_next st_op_wal_sync_join(struct st_op *op)
{
    if (op->journal.sync == WAL_SYNC_RUNS) {
        op->journal.sync = WAL_SYNC_AWAITED;
        return OP_WAIT;
    }
    assert(op->journal.sync != WAL_SYNC_AWAITED);
    op->journal.sync = WAL_SYNC_JOINED;
    if (op->journal.files_rc != 0)
        return st_op_bad(op, op->journal.files_rc);
    return op->journal.rc == 0 ? OP_GO : st_op_bad(op, op->journal.rc);
}

enum st_op_next st_op_wal_sync_end(struct st_op *op)
{
    enum st_op_next next = st_op_wal_sync_join(op);

    if (next != OP_WAIT)
        op->journal.sync = WAL_SYNC_NONE;
    return next;
}
