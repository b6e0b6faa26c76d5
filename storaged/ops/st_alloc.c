/*
 * st_alloc.c - ST_ALLOC: reserves space for a range of blocks, and frees it again.
 *
 * In:     storage_handle_alloc(). Thread: the storio loop.
 * Out:    struct disk, rpc_reply().
 * Keeps:  the file reaches to the end of the reserved space, so that marks find and free
 *         it; an older mark that is not applied yet leaves it alone. A request that fails
 *         leaves nothing reserved. Space of records is never freed.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>

#include "common/base/err.h"
#include "storaged/ops/st_requests.h"

enum {
    TAKEN_PER_RANGE = 16, /* newly reserved pieces that are listed: of heads, of bodies */
    GIVE_BACK_MAX = 2 * TAKEN_PER_RANGE,
};

struct alloc_op {
    struct st_op op; /* must be first */
    unsigned projection;
    uint64_t first, end;
    unsigned n_done;   /* finished ones of the two ranges */
    uint64_t measured; /* bytes; checked up to here; 0: not begun */
    uint64_t need;     /* bytes found not reserved so far */
    int rc;            /* the reason of the failure */
    bool created, measuring, asking;
    struct iovec iov;
    unsigned n_taken, n_given; /* n_given: entries of give_back that are done */
    struct disk_range taken[2 * TAKEN_PER_RANGE];
    unsigned n_give_back;
    struct disk_range give_back[GIVE_BACK_MAX];
};

static uint64_t page_down(uint64_t bytes)
{
    return bytes / PROJFILE_PAGE_BYTES * PROJFILE_PAGE_BYTES;
}

static uint64_t page_up(uint64_t bytes)
{
    return page_down(bytes + PROJFILE_PAGE_BYTES - 1);
}

/* Returns the pages to reserve: 0: heads of whole units; 1: bodies. If the blocks lie
 * in several extents, 0 is one range of all between, and 1 is empty. */
static struct disk_range alloc_range(const struct alloc_op *a, const struct geometry *g,
                                     unsigned i)
{
    bool one_extent = a->first / EXTENT_BLOCKS == (a->end - 1) / EXTENT_BLOCKS;
    uint64_t unit = g->unit_blocks, last_unit = (a->end - 1) / unit * unit;
    struct disk_range r = { geometry_head_at(g, a->first / unit * unit),
                            geometry_body_at(g, a->end - 1) + g->stride };

    assert(i < 2 && a->first < a->end);
    if (one_extent && i == 0)
        r.to = geometry_head_at(g, last_unit) + unit * g->head_bytes;
    else if (one_extent)
        r.from = geometry_body_at(g, a->first);
    else if (i == 1)
        r.from = r.to;
    return (struct disk_range){ page_down(r.from), page_up(r.to) };
}

static enum st_op_next alloc_enter(struct st_op *op)
{
    struct alloc_op *a = (struct alloc_op *)op;
    enum st_op_next next = st_op_enter(op);

    if (next == OP_GO && op->obj->state[a->projection] == PROJ_DAMAGED)
        return st_op_bad(op, -ROZO_EDAMAGED);
    return next;
}

/* Refuses if a lost file must be replaced: only a write may do that, since it has an
 * epoch. */
static enum st_op_next alloc_quarantine(struct st_op *op)
{
    struct alloc_op *a = (struct alloc_op *)op;
    enum st_op_next next = st_op_seek_quarantined(op, a->projection);

    if (next == OP_GO && object_ready(op->obj, a->projection) == NULL &&
        (op->obj->emptied >> a->projection & 1) != 0)
        return st_op_bad(op, -ROZO_EDAMAGED);
    return next;
}

/* Measures how much has no space yet; all, if the file system cannot tell. */
static enum st_op_next alloc_measure(struct alloc_op *a)
{
    struct st_op *op = &a->op;
    struct proj *proj = object_ready(op->obj, a->projection);

    assert(proj != NULL && a->n_done <= 2);
    for (; a->n_done < 2; a->n_done++) {
        struct disk_range r = alloc_range(a, &proj->geo, a->n_done);

        if (a->measured != 0) { /* the answer to DISK_MAPPED */
            if (op->rc != 0 || op->dr.next <= a->measured)
                return st_op_bad(op, -ENOSPC);
            a->need += op->dr.mapped ? 0 : op->dr.next - a->measured;
        }
        a->measured = a->measured == 0 ? r.from : op->dr.next;
        if (a->measured < r.to) {
            st_op_disk(op, DISK_MAPPED, proj, a->measured, r.to - a->measured);
            return OP_WAIT;
        }
        a->measured = 0;
    }
    a->n_done = 0;
    return OP_GO;
}

static enum st_op_next alloc_space(struct st_op *op)
{
    struct alloc_op *a = (struct alloc_op *)op;
    struct geometry g;
    enum st_op_next next;

    geometry_init(&g, op->ref.codec, a->projection);
    if (!a->measuring) {
        next = st_op_space(op, (a->end - a->first) * (g.stride + g.head_bytes));
        if (next != OP_BAD || op->rc != -ENOSPC ||
            object_ready(op->obj, a->projection) == NULL)
            return next;
        a->measuring = true;
    }
    if (a->n_done < 2 && op->dr.op != DISK_SPACE) {
        next = alloc_measure(a);
        if (next != OP_GO)
            return next;
    }
    return st_op_space(op, a->need);
}

static enum st_op_next alloc_create(struct st_op *op)
{
    struct alloc_op *a = (struct alloc_op *)op;

    if (object_ready(op->obj, a->projection) != NULL)
        return OP_GO;
    a->created = true;
    return st_op_create(op, a->projection, 0, NULL);
}

/* Writes a mark page before the file becomes longer than its header announces; without
 * a page it would look like a file that lost them. */
static enum st_op_next alloc_page(struct st_op *op)
{
    struct alloc_op *a = (struct alloc_op *)op;
    struct proj *proj = object_ready(op->obj, a->projection);

    assert(proj != NULL || a->created);
    if (a->created)
        return st_op_first_page(op, a->projection);
    if (proj->marks_slot >= 0 && op->create.marks == MARKS_NONE)
        return OP_GO;
    return st_op_write_marks(op, a->projection, proj_marks(proj), proj_written(proj), 0);
}

static void alloc_submit(struct alloc_op *a, struct disk_range r)
{
    struct st_op *op = &a->op;
    struct proj *proj = object_ready(op->obj, a->projection);

    assert(proj != NULL && a->n_taken <= TAKEN_PER_RANGE);
    a->asking = true;
    a->iov = (struct iovec){ .iov_base = a->taken + a->n_taken,
                             .iov_len = TAKEN_PER_RANGE * sizeof(a->taken[0]) };
    op->dr = (struct disk_req){ .op = DISK_ALLOCATE,
                                .file = proj->file,
                                .grow = true,
                                .offset = r.from,
                                .len = r.to - r.from,
                                .iov = &a->iov,
                                .n_iov = 1 };
    op->dr_proj = proj;
    st_op_submit(op);
}

static enum st_op_next alloc_ranges(struct st_op *op)
{
    struct alloc_op *a = (struct alloc_op *)op;
    struct proj *proj = object_ready(op->obj, a->projection);

    for (; a->n_done < 2; a->n_done++) {
        struct disk_range r = alloc_range(a, &proj->geo, a->n_done);

        if (r.from == r.to)
            continue;
        if (!a->asking) {
            alloc_submit(a, r);
            return OP_WAIT;
        }
        a->asking = false;
        if (r.to > proj->size) /* the length is unknown if it failed */
            proj->size = r.to;
        if (op->rc != 0) { /* free what the first range took */
            a->rc = op->rc;
            a->n_give_back = a->n_taken;
            memcpy(a->give_back, a->taken, a->n_taken * sizeof(a->taken[0]));
            return OP_GO;
        }
        a->n_taken += (unsigned)(op->dr.n_read / sizeof(a->taken[0]));
    }
    return OP_GO;
}

/* Lets older marks that are not applied yet keep the reserved space. */
static enum st_op_next alloc_keep(struct st_op *op)
{
    struct alloc_op *a = (struct alloc_op *)op;
    struct pending_file *f = a->rc == 0 ? st_op_pending_file(op) : NULL;

    assert(op->held == OP_HOLDS_EXCLUSIVE && a->first < a->end);
    LIST_FOREACH(node, f == NULL ? &op->journal.room.link : &f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->first >= a->end || m->end <= a->first)
            continue;
        if (m->keep_end == 0 || m->keep_first > a->first)
            m->keep_first = a->first;
        if (m->keep_end < a->end)
            m->keep_end = a->end;
    }
    return OP_GO;
}

/* True if a record of the journal will be written there. */
static bool is_awaited(const struct alloc_op *a, const struct proj *proj,
                       struct disk_range r)
{
    struct pending_file *f = st_op_pending_file(&a->op);
    uint64_t first = geometry_extent_of(&proj->geo, r.from);
    uint64_t end = geometry_extent_of(&proj->geo, r.to - 1) + EXTENT_BLOCKS;

    assert(r.from < r.to);
    if (f == NULL)
        return false;
    PENDING_FOREACH(node, f)
    {
        const struct pending_record *x = container_of(node, struct pending_record, link);

        if (x->projection == a->projection && x->block >= first && x->block < end)
            return true;
    }
    return false;
}

static enum st_op_next alloc_give_back(struct st_op *op)
{
    struct alloc_op *a = (struct alloc_op *)op;
    struct proj *proj = object_ready(op->obj, a->projection);

    assert(a->n_given <= a->n_give_back && a->n_give_back <= GIVE_BACK_MAX);
    while (proj != NULL && a->n_given < a->n_give_back) {
        struct disk_range r = a->give_back[a->n_given++];

        if (is_awaited(a, proj, r))
            continue;
        st_op_disk(op, DISK_GIVE_BACK, proj, r.from, r.to - r.from);
        return OP_WAIT;
    }
    return a->rc == 0 ? OP_GO : st_op_bad(op, a->rc);
}

static enum st_op_next alloc_refresh(struct st_op *op)
{
    return st_op_space(op, 0);
}

static void alloc_reply(struct st_op *op)
{
    struct alloc_op *a = (struct alloc_op *)op;
    Rozo__StAllocResp resp = ROZO__ST_ALLOC_RESP__INIT;
    uint64_t taken[2 * 2 * TAKEN_PER_RANGE];

    assert(a->n_taken <= 2 * TAKEN_PER_RANGE);
    for (unsigned i = 0; i < a->n_taken; i++) {
        taken[2 * i] = a->taken[i].from;
        taken[2 * i + 1] = a->taken[i].to;
    }
    resp.taken = taken;
    resp.n_taken = 2 * a->n_taken;
    resp.left_bytes = storage_space_left(op->st);
    st_op_finish_message(op, ROZO__STATUS__OK, &resp.base);
}

static const struct st_op_kind alloc_kind = {
    .bytes = sizeof(struct alloc_op),
    .done = alloc_reply,
    .steps = { st_op_marks_first, alloc_enter, alloc_quarantine, alloc_space,
               alloc_create, alloc_page, alloc_ranges, alloc_keep, alloc_give_back },
};
static const struct st_op_kind give_back_kind = {
    .bytes = sizeof(struct alloc_op),
    .done = alloc_reply,
    .steps = { alloc_enter, alloc_give_back, alloc_refresh },
};

static int parse_give_back(struct alloc_op *a, const Rozo__StAllocReq *req)
{
    struct geometry g;

    geometry_init(&g, a->op.ref.codec, a->projection);
    if (req->n_give_back % 2 != 0 || req->n_give_back / 2 > GIVE_BACK_MAX ||
        req->n_blocks != 0)
        return -EBADMSG;
    for (size_t i = 0; i < req->n_give_back; i += 2) {
        struct disk_range r = { req->give_back[i], req->give_back[i + 1] };

        if (r.from < PROJFILE_EXTENTS_AT || r.from >= r.to ||
            r.to > geometry_extent_at(&g, PROJFILE_BLOCKS_MAX))
            return -EBADMSG;
        a->give_back[a->n_give_back++] = r;
    }
    return 0;
}

static int alloc_parse(struct alloc_op *a, const Rozo__StAllocReq *req)
{
    int rc = st_op_ref_check(a->op.st, a->op.call, req->ref, req->to_storage,
                             CAPABILITY_WRITE, &a->op.ref);

    if (rc != 0)
        return rc;
    if (req->projection >= codec_n(a->op.ref.codec) ||
        req->n_blocks > PROJFILE_BLOCKS_MAX ||
        req->first_block > PROJFILE_BLOCKS_MAX - req->n_blocks)
        return -EBADMSG;
    a->projection = req->projection;
    a->first = req->first_block;
    a->end = req->first_block + req->n_blocks;
    a->op.want = UINT32_C(1) << req->projection;
    a->op.access = OP_EXCLUSIVE;
    a->op.changes = true;
    if (req->n_blocks == 0)
        a->op.kind = &give_back_kind;
    return req->n_give_back == 0 ? 0 : parse_give_back(a, req);
}

void storage_handle_alloc(struct storage *st, struct rpc_call *call)
{
    Rozo__StAllocReq *req = rozo__st_alloc_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, &alloc_kind);

    if (op != NULL)
        st_op_start(op, req == NULL ? -EBADMSG : alloc_parse((struct alloc_op *)op, req));
    rozo__st_alloc_req__free_unpacked(req, NULL);
}
