/*
 * write.c - ST_WRITE: a run of records into one projection file.
 *
 * In:     storage_handle_write(), and the applier. Thread: the storio loop.
 * Out:    struct disk, rpc_reply().
 * Keeps:  nothing is written when any block of the run is stale; first writes put bodies before
 *         heads, so that a stop in between leaves the hole; what may fail for lack of space is
 *         done before anything old is touched (I12); what may have been lost here counts as newer
 *         than it can have been.
 *         What a record would replace stays until the journal's applier takes it out: only certain
 *         holes are filled in place.
 * Yours:  the order of pieces within those rules.
 * Ask:    projfile.h and entry.h for the bytes, journal.h for what happens next.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "storaged/core/op.h"

enum { UNITS_MAX = 16 /* of a run, at most */ };

/* In this order, each over all parts. A part is what one extent holds of the run. */
enum write_phase {
    PHASE_NEW_BODIES, /* those that need space */
    PHASE_NEW_HEADS,  /* heads of parts where nothing old is replaced */
    PHASE_OLD_BODIES, /* those that replace a record */
    PHASE_OLD_HEADS,
    PHASE_END,
};

/* How a block goes to the disk. */
enum write_way {
    WAY_NONE, /* it is here already, or (applier) not there any more */
    WAY_PLACE,
    WAY_JOURNAL,
};

struct write_block {
    enum write_way way;
    uint64_t version; /* of an applied one */
    uint32_t body_at; /* in the payload */
    uint16_t body_len;
    bool is_here;     /* the same record is pending */
    bool needs_space; /* no body lies there */
    bool lost;        /* what lies there is damaged */
    bool replaces;    /* something that is not a hole of version 0 */
};

struct write_op {
    struct op op; /* first */
    unsigned projection;
    uint64_t first;
    unsigned n;
    const uint8_t *payload; /* the call's, or loaded */
    bool sync;
    bool reading, writing, waiting;
    unsigned n_place, n_journal; /* blocks, by their way */
    unsigned n_pending;          /* of those that are here already */
    uint8_t *loaded;             /* applier: heads, then bodies; owned */
    struct pending_entry *load;  /* being read; referenced */
    uint8_t *entry_header;       /* owned */
    bool no_space; /* only what replaces a record is written, then it is refused */
    size_t head_bytes;
    bool created, undoing, noting;
    bool file_sync; /* not only the journal */
    uint16_t
        fresh; /* units of the run that not all blocks of are known to have heads, a bitmap */
    unsigned unit;       /* being given heads */
    uint8_t filling;     /* enum fill_state */
    uint8_t *fill;       /* their heads, owned */
    struct marks *noted; /* owned: the written blocks with those of the fresh units */
    uint64_t newest;     /* version in the request */
    uint64_t stale;      /* the newest version in its way */
    uint64_t space;      /* bytes that first writes need */
    uint64_t verifier;   /* of before it wrote: a sync that fails since may lose it */
    unsigned n_lost;     /* damaged blocks */
    uint8_t *old;        /* the heads that lie there */
    enum write_phase phase;
    unsigned at; /* block of the run the phase has come to */
    unsigned n_iov, iov_max;
    struct iovec *iov;          /* owned, with blocks */
    struct write_block *blocks; /* n */
};

/* Most writes are small: they are given as much as they need. */
static int write_alloc(struct write_op *w)
{
    w->iov_max = 2 * w->n + 1;
    w->iov = calloc(1, w->iov_max * sizeof(w->iov[0]) + w->n * sizeof(w->blocks[0]) +
                           w->n * w->head_bytes);
    if (w->iov == NULL)
        return -ENOMEM;
    w->blocks = (struct write_block *)(w->iov + w->iov_max);
    w->old = (uint8_t *)(w->blocks + w->n);
    return 0;
}

static bool is_applier(const struct write_op *w)
{
    return w->op.call == NULL;
}

static const uint8_t zeros[CODEC_BLOCK_MAX];

static struct proj *write_proj(const struct write_op *w)
{
    return object_ready(w->op.obj, w->projection);
}

static const uint8_t *new_head(const struct write_op *w, unsigned i)
{
    return w->payload + i * w->head_bytes;
}

/* ---- the request ---- */

/* Every header must say what the request says, and bodies be as long as headers say. */
static int write_check_payload(struct write_op *w, const struct rpc_call *call)
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

static int write_parse(struct write_op *w, const Rozo__StWriteReq *req)
{
    const struct rpc_call *call = w->op.call;
    int rc = op_ref_check(w->op.st, call, req->ref, req->to_storage, CAPABILITY_WRITE,
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
    w->sync = req->sync;
    w->payload = call->payload;
    w->head_bytes =
        RECORD_HEADER_BYTES + codec_overhang_bytes(w->op.ref.codec, req->projection);
    w->op.want = UINT32_C(1) << req->projection;
    w->op.exclusive = true;
    rc = write_alloc(w);
    return rc != 0 ? rc : write_check_payload(w, call);
}

/* ---- versions ---- */

/* What lies at block i of the run: its version, and whether a body of its length is there. */
static uint64_t old_version(struct write_op *w, unsigned i, struct record_header *h,
                            size_t *body_len)
{
    struct proj *proj = write_proj(w);
    uint64_t block = w->first + i;
    uint64_t mark = proj == NULL ? 0 : marks_find(proj_marks(proj), block);
    enum record_state state =
        op_inspect(&w->op, w->projection, block, w->old + i * w->head_bytes, h);

    *body_len = 0;
    if (state ==
        RECORD_IS_DAMAGED) { /* nothing of the head counts; but what was there? */
        bool decided = op_is_decided(&w->op); /* by what all storages say */
        uint64_t lost = decided ? 0 : proj_lost_version(proj);

        h->version = 0;
        w->n_lost++;
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

/* The same record again may: it heals a torn one. So may a hole where a mark made it one. */
static bool is_stale(struct write_op *w, unsigned i, uint64_t old,
                     const struct record_header *h, const uint8_t *old_head)
{
    struct record_header new;

    record_header_get(new_head(w, i), &new);
    if (new.version != old || w->blocks[i].lost) /* records of one version are the same */
        return new.version < old;
    if (h->version == old)
        return memcmp(new_head(w, i), old_head, RECORD_HEADER_BYTES) != 0;
    return new.flags != RECORD_HOLE;
}

/* Was something here that a power loss or a fault took? Where a file as a whole is in doubt nobody knows. */
static bool is_certain_hole(const struct write_op *w, unsigned i)
{
    const struct proj *proj = write_proj(w);
    const uint8_t *head = w->old + i * w->head_bytes;
    struct record_header h;

    if (proj == NULL)
        return true;
    if (record_header_is_zero(head)) /* of a partial file it may have been something */
        return marks_find(proj_written(proj), w->first + i) == 0;
    return op_inspect(&w->op, w->projection, w->first + i, head, &h) == RECORD_IS_HOLE &&
           h.version == 0;
}

/* What lies in place of block i, and a mark that is pending over it. */
static uint64_t judge_place(struct write_op *w, unsigned i, uint64_t mark, bool *stale)
{
    struct write_block *b = &w->blocks[i];
    struct record_header h;
    size_t old_len;
    uint64_t old = old_version(w, i, &h, &old_len);

    /* A record that lies there has its page: a longer one of the same slot needs no other. Were
     * it refused here and taken elsewhere, neither would be whole any more (I12). */
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

/* A pending record counts as if it lay in place; what does is older. */
static uint64_t judge_pending(struct write_op *w, unsigned i,
                              const struct pending_record *r, uint64_t mark, bool *stale)
{
    struct write_block *b = &w->blocks[i];
    struct record_header h;
    uint64_t old = mark;

    record_header_get(r->head, &h);
    if (h.version < mark)
        h.version = 0;
    else
        old = h.version;
    if (r->damaged &&
        old ==
            r->version) /* any record of it heals it; or one that all storages decided */
        *stale |= b->version < old && !op_is_decided(&w->op);
    else
        *stale |= is_stale(w, i, old, &h, r->head);
    b->needs_space = b->body_len > 0 && r->body_len == 0;
    b->is_here =
        !r->damaged && h.version == b->version && op_entry_is_good(&w->op, r->entry);
    b->way = WAY_JOURNAL;
    return old;
}

/* Which way block i goes; sets what it needs. Returns the version that it replaces. */
static uint64_t write_judge(struct write_op *w, unsigned i, const struct pending_file *f,
                            bool *stale)
{
    struct write_block *b = &w->blocks[i];
    uint64_t block = w->first + i;
    uint64_t mark = pending_mark_over(f, block, UINT64_MAX), old;
    const struct pending_record *r =
        pending_newest(journal_pending(w->op.st->journal), f, w->projection, block);

    b->is_here = b->lost = b->replaces = false;
    old =
        r != NULL ? judge_pending(w, i, r, mark, stale) : judge_place(w, i, mark, stale);
    if ((w->op.st->config.mutant & MUTANT_NO_JOURNAL) != 0)
        b->way = WAY_PLACE;
    return old;
}

/* Who is behind a fence may only say again what is here. */
static bool is_fenced(const struct write_op *w, unsigned i, uint32_t fence,
                      uint64_t newest)
{
    return version_epoch(w->blocks[i].version) <= fence && newest != w->blocks[i].version;
}

/* The newest version in the way; 0: none is. */
static uint64_t write_find_stale(struct write_op *w)
{
    const struct pending_file *f = op_pending(&w->op);
    uint32_t fence =
        op_is_decided(&w->op) ? 0 : journal_fence(w->op.st->journal, &w->op.ref.id);
    uint64_t newest = 0;
    bool stale = false;

    w->space = w->n_lost = w->n_place = w->n_journal = w->n_pending = 0;
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
        if (b->is_here) { /* the same is pending */
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

/* ---- pieces ---- */

static bool in_place(const struct write_op *w, unsigned i)
{
    return w->blocks[i].way == WAY_PLACE && !(w->no_space && w->blocks[i].needs_space);
}

/* End of the part (the blocks of one extent) that block i of the run is in. */
static unsigned part_end(const struct write_op *w, unsigned i)
{
    return i + extent_part(w->first + i, w->first + w->n);
}

/* Does this part replace any record? */
static bool part_is_new(const struct write_op *w, unsigned from, unsigned to)
{
    for (unsigned i = from; i < to; i++) {
        if (w->blocks[i].body_len > 0 && !w->blocks[i].needs_space)
            return false;
        if (w->blocks[i].body_len == 0 && w->blocks[i].replaces)
            return false;
    }
    return true;
}

static void iov_add(struct write_op *w, const void *base, size_t len)
{
    struct iovec *last = w->n_iov > 0 ? &w->iov[w->n_iov - 1] : NULL;

    if (last != NULL && (const uint8_t *)last->iov_base + last->iov_len == base) {
        last->iov_len += len;
        return;
    }
    assert(w->n_iov < w->iov_max);
    w->iov[w->n_iov++] =
        (struct iovec){ .iov_base = (void *)(uintptr_t)base, .iov_len = len };
}

static bool in_phase(const struct write_op *w, unsigned i)
{
    return w->blocks[i].body_len > 0 && in_place(w, i) &&
           w->blocks[i].needs_space == (w->phase == PHASE_NEW_BODIES);
}

/* Bodies of neighbouring blocks in one write; shorter ones are filled up to the next. */
static bool submit_bodies(struct write_op *w)
{
    struct proj *proj = write_proj(w);
    unsigned from, to, end;
    uint64_t len = 0;

    while (w->at < w->n && !in_phase(w, w->at))
        w->at++;
    if (w->at == w->n)
        return false;
    from = w->at;
    end = part_end(w, from);
    w->n_iov = 0;
    for (to = from; to < end && in_phase(w, to); to++) {
        const struct write_block *b = &w->blocks[to];

        iov_add(w, w->payload + b->body_at, b->body_len);
        len += b->body_len;
        if (b->body_len < proj->geo.stride && to + 1 < end && in_phase(w, to + 1)) {
            iov_add(w, zeros, proj->geo.stride - b->body_len);
            len += proj->geo.stride - b->body_len;
        }
    }
    w->at = to;
    op_write(&w->op, proj, geometry_body_at(&proj->geo, w->first + from), w->iov,
             w->n_iov, len);
    return true;
}

/* The heads of one part that is, or is not, all new. */
static bool submit_heads(struct write_op *w)
{
    struct proj *proj = write_proj(w);

    while (w->at < w->n) {
        unsigned from = w->at, to = part_end(w, from);
        size_t len;

        if (w->n_place < w->n || w->no_space) { /* the next of ours in a row */
            unsigned end = to;

            while (from < end && !in_place(w, from))
                from++;
            for (to = from; to < end && in_place(w, to);)
                to++;
        }
        len = (to - from) * w->head_bytes;
        w->at = to;
        if (from == to ||
            (part_is_new(w, from, to) && !w->no_space) != (w->phase == PHASE_NEW_HEADS))
            continue;
        w->iov[0] = (struct iovec){ .iov_base = (void *)(uintptr_t)new_head(w, from),
                                    .iov_len = len };
        op_write(&w->op, proj, geometry_head_at(&proj->geo, w->first + from), w->iov, 1,
                 len);
        return true;
    }
    return false;
}

/* The next positioned write; false: all are done. */
static bool submit_piece(struct write_op *w)
{
    while (w->phase != PHASE_END) {
        bool bodies = w->phase == PHASE_NEW_BODIES || w->phase == PHASE_OLD_BODIES;

        if (bodies ? submit_bodies(w) : submit_heads(w))
            return true;
        w->phase++;
        w->at = 0;
    }
    return false;
}

/* ---- life: each of these is called until it says OP_GO, in this order ---- */

static enum op_next write_marks_first(struct write_op *w)
{
    return is_applier(w) ? OP_GO : op_marks_first(&w->op);
}

static enum op_next write_enter(struct write_op *w)
{
    return op_enter(&w->op);
}

/* What lies below pending ones is older. */
static bool heads_are_pending(const struct write_op *w)
{
    const struct pending_file *f = op_pending(&w->op);

    for (unsigned i = 0; f != NULL && i < w->n; i++) {
        if (pending_newest(journal_pending(w->op.st->journal), f, w->projection,
                           w->first + i) == NULL)
            return false;
    }
    return f != NULL;
}

/* The applier in blocks that are known to have heads: what lies there is older, and nobody asks what it is. */
static bool heads_are_older(const struct write_op *w)
{
    const struct proj *proj = write_proj(w);

    return is_applier(w) && marks_cover(proj_written(proj), w->first, w->first + w->n);
}

/* The heads that lie there, part by part. */
static enum op_next write_read_heads(struct write_op *w)
{
    struct proj *proj = write_proj(w);

    if (w->reading && w->op.rc != 0)
        return OP_BAD;
    if (w->at == 0 && !w->reading &&
        (is_applier(w) ? heads_are_older(w) : heads_are_pending(w))) {
        memset(w->old, 0, w->n * w->head_bytes);
        return OP_GO;
    }
    while (proj != NULL && w->at < w->n) {
        unsigned from = w->at, to = part_end(w, from);
        uint8_t *old = w->old + from * w->head_bytes;

        if (!w->reading && op_read_heads(&w->op, proj, w->first + from, to - from, old)) {
            w->reading = true;
            return OP_WAIT;
        }
        if (w->reading)
            op_read_heads_done(&w->op, old);
        w->reading = false;
        w->at = to;
    }
    w->at = 0;
    return OP_GO;
}

/* The applier: only what is newer than what lies there. */
static void apply_judge(struct write_op *w)
{
    bool blind = heads_are_older(w);

    w->n_place = 0;
    for (unsigned i = 0; i < w->n; i++) {
        struct write_block *b = &w->blocks[i];
        struct record_header h;
        size_t old_len;

        if (b->way == WAY_NONE)
            continue;
        b->replaces = true;
        w->n_place++;
        if (blind)
            continue;
        if (old_version(w, i, &h, &old_len) > b->version && !b->lost) {
            b->way = WAY_NONE;
            w->n_place--;
            continue;
        }
        b->needs_space = b->body_len > 0 && old_len == 0;
    }
}

static enum op_next write_versions(struct write_op *w)
{
    if (is_applier(w)) {
        apply_judge(w);
        return OP_GO;
    }
    w->stale = write_find_stale(w);
    if (w->stale == 0)
        return OP_GO;
    if (w->n_lost > 0)
        proj_set_floor(write_proj(w));
    return op_bad(&w->op, -EREMCHG);
}

/* A damaged file is in the way. */
static enum op_next write_put_aside(struct write_op *w)
{
    if (is_applier(w))
        return OP_GO;
    enum op_next next = op_put_aside(&w->op, w->projection, w->newest);

    if (next == OP_BAD && w->op.rc == -EREMCHG)
        w->stale = w->newest;
    return next;
}

static enum op_next write_space(struct write_op *w)
{
    enum op_next next =
        w->space == 0 || is_applier(w) ? OP_GO : op_space(&w->op, w->space);

    if (next != OP_BAD || w->op.rc != -ENOSPC || write_proj(w) == NULL)
        return next;
    /* Other storages may have room and take all of the run. Were the records that it replaces left
     * as they are here, neither the old nor the new would be on enough storages (I12): these go
     * in place, they need no space, and then the run is refused. */
    w->no_space = true;
    return OP_GO;
}

/* Full: wait for room without the lock, and begin anew. */
static enum op_next write_room(struct write_op *w)
{
    enum op_next next;

    if (w->waiting) {
        w->waiting = false;
        op_enter_again(&w->op);
        w->at = 0;
        w->no_space = false;
        w->op.state = 0; /* write_step() adds one: to write_enter() */
        return OP_GO;
    }
    if (w->n_journal == 0)
        return OP_GO;
    next = op_journal_room(&w->op, false);
    w->waiting = next == OP_WAIT;
    return next;
}

static unsigned unit_blocks(const struct write_op *w)
{
    struct geometry g;

    geometry_init(&g, w->op.ref.codec, w->projection);
    return g.unit_blocks;
}

/* The units of the run, as blocks. */
static struct mark_range write_units(const struct write_op *w)
{
    unsigned unit = unit_blocks(w);

    return (struct mark_range){
        .first = w->first / unit * unit,
        .end = (w->first + w->n + unit - 1) / unit * unit,
        .version = generation_of_note(w->op.st->config.generations),
    };
}

/* From here on this writes. What it makes of the file, and heads that say "never written", count
 * as much as the records. */
static enum op_next write_begin(struct write_op *w)
{
    w->verifier = storage_verifier(w->op.st);
    return OP_GO;
}

static enum op_next write_create(struct write_op *w)
{
    struct mark_range units;

    if (write_proj(w) != NULL)
        return OP_GO;
    assert(!is_applier(w));
    w->created = true;
    units = write_units(w);
    return op_create(&w->op, w->projection, version_epoch(w->newest), &units);
}

/* ---- the rest of the unit: who was never written gets a head that says so ---- */

static uint64_t unit_first(const struct write_op *w, unsigned unit)
{
    unsigned blocks = write_proj(w)->geo.unit_blocks;

    return (w->first / blocks + unit) * blocks;
}

static bool unit_has_place(const struct write_op *w, uint64_t first)
{
    unsigned blocks = write_proj(w)->geo.unit_blocks;

    for (uint64_t b = first; b < first + blocks; b++) {
        if (b >= w->first && b < w->first + w->n &&
            w->blocks[b - w->first].way == WAY_PLACE)
            return true;
    }
    return false;
}

/* Which units are new? Of a partial file none ever is: what it says of the others stays unknown. */
static enum op_next write_find_fresh(struct write_op *w)
{
    struct proj *proj = write_proj(w);
    unsigned blocks = proj->geo.unit_blocks;
    unsigned n = (unsigned)((w->first + w->n - 1) / blocks - w->first / blocks) + 1;

    w->fresh = 0;
    for (unsigned u = 0; u < n && !proj->partial && !w->no_space; u++) {
        uint64_t first = unit_first(w, u);

        if (!marks_cover(proj_written(proj), first, first + blocks) &&
            (w->created || unit_has_place(w, first)))
            w->fresh |= (uint16_t)(1u << u);
    }
    return OP_GO;
}

/* Heads of holes where nothing is; how many. What was lost stays lost. */
static unsigned fill_holes(struct write_op *w, uint64_t first)
{
    struct proj *proj = write_proj(w);
    unsigned n = 0;

    for (unsigned i = 0; i < proj->geo.unit_blocks; i++) {
        uint8_t *p = w->fill + i * proj->geo.head_bytes;

        if (!record_header_is_zero(p) || marks_find(proj_written(proj), first + i) != 0)
            continue;
        hole_head_put(p, w->op.obj->hash, w->projection, first + i, 0);
        n++;
    }
    return n;
}

/*
 * A page first: of a later epoch than those there know of; and before a file gets longer than its
 * header tells, because without any page that would look like a file that lost them.
 */
static enum op_next write_page(struct write_op *w)
{
    struct proj *proj = write_proj(w);
    bool first_page = proj->marks_slot < 0 && w->fresh != 0 && !w->created;

    if (w->n_place == 0 && !w->created)
        return OP_GO;
    if (version_epoch(w->newest) <= proj->epoch && !first_page && w->op.marks_state == 0)
        return OP_GO;
    return op_write_marks(&w->op, w->projection, proj_marks(proj), proj_written(proj),
                          version_epoch(w->newest));
}

enum fill_state { FILL_NEXT, FILL_READING, FILL_WRITING };

/* One unit: read, fill, write. */
static enum op_next fill_unit(struct write_op *w, uint64_t first)
{
    struct proj *proj = write_proj(w);
    size_t len = proj->geo.unit_blocks * proj->geo.head_bytes;

    switch ((enum fill_state)w->filling) {
    case FILL_NEXT:
        if (w->fill == NULL && (w->fill = malloc(len)) == NULL)
            return op_bad(&w->op, -ENOMEM);
        if (op_read_heads(&w->op, proj, first, proj->geo.unit_blocks, w->fill)) {
            w->filling = FILL_READING;
            return OP_WAIT;
        }
        break;
    case FILL_READING:
        if (w->op.rc != 0)
            return OP_BAD;
        op_read_heads_done(&w->op, w->fill);
        break;
    case FILL_WRITING:
        w->filling = FILL_NEXT;
        return w->op.rc != 0 ? OP_BAD : OP_GO;
    }
    w->filling = FILL_NEXT;
    if (fill_holes(w, first) == 0)
        return OP_GO;
    w->filling = FILL_WRITING;
    w->iov[0] = (struct iovec){ .iov_base = w->fill, .iov_len = len };
    op_write(&w->op, proj, geometry_head_at(&proj->geo, first), w->iov, 1, len);
    return OP_WAIT;
}

/* Of a file just made also the whole ones: its header says that they have heads. */
static bool unit_needs_fill(const struct write_op *w, unsigned unit)
{
    uint64_t first = unit_first(w, unit);
    uint64_t end = first + write_proj(w)->geo.unit_blocks;
    bool is_whole = w->first <= first && end <= w->first + w->n;

    return (w->fresh >> unit & 1) != 0 && (w->created || !is_whole || w->n_place < w->n);
}

static enum op_next write_fill(struct write_op *w)
{
    if (w->undoing)
        return op_create_undo(&w->op, w->projection);
    for (; w->unit < UNITS_MAX; w->unit++) {
        enum op_next next = OP_GO;

        if (unit_needs_fill(w, w->unit))
            next = fill_unit(w, unit_first(w, w->unit));
        if (next == OP_BAD && w->created) {
            w->undoing = true;
            return op_create_undo(&w->op, w->projection);
        }
        if (next != OP_GO)
            return next;
    }
    return OP_GO;
}

/* All blocks of the fresh units have heads now: note that. */
static struct marks *write_note_make(struct write_op *w)
{
    struct proj *proj = write_proj(w);
    uint64_t generation = generation_of_note(w->op.st->config.generations);
    struct marks *noted = malloc(sizeof(*noted));

    if (noted == NULL)
        return NULL;
    proj_written_copy(proj, noted);
    for (unsigned u = 0; u < UNITS_MAX; u++) {
        uint64_t first, end;

        if ((w->fresh >> u & 1) == 0)
            continue;
        first = unit_first(w, u);
        end = first + proj->geo.unit_blocks;
        while (marks_newest(noted, first, end) != 0 && !marks_cut(noted, first, end))
            marks_remove(noted, marks_smallest(noted));
        while (noted->n + 2 > MARKS_MAX && !marks_fits(noted, first, end, generation))
            marks_remove(noted, marks_smallest(noted));
        marks_apply(noted, first, end, generation);
    }
    return noted;
}

/*
 * A page for it; the header says it already when this write made the file. While a sync is under
 * way nobody waits for that: the next write takes it along.
 */
static enum op_next write_note(struct write_op *w)
{
    struct proj *proj = write_proj(w);
    enum op_next next;

    if (!w->noting && w->fresh == 0 && !proj->unsaved)
        return OP_GO;
    if (w->noted == NULL && (w->noted = write_note_make(w)) == NULL)
        return op_bad(&w->op, -ENOMEM);
    if (!w->noting && (w->created || w->op.obj->syncing)) {
        proj->unsaved |= !w->created;
        w->op.rc = proj_written_keep(proj, w->noted);
        return w->op.rc == 0 ? OP_GO : OP_BAD;
    }
    w->noting = true;
    next = op_write_marks(&w->op, w->projection, proj_marks(proj), w->noted, 0);
    if (next != OP_BAD)
        return next;
    proj->unsaved = true; /* the records are here: no room for the note harms nobody */
    w->op.rc = proj_written_keep(proj, w->noted);
    return w->op.rc == 0 ? OP_GO : OP_BAD;
}

/* ---- the records ---- */

static enum op_next write_pieces(struct write_op *w)
{
    struct proj *proj = write_proj(w);

    if (w->writing && w->op.rc != 0)
        return OP_BAD;
    if (w->n_place > 0 && w->newest > proj->newest)
        proj->newest = w->newest;
    w->writing = true;
    return submit_piece(w) ? OP_WAIT : OP_GO;
}

/* ---- the journal ---- */

static bool to_journal(const struct write_op *w, unsigned i)
{
    return w->blocks[i].way == WAY_JOURNAL && !(w->no_space && w->blocks[i].needs_space);
}

/* The frame: header, heads, bodies; all of it where it lies. */
static size_t append_iov(struct write_op *w)
{
    struct entry e = { .kind = ENTRY_RECORDS,
                       .file = journal_file(&w->op.ref),
                       .projection = (uint8_t)w->projection,
                       .first = w->first,
                       .version = w->newest };
    size_t len = ENTRY_HEADER_BYTES;

    w->n_iov = 0;
    iov_add(w, w->entry_header, ENTRY_HEADER_BYTES);
    for (unsigned i = 0; i < w->n; i++) {
        if (!to_journal(w, i))
            continue;
        e.blocks[i / 64] |= UINT64_C(1) << i % 64;
        iov_add(w, new_head(w, i), w->head_bytes);
        len += w->head_bytes;
    }
    for (unsigned i = 0; i < w->n; i++) {
        if (!to_journal(w, i) || w->blocks[i].body_len == 0)
            continue;
        iov_add(w, w->payload + w->blocks[i].body_at, w->blocks[i].body_len);
        len += w->blocks[i].body_len;
    }
    entry_put(w->entry_header, &e);
    return len;
}

/* From here on readers see it. */
static int append_index(struct write_op *w)
{
    struct pending *p = journal_pending(w->op.st->journal);
    struct storage_file file = journal_file(&w->op.ref);
    struct pending_file *f = pending_get(p, &file, w->op.ref.codec);
    size_t head_at = ENTRY_HEADER_BYTES, body_at = head_at;
    int rc = f == NULL ? -ENOMEM : 0;

    for (unsigned i = 0; i < w->n; i++)
        body_at += to_journal(w, i) ? w->head_bytes : 0;
    for (unsigned i = 0; i < w->n && rc == 0; i++) {
        struct record_header h;

        if (!to_journal(w, i))
            continue;
        record_header_get(new_head(w, i), &h);
        rc = pending_add_record(p, f, w->op.entry, w->projection, new_head(w, i),
                                w->head_bytes, &h, body_at, w->blocks[i].body_len,
                                env_now_ns(w->op.st->env));
        body_at += w->blocks[i].body_len;
    }
    if (f != NULL && (w->op.st->config.mutant & MUTANT_NO_COMMIT_RULE) != 0)
        journal_commit_range(w->op.st->journal, &w->op.ref.id, 0, UINT64_MAX, UINT64_MAX);
    else if (f != NULL && f->n_committed > 0)
        journal_poke(w->op.st->journal, f);
    return rc;
}

static enum op_next write_append(struct write_op *w)
{
    enum op_next next;
    size_t len = 0;
    bool any = false;

    for (unsigned i = 0; i < w->n; i++)
        any |= to_journal(w, i);
    if (!any)
        return OP_GO;
    if (w->entry_header == NULL) {
        w->entry_header = malloc(ENTRY_HEADER_BYTES);
        if (w->entry_header == NULL)
            return op_bad(&w->op, -ENOMEM);
        len = append_iov(w);
    }
    next = op_append(&w->op, ENTRY_RECORDS, w->iov, w->n_iov, len);
    if (next == OP_BAD && w->op.rc == -ENOSPC)
        w->op.rc = -EBUSY; /* overwriting needs no space (I12): some will be free soon */
    if (next != OP_GO)
        return next;
    w->op.rc = append_index(w);
    return w->op.rc == 0 ? OP_GO : OP_BAD;
}

/* Also when all went to the journal: what is there is given up when the file it is for is gone. */
static bool needs_file_sync(const struct write_op *w)
{
    const struct proj *proj = write_proj(w);

    return w->n_place + w->created > 0 ||
           (proj != NULL && (proj->name_dirty || w->op.obj->syncing));
}

static enum op_next write_sync(struct write_op *w)
{
    enum op_next next;

    if (w->op.held != OP_HOLDS_NOTHING)
        w->file_sync = w->sync && needs_file_sync(w);
    op_unlock(&w->op);
    if (w->no_space)
        return op_bad(&w->op, -ENOSPC);
    if (!w->sync)
        return OP_GO;
    if (!w->op.log_joined && !w->op.syncing && w->n_journal + w->n_pending > 0)
        op_log_sync_start(&w->op);
    next = op_sync_both(&w->op, w->file_sync);
    if (next == OP_GO && w->verifier != storage_verifier(w->op.st))
        return op_bad(&w->op,
                      -EIO); /* somebody else's sync failed, perhaps on these bytes */
    return next;
}

static void tell_stood_in(struct write_op *w)
{
    const struct storage_config *config = &w->op.st->config;
    struct storage_stood_in what = { .projection = w->projection,
                                     .first = w->first,
                                     .end = w->first + w->n,
                                     .version = w->newest };

    if (config->stood_in == NULL || w->op.call->role != RPC_ROLE_CLIENT ||
        w->op.ref.storages[w->projection] == identity_storage_id(config->identity))
        return;
    what.file = journal_file(&w->op.ref);
    config->stood_in(config->stood_in_arg, &what);
}

static void write_reply(struct write_op *w)
{
    Rozo__StWriteResp resp = ROZO__ST_WRITE_RESP__INIT;

    resp.verifier = w->verifier;
    resp.pending = w->n_journal + w->n_pending > 0;
    resp.pressure = journal_has_pressure(w->op.st->journal);
    tell_stood_in(w);
    op_finish_message(&w->op, ROZO__STATUS__OK, &resp.base);
}

static void write_refuse(struct write_op *w)
{
    Rozo__StWriteResp resp = ROZO__ST_WRITE_RESP__INIT;

    if (w->op.rc != -EREMCHG) {
        op_fail(&w->op, w->op.rc);
        return;
    }
    resp.newest_version = w->stale;
    op_finish_message(&w->op, ROZO__STATUS__STALE_VERSION, &resp.base);
}

/* Call the steps from op->state on. */
static enum op_next write_run(struct write_op *w,
                              enum op_next (*const *steps)(struct write_op *), int n)
{
    enum op_next next = OP_GO;

    while (next == OP_GO && w->op.state < n) {
        next = steps[w->op.state](w);
        if (next == OP_GO)
            w->op.state++;
    }
    return next;
}

static void write_step(struct op *op)
{
    static enum op_next (*const steps[])(struct write_op *) = {
        write_marks_first, write_enter,      write_read_heads, write_versions,
        write_put_aside,   write_space,      write_room,       write_begin,
        write_create,      write_find_fresh, write_page,       write_fill,
        write_pieces,      write_note,       write_append,     write_sync,
    };
    struct write_op *w = (struct write_op *)op;
    enum op_next next = write_run(w, steps, (int)(sizeof(steps) / sizeof(steps[0])));

    if (next == OP_GO)
        write_reply(w);
    else if (next == OP_BAD)
        write_refuse(w);
}

static void write_free(struct op *op)
{
    struct write_op *w = (struct write_op *)op;

    if (w->load != NULL)
        pending_entry_put(journal_pending(op->st->journal), w->load);
    free(w->iov);
    free(w->loaded);
    free(w->entry_header);
    free(w->fill);
    free(w->noted);
}

/* ---- the applier's ---- */

static enum op_next apply_enter(struct write_op *w)
{
    enum op_next next = op_enter(&w->op);

    if (next != OP_GO)
        return next;
    if (w->op.obj->state[w->projection] == PROJ_DAMAGED)
        return op_bad(&w->op, -EUCLEAN);
    if (write_proj(w) ==
        NULL) /* somebody took the file away: nothing is to be replaced */
        w->n = 0;
    return OP_GO;
}

static struct pending_record *apply_record(const struct write_op *w, unsigned i)
{
    struct pending_record *r =
        pending_newest(journal_pending(w->op.st->journal), op_pending(&w->op),
                       w->projection, w->first + i);

    while (r != NULL && !r->committed)
        r = r->older;
    return r;
}

/* Under the lock: which records are there now, and their heads. */
static enum op_next apply_collect(struct write_op *w)
{
    size_t at = w->n * w->head_bytes;

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
        return op_bad(&w->op, -ENOMEM);
    w->payload = w->loaded;
    return OP_GO;
}

/*
 * What the journal lost of a version that is committed: nobody may take what lies below for the newest, so what goes in
 * place is a head that says "damaged", until somebody heals it.
 */
static void apply_check(struct write_op *w)
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
        log_error(
            "block %llu of file %08x%08x%016llx: what the journal had of it is damaged",
            (unsigned long long)(w->first + i), w->op.ref.id.export_id,
            w->op.ref.id.generation, (unsigned long long)w->op.ref.id.ino);
        memset(head, 0, w->head_bytes);
        damaged_head_put(head, w->op.obj->hash, w->projection, w->first + i, b->version,
                         false);
        b->body_len = 0;
    }
}

/* Bodies, as many at a time as lie without a gap in one frame. */
static enum op_next apply_load(struct write_op *w)
{
    struct pending *p = journal_pending(w->op.st->journal);

    if (w->load != NULL) {
        pending_entry_put(p, w->load);
        w->load = NULL;
        if (w->op.rc != 0)
            return OP_BAD;
        if (w->op.dr.n_read != w->op.dr.len)
            return op_bad(&w->op, -EIO);
    }
    while (w->at < w->n) {
        struct write_block *b = &w->blocks[w->at];
        struct pending_record *r = apply_record(w, w->at);
        uint64_t len = 0, from;

        if (b->way == WAY_NONE || r == NULL || r->version != b->version) {
            b->way = WAY_NONE; /* it went meanwhile */
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
        from = r->body_at;
        do {
            memcpy(w->loaded + w->at * w->head_bytes, r->head, w->head_bytes);
            len += r->body_len;
            w->at++;
            r = w->at < w->n ? apply_record(w, w->at) : NULL;
        } while (r != NULL && r->entry == w->load && r->body_at == from + len &&
                 r->body_len > 0 && w->blocks[w->at].way != WAY_NONE &&
                 r->version == w->blocks[w->at].version);
        w->op.iov = (struct iovec){ .iov_base = w->loaded + b->body_at, .iov_len = len };
        w->op.dr = (struct disk_req){ .op = DISK_READ,
                                      .file = w->load->place.file,
                                      .offset = w->load->place.offset + from,
                                      .len = len,
                                      .iov = &w->op.iov,
                                      .n_iov = 1 };
        op_submit(&w->op);
        return OP_WAIT;
    }
    w->at = 0;
    apply_check(w);
    return OP_GO;
}

/* It lies there now; what comes next is a sync. */
static void apply_done(struct write_op *w)
{
    struct pending_file *f = op_pending(&w->op);

    for (unsigned i = 0; f != NULL && i < w->n; i++) {
        struct pending_record *r =
            pending_at_most(journal_pending(w->op.st->journal), f, w->projection,
                            w->first + i, w->blocks[i].version);

        if (r != NULL && r->committed && r->version == w->blocks[i].version)
            r->applied = true;
    }
}

/* No file, so nothing that these could replace: whoever removed it removed them. */
static void apply_forget(struct write_op *w, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        for (struct pending_record *r = apply_record(w, i); r != NULL;
             r = apply_record(w, i))
            pending_remove_record(journal_pending(w->op.st->journal), r);
    }
}

static void apply_step(struct op *op)
{
    static enum op_next (*const steps[])(struct write_op *) = {
        apply_enter,      apply_collect, apply_load, write_read_heads, write_versions,
        write_find_fresh, write_page,    write_fill, write_pieces,     write_note,
    };
    struct write_op *w = (struct write_op *)op;
    unsigned n = w->n;
    enum op_next next = OP_GO;

    if (op->state == 0) {
        next = apply_enter(w);
        if (next == OP_GO && w->n == 0) {
            apply_forget(w, n);
            op_end_internal(op, 0);
            return;
        }
        op->state = next == OP_GO;
    }
    if (next == OP_GO)
        next = write_run(w, steps, (int)(sizeof(steps) / sizeof(steps[0])));
    if (next == OP_GO)
        apply_done(w);
    if (next != OP_WAIT)
        op_end_internal(op, next == OP_GO ? 0 : op->rc);
}

int storage_apply_records(struct storage *st, struct pending_file *f, unsigned projection,
                          uint64_t first, unsigned n, void (*done)(void *arg, int rc),
                          void *arg)
{
    struct write_op *w = (struct write_op *)op_new_internal(st, f, sizeof(*w), apply_step,
                                                            write_free, done, arg);

    if (w == NULL)
        return -ENOMEM;
    w->projection = projection;
    w->first = first;
    w->n = n;
    w->head_bytes = RECORD_HEADER_BYTES + codec_overhang_bytes(f->codec, projection);
    w->op.want = UINT32_C(1) << projection;
    w->op.exclusive = true;
    if (write_alloc(w) != 0) {
        w->op.internal_done = NULL;
        op_free(&w->op);
        return -ENOMEM;
    }
    op_start(&w->op);
    return 0;
}

void storage_handle_write(struct storage *st, struct rpc_call *call)
{
    Rozo__StWriteReq *req = rozo__st_write_req__unpack(NULL, call->msg_len, call->msg);
    struct write_op *w =
        (struct write_op *)op_new(st, call, sizeof(*w), write_step, write_free);
    int rc = req == NULL ? -EBADMSG : 0;

    if (w == NULL) {
        rpc_reply_status(call, ROZO__STATUS__NO_MEMORY);
        rozo__st_write_req__free_unpacked(req, NULL);
        return;
    }
    if (rc == 0)
        rc = write_parse(w, req);
    if (rc == 0)
        journal_commit(st->journal, &w->op.ref.id, req->durable, req->n_durable);
    rozo__st_write_req__free_unpacked(req, NULL); /* NULL is fine */
    if (rc != 0)
        op_fail(&w->op, rc);
    else
        op_start(&w->op);
}
