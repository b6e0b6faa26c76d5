/*
 * st_remove.c - ST_REMOVE: removes all projections of a file, or an unfinished creation.
 *
 * In:     storage_handle_remove(). Thread: the storio loop.
 * Out:    struct disk, rpc_reply().
 * Keeps:  late requests cannot create a removed file again, but can create an unfinished
 *         one; of an unfinished file no byte that a sync may have covered is removed; of
 *         a corrupt one such bytes are, as no request can use them.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "storaged/ops/st_requests.h"

enum remove_state {
    REMOVE_ENTER,
    REMOVE_OPEN, /* unfinished creations: checks each projection */
    REMOVE_OPENED,
    REMOVE_READ,
    REMOVE_NAMES,
    REMOVE_NAMED,
    REMOVE_END,
};

struct remove_op {
    struct st_op op; /* must be first */
    enum remove_state state;
    bool unfinished, ruined;
    struct file_id *more; /* owned; further files */
    unsigned n_more, at;  /* `at`: number of the one being removed, 0: the first */
    uint32_t *failed, *elsewhere; /* numbers of files; in the allocation of `more` */
    unsigned n_failed, n_elsewhere;
    bool stays;   /* the file has more than an unfinished creation */
    bool had_any; /* removes bytes that a sync may have covered */
    unsigned p;   /* current projection; CODEC_N_MAX: the quarantined file */
    struct disk_file *file;
};

static enum st_op_next remove_enter(struct st_op *op)
{
    if (op->obj != NULL && op->obj->dead) { /* removed by a request that came first */
        st_op_unlock(op);
        object_put(op->obj);
        op->obj = NULL;
    }
    if (op->obj == NULL) {
        op->rc = object_get(&op->st->objects, &op->ref.id, &op->obj);
        if (op->rc != 0)
            return OP_BAD;
        if (!object_lock(op->obj, &op->wait, true))
            return OP_WAIT;
        op->held = OP_HOLDS_EXCLUSIVE;
    }
    return OP_GO;
}

/* ---- check for an unfinished creation ---- */

static bool is_in_use(const struct st_op *op)
{
    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        if (object_ready(op->obj, p) != NULL)
            return true;
    }
    return st_op_pending_file(op) != NULL;
}

static enum st_op_next name_open(struct remove_op *r)
{
    struct st_op *op = &r->op;

    assert(r->p <= CODEC_N_MAX && op->front != NULL);
    if (r->p == CODEC_N_MAX)
        projfile_path_quarantined(op->path, &op->ref.id);
    else
        projfile_path(op->path, &op->ref.id, r->p);
    op->dr = (struct disk_req){ .op = DISK_OPEN, .path = op->path };
    r->state = REMOVE_OPENED;
    st_op_submit(op);
    return OP_WAIT;
}

static enum st_op_next name_opened(struct remove_op *r)
{
    struct st_op *op = &r->op;

    r->state = REMOVE_OPEN;
    if (op->rc != 0) {
        r->stays |= op->rc != -ENOENT;
        r->p++;
        return OP_GO;
    }
    r->file = op->dr.file;
    memset(op->front, 0, PROJFILE_FRONT_BYTES);
    op->iov = (struct iovec){ .iov_base = op->front, .iov_len = PROJFILE_FRONT_BYTES };
    op->dr = (struct disk_req){ .op = DISK_READ,
                                .file = r->file,
                                .len = PROJFILE_FRONT_BYTES,
                                .iov = &op->iov,
                                .n_iov = 1 };
    r->state = REMOVE_READ;
    st_op_submit(op);
    return OP_WAIT;
}

/* True if the file was only begun. Without a power loss all written bytes are here, so
 * only an empty file was. */
static bool is_begun(const struct remove_op *r)
{
    const struct st_op *op = &r->op;

    return r->p < CODEC_N_MAX && projfile_front_is_empty(op->front) &&
           (op->dr.n_read == 0 || generations_lost_any(op->st->config.generations));
}

/* True if the file is corrupt; a quarantined one always is. A page that cannot be read
 * now may be readable later. */
static bool is_corrupt(const struct remove_op *r)
{
    const struct st_op *op = &r->op;

    return r->ruined && op->dr.n_unread == 0 &&
           (r->p == CODEC_N_MAX || projfile_front_is_broken(op->front));
}

static void name_judge(struct remove_op *r)
{
    struct st_op *op = &r->op;
    bool begun = op->rc == 0 && is_begun(r),
         corrupt = op->rc == 0 && !begun && is_corrupt(r);

    assert(r->file != NULL && r->p <= CODEC_N_MAX);
    r->stays |= !begun && !corrupt;
    r->had_any |= corrupt;
    disk_close(op->st->disk, r->file);
    r->p++;
    r->state = REMOVE_OPEN;
}

/* ---- life ---- */

static enum st_op_next names_go(struct remove_op *r)
{
    struct st_op *op = &r->op;

    assert(op->held == OP_HOLDS_EXCLUSIVE);
    if (r->had_any) /* unsynced records may be lost with it */
        generations_lost_bytes(op->st->config.generations);
    projfile_path_prefix(op->path, &op->ref.id);
    op->dr = (struct disk_req){
        .op = DISK_REMOVE,
        .path = op->path,
        .n_names = CODEC_N_MAX,
    };
    r->state = REMOVE_NAMED;
    st_op_submit(op);
    return OP_WAIT;
}

static enum st_op_next names_gone(struct remove_op *r)
{
    struct st_op *op = &r->op;

    assert(op->held == OP_HOLDS_EXCLUSIVE);
    object_kill(op->obj); /* after a failure, too: some may be removed */
    if (!r->unfinished)
        st_op_note_removed(op);
    if (st_op_pending_file(op) != NULL)
        journal_index_remove_all(journal_get_index(op->st->journal),
                                 st_op_pending_file(op));
    r->state = REMOVE_END;
    return op->rc == 0 || op->rc == -ENOENT ? OP_GO : OP_BAD;
}

static enum st_op_next remove_next(struct remove_op *r)
{
    struct st_op *op = &r->op;
    enum st_op_next next;

    switch (r->state) {
    case REMOVE_ENTER:
        next = remove_enter(op);
        if (next == OP_GO)
            r->state = r->unfinished ? REMOVE_OPEN : REMOVE_NAMES;
        r->stays = next == OP_GO && r->unfinished && is_in_use(op);
        return next;
    case REMOVE_OPEN:
        if (!r->stays && r->p <= CODEC_N_MAX)
            return name_open(r);
        if (r->stays && r->ruined)
            return st_op_bad(&r->op, -ROZO_EDAMAGED);
        r->state = r->stays ? REMOVE_END : REMOVE_NAMES;
        return OP_GO;
    case REMOVE_OPENED:
        return name_opened(r);
    case REMOVE_READ:
        name_judge(r);
        return OP_GO;
    case REMOVE_NAMES:
        return names_go(r);
    case REMOVE_NAMED:
        return names_gone(r);
    case REMOVE_END:
        break;
    }
    return OP_GO;
}

/* ---- further files ---- */

/* Starts with the next file of this loop. Returns false if there is none. */
static bool remove_more(struct remove_op *r)
{
    assert(r->at <= r->n_more && r->n_elsewhere <= r->at);
    while (r->at < r->n_more) {
        const struct file_id *id = &r->more[r->at++];

        if (!storage_owns(r->op.st, id)) {
            r->elsewhere[r->n_elsewhere++] = r->at;
            continue;
        }
        st_op_enter_again(&r->op);
        r->op.ref.id = *id;
        r->state = REMOVE_ENTER;
        return true;
    }
    return false;
}

/* Removes one file after the other. Only the failure of a single one fails the op. */
static enum st_op_next remove_files(struct st_op *op)
{
    struct remove_op *r = (struct remove_op *)op;
    enum st_op_next next;

    do {
        next = OP_GO;
        while (next == OP_GO && r->state != REMOVE_END)
            next = remove_next(r);
        if (next == OP_BAD && r->n_more > 0)
            r->failed[r->n_failed++] = r->at;
    } while (next != OP_WAIT && remove_more(r));
    return next == OP_BAD && r->n_more > 0 ? OP_GO : next;
}

static void remove_reply(struct st_op *op)
{
    struct remove_op *r = (struct remove_op *)op;
    Rozo__StRemoveResp resp = ROZO__ST_REMOVE_RESP__INIT;

    assert(r->n_failed + r->n_elsewhere <= r->n_more + 1);
    if (r->n_more == 0) {
        st_op_finish(op, ROZO__STATUS__OK);
        return;
    }
    resp.n_failed = r->n_failed;
    resp.failed = r->failed;
    resp.n_elsewhere = r->n_elsewhere;
    resp.elsewhere = r->elsewhere;
    st_op_finish_message(op, ROZO__STATUS__OK, &resp.base);
}

static void remove_free(struct st_op *op)
{
    free(((struct remove_op *)op)->more);
}

static const struct st_op_kind remove_kind = {
    .bytes = sizeof(struct remove_op),
    .free = remove_free,
    .done = remove_reply,
    .steps = { remove_files },
};

static int remove_parse_more(const Rozo__StRemoveReq *req, struct remove_op *r)
{
    size_t n = req->n_more;

    if (n >= REMOVE_FILES_MAX || (n > 0 && req->unfinished) ||
        (req->ruined && !req->unfinished))
        return -EBADMSG;
    for (size_t i = 0; i < n; i++) {
        if (req->more[i].len != FILE_ID_BYTES)
            return -EBADMSG;
    }
    if (n == 0)
        return 0;
    r->more = malloc(n * sizeof(*r->more) + 2 * (n + 1) * sizeof(*r->failed));
    if (r->more == NULL)
        return -ENOMEM;
    r->n_more = (unsigned)n;
    r->failed = (uint32_t *)(r->more + n);
    r->elsewhere = r->failed + n + 1;
    for (size_t i = 0; i < n; i++)
        file_id_get(req->more[i].data, &r->more[i]);
    return 0;
}

static int remove_parse(struct storage *st, struct rpc_call *call,
                        const Rozo__StRemoveReq *req, struct remove_op *r)
{
    uint32_t us = identity_storage_id(st->config.identity);
    int rc;

    if (req == NULL || req->file_id.len != FILE_ID_BYTES)
        return -EBADMSG;
    if (call->role != RPC_ROLE_NODE)
        return -EACCES;
    if (us == 0)
        return -ROZO_ENOT_ADMITTED;
    if (req->to_storage != us)
        return -ROZO_EWRONG_STORAGE;
    file_id_get(req->file_id.data, &r->op.ref.id);
    rc = storage_owns(st, &r->op.ref.id) ? remove_parse_more(req, r) : -EBADMSG;
    if (rc != 0)
        return rc;
    r->unfinished = req->unfinished;
    r->ruined = req->ruined;
    if (r->unfinished)
        r->op.front = malloc(PROJFILE_FRONT_BYTES);
    return r->unfinished && r->op.front == NULL ? -ENOMEM : 0;
}

void storage_handle_remove(struct storage *st, struct rpc_call *call)
{
    Rozo__StRemoveReq *req = rozo__st_remove_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, &remove_kind);

    if (op != NULL)
        st_op_start(op, remove_parse(st, call, req, (struct remove_op *)op));
    rozo__st_remove_req__free_unpacked(req, NULL);
}
