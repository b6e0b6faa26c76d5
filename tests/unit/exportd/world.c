/*
 * world.c - an exportd for tests.
 */
#include "tests/unit/exportd/world.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "codec/codec.h"
#include "common/wire/record.h"
#include "common/wire/status.h"
#include "exportd/store/key.h"
#include "tests/unit/exportd/check.h"
#include "tests/unit/exportd/world_disk.h"

enum { OBEY_AFTER_TURNS = 3 };

/* ---- fake channels ---- */

struct fake_channel {
    struct rpc_channel ch; /* must stay first */
    struct list_node link;
    struct fake_storage *s; /* NULL: no storage at the address */
    struct world *w;
};

/* Outstanding request; answered by a timer, so never inside rpc_send(). */
struct fake_request {
    struct env_timer timer; /* must stay first */
    struct fake_channel *ch;
    struct rpc_request *rq;
    uint8_t msg[65536];
    size_t msg_len;
};

/* Judges the start that exportd names, as a storage does. */
static uint16_t start_check(const struct fake_storage *s, const struct fake_request *fr)
{
    uint64_t start = fr->rq->session;
    uint64_t known = (uint64_t)s->map_returns << 32 | s->map_version >> 32;

    assert_true((uint32_t)start != 0 && (s->says_map || start <= UINT32_MAX));
    if (s->old || fr->rq->op == ROZO__OP__ST_MAP)
        return ROZO__STATUS__OK;
    if (start < known)
        return ROZO__STATUS__DEPOSED;
    return start == known || fr->rq->op == ROZO__OP__ST_ADMIT ||
                   fr->rq->op == ROZO__OP__ST_REMOVE
               ? ROZO__STATUS__OK
               : ROZO__STATUS__BUSY;
}

static unsigned take_map(struct fake_storage *s, const struct fake_request *fr)
{
    Rozo__StMapReq *req = rozo__st_map_req__unpack(NULL, fr->msg_len, fr->msg);

    assert_non_null(req);
    assert_int_equal(req->to_storage, s->id);
    s->n_maps++;
    assert_true(req->n_fenced <= SESSIONS_TOLD_MAX);
    if (s->no_maps) {
        rozo__st_map_req__free_unpacked(req, NULL);
        return ROZO__STATUS__IO_ERROR;
    }
    assert_true(req->version >> 32 == (uint32_t)fr->rq->session);
    if (!s->says_map)
        req->returns = 0; /* an older build */
    if (req->returns < s->map_returns ||
        (req->returns == s->map_returns && req->version < s->map_version)) {
        bool deposed =
            req->returns < s->map_returns || req->version >> 32 < s->map_version >> 32;

        rozo__st_map_req__free_unpacked(req, NULL);
        return deposed ? ROZO__STATUS__DEPOSED : ROZO__STATUS__STALE_VERSION;
    }
    s->n_fenced = (unsigned)req->n_fenced;
    if (req->n_fenced > 0)
        memcpy(s->fenced, req->fenced, req->n_fenced * sizeof(s->fenced[0]));
    s->map_version = req->version;
    s->map_returns = req->returns;
    s->reserved = req->reserved_bytes;
    s->n_map_storages = (unsigned)req->n_storages;
    s->n_map_up = 0;
    for (size_t i = 0; i < req->n_storages; i++)
        s->n_map_up += req->storages[i]->up;
    rozo__st_map_req__free_unpacked(req, NULL);
    return s->old ? ROZO__STATUS__UNKNOWN_OP : ROZO__STATUS__OK;
}

static unsigned take_check(struct fake_storage *s, const struct fake_request *fr)
{
    Rozo__StCheckReq *req = rozo__st_check_req__unpack(NULL, fr->msg_len, fr->msg);
    struct file_id id;

    assert_non_null(req);
    assert_int_equal(req->to_storage, s->id);
    assert_int_equal(req->ref->file_id.len, FILE_ID_BYTES);
    assert_true(req->abandoned && req->n_blocks == 0 && req->ref->n_storages >= 3);
    file_id_get(req->ref->file_id.data, &id);
    rozo__st_check_req__free_unpacked(req, NULL);
    if (s->no_checks)
        return ROZO__STATUS__BUSY;
    assert_true(s->n_checked < WORLD_CHECKED_MAX);
    s->checked[s->n_checked++] = id.ino;
    return s->old ? ROZO__STATUS__UNKNOWN_OP : ROZO__STATUS__OK;
}

static uint64_t ino_of(ProtobufCBinaryData bytes)
{
    struct file_id id;

    assert_int_equal(bytes.len, FILE_ID_BYTES);
    file_id_get(bytes.data, &id);
    assert_int_not_equal(id.generation, 0);
    return id.ino;
}

/* Answers like a storage of n_loops loops; a file belongs to one of them. */
static uint16_t take_remove(struct fake_storage *s, const Rozo__StRemoveReq *req,
                            uint8_t *out, size_t *out_len)
{
    unsigned n_loops = s->n_loops > 0 ? s->n_loops : 1;
    uint32_t failed[REMOVE_FILES_MAX], elsewhere[REMOVE_FILES_MAX];
    Rozo__StRemoveResp resp = ROZO__ST_REMOVE_RESP__INIT;
    uint64_t first = ino_of(req->file_id);

    assert_int_equal(req->to_storage, s->id);
    assert_true(req->n_more < REMOVE_FILES_MAX);
    s->n_remove_requests++;
    if (s->no_removes)
        return ROZO__STATUS__IO_ERROR;
    resp.failed = failed;
    resp.elsewhere = elsewhere;
    for (uint32_t i = 0; i <= req->n_more; i++) {
        uint64_t ino = i == 0 ? first : ino_of(req->more[i - 1]);

        assert_true(s->n_removed < WORLD_REMOVED_MAX);
        if (ino % n_loops != first % n_loops)
            elsewhere[resp.n_elsewhere++] = i;
        else if (ino == s->removes_not)
            failed[resp.n_failed++] = i;
        else
            s->removed[s->n_removed++] = ino;
    }
    *out_len = rozo__st_remove_resp__pack(&resp, out);
    return ROZO__STATUS__OK;
}

/* Answers with one file, and the distribution in its header. */
static uint16_t take_list_only(struct fake_storage *s, const Rozo__StListReq *req,
                               uint8_t *out, size_t *out_len)
{
    Rozo__StListResp resp = ROZO__ST_LIST_RESP__INIT;
    Rozo__StListResp__File file = ROZO__ST_LIST_RESP__FILE__INIT, *list = &file;
    Rozo__FileRef ref = ROZO__FILE_REF__INIT;

    for (unsigned i = 0; i < WORLD_MOVED_MAX; i++) {
        struct fake_moved *m = &s->moved[i];

        if (m->ino == 0 || m->ino != ino_of(req->after) || m->prepared)
            continue;
        ref.file_id = req->after;
        ref.codec = CODEC_MOJETTE;
        ref.block_bytes = 8192;
        ref.dist_generation = m->generation;
        ref.n_storages = m->n_storages;
        ref.storages = m->storages;
        file.ref = &ref;
        resp.files = &list;
        resp.n_files = 1;
    }
    resp.end = true;
    *out_len = rozo__st_list_resp__pack(&resp, out);
    return ROZO__STATUS__OK;
}

static uint16_t take_list(struct fake_storage *s, const Rozo__StListReq *req,
                          uint8_t *out, size_t *out_len)
{
    Rozo__StListResp resp = ROZO__ST_LIST_RESP__INIT;
    Rozo__StListResp__File files[WORLD_LISTED_MAX], *list[WORLD_LISTED_MAX];
    Rozo__FileRef refs[WORLD_LISTED_MAX];
    uint8_t ids[WORLD_LISTED_MAX][FILE_ID_BYTES];
    unsigned at = 0, page = s->list_page > 0 ? s->list_page : WORLD_LISTED_MAX;

    if (req->only)
        return take_list_only(s, req, out, out_len);
    assert_true(req->to_storage == s->id && req->ids_only);
    s->n_list_requests++;
    for (unsigned i = 0; i < s->n_listed; i++) {
        file_id_put(ids[i], &s->listed[i]);
        if (req->after.len != 0 && memcmp(req->after.data, ids[i], FILE_ID_BYTES) == 0)
            at = i + 1;
    }
    resp.files = list;
    for (unsigned i = at; i < s->n_listed && resp.n_files < page; i++) {
        rozo__st_list_resp__file__init(&files[i]);
        rozo__file_ref__init(&refs[i]);
        refs[i].file_id =
            (ProtobufCBinaryData){ FILE_ID_BYTES - s->lists_nonsense, ids[i] };
        files[i].ref = &refs[i];
        list[resp.n_files++] = &files[i];
    }
    resp.end = at + resp.n_files == s->n_listed;
    if (!resp.end)
        resp.after = (ProtobufCBinaryData){ FILE_ID_BYTES, ids[at + resp.n_files - 1] };
    *out_len = rozo__st_list_resp__pack(&resp, out);
    return ROZO__STATUS__OK;
}

static struct fake_moved *moved_of(struct fake_storage *s, const Rozo__FileRef *ref)
{
    uint64_t ino = ino_of(ref->file_id);
    unsigned i = 0;

    while (i < WORLD_MOVED_MAX && s->moved[i].ino != ino && s->moved[i].ino != 0)
        i++;
    assert_true(i < WORLD_MOVED_MAX && ref->n_storages <= 32);
    s->moved[i].ino = ino;
    return &s->moved[i];
}

static unsigned take_repair(struct fake_storage *s, const Rozo__StRepairReq *req,
                            uint8_t *out, size_t *out_len)
{
    Rozo__StRepairResp resp = ROZO__ST_REPAIR_RESP__INIT;

    if (s->no_repairs)
        return ROZO__STATUS__UNKNOWN_OP;
    s->n_repairs++;
    assert_true(req->to_storage == s->id && req->run != 0);
    for (size_t i = 0; i < req->ref->n_storages; i++) { /* all other storages */
        struct fake_storage *other = &s->w->storages[req->ref->storages[i] - 1];

        if (!other->down &&
            req->ref->dist_generation < moved_of(other, req->ref)->generation)
            return ROZO__STATUS__STALE_DISTRIBUTION;
    }
    if (s->repairs_wait > 0) {
        s->repairs_wait--;
        return ROZO__STATUS__IN_PROGRESS;
    }
    resp.sound = !s->unsound;
    *out_len = rozo__st_repair_resp__pack(&resp, out);
    return ROZO__STATUS__OK;
}

static unsigned take_fence(struct fake_storage *s, const Rozo__StFenceReq *req)
{
    struct fake_moved *m = moved_of(s, req->ref);

    assert_int_equal(req->to_storage, s->id);
    if (s->no_fences)
        return ROZO__STATUS__IO_ERROR;
    s->n_fences++;
    if (req->epoch > m->fenced)
        m->fenced = req->epoch;
    return ROZO__STATUS__OK;
}

/* Answers ST_REDIST. An old storage changes its header only when no client can write any
 * more. */
static unsigned take_redist(struct fake_storage *s, const Rozo__StRedistReq *req)
{
    const Rozo__FileRef *ref = req->ref;
    struct fake_moved *m = moved_of(s, ref);

    if (s->no_repairs)
        return ROZO__STATUS__UNKNOWN_OP;
    if (req->to_storage == 0) /* a question whether this op is known */
        return ROZO__STATUS__WRONG_STORAGE;
    assert_int_equal(req->to_storage, s->id);
    if (req->leave) {
        s->n_leaves++;
        for (size_t i = 0; i < ref->n_storages; i++)
            assert_int_not_equal(ref->storages[i], s->id);
        return ROZO__STATUS__OK;
    }
    if (s->no_redists || (s->hangs_redists && req->make_partial == 0))
        return s->no_redists ? ROZO__STATUS__IO_ERROR : ROZO__STATUS__BUSY;
    s->n_redists++;
    if (ref->dist_generation < m->generation)
        return ROZO__STATUS__OK;
    if (ref->dist_generation == m->generation) {
        assert_int_equal(ref->n_storages, m->n_storages);
        assert_memory_equal(ref->storages, m->storages, 4 * ref->n_storages);
        m->prepared = m->prepared && req->prepare;
        return ROZO__STATUS__OK;
    }
    assert_true(s->id > s->w->n_first || m->fenced >= s->w->epochs_given);
    m->generation = ref->dist_generation;
    m->n_storages = (uint32_t)ref->n_storages;
    memcpy(m->storages, ref->storages, 4 * ref->n_storages);
    m->partial |= req->make_partial;
    m->prepared = req->prepare;
    return ROZO__STATUS__OK;
}

static unsigned storage_answer(struct fake_storage *s, struct fake_request *fr,
                               uint8_t *out, size_t *out_len)
{
    Rozo__StInfoResp info = ROZO__ST_INFO_RESP__INIT;
    char *addrs[1] = { s->addr };
    unsigned status;

    *out_len = 0;
    if (s->starting > 0) {
        s->starting--;
        return ROZO__STATUS__BUSY;
    }
    if (fr->rq->op == ROZO__OP__ST_INFO) {
        info.version = (char *)"test";
        info.storage_id = s->id;
        info.incarnation = (ProtobufCBinaryData){ 16, s->incarnation };
        if (s->id != 0)
            info.cluster_id = (ProtobufCBinaryData){ 16, s->cluster_id };
        info.total_bytes = s->total;
        info.free_bytes = s->free;
        info.host = s->host;
        info.rack = s->rack;
        info.disk_id = s->disk_id;
        info.stream_bytes = s->stream_bytes;
        info.link_bytes = s->link_bytes;
        info.knows_full_quorum = !s->old_quorum;
        info.n_addresses = 1;
        info.addresses = addrs;
        info.n_projections = s->n_projections;
        info.map_version = s->says_map ? s->map_version : 0;
        info.map_returns = s->says_map ? s->map_returns : 0;
        info.knows_returns = s->says_map;
        *out_len = rozo__st_info_resp__pack(&info, out);
        return ROZO__STATUS__OK;
    }
    status = start_check(s, fr);
    if (status != ROZO__STATUS__OK)
        return status;
    if (fr->rq->op == ROZO__OP__ST_ADMIT) {
        Rozo__StAdmitReq *req = rozo__st_admit_req__unpack(NULL, fr->msg_len, fr->msg);
        bool other = s->id != 0 && (s->id != req->storage_id ||
                                    memcmp(s->cluster_id, req->cluster_id.data, 16) != 0);

        assert_int_equal(req->cluster_id.len, 16);
        if (!other) {
            s->id = req->storage_id;
            s->replaces = req->replaces;
            memcpy(s->cluster_id, req->cluster_id.data, 16);
        }
        rozo__st_admit_req__free_unpacked(req, NULL);
        return other ? ROZO__STATUS__WRONG_STORAGE : ROZO__STATUS__OK;
    }
    if (fr->rq->op == ROZO__OP__ST_MAP)
        return take_map(s, fr);
    if (fr->rq->op == ROZO__OP__ST_CHECK)
        return take_check(s, fr);
    if (fr->rq->op == ROZO__OP__ST_LIST) {
        Rozo__StListReq *req = rozo__st_list_req__unpack(NULL, fr->msg_len, fr->msg);
        status = take_list(s, req, out, out_len);

        rozo__st_list_req__free_unpacked(req, NULL);
        return status;
    }
    if (fr->rq->op == ROZO__OP__ST_REMOVE) {
        Rozo__StRemoveReq *req = rozo__st_remove_req__unpack(NULL, fr->msg_len, fr->msg);
        status = take_remove(s, req, out, out_len);

        rozo__st_remove_req__free_unpacked(req, NULL);
        return status;
    }
    if (fr->rq->op == ROZO__OP__ST_REPAIR) {
        Rozo__StRepairReq *req = rozo__st_repair_req__unpack(NULL, fr->msg_len, fr->msg);
        status = take_repair(s, req, out, out_len);

        rozo__st_repair_req__free_unpacked(req, NULL);
        return status;
    }
    if (fr->rq->op == ROZO__OP__ST_FENCE) {
        Rozo__StFenceReq *req = rozo__st_fence_req__unpack(NULL, fr->msg_len, fr->msg);
        status = take_fence(s, req);

        rozo__st_fence_req__free_unpacked(req, NULL);
        return status;
    }
    if (fr->rq->op == ROZO__OP__ST_REDIST) {
        Rozo__StRedistReq *req = rozo__st_redist_req__unpack(NULL, fr->msg_len, fr->msg);
        status = take_redist(s, req);

        rozo__st_redist_req__free_unpacked(req, NULL);
        return status;
    }
    fail_msg("exportd sent op %u", fr->rq->op);
    return 0;
}

static void on_fake_timer(struct env_timer *timer)
{
    struct fake_request *fr = (struct fake_request *)timer;
    struct fake_storage *s = fr->ch->s;
    struct rpc_request *rq = fr->rq;
    uint8_t answer[1024];
    size_t len = 0;
    int rc = 0;

    rq->impl = NULL;
    if (s == NULL || s->down)
        rc = -ENOTCONN;
    else if (s->hung)
        rc = -ETIMEDOUT;
    else
        rq->status = (uint16_t)storage_answer(s, fr, answer, &len);
    rq->answer_msg = answer;
    rq->answer_msg_len = len;
    free(fr);
    rq->done(rq, rc);
}

static void fake_send(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct fake_channel *fc = (struct fake_channel *)ch;
    struct fake_request *fr = calloc(1, sizeof(*fr));

    assert_true(rq->msg_len <= sizeof(fr->msg));
    fc->w->n_sent++;
    env_timer_init(&fr->timer, on_fake_timer);
    fr->ch = fc;
    fr->rq = rq;
    rq->impl = fr;
    fr->msg_len = rq->msg_len;
    if (rq->msg_len > 0)
        memcpy(fr->msg, rq->msg, rq->msg_len);
    env_timer_start(&fc->w->env.env, &fr->timer,
                    fc->s != NULL && fc->s->hung ? rq->deadline_ms : 1);
}

static void fake_cancel(struct rpc_channel *ch, struct rpc_request *rq)
{
    struct fake_channel *fc = (struct fake_channel *)ch;
    struct fake_request *fr = rq->impl;

    assert_non_null(fr);
    env_timer_stop(&fc->w->env.env, &fr->timer);
    free(fr);
    rq->impl = NULL;
}

static enum rpc_health fake_health(struct rpc_channel *ch)
{
    struct fake_channel *fc = (struct fake_channel *)ch;

    if (fc->s == NULL || fc->s->down)
        return RPC_DOWN;
    return fc->s->hung ? RPC_SUSPECT : RPC_UP;
}

static const struct rpc_channel_ops fake_ops = { fake_send, fake_cancel, fake_health,
                                                 NULL };

static struct rpc_channel *fake_open(void *arg, const char *const *addrs,
                                     unsigned n_addrs)
{
    struct world *w = arg;
    struct fake_channel *fc = calloc(1, sizeof(*fc));

    assert_true(n_addrs >= 1);
    fc->ch.ops = &fake_ops;
    fc->w = w;
    for (unsigned i = 0; i < WORLD_STORAGES_MAX; i++) {
        if (strcmp(w->storages[i].addr, addrs[0]) == 0)
            fc->s = &w->storages[i];
    }
    list_add_tail(&w->channels, &fc->link);
    return &fc->ch;
}

static void fake_close(void *arg, struct rpc_channel *ch)
{
    struct fake_channel *fc = (struct fake_channel *)ch;

    (void)arg;
    list_remove(&fc->link);
    free(fc);
}

static const char *fake_last_error(void *arg, struct rpc_channel *ch)
{
    struct fake_channel *fc = (struct fake_channel *)ch;

    (void)arg;
    return fc->s == NULL || fc->s->down ? "Connection refused" : "";
}

/* ---- life ---- */

static void run_virtual(struct world *w)
{
    env_virtual_advance_ms(&w->env, 1);
    world_disk_run(w);
}

size_t world_n_keys(struct world *w)
{
    struct kv_iter *it;
    size_t n = 0;

    env_virtual_run_posted(&w->env);
    assert_int_equal(kv_iter_open(w->kv, &it), 0);
    for (kv_iter_seek(it, "A", 1); kv_iter_valid(it); kv_iter_next(it)) {
        size_t len;

        n += *(const uint8_t *)kv_iter_key(it, &len) != KEY_DONE;
    }
    assert_int_equal(kv_iter_error(it), 0);
    kv_iter_close(it);
    return n;
}

void world_open(struct world *w, uint64_t seed)
{
    static const uint8_t node_key[32] = { 1, 2, 3 };

    memset(w, 0, sizeof(*w));
    w->run = run_virtual;
    w->lease_ms = 20000; /* even if evict_ms is less */
    env_virtual_init(&w->env, seed);
    list_init(&w->channels);
    assert_int_equal(kv_memory_open(&w->env.env, &w->mem), 0);
    w->kv = kv_memory_kv(w->mem);
    if (getenv("ROZO_TEST_KV") != NULL && strcmp(getenv("ROZO_TEST_KV"), "leveldb") == 0)
        w->kv = world_disk_open(w);
    assert_int_equal(capability_key_new(node_key, 0, &w->capabilities), 0);
    for (unsigned i = 0; i < WORLD_STORAGES_MAX; i++) {
        struct fake_storage *s = &w->storages[i];

        s->w = w;
        snprintf(s->addr, sizeof(s->addr), "s%u:1", i);
        snprintf(s->host, sizeof(s->host), "host%u", i);
        memset(s->incarnation, 0x40 + (int)i, sizeof(s->incarnation));
        s->total = 100ull << 30;
        s->free = 60ull << 30;
    }
}

static void on_deposed(void *arg)
{
    struct world *w = arg;

    w->n_deposed++;
}

struct exportd_config world_config(struct world *w)
{
    return (struct exportd_config){
        .boot = w->boot,
        .peers = { fake_open, fake_close, fake_last_error, w },
        .capabilities = w->capabilities,
        .lease_ms = w->lease_ms,
        .evict_ms = w->evict_ms,
        .session_tokens_max = w->session_tokens_max,
        .tokens_max = w->tokens_max,
        .strays_s = w->strays_s,
        .deposed = w->in_quorum ? on_deposed : NULL,
        .deposed_arg = w,
        /* bytes; small, so that entries are evicted and read again */
        .cache_max = 1 << 20,
    };
}

static int start_begin(struct world *w, struct err *err)
{
    struct exportd_config config = world_config(w);

    return exportd_open(&w->env.env, w->kv, &config, &w->x, err);
}

static int start(struct world *w, struct err *err)
{
    int rc = start_begin(w, err);

    while (rc == 0 && exportd_is_ready(w->x) == 0)
        run_virtual(w);
    if (rc == 0)
        env_virtual_advance_ms(&w->env, 10); /* lets the storages be polled */
    return rc;
}

void world_begin_start(struct world *w)
{
    struct err err = { 0 };

    if (start_begin(w, &err) != 0)
        fail_msg("%s", err.text);
}

void world_start(struct world *w)
{
    struct err err = { 0 };

    if (start(w, &err) != 0)
        fail_msg("%s", err.text);
}

bool world_try_start(struct world *w)
{
    struct err err = { 0 };
    int rc = start(w, &err);

    assert_true(rc == 0 || err.text[0] != '\0');
    return rc == 0;
}

static void on_put_done(struct kv_done *done, int rc)
{
    (void)done;
    assert_int_equal(rc, 0);
}

void world_put(struct world *w, const struct kv_item *item)
{
    struct kv_done done = { .fn = on_put_done };

    kv_commit(w->kv, item, 1, &done);
    env_virtual_run_posted(&w->env);
}

/* Forgets the requests of clients when exportd is gone. */
static void clients_stop(struct world *w)
{
    for (unsigned i = 0; i < WORLD_CLIENTS_MAX; i++) {
        struct world_client *c = &w->clients[i];

        if (c->asks)
            free(c->events.msg);
        c->asks = false;
        c->seen = 0;
    }
}

static void on_stopped(void *arg, int rc)
{
    *(int *)arg = rc;
}

/* Waits until exportd has come to rest, and frees it. */
static void world_end(struct world *w, const int *rc)
{
    unsigned n_turns = 0;

    while (*rc == 1) {
        assert_true(n_turns++ < 1000);
        w->run(w);
    }
    exportd_close(w->x);
    w->x = NULL;
    clients_stop(w);
    assert_true(list_is_empty(&w->channels));
    assert_int_equal(w->n_unanswered, 0);
}

int world_stop(struct world *w)
{
    int rc = 1;

    exportd_stop(w->x, on_stopped, &rc);
    world_end(w, &rc);
    return rc;
}

int world_abandon(struct world *w)
{
    int rc = 1;

    exportd_abandon(w->x, on_stopped, &rc);
    world_end(w, &rc);
    return rc;
}

void world_close(struct world *w)
{
    if (w->x != NULL)
        assert_int_equal(world_stop(w), 0);
    clients_stop(w); /* the test may have stopped exportd itself */
    if (!w->damaged)
        kv_check(w->kv);
    capability_key_free(w->capabilities);
    world_disk_close(w);
    kv_memory_close(w->mem);
    env_virtual_close(&w->env);
}

void world_kill(struct world *w)
{
    kv_memory_kill(w->mem);
    world_disk_kill(w);
    world_stop(w);
    kv_memory_revive(w->mem);
    world_disk_revive(w);
    world_start(w);
}

void world_power_cut(struct world *w, uint64_t n_lost)
{
    assert_null(w->disk);
    kv_memory_kill(w->mem);
    world_stop(w);
    kv_memory_power_cut(w->mem, n_lost);
    w->boot++;
    world_start(w);
}

/* ---- calls ---- */

struct test_call {
    struct rpc_call call; /* must stay first */
    struct world *w;
    struct answer_got *got;
    uint8_t msg[];
};

static void test_reply(struct rpc_call *call, uint16_t status, const void *msg,
                       size_t msg_len, const struct rpc_seg *segs, unsigned n_segs,
                       void (*sent)(void *arg), void *arg)
{
    struct test_call *tc = (struct test_call *)call;

    (void)segs;
    (void)arg;
    assert_int_equal(n_segs, 0);
    assert_null(sent);
    tc->w->n_unanswered--;
    if (tc->got != NULL) {
        assert_false(tc->got->came);
        tc->got->came = true;
        tc->got->status = status;
        tc->got->len = msg_len;
        tc->got->msg = malloc(msg_len + 1);
        if (msg_len > 0)
            memcpy(tc->got->msg, msg, msg_len);
    }
    free(tc);
}

static const struct rpc_call_ops call_ops = { test_reply };

void world_send(struct world *w, unsigned op, enum rpc_role role, uint64_t session,
                const void *msg, size_t len, struct answer_got *got)
{
    struct test_call *tc = calloc(1, sizeof(*tc) + len + 1);

    tc->call = (struct rpc_call){
        .ops = &call_ops,
        .op = (uint16_t)op,
        .role = role,
        .session = session,
        .id = w->again_id != 0 ? w->again_id : ++w->n_ids,
        .start = w->start,
        .msg = tc->msg,
        .msg_len = len,
    };
    if (len > 0)
        memcpy(tc->msg, msg, len);
    tc->w = w;
    tc->got = got;
    if (got != NULL)
        memset(got, 0, sizeof(*got));
    w->n_unanswered++;
    if (w->handler != NULL)
        w->handler(w->handler_arg, &tc->call);
    else
        exportd_handle(w->x, &tc->call);
}

/* ---- answers to recalls ---- */

static void client_gives_back(struct world *w, struct world_client *c)
{
    Rozo__MdEventsResp *resp = NULL;

    c->asks = false;
    if (c->events.status == ROZO__STATUS__NO_SESSION)
        c->session = 0;
    if (c->events.status == ROZO__STATUS__OK)
        resp = rozo__md_events_resp__unpack(NULL, c->events.len, c->events.msg);
    free(c->events.msg);
    for (size_t i = 0; resp != NULL && i < resp->n_events; i++) {
        const Rozo__MdEventsResp__Event *e = resp->events[i];
        Rozo__MdGiveBackReq req = ROZO__MD_GIVE_BACK_REQ__INIT;
        Rozo__MdGiveBackReq__Token token = ROZO__MD_GIVE_BACK_REQ__TOKEN__INIT,
                                   *tokens[] = { &token };
        uint8_t msg[64];

        c->seen = e->number;
        token.ino = e->ino;
        token.keep = e->keep;
        token.grant = e->grant;
        req.n_tokens = 1;
        req.tokens = tokens;
        if (e->waiter == 0)
            world_send(w, ROZO__OP__MD_GIVE_BACK, RPC_ROLE_CLIENT, c->session, msg,
                       rozo__md_give_back_req__pack(&req, msg), NULL);
    }
    rozo__md_events_resp__free_unpacked(resp, NULL);
}

/* Lets an open session answer recalls from now on. */
static void client_note(struct world *w, uint64_t session)
{
    struct world_client *to = NULL;

    for (unsigned i = 0; i < WORLD_CLIENTS_MAX; i++) {
        struct world_client *c = &w->clients[i];

        if (c->asks && c->events.came)
            client_gives_back(w, c);
        if (c->session == session)
            return;
        if (to == NULL || c->session == 0)
            to = c;
    }
    assert_true(!to->asks);
    memset(to, 0, sizeof(*to));
    to->session = session;
}

void world_obey(struct world *w)
{
    for (unsigned i = 0; i < WORLD_CLIENTS_MAX && !w->disobeys; i++) {
        struct world_client *c = &w->clients[i];
        Rozo__MdEventsReq req = ROZO__MD_EVENTS_REQ__INIT;
        uint8_t msg[16];

        if (c->session == 0)
            continue;
        if (c->asks && c->events.came)
            client_gives_back(w, c);
        if (c->asks)
            continue;
        c->asks = true;
        req.seen = c->seen;
        world_send(w, ROZO__OP__MD_EVENTS, RPC_ROLE_CLIENT, c->session, msg,
                   rozo__md_events_req__pack(&req, msg), &c->events);
    }
}

static unsigned call_as(struct world *w, enum rpc_role role, unsigned op,
                        const ProtobufCMessage *req,
                        const ProtobufCMessageDescriptor *desc, void *out)
{
    size_t len = protobuf_c_message_get_packed_size(req);
    uint8_t *msg = malloc(len + 1);
    struct answer_got got;
    unsigned status;

    protobuf_c_message_pack(req, msg);
    world_send(w, op, role, w->session, msg, len, &got);
    free(msg);
    for (unsigned i = 0; !got.came; i++) {
        assert_true(i < 20000);
        if (i == 0)
            env_virtual_run_posted(&w->env);
        else
            w->run(w);
        if (i >= OBEY_AFTER_TURNS && !got.came)
            world_obey(w);
    }
    status = got.status;
    if (out != NULL) {
        ProtobufCMessage *answer = NULL;

        if (status == ROZO__STATUS__OK || got.len > 0) {
            answer = protobuf_c_message_unpack(desc, NULL, got.len, got.msg);
            assert_non_null(answer);
        }
        *(ProtobufCMessage **)out = answer;
    }
    free(got.msg);
    return status;
}

unsigned world_call(struct world *w, unsigned op, const ProtobufCMessage *req,
                    const ProtobufCMessageDescriptor *desc, void *out)
{
    return call_as(w, RPC_ROLE_CLIENT, op, req, desc, out);
}

unsigned world_call_node(struct world *w, unsigned op, const ProtobufCMessage *req,
                         const ProtobufCMessageDescriptor *desc, void *out)
{
    return call_as(w, RPC_ROLE_NODE, op, req, desc, out);
}

/* ---- short forms of requests ---- */

static void see(struct seen *out, const Rozo__Attr *a, const Rozo__FileData *d)
{
    memset(out, 0, sizeof(*out));
    if (a != NULL) {
        out->ino = a->ino;
        out->generation = a->generation;
        out->size = a->size;
        out->mode = a->mode;
        out->nlink = a->nlink;
        out->uid = a->uid;
        out->gid = a->gid;
        out->rdev = a->rdev;
        out->atime_ns = wide_ns_join((int64_t)a->atime_ns, a->atime_more_s);
        out->mtime_ns = wide_ns_join((int64_t)a->mtime_ns, a->mtime_more_s);
        out->ctime_ns = (int64_t)a->ctime_ns;
        out->has_data = a->has_data;
        out->change = a->change;
        out->xattrs = a->xattrs;
        out->file_flags = a->file_flags;
        out->blocks = a->blocks;
        out->blocks_unsure = a->blocks_unsure;
    }
    out->with_data = d != NULL;
    if (d != NULL) {
        assert_int_equal(d->ref->file_id.len, FILE_ID_BYTES);
        assert_int_equal(d->ref->capability.len, CAPABILITY_BYTES);
        out->epoch = d->epoch;
        out->n_storages = (uint32_t)d->ref->n_storages;
        out->full_quorum = d->ref->full_quorum;
        out->dist_generation = d->ref->dist_generation;
        for (unsigned i = 0; i < d->ref->n_storages; i++)
            out->storages[i] = d->ref->storages[i];
        out->truncate_pending = d->truncate_pending;
        out->truncate_size = d->truncate_size;
        out->truncate_version = d->truncate_version;
    }
}

static ProtobufCBinaryData bytes(const char *text)
{
    return (ProtobufCBinaryData){ strlen(text), (uint8_t *)(uintptr_t)text };
}

static unsigned entry_call(struct world *w, unsigned op, const ProtobufCMessage *req,
                           struct seen *out)
{
    Rozo__MdEntryResp *resp;
    unsigned status = world_call(w, op, req, &rozo__md_entry_resp__descriptor, &resp);

    if (resp != NULL && out != NULL) {
        see(out, resp->attr, resp->data);
        out->cut = resp->cut;
    }
    rozo__md_entry_resp__free_unpacked(resp, NULL);
    return status;
}

unsigned t_lookup(struct world *w, uint64_t parent, const char *name, struct seen *out)
{
    Rozo__MdLookupReq req = ROZO__MD_LOOKUP_REQ__INIT;

    req.parent = parent;
    req.name = bytes(name);
    return entry_call(w, ROZO__OP__MD_LOOKUP, &req.base, out);
}

unsigned t_getattr(struct world *w, uint64_t ino, struct seen *out)
{
    Rozo__MdGetattrReq req = ROZO__MD_GETATTR_REQ__INIT;

    req.ino = ino;
    return entry_call(w, ROZO__OP__MD_GETATTR, &req.base, out);
}

static unsigned create_call(struct world *w, const Rozo__MdCreateReq *req,
                            struct seen *out)
{
    Rozo__MdCreateResp *resp;
    unsigned status = world_call(w, ROZO__OP__MD_CREATE, &req->base,
                                 &rozo__md_create_resp__descriptor, &resp);

    if (resp != NULL && out != NULL) {
        see(out, resp->attr, resp->data);
        out->existed = resp->existed;
    }
    rozo__md_create_resp__free_unpacked(resp, NULL);
    return status;
}

unsigned t_create(struct world *w, uint64_t parent, const char *name, uint32_t mode,
                  struct seen *out)
{
    Rozo__MdCreateReq req = ROZO__MD_CREATE_REQ__INIT;

    req.parent = parent;
    req.name = bytes(name);
    req.mode = mode;
    req.uid = 1000;
    req.gid = 1001;
    req.exclusive = true;
    return create_call(w, &req, out);
}

unsigned t_create_open(struct world *w, uint64_t parent, const char *name, bool exclusive,
                       struct seen *out)
{
    Rozo__MdCreateReq req = ROZO__MD_CREATE_REQ__INIT;

    req.parent = parent;
    req.name = bytes(name);
    req.mode = S_IFREG | 0644;
    req.open = true;
    req.exclusive = exclusive;
    return create_call(w, &req, out);
}

unsigned t_create_nameless(struct world *w, uint64_t parent, uint32_t mode,
                           struct seen *out)
{
    Rozo__MdCreateReq req = ROZO__MD_CREATE_REQ__INIT;

    req.parent = parent;
    req.mode = mode;
    req.gid = 1001;
    req.open = req.exclusive = req.nameless = true;
    return create_call(w, &req, out);
}

unsigned t_symlink(struct world *w, uint64_t parent, const char *name, const char *target,
                   struct seen *out)
{
    Rozo__MdCreateReq req = ROZO__MD_CREATE_REQ__INIT;

    req.parent = parent;
    req.name = bytes(name);
    req.mode = S_IFLNK | 0777;
    req.target = bytes(target);
    req.exclusive = true;
    return create_call(w, &req, out);
}

static unsigned removed_call(struct world *w, unsigned op, const ProtobufCMessage *req,
                             struct seen *removed)
{
    Rozo__MdRemovedResp *resp;
    unsigned status = world_call(w, op, req, &rozo__md_removed_resp__descriptor, &resp);

    if (resp != NULL && removed != NULL)
        see(removed, resp->removed, NULL);
    for (unsigned i = 0; resp != NULL && i < 2; i++)
        w->moved[i] = i < resp->n_moved ? resp->moved[i] : 0;
    rozo__md_removed_resp__free_unpacked(resp, NULL);
    return status;
}

unsigned t_unlink(struct world *w, uint64_t parent, const char *name,
                  struct seen *removed)
{
    Rozo__MdUnlinkReq req = ROZO__MD_UNLINK_REQ__INIT;

    req.parent = parent;
    req.name = bytes(name);
    return removed_call(w, ROZO__OP__MD_UNLINK, &req.base, removed);
}

unsigned t_rmdir(struct world *w, uint64_t parent, const char *name)
{
    Rozo__MdRmdirReq req = ROZO__MD_RMDIR_REQ__INIT;

    req.parent = parent;
    req.name = bytes(name);
    return removed_call(w, ROZO__OP__MD_RMDIR, &req.base, NULL);
}

bool t_is_fenced(const struct world *w, unsigned storage, uint64_t session)
{
    const struct fake_storage *s = &w->storages[storage];

    for (unsigned i = 0; i < s->n_fenced; i++) {
        if (s->fenced[i] == session)
            return true;
    }
    return false;
}

unsigned t_link(struct world *w, uint64_t ino, uint64_t parent, const char *name)
{
    Rozo__MdLinkReq req = ROZO__MD_LINK_REQ__INIT;

    req.ino = ino;
    req.parent = parent;
    req.name = bytes(name);
    return entry_call(w, ROZO__OP__MD_LINK, &req.base, NULL);
}

unsigned t_rename(struct world *w, uint64_t parent, const char *name, uint64_t new_parent,
                  const char *new_name, uint32_t flags)
{
    Rozo__MdRenameReq req = ROZO__MD_RENAME_REQ__INIT;

    req.parent = parent;
    req.name = bytes(name);
    req.new_parent = new_parent;
    req.new_name = bytes(new_name);
    req.flags = flags;
    return removed_call(w, ROZO__OP__MD_RENAME, &req.base, NULL);
}

unsigned t_setattr(struct world *w, Rozo__MdSetattrReq req, struct seen *out)
{
    return entry_call(w, ROZO__OP__MD_SETATTR, &req.base, out);
}

unsigned t_truncate(struct world *w, uint64_t ino, uint64_t size, struct seen *out)
{
    Rozo__MdSetattrReq req = ROZO__MD_SETATTR_REQ__INIT;

    req.ino = ino;
    req.valid = ROZO__SETATTR_BITS__SET_SIZE;
    req.size = size;
    return t_setattr(w, req, out);
}

unsigned t_open(struct world *w, uint64_t ino, bool write, struct seen *out)
{
    Rozo__MdOpenReq req = ROZO__MD_OPEN_REQ__INIT;
    Rozo__MdOpenResp *resp;
    unsigned status;

    req.ino = ino;
    req.write = write;
    status = world_call(w, ROZO__OP__MD_OPEN, &req.base, &rozo__md_open_resp__descriptor,
                        &resp);
    if (resp != NULL && out != NULL)
        see(out, resp->attr, resp->data);
    rozo__md_open_resp__free_unpacked(resp, NULL);
    return status;
}

unsigned t_close(struct world *w, uint64_t ino, unsigned n)
{
    Rozo__MdCloseReq req = ROZO__MD_CLOSE_REQ__INIT;

    req.ino = ino;
    req.n_references = n;
    req.nothing_stored = true;
    return world_call(w, ROZO__OP__MD_CLOSE, &req.base, NULL, NULL);
}

unsigned t_close_stored(struct world *w, uint64_t ino, unsigned n)
{
    Rozo__MdCloseReq req = ROZO__MD_CLOSE_REQ__INIT;

    req.ino = ino;
    req.n_references = n;
    return world_call(w, ROZO__OP__MD_CLOSE, &req.base, NULL, NULL);
}

unsigned t_wrote_req(struct world *w, const Rozo__MdWroteReq *req, struct seen *out)
{
    return entry_call(w, ROZO__OP__MD_WROTE, &req->base, out);
}

unsigned t_wrote_in(struct world *w, uint64_t ino, uint64_t size, uint32_t epoch,
                    struct seen *out)
{
    Rozo__MdWroteReq req = ROZO__MD_WROTE_REQ__INIT;

    req.ino = ino;
    req.size = size;
    req.epoch = epoch;
    req.has_data = true;
    return entry_call(w, ROZO__OP__MD_WROTE, &req.base, out);
}

unsigned t_wrote(struct world *w, uint64_t ino, uint64_t size, struct seen *out)
{
    return t_wrote_in(w, ino, size, 0, out);
}

unsigned t_truncated(struct world *w, uint64_t ino, uint64_t version, struct seen *out)
{
    Rozo__MdTruncatedReq req = ROZO__MD_TRUNCATED_REQ__INIT;

    req.ino = ino;
    req.version = version;
    return entry_call(w, ROZO__OP__MD_TRUNCATED, &req.base, out);
}

unsigned t_setxattr(struct world *w, uint64_t ino, const char *name, const void *val,
                    size_t len, uint32_t flags)
{
    Rozo__MdSetxattrReq req = ROZO__MD_SETXATTR_REQ__INIT;

    req.ino = ino;
    req.name = bytes(name);
    req.value = (ProtobufCBinaryData){ len, (uint8_t *)(uintptr_t)val };
    req.flags = flags;
    return world_call(w, ROZO__OP__MD_SETXATTR, &req.base, NULL, NULL);
}

unsigned t_getxattr(struct world *w, uint64_t ino, const char *name, void *val,
                    size_t *len)
{
    Rozo__MdGetxattrReq req = ROZO__MD_GETXATTR_REQ__INIT;
    Rozo__MdGetxattrResp *resp;
    unsigned status;

    req.ino = ino;
    req.name = bytes(name);
    status = world_call(w, ROZO__OP__MD_GETXATTR, &req.base,
                        &rozo__md_getxattr_resp__descriptor, &resp);
    if (resp != NULL) {
        *len = resp->value.len;
        if (*len > 0)
            memcpy(val, resp->value.data, *len);
    }
    rozo__md_getxattr_resp__free_unpacked(resp, NULL);
    return status;
}

unsigned t_real_name(struct world *w, uint64_t dir, const char *name, char *found)
{
    Rozo__MdRealNameReq req = ROZO__MD_REAL_NAME_REQ__INIT;
    Rozo__MdRealNameResp *resp;
    unsigned status;

    req.ino = dir;
    req.name = bytes(name);
    status = world_call(w, ROZO__OP__MD_REAL_NAME, &req.base,
                        &rozo__md_real_name_resp__descriptor, &resp);
    if (resp != NULL)
        snprintf(found, 256, "%.*s", (int)resp->name.len, (char *)resp->name.data);
    rozo__md_real_name_resp__free_unpacked(resp, NULL);
    return status;
}

unsigned t_removexattr(struct world *w, uint64_t ino, const char *name)
{
    Rozo__MdRemovexattrReq req = ROZO__MD_REMOVEXATTR_REQ__INIT;

    req.ino = ino;
    req.name = bytes(name);
    return world_call(w, ROZO__OP__MD_REMOVEXATTR, &req.base, NULL, NULL);
}

unsigned t_storage_add(struct world *w, unsigned i, uint32_t *id, char error[256])
{
    Rozo__AdStorageAddReq req = ROZO__AD_STORAGE_ADD_REQ__INIT;
    Rozo__AdStorageAddResp *resp;
    char *addr = w->storages[i].addr;
    unsigned status;

    req.n_addresses = 1;
    req.addresses = &addr;
    status = world_call_node(w, ROZO__OP__AD_STORAGE_ADD, &req.base,
                             &rozo__ad_storage_add_resp__descriptor, &resp);
    if (id != NULL)
        *id = resp != NULL && resp->storage != NULL ? resp->storage->id : 0;
    if (error != NULL)
        snprintf(error, 256, "%s", resp == NULL ? "" : resp->error);
    rozo__ad_storage_add_resp__free_unpacked(resp, NULL);
    return status;
}

unsigned t_export_create(struct world *w, const char *name, unsigned layout,
                         char error[256])
{
    Rozo__AdExportCreateReq req = ROZO__AD_EXPORT_CREATE_REQ__INIT;
    Rozo__AdExportCreateResp *resp;
    unsigned status;

    req.name = (char *)(uintptr_t)name;
    req.layout = layout;
    req.inline_max = w->inline_max;
    req.fold = w->fold;
    status = world_call_node(w, ROZO__OP__AD_EXPORT_CREATE, &req.base,
                             &rozo__ad_export_create_resp__descriptor, &resp);
    if (error != NULL)
        snprintf(error, 256, "%s", resp == NULL ? "" : resp->error);
    rozo__ad_export_create_resp__free_unpacked(resp, NULL);
    return status;
}

uint64_t t_trash(struct world *w)
{
    Rozo__AdStatusReq req = ROZO__AD_STATUS_REQ__INIT;
    Rozo__AdStatusResp *resp;
    uint64_t trash;

    OK(world_call_node(w, ROZO__OP__AD_STATUS, &req.base,
                       &rozo__ad_status_resp__descriptor, &resp));
    trash = resp->trash;
    rozo__ad_status_resp__free_unpacked(resp, NULL);
    return trash;
}

Rozo__MdOpenSessionReq t_open_session_req(void)
{
    Rozo__MdOpenSessionReq req = ROZO__MD_OPEN_SESSION_REQ__INIT;

    req.full_quorum = true;
    return req;
}

/* Opens a session. written: inode that it holds EXCLUSIVE; 0: none. */
static unsigned open_session(struct world *w, uint64_t written)
{
    Rozo__MdOpenSessionReq req = t_open_session_req();
    Rozo__MdOpenSessionResp *resp;
    unsigned status;

    req.n_exclusive_tokens = written != 0;
    req.exclusive_tokens = &written;
    req.knows_inline = w->inline_max != 0;
    req.export_name = (char *)(uintptr_t) "main";
    req.client = (char *)(uintptr_t) "test:1:/mnt";
    req.session = w->session;
    status = world_call(w, ROZO__OP__MD_OPEN_SESSION, &req.base,
                        &rozo__md_open_session_resp__descriptor, &resp);
    if (resp != NULL) {
        w->lease_told_ms = resp->lease_ms;
        w->session = resp->session; /* new id if the old session has ended */
        client_note(w, w->session);
    }
    rozo__md_open_session_resp__free_unpacked(resp, NULL);
    return status;
}

void world_reopen_session(struct world *w)
{
    OK(open_session(w, 0));
}

void world_reopen_writing(struct world *w, uint64_t ino)
{
    OK(open_session(w, ino));
}

void world_absent_session(struct world *w)
{
    uint64_t session = w->session;

    w->session = 0;
    OK(open_session(w, 0));
    w->session = session;
}

void world_try_session(struct world *w)
{
    open_session(w, 0);
}

void world_make_export(struct world *w, unsigned n_storages, unsigned layout)
{
    for (unsigned i = 0; i < n_storages; i++)
        OK(t_storage_add(w, i, NULL, NULL));
    OK(t_export_create(w, "main", layout, NULL));
    w->n_first = n_storages;
    world_reopen_session(w);
}
