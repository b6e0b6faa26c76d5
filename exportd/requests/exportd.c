/*
 * exportd.c - the state machine as a whole: start, dispatch, answers, tick, stop.
 *
 * In:     exportd_handle(), from the rpc server; the tick.
 * Out:    handlers of md.c and ad.c; rpc_reply(), once for each call.
 * Keeps:  I4: no answer leaves while any change is not committed; with `sync`, not before
 *         it is on stable storage. None leaves that may be stale: answer.c. A repeated
 *         request is not executed again, see reply_cache.h. I8: a message is decoded and
 *         each field checked before use. I9: waiting answers are counted, and further
 *         requests are answered BUSY.
 */
#include "exportd/requests/exportd.h"

#include <assert.h>
#include <errno.h>
#include <stdalign.h>

#include "common/base/arena.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/wire/status.h"
#include "exportd/cluster/answer.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/deletion.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/cluster/map_push.h"
#include "exportd/cluster/storage_poll.h"
#include "exportd/cluster/strays.h"
#include "exportd/cluster/writer_recovery.h"
#include "exportd/redistribution/redistribute.h"
#include "exportd/requests/admission.h"
#include "exportd/requests/requests.h"
#include "exportd/sessions/session_events.h"
#include "exportd/sessions/sessions.h"

enum {
    REQUEST_ROOM = 64 << 10, /* bytes for a request, unpacked; more is allocated */
    LEASE_DEFAULT_MS = 20000,
    EVICT_DEFAULT_MS = 20000,
    STRAYS_DEFAULT_S = 3600,
    STOP_AGAIN_MS = 1,
};
static const size_t cache_default = 256u << 20;

/* ---- dispatch ---- */

enum handler_flags {
    NEEDS_NODE = 1,
    NEEDS_SESSION = 2,
    CHANGES = 4,  /* not for read-only sessions, nor after the store has failed */
    GROWS = 8,    /* not if the disk under the store is nearly full (I12) */
    ONCE = 16,    /* not idempotent: a repeated request is recognised ... */
    LASTING = 32, /* ... also by the next start */
};

struct handler {
    uint16_t op;
    unsigned flags;
    const ProtobufCMessageDescriptor *req;
    md_handler *fn;
};

#define MD(OP, req, fn, flags)                                                         \
    {                                                                                  \
        ROZO__OP__MD_##OP, NEEDS_SESSION | (flags), &rozo__md_##req##_req__descriptor, \
            md_##fn                                                                    \
    }
#define AD(OP, req, fn, flags)                                                      \
    {                                                                               \
        ROZO__OP__AD_##OP, NEEDS_NODE | (flags), &rozo__ad_##req##_req__descriptor, \
            ad_##fn                                                                 \
    }

static const struct handler handlers[] = {
    { ROZO__OP__MD_OPEN_SESSION, 0, &rozo__md_open_session_req__descriptor,
      md_open_session },
    MD(KEEP_ALIVE, keep_alive, keep_alive, 0),
    { ROZO__OP__MD_CLOSE_SESSION, 0, &rozo__md_close_session_req__descriptor,
      md_close_session },
    MD(LOOKUP, lookup, lookup, 0),
    MD(GETATTR, getattr, getattr, 0),
    MD(SETATTR, setattr, setattr, CHANGES | ONCE | LASTING),
    MD(CREATE, create, create, CHANGES | GROWS | ONCE | LASTING),
    MD(UNLINK, unlink, unlink, CHANGES | ONCE | LASTING),
    MD(RMDIR, rmdir, rmdir, CHANGES | ONCE | LASTING),
    MD(LINK, link, link, CHANGES | GROWS | ONCE | LASTING),
    MD(RENAME, rename, rename, CHANGES | ONCE | LASTING),
    MD(READLINK, readlink, readlink, 0),
    MD(READDIR, readdir, readdir, 0),
    MD(OPEN, open, open, ONCE),
    MD(CLOSE, close, close, ONCE),
    MD(WROTE, wrote, wrote, CHANGES | ONCE),
    MD(TRUNCATED, truncated, truncated, CHANGES),
    MD(GETXATTR, getxattr, getxattr, 0),
    MD(SETXATTR, setxattr, setxattr, CHANGES | GROWS | ONCE | LASTING),
    MD(LISTXATTR, listxattr, listxattr, 0),
    MD(REMOVEXATTR, removexattr, removexattr, CHANGES | ONCE | LASTING),
    MD(STATFS, statfs, statfs, 0),
    MD(SYNC, sync, sync, 0),
    MD(EVENTS, events, events, 0),
    MD(LOCK, lock, lock, ONCE),
    MD(LOCK_TEST, lock_test, lock_test, 0),
    MD(LOCK_CANCEL, lock_cancel, lock_cancel, ONCE),
    MD(TOKEN, token, token, ONCE),
    MD(GIVE_BACK, give_back, give_back, 0),
    MD(ATIMES, atimes, atimes, CHANGES),
    { ROZO__OP__MD_WAIT_LEADER, 0, &rozo__md_wait_leader_req__descriptor,
      md_wait_leader },
    MD(REAL_NAME, real_name, real_name, 0),
    AD(STATUS, status, status, 0),
    AD(STORAGE_ADD, storage_add, storage_add, CHANGES | GROWS),
    AD(VOLUME_CREATE, volume_create, volume_create, CHANGES | GROWS),
    AD(EXPORT_CREATE, export_create, export_create, CHANGES | GROWS),
    AD(STORAGE_REPLACE, storage_replace, storage_replace, CHANGES),
    AD(INODES, inodes, inodes, 0),
    AD(STORAGE_LOST, storage_lost, storage_lost, CHANGES),
    AD(META_STATUS, meta_status, meta, 0),
    AD(META_TRANSFER, meta_transfer, meta, 0),
    AD(STREAM_RESERVE, stream_reserve, stream_reserve, CHANGES | GROWS),
    AD(STREAM_RELEASE, stream_release, stream_release, CHANGES),
    AD(STREAM_LIST, stream_list, stream_list, 0),
    AD(NAMES, names, names, 0), /* with `repair` it checks what CHANGES and GROWS do */
};

static const struct handler *handler_find(uint16_t op)
{
    unsigned i = op - ROZO__OP__MD_OPEN_SESSION;

    if (op >= ROZO__OP__AD_STATUS)
        i = op - ROZO__OP__AD_STATUS + ROZO__OP__MD_REAL_NAME -
            ROZO__OP__MD_OPEN_SESSION + 1;
    if (op >= ROZO__OP__AD_STREAM_RESERVE) /* ops between are not for the core */
        i -= ROZO__OP__AD_STREAM_RESERVE - ROZO__OP__AD_META_TRANSFER - 1;
    if (i >= sizeof(handlers) / sizeof(handlers[0]) || handlers[i].op != op)
        return NULL;
    return &handlers[i];
}

/* Checks the role and finds the session of a call. */
static int md_op_find_session(struct md_op *op, const struct handler *h)
{
    if ((h->flags & NEEDS_NODE) != 0 && op->call->role != RPC_ROLE_NODE)
        return -EACCES;
    if ((h->flags & NEEDS_SESSION) == 0)
        return 0;
    op->session = session_find(op->x, op->call->session);
    if (op->session == NULL || op->session->ends)
        return -ROZO_ENO_SESSION;
    session_touch(op->x, op->session);
    op->export = op->session->export;
    op->ns = &op->export->ns;
    return 0;
}

/* Checks whether this call may be executed now. */
static int md_op_admit(struct md_op *op, const struct handler *h)
{
    struct exportd *x = op->x;

    if (x->stopping || !x->is_ready || x->n_answers >= ANSWERS_MAX)
        return -EBUSY;
    if ((h->flags & CHANGES) != 0 && op->session != NULL && op->session->read_only)
        return -EROFS;
    if ((h->flags & GROWS) != 0 && metadata_room_is_low(x))
        return -ENOSPC;
    return (h->flags & CHANGES) != 0 ? store_error(x->store) : 0;
}

/* Repeats the answer of an executed request. If the store has failed since, the change
 * may be lost, so the answer is the error. */
static int md_op_answer_again(struct md_op *op, const struct reply *before)
{
    int rc = store_error(op->x->store);

    if (rc == 0)
        rc = answer_new(before->len, &op->answer);
    if (rc != 0)
        return rc;
    if (before->len > 0)
        memcpy(op->answer->msg, before->msg, before->len);
    op->sync = before->sync;
    return before->rc;
}

static const struct reply *md_op_find_before(const struct md_op *op)
{
    const struct reply *reply = reply_cache_find(&op->session->replies, op->call);

    return reply != NULL ? reply : reply_cache_find(&op->session->before, op->call);
}

static void md_op_remember(struct md_op *op, const struct handler *h, int rc)
{
    const struct answer *a = op->answer;
    struct reply_to to = reply_cache_to(op->call);

    reply_cache_keep(&op->session->replies, &to, rc, op->sync, a == NULL ? NULL : a->msg,
                     a == NULL ? 0 : a->len, env_now_ns(op->x->env));
    if (rc == 0 && (h->flags & LASTING) != 0)
        reply_log_put(op->session, &to, op->made_ino);
}

static int md_op_run(struct md_op *op)
{
    const struct handler *h = handler_find(op->call->op);
    alignas(ARENA_ALIGN) uint8_t room[REQUEST_ROOM];
    struct arena arena;
    const struct reply *before;
    ProtobufCMessage *req;
    int rc = h == NULL ? -ENOSYS : md_op_find_session(op, h);

    if (rc != 0)
        return rc;
    before = (h->flags & ONCE) != 0 ? md_op_find_before(op) : NULL;
    if (before != NULL)
        return md_op_answer_again(op, before);
    rc = md_op_admit(op, h);
    if (rc != 0)
        return rc;
    arena_init(&arena, room, sizeof(room), 0);
    req = protobuf_c_message_unpack(h->req, &arena.allocator, op->call->msg_len,
                                    op->call->msg);
    rc = req == NULL ? -EBADMSG : h->fn(op, req);
    arena_free(&arena);
    if (req == NULL)
        return rc;
    if ((h->flags & CHANGES) != 0 && op->export != NULL && op->export->sync)
        op->sync = true;
    if ((h->flags & ONCE) != 0 && op->call != NULL)
        md_op_remember(op, h, rc);
    return rc;
}

static void call_run(struct exportd *x, struct rpc_call *call, struct parked *parked)
{
    struct md_op op = { .x = x, .call = call, .parked = parked };
    int rc, packed = 0;

    store_trim(x->store);
    rc = md_op_run(&op);
    if (op.call == NULL)
        return; /* an async handler answers later */
    if (op.answer == NULL && store_is_clean(x->store) && !op.sync &&
        store_confirm(x->store, NULL)) {
        rpc_reply_status(call, status_from_errno(rc));
        return;
    }
    if (op.answer == NULL)
        packed = answer_pack(NULL, &op.answer);
    if (packed != 0)
        rpc_reply_status(call, status_from_errno(packed));
    else
        answer_queue(x, op.answer, call, rc, op.sync);
}

void exportd_handle(void *arg, struct rpc_call *call)
{
    struct exportd *x = arg;

    if (x->abandoned) {
        rpc_reply_status(call, ROZO__STATUS__NOT_LEADER);
        return;
    }
    if (call->op < OPS_MAX)
        x->requests->n_by_op[call->op]++;
    call_run(x, call, NULL);
}

/* ---- life ---- */

static const struct exportd_hooks hooks = {
    .tokens = { session_recall, session_wake },
    .keeps = export_keeps,
    .fenced = fences_list,
    .reserved = reserved_bytes_of,
    .map_taken = fences_check,
    .lost_changed = redistribute_look,
    .map_outrun = fences_resend,
    .run_call = call_run,
};

static void on_tick(struct env_timer *timer)
{
    struct requests *all = container_of(timer, struct requests, tick);
    struct exportd *x = all->x;
    uint64_t now_ns = env_now_ns(x->env);

    env_timer_start(x->env, &all->tick, TICK_MS);
    if (all->ticked_ns != 0 && now_ns - all->ticked_ns > ms_to_ns(ASLEEP_MS))
        sessions_extend_leases(x, now_ns - all->ticked_ns);
    all->ticked_ns = now_ns;
    metadata_room_look(x);
    LIST_FOREACH(node, &x->storages)
        storage_poll(container_of(node, struct cluster_storage, link));
    sessions_tick(x);
    writer_recovery_tick(x);
    deletion_tick(x);
    strays_tick(x);
    redistribute_tick(x);
    store_sync_soon(x->store);
    store_trim(x->store);
}

static void exportd_free(struct exportd *x)
{
    if (x == NULL)
        return;
    sessions_free(x);
    delayed_unlink_free(x);
    fences_free(x);
    redistribute_free(x);
    writer_recovery_free(x);
    cluster_free(x);
    store_close(x->store);
    free(x->sessions);
    reservations_free(&x->requests->reservations);
    free(x->requests);
    free(x);
}

static void on_start_synced(struct store_wait *wait, int rc)
{
    struct exportd *x = container_of(wait, struct requests, ready_wait)->x;

    if (rc != 0 || x->stopping)
        return;
    x->is_ready = true;
    if (x->config.ready != NULL)
        x->config.ready(x->config.ready_arg);
}

static bool is_at_rest(const struct exportd *x)
{
    return store_is_idle(x->store) && admissions_are_over(&x->requests->admissions) &&
           sessions_are_idle(x);
}

/* Waits until no call and no task is left. */
static void on_stop_task(struct env_task *task)
{
    struct requests *all = container_of(task, struct requests, stop_task);
    struct exportd *x = all->x;

    if (is_at_rest(x) && x->n_answers == 0)
        all->stopped(all->stopped_arg, store_error(x->store));
    else if (x->abandoned || is_at_rest(x))
        env_timer_start(x->env, &all->stop_again, STOP_AGAIN_MS); /* the kv takes time */
    else
        env_post(x->env, &all->stop_task);
}

static void on_stop_again(struct env_timer *timer)
{
    struct requests *all = container_of(timer, struct requests, stop_again);

    env_post(all->x->env, &all->stop_task);
}

static void on_stop_synced(struct store_wait *wait, int rc)
{
    struct requests *all = container_of(wait, struct requests, stop_wait);

    (void)rc; /* store_error() has it */
    env_post(all->x->env, &all->stop_task);
}

static void config_complete(struct exportd_config *c)
{
    if (c->evict_ms == 0)
        c->evict_ms = EVICT_DEFAULT_MS;
    if (c->lease_ms == 0) /* a client may rely on its tokens for so long */
        c->lease_ms = c->evict_ms < LEASE_DEFAULT_MS ? c->evict_ms : LEASE_DEFAULT_MS;
    if (c->cache_max == 0)
        c->cache_max = cache_default;
    if (c->session_tokens_max == 0)
        c->session_tokens_max = SESSION_TOKENS_DEFAULT;
    if (c->tokens_max == 0)
        c->tokens_max = TOKENS_DEFAULT;
    if (c->strays_s == 0)
        c->strays_s = STRAYS_DEFAULT_S;
}

static int requests_new(struct exportd *x)
{
    struct requests *all = calloc(1, sizeof(*all));

    if (all == NULL)
        return -ENOMEM;
    all->x = x;
    all->started_ns = env_now_ns(x->env);
    admissions_init(&all->admissions);
    listings_init(&all->listings);
    reservations_init(&all->reservations);
    env_timer_init(&all->tick, on_tick);
    env_timer_init(&all->stop_again, on_stop_again);
    all->ready_wait.fn = on_start_synced;
    all->stop_wait.fn = on_stop_synced;
    all->stop_task.fn = on_stop_task;
    x->requests = all;
    return 0;
}

/* Makes exportd with nothing loaded. Returns NULL without memory. */
static struct exportd *exportd_new(struct env *env, struct kv *kv,
                                   const struct exportd_config *config)
{
    struct exportd *x = calloc(1, sizeof(*x));

    if (x == NULL)
        return NULL;
    x->env = env;
    x->hooks = &hooks;
    x->config = *config;
    config_complete(&x->config);
    x->token_limits.session = x->config.session_tokens_max;
    x->token_limits.all = x->config.tokens_max;
    list_init(&x->storages);
    list_init(&x->volumes);
    list_init(&x->exports);
    writer_recovery_begin(x);
    if (sessions_new(x) == 0 && requests_new(x) == 0 &&
        store_open(env, kv, x->config.cache_max, &x->store) == 0)
        return x;
    free(x->requests);
    free(x->sessions);
    free(x);
    return NULL;
}

int exportd_open(struct env *env, struct kv *kv, const struct exportd_config *config,
                 struct exportd **out, struct err *err)
{
    struct exportd *x = exportd_new(env, kv, config);
    int rc;

    if (x == NULL)
        return err_set(err, -ENOMEM, "out of memory");
    rc = cluster_load(x, err);
    if (rc == 0)
        rc = session_store_load(x, err);
    if (rc == 0)
        rc = fences_load(x, err);
    if (rc == 0)
        rc = deletion_load(x);
    if (rc == 0)
        rc = redistribute_load(x);
    if (rc == 0)
        rc = reservations_load(x, err);
    if (rc != 0) {
        err_wrap(err, rc, "load the metadata");
        exportd_free(x);
        return rc;
    }
    grace_begin(x);
    cluster_begin(x);
    store_when_synced(x->store, &x->requests->ready_wait);
    metadata_room_look(x);
    strays_begin(x);
    env_timer_start(env, &x->requests->tick, 0);
    *out = x;
    return 0;
}

/* Answers waiting calls, and sends nothing to storages from now on. */
static void activities_end(struct exportd *x)
{
    env_timer_stop(x->env, &x->requests->tick);
    deletion_free(x);
    writer_recovery_stop(x);
    strays_stop(x);
    redistribute_stop(x);
    admissions_stop(x);
    listings_stop(x);
    sessions_stop(x);
    LIST_FOREACH(node, &x->storages) {
        struct cluster_storage *s = container_of(node, struct cluster_storage, link);

        storage_poll_stop(s);
        map_push_stop(s);
    }
    store_when_synced(x->store, &x->requests->stop_wait);
}

static void stop_begin(struct exportd *x, void (*done)(void *arg, int rc), void *arg)
{
    x->stopping = true;
    x->requests->stopped = done;
    x->requests->stopped_arg = arg;
}

void exportd_stop(struct exportd *x, void (*done)(void *arg, int rc), void *arg)
{
    assert(!x->stopping);
    stop_begin(x, done, arg);
    cluster_end(x);
    activities_end(x);
}

void exportd_abandon(struct exportd *x, void (*done)(void *arg, int rc), void *arg)
{
    bool is_stopping = x->stopping;

    assert(!x->abandoned);
    x->abandoned = true;
    store_abandon(x->store);
    stop_begin(x, done, arg);
    if (!is_stopping)
        activities_end(x);
}

void exportd_close(struct exportd *x)
{
    assert(x == NULL || (x->stopping && x->n_answers == 0));
    exportd_free(x);
}

int exportd_is_ready(const struct exportd *x)
{
    int rc = store_error(x->store);

    return rc != 0 ? rc : x->is_ready;
}

uint32_t exportd_start(const struct exportd *x)
{
    return cluster_n_starts(x);
}

uint64_t exportd_start_known(const struct exportd *x)
{
    return x->start_known;
}

const uint8_t *exportd_cluster_id(const struct exportd *x)
{
    return x->cluster_id;
}
