/*
 * st_read.c - ST_READ: heads and bodies of a run of blocks.
 *
 * In:     storage_handle_read(). Thread: the storio loop.
 * Out:    struct disk, rpc_reply() with file segments.
 * Keeps:  pending records are read as if they lay in place, and the newest version that
 *         the request allows is answered; hole, data and damaged are never confused; a
 *         hole under a mark carries the mark's version; bodies that the file is too short
 *         to hold are not announced.
 * Yours:  READ_COPY_MAX, COPIES_MAX. Short answers are copied under the lock, and so are
 *         answers to nodes: healing reads cold data, and copying costs less than fetching
 *         pages and sending them. Longer answers are sent by sendfile after the lock is
 *         released, so an overwrite may come between head and body: the client's crc
 *         check notices, and it asks again.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "storaged/ops/st_requests.h"

struct st_read_block {
    uint16_t body_len; /* bytes; 0: no body in the answer */
    uint64_t body_at;  /* bytes, in the projection file or in the file of `entry` */
    struct journal_frame *entry; /* referenced; NULL: the body lies in place */
};

/* The heads of one projection, prepared for the answer. */
struct read_heads {
    unsigned projection;
    unsigned n_records; /* records with data */
    uint64_t newest;
    size_t head_bytes;
    struct st_read_block *blocks; /* owned, with heads; NULL: none */
    uint8_t *heads;
};

struct st_read_op {
    struct st_op op;     /* must be first */
    unsigned projection; /* projection, or PROJECTION_ANY */
    uint64_t first;
    unsigned n;
    bool heads_only;
    uint64_t at_most; /* newest version that is wanted */
    bool reading;
    bool copying;       /* bodies are sent from memory: read_copy() */
    unsigned candidate; /* projection whose heads are being read */
    unsigned at;        /* next block of the run */
    bool found;
    struct read_heads best, next;
    size_t bodies_len;
    uint8_t *copy; /* owned; bodies of a short answer */
    size_t copied;
    size_t run_len; /* bytes of the body read under way */
    unsigned n_segs;
    struct rpc_seg *segs; /* owned; room for n + 1 */
};

/* ---- heads ---- */

static void heads_let_go(struct st_read_op *r, struct read_heads *rh)
{
    for (unsigned i = 0; rh->blocks != NULL && i < r->n; i++) {
        if (rh->blocks[i].entry != NULL)
            journal_index_put_frame(journal_get_index(r->op.st->journal),
                                    rh->blocks[i].entry);
    }
    free(rh->blocks);
    rh->blocks = NULL;
}

/* The answer for one block. */
struct st_read_answer {
    enum record_state state;
    uint64_t version;
    size_t body_len; /* bytes; 0: no data */
    uint64_t body_at;
    bool torn;       /* damaged, with a head but without a body */
    uint64_t marked; /* damaged: version of a pending mark that may be newer; 0: none */
};

/* True for an unknown block of a file that replaces one which was never synced: a
 * record here was never called stable. */
static bool is_lost_unsynced(const struct proj *proj, uint64_t block, const uint8_t *head)
{
    return proj->partial && proj->unsynced && record_header_is_zero(head) &&
           marks_find(proj_written(proj), block) == 0;
}

/* Judges a block in place: a record, a hole made by a mark, or damage. */
static void judge_place(struct st_read_op *r, struct read_heads *rh, unsigned i,
                        struct st_read_answer *a)
{
    struct proj *proj = object_ready(r->op.obj, rh->projection);
    uint64_t block = r->first + i, mark = marks_find(proj_marks(proj), block);
    struct record_header h;

    a->state =
        st_op_inspect(&r->op, rh->projection, block, rh->heads + i * rh->head_bytes, &h);
    a->body_len = 0;
    if (a->state == RECORD_IS_DAMAGED) {
        a->torn = is_lost_unsynced(proj, block, rh->heads + i * rh->head_bytes);
        return;
    }
    a->version = h.version;
    if (h.version < mark) {
        a->state = RECORD_IS_HOLE;
        a->version = mark;
    } else if (a->state == RECORD_IS_DATA) {
        a->body_len = codec_row_bytes(r->op.ref.codec, h.user_bytes);
        a->body_at = geometry_body_at(&proj->geo, block);
        if (a->body_at + a->body_len > proj->size && a->version <= r->at_most) {
            a->state = RECORD_IS_DAMAGED; /* the file was cut short */
            a->torn = true;
        }
    }
    if (a->state == RECORD_IS_DAMAGED)
        a->body_len = 0;
    if (a->state == RECORD_IS_DAMAGED || a->version <= r->at_most)
        return;
    /* A newer record than wanted: below it is a hole, or a record that its commit
     * removed. */
    a->state = proj->partial && (mark == 0 || mark > r->at_most) ? RECORD_IS_DAMAGED
                                                                 : RECORD_IS_HOLE;
    a->version = mark <= r->at_most ? mark : 0;
    a->torn = a->state == RECORD_IS_DAMAGED && proj->unsynced;
    a->body_len = 0;
}

/* Takes a pending mark if it is newer than the block in place. */
static void judge_mark(struct st_read_op *r, struct read_heads *rh,
                       const struct pending_file *f, unsigned i, struct st_read_answer *a)
{
    struct proj *proj = object_ready(r->op.obj, rh->projection);
    const struct pending_mark *m = pending_file_mark_at(f, r->first + i, r->at_most);

    if (m != NULL && a->state == RECORD_IS_DAMAGED &&
        !proj_is_under(proj, r->first + i, rh->heads + i * rh->head_bytes, m)) {
        a->marked = a->torn ? 0 : m->version;
        return;
    }
    if (m == NULL || (a->state != RECORD_IS_DAMAGED && a->version >= m->version))
        return;
    *a = (struct st_read_answer){ .state = RECORD_IS_HOLE, .version = m->version };
}

/* Takes a pending record, which is newer than what it replaces. */
static bool judge_record(struct st_read_op *r, struct read_heads *rh,
                         const struct pending_file *f, unsigned i,
                         struct st_read_answer *a)
{
    struct pending_record *p =
        journal_index_at_most(journal_get_index(r->op.st->journal), f, rh->projection,
                              r->first + i, r->at_most);

    if (p == NULL || (a->state != RECORD_IS_DAMAGED && p->version < a->version) ||
        p->version < pending_file_mark_over(f, r->first + i, r->at_most))
        return false;
    if (p->damaged) {
        *a = (struct st_read_answer){ .state = RECORD_IS_DAMAGED, .version = p->version };
        return true;
    }
    memcpy(rh->heads + i * rh->head_bytes, p->head, rh->head_bytes);
    *a = (struct st_read_answer){ .state =
                                      p->body_len > 0 ? RECORD_IS_DATA : RECORD_IS_HOLE,
                                  .version = p->version,
                                  .body_len = p->body_len,
                                  .body_at = p->entry->place.offset + p->body_at };
    if (p->body_len > 0) {
        rh->blocks[i].entry = p->entry;
        p->entry->n_refs++;
    }
    return true;
}

/* Puts the head of a damaged block. A node hears of a mark that is pending over it: with
 * the damage alone nobody would ever commit or drop the mark. */
static void read_damaged_put(struct st_read_op *r, struct read_heads *rh, unsigned i,
                             const struct st_read_answer *a)
{
    uint8_t *p = rh->heads + i * rh->head_bytes;
    bool is_marked = a->marked != 0 && r->op.call->role == RPC_ROLE_NODE;

    damaged_head_put(p, r->op.obj->hash, rh->projection, r->first + i,
                     is_marked ? a->marked : a->version, a->torn);
    if (is_marked)
        p[6] |= RECORD_MARKED;
}

/* Turns the head of block i on disk into the head of the answer. */
static void head_judge(struct st_read_op *r, struct read_heads *rh,
                       const struct pending_file *f, unsigned i)
{
    uint8_t *p = rh->heads + i * rh->head_bytes;
    uint64_t block = r->first + i;
    uint32_t hash = r->op.obj->hash;
    struct st_read_answer a = { .version = 0 };

    assert(i < r->n);
    judge_place(r, rh, i, &a);
    if (f != NULL) {
        judge_mark(r, rh, f, i, &a);
        judge_record(r, rh, f, i, &a);
    }
    rh->blocks[i].body_len = (uint16_t)a.body_len;
    rh->blocks[i].body_at = a.body_at;
    if (a.body_len > 0) {
        rh->n_records++;
    } else {
        memset(p, 0, rh->head_bytes);
        if (a.state == RECORD_IS_DAMAGED)
            read_damaged_put(r, rh, i, &a);
        else if (a.version != 0)
            hole_head_put(p, hash, rh->projection, block, a.version);
    }
    if (a.state != RECORD_IS_DAMAGED && a.version > rh->newest)
        rh->newest = a.version;
}

static int heads_begin(struct st_read_op *r, unsigned projection)
{
    struct read_heads *rh = &r->next;
    size_t head_bytes = object_ready(r->op.obj, projection)->geo.head_bytes;

    assert(projection < CODEC_N_MAX && r->n > 0);
    heads_let_go(r, rh);
    *rh = (struct read_heads){
        .projection = projection,
        .head_bytes = head_bytes,
        .blocks = calloc(r->n, sizeof(rh->blocks[0]) + head_bytes),
    };
    if (rh->blocks == NULL)
        return -ENOMEM;
    rh->heads = (uint8_t *)(rh->blocks + r->n);
    r->at = 0;
    return 0;
}

/* Judges all heads of r->next and keeps it if it is better than r->best. */
static void heads_end(struct st_read_op *r)
{
    struct read_heads *best = &r->best, *next = &r->next;
    const struct pending_file *f = st_op_pending_file(&r->op);

    assert(next->blocks != NULL && r->at == r->n);
    for (unsigned i = 0; i < r->n; i++)
        head_judge(r, next, f, i);
    if (r->found &&
        (next->n_records < best->n_records ||
         (next->n_records == best->n_records && next->newest <= best->newest)))
        return;
    r->found = true;
    heads_let_go(r, best);
    *best = *next;
    memset(next, 0, sizeof(*next)); /* moved to best */
}

/* ---- life: each step is called until it returns OP_GO, in this order ---- */

static bool is_wanted(const struct st_read_op *r, unsigned p)
{
    return object_ready(r->op.obj, p) != NULL &&
           (r->projection == PROJECTION_ANY || r->projection == p);
}

static enum st_op_next read_enter(struct st_op *op)
{
    struct st_read_op *r = (struct st_read_op *)op;
    enum st_op_next next = st_op_enter(op);
    uint32_t present, wanted;

    if (next != OP_GO)
        return next;
    present = object_present(op->obj);
    wanted = r->projection == PROJECTION_ANY ? present : present & 1u << r->projection;
    if (wanted == 0)
        return st_op_bad(op, st_op_no_file(op));
    for (unsigned p = 0; p < CODEC_N_MAX; p++) {
        if (is_wanted(r, p))
            return OP_GO;
    }
    return st_op_bad(op, -ROZO_EDAMAGED);
}

static enum st_op_next read_heads(struct st_op *op)
{
    struct st_read_op *r = (struct st_read_op *)op;

    for (; r->candidate < CODEC_N_MAX; r->candidate++) {
        struct proj *proj = object_ready(op->obj, r->candidate);

        if (!is_wanted(r, r->candidate))
            continue;
        if (!r->reading && (op->rc = heads_begin(r, r->candidate)) != 0)
            return OP_BAD;
        while (r->at < r->n) {
            unsigned n = extent_part(r->first + r->at, r->first + r->n);
            uint8_t *buf = r->next.heads + r->at * r->next.head_bytes;

            if (!r->reading && st_op_read_heads(op, proj, r->first + r->at, n, buf)) {
                r->reading = true;
                return OP_WAIT;
            }
            if (r->reading && op->rc != 0)
                return OP_BAD;
            if (r->reading)
                st_op_read_heads_done(op, buf);
            r->reading = false;
            r->at += n;
        }
        heads_end(r);
    }
    assert(r->found);
    r->at = 0;
    for (unsigned i = 0; i < r->n && !r->heads_only; i++)
        r->bodies_len += r->best.blocks[i].body_len;
    return OP_GO;
}

/* Finds the next bodies without a gap: [from, to) of the run, len bytes. Returns false
 * if there are none. */
static bool next_run(struct st_read_op *r, unsigned *from, unsigned *to, size_t *len)
{
    const struct st_read_block *b = r->best.blocks;
    unsigned i = r->at;

    assert(r->at <= r->n);
    while (i < r->n && b[i].body_len == 0)
        i++;
    if (i == r->n || r->heads_only)
        return false;
    *from = i;
    *len = 0;
    do {
        *len += b[i++].body_len;
    } while (i < r->n && b[i].body_len > 0 && b[i].entry == b[*from].entry &&
             b[i].body_at == b[*from].body_at + *len);
    *to = r->at = i;
    return true;
}

/* Returns the file that has the body of block i. */
static struct disk_file *body_file(const struct st_read_op *r, unsigned i)
{
    const struct journal_frame *entry = r->best.blocks[i].entry;

    return entry != NULL ? entry->place.file
                         : object_ready(r->op.obj, r->best.projection)->file;
}

/* True if an answer to a node may be copied. */
static bool may_copy(const struct st_read_op *r)
{
    return r->op.call->role == RPC_ROLE_NODE &&
           r->op.st->copies_bytes + r->bodies_len <= COPIES_MAX;
}

static bool copy_alloc(struct st_read_op *r)
{
    struct storage *st = r->op.st;

    assert(r->copy == NULL && r->bodies_len > 0);
    r->copy = bufpool_get(&st->copies, r->bodies_len);
    if (r->copy != NULL)
        st->copies_bytes += r->bodies_len;
    return r->copy != NULL;
}

/* Reads the bodies of a short answer into memory. */
static enum st_op_next read_copy(struct st_op *op)
{
    struct st_read_op *r = (struct st_read_op *)op;
    unsigned from, to;

    assert(op->held != OP_HOLDS_NOTHING && r->copied <= r->bodies_len);
    if (r->bodies_len == 0 ||
        (r->bodies_len > READ_COPY_MAX && !r->copying && !may_copy(r)))
        return OP_GO;
    r->copying = true;
    if (r->copy == NULL && !copy_alloc(r))
        return st_op_bad(op, -ENOMEM);
    if (r->reading) {
        if (op->rc != 0)
            return OP_BAD;
        if (op->dr.n_read != r->run_len)
            return st_op_bad(op, -EIO); /* the file was cut short meanwhile */
        r->copied += r->run_len;
    }
    r->reading = next_run(r, &from, &to, &r->run_len);
    if (!r->reading)
        return OP_GO;
    op->iov = (struct iovec){ .iov_base = r->copy + r->copied, .iov_len = r->run_len };
    op->dr = (struct disk_req){ .op = DISK_READ,
                                .file = body_file(r, from),
                                .offset = r->best.blocks[from].body_at,
                                .len = r->run_len,
                                .iov = &op->iov,
                                .n_iov = 1 };
    st_op_submit(op);
    return OP_WAIT;
}

/* Loads a long answer into the page cache before the loop sends it, extent by extent,
 * and checks that all of it is there, whatever happened to the file. */
static enum st_op_next read_warm(struct st_op *op)
{
    struct st_read_op *r = (struct st_read_op *)op;
    struct proj *proj = object_ready(op->obj, r->best.projection);
    const struct st_read_block *b = r->best.blocks;
    unsigned from, to;

    assert(op->held != OP_HOLDS_NOTHING && r->at <= r->n);
    if (r->copying && r->copied < r->bodies_len)
        return read_copy(op);
    if (r->bodies_len == 0 || r->copying)
        return OP_GO;
    if (r->reading && op->rc == -EIO) { /* unreadable pages: send it from memory */
        r->copying = true;
        r->reading = false;
        r->at = 0;
        return read_copy(op);
    }
    if (r->reading && op->rc != 0)
        return OP_BAD;
    r->reading = false;
    while (r->at < r->n && b[r->at].body_len == 0)
        r->at++;
    if (r->at >= r->n)
        return OP_GO;
    from = r->at;
    r->reading = true;
    if (b[from].entry != NULL) { /* a recent write: load it run by run */
        size_t len;

        next_run(r, &from, &to, &len);
        op->dr = (struct disk_req){ .op = DISK_WARM,
                                    .file = body_file(r, from),
                                    .offset = b[from].body_at,
                                    .len = len };
        st_op_submit(op);
        return OP_WAIT;
    }
    to = from + extent_part(r->first + from, r->first + r->n);
    for (unsigned i = from; i < to; i++) {
        if (b[i].entry != NULL)
            to = i;
    }
    r->at = to;
    while (b[to - 1].body_len == 0)
        to--;
    st_op_disk(op, DISK_WARM, proj, b[from].body_at,
               b[to - 1].body_at + b[to - 1].body_len - b[from].body_at);
    return OP_WAIT;
}

static void on_read_sent(void *arg)
{
    struct st_read_op *r = arg;

    assert(r->op.obj->n_sends > 0);
    r->op.obj->n_sends--;
    st_op_free(&r->op);
}

static void read_segs(struct st_read_op *r)
{
    unsigned from, to;
    size_t len;

    assert(r->n_segs == 0);
    r->segs[r->n_segs++] = (struct rpc_seg){ .base = r->best.heads,
                                             .fd = -1,
                                             .len = r->n * r->best.head_bytes };
    if (r->copy != NULL) {
        r->segs[r->n_segs++] =
            (struct rpc_seg){ .base = r->copy, .fd = -1, .len = r->bodies_len };
        return;
    }
    r->at = 0;
    while (next_run(r, &from, &to, &len)) {
        r->segs[r->n_segs++] = (struct rpc_seg){
            .fd = disk_fd(r->op.st->disk, body_file(r, from)),
            .offset = (off_t)r->best.blocks[from].body_at,
            .len = len,
        };
    }
}

static void read_reply(struct st_op *op)
{
    struct st_read_op *r = (struct st_read_op *)op;
    Rozo__StReadResp resp = ROZO__ST_READ_RESP__INIT;
    struct rpc_call *call = r->op.call;
    uint8_t msg[32];
    size_t len;

    assert(op->held != OP_HOLDS_NOTHING && r->found);
    resp.projection = r->best.projection;
    resp.present = object_present(r->op.obj);
    resp.may_be_torn = generations_lost_any(r->op.st->config.generations);
    resp.doubt = identity_is_in_doubt(r->op.st->config.identity);
    resp.serves_clients = call->role == RPC_ROLE_NODE && storage_serves_clients(r->op.st);
    len = rozo__st_read_resp__get_packed_size(&resp);
    assert(len <= sizeof(msg));
    rozo__st_read_resp__pack(&resp, msg);
    read_segs(r);
    r->op.obj->n_sends++;
    st_op_sending(&r->op);
    rpc_reply(call, ROZO__STATUS__OK, msg, len, r->segs, r->n_segs, on_read_sent, r);
}

static void unsynced_reply(struct st_op *op)
{
    Rozo__StReadResp resp = ROZO__ST_READ_RESP__INIT;

    resp.may_be_torn = resp.unsynced = true;
    st_op_finish_message(op, ROZO__STATUS__DAMAGED, &resp.base);
}

static void read_failed(struct st_op *op)
{
    if (op->rc == -ROZO_EDAMAGED && st_op_was_never_synced(op))
        unsynced_reply(op);
    else
        st_op_fail(op, op->rc);
}

static void read_free(struct st_op *op)
{
    struct st_read_op *r = (struct st_read_op *)op;

    assert(r->copy == NULL || op->st->copies_bytes >= r->bodies_len);
    heads_let_go(r, &r->best);
    heads_let_go(r, &r->next);
    if (r->copy != NULL)
        op->st->copies_bytes -= r->bodies_len;
    bufpool_put(&op->st->copies, r->copy, r->bodies_len == 0 ? 1 : r->bodies_len);
    free(r->segs);
}

static const struct st_op_kind read_kind = {
    .bytes = sizeof(struct st_read_op),
    .free = read_free,
    .done = read_reply,
    .failed = read_failed,
    .steps = { read_enter, read_heads, read_copy, read_warm },
};

static int read_parse(struct st_read_op *r, const Rozo__StReadReq *req)
{
    unsigned n;
    int rc = st_op_ref_check(r->op.st, r->op.call, req->ref, req->to_storage,
                             CAPABILITY_READ, &r->op.ref);

    if (rc != 0)
        return rc;
    n = codec_n(r->op.ref.codec);
    if (req->projection >= n && req->projection != PROJECTION_ANY)
        return -EBADMSG;
    if (req->n_blocks == 0 || req->n_blocks > BLOCKS_PER_REQUEST_MAX)
        return -EBADMSG;
    if (req->first_block > PROJFILE_BLOCKS_MAX - req->n_blocks ||
        r->op.call->payload_len != 0)
        return -EBADMSG;
    r->projection = req->projection;
    r->first = req->first_block;
    r->n = req->n_blocks;
    r->heads_only = req->heads_only;
    r->at_most = req->at_most == 0 ? UINT64_MAX : req->at_most;
    r->op.want = (UINT32_C(1) << n) - 1;
    r->segs = malloc((r->n + 1) * sizeof(r->segs[0]));
    return r->segs == NULL ? -ENOMEM : 0;
}

void storage_handle_read(struct storage *st, struct rpc_call *call)
{
    Rozo__StReadReq *req = rozo__st_read_req__unpack(NULL, call->msg_len, call->msg);
    struct st_op *op = st_op_new(st, call, &read_kind);

    if (op != NULL)
        st_op_start(op,
                    req == NULL ? -EBADMSG : read_parse((struct st_read_op *)op, req));
    rozo__st_read_req__free_unpacked(req, NULL);
}
