/*
 * st_write_apply.c - the applier's writes: committed records of the journal go in place.
 *
 * In:     storage_apply_records(), from journal_apply.c. Thread: the storio loop.
 * Out:    struct disk; `applied` of pending records. The journal syncs afterwards.
 * Keeps:  of each block only the newest committed version is written, and only if it is
 *         newer than the block in place; a version that the journal lost becomes a
 *         damaged head: the older version below never shows.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "storaged/ops/st_write.h"

static struct pending_record *apply_record(const struct st_write_op *w, unsigned i)
{
    struct pending_record *r =
        journal_index_newest(journal_get_index(w->op.st->journal),
                             st_op_pending_file(&w->op), w->projection, w->first + i);

    assert(i < w->n);
    while (r != NULL && !r->committed)
        r = r->older;
    return r;
}

/* Removes pending records whose file is gone: its removal removed what they replace. */
static void apply_forget(struct st_write_op *w)
{
    for (unsigned i = 0; i < w->n; i++) {
        for (struct pending_record *r = apply_record(w, i); r != NULL;
             r = apply_record(w, i))
            journal_index_remove_record(journal_get_index(w->op.st->journal), r);
    }
}

static enum st_op_next apply_enter(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    enum st_op_next next = st_op_enter(op);

    if (next != OP_GO)
        return next;
    if (op->obj->state[w->projection] == PROJ_DAMAGED)
        return st_op_bad(op, -ROZO_EDAMAGED);
    if (write_proj(w) != NULL)
        return OP_GO;
    apply_forget(w);
    return OP_DONE;
}

/* Collects, with the lock held, the records that are pending now, and their heads. */
static enum st_op_next apply_collect(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    size_t at = w->n * w->head_bytes;

    assert(op->held == OP_HOLDS_EXCLUSIVE && w->loaded == NULL);
    for (unsigned i = 0; i < w->n; i++) {
        struct write_block *b = &w->blocks[i];
        const struct pending_record *r = apply_record(w, i);

        if (r == NULL || r->applied)
            continue;
        b->way = WAY_PLACE;
        b->version = r->version;
        b->body_at = (uint32_t)at;
        b->body_len = r->body_len;
        at += r->body_len;
        if (r->version > w->newest)
            w->newest = r->version;
    }
    w->loaded = malloc(at + 1);
    if (w->loaded == NULL)
        return st_op_bad(op, -ENOMEM);
    w->payload = w->loaded;
    return OP_GO;
}

/* Puts off an unreadable record: its page may be readable later, or healing may write
 * the block again. */
static void apply_later(struct st_write_op *w, unsigned i)
{
    struct write_block *b = &w->blocks[i];
    struct pending_record *r = apply_record(w, i);
    bool went = r == NULL || r->version != b->version; /* a commit removed it meanwhile */

    assert(b->way == WAY_PLACE);
    b->way = WAY_NONE;
    b->version = 0;
    if (went)
        return;
    if (!r->unread) {
        log_warn(
            "block %llu of file %08x%08x%016llx: its record in the journal is unreadable",
            (unsigned long long)(w->first + i), w->op.ref.id.export_id,
            w->op.ref.id.generation, (unsigned long long)w->op.ref.id.ino);
        st_op_tell_damaged(&w->op, w->first + i, w->first + i + 1);
    }
    r->unread = true;
    journal_apply_later(w->op.st->journal, r->file);
}

/* Replaces committed records that the journal lost by damaged heads, so that no reader
 * takes the version below for the newest. A record that only cannot be read now stays
 * pending while there is room. */
static void apply_check(struct st_write_op *w)
{
    for (unsigned i = 0; i < w->n; i++) {
        struct write_block *b = &w->blocks[i];
        uint8_t *head = w->loaded + i * w->head_bytes;
        struct record_header h;

        if (b->way == WAY_NONE)
            continue;
        record_header_get(head, &h);
        if (h.crc == record_crc(head, head + RECORD_HEADER_BYTES,
                                b->body_len > 0 ? w->head_bytes - RECORD_HEADER_BYTES : 0,
                                w->payload + b->body_at, b->body_len))
            continue;
        if (b->unread && !journal_has_pressure(w->op.st->journal)) {
            apply_later(w, i);
            continue;
        }
        log_error(
            "block %llu of file %08x%08x%016llx: its record in the journal is damaged",
            (unsigned long long)(w->first + i), w->op.ref.id.export_id,
            w->op.ref.id.generation, (unsigned long long)w->op.ref.id.ino);
        st_op_tell_damaged(&w->op, w->first + i, w->first + i + 1);
        memset(head, 0, w->head_bytes);
        damaged_head_put(head, w->op.obj->hash, w->projection, w->first + i, b->version,
                         false);
        b->body_len = 0;
    }
}

/* Reads bodies, as many at a time as lie without a gap in one frame. */
static enum st_op_next apply_load(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    struct journal_index *p = journal_get_index(op->st->journal);

    assert(w->at <= w->n && w->load_at <= w->at);
    if (w->load != NULL) {
        journal_index_put_frame(p, w->load);
        w->load = NULL;
        if (op->rc != 0)
            return OP_BAD;
        if (op->dr.n_read != op->dr.len)
            return st_op_bad(op, -EIO);
        for (; w->load_at < w->at; w->load_at++)
            w->blocks[w->load_at].unread = op->dr.n_unread > 0;
    }
    while (w->at < w->n) {
        struct write_block *b = &w->blocks[w->at];
        struct pending_record *r = apply_record(w, w->at);
        uint64_t len = 0, from;

        if (b->way == WAY_NONE || r == NULL || r->version != b->version) {
            b->way = WAY_NONE; /* removed meanwhile */
            w->at++;
            continue;
        }
        memcpy(w->loaded + w->at * w->head_bytes, r->head, w->head_bytes);
        if (r->body_len == 0) {
            w->at++;
            continue;
        }
        w->load = r->entry;
        w->load->n_refs++;
        w->load_at = w->at;
        from = r->body_at;
        do {
            memcpy(w->loaded + w->at * w->head_bytes, r->head, w->head_bytes);
            len += r->body_len;
            w->at++;
            r = w->at < w->n ? apply_record(w, w->at) : NULL;
        } while (r != NULL && r->entry == w->load && r->body_at == from + len &&
                 r->body_len > 0 && w->blocks[w->at].way != WAY_NONE &&
                 r->version == w->blocks[w->at].version);
        op->iov = (struct iovec){ .iov_base = w->loaded + b->body_at, .iov_len = len };
        op->dr = (struct disk_req){ .op = DISK_READ,
                                    .file = w->load->place.file,
                                    .offset = w->load->place.offset + from,
                                    .len = len,
                                    .iov = &op->iov,
                                    .n_iov = 1 };
        st_op_submit(op);
        return OP_WAIT;
    }
    w->at = 0;
    apply_check(w);
    return OP_GO;
}

/* True if all blocks have heads: those in place are older, and need not be read. */
static bool heads_are_older(const struct st_write_op *w)
{
    const struct pending_file *f = st_op_pending_file(&w->op);

    return f != NULL && !f->unresolved &&
           marks_cover(proj_written(write_proj(w)), w->first, w->first + w->n);
}

static enum st_op_next apply_read_old(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;

    if (w->at > 0 || w->reading || !heads_are_older(w))
        return write_read_old(op);
    memset(w->old, 0, w->n * w->head_bytes);
    return OP_GO;
}

/* Selects the blocks that are newer than those in place. */
static enum st_op_next apply_judge(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    bool without_heads = heads_are_older(w);

    assert(w->at == 0 && w->load == NULL);
    w->n_place = 0;
    if (st_op_pending_file(op) != NULL)
        pending_file_marks_pass(st_op_pending_file(op), w->first, w->first + w->n,
                                w->newest);
    for (unsigned i = 0; i < w->n; i++) {
        struct write_block *b = &w->blocks[i];
        struct record_header h;
        size_t old_len;

        if (b->way == WAY_NONE)
            continue;
        b->replaces = true;
        w->n_place++;
        if (without_heads)
            continue;
        if (write_old_version(w, i, &h, &old_len) > b->version && !b->lost) {
            b->way = WAY_NONE;
            w->n_place--;
            continue;
        }
        b->needs_space = b->body_len > 0 && old_len == 0;
    }
    return OP_GO;
}

/* Marks the written records as applied; the journal syncs and then removes them. */
static void apply_done(struct st_op *op)
{
    struct st_write_op *w = (struct st_write_op *)op;
    struct pending_file *f = st_op_pending_file(op);

    for (unsigned i = 0; f != NULL && i < w->n; i++) {
        struct pending_record *r =
            journal_index_at_most(journal_get_index(op->st->journal), f, w->projection,
                                  w->first + i, w->blocks[i].version);

        if (r != NULL && r->committed && r->version == w->blocks[i].version)
            r->applied = true;
    }
    st_op_end_internal(op, 0);
}

static const struct st_op_kind apply_kind = {
    .bytes = sizeof(struct st_write_op),
    .free = write_free,
    .done = apply_done,
    .steps = { apply_enter, apply_collect, apply_load, apply_read_old, apply_judge,
               write_find_fresh, write_page, write_fill, write_pieces, write_note },
};

_Static_assert((int)APPLY_BLOCKS_MAX <= (int)BLOCKS_PER_REQUEST_MAX, "write_alloc()");

int storage_apply_records(void *storage, struct pending_file *f, unsigned projection,
                          uint64_t first, unsigned n, void (*done)(void *arg, int rc),
                          void *arg)
{
    struct st_write_op *w =
        (struct st_write_op *)st_op_new_internal(storage, f, &apply_kind, done, arg);

    assert(n > 0 && n <= APPLY_BLOCKS_MAX && projection < codec_n(f->codec));
    if (w == NULL)
        return -ENOMEM;
    w->projection = projection;
    w->first = first;
    w->n = n;
    w->head_bytes = RECORD_HEADER_BYTES + codec_overhang_bytes(f->codec, projection);
    w->op.want = UINT32_C(1) << projection;
    w->op.access = OP_EXCLUSIVE;
    if (write_alloc(w) != 0) {
        st_op_free(&w->op);
        return -ENOMEM;
    }
    st_op_start(&w->op, 0);
    return 0;
}
