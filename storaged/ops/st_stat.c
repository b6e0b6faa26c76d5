/*
 * st_stat.c - ST_STAT: the projection files of a file here, and their sizes.
 *
 * In:     storage_handle_stat(). Thread: the storio loop.
 * Out:    struct disk, rpc_reply().
 */
#include <assert.h>
#include <errno.h>

#include "storaged/ops/st_requests.h"

struct stat_op {
    struct st_op op; /* must be first */
    unsigned p;
    bool asking;
    unsigned n;
    Rozo__StStatResp__Projection projections[CODEC_N_MAX];
    char paths[CODEC_N_MAX][PROJFILE_PATH_MAX];
};

static void stat_add(struct stat_op *s, uint64_t size, uint64_t allocated)
{
    Rozo__StStatResp__Projection *out = &s->projections[s->n];

    assert(s->n < CODEC_N_MAX && s->p < CODEC_N_MAX);
    rozo__st_stat_resp__projection__init(out);
    projfile_path(s->paths[s->n], &s->op.ref.id, s->p);
    out->projection = s->p;
    out->size = size;
    out->allocated = allocated;
    out->path = s->paths[s->n];
    s->n++;
}

static enum st_op_next stat_files(struct st_op *op)
{
    struct stat_op *s = (struct stat_op *)op;

    assert(op->held != OP_HOLDS_NOTHING);
    for (; s->p < CODEC_N_MAX; s->p++) {
        struct proj *proj = object_ready(op->obj, s->p);

        if (op->obj->state[s->p] == PROJ_DAMAGED)
            stat_add(s, 0, 0);
        if (proj == NULL)
            continue;
        if (!s->asking) {
            s->asking = true;
            st_op_disk(op, DISK_STAT, proj, 0, 0);
            return OP_WAIT;
        }
        s->asking = false;
        if (op->rc != 0)
            return OP_BAD;
        stat_add(s, op->dr.size, op->dr.allocated);
    }
    return OP_GO;
}

static void stat_reply(struct st_op *op)
{
    struct stat_op *s = (struct stat_op *)op;
    Rozo__StStatResp__Projection *all[CODEC_N_MAX];
    Rozo__StStatResp resp = ROZO__ST_STAT_RESP__INIT;

    for (unsigned i = 0; i < s->n; i++)
        all[i] = &s->projections[i];
    resp.n_projections = s->n;
    resp.projections = all;
    st_op_finish_message(op, ROZO__STATUS__OK, &resp.base);
}

static const struct st_op_kind stat_kind = {
    .bytes = sizeof(struct stat_op),
    .done = stat_reply,
    .steps = { st_op_enter_present, stat_files },
};

static int stat_parse(struct st_op *op, const Rozo__StStatReq *req)
{
    int rc = st_op_ref_check(op->st, op->call, req->ref, req->to_storage, CAPABILITY_READ,
                             &op->ref);

    if (rc != 0)
        return rc;
    op->want = file_ref_projections(&op->ref);
    if (req->look_again && op->call->role == RPC_ROLE_NODE)
        op->access = OP_LOOKS_AGAIN;
    return 0;
}

void storage_handle_stat(struct storage *st, struct rpc_call *call)
{
    Rozo__StStatReq *req = rozo__st_stat_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, &stat_kind);

    if (op != NULL)
        st_op_start(op, req == NULL ? -EBADMSG : stat_parse(op, req));
    rozo__st_stat_req__free_unpacked(req, NULL);
}
