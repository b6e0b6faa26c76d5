/*
 * hints.c - ST_MISSED, ST_MISSED_LIST, ST_MISSED_DONE: hints about writes that other
 * storages missed.
 *
 * In:     calls. Thread: the healer's.
 * Out:    the hint log, rpc_reply().
 * Keeps:  a hint is on stable storage before it is confirmed (I6 relies on that).
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/wire/capability.h"
#include "common/wire/status.h"
#include "storaged/heal/healer_int.h"

enum { RANGES_PER_REQUEST_MAX = 1024 };

/* ---- ST_MISSED ---- */

struct stable_call {
    struct hint_log_wait wait; /* first */
    struct healer *h;
    struct rpc_call *call;
};

static void on_stable(struct hint_log_wait *w, int rc)
{
    struct stable_call *sc = (struct stable_call *)w;
    struct healer *h = sc->h;

    rpc_reply_status(sc->call, status_from_errno(rc));
    free(sc);
    healer_idle(h);
}

void hints_reply_stable(struct healer *h, struct rpc_call *call)
{
    struct stable_call *sc = calloc(1, sizeof(*sc));

    if (sc == NULL) {
        rpc_reply_status(call, status_from_errno(-ENOMEM));
        return;
    }
    sc->wait.done = on_stable;
    sc->h = h;
    sc->call = call;
    h->n_busy++;
    hint_log_sync(h->hints, &sc->wait);
}

static uint64_t range_end(const Rozo__Missed *m)
{
    return m->n_blocks == 0 ? UINT64_MAX : m->first_block + m->n_blocks;
}

static int missed_check(struct healer *h, const struct rpc_call *call,
                        const Rozo__Missed *m, struct storcli_target *target)
{
    const struct codec *codec;
    int rc = heal_target_get(m->ref, target);

    if (rc != 0)
        return rc;
    codec = codec_get(target->codec, target->layout, target->block_bytes);
    if (!heal_range_is_good(m->first_block, m->n_blocks) || m->candidates == 0 ||
        m->candidates >> codec_n(codec) != 0 || m->version == 0)
        return -EBADMSG;
    if (heal_place(target, h->us) == DIST_MAX)
        return -EBADMSG;
    if (call->role == RPC_ROLE_NODE)
        return 0;
    if (revoked_sessions_have(h->config.revoked, call->session))
        return -ROZO_EFENCED;
    return capability_verify(h->config.key, &target->id, CAPABILITY_WRITE,
                             m->ref->capability.data, m->ref->capability.len);
}

/* Logs a hint, also for storage ids that our map lacks: after a power loss the map may be
 * older than the file until exportd is back. Hints for an invented id are never fetched;
 * the limits of the hint log bound their cost. */
static int missed_note(struct healer *h, const Rozo__Missed *m,
                       const struct storcli_target *target)
{
    int rc = 0;

    assert(m->first_block < range_end(m));
    for (unsigned i = 0; rc == 0 && i < target->n_storages; i++) {
        if ((m->candidates >> i & 1) != 0)
            rc = hint_log_note(h->hints, target->storages[i], target, m->first_block,
                               range_end(m), m->version);
    }
    return rc;
}

static int missed_take(struct healer *h, const struct rpc_call *call,
                       const Rozo__StMissedReq *req)
{
    struct storcli_target target;
    int rc = 0;

    if (req == NULL || req->n_missed == 0 || req->n_missed > RANGES_PER_REQUEST_MAX)
        return -EBADMSG;
    if (req->to_storage != h->us)
        return -ROZO_EWRONG_STORAGE;
    for (size_t i = 0; rc == 0 && i < req->n_missed; i++)
        rc = missed_check(h, call, req->missed[i], &target);
    for (size_t i = 0; rc == 0 && i < req->n_missed; i++) {
        heal_target_get(req->missed[i]->ref, &target);
        rc = missed_note(h, req->missed[i], &target);
    }
    return rc;
}

void hints_handle(struct healer *h, struct rpc_call *call)
{
    Rozo__StMissedReq *req = rozo__st_missed_req__unpack(NULL, call->msg_len, call->msg);
    int rc = missed_take(h, call, req);

    assert(call->op == ROZO__OP__ST_MISSED && h->us != 0);
    rozo__st_missed_req__free_unpacked(req, NULL);
    if (rc != 0)
        rpc_reply_status(call, status_from_errno(rc));
    else
        hints_reply_stable(h, call);
}

/* ---- ST_MISSED_LIST ---- */

/* An answer under construction. */
struct missed_list {
    uint32_t storage;
    unsigned max;
    Rozo__Missed *missed;
    Rozo__Missed **pointers;
    struct storcli_target *targets;
    struct heal_ref *refs;
    unsigned n;
};

static bool proj_list_file(void *arg, const struct storcli_target *target,
                           const struct hint_log_range *ranges, unsigned n_ranges)
{
    struct missed_list *ml = arg;

    assert(n_ranges > 0 && n_ranges <= HINT_LOG_RANGES_MAX);
    if (ml->n > 0 && ml->n + n_ranges > ml->max)
        return false;
    for (unsigned i = 0; i < n_ranges && ml->n < ml->max + HINT_LOG_RANGES_MAX; i++) {
        Rozo__Missed *m = &ml->missed[ml->n];

        rozo__missed__init(m);
        ml->targets[ml->n] = *target;
        heal_ref_put(&ml->targets[ml->n], &ml->refs[ml->n]);
        m->ref = &ml->refs[ml->n].ref;
        m->first_block = ranges[i].first;
        m->n_blocks = ranges[i].end == UINT64_MAX ? 0 : ranges[i].end - ranges[i].first;
        m->version = ranges[i].version;
        m->note = ranges[i].note;
        m->candidates = UINT32_C(1) << heal_place(target, ml->storage) % DIST_MAX;
        ml->pointers[ml->n] = m;
        ml->n++;
    }
    return true;
}

static void list_reply(struct healer *h, struct rpc_call *call, struct missed_list *ml,
                       bool end)
{
    Rozo__StMissedListResp resp = ROZO__ST_MISSED_LIST_RESP__INIT;

    assert(ml->n <= ml->max + HINT_LOG_RANGES_MAX);
    resp.missed = ml->pointers;
    resp.n_missed = ml->n;
    resp.end = end;
    resp.everything = hint_log_everything(h->hints, ml->storage);
    if (ml->n > 0)
        resp.after = ml->refs[ml->n - 1].ref.file_id;
    heal_reply(call, &resp.base);
}

static int list_make(struct healer *h, struct rpc_call *call,
                     const Rozo__StMissedListReq *req)
{
    struct missed_list ml = { .storage = req->storage, .max = req->max_ranges };
    size_t room = (size_t)req->max_ranges + HINT_LOG_RANGES_MAX;
    int rc = -ENOMEM;

    assert(req->max_ranges > 0 && req->max_ranges <= RANGES_PER_REQUEST_MAX);
    ml.missed = calloc(room, sizeof(*ml.missed));
    ml.pointers = calloc(room, sizeof(*ml.pointers));
    ml.targets = calloc(room, sizeof(*ml.targets));
    ml.refs = calloc(room, sizeof(*ml.refs));
    if (ml.missed != NULL && ml.pointers != NULL && ml.targets != NULL && ml.refs != NULL)
        rc = hint_log_scan(h->hints, req->storage,
                           req->after.len == 0 ? NULL : req->after.data, proj_list_file,
                           &ml);
    if (rc >= 0)
        list_reply(h, call, &ml, rc == 1);
    free(ml.refs);
    free(ml.targets);
    free(ml.pointers);
    free(ml.missed);
    return rc < 0 ? rc : 0;
}

void hints_handle_list(struct healer *h, struct rpc_call *call)
{
    Rozo__StMissedListReq *req =
        rozo__st_missed_list_req__unpack(NULL, call->msg_len, call->msg);
    int rc = 0;

    assert(call->op == ROZO__OP__ST_MISSED_LIST && h->us != 0);
    if (req == NULL || req->max_ranges == 0 || req->max_ranges > RANGES_PER_REQUEST_MAX ||
        (req->after.len != 0 && req->after.len != FILE_ID_BYTES))
        rc = -EBADMSG;
    else if (call->role != RPC_ROLE_NODE)
        rc = -EACCES;
    else if (req->to_storage != h->us ||
             healer_is_replaced(h, req->storage, &req->incarnation))
        rc = -ROZO_EWRONG_STORAGE;
    else
        rc = list_make(h, call, req);
    if (rc != 0)
        rpc_reply_status(call, status_from_errno(rc));
    rozo__st_missed_list_req__free_unpacked(req, NULL);
}

/* ---- ST_MISSED_DONE ---- */

static int done_take(struct healer *h, const struct rpc_call *call,
                     const Rozo__StMissedDoneReq *req)
{
    int rc = 0;

    if (req == NULL || req->n_missed > RANGES_PER_REQUEST_MAX)
        return -EBADMSG;
    if (call->role != RPC_ROLE_NODE)
        return -EACCES;
    if (req->to_storage != h->us ||
        healer_is_replaced(h, req->storage, &req->incarnation))
        return -ROZO_EWRONG_STORAGE;
    for (size_t i = 0; rc == 0 && i < req->n_missed; i++) {
        const Rozo__Missed *m = req->missed[i];
        struct file_id id;

        if (m->ref == NULL || m->ref->file_id.len != FILE_ID_BYTES)
            return -EBADMSG;
        file_id_get(m->ref->file_id.data, &id);
        rc = hint_log_forget(h->hints, req->storage, &id, m->note);
    }
    if (rc == 0 && req->everything != 0)
        rc = hint_log_forget_everything(h->hints, req->storage, req->everything);
    return rc;
}

/* Removes healed hints, without a sync: hints that come back after a power loss are just
 * checked again. */
void hints_handle_done(struct healer *h, struct rpc_call *call)
{
    Rozo__StMissedDoneReq *req =
        rozo__st_missed_done_req__unpack(NULL, call->msg_len, call->msg);

    assert(call->op == ROZO__OP__ST_MISSED_DONE && h->us != 0);
    rpc_reply_status(call, status_from_errno(done_take(h, call, req)));
    rozo__st_missed_done_req__free_unpacked(req, NULL);
}
