/*
 * fake.c - storages in memory that keep versions below versions.
 *
 * In:  requests of repairers, and writes by hand.
 * Out: answers after random delays.
 */
#include "tests/unit/heal/fake.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/bytes.h"
#include "common/base/list.h"

/* A request in flight, and its answer. */
struct fake_call {
    struct fake_call *next;
    struct fake_channel *channel;
    struct rpc_request *rq; /* NULL: cancelled */
    struct env_timer timer, deadline;
    bool answered;
    uint16_t op, status;
    uint8_t *msg, *payload, *answer_msg, *answer;
    size_t msg_len, payload_len, answer_msg_len, answer_len;
};

static const struct fake_layer never; /* a hole of version 0 */

static size_t head_bytes(const struct fake *f, unsigned p)
{
    return RECORD_HEADER_BYTES + codec_overhang_bytes(f->codec, p);
}

/* ---- places ---- */

static struct fake_place *place_of(struct fake_projection *p, uint64_t block)
{
    return &p->places[block < FAKE_BLOCKS ? block : FAKE_BLOCKS];
}

static const struct fake_layer *top_of(const struct fake_place *place)
{
    return place->n == 0 ? &never : &place->layers[place->n - 1];
}

struct fake_layer *fake_top(struct fake *f, unsigned storage, unsigned projection,
                            uint64_t block)
{
    struct fake_projection *p = &f->storages[storage].projections[projection];
    struct fake_place *place = place_of(p, block);

    return !p->here || place->n == 0 ? NULL : &place->layers[place->n - 1];
}

static void place_push(struct fake_place *place, struct fake_layer layer)
{
    assert(place->n < FAKE_LAYERS);
    place->layers[place->n++] = layer;
}

/* Removes layer i. */
static void place_remove(struct fake_place *place, unsigned i)
{
    memmove(&place->layers[i], &place->layers[i + 1],
            (place->n - i - 1) * sizeof(place->layers[0]));
    place->n--;
}

/* Commits up to version: of the committed layers only the newest stays, and large marks
 * below it. */
static void place_commit(struct fake_place *place, uint64_t version)
{
    uint64_t newest = 0;

    for (unsigned i = 0; i < place->n; i++) {
        if (place->layers[i].version > version)
            continue;
        place->layers[i].pending = false;
        newest = place->layers[i].version;
    }
    for (unsigned i = place->n; i-- > 0;) {
        if (place->layers[i].version < newest && !place->layers[i].range)
            place_remove(place, i);
    }
}

static void projection_create(struct fake_storage *s, unsigned projection)
{
    struct fake_projection *p = &s->projections[projection];

    if (!p->here)
        memset(p->places, 0, sizeof(p->places));
    p->here = true;
}

/* Returns whether this version is refused. A node's version replaces a damaged one. */
static bool is_stale(const struct fake_place *place, uint64_t version)
{
    const struct fake_layer *top = top_of(place);

    return !top->damaged && top->version > version;
}

static void store(struct fake_place *place, uint64_t version, bool sync)
{
    const struct fake_layer *top = top_of(place);
    bool first = !top->data && !top->damaged && (place->n == 0 || top->range);

    if (top->version == version && !top->damaged && top->data) {
        place->layers[place->n - 1].rotten = false;
        place->layers[place->n - 1].stable |= sync;
        return;
    }
    place_push(place, (struct fake_layer){
                          .version = version,
                          .data = true,
                          .pending = !first,
                          .stable = sync,
                      });
}

bool fake_write(struct fake *f, unsigned storage, unsigned projection, uint64_t block,
                uint64_t version, bool sync)
{
    struct fake_storage *s = &f->storages[storage];
    struct fake_place *place = place_of(&s->projections[projection], block);

    if (!s->up || version_epoch(version) <= s->fence_epoch ||
        (s->projections[projection].here && is_stale(place, version)))
        return false;
    projection_create(s, projection);
    store(place, version, sync);
    return true;
}

static void mark_place(struct fake_place *place, uint64_t version, bool range, bool sync)
{
    const struct fake_layer *top = top_of(place);

    if (!top->damaged && top->version >= version)
        return;
    place_push(place, (struct fake_layer){
                          .version = version,
                          .range = range,
                          .pending = true,
                          .stable = sync,
                      });
}

static void mark_storage(struct fake *f, struct fake_storage *s, uint64_t first,
                         uint64_t end, uint64_t version, bool sync)
{
    bool range = end - first > 256 || f->by_hand;

    for (unsigned p = 0; p < f->n; p++) {
        struct fake_projection *proj = &s->projections[p];

        for (uint64_t b = first; proj->here && b < end && b < FAKE_BLOCKS; b++)
            mark_place(&proj->places[b], version, range, sync);
        if (proj->here && end == UINT64_MAX)
            mark_place(&proj->places[FAKE_BLOCKS], version, true, sync);
    }
}

static bool mark_is_stale(struct fake *f, struct fake_storage *s, uint64_t first,
                          uint64_t end, uint64_t version)
{
    for (unsigned p = 0; p < f->n; p++) {
        for (uint64_t b = first; b < end && b <= FAKE_BLOCKS; b++) {
            const struct fake_place *place = &s->projections[p].places[b];

            if (s->projections[p].here &&
                (is_stale(place, version) ||
                 (top_of(place)->data && top_of(place)->version == version)))
                return true;
        }
    }
    return false;
}

bool fake_mark(struct fake *f, unsigned storage, unsigned projection, uint64_t first,
               uint64_t end, uint64_t version, bool sync)
{
    struct fake_storage *s = &f->storages[storage];

    if (!s->up || version_epoch(version) <= s->fence_epoch ||
        mark_is_stale(f, s, first, end, version))
        return false;
    projection_create(s, projection);
    mark_storage(f, s, first, end, version, sync);
    return true;
}

void fake_commit(struct fake *f, unsigned storage, uint64_t block, uint64_t version)
{
    for (unsigned p = 0; p < f->n; p++)
        place_commit(place_of(&f->storages[storage].projections[p], block), version);
}

void fake_sync(struct fake *f, unsigned storage)
{
    for (unsigned p = 0; p < f->n; p++) {
        for (unsigned b = 0; b <= FAKE_BLOCKS; b++) {
            struct fake_place *place = &f->storages[storage].projections[p].places[b];

            for (unsigned i = 0; i < place->n; i++)
                place->layers[i].stable = true;
        }
    }
}

void fake_power_cut(struct fake *f, unsigned storage)
{
    f->storages[storage].verifier++;
    for (unsigned p = 0; p < f->n; p++) {
        for (unsigned b = 0; b <= FAKE_BLOCKS; b++) {
            struct fake_place *place = &f->storages[storage].projections[p].places[b];

            for (unsigned i = place->n; i-- > 0;) {
                if (!place->layers[i].stable)
                    place_remove(place, i);
            }
        }
    }
}

void fake_replace(struct fake *f, unsigned storage)
{
    f->storages[storage].verifier++;
    for (unsigned p = 0; p < f->n; p++)
        f->storages[storage].projections[p] = (struct fake_projection){ .partial = true };
}

/* ---- requests ---- */

static void answer_pack(struct fake_call *call, const ProtobufCMessage *msg)
{
    call->answer_msg_len = protobuf_c_message_get_packed_size(msg);
    call->answer_msg = malloc(call->answer_msg_len + 1);
    protobuf_c_message_pack(msg, call->answer_msg);
}

static uint32_t present(const struct fake *f, const struct fake_storage *s)
{
    uint32_t bits = 0;

    for (unsigned p = 0; p < f->n; p++)
        bits |= (uint32_t)s->projections[p].here << p;
    return bits;
}

/* Returns the newest layer that is not newer than at_most. */
static const struct fake_layer *visible(const struct fake_projection *p, uint64_t block,
                                        uint64_t at_most)
{
    static const struct fake_layer unknown = { .damaged = true };
    const struct fake_place *place =
        &p->places[block < FAKE_BLOCKS ? block : FAKE_BLOCKS];

    for (unsigned i = place->n; i-- > 0;) {
        if (at_most == 0 || place->layers[i].version <= at_most)
            return &place->layers[i];
    }
    return p->partial ? &unknown : &never;
}

static void head_put(struct fake *f, uint8_t *head, unsigned p, uint64_t block,
                     const struct fake_layer *l)
{
    struct record_header h = {
        .format = RECORD_FORMAT,
        .projection = (uint8_t)p,
        .flags = l->damaged ? RECORD_DAMAGED : RECORD_HOLE,
        .file_hash = file_id_hash(&f->target.id),
        .version = l->damaged ? 0 : l->version,
        .block = block,
    };

    memset(head, 0, head_bytes(f, p));
    if (!l->damaged && l->version == 0)
        return;
    record_header_put(head, &h);
    record_seal(head, NULL, 0, NULL, 0);
}

static uint16_t do_read(struct fake *f, struct fake_storage *s, struct fake_call *call)
{
    Rozo__StReadReq *req = rozo__st_read_req__unpack(NULL, call->msg_len, call->msg);
    Rozo__StReadResp resp = ROZO__ST_READ_RESP__INIT;
    unsigned p = req->projection;
    size_t bodies;

    assert(req != NULL && req->n_blocks >= 1 && req->n_blocks <= EXTENT_BLOCKS);
    resp.present = present(f, s);
    for (unsigned i = 0; p == 255 && i < f->n; i++) {
        if (s->projections[i].here)
            p = i;
    }
    if (p == 255 || !s->projections[p].here) {
        rozo__st_read_req__free_unpacked(req, NULL);
        return ROZO__STATUS__NO_FILE;
    }
    resp.projection = p;
    bodies = req->n_blocks * head_bytes(f, p);
    call->answer = malloc(bodies + req->n_blocks * (size_t)CODEC_BLOCK_MAX);
    for (unsigned i = 0; i < req->n_blocks; i++) {
        uint64_t block = req->first_block + i;
        const struct fake_layer *l = visible(&s->projections[p], block, req->at_most);
        uint8_t *head = call->answer + i * head_bytes(f, p);
        uint8_t body[CODEC_BLOCK_MAX];
        size_t row;

        if (!l->data || l->damaged) {
            head_put(f, head, p, block, l);
            continue;
        }
        row = made_record(&f->target, p, block, l->version, head, body);
        if (req->heads_only)
            continue;
        body[row / 2] ^= l->rotten ? 4 : 0;
        memcpy(call->answer + bodies, body, row);
        bodies += row;
        f->n_read_blocks++;
    }
    if (!req->heads_only) {
        size_t heads = req->n_blocks * head_bytes(f, p);

        bodies -= s->cut_bytes < bodies - heads ? s->cut_bytes : bodies - heads;
    }
    resp.serves_clients = s->serves_clients;
    resp.may_be_torn = s->may_be_torn;
    call->answer_len = bodies;
    answer_pack(call, &resp.base);
    rozo__st_read_req__free_unpacked(req, NULL);
    return ROZO__STATUS__OK;
}

/* Checks that the payload is, to the byte, what a client would send. */
static void check_payload(struct fake *f, const Rozo__StWriteReq *req,
                          const struct fake_call *call)
{
    size_t head = head_bytes(f, req->projection), at = req->n_records * head;

    for (unsigned i = 0; i < req->n_records; i++) {
        const uint8_t *got = call->payload + i * head;
        uint8_t want_head[RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX];
        uint8_t want_body[CODEC_BLOCK_MAX];
        size_t row;

        if ((got[6] & RECORD_HOLE) != 0)
            continue;
        row = made_record(&f->target, req->projection, req->first_block + i,
                          get_le64(got + 16), want_head, want_body);

        assert_memory_equal(got, want_head, head);
        assert_true(call->payload_len >= at + row);
        assert_memory_equal(call->payload + at, want_body, row);
        at += row;
    }
    assert_int_equal(at, call->payload_len);
}

static uint16_t do_write(struct fake *f, struct fake_storage *s, struct fake_call *call)
{
    Rozo__StWriteReq *req = rozo__st_write_req__unpack(NULL, call->msg_len, call->msg);
    Rozo__StWriteResp resp = ROZO__ST_WRITE_RESP__INIT;
    struct fake_projection *p = &s->projections[req->projection];
    uint16_t status = s->full ? ROZO__STATUS__NO_SPACE : ROZO__STATUS__OK;

    check_payload(f, req, call);
    for (unsigned i = 0; i < req->n_records; i++) {
        uint64_t version =
            get_le64(call->payload + i * head_bytes(f, req->projection) + 16);

        if (p->here && is_stale(place_of(p, req->first_block + i), version))
            status = ROZO__STATUS__STALE_VERSION;
    }
    if (status == ROZO__STATUS__OK)
        projection_create(s, req->projection);
    for (unsigned i = 0; status == ROZO__STATUS__OK && i < req->n_records; i++) {
        struct fake_place *place = place_of(p, req->first_block + i);

        const uint8_t *head = call->payload + i * head_bytes(f, req->projection);

        if ((head[6] & RECORD_HOLE) != 0)
            mark_place(place, get_le64(head + 16), false, req->sync);
        else
            store(place, get_le64(head + 16), req->sync);
        resp.pending |= top_of(place)->pending;
    }
    resp.verifier = s->verifier;
    answer_pack(call, &resp.base);
    rozo__st_write_req__free_unpacked(req, NULL);
    return status;
}

static uint16_t do_mark(struct fake *f, struct fake_storage *s, struct fake_call *call)
{
    Rozo__StMarkReq *req = rozo__st_mark_req__unpack(NULL, call->msg_len, call->msg);
    Rozo__StMarkResp resp = ROZO__ST_MARK_RESP__INIT;
    uint64_t end = req->n_blocks == 0 ? UINT64_MAX : req->first_block + req->n_blocks;
    uint16_t status = ROZO__STATUS__OK;

    assert(req->version != 0);
    if (!req->keep_newer && mark_is_stale(f, s, req->first_block, end, req->version)) {
        status = ROZO__STATUS__STALE_VERSION;
    } else {
        projection_create(s, req->projection);
        mark_storage(f, s, req->first_block, end, req->version, false);
        resp.pending = true;
        resp.verifier = s->verifier;
        answer_pack(call, &resp.base);
    }
    rozo__st_mark_req__free_unpacked(req, NULL);
    return status;
}

static uint16_t do_sync(struct fake *f, struct fake_storage *s, struct fake_call *call)
{
    Rozo__StSyncResp resp = ROZO__ST_SYNC_RESP__INIT;

    if (present(f, s) == 0)
        return ROZO__STATUS__NO_FILE;
    fake_sync(f, (unsigned)(s - f->storages));
    resp.verifier = s->verifier;
    answer_pack(call, &resp.base);
    return ROZO__STATUS__OK;
}

/* Commits, and checks that no replaced version is needed any more: k others have the new
 * one, stable. */
static uint16_t do_commit(struct fake *f, struct fake_storage *s, struct fake_call *call)
{
    Rozo__StCommitReq *req = rozo__st_commit_req__unpack(NULL, call->msg_len, call->msg);

    for (size_t i = 0; i < req->n_ranges; i++) {
        const Rozo__StCommitReq__Range *r = req->ranges[i];
        uint64_t end = r->n_blocks == 0 ? UINT64_MAX : r->first_block + r->n_blocks;

        for (uint64_t b = r->first_block; b < end && b <= FAKE_BLOCKS; b++)
            fake_commit(f, (unsigned)(s - f->storages), b, r->version);
    }
    for (unsigned p = 0; p < f->n; p++) {
        if ((req->whole >> p & 1) != 0)
            s->projections[p].partial = false;
    }
    rozo__st_commit_req__free_unpacked(req, NULL);
    return present(f, s) == 0 ? ROZO__STATUS__NO_FILE : ROZO__STATUS__OK;
}

static uint16_t do_fence(struct fake_storage *s, struct fake_call *call)
{
    Rozo__StFenceReq *req = rozo__st_fence_req__unpack(NULL, call->msg_len, call->msg);

    if (req->epoch > s->fence_epoch)
        s->fence_epoch = req->epoch;
    rozo__st_fence_req__free_unpacked(req, NULL);
    return ROZO__STATUS__OK;
}

static bool drops(const Rozo__StDropReq *req, unsigned p, const struct fake_layer *l)
{
    if (l->version > req->keep && version_epoch(l->version) <= req->epoch)
        return true;
    return (req->projections >> p & 1) != 0 &&
           (l->damaged || (l->data && l->version <= req->keep));
}

static uint16_t do_drop(struct fake *f, struct fake_storage *s, struct fake_call *call)
{
    Rozo__StDropReq *req = rozo__st_drop_req__unpack(NULL, call->msg_len, call->msg);
    uint64_t end = req->n_blocks == 0 ? UINT64_MAX : req->first_block + req->n_blocks;
    uint16_t status =
        req->epoch > s->fence_epoch ? ROZO__STATUS__BAD_REQUEST : ROZO__STATUS__OK;

    for (unsigned p = 0; status == ROZO__STATUS__OK && p < f->n; p++) {
        for (uint64_t b = req->first_block; b < end && b <= FAKE_BLOCKS; b++) {
            struct fake_place *place = &s->projections[p].places[b];

            for (unsigned i = place->n; i-- > 0;) {
                if (drops(req, p, &place->layers[i]))
                    place_remove(place, i);
            }
        }
    }
    rozo__st_drop_req__free_unpacked(req, NULL);
    return status;
}

static bool has_head(const struct fake_place *place)
{
    for (unsigned i = 0; i < place->n; i++) {
        if (!place->layers[i].range)
            return true;
    }
    return false;
}

static uint64_t range_version(const struct fake_place *place)
{
    uint64_t version = 0;

    for (unsigned i = 0; i < place->n; i++) {
        if (place->layers[i].range)
            version = place->layers[i].version;
    }
    return version;
}

static uint16_t do_next(struct fake *f, struct fake_storage *s, struct fake_call *call)
{
    Rozo__StNextReq *req = rozo__st_next_req__unpack(NULL, call->msg_len, call->msg);
    Rozo__StNextResp resp = ROZO__ST_NEXT_RESP__INIT;
    Rozo__StCommitReq__Range ranges[1024], *list[1024];

    assert(req->heads);
    resp.block = UINT64_MAX;
    resp.marks = list;
    for (unsigned p = 0; p < f->n; p++) {
        uint64_t last = 0;

        if (s->projections[p].here && s->projections[p].partial)
            resp.partial |= UINT32_C(1) << p;
        for (uint64_t b = 0; s->projections[p].here && b <= FAKE_BLOCKS; b++) {
            const struct fake_place *place = &s->projections[p].places[b];
            uint64_t version = range_version(place);

            if (b < FAKE_BLOCKS && b >= req->from_block && has_head(place) &&
                b < resp.block)
                resp.block = b;
            if (version != 0 && version == last && b < FAKE_BLOCKS) {
                list[resp.n_marks - 1]->n_blocks++;
            } else if (version != 0 && version == last) {
                list[resp.n_marks - 1]->n_blocks = 0;
            } else if (version != 0) {
                assert(resp.n_marks < 1024);
                rozo__st_commit_req__range__init(&ranges[resp.n_marks]);
                ranges[resp.n_marks].first_block = b;
                ranges[resp.n_marks].n_blocks = b < FAKE_BLOCKS;
                ranges[resp.n_marks].version = version;
                list[resp.n_marks] = &ranges[resp.n_marks];
                resp.n_marks++;
            }
            last = version;
        }
    }
    answer_pack(call, &resp.base);
    rozo__st_next_req__free_unpacked(req, NULL);
    return present(f, s) == 0 ? ROZO__STATUS__NO_FILE : ROZO__STATUS__OK;
}

static uint16_t carry_out(struct fake *f, struct fake_call *call)
{
    struct fake_storage *s = call->channel->storage;

    if (f->before != NULL)
        f->before(f, (unsigned)(s - f->storages), call->op);
    if (f->refuse != NULL) {
        int status = f->refuse(f, (unsigned)(s - f->storages), call->op);

        if (status != ROZO__STATUS__OK)
            return (uint16_t)status;
    }
    f->n_of[call->op]++;
    if (s->n_busy > 0 &&
        (call->op == ROZO__OP__ST_WRITE || call->op == ROZO__OP__ST_MARK)) {
        s->n_busy--;
        return ROZO__STATUS__BUSY;
    }
    switch (call->op) {
    case ROZO__OP__ST_READ:
        return do_read(f, s, call);
    case ROZO__OP__ST_WRITE:
        return do_write(f, s, call);
    case ROZO__OP__ST_MARK:
        return do_mark(f, s, call);
    case ROZO__OP__ST_SYNC:
        return do_sync(f, s, call);
    case ROZO__OP__ST_COMMIT:
        return do_commit(f, s, call);
    case ROZO__OP__ST_FENCE:
        return do_fence(s, call);
    case ROZO__OP__ST_DROP:
        return do_drop(f, s, call);
    case ROZO__OP__ST_NEXT:
        return do_next(f, s, call);
    default:
        fail_msg("a repairer sent op %u", call->op);
        return ROZO__STATUS__UNKNOWN_OP;
    }
}

/* ---- the network ---- */

static void call_free(struct fake *f, struct fake_call *call)
{
    struct fake_call **link = &f->calls;

    while (*link != call)
        link = &(*link)->next;
    *link = call->next;
    env_timer_stop(&f->v.env, &call->timer);
    env_timer_stop(&f->v.env, &call->deadline);
    free(call->msg);
    free(call->payload);
    free(call->answer_msg);
    free(call->answer);
    free(call);
}

static void call_end(struct fake_call *call, int rc)
{
    struct fake *f = call->channel->storage->fake;
    struct rpc_request *rq = call->rq;

    call->rq = NULL;
    if (rq != NULL) {
        rq->status = call->status;
        rq->answer_msg = call->answer_msg;
        rq->answer_msg_len = call->answer_msg_len;
        if (rc == 0)
            rc = made_receive(rq, call->answer, call->answer_len);
        rq->done(rq, rc);
    }
    call_free(f, call);
}

static void on_call_timer(struct env_timer *timer)
{
    struct fake_call *call = container_of(timer, struct fake_call, timer);
    struct fake *f = call->channel->storage->fake;

    if (!call->channel->storage->up) {
        call_end(call, -ENOTCONN);
        return;
    }
    if (call->answered) {
        call_end(call, 0);
        return;
    }
    call->answered = true;
    call->status = carry_out(f, call);
    env_timer_start(&f->v.env, &call->timer, env_virtual_below(&f->v, f->delay_ms + 1));
}

static void on_call_deadline(struct env_timer *timer)
{
    call_end(container_of(timer, struct fake_call, deadline), -ETIMEDOUT);
}

static void fake_send(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct fake_channel *channel = (struct fake_channel *)ch;
    struct fake *f = channel->storage->fake;
    struct fake_call *call = calloc(1, sizeof(*call));
    size_t at = 0;

    call->channel = channel;
    call->rq = rq;
    rq->impl = call;
    call->op = rq->op;
    call->msg_len = rq->msg_len;
    call->msg = malloc(rq->msg_len + 1);
    memcpy(call->msg, rq->msg, rq->msg_len);
    for (unsigned i = 0; i < rq->n_payload; i++)
        call->payload_len += rq->payload[i].iov_len;
    call->payload = malloc(call->payload_len + 1);
    for (unsigned i = 0; i < rq->n_payload; i++) {
        memcpy(call->payload + at, rq->payload[i].iov_base, rq->payload[i].iov_len);
        at += rq->payload[i].iov_len;
    }
    call->next = f->calls;
    f->calls = call;
    env_timer_init(&call->timer, on_call_timer);
    env_timer_init(&call->deadline, on_call_deadline);
    env_timer_start(&f->v.env, &call->timer, env_virtual_below(&f->v, f->delay_ms + 1));
    env_timer_start(&f->v.env, &call->deadline, rq->deadline_ms);
}

/* Cancels a request, which may still be carried out. */
static void fake_cancel(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct fake_call *call = rq->impl;
    struct fake *f = call->channel->storage->fake;

    (void)ch;
    call->rq = NULL;
    env_timer_stop(&f->v.env, &call->deadline);
}

static enum rpc_health fake_health(struct rpc_channel *ch)
{
    return ((struct fake_channel *)ch)->storage->up ? RPC_UP : RPC_DOWN;
}

static const struct rpc_channel_ops channel_ops = {
    .send = fake_send,
    .cancel = fake_cancel,
    .health = fake_health,
};

static struct rpc_channel *peers_channel(void *arg, uint32_t storage_id)
{
    struct fake_channel *channels = arg;

    return storage_id == 0 || storage_id > channels[0].storage->fake->c
               ? NULL
               : &channels[storage_id - 1].ch;
}

struct storcli_peers fake_peers(struct fake *f, unsigned driver)
{
    return (struct storcli_peers){ .channel = peers_channel, .arg = f->channels[driver] };
}

void fake_init(struct fake *f, uint64_t seed, unsigned kind, unsigned layout)
{
    const struct codec_layout *l = codec_layout(layout);

    memset(f, 0, sizeof(*f));
    env_virtual_init(&f->v, seed);
    f->k = l->k;
    f->n = l->n;
    f->c = l->safe;
    f->q = quorum_write(l, f->c);
    f->delay_ms = 3;
    f->codec = codec_get(kind, layout, 4096);
    f->target = (struct storcli_target){
        .id = { .export_id = 1, .generation = 3, .ino = 99 },
        .codec = (uint8_t)kind,
        .layout = (uint8_t)layout,
        .block_bytes = 4096,
        .n_storages = (uint8_t)f->c,
    };
    for (unsigned i = 0; i < f->c; i++) {
        f->target.storages[i] = i + 1;
        f->storages[i] = (struct fake_storage){
            .fake = f,
            .up = true,
            .verifier = 100 + i,
            .projections = calloc(f->n, sizeof(struct fake_projection)),
        };
        for (unsigned d = 0; d < FAKE_DRIVERS; d++)
            f->channels[d][i] = (struct fake_channel){
                .ch = { .ops = &channel_ops },
                .storage = &f->storages[i],
            };
    }
}

void fake_close(struct fake *f)
{
    while (f->calls != NULL)
        call_free(f, f->calls);
    for (size_t i = 0; i < sizeof(f->storages) / sizeof(f->storages[0]); i++)
        free(f->storages[i].projections); /* a test may have left storages out */
    env_virtual_close(&f->v);
}

void fake_print(struct fake *f, uint64_t block)
{
    for (unsigned i = 0; i < f->c; i++) {
        fprintf(stderr, "storage %u: fence %x\n", i, f->storages[i].fence_epoch);
        for (unsigned p = 0; p < f->n; p++) {
            const struct fake_projection *proj = &f->storages[i].projections[p];
            const struct fake_place *place =
                &proj->places[block < FAKE_BLOCKS ? block : FAKE_BLOCKS];

            for (unsigned l = 0; proj->here && l < place->n; l++)
                fprintf(stderr, "block %llu storage %u p%u: %llx%s%s%s%s\n",
                        (unsigned long long)block, i, p,
                        (unsigned long long)place->layers[l].version,
                        place->layers[l].data ? " data" : " hole",
                        place->layers[l].damaged ? " damaged" : "",
                        place->layers[l].rotten ? " rotten" : "",
                        place->layers[l].pending ? " pending" : "");
        }
    }
}

void fake_expect(struct fake *f, uint64_t block, uint64_t version, bool settled)
{
    for (unsigned p = 0; p < f->n; p++) {
        const struct fake_layer *l = fake_top(f, p, p, block);

        if (version == 0 && (l == NULL || (l->version == 0 && !l->damaged)))
            continue;
        if (l == NULL || l->version != version || l->damaged || l->rotten ||
            (settled && l->pending)) {
            fake_print(f, block);
            fail_msg("block %llu: home %u should have %llx%s", (unsigned long long)block,
                     p, (unsigned long long)version, settled ? ", committed" : "");
        }
    }
}
