/*
 * read.c - read blocks: ask the k best storages, believe only what k projections agree on.
 *
 * In:     storcli_read(), engine_read(). Answers, and the tick. Thread: the env's.
 * Out:    ST_READ; rows of full blocks are received in their places in the caller's memory.
 * Keeps:  I2: a block is returned at the newest version that may have been acknowledged, or not at
 *         all. Nothing is decoded into the caller's memory while an answer may still write there.
 * Yours:  hedging, the order of candidates, how unclear blocks are asked for again.
 *
 * A run is cut into pieces of one extent. A piece lives in rounds: ask, judge every block, ask
 * more about those that are unclear, and, when all was asked and some are still unclear (a write
 * may be under way), finish the clear ones and begin another round for the rest a little later.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/proto/rozo.pb-c.h"

#include "common/bytes.h"
#include "storcli/core/coder.h"
#include "storcli/core/engine.h"
#include "storcli/core/resolve.h"

enum {
    BACKOFF_MIN_MS = 20,
    BACKOFF_MAX_MS = 5000,
    HEDGE_MAX_MS = 400,
    SETTLED_MS = 3000, /* all storages answered and it stays unclear this long: damaged */
    SETTLED_ROUNDS = 5,
    STARVED_MS = 3000, /* longer than rpc pauses between two attempts to connect */
    ASKS_MAX = 256,    /* of one piece and round; c storages hold few projections each */
};

enum ask_state {
    ASK_SENT,
    ASK_ANSWERED,
    ASK_FAILED, /* unknown, damaged, silent: no answer */
};

enum judged {
    JUDGED_BAD, /* damaged: as if it had not answered for this block */
    JUDGED_DATA,
    JUDGED_HOLE,
};

/* One request to one candidate. */
struct read_ask {
    struct rpc_request rq;
    struct read_piece *piece;
    struct read_ask *next;
    uint64_t sent_ns;
    uint64_t at_most; /* not 0: what lies below something newer was asked for */
    uint8_t candidate;
    uint8_t projection; /* asked for, then what was answered */
    uint8_t state;      /* enum ask_state */
    bool slow;          /* silent too long, or its channel is suspect */
    bool in_place;      /* full rows go to the caller's memory */
    bool whole;         /* covers the whole piece, and nothing in it is damaged */
    uint16_t at, n;     /* blocks, within the piece */
    uint32_t present;   /* answered: bitmap of the projections that are there */
    size_t head_bytes;  /* of one record */
    uint8_t *heads;     /* scratch, n * head_bytes */
    uint8_t *bodies;    /* scratch, n rows; NULL while all is in place */
    bool heads_judged;
    bool not_here; /* the projection asked for is not there, others may be */
    bool lacks;    /* the same; stays so */
    uint8_t judged[EXTENT_BLOCKS];     /* enum judged, from `at` on */
    uint16_t row_bytes[EXTENT_BLOCKS]; /* of their bodies */
};

/* What was found out about one block. */
struct read_block {
    uint64_t version;
    uint16_t user_bytes; /* 0: hole */
    bool clear;          /* version and user_bytes are what to return */
    bool done;           /* and the caller has it */
    uint64_t
        below; /* not clear: what is below this version is to be asked for; 0: nothing */
    unsigned doubt_round; /* what was found in it was doubtful; from 1; 0: none */
    uint64_t doubt_version, doubt_newest; /* its version, and of what lay above */
};

/* At most 128 blocks of one extent. */
struct read_piece {
    struct watch watch;
    struct read_op *op;
    struct read_ask *asks; /* owned, of this round */
    unsigned n_asks;
    uint64_t first_block;
    unsigned n_blocks;
    unsigned at, n; /* the blocks of this round: from the first to the last unclear one */
    uint64_t started_ns, deadline_ns,
        again_ns; /* again_ns: when the next round begins, or 0 */
    uint32_t backoff_ms;
    uint32_t denied; /* candidates that refused the capability */
    uint32_t none;   /* candidates that have no file of it, in this round */
    uint32_t
        up_before;     /* candidates that were up when the round had nobody left to ask */
    unsigned n_rounds; /* before this one */
    bool ended;
    struct read_block blocks[EXTENT_BLOCKS];
};

struct read_op {
    struct op op;
    struct read_want want;
    uint64_t first_block;
    uint32_t n_blocks;
    unsigned n_pieces, n_ended;
    int rc;
    struct read_piece pieces[];
};

static void piece_step(struct read_piece *piece);
static void piece_end(struct read_piece *piece, int rc);

/* ---- asking ---- */

static uint8_t *block_data(const struct read_piece *piece, unsigned block)
{
    uint64_t index = piece->first_block - piece->op->first_block + block;

    return piece->op->want.data + index * piece->op->op.file->target.block_bytes;
}

static void ask_free(struct storcli_file *file, struct read_ask *ask)
{
    if (ask->state == ASK_SENT)
        rpc_cancel(&ask->rq);
    scratch_put(&file->cli->scratch, ask->heads, ask->n * ask->head_bytes);
    scratch_put(&file->cli->scratch, ask->bodies, ask->n * file->row_bytes);
    free(ask);
}

static void piece_forget_asks(struct read_piece *piece)
{
    while (piece->asks != NULL) {
        struct read_ask *ask = piece->asks;

        piece->asks = ask->next;
        ask_free(piece->op->op.file, ask);
    }
    piece->n_asks = 0;
}

/* What kind of record its head says it is; the crc of data is looked at later. */
static enum judged judge_head(const struct read_ask *ask, unsigned block,
                              size_t *row_bytes)
{
    const struct storcli_file *file = ask->piece->op->op.file;
    const uint8_t *head = ask->heads + block * ask->head_bytes;
    struct record_header h;

    *row_bytes = 0;
    if ((head[6] & RECORD_DAMAGED) != 0)
        return JUDGED_BAD;
    switch (record_inspect(head, file->file_hash,
                           ask->piece->first_block + ask->at + block, ask->projection,
                           file->target.block_bytes, &h)) {
    case RECORD_IS_DATA:
        *row_bytes = codec_row_bytes(file->codec, h.user_bytes);
        return JUDGED_DATA;
    case RECORD_IS_HOLE:
        return JUDGED_HOLE;
    default:
        return JUDGED_BAD;
    }
}

static const uint8_t *ask_head(const struct read_ask *ask, unsigned block)
{
    return ask->heads + (block - ask->at) * ask->head_bytes;
}

static uint64_t head_version(const uint8_t *head)
{
    return get_le64(head + 16);
}

/* Once, as soon as the heads are here. */
static void judge_heads(struct read_ask *ask)
{
    for (unsigned b = 0; !ask->heads_judged && b < ask->n; b++) {
        size_t row_bytes;

        ask->judged[b] = (uint8_t)judge_head(ask, b, &row_bytes);
        ask->row_bytes[b] = (uint16_t)row_bytes;
    }
    ask->heads_judged = true;
}

/* Where the body of a record is, or goes to. */
static uint8_t *ask_body(const struct read_ask *ask, unsigned block, size_t row_bytes)
{
    const struct storcli_file *file = ask->piece->op->op.file;

    /* only full rows: rows of different lengths would lie on one another */
    if (ask->in_place && row_bytes == file->row_bytes)
        return block_data(ask->piece, ask->at + block) + ask->projection * row_bytes;
    return ask->bodies + block * file->row_bytes;
}

static bool ask_need_bodies(struct read_ask *ask)
{
    struct storcli_file *file = ask->piece->op->op.file;

    if (ask->bodies == NULL)
        ask->bodies = scratch_get(&file->cli->scratch, ask->n * file->row_bytes);
    return ask->bodies != NULL;
}

static int on_ask_place(struct rpc_request *rq, size_t rest_len, struct iovec *iov)
{
    struct read_ask *ask = container_of(rq, struct read_ask, rq);
    size_t sum = 0;
    int n = 0;

    if (rq->status != ROZO__STATUS__OK || ask->piece->op->want.heads_only)
        return -EBADMSG;
    judge_heads(ask);
    for (unsigned b = 0; b < ask->n; b++) {
        size_t row_bytes = ask->row_bytes[b];
        uint8_t *body;

        if (row_bytes == 0)
            continue;
        if (!(ask->in_place && row_bytes == ask->piece->op->op.file->row_bytes) &&
            !ask_need_bodies(ask))
            return -ENOMEM;
        body = ask_body(ask, b, row_bytes);
        sum += row_bytes;
        if (n > 0 && (uint8_t *)iov[n - 1].iov_base + iov[n - 1].iov_len == body)
            iov[n - 1].iov_len += row_bytes;
        else
            iov[n++] = (struct iovec){ .iov_base = body, .iov_len = row_bytes };
    }
    return sum == rest_len ? n : -EBADMSG;
}

/* A storage that chose the projection itself: only now do we know how long its heads are. */
static int ask_take_payload(struct read_ask *ask)
{
    struct storcli_file *file = ask->piece->op->op.file;
    size_t at, heads_bytes = ask->n * ask->head_bytes;

    if (ask->rq.answer_payload_len < heads_bytes)
        return -EBADMSG;
    ask->heads = scratch_get(&file->cli->scratch, heads_bytes);
    if (ask->heads == NULL)
        return -ENOMEM;
    memcpy(ask->heads, ask->rq.answer_payload, heads_bytes);
    at = heads_bytes;
    judge_heads(ask);
    for (unsigned b = 0; !ask->piece->op->want.heads_only && b < ask->n; b++) {
        size_t row_bytes = ask->row_bytes[b];

        if (row_bytes == 0)
            continue;
        if (!ask_need_bodies(ask))
            return -ENOMEM;
        if (ask->rq.answer_payload_len - at < row_bytes)
            return -EBADMSG;
        memcpy(ask_body(ask, b, row_bytes), ask->rq.answer_payload + at, row_bytes);
        at += row_bytes;
    }
    return at == ask->rq.answer_payload_len ? 0 : -EBADMSG;
}

static int ask_parse_answer(struct read_ask *ask)
{
    const struct storcli_file *file = ask->piece->op->op.file;
    Rozo__StReadResp *resp =
        rozo__st_read_resp__unpack(NULL, ask->rq.answer_msg_len, ask->rq.answer_msg);
    int rc = 0;

    if (resp == NULL)
        return -EBADMSG;
    if (resp->projection >= file->n ||
        (ask->projection != PROJECTION_ANY && ask->projection != resp->projection))
        rc = -EBADMSG;
    if (rc == 0) {
        ask->projection = (uint8_t)resp->projection;
        ask->present = (resp->present & ((1u << file->n) - 1)) | 1u << resp->projection;
    }
    rozo__st_read_resp__free_unpacked(resp, NULL);
    if (rc == 0 && ask->heads == NULL) {
        ask->head_bytes = coder_head_bytes(file->codec, ask->projection);
        rc = ask_take_payload(ask);
    }
    return rc;
}

/* Believe nothing without its crc, and nothing at all when the bytes are not those promised. */
static int ask_judge(struct read_ask *ask)
{
    struct storcli_file *file = ask->piece->op->op.file;
    bool heads_only = ask->piece->op->want.heads_only;
    size_t overhang = ask->head_bytes - RECORD_HEADER_BYTES;
    size_t expected = ask->n * ask->head_bytes;

    judge_heads(ask);
    ask->whole = ask->at == 0 && ask->n == ask->piece->n_blocks;
    for (unsigned b = 0; b < ask->n; b++) {
        const uint8_t *head = ask->heads + b * ask->head_bytes;
        size_t row_bytes = ask->row_bytes[b];

        if (ask->judged[b] == JUDGED_DATA && !heads_only) {
            expected += row_bytes;
            if (expected > ask->rq.answer_payload_len)
                return -EBADMSG;
            if (record_crc(head, head + RECORD_HEADER_BYTES, overhang,
                           ask_body(ask, b, row_bytes), row_bytes) != get_le32(head))
                ask->judged[b] = JUDGED_BAD;
        }
        if (ask->at_most != 0 && head_version(head) > ask->at_most)
            ask->judged[b] = JUDGED_BAD; /* it does not know the question */
        else if (ask->judged[b] == JUDGED_BAD)
            file->cli->stats.damaged++;
        if (ask->judged[b] == JUDGED_BAD) {
            ask->whole = false;
        }
    }
    return expected == ask->rq.answer_payload_len ? 0 : -EBADMSG;
}

static void ask_answered(struct read_ask *ask)
{
    struct storcli_file *file = ask->piece->op->op.file;
    struct storcli *cli = file->cli;
    uint64_t took_ns = engine_now_ns(cli) - ask->sent_ns;
    bool had_heads = ask->heads != NULL;
    int rc = 0;

    ask->state = ASK_FAILED;
    if (had_heads && ask->rq.answer_payload_len < ask->n * ask->head_bytes)
        rc = -EBADMSG;
    if (rc == 0)
        rc = ask_parse_answer(ask);
    if (rc == 0)
        rc = ask_judge(ask);
    if (rc != 0)
        return;
    ask->state = ASK_ANSWERED;
    if (!ask->slow)
        engine_peer_fine(file, ask->candidate);
    cli->read_latency_ns =
        cli->read_latency_ns - cli->read_latency_ns / 16 + took_ns / 16;
}

static void on_ask_answer(struct rpc_request *rq, int rc)
{
    struct read_ask *ask = container_of(rq, struct read_ask, rq);

    assert(ask->state == ASK_SENT);
    if (rc == 0 && rq->status == ROZO__STATUS__OK)
        ask_answered(ask);
    else
        ask->state = ASK_FAILED;
    if (rc == 0 && rq->status == ROZO__STATUS__DENIED)
        ask->piece->denied |= 1u << ask->candidate;
    if (rc == 0 && rq->status == ROZO__STATUS__NO_FILE &&
        ask->projection == PROJECTION_ANY)
        ask->piece->none |= 1u << ask->candidate;
    ask->lacks = ask->not_here =
        rc == 0 && ask->projection != PROJECTION_ANY &&
        (rq->status == ROZO__STATUS__NO_FILE || rq->status == ROZO__STATUS__DAMAGED);
    piece_step(ask->piece);
}

static struct read_ask *ask_new(struct read_piece *piece, unsigned candidate,
                                unsigned projection, unsigned at, unsigned n)
{
    struct storcli_file *file = piece->op->op.file;
    struct read_ask *ask = calloc(1, sizeof(*ask));

    if (ask == NULL)
        return NULL;
    ask->piece = piece;
    ask->candidate = (uint8_t)candidate;
    ask->projection = (uint8_t)projection;
    ask->at = (uint16_t)at;
    ask->n = (uint16_t)n;
    ask->in_place = piece->n_rounds == 0 && candidate == projection &&
                    projection < file->k && codec_is_systematic(file->codec) &&
                    !piece->op->want.heads_only;
    if (projection == PROJECTION_ANY)
        return ask;
    ask->head_bytes = coder_head_bytes(file->codec, projection);
    ask->heads = scratch_get(&file->cli->scratch, n * ask->head_bytes);
    if (ask->heads == NULL) {
        free(ask);
        return NULL;
    }
    return ask;
}

/* In place only one ask per row: a second one for the same projection goes to scratch. */
static bool row_is_taken(const struct read_piece *piece, unsigned projection)
{
    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->in_place && ask->projection == projection)
            return true;
    }
    return false;
}

static bool piece_ask_below(struct read_piece *piece, unsigned candidate,
                            unsigned projection, unsigned at, unsigned n,
                            uint64_t at_most)
{
    struct storcli_file *file = piece->op->op.file;
    uint64_t now_ns = engine_now_ns(file->cli);
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
    uint8_t msg[MSG_BYTES_MAX];
    struct read_ask *ask;
    size_t len;

    if (piece->n_asks >= ASKS_MAX)
        return false;
    ask = ask_new(piece, candidate, projection, at, n);
    if (ask == NULL)
        return false;
    ask->at_most = at_most;
    if (ask->in_place && (at_most != 0 || row_is_taken(piece, projection)))
        ask->in_place = false;
    ask->next = piece->asks;
    piece->asks = ask;
    piece->n_asks++;
    ask->sent_ns = now_ns;
    len = engine_msg_begin(file, msg);
    req.projection = projection;
    req.first_block = piece->first_block + at;
    req.n_blocks = n;
    req.to_storage = file->target.storages[candidate];
    req.heads_only = piece->op->want.heads_only;
    req.at_most = at_most;
    len += rozo__st_read_req__pack(&req, msg + len);
    ask->rq = (struct rpc_request){
        .op = ROZO__OP__ST_READ,
        .deadline_ms = piece->op->op.file->cli->config.read_deadline_ms,
        .msg = msg,
        .msg_len = len,
        .recv_head = ask->heads,
        .recv_head_len = n * ask->head_bytes,
        .place = ask->heads != NULL ? on_ask_place : NULL,
        .done = on_ask_answer,
    };
    rpc_send(engine_channel(file, candidate), &ask->rq);
    ask->rq.msg = NULL; /* copied */
    return true;
}

static bool piece_ask(struct read_piece *piece, unsigned candidate, unsigned projection,
                      unsigned at, unsigned n)
{
    return piece_ask_below(piece, candidate, projection, at, n, 0);
}

/* ---- whom to ask ---- */

static uint32_t asked_candidates(const struct read_piece *piece)
{
    uint32_t asked = 0;

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next)
        asked |= 1u << ask->candidate;
    return asked;
}

/* The best candidate not asked yet this round: healthy ones first, among them the optimal ones in
 * order, so that rows come before coded projections and spares last. -1: none of that rank. */
static int pick_candidate(const struct read_piece *piece, enum peer_rank worst)
{
    struct storcli_file *file = piece->op->op.file;
    uint32_t asked = asked_candidates(piece);

    for (unsigned rank = PEER_GOOD; rank <= worst; rank++) {
        for (unsigned i = 0; i < file->c; i++) {
            if ((asked >> i & 1) == 0 && engine_rank(file, i) == rank)
                return (int)i;
        }
    }
    return -1;
}

static bool ask_candidate(struct read_piece *piece, unsigned candidate, unsigned at,
                          unsigned n)
{
    struct storcli_file *file = piece->op->op.file;

    return piece_ask(piece, candidate, candidate < file->n ? candidate : PROJECTION_ANY,
                     at, n);
}

static uint64_t hedge_ns(const struct storcli *cli)
{
    uint64_t least = ms_ns(cli->config.hedge_ms), most = ms_ns(HEDGE_MAX_MS);
    uint64_t wanted =
        cli->read_latency_ns * 4; /* when all are slow, haste makes it worse */

    if (most < least)
        most = least;
    return wanted < least ? least : wanted > most ? most : wanted;
}

/* Who is silent too long, or is said to hang, is not counted on any more. */
static void note_slow_ones(struct read_piece *piece, uint64_t now_ns)
{
    struct storcli_file *file = piece->op->op.file;

    for (struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->state != ASK_SENT || ask->slow)
            continue;
        if (!engine_is_up(file, ask->candidate)) {
            ask->slow = true;
            file->cli->stats.hedges++;
        } else if (now_ns - ask->sent_ns >= hedge_ns(file->cli)) {
            ask->slow = true;
            file->cli->stats.hedges++;
            engine_peer_slow(file, ask->candidate);
        }
    }
}

/* Candidates that answered, or will soon, for all we know. */
static unsigned n_counted_on(const struct read_piece *piece)
{
    uint32_t counted = 0;

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->state == ASK_ANSWERED || (ask->state == ASK_SENT && !ask->slow))
            counted |= 1u << ask->candidate;
    }
    return (unsigned)__builtin_popcount(counted);
}

static unsigned n_in_state(const struct read_piece *piece, enum ask_state state,
                           bool slow_too)
{
    unsigned n = 0;

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->state == state && (slow_too || !ask->slow))
            n++;
    }
    return n;
}

/* Keep k answers coming. */
static void ask_until_k(struct read_piece *piece)
{
    unsigned k = piece->op->op.file->k;

    while (n_counted_on(piece) < k) {
        int candidate = pick_candidate(piece, PEER_SLOW);

        if (candidate < 0)
            candidate = pick_candidate(piece, PEER_SUSPECT);
        if (candidate < 0 ||
            !ask_candidate(piece, (unsigned)candidate, piece->at, piece->n))
            return;
    }
}

static bool was_asked(const struct read_piece *piece, unsigned candidate,
                      unsigned projection)
{
    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->candidate == candidate && ask->projection == projection)
            return true;
    }
    return false;
}

/* Projections that lie beside one that was answered: a spare may hold several. */
static bool ask_beside(struct read_piece *piece, unsigned at, unsigned n)
{
    unsigned n_projections = piece->op->op.file->n;
    bool any = false;

    for (struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        /* an optimal storage that missed its own may have been the home of another */
        if (ask->state == ASK_FAILED && ask->not_here) {
            ask->not_here = false;
            any = piece_ask(piece, ask->candidate, PROJECTION_ANY, at, n) || any;
        }
        for (unsigned p = 0; ask->state == ASK_ANSWERED && p < n_projections; p++) {
            if ((ask->present >> p & 1) != 0 && !was_asked(piece, ask->candidate, p))
                any = piece_ask(piece, ask->candidate, p, at, n) || any;
        }
    }
    return any;
}

/* Ask everybody else about the blocks that are unclear; false when there is nobody left. */
static bool ask_the_rest(struct read_piece *piece)
{
    unsigned first = piece->at, end = piece->at + piece->n;
    bool any;
    int candidate;

    while (first < end && piece->blocks[first].clear)
        first++;
    while (end > first && piece->blocks[end - 1].clear)
        end--;
    if (first == end)
        return false;
    any = ask_beside(piece, first, end - first);
    while ((candidate = pick_candidate(piece, any ? PEER_SLOW : PEER_SUSPECT)) >= 0) {
        if (!ask_candidate(piece, (unsigned)candidate, first, end - first))
            break;
        any = true;
    }
    return any;
}

/* Was this asked for already, for all of these blocks? */
static bool was_asked_below(const struct read_piece *piece, const struct read_ask *as,
                            unsigned at, unsigned n, uint64_t at_most)
{
    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->candidate == as->candidate && ask->projection == as->projection &&
            ask->at_most == at_most && ask->at <= at && ask->at + ask->n >= at + n)
            return true;
    }
    return false;
}

/* Of blocks [first, end), those who said that they have `version`: what is below? */
static bool ask_below_run(struct read_piece *piece, unsigned first, unsigned end,
                          uint64_t version)
{
    bool any = false;

    for (struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        unsigned at = ask->at > first ? ask->at : first, b;
        unsigned past = ask->at + ask->n < end ? ask->at + ask->n : end;

        if (ask->state != ASK_ANSWERED || at >= past)
            continue;
        for (b = at; b < past; b++) {
            if (ask->judged[b - ask->at] != JUDGED_BAD &&
                head_version(ask_head(ask, b)) == version)
                break;
        }
        if (b < past && !was_asked_below(piece, ask, at, past - at, version - 1))
            any = piece_ask_below(piece, ask->candidate, ask->projection, at, past - at,
                                  version - 1) ||
                  any;
    }
    return any;
}

/* Where too few have the newest version, the one before may be whole: below it. False: nothing to ask. */
static bool ask_below(struct read_piece *piece)
{
    unsigned end = piece->at + piece->n, past;
    bool any = false;

    for (unsigned b = piece->at; b < end; b = past) {
        uint64_t version = piece->blocks[b].below;

        past = b + 1;
        if (version == 0)
            continue;
        while (past < end && piece->blocks[past].below == version)
            past++;
        any = ask_below_run(piece, b, past, version) || any;
    }
    return any;
}

/* ---- judging ---- */

static void block_is(struct read_piece *piece, unsigned block, uint64_t version,
                     uint16_t user_bytes)
{
    piece->blocks[block].version = version;
    piece->blocks[block].user_bytes = user_bytes;
    piece->blocks[block].clear = true;
    piece->blocks[block].below = 0;
}

static uint16_t head_user_bytes(const uint8_t *head)
{
    return get_le16(head + 8);
}

/* The usual case, cheaply: exactly k whole answers of distinct projections with nothing beside
 * them, all saying the same of every block. */
static bool resolve_healthy(struct read_piece *piece)
{
    const struct read_ask *asks[CODEC_K_MAX];
    unsigned n = 0, k = piece->op->op.file->k;
    uint32_t projections = 0;

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->state != ASK_ANSWERED)
            continue;
        if (n == k || !ask->whole || ask->at_most != 0 ||
            ask->present != 1u << ask->projection)
            return false;
        asks[n++] = ask;
        projections |= 1u << ask->projection;
    }
    if (n != k || (unsigned)__builtin_popcount(projections) != k)
        return false;
    for (unsigned b = 0; b < piece->n_blocks; b++) {
        const uint8_t *head = ask_head(asks[0], b);

        for (unsigned i = 1; i < k; i++) {
            const uint8_t *other = ask_head(asks[i], b);

            if (head_version(head) != head_version(other) ||
                head_user_bytes(head) != head_user_bytes(other))
                return false;
        }
        block_is(piece, b, head_version(head), head_user_bytes(head));
    }
    return true;
}

static bool ask_covers(const struct read_ask *ask, unsigned block)
{
    return ask->state == ASK_ANSWERED && block >= ask->at &&
           block < ask->at + (unsigned)ask->n;
}

/*
 * What rests on what lies below something newer. Had that been committed before they were asked, they
 * would have forgotten what it replaced and told of something older, or a hole. So all are asked once more:
 * when it still cannot have been acknowledged then, it was not committed before.
 */
static bool doubt_is_over(struct read_piece *piece, unsigned block, uint64_t version,
                          const struct resolve_answer *answers, unsigned n)
{
    struct read_block *rb = &piece->blocks[block];
    uint64_t newest = 0;

    for (unsigned i = 0; i < n; i++)
        newest = answers[i].version > newest ? answers[i].version : newest;
    if (rb->doubt_round != 0 && rb->doubt_version == version &&
        rb->doubt_newest == newest)
        return rb->doubt_round <= piece->n_rounds;
    rb->doubt_round = piece->n_rounds + 1;
    rb->doubt_version = version;
    rb->doubt_newest = newest;
    return false;
}

/* Judge one block by everything that was said of it. */
static void resolve_one(struct read_piece *piece, unsigned block)
{
    const struct storcli_file *file = piece->op->op.file;
    struct resolve_answer answers[RESOLVE_ANSWERS_MAX];
    enum resolve_result result;
    uint32_t present[DIST_MAX] = { 0 }, heard[DIST_MAX] = { 0 };
    uint32_t all = file->c == 32 ? UINT32_MAX : (1u << file->c) - 1;
    uint32_t told = piece->none;
    unsigned n = 0;
    uint64_t version;
    uint16_t user_bytes;
    bool below = false, doubtful;

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (!ask_covers(ask, block))
            continue;
        present[ask->candidate] |= ask->present;
        if (ask->judged[block - ask->at] == JUDGED_BAD || n == RESOLVE_ANSWERS_MAX ||
            (ask->at_most == 0 && (heard[ask->candidate] >> ask->projection & 1) != 0))
            continue;
        if (ask->at_most == 0)
            heard[ask->candidate] |= 1u << ask->projection;
        answers[n++] = (struct resolve_answer){
            .version = head_version(ask_head(ask, block)),
            .user_bytes = head_user_bytes(ask_head(ask, block)),
            .storage = ask->candidate,
            .projection = ask->projection,
            .below = ask->at_most != 0,
        };
    }
    for (unsigned i = 0; i < file->c; i++) {
        if (present[i] != 0)
            told = (present[i] & ~heard[i]) == 0 ? told | 1u << i : told & ~(1u << i);
    }
    piece->blocks[block].below = 0;
    result = resolve_block(file->k, file->q, all, told, answers, n, &version, &user_bytes,
                           &doubtful);
    if (result == RESOLVE_BELOW)
        piece->blocks[block].below = version;
    if (result == RESOLVE_UNCLEAR || result == RESOLVE_BELOW ||
        (doubtful && !doubt_is_over(piece, block, version, answers, n)))
        return;
    for (unsigned i = 0; i < n; i++) {
        if (answers[i].version < version && !answers[i].below)
            file->cli->stats.stale++;
        if (answers[i].version == version && answers[i].below)
            below = true;
    }
    file->cli->stats.below += below;
    block_is(piece, block, version, user_bytes);
}

/* Are all blocks of this round clear now? What is clear stays so. */
static bool resolve_all(struct read_piece *piece)
{
    bool all = true;

    if (piece->n_rounds == 0 && resolve_healthy(piece))
        return true;
    for (unsigned b = piece->at; b < piece->at + piece->n; b++) {
        if (!piece->blocks[b].clear)
            resolve_one(piece, b);
        all = all && piece->blocks[b].clear;
    }
    return all;
}

/* ---- giving it to the caller ---- */

static uint32_t block_sources(const struct read_piece *piece, unsigned block,
                              const struct read_ask *source[CODEC_N_MAX])
{
    const struct read_block *rb = &piece->blocks[block];
    uint32_t have = 0;

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (!ask_covers(ask, block) || ask->judged[block - ask->at] != JUDGED_DATA)
            continue;
        if (head_version(ask_head(ask, block)) != rb->version ||
            head_user_bytes(ask_head(ask, block)) != rb->user_bytes)
            continue;
        if ((have >> ask->projection & 1) != 0 && !ask->in_place)
            continue; /* the one in place is better */
        have |= 1u << ask->projection;
        source[ask->projection] = ask;
    }
    return have;
}

static bool block_is_to_decode(const struct read_piece *piece, unsigned block)
{
    const struct read_block *rb = &piece->blocks[block];

    return rb->clear && !rb->done && rb->user_bytes != 0;
}

/* Does this block lie behind those of a run, come from the same answers, and have rows as long? */
static bool block_joins_run(const struct read_piece *piece, unsigned block,
                            unsigned first, uint32_t have,
                            const struct read_ask *const source[CODEC_N_MAX])
{
    const struct read_ask *other[CODEC_N_MAX] = { NULL };

    return block < piece->at + piece->n && block_is_to_decode(piece, block) &&
           piece->blocks[block].user_bytes == piece->blocks[first].user_bytes &&
           block_sources(piece, block, other) == have &&
           memcmp(source, other, sizeof(other)) == 0;
}

/* Decode a run of blocks by one plan; returns how many. Of a healthy one all rows are in their places, and
 * nothing is copied. */
static unsigned run_decode(struct read_piece *piece, unsigned first)
{
    struct storcli_file *file = piece->op->op.file;
    const struct read_ask *source[CODEC_N_MAX] = { NULL };
    const uint8_t *body[CODEC_N_MAX] = { NULL }, *overhang[CODEC_N_MAX] = { NULL };
    uint32_t have = block_sources(piece, first, source), rows = (1u << file->k) - 1;
    struct codec_run run = {
        .n_blocks = 1,
        .row_bytes = codec_row_bytes(file->codec, piece->blocks[first].user_bytes),
        .data_stride = file->target.block_bytes,
        .body_stride = file->row_bytes,
    };
    struct codec_plan plan;
    int rc;

    for (unsigned i = 0; i < file->n; i++) {
        if ((have >> i & 1) == 0)
            continue;
        body[i] = ask_body(source[i], first - source[i]->at, run.row_bytes);
        overhang[i] = ask_head(source[i], first) + RECORD_HEADER_BYTES;
        run.overhang_stride[i] = source[i]->head_bytes;
    }
    while (block_joins_run(piece, first + (unsigned)run.n_blocks, first, have, source))
        run.n_blocks++;
    rc = codec_plan(file->codec, have, 0, &plan);
    assert(rc == 0); /* resolve_block() counted k of them */
    codec_decode_run(&plan, &run, body, overhang, block_data(piece, first));
    if (!codec_is_systematic(file->codec) || (have & rows) != rows)
        file->cli->stats.blocks_decoded += run.n_blocks;
    return (unsigned)run.n_blocks;
}

static void piece_decode(struct read_piece *piece)
{
    for (unsigned b = piece->at; b < piece->at + piece->n;)
        b += block_is_to_decode(piece, b) ? run_decode(piece, b) : 1;
}

/* Hand over what is clear. No answer may be under way: it could still write where we do. */
static void piece_assemble(struct read_piece *piece)
{
    const struct read_want *want = &piece->op->want;
    size_t block_bytes = piece->op->op.file->target.block_bytes;
    uint64_t index = piece->first_block - piece->op->first_block;

    if (want->data != NULL)
        piece_decode(piece);
    for (unsigned b = piece->at; b < piece->at + piece->n; b++) {
        struct read_block *rb = &piece->blocks[b];

        if (!rb->clear || rb->done)
            continue;
        if (want->data != NULL && rb->user_bytes < block_bytes)
            memset(block_data(piece, b) + rb->user_bytes, 0,
                   block_bytes - rb->user_bytes);
        if (want->user_bytes != NULL)
            want->user_bytes[index + b] = rb->user_bytes;
        if (want->versions != NULL)
            want->versions[index + b] = rb->version;
        rb->done = true;
    }
}

static void piece_stop_asking(struct read_piece *piece)
{
    for (struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->state == ASK_SENT) {
            rpc_cancel(&ask->rq);
            ask->state = ASK_FAILED;
        }
    }
}

/* ---- rounds ---- */

static uint32_t candidates_up(const struct read_piece *piece)
{
    uint32_t up = 0;

    for (unsigned i = 0; i < piece->op->op.file->c; i++) {
        if (engine_is_up(piece->op->op.file, i))
            up |= 1u << i;
    }
    return up;
}

/* Finish what is clear, forget the answers, ask again about the rest: everybody at once. */
static void round_begin(struct read_piece *piece)
{
    unsigned end = piece->at + piece->n;
    int candidate;

    piece_stop_asking(piece);
    piece_assemble(piece);
    piece_forget_asks(piece);
    while (piece->at < end && piece->blocks[piece->at].done)
        piece->at++;
    while (end > piece->at && piece->blocks[end - 1].done)
        end--;
    piece->n = end - piece->at;
    piece->n_rounds++;
    piece->again_ns = 0;
    piece->denied = piece->none = 0;
    while ((candidate = pick_candidate(piece, PEER_SLOW)) >= 0) {
        if (!ask_candidate(piece, (unsigned)candidate, piece->at, piece->n))
            break;
    }
}

/* Nobody is left to ask and something is unclear. */
static void round_wait(struct read_piece *piece, uint64_t now_ns)
{
    if (piece->again_ns == 0) {
        piece->backoff_ms =
            piece->backoff_ms == 0 ? BACKOFF_MIN_MS : piece->backoff_ms * 2;
        if (piece->backoff_ms > BACKOFF_MAX_MS)
            piece->backoff_ms = BACKOFF_MAX_MS;
        piece->again_ns = now_ns + ms_ns(piece->backoff_ms);
        piece->up_before = candidates_up(piece);
    }
    if (now_ns >= piece->again_ns || (candidates_up(piece) & ~piece->up_before) != 0)
        round_begin(piece);
}

/* Everybody has spoken, again and again, and it is still unclear: waiting will not help. */
static bool is_settled(const struct read_piece *piece, uint64_t now_ns)
{
    return piece->n_rounds >= SETTLED_ROUNDS &&
           now_ns - piece->started_ns >= ms_ns(SETTLED_MS) &&
           n_in_state(piece, ASK_SENT, true) == 0 &&
           (unsigned)__builtin_popcount(asked_candidates(piece)) ==
               piece->op->op.file->c &&
           (unsigned)__builtin_popcount(candidates_up(piece)) == piece->op->op.file->c;
}

/* All who are there have spoken: it depends on those who are away. */
static bool only_absent_ones_can_help(const struct read_piece *piece)
{
    const struct storcli_file *file = piece->op->op.file;
    uint32_t up = candidates_up(piece);

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        if (ask->state == ASK_SENT && (up >> ask->candidate & 1) != 0)
            return false;
    }
    return (unsigned)__builtin_popcount(up) < file->c;
}

/* The kernel asks for the pages of one read(2) several times over, each in vain: only the first of
 * these waits for as long as one may, while no storage comes that was not there then. */
static bool is_starved(const struct read_piece *piece, uint64_t now_ns)
{
    const struct storcli_file *file = piece->op->op.file;

    return file->starved && now_ns - piece->started_ns >= ms_ns(STARVED_MS) &&
           (candidates_up(piece) & ~file->starved_up) == 0 &&
           only_absent_ones_can_help(piece);
}

static void note_starved(struct read_piece *piece, uint64_t now_ns)
{
    struct storcli_file *file = piece->op->op.file;

    if (now_ns < piece->deadline_ns || !only_absent_ones_can_help(piece))
        return;
    file->starved = true;
    file->starved_up = candidates_up(piece);
}

static bool is_denied(const struct read_piece *piece)
{
    unsigned n_denied = (unsigned)__builtin_popcount(piece->denied);

    return piece->op->op.file->c - n_denied < piece->op->op.file->k;
}

static void piece_step(struct read_piece *piece)
{
    uint64_t now_ns = engine_now_ns(piece->op->op.file->cli);

    if (n_in_state(piece, ASK_ANSWERED, true) >= piece->op->op.file->k &&
        resolve_all(piece)) {
        piece->op->op.file->starved = false;
        piece_end(piece, 0);
        return;
    }
    if (is_denied(piece) || now_ns >= piece->deadline_ns || is_settled(piece, now_ns) ||
        is_starved(piece, now_ns)) {
        note_starved(piece, now_ns);
        piece_end(piece, piece->denied != 0 ? -EACCES : -EIO);
        return;
    }
    piece->watch.wake_ns = now_ns + ms_ns(WATCH_POLL_MS);
    note_slow_ones(piece, now_ns);
    ask_until_k(piece);
    if (n_in_state(piece, ASK_SENT, false) > 0)
        return; /* answers will come soon */
    if (!ask_the_rest(piece) && !ask_below(piece))
        round_wait(piece, now_ns);
}

static void on_piece_wake(struct watch *watch)
{
    piece_step(container_of(watch, struct read_piece, watch));
}

static void piece_start(struct read_piece *piece)
{
    struct storcli *cli = piece->op->op.file->cli;

    piece->n = piece->n_blocks;
    piece->started_ns = engine_now_ns(cli);
    piece->deadline_ns = piece->started_ns + ms_ns(cli->config.read_deadline_ms);
    watch_start(cli, &piece->watch, on_piece_wake);
    piece->watch.wake_ns = piece->started_ns + ms_ns(WATCH_TICK_MS);
    ask_until_k(piece);
}

static void piece_close(struct read_piece *piece)
{
    piece_forget_asks(piece);
    watch_stop(piece->op->op.file->cli, &piece->watch);
    piece->ended = true;
}

/* Does this answer of a home, or that it has none, show that the block is not as it should be there? */
static bool is_wrong_at_home(const struct read_piece *piece, const struct read_ask *ask,
                             unsigned block)
{
    if (piece->blocks[block].version == 0)
        return false;
    if (ask->lacks)
        return block >= ask->at && block < ask->at + (unsigned)ask->n;
    return ask_covers(ask, block) &&
           (ask->judged[block - ask->at] == JUDGED_BAD ||
            head_version(ask_head(ask, block)) < piece->blocks[block].version);
}

/* The first home with something wrong is told to look at it. */
static void piece_hint(const struct read_piece *piece)
{
    struct storcli_file *file = piece->op->op.file;

    for (const struct read_ask *ask = piece->asks; ask != NULL; ask = ask->next) {
        unsigned first = 0, end = piece->n_blocks;

        if (ask->candidate >= file->n || ask->projection != ask->candidate ||
            ask->at_most != 0)
            continue;
        while (first < end && !is_wrong_at_home(piece, ask, first))
            first++;
        while (end > first && !is_wrong_at_home(piece, ask, end - 1))
            end--;
        if (first == end)
            continue;
        after_check(file, ask->candidate, piece->first_block + first, end - first);
        return;
    }
}

static void piece_end(struct read_piece *piece, int rc)
{
    struct read_op *op = piece->op;

    piece_stop_asking(piece);
    if (rc == 0) {
        piece_assemble(piece);
        /* more were asked than is usual; what we write ourselves at the moment is nothing wrong */
        if (piece->n_asks > op->op.file->k && list_is_empty(&op->op.file->commit.flights))
            piece_hint(piece);
        op->op.file->cli->stats.blocks_read += piece->n_blocks;
    }
    piece_close(piece);
    op->n_ended++;
    if (rc != 0) { /* the rest would be in vain */
        for (unsigned i = 0; i < op->n_pieces; i++) {
            if (!op->pieces[i].ended)
                piece_close(&op->pieces[i]);
        }
        op->n_ended = op->n_pieces;
    }
    if (op->n_ended == op->n_pieces)
        op_end(&op->op, rc);
}

static void read_run(struct op *base)
{
    struct read_op *op = container_of(base, struct read_op, op);
    uint64_t first = op->first_block, left = op->n_blocks;

    for (unsigned i = 0; i < op->n_pieces; i++) {
        struct read_piece *piece = &op->pieces[i];

        piece->op = op;
        piece->first_block = first;
        piece->n_blocks = piece_blocks(first, left);
        first += piece->n_blocks;
        left -= piece->n_blocks;
        piece_start(piece);
    }
}

void engine_read(struct storcli_file *file, uint64_t first_block, uint32_t n_blocks,
                 const struct read_want *want, storcli_done_cb *done, void *arg)
{
    unsigned n_pieces = piece_count(first_block, n_blocks);
    struct read_op *op;

    assert(n_blocks >= 1 && n_blocks <= STORCLI_RUN_MAX);
    assert(first_block + n_blocks > first_block);
    op = op_new(file, sizeof(*op) + n_pieces * sizeof(op->pieces[0]), done, arg);
    op->want = *want;
    op->first_block = first_block;
    op->n_blocks = n_blocks;
    op->n_pieces = n_pieces;
    op_start(&op->op, (uint64_t)n_blocks * file->target.block_bytes, read_run);
}

void storcli_read(struct storcli_file *file, uint64_t first_block, uint32_t n_blocks,
                  uint8_t *data, uint16_t *user_bytes, storcli_done_cb *done, void *arg)
{
    const struct read_want want = { .data = data, .user_bytes = user_bytes };

    engine_read(file, first_block, n_blocks, &want, done, arg);
}
