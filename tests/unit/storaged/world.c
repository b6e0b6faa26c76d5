/*
 * world.c - a storage with a disk in memory, and a client that knows the bytes it wrote.
 */
#include "tests/unit/storaged/world.h"

#include <assert.h>
#include <stdlib.h>

#include "codec/codec.h"
#include "storaged/format/projfile.h"

static const uint8_t node_key[CAPABILITY_NODE_KEY_BYTES] = { 1, 2, 3 };

static void on_started(void *arg, int rc)
{
    assert_int_equal(rc, 0);
    *(bool *)arg = true;
}

void world_start(struct world *w)
{
    bool started = false;

    storage_start(w->storage, on_started, &started);
    env_virtual_run_posted(&w->v);
    assert_true(started);
    storage_serve(w->storage);
    env_virtual_run_posted(&w->v);
}

static void storage_make(struct world *w)
{
    w->config.env = &w->v.env;
    w->config.disk = &w->disk.disk;
    w->config.identity = &w->identity;
    w->config.revoked = &w->revoked;
    w->config.generations = &w->generations;
    w->config.key = w->key;
    w->config.version = "test";
    w->config.host = "here";
    w->config.rack = "";
    w->config.data_dir = "/nowhere";
    assert_int_equal(storage_open(&w->config, &w->storage), 0);
    world_start(w);
}

void world_init(struct world *w, uint64_t seed)
{
    memset(w, 0, sizeof(*w));
    env_virtual_init(&w->v, seed);
    memdisk_init(&w->disk, &w->v);
    assert_int_equal(capability_key_new(node_key, 0, &w->key), 0);
    w->config.reserve_bytes = UINT64_MAX;
    w->config.boot = 1000;
    generations_begin(&w->generations, &w->generations.file, w->config.boot);
    w->id = (struct file_id){ .export_id = 1, .generation = 2, .ino = 300 };
    w->kind = CODEC_MOJETTE;
    w->layout = 0;
    w->block_bytes = 8192;
    w->role = RPC_ROLE_CLIENT;
    memset(w->identity.cluster_id, 7, sizeof(w->identity.cluster_id));
    atomic_store(&w->identity.storage_id, US);
    storage_make(w);
}

void world_free(struct world *w)
{
    env_virtual_run_posted(&w->v);
    storage_close(w->storage);
    for (unsigned i = 0; i < w->disk.n_files; i++)
        assert_int_equal(w->disk.files[i]->n_open, 0);
    memdisk_free(&w->disk);
    capability_key_free(w->key);
    env_virtual_close(&w->v);
}

void world_settle(struct world *w)
{
    uint64_t ended;

    while (!generations_may_advance(&w->generations))
        ; /* counts as saved */
    ended = generations_advance(&w->generations);
    memdisk_settle(&w->disk);
    generations_mark_stable(&w->generations, ended);
}

void world_restart(struct world *w, bool power_cut)
{
    struct generations_file file;

    generations_prepare(&w->generations); /* counts as saved */
    file = w->generations.file;
    assert(w->v.tasks.head == NULL);
    storage_close(w->storage);
    if (power_cut)
        memdisk_power_cut(&w->disk);
    w->config.boot += power_cut;
    w->identity.losses = w->identity.losses_healed = 0; /* the file does not have it */
    generations_begin(&w->generations, &file, w->config.boot);
    storage_make(w);
}

const struct codec *world_codec(const struct world *w)
{
    const struct codec *c = codec_get(w->kind, w->layout, w->block_bytes);

    assert(c != NULL);
    return c;
}

/* ---- calls ---- */

static void call_take_segs(struct test_call *c, const struct rpc_seg *segs,
                           unsigned n_segs)
{
    size_t len = 0, at = 0;

    for (unsigned i = 0; i < n_segs; i++)
        len += segs[i].len;
    c->payload = malloc(len + 1);
    c->payload_len = len;
    for (unsigned i = 0; i < n_segs; i++) {
        if (segs[i].base != NULL) {
            memcpy(c->payload + at, segs[i].base, segs[i].len);
        } else {
            struct disk_file *f = memdisk_by_fd(&c->w->disk, segs[i].fd);

            assert_true((uint64_t)segs[i].offset + segs[i].len <= f->size);
            memdisk_peek(f, (uint64_t)segs[i].offset, c->payload + at, segs[i].len);
        }
        at += segs[i].len;
    }
}

static void call_reply(struct rpc_call *call, uint16_t status, const void *msg,
                       size_t msg_len, const struct rpc_seg *segs, unsigned n_segs,
                       void (*sent)(void *arg), void *arg)
{
    struct test_call *c = (struct test_call *)call;

    assert_false(c->done);
    c->done = true;
    c->status = status;
    c->msg = malloc(msg_len + 1);
    if (msg_len > 0)
        memcpy(c->msg, msg, msg_len);
    c->msg_len = msg_len;
    call_take_segs(c, segs, n_segs);
    free(c->req_msg); /* the storage must not use the request any more */
    free(c->req_payload);
    c->req_msg = c->req_payload = NULL;
    if (sent != NULL && !c->w->hold_sent)
        sent(arg);
    else
        c->sent = sent;
    c->sent_arg = arg;
}

static const struct rpc_call_ops call_ops = { .reply = call_reply };

struct test_call *call_start_raw(struct world *w, uint16_t op, const void *msg,
                                 size_t msg_len, const void *payload, size_t payload_len)
{
    struct test_call *c = calloc(1, sizeof(*c));

    assert(c != NULL);
    c->w = w;
    c->req_msg = malloc(msg_len + 1);
    c->req_payload = malloc(payload_len + 1);
    if (msg_len > 0)
        memcpy(c->req_msg, msg, msg_len);
    if (payload_len > 0)
        memcpy(c->req_payload, payload, payload_len);
    c->call = (struct rpc_call){
        .ops = &call_ops,
        .op = op,
        .role = w->role,
        .session = w->session,
        .conn_id = 1,
        .msg = c->req_msg,
        .msg_len = msg_len,
        .payload = c->req_payload,
        .payload_len = payload_len,
    };
    storage_handle(w->storage, &c->call);
    return c;
}

struct test_call *call_start(struct world *w, uint16_t op, const ProtobufCMessage *msg,
                             const void *payload, size_t payload_len)
{
    size_t len = protobuf_c_message_get_packed_size(msg);
    uint8_t *buf = malloc(len + 1);
    struct test_call *c;

    protobuf_c_message_pack(msg, buf);
    c = call_start_raw(w, op, buf, len, payload, payload_len);
    free(buf);
    return c;
}

void call_free(struct test_call *c)
{
    if (c->sent != NULL)
        c->sent(c->sent_arg);
    free(c->req_msg);
    free(c->req_payload);
    free(c->msg);
    free(c->payload);
    free(c);
}

/* Runs until the call is answered, and returns the status. */
static uint16_t call_wait(struct test_call *c)
{
    env_virtual_run_posted(&c->w->v);
    assert_true(c->done || c->w->disk.is_cut);
    return c->done ? c->status : UINT16_MAX;
}

uint16_t call_finish(struct test_call *c)
{
    uint16_t status = call_wait(c);

    call_free(c);
    return status;
}

uint16_t call_run(struct world *w, uint16_t op, const ProtobufCMessage *msg,
                  const void *payload, size_t payload_len, struct test_call **out)
{
    struct test_call *c = call_start(w, op, msg, payload, payload_len);

    if (out == NULL)
        return call_finish(c);
    *out = c;
    return call_wait(c);
}

void ref_init(struct world *w, struct test_ref *r)
{
    const struct codec_layout *layout = codec_layout(w->layout);

    rozo__file_ref__init(&r->ref);
    file_id_put(r->id, &w->id);
    r->ref.file_id.data = r->id;
    r->ref.file_id.len = sizeof(r->id);
    r->ref.codec = w->kind;
    r->ref.layout = w->layout;
    r->ref.block_bytes = w->block_bytes;
    r->ref.n_storages = layout->safe;
    r->ref.storages = r->storages;
    for (uint32_t i = 0; i < layout->safe; i++)
        r->storages[i] = i + 1;
    if (w->n_storages > 0) {
        r->ref.n_storages = w->n_storages;
        memcpy(r->storages, w->storages, sizeof(r->storages));
    }
    r->ref.dist_generation = w->dist_generation;
    capability_sign(w->key, &w->id, CAPABILITY_READ | CAPABILITY_WRITE, r->capability);
    r->ref.capability.data = r->capability;
    r->ref.capability.len = sizeof(r->capability);
}

/* ---- records ---- */

void record_fill(struct world *w, uint8_t *head, uint8_t *body, unsigned projection,
                 uint64_t block, uint64_t version, size_t user_bytes)
{
    const struct codec *codec = world_codec(w);
    size_t overhang = codec_overhang_bytes(codec, projection);
    size_t row = codec_row_bytes(codec, user_bytes);
    struct record_header h = {
        .format = RECORD_FORMAT,
        .projection = (uint8_t)projection,
        .flags = user_bytes == 0 ? RECORD_HOLE : 0,
        .user_bytes = (uint16_t)user_bytes,
        .file_hash = file_id_hash(&w->id),
        .version = version,
        .block = block,
    };
    uint64_t x = version * 0x9e3779b97f4a7c15 ^ block ^ (uint64_t)projection << 32;

    for (size_t i = 0; i < overhang; i++)
        head[RECORD_HEADER_BYTES + i] = user_bytes == 0 ? 0 : (uint8_t)(x >> i % 8 * 8);
    for (size_t i = 0; i < row; i++)
        body[i] = (uint8_t)((x >> i % 8 * 8) + i / 8);
    record_header_put(head, &h);
    if (user_bytes == 0)
        record_seal(head, NULL, 0, NULL, 0);
    else
        record_seal(head, head + RECORD_HEADER_BYTES, overhang, body, row);
}

struct test_call *world_write_start(struct world *w, unsigned projection, uint64_t first,
                                    unsigned n, uint64_t version, size_t user_bytes,
                                    bool sync)
{
    const struct codec *codec = world_codec(w);
    size_t head = RECORD_HEADER_BYTES + codec_overhang_bytes(codec, projection);
    size_t row = codec_row_bytes(codec, user_bytes);
    uint8_t *payload = malloc(n * (head + row) + 1);
    Rozo__StWriteReq req = ROZO__ST_WRITE_REQ__INIT;
    struct test_ref ref;
    struct test_call *c;

    for (unsigned i = 0; i < n; i++)
        record_fill(w, payload + i * head, payload + n * head + i * row, projection,
                    first + i, version, user_bytes);
    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.projection = projection;
    req.first_block = first;
    req.n_records = n;
    req.to_storage = US;
    req.sync = sync;
    c = call_start(w, ROZO__OP__ST_WRITE, &req.base, payload, n * (head + row));
    free(payload);
    return c;
}

static void maybe_apply(struct world *w)
{
    if (!w->auto_apply || w->disk.is_cut)
        return;
    world_commit(w, UINT64_MAX);
    world_apply(w);
}

uint16_t world_write(struct world *w, unsigned projection, uint64_t first, unsigned n,
                     uint64_t version, size_t user_bytes, bool sync, uint64_t *newest)
{
    struct test_call *c =
        world_write_start(w, projection, first, n, version, user_bytes, sync);
    uint16_t status;

    env_virtual_run_posted(&w->v);
    assert_true(c->done || w->disk.is_cut);
    status = c->done ? c->status : UINT16_MAX;
    if (newest != NULL) {
        Rozo__StWriteResp *resp = rozo__st_write_resp__unpack(NULL, c->msg_len, c->msg);

        assert_non_null(resp);
        *newest = resp->newest_version;
        rozo__st_write_resp__free_unpacked(resp, NULL);
    }
    call_free(c);
    if (status == ROZO__STATUS__OK)
        maybe_apply(w);
    return status;
}

/* Checks one block of a read answer; returns the bytes of body that it used. */
static size_t seen_check(struct world *w, unsigned projection, uint64_t block,
                         const uint8_t *head, const uint8_t *body, size_t body_left,
                         struct seen *seen)
{
    const struct codec *codec = world_codec(w);
    size_t overhang = codec_overhang_bytes(codec, projection), row;
    uint8_t want_head[RECORD_HEADER_BYTES + CODEC_OVERHANG_MAX], want[CODEC_BLOCK_MAX];
    struct record_header h;
    enum record_state state =
        record_inspect(head, file_id_hash(&w->id), block, projection, w->block_bytes, &h);

    *seen = (struct seen){ .kind = SEEN_HOLE, .version = h.version };
    if (state == RECORD_IS_HOLE) {
        for (size_t i = 0; i < overhang; i++)
            assert_int_equal(head[RECORD_HEADER_BYTES + i], 0);
        return 0;
    }
    seen->kind = SEEN_DAMAGED;
    if (state == RECORD_IS_DAMAGED) {
        assert_true((head[6] & RECORD_DAMAGED) != 0);
        return 0;
    }
    row = codec_row_bytes(codec, h.user_bytes);
    assert_true(row <= body_left);
    if (h.crc != record_crc(head, head + RECORD_HEADER_BYTES, overhang, body, row))
        return row; /* torn */
    record_fill(w, want_head, want, projection, block, h.version, h.user_bytes);
    assert_memory_equal(head, want_head, RECORD_HEADER_BYTES + overhang);
    assert_memory_equal(body, want, row);
    seen->kind = SEEN_DATA;
    seen->user_bytes = h.user_bytes;
    return row;
}

static uint16_t read_blocks(struct world *w, unsigned projection, uint64_t first,
                            unsigned n, uint64_t at_most, struct seen *seen,
                            uint32_t *present)
{
    Rozo__StReadReq req = ROZO__ST_READ_REQ__INIT;
    Rozo__StReadResp *resp;
    struct test_ref ref;
    struct test_call *c;
    size_t head, at;
    uint16_t status;

    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.projection = projection;
    req.first_block = first;
    req.n_blocks = n;
    req.at_most = at_most;
    req.to_storage = US;
    status = call_run(w, ROZO__OP__ST_READ, &req.base, NULL, 0, &c);
    if (status == ROZO__STATUS__OK) {
        resp = rozo__st_read_resp__unpack(NULL, c->msg_len, c->msg);
        assert_non_null(resp);
        if (present != NULL)
            *present = resp->present;
        w->doubt = resp->doubt;
        head =
            RECORD_HEADER_BYTES + codec_overhang_bytes(world_codec(w), resp->projection);
        at = n * head;
        assert_true(at <= c->payload_len);
        for (unsigned i = 0; i < n; i++)
            at += seen_check(w, resp->projection, first + i, c->payload + i * head,
                             c->payload + at, c->payload_len - at, &seen[i]);
        assert_int_equal(at, c->payload_len);
        rozo__st_read_resp__free_unpacked(resp, NULL);
    }
    call_free(c);
    return status;
}

uint16_t world_read(struct world *w, unsigned projection, uint64_t first, unsigned n,
                    struct seen *seen, uint32_t *present)
{
    return read_blocks(w, projection, first, n, 0, seen, present);
}

void world_expect(struct world *w, unsigned projection, uint64_t block, int kind,
                  uint64_t version)
{
    struct seen seen;

    assert_int_equal(world_read(w, projection, block, 1, &seen, NULL), ROZO__STATUS__OK);
    assert_int_equal(seen.kind, kind);
    if (kind != SEEN_DAMAGED)
        assert_int_equal(seen.version, version);
}

uint16_t world_read_at_most(struct world *w, unsigned projection, uint64_t first,
                            unsigned n, uint64_t at_most, struct seen *seen)
{
    return read_blocks(w, projection, first, n, at_most, seen, NULL);
}

struct test_call *world_mark_start(struct world *w, unsigned projection, uint64_t first,
                                   uint64_t n, uint64_t version, bool keep_newer)
{
    Rozo__StMarkReq req = ROZO__ST_MARK_REQ__INIT;
    struct test_ref ref;

    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.projection = projection;
    req.first_block = first;
    req.n_blocks = n;
    req.version = version;
    req.to_storage = US;
    req.keep_newer = keep_newer;
    return call_start(w, ROZO__OP__ST_MARK, &req.base, NULL, 0);
}

uint16_t world_mark(struct world *w, unsigned projection, uint64_t first, uint64_t n,
                    uint64_t version)
{
    uint16_t status =
        call_finish(world_mark_start(w, projection, first, n, version, false));

    maybe_apply(w);
    return status;
}

uint16_t world_mark_below(struct world *w, unsigned projection, uint64_t first,
                          uint64_t n, uint64_t version)
{
    uint16_t status =
        call_finish(world_mark_start(w, projection, first, n, version, true));

    maybe_apply(w);
    return status;
}

struct test_call *world_sync_start(struct world *w)
{
    Rozo__StSyncReq req = ROZO__ST_SYNC_REQ__INIT;
    struct test_ref ref;

    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    return call_start(w, ROZO__OP__ST_SYNC, &req.base, NULL, 0);
}

uint16_t world_sync(struct world *w)
{
    return call_finish(world_sync_start(w));
}

static uint16_t as_node(struct world *w, uint16_t op, const ProtobufCMessage *msg)
{
    enum rpc_role role = w->role;
    uint16_t status;

    w->role = RPC_ROLE_NODE;
    status = call_run(w, op, msg, NULL, 0, NULL);
    w->role = role;
    return status;
}

uint16_t world_commit(struct world *w, uint64_t version)
{
    Rozo__StCommitReq req = ROZO__ST_COMMIT_REQ__INIT;
    Rozo__StCommitReq__Range range = ROZO__ST_COMMIT_REQ__RANGE__INIT;
    Rozo__StCommitReq__Range *ranges[] = { &range };
    struct test_ref ref;

    ref_init(w, &ref);
    range.version = version;
    req.ref = &ref.ref;
    req.to_storage = US;
    req.n_ranges = 1;
    req.ranges = ranges;
    return as_node(w, ROZO__OP__ST_COMMIT, &req.base);
}

uint16_t world_durable(struct world *w, uint64_t version)
{
    Rozo__StCommitReq req = ROZO__ST_COMMIT_REQ__INIT;
    struct test_ref ref;

    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    req.n_durable = 1;
    req.durable = &version;
    return call_run(w, ROZO__OP__ST_COMMIT, &req.base, NULL, 0, NULL);
}

void world_apply(struct world *w)
{
    env_virtual_advance_ms(&w->v, 3000);
}

uint16_t world_fence(struct world *w, uint32_t epoch)
{
    Rozo__StFenceReq req = ROZO__ST_FENCE_REQ__INIT;
    struct test_ref ref;

    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    req.epoch = epoch;
    return as_node(w, ROZO__OP__ST_FENCE, &req.base);
}

uint16_t world_drop(struct world *w, uint64_t first, uint64_t n, uint64_t keep,
                    uint32_t epoch)
{
    Rozo__StDropReq req = ROZO__ST_DROP_REQ__INIT;
    struct test_ref ref;

    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    req.first_block = first;
    req.n_blocks = n;
    req.keep = keep;
    req.epoch = epoch;
    return as_node(w, ROZO__OP__ST_DROP, &req.base);
}

uint16_t world_clean(struct world *w, uint64_t first, uint64_t n, uint64_t keep,
                     uint32_t projections)
{
    Rozo__StDropReq req = ROZO__ST_DROP_REQ__INIT;
    struct test_ref ref;

    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    req.first_block = first;
    req.n_blocks = n;
    req.keep = keep;
    req.projections = projections;
    return as_node(w, ROZO__OP__ST_DROP, &req.base);
}

Rozo__StHealthResp world_health(struct world *w)
{
    Rozo__StHealthResp out = ROZO__ST_HEALTH_RESP__INIT;

    storage_health(w->storage, &out);
    return out;
}

uint16_t world_remove(struct world *w)
{
    Rozo__StRemoveReq req = ROZO__ST_REMOVE_REQ__INIT;
    uint8_t id[FILE_ID_BYTES];
    enum rpc_role role = w->role;
    uint16_t status;

    file_id_put(id, &w->id);
    req.file_id.data = id;
    req.file_id.len = sizeof(id);
    req.to_storage = US;
    w->role = RPC_ROLE_NODE;
    status = call_run(w, ROZO__OP__ST_REMOVE, &req.base, NULL, 0, NULL);
    w->role = role;
    return status;
}

uint16_t world_whole(struct world *w, uint32_t whole)
{
    Rozo__StCommitReq req = ROZO__ST_COMMIT_REQ__INIT;
    struct test_ref ref;
    uint16_t status;

    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    req.whole = whole;
    w->role = RPC_ROLE_NODE;
    status = call_run(w, ROZO__OP__ST_COMMIT, &req.base, NULL, 0, NULL);
    w->role = RPC_ROLE_CLIENT;
    return status;
}

static uint16_t redist(struct world *w, uint32_t make_partial, bool prepare, bool leave)
{
    Rozo__StRedistReq req = ROZO__ST_REDIST_REQ__INIT;
    enum rpc_role role = w->role;
    struct test_ref ref;
    uint16_t status;

    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.to_storage = US;
    req.make_partial = make_partial;
    req.prepare = prepare;
    req.leave = leave;
    w->role = RPC_ROLE_NODE;
    status = call_run(w, ROZO__OP__ST_REDIST, &req.base, NULL, 0, NULL);
    w->role = role;
    return status;
}

uint16_t world_redist(struct world *w, uint32_t make_partial)
{
    return redist(w, make_partial, false, false);
}

uint16_t world_leave(struct world *w)
{
    return redist(w, 0, false, true);
}

uint16_t world_prepare(struct world *w, uint32_t make_partial)
{
    return redist(w, make_partial, true, false);
}

uint16_t world_next(struct world *w, uint64_t from, uint64_t *block)
{
    Rozo__StNextReq req = ROZO__ST_NEXT_REQ__INIT;
    Rozo__StNextResp *resp;
    struct test_ref ref;
    struct test_call *c;
    uint16_t status;

    ref_init(w, &ref);
    req.ref = &ref.ref;
    req.from_block = from;
    req.to_storage = US;
    status = call_run(w, ROZO__OP__ST_NEXT, &req.base, NULL, 0, &c);
    if (status == ROZO__STATUS__OK) {
        resp = rozo__st_next_resp__unpack(NULL, c->msg_len, c->msg);
        assert_non_null(resp);
        *block = resp->block;
        rozo__st_next_resp__free_unpacked(resp, NULL);
    }
    call_free(c);
    return status;
}

struct disk_file *world_file(struct world *w, unsigned projection)
{
    char path[PROJFILE_PATH_MAX];

    projfile_path(path, &w->id, projection);
    return memdisk_find(&w->disk, path);
}
