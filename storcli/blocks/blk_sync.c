/*
 * blk_sync.c - brings acknowledged data to stable storage.
 *
 * In:     storcli_sync(). Thread: the env's.
 * Out:    ST_SYNC to every storage that holds something unsynced; for data of others see
 *         survey.h. When a holder is lost, its projections are rebuilt on another storage
 *         (read, code, ST_WRITE) and synced there.
 * Keeps:  I1. Done with 0 only when every range is synced by all its holders, lost ones
 *         replaced, or, with no candidate left to replace them, by at least the quorum.
 * Yours:  waiting times, how much is rebuilt at a time.
 *
 * One sync of a file runs at a time; calls that come meanwhile share the next one.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "storcli/blocks/engine.h"
#include "storcli/blocks/survey.h"
#include "storcli/rules/encode.h"

enum {
    /* a disk may be busy; a storage that hangs is noticed by rpc */
    SYNC_TIMEOUT_MS = 5000,
    PUT_TIMEOUT_MS = 1000,
    RETRY_MS = 200,
    /* refusals in a row because newer writes came first; more: damaged at the target */
    STALE_MAX = 8,
};

/* Call of storcli_sync() or storcli_sync_layer(). */
struct sync_call {
    struct blk_op op;
    bool reports;       /* storcli_sync(): its result reports losses */
    uint64_t n_reports; /* file->n_reports when it was made */
    struct sync_call *next;
};

enum peer_sync {
    PEER_NEEDED, /* nothing under way */
    PEER_SENT,
    PEER_SYNCED,
    PEER_FAILED, /* asked again after retry_ns */
};

struct sync_peer {
    struct rpc_request rq;
    struct blk_sync_op *op;
    uint64_t sent_ns, retry_ns;
    uint8_t candidate;
    uint8_t state;      /* enum peer_sync */
    uint32_t commit_no; /* commit.no of the watermarks in the request */
    bool busy;          /* failed, but only for the moment */
};

enum sync_state {
    SYNC_ASK,     /* storages are asked to sync; then lost holders are found */
    SYNC_SURVEY,  /* holders of the data of others are looked for; then ASK again */
    SYNC_REMAKE,  /* the next step of rebuilding a lost projection is chosen */
    SYNC_READING, /* blocks of the range are being read */
    SYNC_PUTTING, /* a run of records, or a mark, is on its way to the target */
};

/* Rebuilding of one projection of one range at a new place. */
struct remake {
    struct rpc_request rq;
    struct holders *held; /* holders of the range or mark, in op->set */
    bool is_mark;
    uint32_t index; /* index of the range or mark */
    uint8_t projection;
    uint8_t target;      /* candidate that gets it */
    uint64_t next_block; /* first block of the range not looked at yet */
    unsigned n_blocks;   /* blocks read at the moment */
    unsigned at;         /* first of these not put yet */
    unsigned put_blocks; /* blocks being put */
    unsigned n_stale;    /* refusals as too old, in a row */
    uint64_t put_ns;
    uint8_t *data; /* scratch: n blocks; then heads and bodies to be sent */
    uint16_t user_bytes[EXTENT_BLOCKS];
    uint64_t versions[EXTENT_BLOCKS];
    struct iovec iov[2];
};

/* Acknowledged data that cannot become stable, to be reported. */
enum sync_loss {
    LOSS_NONE,
    LOSS_EARLIER, /* found by an earlier sync, which nobody learned of */
    LOSS_HERE,    /* the lost data is of this sync's own set */
};

/* Reason for a sync. */
enum sync_reason {
    SYNC_FOR_CALLERS,
    SYNC_BACKGROUND,  /* no caller waits for it */
    SYNC_INTERRUPTED, /* background, and a caller wants another: ends after its read */
};

struct blk_sync_op {
    struct storcli_file *file; /* borrowed */
    struct watch watch;
    struct sync_call *calls; /* owned until they end */
    enum sync_state state;
    struct unsynced set; /* ranges to sync; holders change as projections are rebuilt */
    uint64_t deadline_ns;
    uint32_t others; /* candidates asked for data of others; no file there is fine */
    bool surveyed;
    struct survey survey; /* holders of the data of others */
    uint32_t unfit;       /* candidates that could not take a lost projection */
    bool denied;
    bool fenced; /* our session is over: nothing can be rebuilt */
    bool moved;  /* a storage knows of a newer distribution */
    enum sync_loss loss;
    /* an earlier sync, ended after our callers came, reported a loss: their data is part
     * of it */
    bool reported_before;
    enum sync_reason reason;
    bool gone;              /* a storage that held something has no such file any more */
    struct blk_op *reading; /* SYNC_READING: the read */
    struct remake remake;
    struct sync_peer peers[DIST_MAX];
};

static void sync_step(struct blk_sync_op *op);

/* ---- ending ---- */

static size_t remake_bytes(const struct storcli_file *file)
{
    return EXTENT_BLOCKS * ((size_t)file->target.block_bytes + file->row_bytes +
                            RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX);
}

static void remake_release(struct blk_sync_op *op)
{
    bufpool_put(&op->file->cli->scratch, op->remake.data, remake_bytes(op->file));
    op->remake.data = NULL;
}

static bool sync_reports(const struct blk_sync_op *op)
{
    for (const struct sync_call *call = op->calls; call != NULL; call = call->next) {
        if (call->reports)
            return true;
    }
    return false;
}

/* Passes a loss on: to callers that wait already, else, as long as no caller has had it
 * reported, to those that sync next. -ROZO_EMOVED reports nothing. */
static void loss_goes_on(const struct blk_sync_op *op, int rc)
{
    struct storcli_file *file = op->file;
    bool reported = sync_reports(op) && rc != -ROZO_EMOVED;

    file->n_reports += reported;
    if (file->sync_waiting == NULL)
        file->lost |= !reported;
    else if (reported)
        file->sync_waiting->reported_before = true;
    else
        file->sync_waiting->loss = LOSS_EARLIER;
}

static void sync_end(struct blk_sync_op *op, int rc)
{
    struct storcli_file *file = op->file;
    struct sync_call *calls = op->calls;
    bool background = op->reason != SYNC_FOR_CALLERS;

    /* a caller that repeats would not learn of that loss */
    if (rc == -ROZO_EMOVED && op->reported_before)
        rc = -EIO;
    assert(op->state == SYNC_ASK && file->syncing == op);
    for (unsigned i = 0; i < file->c; i++) {
        if (op->peers[i].state == PEER_SENT)
            rpc_cancel(&op->peers[i].rq);
    }
    watch_stop(file->cli, &op->watch);
    remake_release(op);
    survey_free(&op->survey);
    if (rc != 0) /* without lost ranges: no sync can save them */
        unsynced_merge_older(&file->unsynced, &op->set);
    if (rc != 0 && op->others != 0)
        file->others_wrote = true;
    unsynced_free(&op->set);
    if (op->loss != LOSS_NONE)
        loss_goes_on(op, rc);
    file->n_losses += op->loss == LOSS_HERE;
    commit_sync_end(&file->commit, op->loss == LOSS_HERE ? COMMIT_SYNC_LOST
                                   : rc != 0             ? COMMIT_SYNC_FAILED
                                                         : COMMIT_SYNC_DONE);
    file->syncing = NULL;
    file->cli->n_background -= background;
    free(op);
    if (background)
        background_sync_ended(file, rc);
    else
        background_kick(file);
    /* keeps the file busy, if there is one, before callers hear */
    engine_next_sync(file);
    while (calls != NULL) {
        struct sync_call *call = calls;

        calls = call->next;
        blk_op_end(&call->op, rc);
    }
    if (background)
        engine_relocate_look(file);
}

/* ---- asking storages to sync ---- */

static void peer_is_synced(struct sync_peer *peer, const struct rpc_request *rq)
{
    struct blk_sync_op *op = peer->op;
    Rozo__StSyncResp *resp =
        rozo__st_sync_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);

    peer->state = PEER_SYNCED;
    commit_confirmed(&op->file->commit, peer->candidate, peer->commit_no);
    /* a new verifier: all is lost */
    unsynced_verify(&op->set, peer->candidate, resp == NULL ? 0 : resp->verifier);
    if (resp != NULL && !op->surveyed)
        survey_heard(&op->survey, peer->candidate, resp);
    rozo__st_sync_resp__free_unpacked(resp, NULL);
}

static void on_sync_answer(struct rpc_request *rq, int rc)
{
    struct sync_peer *peer = container_of(rq, struct sync_peer, rq);
    struct blk_sync_op *op = peer->op;

    assert(peer->state == PEER_SENT);
    if (rc == 0 && rq->status == ROZO__STATUS__OK) {
        peer_is_synced(peer, rq);
    } else if (rc == 0 && rq->status == ROZO__STATUS__NO_FILE &&
               (op->others & ~unsynced_any(&op->set)) >> peer->candidate & 1) {
        peer->state = PEER_SYNCED;
    } else {
        peer->state = PEER_FAILED;
        peer->retry_ns = engine_now_ns(op->file->cli) + ms_to_ns(RETRY_MS);
        op->gone = op->gone || (rc == 0 && rq->status == ROZO__STATUS__NO_FILE);
        peer->busy = rc == 0 && rq->status == ROZO__STATUS__BUSY;
        op->denied = op->denied || (rc == 0 && rq->status == ROZO__STATUS__DENIED);
        op->moved |= rc == 0 && rq->status == ROZO__STATUS__STALE_DISTRIBUTION;
    }
    sync_step(op);
}

static void peer_send(struct blk_sync_op *op, unsigned candidate)
{
    struct sync_peer *peer = &op->peers[candidate];
    Rozo__StSyncReq req = ROZO__ST_SYNC_REQ__INIT;
    uint64_t durable[COMMIT_EPOCHS_MAX];
    uint8_t msg[MSG_BYTES_MAX];
    size_t len = engine_msg_begin(op->file, msg);

    req.to_storage = op->file->target.storages[candidate];
    req.durable = durable;
    req.n_durable = commit_durable(&op->file->commit, durable);
    req.others = op->others != 0 && !op->surveyed;
    peer->commit_no = op->file->commit.no;
    len += rozo__st_sync_req__pack(&req, msg + len);
    peer->state = PEER_SENT;
    peer->sent_ns = engine_now_ns(op->file->cli);
    peer->rq = (struct rpc_request){
        .op = ROZO__OP__ST_SYNC,
        .deadline_ms = op->file->cli->config.write_deadline_ms,
        .msg = msg,
        .msg_len = len,
        .done = on_sync_answer,
    };
    rpc_send(engine_channel(op->file, candidate), &peer->rq);
    peer->rq.msg = NULL; /* copied */
}

/* Asks all holders to sync; returns those that are waited for. */
static uint32_t ask_peers(struct blk_sync_op *op, uint32_t any, uint64_t now_ns)
{
    uint32_t awaited = 0;

    for (unsigned i = 0; i < op->file->c; i++) {
        struct sync_peer *peer = &op->peers[i];

        if ((any >> i & 1) == 0 || !engine_is_up(op->file, i))
            continue;
        /* without the deadline, storages that fail in turn would never end */
        if (peer->state == PEER_NEEDED ||
            (peer->state == PEER_FAILED && now_ns >= peer->retry_ns &&
             now_ns < op->deadline_ns))
            peer_send(op, i);
        if (peer->state == PEER_SENT &&
            now_ns - peer->sent_ns < ms_to_ns(SYNC_TIMEOUT_MS))
            awaited |= 1u << i;
        if (peer->state == PEER_FAILED && peer->busy && now_ns < op->deadline_ns)
            awaited |= 1u << i;
    }
    return awaited;
}

static uint32_t peers_synced(const struct blk_sync_op *op)
{
    uint32_t synced = 0;

    for (unsigned i = 0; i < op->file->c; i++) {
        if (op->peers[i].state == PEER_SYNCED)
            synced |= 1u << i;
    }
    return synced;
}

/* ---- rebuilding lost projections ---- */

static uint32_t projections_of(const struct holders *held, uint32_t who)
{
    uint32_t projections = 0;

    for (unsigned i = 0; i < DIST_MAX; i++) {
        if ((held->all & who) >> i & 1)
            projections |= 1u << held->projection[i];
    }
    return projections;
}

/* Returns true if no other reachable storage holds the candidate's projection. */
static bool is_needed(const struct holders *held, uint32_t lost, unsigned candidate)
{
    if ((held->all >> candidate & 1) == 0)
        return false;
    for (unsigned i = 0; i < DIST_MAX; i++) {
        if (i != candidate && ((held->all & ~lost) >> i & 1) != 0 &&
            held->projection[i] == held->projection[candidate])
            return false;
    }
    return true;
}

static bool is_fit(struct blk_sync_op *op, const struct holders *held, uint32_t lost,
                   unsigned candidate)
{
    return ((lost | op->unfit) >> candidate & 1) == 0 &&
           !is_needed(held, lost, candidate) && op->peers[candidate].state != PEER_SENT &&
           engine_is_up(op->file, candidate);
}

/* Chooses a place for projection p: its home, if that is fit again, a spare, or a home
 * whose own projection is elsewhere. -1: none. */
static int pick_target(struct blk_sync_op *op, const struct holders *held, uint32_t lost,
                       uint32_t there, unsigned p)
{
    if (is_fit(op, held, lost, p))
        return (int)p;
    for (unsigned i = op->file->n; i < op->file->c; i++) {
        if (is_fit(op, held, lost, i))
            return (int)i;
    }
    for (unsigned i = 0; i < op->file->n; i++) {
        if ((there >> i & 1) != 0 && is_fit(op, held, lost, i))
            return (int)i;
    }
    return -1;
}

enum heal {
    HEAL_NOTHING, /* all holders are there, or enough of them */
    HEAL_REMAKE,  /* rebuild the projection in op->remake */
    HEAL_STUCK,   /* too few holders, and no candidate to take more */
    HEAL_LOST,    /* fewer than k projections exist: acknowledged data is lost */
};

/* Decides what to do about the lost holders of one range. */
static enum heal holders_heal(struct blk_sync_op *op, struct holders *held, uint32_t lost)
{
    uint32_t there = projections_of(held, ~lost);

    if (((held->any & lost) | held->gone | held->lacks) == 0)
        return HEAL_NOTHING;
    /* a range found by reading it exists, even if its holders changed */
    if ((unsigned)__builtin_popcount(there) < op->file->k && held->lacks == 0)
        return (held->any & lost) != 0 ? HEAL_STUCK : HEAL_LOST;
    for (unsigned p = 0; p < op->file->n; p++) {
        int target = (there >> p & 1) != 0 ? -1 : pick_target(op, held, lost, there, p);

        if (target < 0)
            continue;
        op->remake.held = held;
        op->remake.projection = (uint8_t)p;
        op->remake.target = (uint8_t)target;
        return HEAL_REMAKE;
    }
    if ((unsigned)__builtin_popcount(there) < op->file->q_write)
        return HEAL_STUCK;
    held->all &= ~lost;
    held->any &= ~lost;
    held->gone = held->lacks = 0;
    return HEAL_NOTHING;
}

/* Abandons a lost range: it is reported once, at the end of this sync. */
static void holders_lose(struct blk_sync_op *op, struct holders *held)
{
    op->loss = LOSS_HERE;
    held->any = held->all = held->gone = held->lacks = 0;
}

/* Notes the homes that have lost data they held, so that they can be healed. */
static void note_lost(struct blk_sync_op *op, bool is_mark, uint32_t index,
                      uint32_t homes)
{
    if (is_mark) {
        const struct unsynced_mark *mark = &op->set.marks[index];

        background_lost(op->file, homes, mark->first_block,
                        mark->n_blocks == 0 ? UINT64_MAX
                                            : mark->first_block + mark->n_blocks,
                        mark->version, &mark->held);
    } else {
        const struct unsynced_range *range = &op->set.ranges[index];

        background_lost(op->file, homes, range->first_block, range->end_block,
                        range->version, &range->held);
    }
}

/* Finds the first range or mark with too few holders after the loss of some. */
static enum heal find_remake(struct blk_sync_op *op, uint32_t lost)
{
    enum heal worst = HEAL_NOTHING;

    for (uint32_t i = 0; i < op->set.n_ranges + op->set.n_marks; i++) {
        bool is_mark = i >= op->set.n_ranges;
        uint32_t index = is_mark ? i - op->set.n_ranges : i;
        struct unsynced_mark *mark = is_mark ? &op->set.marks[index] : NULL;
        struct holders *held = is_mark ? &mark->held : &op->set.ranges[index].held;
        uint32_t homes = (held->any & lost) | held->gone | held->lacks;
        enum heal heal = holders_heal(op, held, lost);

        if (homes != 0 && heal == HEAL_NOTHING)
            note_lost(op, is_mark, index, homes);
        if (heal == HEAL_STUCK)
            worst = HEAL_STUCK;
        if (heal == HEAL_LOST)
            holders_lose(op, held);
        if (heal != HEAL_REMAKE)
            continue;
        op->remake.is_mark = is_mark;
        op->remake.index = index;
        op->remake.next_block = is_mark ? 0 : op->set.ranges[index].first_block;
        op->remake.n_blocks = op->remake.at = op->remake.n_stale = 0;
        return HEAL_REMAKE;
    }
    return worst;
}

/* Adds the target as a holder that must sync like the others. */
static void remake_done(struct blk_sync_op *op)
{
    struct remake *remake = &op->remake;
    uint32_t bit = 1u << remake->target;

    remake->held->all |= bit;
    remake->held->any |= bit;
    remake->held->projection[remake->target] = remake->projection;
    if (remake->target != remake->projection)
        note_lost(op, remake->is_mark, remake->index, 1u << remake->projection);
    op->peers[remake->target].state = PEER_NEEDED;
    op->state = SYNC_ASK;
}

static void remake_failed(struct blk_sync_op *op)
{
    op->unfit |= 1u << op->remake.target;
    op->state = SYNC_ASK;
}

static void remake_restart(struct blk_sync_op *op)
{
    op->remake.next_block = op->set.ranges[op->remake.index].first_block;
    op->remake.n_blocks = op->remake.at = 0;
}

/* Records that the target keeps what it replaced until the commit. */
static void put_is_pending(struct blk_sync_op *op)
{
    struct remake *remake = &op->remake;
    struct commit *commit = &op->file->commit;

    if (remake->is_mark)
        commit_pending(commit, remake->target, op->set.marks[remake->index].version);
    for (unsigned b = 0; !remake->is_mark && b < remake->put_blocks; b++)
        commit_pending(commit, remake->target, remake->versions[remake->at + b]);
}

/* Returns true if the target lost its memory since the last put: this projection must
 * start again. */
static bool put_verify(struct blk_sync_op *op, const struct rpc_request *rq)
{
    Rozo__StMarkResp *mark = NULL;
    Rozo__StWriteResp *write = NULL;
    bool changed = false;

    if (rq->op == ROZO__OP__ST_MARK && rq->answer_msg_len != 0)
        mark = rozo__st_mark_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    if (rq->op == ROZO__OP__ST_WRITE)
        write = rozo__st_write_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    if ((mark != NULL && mark->pending) || (write != NULL && write->pending))
        put_is_pending(op);
    if (mark != NULL)
        changed = unsynced_verify(&op->set, op->remake.target, mark->verifier);
    if (write != NULL)
        changed = unsynced_verify(&op->set, op->remake.target, write->verifier);
    rozo__st_mark_resp__free_unpacked(mark, NULL);
    rozo__st_write_resp__free_unpacked(write, NULL);
    return changed;
}

static void on_put_answer(struct rpc_request *rq, int rc)
{
    struct remake *remake = container_of(rq, struct remake, rq);
    struct blk_sync_op *op = container_of(remake, struct blk_sync_op, remake);
    bool in_time = engine_now_ns(op->file->cli) < op->deadline_ns;

    assert(op->state == SYNC_PUTTING);
    if (rc == 0 && rq->status == ROZO__STATUS__OK) {
        bool changed = put_verify(op, rq);

        remake->at += remake->put_blocks;
        remake->n_stale = 0;
        op->state = SYNC_REMAKE;
        if (remake->is_mark)
            remake_done(op);
        else if (changed)
            remake_restart(op);
    } else if (rc == 0 && rq->status == ROZO__STATUS__STALE_VERSION && !remake->is_mark &&
               in_time && remake->n_stale++ < STALE_MAX) {
        remake->next_block -= remake->n_blocks; /* overwritten meanwhile: read it again */
        remake->n_blocks = remake->at = 0;
        op->state = SYNC_REMAKE;
    } else {
        op->denied = op->denied || (rc == 0 && rq->status == ROZO__STATUS__DENIED);
        op->fenced = op->fenced || (rc == 0 && rq->status == ROZO__STATUS__FENCED);
        op->moved |= rc == 0 && rq->status == ROZO__STATUS__STALE_DISTRIBUTION;
        remake_failed(op);
    }
    sync_step(op);
}

static void put_send(struct blk_sync_op *op, uint16_t what, const void *msg,
                     size_t msg_len, unsigned n_iov)
{
    struct remake *remake = &op->remake;
    struct rpc_channel *ch = engine_channel(op->file, remake->target);

    if (ch == NULL) {
        remake_failed(op);
        return;
    }
    op->state = SYNC_PUTTING;
    remake->put_ns = engine_now_ns(op->file->cli);
    remake->rq = (struct rpc_request){
        .op = what,
        .deadline_ms = op->file->cli->config.write_deadline_ms,
        .msg = msg,
        .msg_len = msg_len,
        .payload = remake->iov,
        .n_payload = n_iov,
        .session = op->file->target.session,
        .done = on_put_answer,
    };
    rpc_send(ch, &remake->rq);
    remake->rq.msg = NULL; /* copied */
}

static void put_mark(struct blk_sync_op *op, uint64_t first_block, uint64_t n_blocks,
                     uint64_t version)
{
    Rozo__StMarkReq req = ROZO__ST_MARK_REQ__INIT;
    uint8_t msg[MSG_BYTES_MAX];
    size_t len = engine_msg_begin(op->file, msg);

    req.projection = op->remake.projection;
    req.first_block = first_block;
    req.n_blocks = n_blocks;
    req.version = version;
    req.to_storage = op->file->target.storages[op->remake.target];
    req.keep_newer = true; /* the target may have taken later writes */
    len += rozo__st_mark_req__pack(&req, msg + len);
    put_send(op, ROZO__OP__ST_MARK, msg, len, 0);
}

/* Seals the records of blocks [at, at + n) that were read, at their own versions. Returns
 * the bytes of their bodies. */
static size_t put_seal(struct blk_sync_op *op, unsigned n, uint8_t *heads,
                       uint8_t *bodies)
{
    struct remake *remake = &op->remake;
    struct storcli_file *file = op->file;
    size_t head_bytes = encode_head_bytes(file->codec, remake->projection),
           body_bytes = 0;
    uint8_t *head[CODEC_N_MAX] = { NULL }, *body[CODEC_N_MAX] = { NULL };

    for (unsigned i = 0; i < n; i++) {
        unsigned b = remake->at + i;
        const uint8_t *data = remake->data + (size_t)b * file->target.block_bytes;
        const struct encode_block block = {
            .codec = file->codec,
            .file_hash = file->file_hash,
            .user_bytes = remake->user_bytes[b],
            .version = remake->versions[b],
            .block = remake->next_block - remake->n_blocks + b,
        };
        size_t row_bytes = codec_row_bytes(file->codec, block.user_bytes);

        head[remake->projection] = heads + i * head_bytes;
        body[remake->projection] = bodies + body_bytes;
        encode_seal(&block, data, 1u << remake->projection, head, body);
        if (remake->projection < file->k && codec_is_systematic(file->codec))
            memcpy(bodies + body_bytes, data + remake->projection * row_bytes, row_bytes);
        body_bytes += row_bytes;
    }
    return body_bytes;
}

static void put_records(struct blk_sync_op *op, unsigned n)
{
    struct remake *remake = &op->remake;
    struct storcli_file *file = op->file;
    size_t head_bytes = encode_head_bytes(file->codec, remake->projection);
    uint8_t *bodies = remake->data + (size_t)EXTENT_BLOCKS * file->target.block_bytes;
    uint8_t *heads = bodies + EXTENT_BLOCKS * file->row_bytes;
    Rozo__StWriteReq req = ROZO__ST_WRITE_REQ__INIT;
    uint8_t msg[MSG_BYTES_MAX];
    size_t len = engine_msg_begin(file, msg);

    remake->iov[0] = (struct iovec){ .iov_base = heads, .iov_len = n * head_bytes };
    remake->iov[1] =
        (struct iovec){ .iov_base = bodies, .iov_len = put_seal(op, n, heads, bodies) };
    req.projection = remake->projection;
    req.first_block = remake->next_block - remake->n_blocks + remake->at;
    req.n_records = n;
    req.to_storage = file->target.storages[remake->target];
    len += rozo__st_write_req__pack(&req, msg + len);
    put_send(op, ROZO__OP__ST_WRITE, msg, len, 2);
}

/* Returns true if the read found a version older than the unsynced one. With too many
 * holders lost that is a correct read, but its data must not pass for the data to be
 * synced. */
static bool remake_is_older(const struct blk_sync_op *op)
{
    const struct unsynced_range *range = &op->set.ranges[op->remake.index];

    for (unsigned b = 0; !range->gaps && b < op->remake.n_blocks; b++) {
        if (op->remake.versions[b] < range->version)
            return true;
    }
    return false;
}

static void on_remake_read(void *arg, int rc)
{
    struct blk_sync_op *op = arg;

    assert(op->state == SYNC_READING);
    op->state = SYNC_REMAKE;
    if (rc == 0 && remake_is_older(op))
        rc = -EIO;
    op->remake.next_block += op->remake.n_blocks;
    op->moved |= rc == -ROZO_EMOVED;
    if (rc != 0)
        remake_failed(op);
    if (op->reason == SYNC_INTERRUPTED) {
        op->state = SYNC_ASK;
        sync_end(op, -ECANCELED);
        return;
    }
    sync_step(op);
}

static void remake_read(struct blk_sync_op *op)
{
    struct remake *remake = &op->remake;
    const struct unsynced_range *range = &op->set.ranges[remake->index];
    const struct read_want want = {
        .data = remake->data,
        .user_bytes = remake->user_bytes,
        .versions = remake->versions,
    };

    remake->at = 0;
    remake->n_blocks =
        piece_blocks(remake->next_block, range->end_block - remake->next_block);
    op->state = SYNC_READING;
    op->reading = engine_read(op->file, remake->next_block, remake->n_blocks, &want,
                              on_remake_read, op);
}

/* Counts the blocks from remake->at on that form one run: records, or holes of one
 * version. */
static unsigned run_length(const struct remake *remake)
{
    bool hole = remake->user_bytes[remake->at] == 0;
    unsigned b = remake->at + 1;

    while (b < remake->n_blocks && (remake->user_bytes[b] == 0) == hole &&
           (!hole || remake->versions[b] == remake->versions[remake->at]))
        b++;
    return b - remake->at;
}

/* Puts the next run that was read, reads on, or finishes this projection. */
static void remake_step(struct blk_sync_op *op)
{
    struct remake *remake = &op->remake;
    uint64_t wanted;
    unsigned n;

    if (remake->is_mark) {
        const struct unsynced_mark *mark = &op->set.marks[remake->index];

        put_mark(op, mark->first_block, mark->n_blocks, mark->version);
        return;
    }
    wanted = op->set.ranges[remake->index].version;
    while (remake->at < remake->n_blocks && remake->versions[remake->at] < wanted)
        remake->at++; /* between the blocks that were written */
    if (remake->at == remake->n_blocks) {
        if (remake->next_block == op->set.ranges[remake->index].end_block)
            remake_done(op);
        else
            remake_read(op);
        return;
    }
    n = run_length(remake);
    remake->put_blocks = n;
    if (remake->user_bytes[remake->at] != 0)
        put_records(op, n);
    else /* became a hole since: newer than our record */
        put_mark(op, remake->next_block - remake->n_blocks + remake->at, n,
                 remake->versions[remake->at]);
}

static bool remake_begin(struct blk_sync_op *op)
{
    struct remake *remake = &op->remake;

    if (remake->data == NULL)
        remake->data = bufpool_get(&op->file->cli->scratch, remake_bytes(op->file));
    if (remake->data == NULL)
        return false;
    op->state = SYNC_REMAKE;
    return true;
}

/* Abandons a target that hangs. */
static void put_check(struct blk_sync_op *op, uint64_t now_ns)
{
    if (engine_is_up(op->file, op->remake.target) && !engine_is_relocating(op->file) &&
        now_ns - op->remake.put_ns < ms_to_ns(PUT_TIMEOUT_MS))
        return;
    rpc_cancel(&op->remake.rq);
    remake_failed(op);
}

/* ---- the sync ---- */

enum step_result {
    STEP_ON,
    STEP_WAIT,
    STEP_ENDED, /* the op is gone */
};

static void on_surveyed(void *arg, int rc)
{
    struct blk_sync_op *op = arg;

    assert(op->state == SYNC_SURVEY);
    op->state = SYNC_ASK;
    if (rc != 0) {
        sync_end(op, rc);
        return;
    }
    /* a holder may have answered before it got the data */
    for (unsigned i = 0; op->survey.found && i < op->file->c; i++) {
        if ((unsynced_any(&op->set) >> i & 1) != 0 && op->peers[i].state == PEER_SYNCED)
            op->peers[i].state = PEER_NEEDED;
    }
    sync_step(op);
}

/* Continues after all answers that will come: treats holders without one as lost. */
static enum step_result sync_decide(struct blk_sync_op *op, uint32_t any, uint64_t now_ns)
{
    uint32_t lost = any & ~peers_synced(op);
    int rc = 0;

    bool too_few = op->others != 0 &&
                   (unsigned)__builtin_popcount(peers_synced(op)) < op->file->q_write;

    if ((lost != 0 || too_few) && op->denied) {
        rc = -EACCES;
    } else {
        enum heal heal = find_remake(op, lost);

        /* a closed file may be removed by now: nothing of it must be rebuilt */
        if (op->file->background.closed && (heal == HEAL_REMAKE || op->gone)) {
            sync_end(op, op->gone ? -ENOENT : -EIO);
            return STEP_ENDED;
        }
        if ((heal == HEAL_NOTHING && too_few) || (heal == HEAL_REMAKE && op->fenced))
            heal = HEAL_STUCK;

        if (heal == HEAL_REMAKE && remake_begin(op))
            return STEP_ON;
        if (heal == HEAL_STUCK && !op->denied && !op->fenced &&
            now_ns < op->deadline_ns) {
            op->unfit = 0; /* candidates may have recovered */
            return STEP_WAIT;
        }
        rc = heal == HEAL_REMAKE ? -ENOMEM
             : heal == HEAL_STUCK || op->loss != LOSS_NONE || op->reported_before ? -EIO
                                                                                  : 0;
        if (heal == HEAL_STUCK && op->denied)
            rc = -EACCES;
        if (rc == 0 && !op->surveyed && survey_is_due(&op->survey, peers_synced(op))) {
            op->surveyed = true;
            op->state = SYNC_SURVEY;
            survey_start(&op->survey, &op->set, on_surveyed, op);
            return STEP_ON;
        }
        if (rc == 0 && background_must_wait(op->file))
            return STEP_WAIT;
    }
    sync_end(op, rc);
    return STEP_ENDED;
}

static enum step_result sync_ask(struct blk_sync_op *op, uint64_t now_ns)
{
    uint32_t any = unsynced_any(&op->set);

    if (op->moved || engine_is_relocating(op->file)) {
        sync_end(op, -ROZO_EMOVED);
        return STEP_ENDED;
    }
    if (ask_peers(op, any | op->others, now_ns) != 0)
        return STEP_WAIT; /* for the next answer, or the tick */
    return sync_decide(op, any, now_ns);
}

static void sync_step(struct blk_sync_op *op)
{
    uint64_t now_ns = engine_now_ns(op->file->cli);

    op->watch.wake_ns = now_ns + ms_to_ns(WATCH_POLL_MS);
    for (;;) {
        switch (op->state) {
        case SYNC_ASK:
            if (sync_ask(op, now_ns) != STEP_ON)
                return;
            break;
        case SYNC_REMAKE:
            remake_step(op);
            break;
        case SYNC_SURVEY:
        case SYNC_READING:
            return;
        case SYNC_PUTTING:
            put_check(op, now_ns);
            if (op->state == SYNC_PUTTING)
                return;
        }
    }
}

static void on_sync_wake(struct watch *watch)
{
    sync_step(container_of(watch, struct blk_sync_op, watch));
}

/* Takes a loss to report: a caller waits for this sync. */
static void take_over_loss(struct blk_sync_op *op)
{
    struct storcli_file *file = op->file;

    if (!sync_reports(op))
        return;
    if (file->lost && op->loss == LOSS_NONE)
        op->loss = LOSS_EARLIER;
    file->lost = false;
}

/* Takes over what only a sync of a caller reports or needs. */
static void take_over_debts(struct blk_sync_op *op)
{
    struct storcli_file *file = op->file;

    if (file->others_wrote)
        op->others = file->c == 32 ? UINT32_MAX : (1u << file->c) - 1;
    file->others_wrote = false;
    take_over_loss(op);
}

void engine_next_sync(struct storcli_file *file)
{
    struct blk_sync_op *op = file->sync_waiting;

    if (op == NULL || file->syncing != NULL)
        return;
    file->sync_waiting = NULL;
    file->syncing = op;
    op->set = file->unsynced;
    file->unsynced = (struct unsynced){ 0 };
    commit_sync_begin(&file->commit);
    background_sync_began(file);
    if (op->reason == SYNC_FOR_CALLERS)
        take_over_debts(op);
    op->deadline_ns =
        engine_now_ns(file->cli) + ms_to_ns(file->cli->config.write_deadline_ms);
    watch_start(file->cli, &op->watch, on_sync_wake);
    sync_step(op);
}

static struct blk_sync_op *sync_op_new(struct storcli_file *file)
{
    struct blk_sync_op *op = calloc(1, sizeof(*op));

    if (op == NULL)
        return NULL;
    op->file = file;
    survey_init(&op->survey, file);
    for (unsigned i = 0; i < DIST_MAX; i++) { /* DIST_MAX: c may grow */
        op->peers[i].op = op;
        op->peers[i].candidate = (uint8_t)i;
    }
    return op;
}

void engine_sync_background(struct storcli_file *file)
{
    assert(file->syncing == NULL && file->sync_waiting == NULL);
    file->sync_waiting = sync_op_new(file);
    if (file->sync_waiting == NULL)
        return;
    file->sync_waiting->reason = SYNC_BACKGROUND;
    file->cli->n_background++;
    file->cli->stats.background_syncs++;
    engine_next_sync(file);
}

void engine_sync_look(struct storcli_file *file)
{
    if (file->syncing != NULL && file->syncing->state == SYNC_ASK)
        sync_step(file->syncing);
}

void engine_sync_relocates(struct storcli_file *file)
{
    if (file->syncing->reason == SYNC_BACKGROUND)
        engine_sync_abandon(file);
}

bool engine_sync_abandon(struct storcli_file *file)
{
    struct blk_sync_op *op = file->syncing;

    assert(op->reason != SYNC_FOR_CALLERS);
    if (op->state == SYNC_READING && !engine_read_abandon(op->reading)) {
        op->reason = SYNC_INTERRUPTED;
        return false;
    }
    if (op->state == SYNC_PUTTING)
        rpc_cancel(&op->remake.rq);
    op->state = SYNC_ASK;
    sync_end(op, -ECANCELED);
    return true;
}

static bool was_reported_before(const struct sync_call *call)
{
    return call->reports && call->n_reports != call->op.file->n_reports;
}

/* Joins the background sync under way if it covers everything unsynced. */
static bool join_background(struct storcli_file *file, struct sync_call *call)
{
    struct blk_sync_op *op = file->syncing;

    if (op->reason == SYNC_INTERRUPTED || !unsynced_is_empty(&file->unsynced) ||
        file->others_wrote)
        return false;
    op->reason = SYNC_FOR_CALLERS;
    file->cli->n_background--;
    op->deadline_ns =
        engine_now_ns(file->cli) + ms_to_ns(file->cli->config.write_deadline_ms);
    op->calls = call;
    op->reported_before = was_reported_before(call);
    take_over_loss(op);
    return true;
}

static void sync_call_run(struct blk_op *base)
{
    struct sync_call *call = container_of(base, struct sync_call, op);
    struct storcli_file *file = base->file;

    if (file->syncing != NULL && file->syncing->reason != SYNC_FOR_CALLERS) {
        if (join_background(file, call))
            return;
        engine_sync_abandon(file);
    }
    if (file->sync_waiting == NULL)
        file->sync_waiting = sync_op_new(file);
    if (file->sync_waiting == NULL) {
        blk_op_end(base, -ENOMEM);
        return;
    }
    call->next = file->sync_waiting->calls;
    file->sync_waiting->calls = call;
    file->sync_waiting->reported_before |= was_reported_before(call);
    engine_next_sync(file);
}

static void sync_start(struct storcli_file *file, bool reports, storcli_done_cb *done,
                       void *arg)
{
    struct sync_call *call = blk_op_new(file, sizeof(*call), done, arg);

    call->reports = reports;
    call->n_reports = file->n_reports;
    engine_op_begin(&call->op, 0, sync_call_run);
}

void storcli_sync(struct storcli_file *file, storcli_done_cb *done, void *arg)
{
    sync_start(file, true, done, arg);
}

void storcli_sync_layer(struct storcli_file *file, storcli_done_cb *done, void *arg)
{
    sync_start(file, false, done, arg);
}
