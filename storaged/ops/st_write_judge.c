/*
 * st_write_judge.c - ST_WRITE: compares with the blocks here, and chooses the way of each
 * block.
 *
 * In:     steps of st_write.c and st_write_apply.c. Thread: the storio loop.
 * Out:    the blocks of struct st_write_op; writes nothing.
 * Keeps:  nothing is written if any block of the run is stale; a record that may be lost
 *         here counts as newer than it can have been; old records stay: only certain
 *         holes are filled in place.
 * Ask:    docs/internals/write-path.md, versions.
 */
#include <assert.h>
#include <string.h>

#include "storaged/ops/st_write.h"

uint64_t write_old_version(struct st_write_op *w, unsigned i, struct record_header *h,
                           size_t *body_len)
{
    struct proj *proj = write_proj(w);
    uint64_t block = w->first + i;
    uint64_t mark = proj == NULL ? 0 : marks_find(proj_marks(proj), block);
    enum record_state state =
        st_op_inspect(&w->op, w->projection, block, w->old + i * w->head_bytes, h);

    assert(i < w->n);
    *body_len = 0;
    if (state == RECORD_IS_DAMAGED) { /* the head is invalid; find the bound */
        uint64_t lost = 0;

        if (!st_op_is_decided(&w->op)) /* clients only: healers compare all storages */
            w->blocks[i].unbound =
                !proj_lost_floor(proj, block, w->old + i * w->head_bytes, &lost);
        h->version = 0;
        w->blocks[i].lost = true;
        return lost > mark ? lost : mark;
    }
    if (h->version < mark) {
        h->version = 0;
        return mark;
    }
    if (state == RECORD_IS_DATA)
        *body_len = codec_row_bytes(w->op.ref.codec, h->user_bytes);
    return h->version;
}

/* Compares versions. An equal record may be written again, which heals a torn one; so
 * may a hole that a mark has made. */
static bool is_stale(struct st_write_op *w, unsigned i, uint64_t old,
                     const struct record_header *h, const uint8_t *old_head)
{
    struct record_header new;

    record_header_get(write_new_head(w, i), &new);
    if (new.version != old || w->blocks[i].lost) /* equal versions have equal records */
        return new.version < old;
    if (h->version == old) /* a healer's record is right: the head here has rotted */
        return !st_op_is_decided(&w->op) &&
               memcmp(write_new_head(w, i), old_head, RECORD_HEADER_BYTES) != 0;
    return new.flags != RECORD_HOLE;
}

/* True if the block was never written for certain: no power loss or fault can have
 * taken a record. In a partial file that is unknown. */
static bool is_certain_hole(const struct st_write_op *w, unsigned i)
{
    const struct proj *proj = write_proj(w);
    const uint8_t *head = w->old + i * w->head_bytes;
    struct record_header h;

    assert(i < w->n);
    if (proj == NULL)
        return true;
    if (record_header_is_zero(head)) /* a partial file may have lost it */
        return marks_find(proj_written(proj), w->first + i) == 0;
    return st_op_inspect(&w->op, w->projection, w->first + i, head, &h) ==
               RECORD_IS_HOLE &&
           h.version == 0;
}

/* Judges block i by what lies in place and by a mark that is pending over it. */
static uint64_t judge_place(struct st_write_op *w, unsigned i, uint64_t mark, bool *stale)
{
    struct write_block *b = &w->blocks[i];
    struct record_header h;
    size_t old_len;
    uint64_t old = write_old_version(w, i, &h, &old_len);

    /* An old record has its page, so a longer one in the same slot needs no space. If
     * it were refused here and taken elsewhere, neither would be complete (I12). */
    b->needs_space = b->body_len > 0 && old_len == 0;
    b->replaces = old != 0;
    b->way = mark == 0 && is_certain_hole(w, i) ? WAY_PLACE : WAY_JOURNAL;
    if (mark >= old) {
        old = mark;
        h.version = 0;
    }
    *stale |= is_stale(w, i, old, &h, w->old + i * w->head_bytes);
    return old;
}

/* Judges block i by its pending record, as if that lay in place. */
static uint64_t judge_pending(struct st_write_op *w, unsigned i,
                              const struct pending_record *r, uint64_t mark, bool *stale)
{
    struct write_block *b = &w->blocks[i];
    struct record_header h;
    uint64_t old = mark;

    assert(r->version != 0 && r->projection == w->projection);
    record_header_get(r->head, &h);
    if (h.version < mark)
        h.version = 0;
    else
        old = h.version;
    /* any client's record of that version, or what a healer writes, replaces it */
    if (r->damaged && old == r->version)
        *stale |= b->version < old && !st_op_is_decided(&w->op);
    else
        *stale |= is_stale(w, i, old, &h, r->head);
    b->needs_space = b->body_len > 0 && r->body_len == 0;
    b->is_here = !r->damaged && !r->unread && h.version == b->version &&
                 st_op_frame_is_good(&w->op, r->entry);
    b->way = WAY_JOURNAL;
    return old;
}

/* True if the block in place counts rather than r, which happens only if it could not
 * be read at the start. */
static bool is_below_place(const struct st_write_op *w, unsigned i,
                           const struct pending_record *r)
{
    const struct proj *proj = write_proj(w);
    uint64_t block = w->first + i;
    struct record_header h;

    assert(r->block == block);
    if (!r->file->unresolved || proj == NULL)
        return false;
    return marks_find(proj_marks(proj), block) > r->version ||
           (st_op_inspect(&w->op, w->projection, block, w->old + i * w->head_bytes, &h) !=
                RECORD_IS_DAMAGED &&
            h.version > r->version);
}

/* Chooses the way of block i and sets what it needs. Returns the version that it
 * replaces. */
static uint64_t write_judge(struct st_write_op *w, unsigned i,
                            const struct pending_file *f, bool *stale)
{
    struct write_block *b = &w->blocks[i];
    uint64_t block = w->first + i;
    uint64_t mark = pending_file_mark_over(f, block, UINT64_MAX), old;
    const struct pending_record *r = journal_index_newest(
        journal_get_index(w->op.st->journal), f, w->projection, block);

    b->is_here = b->lost = b->unbound = b->replaces = false;
    if (r != NULL && is_below_place(w, i, r))
        r = NULL;
    old =
        r != NULL ? judge_pending(w, i, r, mark, stale) : judge_place(w, i, mark, stale);
    if ((w->op.st->config.mutant & MUTANT_NO_JOURNAL) != 0)
        b->way = WAY_PLACE;
    return old;
}

/* True if a fence refuses this block: a fenced writer may only repeat what is here. */
static bool is_fenced(const struct st_write_op *w, unsigned i, uint32_t fence,
                      uint64_t newest)
{
    return version_epoch(w->blocks[i].version) <= fence && newest != w->blocks[i].version;
}

uint64_t write_find_stale(struct st_write_op *w)
{
    const struct pending_file *f = st_op_pending_file(&w->op);
    uint32_t fence =
        st_op_is_decided(&w->op) ? 0 : journal_fence(w->op.st->journal, &w->op.ref.id);
    uint64_t newest = 0;
    bool stale = false;

    w->space = w->n_place = w->n_journal = w->n_pending = 0;
    for (unsigned i = 0; i < w->n; i++) {
        struct write_block *b = &w->blocks[i];
        uint64_t old = write_judge(w, i, f, &stale);

        if (fence != 0 && is_fenced(w, i, fence, old)) {
            stale = true;
            old = version_make(fence, UINT32_MAX) > old ? version_make(fence, UINT32_MAX)
                                                        : old;
        }
        if (old > newest)
            newest = old;
        if (b->is_here) { /* an equal record is pending */
            b->way = WAY_NONE;
            w->n_pending++;
            continue;
        }
        w->n_place += b->way == WAY_PLACE;
        w->n_journal += b->way == WAY_JOURNAL;
        if (b->needs_space)
            w->space += w->head_bytes + b->body_len;
    }
    if ((w->op.st->config.mutant & MUTANT_NO_VERSION_CHECK) != 0)
        return 0;
    return stale ? newest : 0;
}
