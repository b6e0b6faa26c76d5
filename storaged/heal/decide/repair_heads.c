/*
 * repair_heads.c - collects what every storage has of a run of blocks.
 *
 * In:     repair_heads_start(), repair_heads_below(); answers. Thread: that of the env.
 * Out:    ST_READ with heads_only, one for each projection that a candidate has.
 * Keeps:  I8, an answer is checked before it counts; a candidate that left
 *         any request unanswered is not among those that count as having answered.
 */
#include "storaged/heal/decide/repair_heads.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/list.h"

struct head_ask {
    struct repair_ask ask;
    struct repair_heads *heads;
    struct head_ask *next;
    uint8_t projection; /* HEAL_PROJECTION_ANY: any */
    uint8_t level;
    uint16_t at, n;   /* blocks within the run */
    uint64_t at_most; /* 0: newest version */
    uint8_t *buf;     /* borrowed; NULL: no bodies */
};

static void ask_send_heads(struct repair_heads *h, unsigned candidate,
                           unsigned projection, uint8_t *buf);

/* ---- answers ---- */

static void answer_add(struct repair_heads *h, unsigned block,
                       const struct decide_answer *a)
{
    assert(block < h->n && a->candidate < h->file->c);
    if (h->n_answers[block] == DECIDE_ANSWERS_MAX) {
        h->too_many[block] = true;
        return;
    }
    repair_heads_of(h, block)[h->n_answers[block]++] = *a;
}

/* Counts all blocks of the request as damaged: the file of this projection is
 * unreadable. */
static void add_damaged(struct head_ask *ha, bool torn)
{
    struct decide_answer a = {
        .candidate = ha->ask.candidate,
        .projection = ha->projection,
        .kind = DECIDE_DAMAGED,
        .level = ha->level,
        .torn = torn,
    };

    assert(ha->at + ha->n <= ha->heads->n);
    for (unsigned i = 0; i < ha->n; i++)
        answer_add(ha->heads, ha->at + i, &a);
}

static void add_head(struct head_ask *ha, unsigned i, unsigned projection,
                     const uint8_t *p)
{
    struct repair_heads *h = ha->heads;
    struct record_header header;
    struct decide_answer a = {
        .candidate = ha->ask.candidate,
        .projection = (uint8_t)projection,
        .kind = DECIDE_DAMAGED,
        .level = ha->level,
    };
    enum record_state state = RECORD_IS_DAMAGED;

    assert(i < ha->n && ha->at + i < h->n && projection < h->file->n);
    if ((p[6] & RECORD_DAMAGED) != 0) {
        record_header_get(p, &header);
        a.version = header.version;
        a.torn =
            (p[6] & RECORD_TORN) != 0 && (h->may_be_torn >> ha->ask.candidate & 1) != 0;
        a.marked = (p[6] & RECORD_MARKED) != 0;
    } else {
        state = record_inspect(p, h->file->file_hash, h->first + ha->at + i, projection,
                               h->file->target.block_bytes, &header);
    }
    if (state != RECORD_IS_DAMAGED &&
        (ha->at_most == 0 || header.version <= ha->at_most)) {
        a.kind = state == RECORD_IS_DATA ? DECIDE_DATA : DECIDE_HOLE;
        a.version = header.version;
        a.user_bytes = state == RECORD_IS_DATA ? header.user_bytes : 0;
    }
    answer_add(h, ha->at + i, &a);
}

static size_t bodies_len(const struct head_ask *ha)
{
    return ha->buf == NULL ? 0
                           : heal_bodies(ha->heads->file, ha->heads->first + ha->at,
                                         ha->n, ha->projection, ha->buf, NULL, NULL);
}

/* Takes an answer. *present: projections that the candidate has. Returns 0, or -EBADMSG
 * if it does not fit the request. */
static int take_answer(struct head_ask *ha, uint32_t *present)
{
    struct repair_heads *h = ha->heads;
    const struct rpc_request *rq = &ha->ask.rq;
    Rozo__StReadResp *resp =
        rozo__st_read_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    unsigned projection;
    const uint8_t *heads = ha->buf == NULL ? rq->answer_payload : ha->buf;
    size_t head_bytes;

    if (resp == NULL)
        return -EBADMSG;
    projection = resp->projection;
    *present = resp->present & ((1u << h->file->n) - 1);
    if (resp->doubt)
        h->doubt |= 1u << ha->ask.candidate;
    if (resp->may_be_torn)
        h->may_be_torn |= 1u << ha->ask.candidate;
    h->clients |= resp->serves_clients;
    rozo__st_read_resp__free_unpacked(resp, NULL);
    if (projection >= h->file->n ||
        (ha->projection != HEAL_PROJECTION_ANY && ha->projection != projection))
        return -EBADMSG;
    head_bytes = heal_head_bytes(h->file, projection);
    if (rq->answer_payload_len < ha->n * head_bytes ||
        rq->answer_payload_len - ha->n * head_bytes != bodies_len(ha))
        return -EBADMSG;
    if (ha->buf != NULL) {
        h->with_bodies |= 1u << projection;
        h->body_bytes += bodies_len(ha);
    }
    h->asked[ha->ask.candidate] |= 1u << projection;
    for (unsigned i = 0; i < ha->n; i++)
        add_head(ha, i, projection, heads + i * head_bytes);
    return 0;
}

static void ask_the_rest(struct repair_heads *h, unsigned candidate, uint32_t present)
{
    for (unsigned p = 0; p < h->file->n; p++) {
        if ((present >> p & 1) != 0 && (h->asked[candidate] >> p & 1) == 0)
            ask_send_heads(h, candidate, p, NULL);
    }
}

static void heads_step(struct repair_heads *h)
{
    if (h->asks != NULL || !h->busy)
        return;
    h->busy = false;
    env_timer_stop(h->file->env, &h->timer);
    h->answered = h->has_file & ~h->failed;
    h->none = ~h->has_file & ~h->failed & heal_file_all(h->file);
    h->file->unanswered |= h->failed;
    assert((h->answered & h->none) == 0);
    h->done(h);
}

static void ask_forget(struct head_ask *ha)
{
    struct head_ask **link = &ha->heads->asks;

    while (*link != ha) {
        assert(*link != NULL);
        link = &(*link)->next;
    }
    *link = ha->next;
    repair_ask_cancel(&ha->ask);
    free(ha);
}

/* Notes the projections of which a spare has an unreadable file. */
static void note_spoiled(const struct head_ask *ha)
{
    struct repair_heads *h = ha->heads;

    for (unsigned p = 0; p < h->file->n; p++) {
        if ((ha->projection == HEAL_PROJECTION_ANY || ha->projection == p) &&
            h->file->home[p] != ha->ask.candidate)
            h->spoiled[ha->ask.candidate] |= 1u << p;
    }
}

/* Returns whether no sync of the file ever ended at that storage. */
static bool was_never_synced(const struct rpc_request *rq)
{
    Rozo__StReadResp *resp =
        rozo__st_read_resp__unpack(NULL, rq->answer_msg_len, rq->answer_msg);
    bool unsynced = resp != NULL && resp->may_be_torn && resp->unsynced;

    rozo__st_read_resp__free_unpacked(resp, NULL);
    return unsynced;
}

static void on_heads_answer(struct repair_ask *ask, int rc)
{
    struct head_ask *ha = container_of(ask, struct head_ask, ask);
    struct repair_heads *h = ha->heads;
    uint32_t bit = 1u << ask->candidate, present = 0;
    bool first = ha->level == 0;

    assert(h->busy);
    if (repair_ask_is_ok(ask, rc)) {
        if (take_answer(ha, &present) != 0)
            h->failed |= bit;
        h->has_file |= bit;
        if (first)
            ask_the_rest(h, ask->candidate, present);
    } else if (rc == 0 && ask->rq.status == ROZO__STATUS__DAMAGED) {
        h->has_file |= bit;
        add_damaged(ha, was_never_synced(&ask->rq));
        if (first)
            note_spoiled(ha);
        if (first && ha->projection == ask->candidate)
            ask_send_heads(h, ask->candidate, HEAL_PROJECTION_ANY, NULL);
    } else if (rc == 0 && ask->rq.status == ROZO__STATUS__NO_FILE) {
        if (first && ha->projection == ask->candidate)
            ask_send_heads(h, ask->candidate, HEAL_PROJECTION_ANY, NULL);
        else if (!first)
            add_damaged(ha, false);
    } else {
        h->failed |= bit;
        if (!first)
            add_damaged(ha, false);
    }
    ask_forget(ha);
    heads_step(h);
}

/* ---- asking ---- */

static int on_heads_place(struct rpc_request *rq, size_t rest_len, struct iovec *iov)
{
    struct head_ask *ha = container_of(rq, struct head_ask, ask.rq);

    return heal_bodies_place(ha->heads->file, ha->heads->first + ha->at, ha->n,
                             ha->projection, ha->buf, rest_len, iov);
}

static int head_ask_send(struct repair_heads *h, struct head_ask *ha, unsigned candidate)
{
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;

    req.ref = &h->file->ref;
    req.projection = ha->projection;
    req.first_block = h->first + ha->at;
    req.n_blocks = ha->n;
    req.to_storage = h->file->target.storages[candidate];
    req.heads_only = ha->buf == NULL;
    req.at_most = ha->at_most;
    if (ha->buf != NULL) {
        ha->ask.recv_head = ha->buf;
        ha->ask.recv_head_len = ha->n * heal_head_bytes(h->file, ha->projection);
        ha->ask.place = on_heads_place;
    }
    return repair_ask_send(&ha->ask, h->file, candidate, ROZO__OP__ST_READ, &req.base,
                           NULL, 0, on_heads_answer);
}

static void head_ask_new(struct repair_heads *h, unsigned candidate,
                         const struct head_ask *what)
{
    struct head_ask *ha = malloc(sizeof(*ha));

    assert(what->n > 0 && what->at + what->n <= h->n);
    if (ha != NULL)
        *ha = *what;
    if (ha == NULL || head_ask_send(h, ha, candidate) != 0) {
        free(ha);
        h->failed |= 1u << candidate;
        return;
    }
    ha->next = h->asks;
    h->asks = ha;
}

static void ask_send_heads(struct repair_heads *h, unsigned candidate,
                           unsigned projection, uint8_t *buf)
{
    const struct head_ask what = {
        .heads = h,
        .projection = (uint8_t)projection,
        .n = (uint16_t)h->n,
        .buf = buf,
    };

    if (projection != HEAL_PROJECTION_ANY)
        h->asked[candidate] |= 1u << projection;
    head_ask_new(h, candidate, &what);
}

static void on_heads_timer(struct env_timer *timer)
{
    heads_step(container_of(timer, struct repair_heads, timer));
}

/* Starts a timer, so that the collection ends even if no candidate is up. */
static void heads_begin(struct repair_heads *h)
{
    assert(h->asks == NULL && h->answers != NULL);
    h->busy = true;
    env_timer_start(h->file->env, &h->timer, 0);
}

int repair_heads_start(struct repair_heads *h, struct heal_file *file, uint64_t first,
                       unsigned n, uint8_t *const bodies[CODEC_N_MAX],
                       void (*done)(struct repair_heads *heads))
{
    assert(n >= 1 && first / EXTENT_BLOCKS == (first + n - 1) / EXTENT_BLOCKS);
    assert(done != NULL);
    repair_heads_close(h);
    *h = (struct repair_heads){ .file = file, .first = first, .n = n, .done = done };
    h->answers = malloc((size_t)n * DECIDE_ANSWERS_MAX * sizeof(*h->answers));
    if (h->answers == NULL)
        return -ENOMEM;
    env_timer_init(&h->timer, on_heads_timer);
    heads_begin(h);
    for (unsigned i = 0; i < file->c; i++)
        ask_send_heads(h, i, i < file->n ? i : (unsigned)HEAL_PROJECTION_ANY,
                       i < file->n ? bodies[i] : NULL);
    return 0;
}

/* Returns the level of this version in the candidate's answers, if nothing is known below
 * it; else -1. */
static int hides(const struct repair_heads *h, unsigned b, unsigned candidate,
                 unsigned projection, uint64_t version)
{
    const struct decide_answer *a = repair_heads_of(h, b);
    int level = -1, deepest = -1;

    for (unsigned i = 0; i < h->n_answers[b]; i++) {
        if (a[i].candidate != candidate || a[i].projection != projection)
            continue;
        if (a[i].level > deepest)
            deepest = a[i].level;
        if ((a[i].kind != DECIDE_DAMAGED || a[i].torn || a[i].marked) &&
            a[i].version == version)
            level = a[i].level;
    }
    return level == deepest ? level : -1;
}

static void below_of(struct repair_heads *h, unsigned candidate, unsigned projection,
                     const uint64_t *version)
{
    for (unsigned b = 0; b < h->n;) {
        int level = version[b] == 0 ? -1 : hides(h, b, candidate, projection, version[b]);
        unsigned to = b + 1;
        struct head_ask what = {
            .heads = h,
            .projection = (uint8_t)projection,
            .at = (uint16_t)b,
            .at_most = version[b] - 1,
        };

        if (level < 0) {
            b++;
            continue;
        }
        if (what.at_most == 0) { /* version 1 has no version below it */
            answer_add(h, b++,
                       &(struct decide_answer){ .candidate = (uint8_t)candidate,
                                                .projection = (uint8_t)projection,
                                                .kind = DECIDE_HOLE,
                                                .level = (uint8_t)(level + 1) });
            continue;
        }
        while (to < h->n && version[to] == version[b] &&
               hides(h, to, candidate, projection, version[b]) == level)
            to++;
        assert(to > b && to <= h->n);
        what.level = (uint8_t)(level + 1);
        what.n = (uint16_t)(to - b);
        head_ask_new(h, candidate, &what);
        b = to;
    }
}

void repair_heads_below(struct repair_heads *h, const uint64_t version[EXTENT_BLOCKS])
{
    assert(!h->busy);
    heads_begin(h);
    for (unsigned i = 0; i < h->file->c; i++) {
        for (unsigned p = 0; p < h->file->n; p++) {
            if ((h->asked[i] >> p & 1) != 0)
                below_of(h, i, p, version);
        }
    }
}

void repair_heads_close(struct repair_heads *h)
{
    if (h->file != NULL)
        env_timer_stop(h->file->env, &h->timer);
    while (h->asks != NULL)
        ask_forget(h->asks);
    free(h->answers);
    h->answers = NULL;
    h->busy = false;
}
