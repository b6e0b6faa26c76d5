/*
 * st_drop.c - ST_DROP: takes back records and marks.
 *
 * In:     storage_handle_drop(). Thread: the storio loop.
 * Out:    journal.h, struct disk, rpc_reply().
 * Keeps:  a drop brings back the version below, and nothing dropped returns.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "storaged/ops/st_requests.h"

enum { DROP_BODIES_MAX = 64 };

struct drop_op {
    struct st_op op; /* must be first */
    struct pending_drop d;
    unsigned p;
    struct head_scan scan;
    bool removing;
    bool changed; /* records in place were changed */
    /* Blocks whose bodies can be freed once their heads are stable; bounded: more
     * stay. */
    struct drop_body {
        unsigned p;
        uint64_t first, end;
    } bodies[DROP_BODIES_MAX];
    unsigned n_bodies, body_at;
    uint64_t verifier;
    uint8_t header[JOURNAL_RECORD_HEADER_BYTES];
};

static enum st_op_next drop_enter(struct st_op *op)
{
    struct drop_op *d = (struct drop_op *)op;
    enum st_op_next next = st_op_enter(op);

    assert(d->d.first < d->d.end && d->scan.buf != NULL);
    if (next != OP_GO)
        return next;
    if (d->d.projections == 0 && journal_fence(op->st->journal, &op->ref.id) < d->d.epoch)
        return st_op_bad(op, -EBADMSG);
    d->verifier = storage_verifier(op->st);
    return OP_GO;
}

/* Notes that the body of a block is not needed any more. */
static void body_note(struct drop_op *d, uint64_t block)
{
    struct drop_body *last = d->n_bodies == 0 ? NULL : &d->bodies[d->n_bodies - 1];

    assert(d->n_bodies <= DROP_BODIES_MAX && d->p < CODEC_N_MAX);
    if (last != NULL && last->p == d->p && last->end == block)
        last->end = block + 1;
    else if (d->n_bodies < DROP_BODIES_MAX)
        d->bodies[d->n_bodies++] =
            (struct drop_body){ .p = d->p, .first = block, .end = block + 1 };
}

/* Restores the heads of first writes that are dropped: "never written". Returns how
 * many. */
static unsigned drop_heads(struct drop_op *d, const struct proj *proj)
{
    unsigned n = 0;

    assert(d->scan.n > 0 && d->scan.n <= EXTENT_BLOCKS);
    for (unsigned i = 0; i < d->scan.n; i++) {
        uint8_t *p = d->scan.buf + i * proj->geo.head_bytes;
        uint64_t block = d->scan.at + i;
        struct record_header h;
        enum record_state state = st_op_inspect(&d->op, d->p, block, p, &h);

        if (state == RECORD_IS_DATA &&
            geometry_body_at(&proj->geo, block) +
                    codec_row_bytes(d->op.ref.codec, h.user_bytes) >
                proj->size)
            state = RECORD_IS_DAMAGED; /* the file was cut short */
        if (state == RECORD_IS_DAMAGED
                ? d->d.projections == 0
                : h.version == 0 || !pending_drop_covers(&d->d, d->p, h.version))
            continue;
        /* In a partial file the block becomes unknown, unless the caller says that no
         * record was ever here. */
        memset(p, 0, proj->geo.head_bytes);
        if (!proj->partial || (d->d.projections != 0 && d->d.keep == PROJFILE_NO_VERSION))
            hole_head_put(p, d->op.obj->hash, d->p, block, 0);
        body_note(d, block);
        n++;
    }
    return n;
}

static enum st_op_next drop_in_proj(struct drop_op *d, struct proj *proj)
{
    struct st_op *op = &d->op;

    if (!head_scan_is_on(&d->scan)) {
        uint64_t blocks = proj_blocks(proj);

        if (d->d.projections != 0 && d->d.end != UINT64_MAX)
            blocks = d->d.end; /* blocks beyond the end of the file, too */
        if (d->d.first >= blocks || (d->d.projections == 0 && proj->newest <= d->d.keep))
            return OP_GO;
        head_scan_start(&d->scan, d->d.first, d->d.end < blocks ? d->d.end : blocks,
                        d->d.projections == 0);
    }
    for (;;) {
        enum st_op_next next = st_op_scan(op, proj, &d->scan);

        if (next != OP_GO || d->scan.n == 0)
            return next;
        if (drop_heads(d, proj) == 0)
            continue;
        d->changed = true;
        return st_op_scan_write(op, proj, &d->scan);
    }
}

/* True if the drop covers all of projection p, of which another storage is the home,
 * and no newer record of it is pending. */
static bool is_not_needed(const struct drop_op *d, unsigned p)
{
    const struct st_op *op = &d->op;
    const struct pending_file *f = st_op_pending_file(op);

    assert(p < CODEC_N_MAX);
    if ((d->d.projections >> p & 1) == 0 || d->d.first != 0 || d->d.end != UINT64_MAX ||
        op->ref.storages[p] == identity_storage_id(op->st->config.identity))
        return false;
    if (f == NULL)
        return true;
    PENDING_FOREACH(node, f)
    {
        const struct pending_record *r = container_of(node, struct pending_record, link);

        if (r->projection == p && r->version > d->d.keep)
            return false;
    }
    return true;
}

static bool is_spoiled(const struct drop_op *d)
{
    return d->op.obj->state[d->p] == PROJ_DAMAGED &&
           (d->op.obj->foreign >> d->p & 1) == 0 && is_not_needed(d, d->p);
}

/* Removes pending records of a file that is gone, as the start does. */
static void drop_unheld(struct st_op *op)
{
    if (object_present(op->obj) == 0 && st_op_pending_file(op) != NULL)
        journal_index_remove_all(journal_get_index(op->st->journal),
                                 st_op_pending_file(op));
}

static enum st_op_next drop_spoiled(struct drop_op *d)
{
    struct st_op *op = &d->op;

    assert(op->obj->state[d->p] == PROJ_DAMAGED);
    if (!d->removing) {
        d->removing = true;
        projfile_path(op->path, &op->ref.id, d->p);
        log_warn("%s: damaged and not needed any more, so it is removed", op->path);
        op->dr = (struct disk_req){ .op = DISK_REMOVE, .path = op->path };
        st_op_submit(op);
        return OP_WAIT;
    }
    d->removing = false;
    if (op->rc != 0 && op->rc != -ENOENT)
        return OP_BAD;
    op->rc = 0;
    op->obj->state[d->p] = PROJ_ABSENT;
    drop_unheld(op);
    return OP_GO;
}

/* True if only quarantined files and files without a header are here, and none is
 * needed. */
static bool are_remains(const struct drop_op *d)
{
    const struct object *obj = d->op.obj;

    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        if ((obj->emptied >> p & 1) != 0 && !is_not_needed(d, p))
            return false;
    }
    return obj->emptied != 0 && object_present(obj) == 0;
}

static enum st_op_next drop_remains(struct st_op *op)
{
    struct drop_op *d = (struct drop_op *)op;

    assert(d->p == CODEC_N_MAX);
    if (!d->removing && are_remains(d)) {
        d->removing = true;
        projfile_path_prefix(op->path, &op->ref.id);
        log_warn(
            "%s*: remains of a damaged file, not needed any more, so they are removed",
            op->path);
        op->dr = (struct disk_req){ .op = DISK_REMOVE,
                                    .path = op->path,
                                    .n_names = CODEC_N_MAX };
        st_op_submit(op);
        return OP_WAIT;
    }
    if (!d->removing)
        return OP_GO;
    d->removing = false;
    if (op->rc != 0 && op->rc != -ENOENT)
        return OP_BAD;
    op->rc = 0;
    op->obj->emptied = op->obj->unsynced = 0;
    drop_unheld(op);
    return OP_GO;
}

static enum st_op_next drop_in_place(struct st_op *op)
{
    struct drop_op *d = (struct drop_op *)op;

    for (; d->p < CODEC_N_MAX; d->p++) {
        struct proj *proj = object_ready(op->obj, d->p);
        enum st_op_next next = OP_GO;

        if (d->removing || is_spoiled(d))
            next = drop_spoiled(d);
        else if (proj != NULL &&
                 (d->d.projections == 0 || (d->d.projections >> d->p & 1) != 0))
            next = drop_in_proj(d, proj);
        if (next != OP_GO)
            return next;
    }
    return OP_GO;
}

/* Makes the heads stable: a power cut must not leave one whose body is freed. */
static enum st_op_next drop_heads_sync(struct st_op *op)
{
    return ((struct drop_op *)op)->n_bodies == 0 ? OP_GO : st_op_sync_all(op);
}

/* Frees whole pages of the bodies, extent by extent. Errors only cost space. */
static enum st_op_next drop_bodies(struct st_op *op)
{
    struct drop_op *d = (struct drop_op *)op;

    assert(op->held == OP_HOLDS_EXCLUSIVE && d->body_at <= d->n_bodies);
    while (d->body_at < d->n_bodies) {
        struct drop_body *b = &d->bodies[d->body_at];
        struct proj *proj = object_ready(op->obj, b->p);
        unsigned n = b->first < b->end ? extent_part(b->first, b->end) : 0;
        struct disk_range pages;

        if (proj == NULL || n == 0) {
            d->body_at++;
            continue;
        }
        pages = proj_body_pages(proj, b->first, n);
        b->first += n;
        if (pages.from < pages.to) {
            st_op_disk(op, DISK_PUNCH, proj, pages.from, pages.to - pages.from);
            return OP_WAIT;
        }
    }
    op->rc = 0;
    return OP_GO;
}

static bool drop_has_pending(const struct drop_op *d)
{
    const struct pending_file *f = st_op_pending_file(&d->op);

    if (f == NULL)
        return false;
    PENDING_FOREACH(node, f)
    {
        const struct pending_record *r = container_of(node, struct pending_record, link);

        if (r->block >= d->d.first && r->block < d->d.end &&
            pending_drop_covers(&d->d, r->projection, r->version))
            return true;
    }
    LIST_FOREACH(node, &f->marks) {
        const struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->first < d->d.end && m->end > d->d.first &&
            pending_drop_covers(&d->d, PROJECTION_ANY, m->version))
            return true;
    }
    return false;
}

static enum st_op_next drop_pending(struct st_op *op)
{
    struct drop_op *d = (struct drop_op *)op;

    assert(op->held == OP_HOLDS_EXCLUSIVE && !head_scan_is_on(&d->scan));
    /* The frame is needed even if only applied records are dropped: their old frames
     * may still lie in the log. */
    if (op->journal.append == NULL && !d->changed && !drop_has_pending(d) &&
        !journal_has_failed(op->st->journal)) /* a previous drop frame may be lost */
        return OP_GO;
    return st_op_append_drop(op, &d->d, d->header);
}

static enum st_op_next drop_sync(struct st_op *op)
{
    struct drop_op *d = (struct drop_op *)op;
    enum st_op_next next;

    if (op->held != OP_HOLDS_NOTHING) {
        st_op_unlock(op);
        st_op_wal_sync_start(op);
    }
    next = st_op_sync_both(op, true);
    if (next == OP_GO && d->verifier != storage_verifier(op->st))
        return st_op_bad(op, -EIO);
    return next;
}

static void drop_free(struct st_op *op)
{
    free(((struct drop_op *)op)->scan.buf);
}

static const struct st_op_kind drop_kind = {
    .bytes = sizeof(struct drop_op),
    .free = drop_free,
    .failed = st_op_fail_busy,
    .steps = { drop_enter, drop_in_place, drop_heads_sync, drop_bodies, drop_remains,
               drop_pending, drop_sync },
};

static int drop_parse(struct drop_op *d, const Rozo__StDropReq *req)
{
    int rc = st_op_ref_check(d->op.st, d->op.call, req->ref, req->to_storage,
                             CAPABILITY_WRITE, &d->op.ref);

    if (rc != 0)
        return rc;
    if (d->op.call->role != RPC_ROLE_NODE)
        return -EACCES;
    if (!blocks_take(req->first_block, req->n_blocks, &d->d.end) ||
        (req->projections != 0 && req->epoch != 0) ||
        (req->projections & ~file_ref_projections(&d->op.ref)) != 0)
        return -EBADMSG;
    d->d.first = req->first_block;
    d->d.keep = req->keep;
    d->d.epoch = req->epoch;
    d->d.projections = req->projections;
    d->op.want = file_ref_projections(&d->op.ref);
    d->op.access = OP_EXCLUSIVE;
    d->scan.buf = malloc(HEADS_MAX);
    return d->scan.buf == NULL ? -ENOMEM : 0;
}

void storage_handle_drop(struct storage *st, struct rpc_call *call)
{
    Rozo__StDropReq *req = rozo__st_drop_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, &drop_kind);

    if (op != NULL)
        st_op_start(op, req == NULL ? -EBADMSG : drop_parse((struct drop_op *)op, req));
    rozo__st_drop_req__free_unpacked(req, NULL);
}
