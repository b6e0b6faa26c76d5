/*
 * reserve.c - reserves space for a range of blocks on the storages of a file, or nothing
 * at all.
 *
 * In:     storcli_alloc(). Thread: the env's.
 * Out:    ST_ALLOC: at first to the homes, through a spread. If a home has no room, all
 *         candidates are asked how much they have left, and the range is divided among
 *         them, spares too. The first connection to one is waited for; one that cannot be
 *         reached counts as full.
 * Keeps:  reserved space is given back when the operation fails. If a storage refuses to
 *         take it back, the call that repeats the operation does it: a ref or capability
 *         that is too old makes both fail.
 * Ask:    docs/POSIX.md, fallocate.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "common/base/units.h"
#include "storcli/blocks/engine.h"
#include "storcli/blocks/fanout.h"

enum {
    GIVE_BACK_PAIRS = 16,    /* in one request */
    LEFT_SPARED = 128 << 10, /* for the metadata of a storage's file system */
    PIECES = 16,             /* a piece is this part of the rest, so pieces get smaller */
    CONNECT_MS = 5000, /* the first connection to a candidate is waited for this long */
};

/* Ranges that one answer says it reserved, in bytes of the projection file. */
struct reserved {
    struct reserved *next;
    uint32_t storage_id;
    uint8_t candidate, projection;
    size_t n, n_given; /* pairs; pairs given back */
    uint64_t pairs[];
};

/* A part of the range that one candidate reserves for one projection. */
struct reserve_part {
    uint8_t candidate, projection;
    bool sent;
    uint64_t first, end; /* blocks */
};

struct reserve_op;

struct reserve_ask {
    struct rpc_request rq;
    struct reserve_op *op;
    struct reserved *giving; /* borrowed; n_giving pairs of it are given back; or NULL */
    size_t n_giving;
    uint8_t projection;
    bool out;
};

enum reserve_state {
    RESERVE_HOMES,
    RESERVE_LOOK, /* asks what is left; gives back what the homes took */
    RESERVE_PARTS,
    RESERVE_UNDO,
};

struct reserve_op {
    struct blk_op op; /* first */
    struct fanout fanout;
    uint64_t first_block, n_blocks;
    enum reserve_state state;
    int rc; /* result of the operation, after RESERVE_UNDO */
    uint64_t deadline_ns;
    struct reserved *taken; /* owned */
    uint64_t left[DIST_MAX];
    uint32_t looked;            /* candidates that were asked what is left */
    uint32_t unwilling;         /* candidates that refused to take space back */
    struct reserve_part *parts; /* owned */
    unsigned n_parts, parts_max;
    unsigned n_out;
    bool again; /* repeats the file's last one */
    struct reserve_ask asks[DIST_MAX];
};

static void reserve_step(struct reserve_op *op);

static void reserved_free(struct reserved *list)
{
    while (list != NULL) {
        struct reserved *t = list;

        list = t->next;
        free(t);
    }
}

void reserve_forget(struct storcli_file *file)
{
    reserved_free(file->reserved);
    file->reserved = NULL;
}

/* Takes over what the last operation could not give back. A storage that has lost its
 * place in the file since then is left alone. */
static void reserve_inherit(struct reserve_op *op)
{
    struct storcli_file *file = op->op.file;

    if (!op->again)
        reserve_forget(file);
    op->taken = file->reserved;
    file->reserved = NULL;
    for (struct reserved *t = op->taken; t != NULL; t = t->next) {
        if (file->target.storages[t->candidate] != t->storage_id)
            t->n_given = t->n;
    }
}

static void reserve_end(struct reserve_op *op, int rc)
{
    assert(op->n_out == 0);
    if (rc != 0) {
        assert(op->op.file->reserved == NULL);
        op->op.file->reserved = op->taken;
    } else {
        reserved_free(op->taken);
    }
    free(op->parts);
    blk_op_end(&op->op, rc);
}

/* ---- requests ---- */

/* Keeps the ranges that the answer reserved; returns the bytes left. */
static uint64_t take_answer(struct reserve_op *op, unsigned candidate,
                            unsigned projection, const struct rpc_request *rq)
{
    Rozo__StAllocResp *resp =
        rozo__st_alloc_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    uint64_t left = resp == NULL ? 0 : resp->left_bytes;
    size_t n = resp == NULL ? 0 : resp->n_taken / 2;
    struct reserved *t = n == 0 ? NULL : malloc(sizeof(*t) + 2 * n * sizeof(t->pairs[0]));

    if (t != NULL) { /* without memory it stays reserved */
        *t = (struct reserved){ .next = op->taken,
                                .storage_id = op->op.file->target.storages[candidate],
                                .candidate = (uint8_t)candidate,
                                .projection = (uint8_t)projection,
                                .n = n };
        memcpy(t->pairs, resp->taken, 2 * n * sizeof(t->pairs[0]));
        op->taken = t;
    }
    rozo__st_alloc_resp__free_unpacked(resp, NULL);
    return left;
}

static void on_ask_answer(struct rpc_request *rq, int rc)
{
    struct reserve_ask *ask = container_of(rq, struct reserve_ask, rq);
    struct reserve_op *op = ask->op;
    unsigned candidate = (unsigned)(ask - op->asks);
    bool is_well = rc == 0 && rq->status == ROZO__STATUS__OK;

    ask->out = false;
    op->n_out--;
    if (ask->giving != NULL && is_well)
        ask->giving->n_given += ask->n_giving;
    else if (ask->giving != NULL)
        op->unwilling |= 1u << candidate;
    ask->giving = NULL;
    op->left[candidate] = is_well ? take_answer(op, candidate, ask->projection, rq) : 0;
    if (rc == 0 && rq->status == ROZO__STATUS__STALE_DISTRIBUTION) {
        op->rc = -ROZO_EMOVED; /* space cannot be given back with this ref */
        op->state = RESERVE_UNDO;
    } else if (!is_well && op->state == RESERVE_PARTS) {
        op->rc = rc == 0 && rq->status == ROZO__STATUS__NO_SPACE ? -ENOSPC : -EIO;
        op->state = RESERVE_UNDO;
    }
    reserve_step(op);
}

/* Returns how long to wait for the answer of a candidate. */
static uint32_t answer_ms(const struct reserve_op *op, unsigned candidate)
{
    struct storcli_file *file = op->op.file;
    uint64_t now_ns = engine_now_ns(file->cli);
    uint64_t left_ns = op->deadline_ns > now_ns ? op->deadline_ns - now_ns : 0;

    if (!engine_is_up(file, candidate) && left_ns > ms_to_ns(CONNECT_MS))
        left_ns = ms_to_ns(CONNECT_MS);
    return (uint32_t)ns_to_ms(left_ns) + 1;
}

static void ask_send(struct reserve_op *op, unsigned candidate, Rozo__StAllocReq *req)
{
    struct storcli_file *file = op->op.file;
    struct reserve_ask *ask = &op->asks[candidate];
    uint8_t msg[MSG_BYTES_MAX];
    size_t len = engine_msg_begin(file, msg);

    assert(!ask->out);
    req->to_storage = file->target.storages[candidate];
    len += rozo__st_alloc_req__pack(req, msg + len);
    assert(len <= sizeof(msg));
    ask->op = op;
    ask->out = true;
    ask->projection = (uint8_t)req->projection;
    ask->rq = (struct rpc_request){
        .op = ROZO__OP__ST_ALLOC,
        .deadline_ms = answer_ms(op, candidate),
        .session = op->op.session,
        .msg = msg,
        .msg_len = len,
        .done = on_ask_answer,
    };
    op->n_out++;
    rpc_send(engine_channel(file, candidate), &ask->rq);
    ask->rq.msg = NULL; /* copied */
}

/* Returns true if a candidate can be asked: its first connection may be being made, since
 * a storage that a new mount has not reached yet is not full. */
static bool may_be_asked(const struct reserve_op *op, unsigned candidate)
{
    struct rpc_channel *ch = engine_channel(op->op.file, candidate);
    enum rpc_health health = ch == NULL ? RPC_DOWN : rpc_channel_health(ch);

    return health == RPC_UP || (health == RPC_CONNECTING && op->state == RESERVE_LOOK);
}

/* Returns the next ranges that this candidate has to take back; NULL: none, or it refused
 * to. */
static struct reserved *next_to_give(const struct reserve_op *op, unsigned candidate)
{
    struct reserved *t = (op->unwilling >> candidate & 1) != 0 ? NULL : op->taken;

    while (t != NULL && (t->candidate != candidate || t->n_given == t->n))
        t = t->next;
    return t;
}

/* Gives back the next ranges that this candidate reserved, or asks how much it has
 * left. */
static void look_send(struct reserve_op *op, unsigned candidate)
{
    Rozo__StAllocReq req = ROZO__ST_ALLOC_REQ__INIT;
    struct reserved *t = next_to_give(op, candidate);

    if (t == NULL && (op->state == RESERVE_UNDO || (op->looked >> candidate & 1) != 0))
        return;
    op->looked |= t == NULL ? 1u << candidate : 0;
    if (t != NULL) {
        size_t n =
            t->n - t->n_given < GIVE_BACK_PAIRS ? t->n - t->n_given : GIVE_BACK_PAIRS;

        req.projection = t->projection;
        req.give_back = t->pairs + 2 * t->n_given;
        req.n_give_back = 2 * n;
        op->asks[candidate].giving = t;
        op->asks[candidate].n_giving = n;
    }
    ask_send(op, candidate, &req);
}

/* ---- dividing the range ---- */

/* Returns the bytes that a candidate needs for the blocks of n_extents extents. */
static uint64_t part_bytes(const struct reserve_op *op, unsigned projection,
                           uint64_t n_extents)
{
    return n_extents * record_extent_bytes(op->op.file->codec, projection);
}

static bool part_add(struct reserve_op *op, unsigned candidate, unsigned projection,
                     uint64_t first, uint64_t end)
{
    struct reserve_part *last = NULL;

    for (unsigned i = 0; i < op->n_parts; i++) {
        if (op->parts[i].candidate == candidate && op->parts[i].projection == projection)
            last = &op->parts[i];
    }
    if (last != NULL && last->end == first) {
        last->end = end;
        return true;
    }
    if (op->n_parts == op->parts_max) {
        unsigned max = op->parts_max * 2 + 32;
        struct reserve_part *parts = realloc(op->parts, max * sizeof(*parts));

        if (parts == NULL)
            return false;
        op->parts = parts;
        op->parts_max = max;
    }
    op->parts[op->n_parts++] = (struct reserve_part){ .candidate = (uint8_t)candidate,
                                                      .projection = (uint8_t)projection,
                                                      .first = first,
                                                      .end = end };
    return true;
}

/* Returns the n candidates with the most left; of equal ones homes. */
static uint32_t choose_candidates(const struct reserve_op *op)
{
    const struct storcli_file *file = op->op.file;
    uint32_t chosen = 0;

    for (unsigned n = 0; n < file->n; n++) {
        unsigned best = file->c;

        for (unsigned i = 0; i < file->c; i++) {
            if ((chosen >> i & 1) == 0 &&
                (best == file->c || op->left[i] > op->left[best]))
                best = i;
        }
        chosen |= 1u << best;
    }
    return chosen;
}

/* Returns the projection of a chosen candidate: a home its own, a spare that of a home
 * not chosen. */
static unsigned projection_of(const struct reserve_op *op, uint32_t chosen,
                              unsigned candidate)
{
    unsigned n = op->op.file->n, nth = 0, p = 0;

    if (candidate < n)
        return candidate;
    for (unsigned i = n; i < candidate; i++)
        nth += chosen >> i & 1;
    for (;; p++) {
        if ((chosen >> p & 1) == 0 && nth-- == 0)
            return p;
    }
}

static bool all_have_room(const struct reserve_op *op, uint32_t chosen,
                          uint64_t n_extents)
{
    for (unsigned i = 0; i < op->op.file->c; i++) {
        if ((chosen >> i & 1) != 0 &&
            op->left[i] < part_bytes(op, projection_of(op, chosen, i), n_extents))
            return false;
    }
    return true;
}

/* Divides the range: each piece of it goes to the n candidates with the most left, so
 * that all of them can be used up. Pieces end with extents, since writes come in runs of
 * extents. */
static int divide(struct reserve_op *op)
{
    uint64_t at = op->first_block / EXTENT_BLOCKS;
    uint64_t end = (op->first_block + op->n_blocks + EXTENT_BLOCKS - 1) / EXTENT_BLOCKS;

    for (unsigned i = 0; i < op->op.file->c; i++)
        op->left[i] -= op->left[i] < LEFT_SPARED ? op->left[i] : LEFT_SPARED;
    while (at < end) {
        uint32_t chosen = choose_candidates(op);
        uint64_t n = (end - at + PIECES - 1) / PIECES;

        while (n > 1 && !all_have_room(op, chosen, n))
            n /= 2;
        if (!all_have_room(op, chosen, n))
            return -ENOSPC;
        for (unsigned i = 0; i < op->op.file->c; i++) {
            unsigned p;

            if ((chosen >> i & 1) == 0)
                continue;
            p = projection_of(op, chosen, i);
            op->left[i] -= part_bytes(op, p, n);
            if (!part_add(op, i, p, at * EXTENT_BLOCKS, (at + n) * EXTENT_BLOCKS))
                return -ENOMEM;
        }
        at += n;
    }
    return 0;
}

static void part_send(struct reserve_op *op, unsigned candidate)
{
    Rozo__StAllocReq req = ROZO__ST_ALLOC_REQ__INIT;
    uint64_t end = op->first_block + op->n_blocks;

    for (unsigned i = 0; i < op->n_parts; i++) {
        struct reserve_part *part = &op->parts[i];

        if (part->sent || part->candidate != candidate)
            continue;
        part->sent = true;
        req.projection = part->projection;
        req.first_block = part->first > op->first_block ? part->first : op->first_block;
        req.n_blocks = (part->end < end ? part->end : end) - req.first_block;
        ask_send(op, candidate, &req);
        return;
    }
}

/* ---- life ---- */

static void send_more(struct reserve_op *op)
{
    for (unsigned i = 0; i < op->op.file->c; i++) {
        if (op->asks[i].out || !may_be_asked(op, i))
            continue;
        if (op->state == RESERVE_PARTS)
            part_send(op, i);
        else
            look_send(op, i);
    }
}

static bool all_are_sent(const struct reserve_op *op)
{
    for (unsigned i = 0; i < op->n_parts; i++) {
        if (!op->parts[i].sent)
            return false;
    }
    return true;
}

static void reserve_step(struct reserve_op *op)
{
    send_more(op);
    if (op->n_out > 0)
        return;
    if (op->state == RESERVE_LOOK) {
        op->rc = divide(op);
        if (op->rc != 0) {
            reserve_end(op, op->rc);
            return;
        }
        op->state = RESERVE_PARTS;
        send_more(op);
        if (op->n_out > 0)
            return;
    }
    /* one of them became unreachable */
    if (op->state == RESERVE_PARTS && !all_are_sent(op)) {
        op->rc = -ENOSPC;
        op->state = RESERVE_UNDO;
        send_more(op);
        if (op->n_out > 0)
            return;
    }
    reserve_end(op, op->state == RESERVE_PARTS ? 0 : op->rc);
}

static size_t homes_fill(struct fanout *s, unsigned candidate, unsigned projection,
                         struct rpc_request *rq, uint8_t msg[MSG_BYTES_MAX])
{
    struct reserve_op *op = container_of(s, struct reserve_op, fanout);
    Rozo__StAllocReq req = ROZO__ST_ALLOC_REQ__INIT;
    size_t len = engine_msg_begin(s->file, msg);

    req.projection = projection;
    req.first_block = op->first_block;
    req.n_blocks = op->n_blocks;
    req.to_storage = s->file->target.storages[candidate];
    rq->op = ROZO__OP__ST_ALLOC;
    return len + rozo__st_alloc_req__pack(&req, msg + len);
}

static void homes_acked(struct fanout *s, unsigned candidate,
                        const struct rpc_request *rq)
{
    take_answer(container_of(s, struct reserve_op, fanout), candidate,
                s->tries[candidate].projection, rq);
}

/* Keeps the reservations that the range needs out of what is given back. */
static void keep_needed(struct reserve_op *op)
{
    const struct holders *held = &op->fanout.held;

    for (struct reserved *t = op->taken; t != NULL; t = t->next) {
        if ((held->all >> t->candidate & 1) != 0 &&
            held->projection[t->candidate] == t->projection)
            t->n_given = t->n;
    }
}

static void on_homes(struct fanout *s, int rc)
{
    struct reserve_op *op = container_of(s, struct reserve_op, fanout);

    if (rc == 0)
        keep_needed(op);
    op->rc = rc;
    op->state = rc == -ENOSPC ? RESERVE_LOOK : RESERVE_UNDO;
    op->deadline_ns =
        engine_now_ns(s->file->cli) + ms_to_ns(s->file->cli->config.write_deadline_ms);
    reserve_step(op);
}

static const struct fanout_ops homes_spread_ops = {
    .fill = homes_fill,
    .acked = homes_acked,
    .ended = on_homes,
    .stop_at_no_space = true,
};

static void reserve_run(struct blk_op *base)
{
    struct reserve_op *op = container_of(base, struct reserve_op, op);
    int rc;

    reserve_inherit(op);
    rc = fanout_start(&op->fanout, base, &homes_spread_ops, false);
    if (rc != 0)
        reserve_end(op, rc);
}

void storcli_alloc(struct storcli_file *file, uint64_t first_block, uint64_t n_blocks,
                   bool again, storcli_done_cb *done, void *arg)
{
    struct reserve_op *op = blk_op_new(file, sizeof(*op), done, arg);

    assert(n_blocks != 0 && first_block + n_blocks > first_block);
    file->has_stored = true;
    op->first_block = first_block;
    op->n_blocks = n_blocks;
    op->again = again;
    engine_op_begin(&op->op, sizeof(*op), reserve_run);
}
