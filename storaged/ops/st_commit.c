/*
 * st_commit.c - ST_COMMIT, ST_FENCE, ST_DROP, and the check of pending records at the
 * start.
 *
 * In:     storage_handle_*(), the journal. Thread: the storio loop.
 * Out:    journal.h, struct disk, rpc_reply().
 * Keeps:  a fence holds from its answer on; a drop brings back the version below, and
 *         nothing dropped returns.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "storaged/ops/st_requests.h"

/* Runs steps from op->state on. */
static enum st_op_next run(struct st_op *op,
                           enum st_op_next (*const *steps)(struct st_op *), int n)
{
    enum st_op_next next = OP_GO;

    while (next == OP_GO && op->state < n) {
        next = steps[op->state](op);
        if (next == OP_GO)
            op->state++;
    }
    return next;
}

static uint32_t all_projections(const struct file_ref *ref)
{
    return (UINT32_C(1) << codec_n(ref->codec)) - 1;
}

/* Takes blocks [first, end) of a request. Returns false if they are invalid. */
static bool range_take(uint64_t first, uint64_t n_blocks, uint64_t *end)
{
    if (first >= PROJFILE_BLOCKS_MAX || n_blocks > PROJFILE_BLOCKS_MAX - first)
        return false;
    *end = n_blocks == 0 ? UINT64_MAX : first + n_blocks;
    return true;
}

static size_t heads_max(void)
{
    return (size_t)EXTENT_BLOCKS * (RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX);
}

/* ---- ST_COMMIT ---- */

struct commit_op {
    struct st_op op; /* must be first */
    uint32_t whole;
    unsigned p;
    bool making, writing, changed;
};

/* Replaces a corrupt file, or one without a header, by a new one. All storages agree
 * that nothing needed was only in it. */
static enum st_op_next whole_make(struct st_op *op)
{
    struct commit_op *c = (struct commit_op *)op;

    for (; c->p < CODEC_N_MAX; c->p++) {
        enum st_op_next next = OP_GO;

        if ((c->whole >> c->p & 1) == 0 ||
            (object_ready(op->obj, c->p) != NULL && !c->making))
            continue;
        if (!c->making)
            next = st_op_put_aside(op, c->p, 0);
        if (next != OP_GO)
            return next;
        if (!c->making && (op->obj->emptied >> c->p & 1) == 0)
            continue; /* nothing was here, nothing is needed */
        c->making = true;
        next = st_op_create(op, c->p, 0, NULL);
        if (next != OP_GO)
            return next;
        c->making = false;
    }
    c->p = 0;
    return OP_GO;
}

/* Writes "not partial" into a mark page, which counts more than the header. */
static enum st_op_next whole_pages(struct st_op *op)
{
    struct commit_op *c = (struct commit_op *)op;

    for (; c->p < CODEC_N_MAX; c->p++) {
        struct proj *proj = object_ready(op->obj, c->p);
        enum st_op_next next;

        if (proj == NULL || (c->whole >> c->p & 1) == 0 ||
            (!proj->partial && !c->writing))
            continue;
        c->writing = c->changed = true;
        proj->partial = false;
        next = st_op_write_marks(op, c->p, proj_marks(proj), proj_written(proj), 0);
        if (next == OP_BAD)
            proj->partial = true;
        if (next != OP_GO)
            return next;
        c->writing = false;
    }
    return OP_GO;
}

static enum st_op_next whole_enter(struct st_op *op)
{
    return st_op_enter(op);
}

static enum st_op_next whole_sync(struct st_op *op)
{
    st_op_unlock(op);
    return st_op_sync(op);
}

static void whole_step(struct st_op *op)
{
    static enum st_op_next (*const steps[])(struct st_op *) = { whole_enter, whole_make,
                                                                whole_pages, whole_sync };
    enum st_op_next next = run(op, steps, 4);

    if (next == OP_GO)
        st_op_finish(op, ROZO__STATUS__OK);
    else if (next == OP_BAD)
        st_op_fail(op, op->rc);
}

static int commit_check(const struct commit_op *c, const Rozo__StCommitReq *req)
{
    uint64_t end;

    if (c->op.call->role != RPC_ROLE_NODE && (req->n_ranges > 0 || req->whole != 0))
        return -EACCES;
    if ((req->whole & ~all_projections(&c->op.ref)) != 0)
        return -EBADMSG;
    for (size_t i = 0; i < req->n_ranges; i++) {
        if (!range_take(req->ranges[i]->first_block, req->ranges[i]->n_blocks, &end))
            return -EBADMSG;
    }
    return 0;
}

static void commit_do(struct commit_op *c, const Rozo__StCommitReq *req)
{
    struct journal *j = c->op.st->journal;

    journal_commit(j, &c->op.ref.id, req->durable, req->n_durable);
    for (size_t i = 0; i < req->n_ranges; i++) {
        uint64_t end = 0;

        range_take(req->ranges[i]->first_block, req->ranges[i]->n_blocks, &end);
        journal_commit_range(j, &c->op.ref.id, req->ranges[i]->first_block, end,
                             req->ranges[i]->version);
    }
}

void storage_handle_commit(struct storage *st, struct rpc_call *call)
{
    Rozo__StCommitReq *req = rozo__st_commit_req__unpack(NULL, call->msg_len, call->msg);
    struct commit_op *c =
        (struct commit_op *)st_op_new(st, call, sizeof(*c), whole_step, NULL);
    int rc = -EBADMSG;

    if (c == NULL) {
        rpc_reply_status(call, ROZO__STATUS__NO_MEMORY);
        rozo__st_commit_req__free_unpacked(req, NULL);
        return;
    }
    if (req != NULL)
        rc = st_op_ref_check(st, call, req->ref, req->to_storage, CAPABILITY_WRITE,
                             &c->op.ref);
    if (rc == 0)
        rc = commit_check(c, req);
    if (rc == 0) {
        commit_do(c, req);
        c->whole = req->whole;
        c->op.want = all_projections(&c->op.ref);
        c->op.exclusive = true;
    }
    rozo__st_commit_req__free_unpacked(req, NULL);
    if (rc != 0)
        st_op_fail(&c->op, rc);
    else if (c->whole == 0)
        st_op_finish(&c->op, ROZO__STATUS__OK);
    else
        st_op_start(&c->op);
}

/* ---- ST_FENCE ---- */

struct fence_op {
    struct st_op op; /* must be first */
    uint32_t epoch;
    uint8_t header[JOURNAL_RECORD_HEADER_BYTES];
    struct iovec iov;
};

/* Takes the lock, so that writes under way end first: none is answered after the
 * fence. */
static enum st_op_next fence_enter(struct st_op *op)
{
    return st_op_enter(op);
}

static enum st_op_next fence_append(struct st_op *op)
{
    struct fence_op *f = (struct fence_op *)op;
    uint32_t epoch = journal_fence(op->st->journal, &op->ref.id);
    struct journal_record e = { .kind = JOURNAL_FENCE, .file = st_op_file(op) };
    struct journal_frame *entry;
    enum st_op_next next;

    if (op->append == NULL && epoch >= f->epoch) {
        if (journal_fence_is_good(op->st->journal, &op->ref.id))
            return OP_GO;
        f->epoch = epoch; /* the old frame may be lost: append it again */
    }
    e.epoch = f->epoch;
    journal_record_put(f->header, &e);
    f->iov = (struct iovec){ .iov_base = f->header, .iov_len = sizeof(f->header) };
    next = st_op_append(op, JOURNAL_FENCE, &f->iov, 1, sizeof(f->header));
    if (next != OP_GO)
        return next;
    entry = op->entry;
    op->entry = NULL;
    op->rc = journal_fence_note(op->st->journal, &op->ref.id, f->epoch, entry);
    return op->rc == 0 ? OP_GO : OP_BAD;
}

/* Syncs even a fence that was here before: another request's sync of it may not have
 * ended. */
static enum st_op_next fence_sync(struct st_op *op)
{
    if (op->held != OP_HOLDS_NOTHING) {
        st_op_unlock(op);
        st_op_wal_sync_start(op);
    }
    return st_op_wal_sync_join(op);
}

static void fence_step(struct st_op *op)
{
    static enum st_op_next (*const steps[])(struct st_op *) = { fence_enter, fence_append,
                                                                fence_sync };
    enum st_op_next next = run(op, steps, 3);

    if (next == OP_GO)
        st_op_finish(op, ROZO__STATUS__OK);
    else if (next == OP_BAD)
        st_op_fail(op, op->rc == -ENOSPC ? -EBUSY : op->rc);
}

void storage_handle_fence(struct storage *st, struct rpc_call *call)
{
    Rozo__StFenceReq *req = rozo__st_fence_req__unpack(NULL, call->msg_len, call->msg);
    struct fence_op *f =
        (struct fence_op *)st_op_new(st, call, sizeof(*f), fence_step, NULL);
    int rc = -EBADMSG;

    if (f == NULL) {
        rpc_reply_status(call, ROZO__STATUS__NO_MEMORY);
        rozo__st_fence_req__free_unpacked(req, NULL);
        return;
    }
    if (req != NULL)
        rc = st_op_ref_check(st, call, req->ref, req->to_storage, CAPABILITY_WRITE,
                             &f->op.ref);
    if (rc == 0 && call->role != RPC_ROLE_NODE)
        rc = -EACCES;
    if (rc == 0 && req->epoch == 0)
        rc = -EBADMSG;
    if (rc == 0) {
        f->epoch = req->epoch;
        f->op.exclusive = true;
    }
    rozo__st_fence_req__free_unpacked(req, NULL);
    if (rc != 0)
        st_op_fail(&f->op, rc);
    else
        st_op_start(&f->op);
}

/* ---- ST_DROP ---- */

enum { DROP_BODIES_MAX = 64 };

struct drop_op {
    struct st_op op; /* must be first */
    struct pending_drop d;
    unsigned p;
    struct head_scan scan;
    bool scanning, writing, removing;
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
    struct iovec iov;
};

static enum st_op_next drop_enter(struct st_op *op)
{
    struct drop_op *d = (struct drop_op *)op;
    enum st_op_next next = st_op_enter(op);

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

    if (!d->scanning) {
        uint64_t blocks = proj_blocks(proj);

        if (d->d.projections != 0 && d->d.end != UINT64_MAX)
            blocks = d->d.end; /* blocks beyond the end of the file, too */
        if (d->d.first >= blocks || (d->d.projections == 0 && proj->newest <= d->d.keep))
            return OP_GO;
        d->scan.at = d->d.first;
        d->scan.end = d->d.end < blocks ? d->d.end : blocks;
        d->scan.n = 0;
        d->scan.state = 0;
        d->scan.skip_holes = d->d.projections == 0;
        d->scanning = true;
    }
    for (;;) {
        enum st_op_next next;
        size_t len;

        if (d->writing && op->rc != 0)
            return OP_BAD;
        d->writing = false;
        next = st_op_scan(op, proj, &d->scan);
        if (next != OP_GO)
            return next;
        if (d->scan.n == 0)
            break;
        if (drop_heads(d, proj) == 0)
            continue;
        len = d->scan.n * proj->geo.head_bytes;
        d->iov = (struct iovec){ .iov_base = d->scan.buf, .iov_len = len };
        d->writing = d->changed = true;
        st_op_write(op, proj, geometry_head_at(&proj->geo, d->scan.at), &d->iov, 1, len);
        return OP_WAIT;
    }
    d->scanning = false;
    return OP_GO;
}

/* True if the drop covers all of projection p, of which another storage is the home,
 * and no newer record of it is pending. */
static bool is_not_needed(const struct drop_op *d, unsigned p)
{
    const struct st_op *op = &d->op;
    const struct pending_file *f = st_op_pending_file(op);

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
    const uint64_t page = PROJFILE_PAGE_BYTES;

    while (d->body_at < d->n_bodies) {
        struct drop_body *b = &d->bodies[d->body_at];
        struct proj *proj = object_ready(op->obj, b->p);
        unsigned n = b->first < b->end ? extent_part(b->first, b->end) : 0;
        uint64_t from, to;

        if (proj == NULL || n == 0) {
            d->body_at++;
            continue;
        }
        from = geometry_body_at(&proj->geo, b->first);
        to = from + n * proj->geo.stride;
        b->first += n;
        from = (from + page - 1) / page * page;
        to = (to < proj->size ? to : proj->size) / page * page;
        if (from < to) {
            st_op_disk(op, DISK_PUNCH, proj, from, to - from);
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

    /* The frame is needed even if only applied records are dropped: their old frames
     * may still lie in the log. */
    if (op->append == NULL && !d->changed && !drop_has_pending(d) &&
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

static void drop_step(struct st_op *op)
{
    static enum st_op_next (*const steps[])(struct st_op *) = {
        drop_enter,   drop_in_place, drop_heads_sync, drop_bodies,
        drop_remains, drop_pending,  drop_sync,
    };
    enum st_op_next next = run(op, steps, 7);

    if (next == OP_GO)
        st_op_finish(op, ROZO__STATUS__OK);
    else if (next == OP_BAD)
        st_op_fail(op, op->rc == -ENOSPC ? -EBUSY : op->rc);
}

static void drop_free(struct st_op *op)
{
    free(((struct drop_op *)op)->scan.buf);
}

static int drop_parse(struct drop_op *d, const Rozo__StDropReq *req)
{
    int rc = st_op_ref_check(d->op.st, d->op.call, req->ref, req->to_storage,
                             CAPABILITY_WRITE, &d->op.ref);

    if (rc != 0)
        return rc;
    if (d->op.call->role != RPC_ROLE_NODE)
        return -EACCES;
    if (!range_take(req->first_block, req->n_blocks, &d->d.end) ||
        (req->projections != 0 && req->epoch != 0) ||
        (req->projections & ~all_projections(&d->op.ref)) != 0)
        return -EBADMSG;
    d->d.first = req->first_block;
    d->d.keep = req->keep;
    d->d.epoch = req->epoch;
    d->d.projections = req->projections;
    d->op.want = all_projections(&d->op.ref);
    d->op.exclusive = true;
    d->scan.buf = malloc(heads_max());
    return d->scan.buf == NULL ? -ENOMEM : 0;
}

void storage_handle_drop(struct storage *st, struct rpc_call *call)
{
    Rozo__StDropReq *req = rozo__st_drop_req__unpack(NULL, call->msg_len, call->msg);
    struct drop_op *d =
        (struct drop_op *)st_op_new(st, call, sizeof(*d), drop_step, drop_free);
    int rc = -EBADMSG;

    if (d == NULL) {
        rpc_reply_status(call, ROZO__STATUS__NO_MEMORY);
        rozo__st_drop_req__free_unpacked(req, NULL);
        return;
    }
    if (req != NULL)
        rc = drop_parse(d, req);
    rozo__st_drop_req__free_unpacked(req, NULL);
    if (rc != 0)
        st_op_fail(&d->op, rc);
    else
        st_op_start(&d->op);
}

/* ---- at the start: which pending records lie in place already ---- */

struct resolve_block {
    uint64_t block, version;
    uint8_t projection;
};

struct resolve_op {
    struct st_op op;              /* must be first */
    struct resolve_block *blocks; /* owned */
    unsigned n, at;
    bool reading;
    struct pending_mark mark; /* mark being checked; version 0: none */
    uint64_t marks_done;      /* marks up to this version are done */
    unsigned p;
    bool here; /* the mark is in place in all projections so far */
    struct head_scan scan;
    bool scanning;
};

static enum st_op_next resolve_enter(struct st_op *op)
{
    struct resolve_op *r = (struct resolve_op *)op;
    struct journal_index *p = journal_get_index(op->st->journal);
    enum st_op_next next = st_op_enter(op);
    struct pending_file *f;

    if (next != OP_GO)
        return next;
    f = st_op_pending_file(op);
    if (f == NULL)
        return OP_GO;
    if (object_present(op->obj) == 0) { /* the file was removed */
        journal_index_remove_all(p, f);
        return OP_GO;
    }
    r->blocks = malloc((f->n_records + 1) * sizeof(r->blocks[0]));
    if (r->blocks == NULL)
        return st_op_bad(op, -ENOMEM);
    PENDING_FOREACH(node, f)
    {
        const struct pending_record *x = container_of(node, struct pending_record, link);

        r->blocks[r->n++] = (struct resolve_block){ x->block, x->version, x->projection };
    }
    return OP_GO;
}

/* Compares a pending record with the one in place. If it is older it was applied or
 * superseded: remove it. If equal, it was being applied: commit it. */
static void resolve_judge(struct resolve_op *r, struct proj *proj)
{
    struct journal_index *p = journal_get_index(r->op.st->journal);
    const struct resolve_block *b = &r->blocks[r->at];
    uint64_t mark = marks_find(proj_marks(proj), b->block);
    struct record_header h;
    enum record_state state =
        st_op_inspect(&r->op, b->projection, b->block, r->scan.buf, &h);
    struct pending_record *x = journal_index_at_most(p, st_op_pending_file(&r->op),
                                                     b->projection, b->block, b->version);

    if (x == NULL || x->version != b->version)
        return;
    if (mark > x->version || (state != RECORD_IS_DAMAGED && h.version > x->version))
        journal_index_remove_record(p, x);
    else if (state != RECORD_IS_DAMAGED && h.version == x->version && x->damaged)
        journal_index_remove_record(p,
                                    x); /* the record lies in place, protected by a crc */
    else if (state != RECORD_IS_DAMAGED && h.version == x->version)
        journal_index_commit_range(p, x->file, b->block, b->block + 1, b->version,
                                   env_now_ns(r->op.st->env));
}

/* Removes a pending record whose file is absent: the file was never stable, so no sync
 * of it ended. Records of a quarantined file stay; its replacement drops them. */
static enum st_op_next resolve_absent(struct resolve_op *r)
{
    const struct resolve_block *b = &r->blocks[r->at];
    struct journal_index *p = journal_get_index(r->op.st->journal);
    enum st_op_next next = st_op_seek_aside(&r->op, b->projection);
    struct pending_record *x;

    if (next != OP_GO || (r->op.obj->emptied >> b->projection & 1) != 0)
        return next;
    x = journal_index_at_most(p, st_op_pending_file(&r->op), b->projection, b->block,
                              b->version);
    if (x != NULL && x->version == b->version)
        journal_index_remove_record(p, x);
    return OP_GO;
}

static enum st_op_next resolve_records(struct st_op *op)
{
    struct resolve_op *r = (struct resolve_op *)op;

    for (; r->at < r->n; r->at++) {
        const struct resolve_block *b = &r->blocks[r->at];
        struct proj *proj = object_ready(op->obj, b->projection);
        enum st_op_next next = OP_GO;

        if (op->obj->state[b->projection] == PROJ_ABSENT)
            next = resolve_absent(r);
        if (next != OP_GO)
            return next;
        if (proj == NULL)
            continue; /* damaged: unknown */
        if (!r->reading && st_op_read_heads(op, proj, b->block, 1, r->scan.buf)) {
            r->reading = true;
            return OP_WAIT;
        }
        if (r->reading && op->rc != 0)
            return OP_BAD;
        if (r->reading)
            st_op_read_heads_done(op, r->scan.buf);
        r->reading = false;
        resolve_judge(r, proj);
    }
    return OP_GO;
}

/* True if the mark pages have this mark, or a newer one, over every block. */
static bool mark_in_pages(const struct proj *proj, const struct pending_mark *m)
{
    const struct marks *marks = proj_marks(proj);
    uint64_t at = m->first;

    for (unsigned i = 0; i < marks->n && at < m->end; i++) {
        const struct mark_range *x = &marks->ranges[i];

        if (x->end <= at)
            continue;
        if (x->first > at || x->version < m->version)
            return false;
        at = x->end;
    }
    return at >= m->end;
}

static bool mark_in_heads(struct resolve_op *r, const struct proj *proj)
{
    for (unsigned i = 0; i < r->scan.n; i++) {
        uint64_t block = r->scan.at + i;
        struct record_header h;
        enum record_state state = st_op_inspect(
            &r->op, r->p, block, r->scan.buf + i * proj->geo.head_bytes, &h);

        if (marks_find(proj_marks(proj), block) < r->mark.version &&
            (state == RECORD_IS_DAMAGED || h.version < r->mark.version))
            return false;
    }
    return true;
}

enum { HEADS_LOOKED_AT = 4 * EXTENT_BLOCKS };

static enum st_op_next resolve_mark_in(struct resolve_op *r, struct proj *proj)
{
    if (!r->scanning && mark_in_pages(proj, &r->mark))
        return OP_GO;
    if (!r->scanning && r->mark.end - r->mark.first > HEADS_LOOKED_AT) {
        r->here = false;
        return OP_GO;
    }
    if (!r->scanning)
        r->scan = (struct head_scan){ .at = r->mark.first,
                                      .end = r->mark.end,
                                      .buf = r->scan.buf };
    r->scanning = true;
    for (;;) {
        enum st_op_next next = st_op_scan(&r->op, proj, &r->scan);

        if (next != OP_GO)
            return next;
        if (r->scan.n == 0)
            break;
        r->here &= mark_in_heads(r, proj);
    }
    r->scanning = false;
    return OP_GO;
}

/* Takes the next mark by version; pieces of one version as one. Returns false if there
 * is none. */
static bool resolve_next_mark(struct resolve_op *r)
{
    const struct pending_file *f = st_op_pending_file(&r->op);

    r->mark.version = 0;
    if (f == NULL)
        return false;
    LIST_FOREACH(node, &f->marks) {
        const struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->version <= r->marks_done)
            continue;
        if (r->mark.version == 0)
            r->mark = *m;
        else if (m->version == r->mark.version && m->end > r->mark.end)
            r->mark.end = m->end;
        else if (m->version == r->mark.version && m->first < r->mark.first)
            r->mark.first = m->first;
    }
    return r->mark.version != 0;
}

static void resolve_mark_end(struct resolve_op *r)
{
    struct pending_file *f = st_op_pending_file(&r->op);

    r->marks_done = r->mark.version;
    if (f == NULL || !r->here)
        return;
    pending_file_hold(f);
    LIST_FOREACH_SAFE(node, &f->marks) {
        struct pending_mark *m = container_of(node, struct pending_mark, link);

        if (m->version == r->mark.version)
            journal_index_remove_mark(journal_get_index(r->op.st->journal), f, m);
    }
    journal_index_put(journal_get_index(r->op.st->journal), f);
}

static enum st_op_next resolve_marks(struct st_op *op)
{
    struct resolve_op *r = (struct resolve_op *)op;

    for (;;) {
        if (r->mark.version == 0) {
            if (!resolve_next_mark(r))
                return OP_GO;
            r->p = 0;
            r->here = object_present(op->obj) != 0;
        }
        for (; r->p < CODEC_N_MAX; r->p++) {
            struct proj *proj = object_ready(op->obj, r->p);
            enum st_op_next next = OP_GO;

            if (op->obj->state[r->p] == PROJ_DAMAGED)
                r->here = false;
            if (proj != NULL)
                next = resolve_mark_in(r, proj);
            if (next != OP_GO)
                return next;
        }
        resolve_mark_end(r);
        r->mark.version = 0;
    }
}

/* Keeps what is pending of a file that cannot be read, though newer records may lie in
 * place. */
static void resolve_later(struct st_op *op)
{
    struct pending_file *f = st_op_pending_file(op);

    if (f != NULL)
        f->unresolved = true;
    st_op_end_internal(op, 0);
}

static void resolve_step(struct st_op *op)
{
    static enum st_op_next (*const steps[])(
        struct st_op *) = { resolve_enter, resolve_records, resolve_marks };
    enum st_op_next next = run(op, steps, 3);

    if (next == OP_GO)
        st_op_end_internal(op, 0);
    else if (next == OP_BAD && (op->rc == -EIO || op->rc == -EBADMSG))
        resolve_later(op);
    else if (next == OP_BAD)
        st_op_end_internal(op, op->rc);
}

static void resolve_free(struct st_op *op)
{
    struct resolve_op *r = (struct resolve_op *)op;

    free(r->blocks);
    free(r->scan.buf);
}

int storage_resolve(void *storage, struct pending_file *f,
                    void (*done)(void *arg, int rc), void *arg)
{
    struct resolve_op *r = (struct resolve_op *)st_op_new_internal(
        storage, f, sizeof(*r), resolve_step, resolve_free, done, arg);

    if (r == NULL)
        return -ENOMEM;
    r->scan.buf = malloc(heads_max());
    if (r->scan.buf == NULL) {
        st_op_free(&r->op);
        return -ENOMEM;
    }
    r->op.want = all_projections(&r->op.ref);
    r->op.exclusive = true;
    st_op_start(&r->op);
    return 0;
}
