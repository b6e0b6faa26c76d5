/*
 * healer.c - the healer's interface: its requests, the cluster map, start and stop.
 *
 * In:     healer_handle(), from the shell or a simulator. Thread: the healer's.
 * Out:    rpc_reply(); channels; the other files of this folder.
 * Keeps:  every call is answered once; after healer_stop() is done nothing is under way.
 * Ask:    the bytes of the map in the kv (docs/FORMATS.md).
 */
#include "storaged/heal/healer.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/wire/status.h"
#include "storaged/heal/healer_int.h"

enum {
    PEERS_MAX = 4096,
    CONCURRENCY_DEFAULT = 4,
    CONCURRENCY_MAX = 64,
    UNCOMMITTED_MS_DEFAULT = 10000,
    RETURN_MS_DEFAULT = 10000,
    BUSY_MAX = 512, /* operations under way; each needs memory */
    ADDR_MAX = 255,
    /* bytes per second that healing gets, whatever is reserved */
    UNRESERVED_MIN = 1000000,
};

/* All of a healer. */
struct whole {
    struct healer h;
    struct heal_parts parts;
};

static const char map_key[] = "map";

/* ---- answers ---- */

void heal_reply(struct rpc_call *call, const ProtobufCMessage *msg)
{
    size_t len = protobuf_c_message_get_packed_size(msg);
    uint8_t *buf = malloc(len + 1);

    if (buf == NULL || len > RPC_MSG_MAX) {
        free(buf);
        rpc_reply_status(call, ROZO__STATUS__NO_MEMORY);
        return;
    }
    protobuf_c_message_pack(msg, buf);
    rpc_reply(call, ROZO__STATUS__OK, buf, len, NULL, 0, NULL, NULL);
    free(buf);
}

/* ---- the map ---- */

ProtobufCBinaryData healer_incarnation(const struct healer *h)
{
    return (ProtobufCBinaryData){
        .len = IDENTITY_ID_BYTES,
        .data = (uint8_t *)(uintptr_t)h->config.identity->incarnation
    };
}

/* Limits healing to what reserved streams leave free. It never stops altogether, because
 * data with fewer copies is a greater risk than a late frame. */
static void reserve(struct healer *h, uint64_t reserved_bytes)
{
    uint64_t stream_bytes = h->config.stream_bytes, rate = 0;

    if (stream_bytes > 0 && reserved_bytes > 0) {
        rate = stream_bytes > reserved_bytes ? stream_bytes - reserved_bytes : 0;
        if (rate < UNRESERVED_MIN)
            rate = UNRESERVED_MIN;
    }
    if (rate != h->unreserved_rate.bytes_per_s) /* starts without debt */
        h->unreserved_rate = (struct rate){ .bytes_per_s = rate };
}

static int map_apply(struct healer *h, const Rozo__StMapReq *map)
{
    int rc = healer_peers_apply(h, map);

    if (rc == 0)
        reserve(h, map->reserved_bytes);
    return rc != 0 ? rc
                   : revoked_sessions_set(h->config.revoked, map->fenced, map->n_fenced);
}

static int map_check(const Rozo__StMapReq *map)
{
    if (map->n_storages > PEERS_MAX || map->n_fenced > REVOKED_MAX)
        return -EBADMSG;
    for (size_t i = 0; i < map->n_fenced; i++) {
        if (!revoked_sessions_may_have(map->fenced[i]))
            return -EBADMSG;
    }
    for (size_t i = 0; i < map->n_storages; i++) {
        const Rozo__Storage *s = map->storages[i];

        if (s->id == 0 || s->n_addresses > HEAL_ADDRS_MAX ||
            (s->incarnation.len != 0 && s->incarnation.len != IDENTITY_ID_BYTES))
            return -EBADMSG;
        for (size_t j = 0; j < s->n_addresses; j++) {
            if (strlen(s->addresses[j]) > ADDR_MAX)
                return -EBADMSG;
        }
    }
    return 0;
}

/* Publishes a map version that is in force and on stable storage. */
static void map_is_kept(struct healer *h, uint64_t version, uint32_t returns)
{
    if (version != h->map_version || returns != h->map_returns)
        return; /* a newer one is coming */
    atomic_store(&h->config.identity->map_version, version);
    atomic_store(&h->config.identity->map_start, identity_start(version, returns));
}

/* Loads the map that was kept. It never replaces a newer one, since it may lack revoked
 * sessions. */
static int map_load(struct healer *h)
{
    void *val;
    size_t len;
    int rc = kv_get(h->config.kv, map_key, strlen(map_key), &val, &len);
    Rozo__StMapReq *map;

    if (rc != 0)
        return rc == -ENOENT ? 0 : rc;
    map = rozo__st_map_req__unpack(NULL, len, val);
    free(val);
    if (map == NULL || map_check(map) != 0) {
        log_warn(
            "the cluster map kept in the data directory is corrupt; waiting for a new "
            "one from exportd");
        rozo__st_map_req__free_unpacked(map, NULL);
        return 0;
    }
    rc = map_apply(h, map);
    if (rc == 0) {
        h->map_version = map->version;
        h->map_returns = map->returns;
        map_is_kept(h, map->version, map->returns);
    }
    rozo__st_map_req__free_unpacked(map, NULL);
    return rc;
}

static int repairers_make(struct healer *h);

/* A map in force that is not yet on stable storage. */
struct map_call {
    struct hint_log_wait wait; /* first */
    struct healer *h;
    struct rpc_call *call;
    uint64_t version;
    uint32_t returns;
};

static void on_map_stable(struct hint_log_wait *w, int rc)
{
    struct map_call *mc = (struct map_call *)w;
    struct healer *h = mc->h;

    if (rc == 0)
        map_is_kept(h, mc->version, mc->returns);
    rpc_reply_status(mc->call, status_from_errno(rc));
    free(mc);
    healer_idle(h);
}

/* Returns 0 for a map that is not older than ours. One of metadata that have gone back to
 * an earlier state is newer than all that were made before that, whatever its start:
 * exportds that do not know of it may have started more often since. */
static int map_judge(const struct healer *h, const Rozo__StMapReq *map)
{
    if (map->returns != h->map_returns)
        return map->returns < h->map_returns ? -ROZO_EDEPOSED : 0;
    if (map->version >= h->map_version)
        return 0;
    return map_version_start(map->version) < map_version_start(h->map_version)
               ? -ROZO_EDEPOSED
               : -ROZO_ESTALE_VERSION;
}

/* Takes a map that is newer than ours. An older one is not acknowledged: its sender would
 * believe that what it says is in force. */
static int map_take(struct healer *h, const struct rpc_call *call,
                    const Rozo__StMapReq *map)
{
    struct kv_item item = {
        .key = map_key,
        .key_len = strlen(map_key),
        .val = call->msg,
        .val_len = call->msg_len,
    };
    int rc = map == NULL ? -EBADMSG : map_check(map);

    if (rc == 0 && call->role != RPC_ROLE_NODE)
        rc = -EACCES;
    if (rc == 0 && map->to_storage != h->us)
        rc = -ROZO_EWRONG_STORAGE;
    if (rc == 0)
        rc = map_judge(h, map);
    if (rc != 0 || (map->version == h->map_version && map->returns == h->map_returns))
        return rc;
    rc = map_apply(h, map);
    if (rc == 0) {
        rebuild_lost(h); /* notes the loss before the map with it is kept */
        rc = hint_log_commit(h->hints, &item, 1);
    }
    if (rc == 0) {
        h->map_version = map->version;
        h->map_returns = map->returns;
    }
    return rc;
}

static void handle_map(struct healer *h, struct rpc_call *call)
{
    Rozo__StMapReq *map = rozo__st_map_req__unpack(NULL, call->msg_len, call->msg);
    struct map_call *mc = calloc(1, sizeof(*mc));
    int rc = mc == NULL ? -ENOMEM : map_take(h, call, map);

    assert(call->op == ROZO__OP__ST_MAP && h->us != 0);
    if (rc == 0) {
        *mc = (struct map_call){
            .wait.done = on_map_stable,
            .h = h,
            .call = call,
            .version = map->version,
            .returns = map->returns,
        };
        h->n_busy++;
        hint_log_sync(h->hints, &mc->wait);
    } else {
        rpc_reply_status(call, status_from_errno(rc));
        free(mc);
    }
    rozo__st_map_req__free_unpacked(map, NULL);
}

/* ---- the kv ---- */

struct put {
    struct kv_done done;
    struct healer *h;
};

static void on_put(struct kv_done *done, int rc)
{
    struct put *p = container_of(done, struct put, done);
    struct healer *h = p->h;

    if (rc != 0)
        log_error("cannot write the healer's state: %s", error_text(rc));
    free(p);
    healer_idle(h);
}

void healer_put(struct healer *h, const char *key, const void *val, size_t len)
{
    struct kv_item item = {
        .key = key, .key_len = strlen(key), .val = val, .val_len = len
    };
    struct put *p = calloc(1, sizeof(*p));

    assert(val != NULL || len == 0);
    if (p == NULL)
        return; /* everything kept there can be found out again */
    p->h = h;
    p->done.fn = on_put;
    h->n_busy++;
    kv_commit(h->config.kv, &item, 1, &p->done);
}

int healer_get(struct healer *h, const char *key, void *val, size_t len)
{
    void *got;
    size_t got_len;
    int rc = kv_get(h->config.kv, key, strlen(key), &got, &got_len);

    if (rc != 0)
        return rc;
    if (got_len == len)
        memcpy(val, got, len);
    free(got);
    return got_len == len ? 0 : -ROZO_EDAMAGED;
}

/* ---- ST_LIST ---- */

struct list_call {
    struct healer *h;
    struct rpc_call *call;
    uint8_t after[FILE_ID_BYTES];
    bool only;
};

/* Returns whether certainly nothing of a requested file ever was on this storage, given
 * that nothing of it is listed. */
static bool never_had(const struct list_call *lc, const struct proj_list_result *result)
{
    const struct healer *h = lc->h;
    bool lost_header = result->n_files > 0 && result->files[0].unfinished != 0 &&
                       result->files[0].size > 0 && !h->config.power_was_lost;

    return lc->only && result->end && !result->quarantined && !lost_header &&
           !identity_is_rebuilt(h->config.identity);
}

static void list_reply(struct list_call *lc, const struct proj_list_result *result)
{
    Rozo__StListResp resp = ROZO__ST_LIST_RESP__INIT;
    Rozo__StListResp__File *files = calloc(result->n_files + 1, sizeof(*files));
    Rozo__StListResp__File **pointers = calloc(result->n_files + 1, sizeof(*pointers));
    struct heal_ref *refs = calloc(result->n_files + 1, sizeof(*refs));

    assert(result->rc == 0);
    if (files != NULL && pointers != NULL && refs != NULL) {
        for (unsigned i = 0; i < result->n_files; i++) {
            const struct proj_list_file *f = &result->files[i];

            /* Skips files whose creation did not end. */
            if (f->projections == 0)
                continue;
            rozo__st_list_resp__file__init(&files[i]);
            heal_ref_put(&f->target, &refs[i]);
            files[i].ref = &refs[i].ref;
            files[i].projections = f->projections;
            files[i].damaged = f->damaged;
            files[i].partial = f->partial;
            files[i].size = f->size;
            files[i].allocated = f->allocated;
            files[i].blocks = f->blocks;
            pointers[resp.n_files++] = &files[i];
        }
        resp.files = pointers;
        resp.end = result->end;
        resp.never_had = resp.n_files == 0 && never_had(lc, result);
        if (!result->end) {
            file_id_put(lc->after, &result->after);
            resp.after.data = lc->after;
            resp.after.len = FILE_ID_BYTES;
        }
        heal_reply(lc->call, &resp.base);
    } else {
        rpc_reply_status(lc->call, ROZO__STATUS__NO_MEMORY);
    }
    free(refs);
    free(pointers);
    free(files);
}

static void on_listed(void *arg, const struct proj_list_result *result)
{
    struct list_call *lc = arg;
    struct healer *h = lc->h;

    if (result->rc != 0)
        rpc_reply_status(lc->call, status_from_errno(result->rc));
    else
        list_reply(lc, result);
    free(lc);
    healer_idle(h);
}

static int list_parse(struct healer *h, const struct rpc_call *call,
                      const Rozo__StListReq *req, struct proj_list_request *out)
{
    if (req == NULL || req->max_files == 0 || req->max_files > LIST_FILES_MAX ||
        (req->after.len != 0 && req->after.len != FILE_ID_BYTES) ||
        (req->only && req->after.len == 0))
        return -EBADMSG;
    if (call->role != RPC_ROLE_NODE)
        return -EACCES;
    if (req->to_storage != h->us)
        return -ROZO_EWRONG_STORAGE;
    *out = (struct proj_list_request){ .has_after = req->after.len != 0,
                                       .only = req->only,
                                       .ids_only = req->ids_only,
                                       .max_files = req->max_files,
                                       .with_storage = req->with_storage,
                                       .damaged_too = req->with_storage == h->us };
    if (out->has_after)
        file_id_get(req->after.data, &out->after);
    return 0;
}

static void handle_list(struct healer *h, struct rpc_call *call)
{
    Rozo__StListReq *req = rozo__st_list_req__unpack(NULL, call->msg_len, call->msg);
    struct list_call *lc = calloc(1, sizeof(*lc));
    struct proj_list_request request;
    struct list_op *op;
    int rc = lc == NULL ? -ENOMEM : list_parse(h, call, req, &request);

    assert(call->op == ROZO__OP__ST_LIST && h->us != 0);
    if (rc == 0) {
        lc->h = h;
        lc->call = call;
        lc->only = request.only;
        rc = proj_list_start(h->env, h->config.disk, &request, on_listed, lc, &op);
    }
    if (rc == 0) {
        h->n_busy++;
    } else {
        free(lc);
        rpc_reply_status(call, status_from_errno(rc));
    }
    rozo__st_list_req__free_unpacked(req, NULL);
}

/* ---- ST_HEALTH, ST_HEAL ---- */

struct health_call {
    struct heal_question q; /* first */
    struct healer *h;
    struct rpc_call *call;
};

/* Blocks not healed, each as of its last try. */
static uint64_t n_unhealed(const struct healer *h)
{
    const struct resync *r = &h->parts->resync;

    return h->parts->checks.unhealed + h->parts->rebuild.unhealed +
           (r->unhealed > r->unhealed_before ? r->unhealed : r->unhealed_before);
}

/* Returns the limit of healing in bytes per second; 0: none. */
static uint64_t heal_rate(const struct healer *h)
{
    uint64_t a = h->rate.bytes_per_s, b = h->unreserved_rate.bytes_per_s;

    return a == 0 || (b != 0 && b < a) ? b : a;
}

static void on_health(struct heal_question *q)
{
    static char no_problem[] = "";
    struct health_call *hc = (struct health_call *)q;
    struct healer *h = hc->h;
    Rozo__StHealthResp *resp = &q->health;
    char *findings[FINDINGS_MAX];

    resp->missed_ranges = hint_log_n_ranges(h->hints);
    resp->queued = h->jobs.n_waiting + h->jobs.n_running + h->parts->checks.n;
    resp->healed_records = h->jobs.healed;
    resp->heal_read_bytes = h->jobs.read_bytes;
    resp->heal_written_bytes = h->jobs.written_bytes;
    resp->unhealed = n_unhealed(h);
    /* Unless a journal has a problem. */
    if (resp->problem == NULL || resp->problem[0] == '\0')
        resp->problem = resp->unhealed > 0 ? h->jobs.problem : no_problem;
    resp->rate_bytes = heal_rate(h);
    rebuild_health(h, resp);
    scrub_health(h, resp, findings);
    heal_reply(hc->call, &resp->base);
    free(hc);
    healer_idle(h);
}

static void handle_health(struct healer *h, struct rpc_call *call)
{
    Rozo__StHealthReq *req = rozo__st_health_req__unpack(NULL, call->msg_len, call->msg);
    struct health_call *hc = calloc(1, sizeof(*hc));
    int rc = hc == NULL ? -ENOMEM : 0;

    assert(call->op == ROZO__OP__ST_HEALTH && h->us != 0);
    if (rc == 0 && req == NULL)
        rc = -EBADMSG;
    if (rc == 0 && req->to_storage != h->us && req->to_storage != 0)
        rc = -ROZO_EWRONG_STORAGE;
    if (rc == 0) {
        hc->h = h;
        hc->call = call;
        rozo__st_health_resp__init(&hc->q.health);
        hc->q.answered = on_health;
        h->n_busy++;
        h->config.ask_health(h->config.arg, &hc->q);
    } else {
        free(hc);
        rpc_reply_status(call, status_from_errno(rc));
    }
    rozo__st_health_req__free_unpacked(req, NULL);
}

static int heal_parse(struct healer *h, const struct rpc_call *call,
                      const Rozo__StHealReq *req)
{
    if (req == NULL || req->scrub > 2 || req->rebuild > 1)
        return -EBADMSG;
    if (call->role != RPC_ROLE_NODE)
        return -EACCES;
    return req->to_storage == h->us ? 0 : -ROZO_EWRONG_STORAGE;
}

static void handle_heal(struct healer *h, struct rpc_call *call)
{
    Rozo__StHealReq *req = rozo__st_heal_req__unpack(NULL, call->msg_len, call->msg);
    int rc = heal_parse(h, call, req);

    assert(call->op == ROZO__OP__ST_HEAL && h->us != 0);
    if (rc == 0) {
        if (req->set_rate) /* starts without debt from the old rate */
            h->rate = (struct rate){ .bytes_per_s = req->rate_bytes };
        if (req->scrub == 1)
            scrub_begin(h, false);
        if (req->scrub == 2)
            scrub_end(h);
        if (req->rebuild == 1)
            rebuild_force(h);
    }
    rpc_reply_status(call, status_from_errno(rc));
    rozo__st_heal_req__free_unpacked(req, NULL);
}

/* ---- dispatcher ---- */

static const struct {
    uint16_t op;
    void (*handle)(struct healer *h, struct rpc_call *call);
} handlers[] = {
    { ROZO__OP__ST_LIST, handle_list },
    { ROZO__OP__ST_MAP, handle_map },
    { ROZO__OP__ST_MISSED, hints_handle },
    { ROZO__OP__ST_MISSED_LIST, hints_handle_list },
    { ROZO__OP__ST_MISSED_DONE, hints_handle_done },
    { ROZO__OP__ST_CHECK, heal_check_handle },
    { ROZO__OP__ST_HEALTH, handle_health },
    { ROZO__OP__ST_HEAL, handle_heal },
    { ROZO__OP__ST_REPAIR, prove_handle },
};

bool healer_serves(uint16_t op)
{
    for (size_t i = 0; i < sizeof(handlers) / sizeof(handlers[0]); i++) {
        if (handlers[i].op == op)
            return true;
    }
    return false;
}

/* Finds out our storage id, at the first request after we were admitted. */
static void find_out_who_we_are(struct healer *h)
{
    assert(h->us == 0 && h->repairer == NULL);
    h->us = identity_storage_id(h->config.identity);
    if (h->us == 0)
        return;
    if (repairers_make(h) != 0) {
        h->us = 0;
        return;
    }
    if (h->started)
        rebuild_start(h);
}

/* Refuses requests of an exportd that was replaced, and of one whose map is not here yet.
 * ST_MAP is judged by the version of the map. */
static int start_check(const struct healer *h, const struct rpc_call *call)
{
    return call->role == RPC_ROLE_NODE && call->op != ROZO__OP__ST_MAP
               ? identity_check_start(h->config.identity, call->session)
               : 0;
}

void healer_handle(void *healer, struct rpc_call *call)
{
    struct healer *h = healer;
    int rc = -ENOSYS;

    if (h->us == 0)
        find_out_who_we_are(h);
    if (h->stopping || h->n_busy > BUSY_MAX) {
        rpc_reply_status(call, ROZO__STATUS__BUSY);
        return;
    }
    if (h->us == 0) {
        rpc_reply_status(call, ROZO__STATUS__NOT_ADMITTED);
        return;
    }
    for (size_t i = 0; i < sizeof(handlers) / sizeof(handlers[0]); i++) {
        if (handlers[i].op != call->op)
            continue;
        rc = start_check(h, call);
        if (rc == 0)
            handlers[i].handle(h, call);
        break;
    }
    if (rc != 0)
        rpc_reply_status(call, status_from_errno(rc));
}

/* ---- start and stop ---- */

static uint32_t take(struct healer *h, struct rate *rate, uint64_t bytes)
{
    uint64_t now = env_now_ns(h->env), wait;

    if (rate->bytes_per_s == 0)
        return 0;
    if (rate->free_at_ns < now)
        rate->free_at_ns = now;
    wait = rate->free_at_ns - now;
    rate->free_at_ns += (uint64_t)((double)bytes * 1e9 / (double)rate->bytes_per_s);
    return ns_to_ms(wait) < UINT32_MAX ? (uint32_t)ns_to_ms(wait) : UINT32_MAX;
}

static uint32_t on_take(void *arg, uint64_t bytes)
{
    struct healer *h = arg;
    uint32_t a = take(h, &h->rate, bytes), b = take(h, &h->unreserved_rate, bytes);

    return a > b ? a : b;
}

static uint32_t on_scrub_take(void *arg, uint64_t bytes)
{
    uint32_t a = on_take(arg, bytes), b;
    struct healer *h = arg;

    b = take(h, &h->scrub_rate, bytes);

    return a > b ? a : b;
}

static int repairers_make(struct healer *h)
{
    struct repairer_config config = {
        .env = h->env,
        .peers = { .channel = healer_channel, .arg = h },
        .own_storage = h->us,
        .take = on_take,
        .arg = h,
    };
    int rc;

    assert(h->us != 0 && h->repairer == NULL && h->scrub_repairer == NULL);
    rc = repairer_new(&config, &h->repairer);
    config.take = on_scrub_take;
    if (rc == 0)
        rc = repairer_new(&config, &h->scrub_repairer);
    if (rc != 0) {
        repairer_free(h->repairer);
        h->repairer = NULL;
    }
    return rc;
}

static void config_defaults(struct healer_config *c)
{
    if (c->concurrency == 0)
        c->concurrency = CONCURRENCY_DEFAULT;
    if (c->concurrency > CONCURRENCY_MAX)
        c->concurrency = CONCURRENCY_MAX;
    if (c->uncommitted_ms == 0)
        c->uncommitted_ms = UNCOMMITTED_MS_DEFAULT;
    if (c->return_ms == 0)
        c->return_ms = RETURN_MS_DEFAULT;
}

static int load(struct healer *h, struct err *err)
{
    struct hint_log_config config = {
        .env = h->env,
        .kv = h->config.kv,
        .ranges_max = h->config.missed_ranges_max,
        .files_max = h->config.missed_files_max,
    };
    int rc = hint_log_open(&config, &h->hints);

    if (rc != 0)
        return err_wrap(err, rc, "the hints for other storages");
    rc = map_load(h);
    if (rc == 0)
        rc = rebuild_load(h);
    if (rc == 0)
        rc = scrub_load(h);
    return rc == 0 ? 0 : err_wrap(err, rc, "the healer's state");
}

int healer_open(const struct healer_config *config, struct healer **out, struct err *err)
{
    struct whole *whole = calloc(1, sizeof(*whole));
    struct healer *h;
    int rc;

    assert(config->env != NULL && config->disk != NULL && config->kv != NULL);
    if (whole == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    h = &whole->h;
    h->parts = &whole->parts;
    h->parts->h = h;
    h->config = *config;
    h->env = config->env;
    bad_page_disk_init(&h->disk, config->env, config->disk);
    h->config.disk = &h->disk.disk;
    config_defaults(&h->config);
    heal_asks_init(h);
    heal_checks_init(h);
    proofs_init(h);
    handoff_init(h);
    h->rate.bytes_per_s = config->rate_bytes;
    h->scrub_rate.bytes_per_s = config->scrub_rate_bytes;
    heal_jobs_init(h);
    rc = load(h, err);
    if (rc != 0) {
        healer_close(h);
        return rc;
    }
    find_out_who_we_are(h);
    *out = h;
    return 0;
}

void healer_start(struct healer *h)
{
    assert(!h->started && !h->stopping);
    h->started = true;
    handoff_start(h);
    resync_start(h);
    heal_checks_start(h);
    rebuild_start(h);
    scrub_start(h);
}

static void on_stopped(struct hint_log_wait *w, int rc)
{
    struct healer *h = container_of(w, struct healer, stop_wait);

    assert(h->stopping && h->n_busy == 0 && list_is_empty(&h->asks));
    (void)rc; /* errors were logged */
    healer_peers_close(h);
    h->stop_done(h->stop_arg);
}

static void on_stop_task(struct env_task *task)
{
    struct healer *h = container_of(task, struct healer, stop_task);

    assert(h->stopping && h->n_busy == 0);
    h->stop_wait.done = on_stopped;
    hint_log_sync(h->hints, &h->stop_wait);
}

void healer_stop(struct healer *h, void (*done)(void *arg), void *arg)
{
    assert(!h->stopping);
    assert(done != NULL);
    h->stopping = true;
    h->stop_done = done;
    h->stop_arg = arg;
    h->stop_task.fn = on_stop_task;
    h->n_busy++;
    heal_asks_cancel(h);
    heal_jobs_stop(h);
    handoff_stop(h);
    resync_stop(h);
    heal_checks_stop(h);
    proofs_stop(h);
    rebuild_stop(h);
    scrub_stop(h);
    healer_idle(h);
}

void healer_close(struct healer *h)
{
    if (h == NULL)
        return;
    assert(h->n_busy == 0);
    assert(list_is_empty(&h->asks));
    healer_peers_close(h);
    free(h->peers);
    repairer_free(h->scrub_repairer);
    repairer_free(h->repairer);
    hint_log_close(h->hints);
    free(container_of(h, struct whole, h));
}
