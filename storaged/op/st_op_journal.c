/*
 * st_op_journal.c - requests and the journal: room, appended frames, syncs (st_op.h has
 * the contracts).
 *
 * In:     the requests of storaged/ops. Thread: the storio loop.
 * Out:    wal.h; the step of an op that waited.
 */
#include <errno.h>
#include <stdlib.h>

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

    if (!journal_is_full(j) &&
        !(is_mark && journal_has_many_marks(st_op_pending_file(op), PENDING_MARKS_MAX)))
        return OP_GO;
    if (op->room_deadline_ns == 0)
        op->room_deadline_ns = t + ROOM_WAIT_MS * UINT64_C(1000000);
    if (t >= op->room_deadline_ns || op->st->stopping)
        return st_op_bad(op, -EBUSY);
    st_op_unlock(op); /* the applier needs it to make room */
    op->room.task = &op->task;
    journal_wait_for_room(j, &op->room);
    return OP_WAIT;
}

enum st_op_next st_op_marks_first(struct st_op *op)
{
    struct journal *j = op->st->journal;
    struct pending_file *f = st_op_pending_file(op);

    if (f == NULL || f->n_marks == 0 || op->waited_marks || f->applying)
        return OP_GO;
    LIST_FOREACH(node, &f->marks) {
        if (!container_of(node, struct pending_mark, link)->committed)
            continue;
        op->waited_marks = true; /* waits once, whatever the result */
        f->wanted_now = true;
        journal_poke(j, f);
        if (!f->applying)
            return OP_GO;
        op->room.task = &op->task;
        journal_wait(j, &op->room);
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

    op->rc = rc;
    st_op_run_next(op);
}

enum st_op_next st_op_append(struct st_op *op, uint8_t kind, const struct iovec *iov,
                             unsigned n_iov, size_t len)
{
    struct journal *j = op->st->journal;

    if (op->append == NULL) {
        /* malloc, since it is large and the log fills it */
        op->append = malloc(sizeof(*op->append));
        if (op->append == NULL)
            return st_op_bad(op, -ENOMEM);
        op->append->op = op;
        op->append->a.kind = kind;
        op->append->a.iov = iov;
        op->append->a.n_iov = n_iov;
        op->append->a.len = len;
        op->append->a.head_len = journal_record_head_bytes(iov[0].iov_base);
        op->append->a.done = on_op_appended;
        wal_append(journal_log(j), &op->append->a);
        return OP_WAIT;
    }
    if (op->rc != 0) {
        free(op->append);
        op->append = NULL;
        return OP_BAD;
    }
    op->entry = journal_frame_new(j, &op->append->a);
    free(op->append);
    op->append = NULL;
    return op->entry == NULL ? st_op_bad(op, -ENOMEM) : OP_GO;
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

    if (op->append == NULL) {
        journal_record_put(header, &e);
        op->iov =
            (struct iovec){ .iov_base = header, .iov_len = JOURNAL_RECORD_HEADER_BYTES };
    }
    next = st_op_append(op, JOURNAL_DROP, &op->iov, 1, JOURNAL_RECORD_HEADER_BYTES);
    if (next != OP_GO)
        return next;
    entry = op->entry;
    op->entry = NULL;
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
        op->dropping_again = !op->dropping_again && journal_is_copying(op->st->journal);
    } while (op->dropping_again);
    return OP_GO;
}

bool st_op_frame_is_good(const struct st_op *op, const struct journal_frame *entry)
{
    return entry->failures == wal_failures(journal_log(op->st->journal));
}

static void on_op_wal_synced(struct wal_wait *w, int rc)
{
    struct st_op *op = container_of(w, struct st_op, wal_wait);

    op->wal_waiting = false;
    op->wal_rc = rc;
    if (rc == 0)
        journal_synced(op->st->journal, op->wal_number);
    if (op->wal_joined)
        st_op_run_next(op);
}

bool st_op_file_is_synced(const struct st_op *op)
{
    return journal_file_is_synced(op->st->journal, st_op_pending_file(op));
}

void st_op_wal_sync_start(struct st_op *op)
{
    struct journal *j = op->st->journal;

    if ((op->st->config.mutant & MUTANT_NO_JOURNAL_SYNC) != 0)
        return;
    op->wal_number = journal_newest(j);
    op->wal_wait.done = on_op_wal_synced;
    op->wal_waiting = !wal_sync(journal_log(j), &op->wal_wait);
}

enum st_op_next st_op_sync_both(struct st_op *op, bool files)
{
    enum st_op_next next = files && !op->wal_joined ? st_op_sync(op) : OP_GO;

    if (next == OP_WAIT)
        return next;
    if (next == OP_BAD) /* the op must stay until the journal's sync ends */
        op->files_rc = op->rc;
    return st_op_wal_sync_join(op);
}

enum st_op_next st_op_wal_sync_join(struct st_op *op)
{
    op->wal_joined = true;
    if (op->wal_waiting)
        return OP_WAIT;
    if (op->files_rc != 0)
        return st_op_bad(op, op->files_rc);
    return op->wal_rc == 0 ? OP_GO : st_op_bad(op, op->wal_rc);
}
