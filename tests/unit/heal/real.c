/* real.c - real storages on disks in memory. */
#include "tests/unit/heal/real.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "common/base/list.h"

static const uint8_t node_key[CAPABILITY_NODE_KEY_BYTES] = { 4, 5, 6 };

/* A request at a storage, from a channel or from the client. */
struct real_call {
    struct rpc_call call; /* must be the first member */
    struct real_call *next;
    struct real_storage *storage;
    struct rpc_request *rq; /* NULL: cancelled, or from the client */
    bool by_hand, arrived, answered;
    struct env_timer timer, deadline;
    uint16_t status;
    uint8_t *msg, *payload, *answer_msg, *answer;
    size_t answer_msg_len, answer_len;
    void (*sent)(void *arg);
    void *sent_arg;
};

/* ---- answers ---- */

static void take_segs(struct real_call *c, const struct rpc_seg *segs, unsigned n_segs)
{
    size_t at = 0;

    for (unsigned i = 0; i < n_segs; i++)
        c->answer_len += segs[i].len;
    c->answer = malloc(c->answer_len + 1);
    for (unsigned i = 0; i < n_segs; i++) {
        if (segs[i].base != NULL)
            memcpy(c->answer + at, segs[i].base, segs[i].len);
        else
            memdisk_peek(memdisk_by_fd(&c->storage->disk, segs[i].fd),
                         (uint64_t)segs[i].offset, c->answer + at, segs[i].len);
        at += segs[i].len;
    }
}

static void real_reply(struct rpc_call *call, uint16_t status, const void *msg,
                       size_t msg_len, const struct rpc_seg *segs, unsigned n_segs,
                       void (*sent)(void *arg), void *arg)
{
    struct real_call *c = (struct real_call *)call;

    assert(!c->answered);
    c->answered = true;
    c->status = status;
    c->answer_msg = malloc(msg_len + 1);
    if (msg_len > 0)
        memcpy(c->answer_msg, msg, msg_len);
    c->answer_msg_len = msg_len;
    take_segs(c, segs, n_segs);
    c->storage->n_calls--;
    if (sent != NULL)
        sent(arg);
    if (!c->by_hand)
        env_timer_start(&c->storage->real->v.env, &c->timer,
                        env_virtual_below(&c->storage->real->v, 3));
}

static const struct rpc_call_ops reply_ops = { .reply = real_reply };

static void call_free(struct real_call *c)
{
    struct real *r = c->storage->real;
    struct real_call **link = &r->calls;

    while (*link != c)
        link = &(*link)->next;
    *link = c->next;
    env_timer_stop(&r->v.env, &c->timer);
    env_timer_stop(&r->v.env, &c->deadline);
    free(c->msg);
    free(c->payload);
    free(c->answer_msg);
    free(c->answer);
    free(c);
}

static void call_end(struct real_call *c, int rc)
{
    struct rpc_request *rq = c->rq;

    c->rq = NULL;
    env_timer_stop(&c->storage->real->v.env, &c->deadline);
    if (rq == NULL)
        return;
    rq->status = c->status;
    rq->answer_msg = c->answer_msg;
    rq->answer_msg_len = c->answer_msg_len;
    if (rc == 0)
        rc = made_receive(rq, c->answer, c->answer_len);
    rq->done(rq, rc);
}

/* ---- requests in flight ---- */

static void call_arrives(struct real_call *c)
{
    c->arrived = true;
    c->storage->n_calls++;
    c->storage->real->n_of[c->call.op]++;
    storage_handle(c->storage->storage, &c->call);
}

static void on_call_timer(struct env_timer *timer)
{
    struct real_call *c = container_of(timer, struct real_call, timer);

    if (c->storage->up && !c->arrived) {
        call_arrives(c);
        return;
    }
    call_end(c, c->storage->up ? 0 : -ENOTCONN);
    call_free(c);
}

static void on_call_deadline(struct env_timer *timer)
{
    call_end(container_of(timer, struct real_call, deadline), -ETIMEDOUT);
}

static struct real_call *call_new(struct real_storage *s, uint16_t op, const void *msg,
                                  size_t msg_len, size_t payload_len)
{
    struct real_call *c = calloc(1, sizeof(*c));

    c->storage = s;
    c->msg = malloc(msg_len + 1);
    memcpy(c->msg, msg, msg_len);
    c->payload = aligned_alloc(4096, (payload_len + 4096) / 4096 * 4096);
    c->call = (struct rpc_call){
        .ops = &reply_ops,
        .op = op,
        .role = RPC_ROLE_NODE,
        .conn_id = 1,
        .msg = c->msg,
        .msg_len = msg_len,
        .payload = c->payload,
        .payload_len = payload_len,
    };
    c->next = s->real->calls;
    s->real->calls = c;
    env_timer_init(&c->timer, on_call_timer);
    env_timer_init(&c->deadline, on_call_deadline);
    return c;
}

static void channel_send(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct real_storage *s = (struct real_storage *)ch;
    struct real *r = s->real;
    struct real_call *c;
    size_t len = 0, at = 0;

    for (unsigned i = 0; i < rq->n_payload; i++)
        len += rq->payload[i].iov_len;
    c = call_new(s, rq->op, rq->msg, rq->msg_len, len);
    for (unsigned i = 0; i < rq->n_payload; i++) {
        memcpy(c->payload + at, rq->payload[i].iov_base, rq->payload[i].iov_len);
        at += rq->payload[i].iov_len;
    }
    c->rq = rq;
    rq->impl = c;
    env_timer_start(&r->v.env, &c->timer, env_virtual_below(&r->v, 3));
    env_timer_start(&r->v.env, &c->deadline, rq->deadline_ms);
}

static void channel_cancel(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct real_call *c = rq->impl;

    (void)ch;
    c->rq = NULL;
    env_timer_stop(&c->storage->real->v.env, &c->deadline);
}

static enum rpc_health channel_health(struct rpc_channel *ch)
{
    return ((struct real_storage *)ch)->up ? RPC_UP : RPC_DOWN;
}

static const struct rpc_channel_ops channel_ops = {
    .send = channel_send,
    .cancel = channel_cancel,
    .health = channel_health,
};

static struct rpc_channel *peers_channel(void *arg, uint32_t storage_id)
{
    struct real *r = arg;

    return storage_id == 0 || storage_id > r->n_storages
               ? NULL
               : &r->storages[storage_id - 1].ch;
}

struct storcli_peers real_peers(struct real *r)
{
    return (struct storcli_peers){ .channel = peers_channel, .arg = r };
}

/* ---- storages ---- */

static void on_started(void *arg, int rc)
{
    assert_int_equal(rc, 0);
    *(bool *)arg = true;
}

static bool is_busy(struct real_storage *s);

/* Starts a storage and waits until it takes requests. */
static void storage_up(struct real_storage *s)
{
    bool started = false;

    assert_int_equal(storage_open(&s->config, &s->storage), 0);
    storage_start(s->storage, on_started, &started);
    while (!started)
        real_run_ms(s->real, 1);
    storage_serve(s->storage);
    for (unsigned i = 0; is_busy(s); i++) {
        assert_true(i < 100000);
        real_run_ms(s->real, 1);
    }
}

static void storage_init(struct real *r, unsigned i)
{
    struct real_storage *s = &r->storages[i];

    memset(s, 0, sizeof(*s));
    s->ch.ops = &channel_ops;
    s->real = r;
    s->index = i;
    s->up = true;
    memdisk_init(&s->disk, &r->v);
    generations_begin(&s->generations, &s->generations.file, 1);
    memset(s->identity.cluster_id, 7, sizeof(s->identity.cluster_id));
    atomic_store(&s->identity.storage_id, i + 1);
    s->config = (struct storage_config){
        .env = &r->v.env,
        .disk = &s->disk.disk,
        .identity = &s->identity,
        .revoked = &s->revoked,
        .generations = &s->generations,
        .key = r->key,
        .version = "test",
        .host = "here",
        .rack = "",
        .data_dir = "/nowhere",
        .reserve_bytes = UINT64_MAX,
        .boot = 1,
        .journal_bytes = 16 << 20,
    };
    storage_up(s);
}

void real_init(struct real *r, uint64_t seed, unsigned kind, unsigned layout)
{
    const struct codec_layout *l = codec_layout(layout);

    memset(r, 0, sizeof(*r));
    env_virtual_init(&r->v, seed);
    r->k = l->k;
    r->n = l->n;
    r->c = l->safe;
    r->q = quorum_write(l, r->c);
    assert_int_equal(capability_key_new(node_key, 0, &r->key), 0);
    r->target = (struct storcli_target){
        .id = { .export_id = 1, .generation = 3, .ino = 99 },
        .codec = (uint8_t)kind,
        .layout = (uint8_t)layout,
        .block_bytes = 4096,
        .n_storages = (uint8_t)r->c,
    };
    for (unsigned i = 0; i < r->c; i++)
        r->target.storages[i] = i + 1;
    real_more(r, r->c);
}

void real_more(struct real *r, unsigned n)
{
    for (; n > 0; n--)
        storage_init(r, r->n_storages++);
}

/* Waits until the storage has answered all requests, and gets no more. */
static void storage_quiet(struct real_storage *s)
{
    for (unsigned i = 0; s->n_calls > 0; i++) {
        assert_true(i < 100000);
        real_run_ms(s->real, 1);
    }
    env_virtual_run_posted(&s->real->v);
}

void real_restart(struct real *r, unsigned storage, bool power_cut)
{
    struct real_storage *s = &r->storages[storage];
    struct generations_file file;
    bool up = s->up;

    s->up = false;
    storage_quiet(s);
    generations_prepare(&s->generations);
    file = s->generations.file;
    storage_close(s->storage);
    if (power_cut)
        memdisk_power_cut(&s->disk);
    s->config.boot += power_cut;
    generations_begin(&s->generations, &file, s->config.boot);
    storage_up(s);
    s->up = up;
}

void real_replace(struct real *r, unsigned storage)
{
    struct real_storage *s = &r->storages[storage];

    s->up = false;
    storage_quiet(s);
    storage_close(s->storage);
    memdisk_free(&s->disk);
    storage_init(r, storage);
    atomic_store(&s->identity.rebuild, true);
}

void real_close(struct real *r)
{
    for (unsigned i = 0; i < r->n_storages; i++) {
        storage_quiet(&r->storages[i]);
        storage_close(r->storages[i].storage);
        memdisk_free(&r->storages[i].disk);
    }
    while (r->calls != NULL)
        call_free(r->calls);
    capability_key_free(r->key);
    env_virtual_close(&r->v);
}

void real_run_ms(struct real *r, uint64_t ms)
{
    env_virtual_advance_ms(&r->v, ms);
}

/* Prints pending records, for debugging. */
static void print_uncommitted(struct real *r)
{
    for (unsigned i = 0; i < r->n_storages; i++) {
        struct storage_uncommitted u;
        uint64_t cursor = 0;

        while (storage_next_uncommitted(r->storages[i].storage, 0, &cursor, &u))
            print_message("storage %u: [%llu, %llu) up to %llx\n", i,
                          (unsigned long long)u.first, (unsigned long long)u.end,
                          (unsigned long long)u.newest);
    }
}

uint64_t real_uncommitted(struct real *r)
{
    Rozo__StHealthResp health = ROZO__ST_HEALTH_RESP__INIT;

    for (unsigned i = 0; i < r->n_storages; i++)
        storage_health(r->storages[i].storage, &health);
    if (health.uncommitted > 0)
        print_uncommitted(r);
    return health.uncommitted;
}

/* ---- the client ---- */

struct by_hand {
    Rozo__FileRef ref;
    uint8_t id[FILE_ID_BYTES];
    uint8_t capability[CAPABILITY_BYTES];
};

static void ref_init(struct real *r, struct by_hand *h)
{
    rozo__file_ref__init(&h->ref);
    file_id_put(h->id, &r->target.id);
    h->ref.file_id.data = h->id;
    h->ref.file_id.len = sizeof(h->id);
    h->ref.codec = r->target.codec;
    h->ref.layout = r->target.layout;
    h->ref.block_bytes = r->target.block_bytes;
    h->ref.n_storages = r->target.n_storages;
    h->ref.storages = r->target.storages;
    h->ref.dist_generation = r->target.dist_generation;
    capability_sign(r->key, &r->target.id, CAPABILITY_READ | CAPABILITY_WRITE,
                    h->capability);
    h->ref.capability.data = h->capability;
    h->ref.capability.len = sizeof(h->capability);
}

/* Sends a request and waits. Returns the answered call, owned by the caller. */
static struct real_call *ask(struct real *r, unsigned storage, enum rpc_role role,
                             uint16_t op, const ProtobufCMessage *msg,
                             const void *payload, size_t payload_len)
{
    uint8_t buf[4096];
    struct real_call *c = call_new(&r->storages[storage], op, buf,
                                   protobuf_c_message_pack(msg, buf), payload_len);

    c->by_hand = true;
    c->call.role = role;
    if (payload_len > 0)
        memcpy(c->payload, payload, payload_len);
    call_arrives(c);
    for (unsigned i = 0; !c->answered; i++) {
        assert_true(i < 100000);
        real_run_ms(r, i > 0);
    }
    return c;
}

static uint16_t ask_status(struct real *r, unsigned storage, enum rpc_role role,
                           uint16_t op, const ProtobufCMessage *msg, const void *payload,
                           size_t payload_len)
{
    struct real_call *c = ask(r, storage, role, op, msg, payload, payload_len);
    uint16_t status = c->status;

    call_free(c);
    return status;
}

/* Returns whether the storage refuses all requests for now, as it does at its start. */
static bool is_busy(struct real_storage *s)
{
    Rozo__StInfoReq req = ROZO__ST_INFO_REQ__INIT;

    return ask_status(s->real, s->index, RPC_ROLE_NODE, ROZO__OP__ST_INFO, &req.base,
                      NULL, 0) == ROZO__STATUS__BUSY;
}

static size_t head_bytes(const struct real *r, unsigned p)
{
    return RECORD_HEADER_BYTES + codec_overhang_bytes(made_codec(&r->target), p);
}

uint16_t real_write(struct real *r, unsigned storage, unsigned projection, uint64_t block,
                    unsigned n, uint64_t version, bool sync)
{
    size_t head = head_bytes(r, projection), at = n * head;
    uint8_t *payload = calloc(n, head + CODEC_BLOCK_MAX);
    Rozo__StWriteReq req = ROZO__ST_WRITE_REQ__INIT;
    struct by_hand h;
    uint16_t status;

    for (unsigned i = 0; i < n; i++)
        at += made_record(&r->target, projection, block + i, version, payload + i * head,
                          payload + at);
    ref_init(r, &h);
    req.ref = &h.ref;
    req.projection = projection;
    req.first_block = block;
    req.n_records = n;
    req.to_storage = storage + 1;
    req.sync = sync;
    status = ask_status(r, storage, RPC_ROLE_CLIENT, ROZO__OP__ST_WRITE, &req.base,
                        payload, at);
    free(payload);
    return status;
}

void real_write_homes(struct real *r, uint64_t first, unsigned n, uint64_t version,
                      uint32_t but, bool sync)
{
    for (unsigned p = 0; p < r->n; p++) {
        if ((but >> p & 1) == 0)
            assert_int_equal(real_write(r, p, p, first, n, version, sync),
                             ROZO__STATUS__OK);
    }
}

uint16_t real_mark(struct real *r, unsigned storage, unsigned projection, uint64_t first,
                   uint64_t n, uint64_t version)
{
    Rozo__StMarkReq req = ROZO__ST_MARK_REQ__INIT;
    struct by_hand h;

    ref_init(r, &h);
    req.ref = &h.ref;
    req.projection = projection;
    req.first_block = first;
    req.n_blocks = n;
    req.version = version;
    req.to_storage = storage + 1;
    return ask_status(r, storage, RPC_ROLE_CLIENT, ROZO__OP__ST_MARK, &req.base, NULL, 0);
}

uint16_t real_sync(struct real *r, unsigned storage)
{
    Rozo__StSyncReq req = ROZO__ST_SYNC_REQ__INIT;
    struct by_hand h;

    ref_init(r, &h);
    req.ref = &h.ref;
    req.to_storage = storage + 1;
    return ask_status(r, storage, RPC_ROLE_CLIENT, ROZO__OP__ST_SYNC, &req.base, NULL, 0);
}

uint16_t real_commit(struct real *r, unsigned storage, uint64_t first, uint64_t n,
                     uint64_t version)
{
    Rozo__StCommitReq req = ROZO__ST_COMMIT_REQ__INIT;
    Rozo__StCommitReq__Range range = ROZO__ST_COMMIT_REQ__RANGE__INIT, *ranges = &range;
    struct by_hand h;

    ref_init(r, &h);
    range.first_block = first;
    range.n_blocks = n;
    range.version = version;
    req.ref = &h.ref;
    req.to_storage = storage + 1;
    req.n_ranges = 1;
    req.ranges = &ranges;
    return ask_status(r, storage, RPC_ROLE_NODE, ROZO__OP__ST_COMMIT, &req.base, NULL, 0);
}

uint16_t real_redist(struct real *r, unsigned storage, uint32_t make_partial)
{
    Rozo__StRedistReq req = ROZO__ST_REDIST_REQ__INIT;
    struct by_hand h;

    ref_init(r, &h);
    req.ref = &h.ref;
    req.to_storage = storage + 1;
    req.make_partial = make_partial;
    return ask_status(r, storage, RPC_ROLE_NODE, ROZO__OP__ST_REDIST, &req.base, NULL, 0);
}

uint16_t real_whole(struct real *r, unsigned storage, uint32_t projections)
{
    Rozo__StCommitReq req = ROZO__ST_COMMIT_REQ__INIT;
    struct by_hand h;

    ref_init(r, &h);
    req.ref = &h.ref;
    req.to_storage = storage + 1;
    req.whole = projections;
    return ask_status(r, storage, RPC_ROLE_NODE, ROZO__OP__ST_COMMIT, &req.base, NULL, 0);
}

/* Checks one block of an answer; returns the bytes of body that it used. */
static size_t read_check(struct real *r, unsigned p, uint64_t block, const uint8_t *head,
                         const uint8_t *body, uint64_t *version)
{
    uint8_t want_head[RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX], want[CODEC_BLOCK_MAX];
    struct record_header h;
    size_t row;

    *version = UINT64_MAX;
    switch (record_inspect(head, file_id_hash(&r->target.id), block, p,
                           r->target.block_bytes, &h)) {
    case RECORD_IS_DATA:
        row = made_record(&r->target, p, block, h.version, want_head, want);
        assert_memory_equal(head, want_head, head_bytes(r, p));
        assert_memory_equal(body, want, row);
        *version = h.version;
        return row;
    case RECORD_IS_HOLE:
        *version = h.version;
        return 0;
    default:
        return 0;
    }
}

uint16_t real_read(struct real *r, unsigned storage, unsigned projection, uint64_t first,
                   unsigned n, uint64_t *versions)
{
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
    size_t at = n * head_bytes(r, projection);
    struct by_hand h;
    struct real_call *c;
    uint16_t status;

    ref_init(r, &h);
    req.ref = &h.ref;
    req.projection = projection;
    req.first_block = first;
    req.n_blocks = n;
    req.to_storage = storage + 1;
    c = ask(r, storage, RPC_ROLE_CLIENT, ROZO__OP__ST_READ, &req.base, NULL, 0);
    status = c->status;
    for (unsigned i = 0; status == ROZO__STATUS__OK && i < n; i++)
        at += read_check(r, projection, first + i,
                         c->answer + i * head_bytes(r, projection), c->answer + at,
                         &versions[i]);
    call_free(c);
    return status;
}

void real_repair(struct real *r, struct run *run, unsigned own,
                 struct repair_request request)
{
    const struct repairer_config config = { .env = &r->v.env,
                                            .peers = real_peers(r),
                                            .own_storage = own + 1,
                                            .deadline_ms = 2000 };

    request.target = r->target;
    run_begin(run, &config, &request);
}

struct repair_result real_run_end(struct real *r, struct run *run)
{
    for (unsigned i = 0; !run->done; i++) {
        assert_true(i < 200000);
        real_run_ms(r, 5);
    }
    return run_end(run);
}
