/*
 * map_push.c - ST_MAP: the members of the cluster and the ended sessions, pushed to
 * storages.
 *
 * In:     storage_poll.c, after each answer of a storage that is up; session_fence.c.
 * Out:    ST_MAP when the map has changed, and when a storage came up or has forgotten
 *         it.
 * Keeps:  at most one request is outstanding to a storage. One that does not know the op
 *         gets no more.
 */
#include "exportd/cluster/map_push.h"

#include <assert.h>
#include <errno.h>

#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"

enum {
    MAP_DEADLINE_MS = 3000,
    MAP_AGAIN_MS = 30000, /* repeated to storages that do not report their version */
};

/* Bound that exportd never reaches; a storage that reports more is wrong. */
static const uint64_t map_version_max = 1ull << 62;

/* Stops sending maps: that of a later start is of the member that leads by now. */
static void exportd_is_deposed(struct exportd *x, uint32_t storage)
{
    if (x->is_deposed || x->stopping)
        return;
    x->is_deposed = true;
    log_warn("storage %u knows a later start of exportd: another member of the quorum "
             "leads",
             storage);
    x->config.deposed(x->config.deposed_arg);
}

static void on_map_answer(struct rpc_request *rq, int rc)
{
    struct cluster_storage *s = container_of(rq, struct cluster_storage, map.rq);
    bool old = rc == 0 && rq->status == ROZO__STATUS__UNKNOWN_OP;
    uint64_t sent = s->map.sent;

    assert(sent != 0 && s->n_out > 0);
    s->map.sent = 0;
    s->n_out--;
    if (rc == 0 && (old || rq->status == ROZO__STATUS__OK)) {
        s->map.acked = sent;
        s->map.acked_ns = env_now_ns(s->x->env);
        s->x->hooks->map_taken(s->x);
        if (s->up)
            storage_push_map(s); /* the map may have changed meanwhile */
    } else if (rc == 0 && rq->status == ROZO__STATUS__DEPOSED &&
               s->x->config.deposed != NULL) {
        exportd_is_deposed(s->x, s->facts.id);
    } /* after another failure the next poll sends again */
}

/* Returns true if the storage lacks the newest map, as far as is known. */
static bool map_is_due(const struct cluster_storage *s)
{
    uint64_t passed_ns = env_now_ns(s->x->env) - s->map.acked_ns;

    if (s->map.acked != s->x->map_version)
        return true;
    return s->map.known == 0 && passed_ns >= ms_to_ns(MAP_AGAIN_MS);
}

void storage_push_map(struct cluster_storage *s)
{
    struct exportd *x = s->x;
    Rozo__StMapReq msg = ROZO__ST_MAP_REQ__INIT;
    uint64_t fenced[FENCES_MAX];
    struct storage_messages *storages;
    size_t len;
    uint8_t *packed;

    if (s->map.sent != 0 || x->stopping || x->is_deposed || !x->is_ready ||
        !map_is_due(s) || storage_messages_make(x, &storages) != 0)
        return;
    msg.version = x->map_version;
    msg.returns = cluster_returns(x);
    msg.n_storages = storages->n;
    msg.storages = storages->list;
    msg.to_storage = s->facts.id;
    msg.reserved_bytes = x->hooks->reserved(s);
    msg.fenced = fenced;
    msg.n_fenced = x->hooks->fenced(x, fenced);
    len = rozo__st_map_req__get_packed_size(&msg);
    packed = len > RPC_MSG_MAX ? NULL : malloc(len);
    if (packed != NULL) {
        rozo__st_map_req__pack(&msg, packed);
        s->map.rq = (struct rpc_request){
            .op = ROZO__OP__ST_MAP,
            .deadline_ms = MAP_DEADLINE_MS,
            .msg = packed,
            .msg_len = len,
            .done = on_map_answer,
        };
        s->map.sent = x->map_version;
        storage_send(s, &s->map.rq);
    } else if (len > RPC_MSG_MAX) {
        log_error("the map of the cluster is too large to send: %zu bytes", len);
    }
    free(packed);
    free(storages);
}

/* Returns whether a storage has a map that is newer than ours. */
static bool map_is_older(const struct exportd *x, const Rozo__StInfoResp *info)
{
    if (info->map_version >= map_version_max || info->map_returns == UINT32_MAX)
        return false; /* the storage is wrong */
    if (info->map_returns != cluster_returns(x))
        return info->map_returns > cluster_returns(x);
    return info->map_version > x->map_version;
}

void map_is_known(struct exportd *x, uint32_t storage, const Rozo__StInfoResp *info)
{
    uint64_t known = info->map_version;

    if (!map_is_older(x, info))
        return;
    if (x->config.deposed != NULL) {
        x->start_known =
            cluster_start_number(info->map_returns, (uint32_t)cluster_map_start(known));
        exportd_is_deposed(x, storage);
        return;
    }
    log_warn("storage %u knows a later start of exportd: the metadata were restored from "
             "a backup",
             storage);
    map_version_raise(x, known, info->map_returns);
    x->hooks->map_outrun(x);
}

void storage_knows_map(struct cluster_storage *s, const Rozo__StInfoResp *info)
{
    uint64_t known = info->map_version;

    map_is_known(s->x, s->facts.id, info);
    if (known < s->map.known) /* the storage was restarted */
        s->map.acked = 0;
    s->map.known = known;
}

void map_push_forget(struct cluster_storage *s)
{
    s->map.acked = s->map.known = 0;
}

bool storage_has_map(const struct cluster_storage *s, uint64_t version)
{
    assert(version != 0);
    return s->map.acked >= version;
}

void map_push_stop(struct cluster_storage *s)
{
    if (s->map.sent == 0)
        return;
    rpc_cancel(&s->map.rq);
    s->map.sent = 0;
    s->n_out--;
}
