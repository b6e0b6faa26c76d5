/*
 * st_write.c - ST_WRITE: a run of records into one projection file.
 *
 * In:     storage_handle_write(). Thread: the storio loop.
 * Out:    struct disk, rpc_reply().
 * Keeps:  nothing is written if any block of the run is stale; everything that may fail
 *         for lack of space is done before old records are touched (I12); an old record
 *         stays until the journal's applier replaces it.
 * Ask:    st_write.h for the file of each step; projfile.h and journal_record.h for the
 *         bytes; journal.h for what happens next.
 */
#include "storaged/ops/st_write.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"

/* Allocates what this run needs, since most writes are small. */
int write_alloc(struct st_write_op *w)
{
    assert(w->n > 0 && w->n <= BLOCKS_PER_REQUEST_MAX);
    assert(w->head_bytes >= RECORD_HEADER_BYTES);
    w->iov_max = 2 * w->n + 1;
    w->iov = calloc(1, w->iov_max * sizeof(w->iov[0]) + w->n * sizeof(w->blocks[0]) +
                           w->n * w->head_bytes);
    if (w->iov == NULL)
        return -ENOMEM;
    w->blocks = (struct write_block *)(w->iov + w->iov_max);
    w->old = (uint8_t *)(w->blocks + w->n);
    return 0;
}

/* ---- the request ---- */

/* Checks that every header fits the request and every body is as long as its header
 * says. */
static int write_check_payload(struct st_write_op *w, const struct rpc_call *call)
{
    uint32_t hash = file_id_hash(&w->op.ref.id);
    size_t at = w->n * w->head_bytes;

    if (call->payload_len < at)
        return -EBADMSG;
    for (unsigned i = 0; i < w->n; i++) {
        struct record_header h;
        enum record_state state =
            record_inspect(call->payload + i * w->head_bytes, hash, w->first + i,
                           w->projection, w->op.ref.block_bytes, &h);

        if (state == RECORD_IS_DAMAGED || h.version == 0)
            return -EBADMSG;
        w->blocks[i].version = h.version;
        w->blocks[i].body_at = (uint32_t)at;
        w->blocks[i].body_len =
            state == RECORD_IS_DATA
                ? (uint16_t)codec_row_bytes(w->op.ref.codec, h.user_bytes)
                : 0;
        at += w->blocks[i].body_len;
        if (at > call->payload_len)
            return -EBADMSG;
        if (h.version > w->newest)
            w->newest = h.version;
    }
    return at == call->payload_len ? 0 : -EBADMSG;
}

static int write_parse(struct st_write_op *w, const Rozo__StWriteReq *req)
{
    const struct rpc_call *call = w->op.call;
    int rc = st_op_ref_check(w->op.st, call, req->ref, req->to_storage, CAPABILITY_WRITE,
                             &w->op.ref);

    if (rc != 0)
        return rc;
    if (req->projection >= codec_n(w->op.ref.codec))
        return -EBADMSG;
    if (req->n_records == 0 || req->n_records > BLOCKS_PER_REQUEST_MAX)
        return -EBADMSG;
    if (req->first_block > PROJFILE_BLOCKS_MAX - req->n_records)
        return -EBADMSG;
    w->projection = req->projection;
    w->first = req->first_block;
    w->n = req->n_records;
    w->sync = req->sync ? WRITE_SYNCS_JOURNAL : WRITE_SYNCS_NOTHING;
    w->payload = call->payload;
    w->head_bytes =
        RECORD_HEADER_BYTES + codec_overhang_bytes(w->op.ref.codec, req->projection);
    w->op.want = UINT32_C(1) << req->projection;
    w->op.access = OP_EXCLUSIVE;
    w->op.changes = true;
    rc = write_alloc(w);
    if (rc == 0)
        rc = write_check_payload(w, call);
    if (rc == 0)
        journal_commit(w->op.st->journal, &w->op.ref.id, req->durable, req->n_durable);
    return rc;
}

/* ---- life: each step is called until it returns OP_GO, in this order ---- */

/* True if records are pending for all blocks: what lies in place is older. */
static bool heads_are_pending(const struct st_write_op *w)
{
    const struct pending_file *f = st_op_pending_file(&w->op);

    for (unsigned i = 0; f != NULL && i < w->n; i++) {
        if (journal_index_newest(journal_get_index(w->op.st->journal), f, w->projection,
                                 w->first + i) == NULL)
            return false;
    }
    return f != NULL && !f->unresolved;
}

enum st_op_next write_read_old(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    struct proj *proj = write_proj(w);

    assert(op->held == OP_HOLDS_EXCLUSIVE && w->at <= w->n);
    if (w->reading && op->rc != 0)
        return OP_BAD;
    while (proj != NULL && w->at < w->n) {
        unsigned from = w->at, to = write_part_end(w, from);
        uint8_t *old = w->old + from * w->head_bytes;

        if (!w->reading && st_op_read_heads(op, proj, w->first + from, to - from, old)) {
            w->reading = true;
            return OP_WAIT;
        }
        if (w->reading)
            st_op_read_heads_done(op, old);
        w->reading = false;
        w->at = to;
    }
    w->at = 0;
    return OP_GO;
}

static enum st_op_next write_read_heads(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    bool none = write_proj(w) == NULL; /* read again: this may be the second time */

    if (!none && (w->at > 0 || w->reading || !heads_are_pending(w)))
        return write_read_old(op);
    memset(w->old, 0, w->n * w->head_bytes);
    return OP_GO;
}

static enum st_op_next write_judge_all(struct st_write_op *w)
{
    assert(w->at == 0 && w->op.held == OP_HOLDS_EXCLUSIVE);
    w->stale = write_find_stale(w);
    if (w->stale == 0)
        return OP_GO;
    for (unsigned i = 0; i < w->n; i++) {
        if (w->blocks[i].unbound)
            proj_set_floor(write_proj(w), w->first + i, w->first + i + 1);
    }
    return st_op_bad(&w->op, -ROZO_ESTALE_VERSION);
}

/* Checks versions, unless the file is damaged and a healer writes: a damaged file
 * cannot show what is pending over it, so what all storages decided may well look
 * older. The check comes after the quarantine then. */
static enum st_op_next write_versions(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;

    return write_proj(w) == NULL && st_op_is_decided(op) ? OP_GO : write_judge_all(w);
}

/* Quarantines a damaged file that is in the way. */
static enum st_op_next write_quarantine(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    enum st_op_next next = st_op_quarantine(op, w->projection, w->newest);

    if (next == OP_BAD && op->rc == -ROZO_ESTALE_VERSION)
        w->stale = w->newest;
    if (next != OP_GO || write_proj(w) != NULL)
        return next;
    return write_judge_all(w); /* pending records may be dropped */
}

static enum st_op_next write_space(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    enum st_op_next next = OP_GO;

    if (w->space > 0 && w->measuring == MEASURE_NONE)
        next = st_op_space(op, w->space);
    if (w->measuring == MEASURE_NONE &&
        (next != OP_BAD || op->rc != -ENOSPC || write_proj(w) == NULL))
        return next;
    next = write_is_reserved(w);
    if (next != OP_BAD)
        return next;
    /* Other storages may have room and take all of the run. If the old records here
     * stayed, neither old nor new would be on enough storages (I12). So records that
     * replace others are written, which takes no space, and then the run is refused. */
    w->no_space = true;
    return OP_GO;
}

/* Waits for room in the journal without the lock, then starts again. */
static enum st_op_next write_room(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    enum st_op_next next;

    if (w->waiting) {
        w->waiting = false;
        w->at = 0;
        w->no_space = false;
        return OP_AGAIN;
    }
    if (w->n_journal == 0)
        return OP_GO;
    next = st_op_journal_room(op, false);
    w->waiting = next == OP_WAIT;
    return next;
}

/* Takes the verifier before the first change: a new file, and heads that say "never
 * written", matter as much as records. */
static enum st_op_next write_begin(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;

    assert(!w->waiting && w->measuring == MEASURE_NONE);
    w->verifier = storage_verifier(op->st);
    return OP_GO;
}

/* ---- the journal ---- */

static bool to_journal(const struct st_write_op *w, unsigned i)
{
    return w->blocks[i].way == WAY_JOURNAL && !(w->no_space && w->blocks[i].needs_space);
}

/* Builds the frame from pieces where they lie: header, heads, bodies. */
static size_t append_iov(struct st_write_op *w)
{
    struct journal_record e = { .kind = JOURNAL_RECORDS,
                                .file = st_op_file(&w->op),
                                .projection = (uint8_t)w->projection,
                                .first = w->first,
                                .version = w->newest };
    size_t len = JOURNAL_RECORD_HEADER_BYTES;

    assert(w->entry_header != NULL);
    w->n_iov = 0;
    write_iov_add(w, w->entry_header, JOURNAL_RECORD_HEADER_BYTES);
    for (unsigned i = 0; i < w->n; i++) {
        if (!to_journal(w, i))
            continue;
        e.blocks[i / 64] |= UINT64_C(1) << i % 64;
        write_iov_add(w, write_new_head(w, i), w->head_bytes);
        len += w->head_bytes;
    }
    for (unsigned i = 0; i < w->n; i++) {
        if (!to_journal(w, i) || w->blocks[i].body_len == 0)
            continue;
        write_iov_add(w, w->payload + w->blocks[i].body_at, w->blocks[i].body_len);
        len += w->blocks[i].body_len;
    }
    journal_record_put(w->entry_header, &e);
    return len;
}

/* Adds the records to the index; readers see them from here on. */
static int append_index(struct st_write_op *w)
{
    struct journal_index *p = journal_get_index(w->op.st->journal);
    struct storage_file file = st_op_file(&w->op);
    struct pending_file *f = journal_index_get(p, &file, w->op.ref.codec);
    size_t head_at = JOURNAL_RECORD_HEADER_BYTES, body_at = head_at;
    int rc = f == NULL ? -ENOMEM : 0;

    assert(w->op.journal.entry != NULL);
    for (unsigned i = 0; i < w->n; i++)
        body_at += to_journal(w, i) ? w->head_bytes : 0;
    for (unsigned i = 0; i < w->n && rc == 0; i++) {
        struct record_header h;

        if (!to_journal(w, i))
            continue;
        record_header_get(write_new_head(w, i), &h);
        rc = journal_index_add_record(p, f, w->op.journal.entry, w->projection,
                                      write_new_head(w, i), w->head_bytes, &h, body_at,
                                      w->blocks[i].body_len, env_now_ns(w->op.st->env));
        body_at += w->blocks[i].body_len;
    }
    if (f != NULL && (w->op.st->config.mutant & MUTANT_NO_COMMIT_RULE) != 0)
        journal_commit_range(w->op.st->journal, &w->op.ref.id, 0, UINT64_MAX, UINT64_MAX);
    else if (f != NULL && f->n_committed > 0)
        journal_poke(w->op.st->journal, f);
    return rc;
}

static enum st_op_next write_append(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    enum st_op_next next;
    size_t len = 0;
    bool any = false;

    assert(op->held == OP_HOLDS_EXCLUSIVE);
    for (unsigned i = 0; i < w->n; i++)
        any |= to_journal(w, i);
    if (!any)
        return OP_GO;
    if (w->entry_header == NULL) {
        w->entry_header = malloc(JOURNAL_RECORD_HEADER_BYTES);
        if (w->entry_header == NULL)
            return st_op_bad(op, -ENOMEM);
        len = append_iov(w);
    }
    next = st_op_append(op, JOURNAL_RECORDS, w->iov, w->n_iov, len);
    if (next != OP_GO)
        return next;
    op->rc = append_index(w);
    return op->rc == 0 ? OP_GO : OP_BAD;
}

/* True if files must be synced, which may be so even if all went to the journal: its
 * entries are dropped when their file is missing. */
static bool needs_file_sync(const struct st_write_op *w)
{
    const struct proj *proj = write_proj(w);

    return w->n_place + w->created > 0 ||
           (proj != NULL && (proj->name_dirty || w->op.obj->syncing));
}

/* Notes the blocks written in place as unstable. Those in the journal are unstable
 * until their commit anyway. */
static void note_unstable(struct st_write_op *w)
{
    unsigned from = 0, to = w->n;

    while (from < to && to_journal(w, from))
        from++;
    while (to > from && to_journal(w, to - 1))
        to--;
    if (from < to)
        unstable_ranges_add(&w->op.obj->unstable, w->first + from, w->first + to,
                            w->newest);
}

static enum st_op_next write_sync(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    enum st_op_next next;

    assert(op->call != NULL);
    if (op->held != OP_HOLDS_NOTHING && w->sync != WRITE_SYNCS_NOTHING &&
        needs_file_sync(w))
        w->sync = WRITE_SYNCS_ALL;
    st_op_unlock(op);
    if (w->no_space)
        return st_op_bad(op, -ENOSPC);
    if (w->sync == WRITE_SYNCS_NOTHING && op->call->role == RPC_ROLE_CLIENT)
        note_unstable(w);
    if (w->sync == WRITE_SYNCS_NOTHING)
        return OP_GO;
    if (!st_op_wal_is_joined(op) && !op->syncing && w->n_journal + w->n_pending > 0)
        st_op_wal_sync_start(op);
    next = st_op_sync_both(op, w->sync == WRITE_SYNCS_ALL);
    if (next == OP_GO && w->verifier != storage_verifier(op->st))
        return st_op_bad(op, -EIO); /* a sync failed, perhaps on these bytes */
    return next;
}

static void tell_handoff(struct st_write_op *w)
{
    const struct storage_config *config = &w->op.st->config;
    struct storage_handoff what = { .projection = w->projection,
                                    .first = w->first,
                                    .end = w->first + w->n,
                                    .version = w->newest };

    assert(w->projection < w->op.ref.n_storages);
    if (config->handoff == NULL || w->op.call->role != RPC_ROLE_CLIENT ||
        w->op.ref.storages[w->projection] == identity_storage_id(config->identity))
        return;
    what.file = st_op_file(&w->op);
    config->handoff(config->handoff_arg, &what);
}

static void write_reply(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    Rozo__StWriteResp resp = ROZO__ST_WRITE_RESP__INIT;

    resp.verifier = w->verifier;
    resp.pending = w->n_journal + w->n_pending > 0;
    resp.pressure = journal_has_pressure(op->st->journal);
    tell_handoff(w);
    st_op_finish_message(op, ROZO__STATUS__OK, &resp.base);
}

static void write_refuse(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    Rozo__StWriteResp resp = ROZO__ST_WRITE_RESP__INIT;

    if (op->rc != -ROZO_ESTALE_VERSION) {
        st_op_fail(op, op->rc);
        return;
    }
    resp.newest_version = w->stale;
    st_op_finish_message(op, ROZO__STATUS__STALE_VERSION, &resp.base);
}

void write_free(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;

    if (w->load != NULL)
        journal_index_put_frame(journal_get_index(op->st->journal), w->load);
    free(w->iov);
    free(w->loaded);
    free(w->entry_header);
    free(w->fill);
    free(w->noted);
}

static const struct st_op_kind write_kind = {
    .bytes = sizeof(struct st_write_op),
    .free = write_free,
    .done = write_reply,
    .failed = write_refuse,
    .steps = { st_op_marks_first, st_op_enter, write_read_heads, write_versions,
               write_quarantine, write_space, write_room, write_begin, write_create,
               write_find_fresh, write_page, write_fill, write_pieces, write_note,
               write_append, write_sync },
};

void storage_handle_write(struct storage *st, struct rpc_call *call)
{
    Rozo__StWriteReq *req = rozo__st_write_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, &write_kind);

    if (op != NULL)
        st_op_start(op,
                    req == NULL ? -EBADMSG : write_parse((struct st_write_op *)op, req));
    rozo__st_write_req__free_unpacked(req, NULL); /* NULL is fine */
}
