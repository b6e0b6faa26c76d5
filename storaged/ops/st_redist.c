/*
 * st_redist.c - ST_REDIST: changes the distribution of a file in its headers.
 *
 * In:     storage_handle_redist(). Thread: the storio loop.
 * Out:    struct disk, object.h.
 * Keeps:  whenever the power fails, one of the two header pages is valid; a header never
 *         gets an earlier generation; everything in a header but the storages stays; a
 *         storage that gets a place answers nothing from what it had of the file before.
 * Ask:    projfile.h for the bytes.
 *
 * Order: sync -> leftovers (journal records, then names, stable) -> all second headers ->
 * sync -> all first headers -> sync -> the requested partial files -> sync.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "storaged/ops/st_requests.h"

struct redist_op {
    struct st_op op; /* must be first */
    uint32_t make_partial;
    uint32_t todo; /* projections whose header will be changed */
    uint32_t left; /* projections of an earlier generation, which will be removed */
    unsigned p;
    bool reading, writing, paging, dropped, leaves;
    enum { LEFTOVER_CLOSE, LEFTOVER_REMOVED, LEFTOVER_SYNCED } removing;
    enum { REDIST_QUARANTINE, REDIST_CREATE, REDIST_PAGE } making;
    uint8_t *page; /* owned: the page being written */
    struct projfile_header headers[CODEC_N_MAX];
};

static bool is_listed(const struct file_ref *ref, const struct proj *proj)
{
    return proj->n_homes == ref->n_storages &&
           memcmp(proj->homes, ref->storages, proj->n_homes * sizeof(proj->homes[0])) ==
               0;
}

/* True if proj dates from an earlier time as a candidate, or from a change that never
 * took effect. The file may have changed since, so "never written" means nothing here. */
static bool is_leftover(const struct redist_op *r, const struct proj *proj)
{
    return (r->make_partial != 0 || r->leaves) &&
           proj->dist_generation < r->op.ref.dist_generation;
}

/* Selects the headers to change. A generation that is here already is written again:
 * its sync may have failed. */
static enum st_op_next redist_enter(struct st_op *op)
{
    struct redist_op *r = (struct redist_op *)op;
    enum st_op_next next = st_op_enter(op);
    bool later = false;

    if (next != OP_GO)
        return next;
    if (object_damaged(op->obj) != 0)
        return st_op_bad(op, -ROZO_EDAMAGED); /* a damaged header cannot be changed */
    r->todo = r->left = 0;
    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        const struct proj *proj = object_ready(op->obj, p);

        if (proj == NULL)
            continue;
        if (is_leftover(r, proj)) {
            r->left |= UINT32_C(1) << p;
            continue;
        }
        if (r->leaves)
            continue; /* the storage has got a place since */
        if (proj->dist_generation == op->ref.dist_generation
                ? !is_listed(&op->ref, proj)
                : proj->n_homes > op->ref.n_storages)
            return st_op_bad(op, -EBADMSG);
        later |= proj->dist_generation > op->ref.dist_generation;
        r->todo |= UINT32_C(1) << p;
    }
    if (later)
        r->todo = r->left = r->make_partial = 0;
    return OP_GO;
}

/* Drops the journal records of the leftovers, stable, before their files go: once a new
 * file has the name, a record that is found again would count as one of it. */
static enum st_op_next redist_drop(struct st_op *op)
{
    struct redist_op *r = (struct redist_op *)op;
    const struct pending_drop d = {
        .end = UINT64_MAX,
        .keep = UINT64_MAX,
        .projections = r->left,
        .epoch = r->todo == 0 ? UINT32_MAX : 0, /* marks are for all projections here */
    };
    enum st_op_next next;

    assert((r->left & r->todo) == 0);
    if (r->left == 0)
        return OP_GO;
    if (!r->dropped) {
        next = st_op_append_drop(op, &d, op->front);
        if (next != OP_GO)
            return next;
        r->dropped = true;
        st_op_wal_sync_start(op);
    }
    return st_op_wal_sync_end(op);
}

/* Removes the file of leftover p and makes that stable. */
static enum st_op_next leftover_remove(struct redist_op *r, unsigned p)
{
    struct st_op *op = &r->op;

    assert((r->left >> p & 1) != 0);
    if (r->removing != LEFTOVER_CLOSE && op->rc != 0 && op->rc != -ENOENT)
        return OP_BAD; /* the next request looks it up again */
    projfile_path(op->path, &op->obj->id, p);
    switch (r->removing) {
    case LEFTOVER_CLOSE:
        log_info("%s: of an earlier distribution of the file, so it is removed",
                 op->path);
        object_drop_file(op->obj, p, PROJ_UNKNOWN);
        op->dr = (struct disk_req){ .op = DISK_REMOVE, .path = op->path };
        r->removing = LEFTOVER_REMOVED;
        break;
    case LEFTOVER_REMOVED:
        op->dr = (struct disk_req){ .op = DISK_SYNC_NAME, .path = op->path };
        r->removing = LEFTOVER_SYNCED;
        break;
    case LEFTOVER_SYNCED:
        op->obj->state[p] = PROJ_ABSENT;
        r->removing = LEFTOVER_CLOSE;
        return OP_GO;
    }
    st_op_submit(op);
    return OP_WAIT;
}

static enum st_op_next redist_remove(struct st_op *op)
{
    struct redist_op *r = (struct redist_op *)op;

    while (r->left != 0 && (op->syncing || op->obj->syncing)) {
        enum st_op_next next = st_op_sync_all(op);

        if (next != OP_GO)
            return next;
    }
    if (r->left != 0 && op->obj->n_sends > 0)
        return st_op_bad(op, -EBUSY); /* an answer is being sent from these files */
    for (; r->p < CODEC_N_MAX; r->p++) {
        enum st_op_next next =
            (r->left >> r->p & 1) == 0 ? OP_GO : leftover_remove(r, r->p);

        if (next != OP_GO)
            return next;
    }
    r->p = 0;
    return OP_GO;
}

/* Reads the header of projection p from the disk and changes it. */
static int header_take(struct redist_op *r, unsigned p)
{
    struct st_op *op = &r->op;
    struct projfile_header *h = &r->headers[p];
    int rc = op->rc;

    if (rc != 0)
        return rc;
    memset(op->front + op->dr.n_read, 0, PROJFILE_FRONT_BYTES - op->dr.n_read);
    rc = projfile_front_get(op->front, h);
    if (rc != 0 || h->projection != p || file_id_hash(&h->id) != op->obj->hash)
        return -ROZO_EDAMAGED; /* corrupt since the file was opened */
    h->prepared = h->prepared && op->create.what == CREATES_PREPARED;
    h->n_storages = op->ref.n_storages;
    h->dist_generation = op->ref.dist_generation;
    memset(h->storages, 0, sizeof(h->storages));
    memcpy(h->storages, op->ref.storages, h->n_storages * sizeof(h->storages[0]));
    return 0;
}

static enum st_op_next header_write(struct redist_op *r, unsigned p, uint64_t at)
{
    struct st_op *op = &r->op;

    projfile_header_put(r->page, &r->headers[p]);
    op->iov = (struct iovec){ .iov_base = r->page, .iov_len = PROJFILE_PAGE_BYTES };
    r->writing = true;
    st_op_write(op, op->obj->proj[p], at, &op->iov, 1, PROJFILE_PAGE_BYTES);
    return OP_WAIT;
}

static enum st_op_next copy_write(struct redist_op *r, unsigned p)
{
    struct st_op *op = &r->op;

    if (!r->reading) {
        r->reading = true;
        st_op_read(op, op->obj->proj[p], 0, op->front, PROJFILE_FRONT_BYTES);
        return OP_WAIT;
    }
    r->reading = false;
    op->rc = header_take(r, p);
    return op->rc == 0 ? header_write(r, p, PROJFILE_COPY_AT) : OP_BAD;
}

/* Writes the second or the first headers of all selected projections. */
static enum st_op_next headers_write(struct redist_op *r)
{
    struct st_op *op = &r->op;

    for (; r->p < CODEC_N_MAX; r->p++) {
        if ((r->todo >> r->p & 1) == 0)
            continue;
        if (!r->writing)
            return r->paging ? header_write(r, r->p, 0) : copy_write(r, r->p);
        r->writing = false;
        if (op->rc != 0)
            return OP_BAD;
    }
    r->p = 0;
    return OP_GO;
}

static enum st_op_next redist_copies(struct st_op *op)
{
    return headers_write((struct redist_op *)op);
}

/* Takes the new distribution: the second headers are stable, so it holds whatever
 * happens to the first. */
static enum st_op_next redist_keep(struct st_op *op)
{
    struct redist_op *r = (struct redist_op *)op;

    assert(op->held == OP_HOLDS_EXCLUSIVE && !r->paging);
    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        struct proj *proj = (r->todo >> p & 1) == 0 ? NULL : object_ready(op->obj, p);

        if (proj == NULL)
            continue;
        proj->n_homes = op->ref.n_storages;
        memcpy(proj->homes, r->headers[p].storages, sizeof(proj->homes));
        proj->dist_generation = op->ref.dist_generation;
    }
    r->paging = true;
    return OP_GO;
}

static enum st_op_next redist_pages(struct st_op *op)
{
    return headers_write((struct redist_op *)op);
}

static enum st_op_next partial_make(struct redist_op *r, unsigned p)
{
    struct st_op *op = &r->op;
    enum st_op_next next = OP_GO;

    if (r->making == REDIST_QUARANTINE) {
        next = st_op_quarantine(op, p, 0);
        if (next == OP_GO)
            r->making = REDIST_CREATE;
    }
    if (next == OP_GO && r->making == REDIST_CREATE) {
        next = st_op_create(op, p, 0, NULL);
        if (next == OP_GO)
            r->making = REDIST_PAGE;
    }
    if (next == OP_GO && r->making == REDIST_PAGE) {
        next = st_op_first_page(op, p);
        if (next == OP_GO)
            r->making = REDIST_QUARANTINE;
    }
    return next;
}

/* Creates partial files, as in place of a lost disk: blocks that were never written
 * there are unknown. */
static enum st_op_next redist_make(struct st_op *op)
{
    struct redist_op *r = (struct redist_op *)op;

    for (; r->p < CODEC_N_MAX; r->p++) {
        enum st_op_next next;

        if ((r->make_partial >> r->p & 1) == 0 ||
            (r->making == REDIST_QUARANTINE && object_ready(op->obj, r->p) != NULL))
            continue;
        next = partial_make(r, r->p);
        if (next != OP_GO)
            return next;
    }
    return OP_GO;
}

static void redist_free(struct st_op *op)
{
    free(((struct redist_op *)op)->page);
}

/* Syncs first, so that unsynced bytes are never all there is beside a second header, see
 * look_empty(). */
static const struct st_op_kind redist_kind = {
    .bytes = sizeof(struct redist_op),
    .free = redist_free,
    .steps = { redist_enter, st_op_sync_all, redist_drop, redist_remove, redist_copies,
               st_op_sync_all, redist_keep, redist_pages, st_op_sync_all, redist_make,
               st_op_sync_all },
};

static int redist_parse(struct redist_op *r, const Rozo__StRedistReq *req)
{
    struct st_op *op = &r->op;
    int rc;

    if (req == NULL)
        return -EBADMSG;
    if (op->call->role != RPC_ROLE_NODE)
        return -EACCES;
    rc = req->leave
             ? st_op_ref_check_elsewhere(op->st, req->ref, req->to_storage, &op->ref)
             : st_op_ref_check(op->st, op->call, req->ref, req->to_storage,
                               CAPABILITY_WRITE, &op->ref);
    if (rc != 0)
        return rc;
    op->want = (UINT32_C(1) << codec_n(op->ref.codec)) - 1;
    if (op->ref.dist_generation == 0 || (req->leave && req->make_partial != 0) ||
        (req->make_partial & ~op->want) != 0 || op->call->payload_len != 0)
        return -EBADMSG;
    r->make_partial = req->make_partial;
    r->leaves = req->leave;
    op->access = OP_EXCLUSIVE;
    op->any_homes = true;
    op->create.what = req->prepare ? CREATES_PREPARED : CREATES_PARTIAL;
    op->front = malloc(PROJFILE_FRONT_BYTES);
    r->page = malloc(PROJFILE_PAGE_BYTES);
    return op->front == NULL || r->page == NULL ? -ENOMEM : 0;
}

void storage_handle_redist(struct storage *st, struct rpc_call *call)
{
    Rozo__StRedistReq *req = rozo__st_redist_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, &redist_kind);

    if (op != NULL)
        st_op_start(op, redist_parse((struct redist_op *)op, req));
    rozo__st_redist_req__free_unpacked(req, NULL);
}
