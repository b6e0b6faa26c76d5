/*
 * map_push.c - every storage is told who is in the cluster, and whose sessions are over: ST_MAP.
 *
 * In:     storage_poll.c, after each answer of a storage that is up; session_fence.c.
 * Out:    ST_MAP when the map has changed, when the storage came up, or has forgotten it.
 * Keeps:  at most one is on its way to a storage. One that does not know the op is not asked for more.
 */
#include "exportd/cluster/map_push.h"

#include <errno.h>

#include "common/base/log.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"

enum {
    MAP_DEADLINE_MS = 3000,
    MAP_AGAIN_MS = 30000, /* to storages that do not say what they know */
};

/* More than we will ever get to; a storage that says so talks nonsense. */
static const uint64_t map_version_max = 1ull << 62;

static void on_map_answer(struct rpc_request *rq, int rc)
{
    struct storage *s = container_of(rq, struct storage, map_rq);
    bool old = rc == 0 && rq->status == ROZO__STATUS__UNKNOWN_OP;

    s->map_out = false;
    s->n_out--;
    if (rc == 0 && (old || rq->status == ROZO__STATUS__OK)) {
        s->map_told = s->map_sent;
        s->map_told_ns = env_now_ns(s->x->env);
        s->x->hooks->map_taken(s->x);
        if (s->up)
            storage_push_map(s); /* it may have changed meanwhile */
    }                            /* else again after the next poll */
}

/* Does it lack the map of today, as far as we know? */
static bool map_is_due(const struct storage *s)
{
    uint64_t passed_ns = env_now_ns(s->x->env) - s->map_told_ns;

    if (s->map_told != s->x->map_version)
        return true;
    return s->map_known == 0 && passed_ns >= MAP_AGAIN_MS * 1000000ull;
}

void storage_push_map(struct storage *s)
{
    struct exportd *x = s->x;
    Rozo__StMapReq msg = ROZO__ST_MAP_REQ__INIT;
    uint64_t fenced[FENCES_MAX];
    struct storage_messages *storages;
    size_t len;
    uint8_t *packed;

    if (s->map_out || x->stopping || !x->is_ready || !map_is_due(s) ||
        storage_messages_make(x, &storages) != 0)
        return;
    msg.version = x->map_version;
    msg.n_storages = storages->n;
    msg.storages = storages->list;
    msg.to_storage = s->facts.id;
    msg.fenced = fenced;
    msg.n_fenced = x->hooks->fenced(x, fenced);
    len = rozo__st_map_req__get_packed_size(&msg);
    packed = len > RPC_MSG_MAX ? NULL : malloc(len);
    if (packed != NULL) {
        rozo__st_map_req__pack(&msg, packed);
        s->map_rq = (struct rpc_request){
            .op = ROZO__OP__ST_MAP,
            .deadline_ms = MAP_DEADLINE_MS,
            .msg = packed,
            .msg_len = len,
            .done = on_map_answer,
        };
        s->map_sent = x->map_version;
        s->map_out = true;
        s->n_out++;
        rpc_send(s->channel, &s->map_rq);
    } else if (len > RPC_MSG_MAX) {
        log_error("the map of the cluster is too large to be told: %zu bytes", len);
    }
    free(packed);
    free(storages);
}

/* A map of a later exportd: ours was restored from a backup. They would take none of ours. */
static void map_catch_up(struct exportd *x, uint64_t known)
{
    if (known <= x->map_version || known >= map_version_max)
        return;
    x->map_version = known;
    map_changed(x);
    x->hooks->map_outrun(x);
}

void storage_knows_map(struct storage *s, uint64_t known)
{
    map_catch_up(s->x, known);
    if (known < s->map_known) /* it was started again */
        s->map_told = 0;
    s->map_known = known;
}

void map_push_stop(struct storage *s)
{
    if (!s->map_out)
        return;
    rpc_cancel(&s->map_rq);
    s->map_out = false;
    s->n_out--;
}
