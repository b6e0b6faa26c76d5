/*
 * mount_session.c - MD_OPEN_SESSION, MD_KEEP_ALIVE, MD_CLOSE_SESSION.
 *
 * In:     mount_session_open/lost/close from the mount; a timer. Thread: the first loop.
 * Out:    md calls; events through struct mount_session_config. This is core.
 * Keeps:  exportd gets a message three times per lease while the session is open. From
 *         the time when exportd may have ended it, by our clock, until the next answer,
 *         mount_session_is_sure() is false.
 * Yours:  the pauses.
 */
#include "rozomount/session/mount_session.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "common/wire/status.h"
#include "rozomount/options/xalloc.h"

enum {
    CLOSE_TIMEOUT_MS = 3000,
    REOPEN_PAUSE_MS = 200,
    /* a killed mount may not be dead yet when the next one opens its session */
    FIRST_ALIVE_MS = 2000,
    REOPEN_SOON_MS =
        20, /* when another exportd leads since the attempt, or a link is up */
    LEASE_MIN_MS = 300, /* with a shorter lease keep-alives would take all the time */
    /* smaller offsets of the clocks are within the error of the round trip */
    CLOCK_SLACK_NS = 200000,
};

enum session_state {
    SESSION_NEW,
    SESSION_OPENING, /* for the first time */
    SESSION_OPEN,
    SESSION_REOPENING,
    SESSION_PAUSING, /* before the next attempt to reopen */
    SESSION_CLOSING,
    SESSION_CLOSED,
};

struct mount_session {
    struct env *env;      /* borrowed */
    struct md_client *md; /* borrowed */
    struct mount_session_config config;
    enum session_state state;
    struct mount_session_info info; /* valid once it was open */
    uint64_t map_version;
    int64_t asked_ns; /* env_wall_ns() at the time of the request */
    /* Any thread: exportd renewed the session at heard_ns or later, for good_for_ns. */
    atomic_uint_least64_t heard_ns, good_for_ns;
    struct md_call call;  /* OPEN */
    struct md_call alive; /* KEEP_ALIVE */
    struct md_call bye;   /* CLOSE */
    bool is_over;         /* exportd has confirmed the close */
    bool alive_sent;
    uint64_t alive_no;     /* number of unsynced_inodes at the request */
    struct md_call events; /* EVENTS */
    bool wants_events, events_sent;
    uint64_t seen_event;
    size_t n_claimed;
    struct table_lock *claimed;    /* owned: locks claimed by the OPEN under way */
    struct env_timer events_timer; /* pause after a failed EVENTS */
    struct env_timer timer;        /* next keep-alive, or end of a pause */
    struct env_timer sure_timer;   /* next check of mount_session_is_sure() */
    void (*opened)(void *arg, int rc);
    void (*closed)(void *arg);
    void *arg;
};

struct cluster_map *cluster_map_copy(const struct cluster_map *map)
{
    size_t len = sizeof(*map) + map->n_storages * sizeof(map->storages[0]);

    return memcpy(xzalloc(len), map, len);
}

/* Converts a map from the wire. Returns NULL if it is invalid. */
static struct cluster_map *map_from_wire(uint64_t version, size_t n,
                                         Rozo__Storage **storages)
{
    struct cluster_map *map;

    if (n > MAP_STORAGES_MAX)
        return NULL;
    map = xzalloc(sizeof(*map) + n * sizeof(map->storages[0]));
    map->version = version;
    for (size_t i = 0; i < n; i++) {
        struct map_storage *to = &map->storages[map->n_storages++];

        if (storages[i]->id == 0 || storages[i]->n_addresses > MAP_ADDRS_MAX)
            goto bad;
        if (storages[i]->incarnation.len == sizeof(to->incarnation))
            memcpy(to->incarnation, storages[i]->incarnation.data,
                   sizeof(to->incarnation));
        else if (storages[i]->incarnation.len != 0)
            goto bad;
        to->id = storages[i]->id;
        for (size_t j = 0; j < storages[i]->n_addresses; j++) {
            size_t len = strlen(storages[i]->addresses[j]);

            if (len == 0 || len >= MAP_ADDR_TEXT_MAX)
                goto bad;
            memcpy(to->addrs[to->n_addrs++], storages[i]->addresses[j], len + 1);
        }
    }
    return map;
bad:
    free(map);
    return NULL;
}

static void session_take_map(struct mount_session *s, uint64_t version, size_t n,
                             Rozo__Storage **storages)
{
    struct cluster_map *map = map_from_wire(version, n, storages);

    if (map == NULL) {
        log_warn("exportd sent an invalid map of storages; the old map stays in use");
        return;
    }
    s->map_version = version;
    s->config.map_changed(s->config.arg, map);
    free(map);
}

static void session_take_clock(struct mount_session *s, int64_t theirs_ns)
{
    int64_t ours_ns = s->asked_ns + (env_wall_ns(s->env) - s->asked_ns) / 2;
    int64_t ahead_ns = theirs_ns - ours_ns;

    if (ahead_ns > CLOCK_SLACK_NS || ahead_ns < -CLOCK_SLACK_NS)
        s->config.clock_is_ahead(s->config.arg, ahead_ns);
}

static void session_send_open(struct mount_session *s);
static void session_send_events(struct mount_session *s);

static void session_reopen_later(struct mount_session *s)
{
    s->state = SESSION_PAUSING;
    env_timer_start(s->env, &s->timer,
                    s->call.maybe_repeated ? REOPEN_SOON_MS : REOPEN_PAUSE_MS);
}

void mount_session_heard(struct mount_session *s, uint64_t sent_ns)
{
    uint_least64_t before = atomic_load_explicit(&s->heard_ns, memory_order_relaxed);

    while (sent_ns > before &&
           !atomic_compare_exchange_weak(&s->heard_ns, &before, sent_ns))
        ;
}

bool mount_session_is_sure(const struct mount_session *s, uint64_t now_ns)
{
    return now_ns < atomic_load(&s->heard_ns) + atomic_load(&s->good_for_ns);
}

/* Calls `unsure` when exportd may have ended the session; once, until the next answer. */
static void session_watch(struct mount_session *s)
{
    uint64_t now_ns = env_now_ns(s->env);
    uint64_t until_ns = atomic_load(&s->heard_ns) + atomic_load(&s->good_for_ns);

    if (now_ns < until_ns)
        env_timer_start(s->env, &s->sure_timer, ns_to_ms_up(until_ns - now_ns));
    else if (s->config.unsure != NULL)
        s->config.unsure(s->config.arg);
}

static void on_sure_timer(struct env_timer *timer)
{
    session_watch(container_of(timer, struct mount_session, sure_timer));
}

/* Handles an answer of exportd to a call that was sent at sent_ns. */
static void session_is_heard(struct mount_session *s, uint64_t sent_ns)
{
    mount_session_heard(s, sent_ns);
    if (!env_timer_is_running(&s->sure_timer))
        session_watch(s);
}

static void session_lost_lock(struct mount_session *s, const struct table_lock *lock)
{
    if (!lock_table_lose(s->config.lock_table, lock))
        return; /* released by its owner meanwhile */
    log_error(
        "a lock on inode %llu was lost: exportd got no message from this mount for "
        "longer than %u ms. The program that held the lock gets I/O errors until it "
        "unlocks or closes the file",
        (unsigned long long)lock->ino, s->info.lease_ms);
    s->config.lock_lost(s->config.arg, lock->ino);
}

/* Marks the claimed locks as lost that exportd refused; all of them if the session is
 * a new one. */
static void session_lost_locks(struct mount_session *s, const Rozo__MdOpenSessionResp *r)
{
    bool all = r->session != s->info.id;

    for (size_t i = 0; all && i < s->n_claimed; i++)
        session_lost_lock(s, &s->claimed[i]);
    for (size_t i = 0; !all && i < r->n_locks_lost; i++) {
        if (r->locks_lost[i] < s->n_claimed)
            session_lost_lock(s, &s->claimed[r->locks_lost[i]]);
    }
}

/* Keeps all claimed tokens, or marks all as lost. A new session loses all. */
static void session_take_tokens(struct mount_session *s, const Rozo__MdOpenSessionResp *r)
{
    bool lost =
        s->info.id != 0 && (r->tokens_lost || r->session != s->info.id || r->grant == 0);

    token_cache_set_max(s->config.tokens, r->tokens_max);
    token_cache_opened(s->config.tokens, r->grant, lost);
    if (lost)
        s->config.tokens_lost(s->config.arg);
    s->wants_events |= r->grant != 0;
}

/* Returns true until the session of the dead process is ours. */
static bool session_takes_over(const struct mount_session *s)
{
    return s->config.takes_over != 0 && s->info.id == 0;
}

/* Takes what the dead process held. The kernel may have anything under its tokens. */
static int session_inherit(struct mount_session *s, const Rozo__MdOpenSessionResp *r)
{
    if (!r->took_over || r->grant == 0)
        return -ROZO_ENO_SESSION; /* an exportd that cannot */
    token_cache_inherit(s->config.tokens, r->held_tokens, r->n_held_tokens);
    token_cache_inherit(s->config.tokens, r->held_exclusive, r->n_held_exclusive);
    token_cache_set_max(s->config.tokens, r->tokens_max);
    token_cache_opened(s->config.tokens, r->grant, false);
    s->wants_events = true;
    s->config.inherited(s->config.arg, r);
    return 0;
}

static int open_answer_take(struct mount_session *s, const struct md_call *call)
{
    Rozo__MdOpenSessionResp *r =
        rozo__md_open_session_resp__unpack(NULL, call->answer_len, call->answer);
    int rc = -EBADMSG;

    if (r == NULL || r->session == 0 || r->root_ino != 1 || r->lease_ms < LEASE_MIN_MS ||
        r->cluster_id.len != sizeof(s->info.cluster_id) ||
        (s->info.id != 0 && s->info.export_id != r->export_id))
        goto out;
    if (s->info.id != 0 && r->session != s->info.id)
        log_warn(
            "exportd got no message from this mount for longer than %u ms and ended its "
            "session: a new one is open",
            s->info.lease_ms);
    if (session_takes_over(s)) {
        rc = session_inherit(s, r);
        if (rc != 0)
            goto out;
    } else {
        session_lost_locks(s, r);
        session_take_tokens(s, r);
    }
    s->info = (struct mount_session_info){
        .id = r->session,
        .export_id = r->export_id,
        .codec = r->codec,
        .layout = r->layout,
        .block_bytes = r->block_bytes,
        .lease_ms = r->lease_ms,
        .losses = r->losses,
    };
    memcpy(s->info.cluster_id, r->cluster_id.data, sizeof(s->info.cluster_id));
    if (r->events < s->seen_event)
        s->seen_event = r->events; /* event numbers of another exportd or session */
    atomic_store(&s->good_for_ns, (uint64_t)r->lease_ms * 900000);
    session_is_heard(s, call->sent_ns);
    session_take_clock(s, r->now_ns);
    session_take_map(s, r->map_version, r->n_storages, r->storages);
    rc = 0;
out:
    rozo__md_open_session_resp__free_unpacked(r, NULL);
    return rc;
}

/* exportd has received what the last find_dead() returned. */
static void session_dead_are_reported(struct mount_session *s)
{
    if (s->config.find_dead != NULL)
        s->config.dead_are_reported(s->config.arg);
}

/* Returns the time from the opening to the next keep-alive. */
static uint32_t first_alive_ms(const struct mount_session *s, bool first)
{
    uint32_t ms = s->info.lease_ms / 3;

    return first && s->config.find_dead != NULL && ms > FIRST_ALIVE_MS ? FIRST_ALIVE_MS
                                                                       : ms;
}

static void on_open_answer(struct md_call *call, int rc)
{
    struct mount_session *s = call->arg;
    bool first = s->state == SESSION_OPENING;

    if (!first && s->state != SESSION_REOPENING) /* the session is closing */
        return;
    if (rc == 0)
        rc = open_answer_take(s, call);
    if (rc == 0) {
        s->state = SESSION_OPEN;
        env_timer_start(s->env, &s->timer, first_alive_ms(s, first));
        s->config.opened(s->config.arg, &s->info);
        if (first)
            session_dead_are_reported(s);
        if (s->events_sent && md_client_cancel(&s->events, false))
            s->events_sent = false; /* sent in the previous session */
        session_send_events(s);
        if (!first)
            log_info("session %016llx is open again", (unsigned long long)s->info.id);
    } else if (!first) {
        log_warn("cannot reopen the session, will try again: %s", error_text(rc));
        session_reopen_later(s);
    } else {
        s->state = SESSION_CLOSED;
    }
    if (first)
        s->opened(s->arg, rc);
}

static void session_forget_claimed(struct mount_session *s)
{
    free(s->claimed);
    s->claimed = NULL;
    s->n_claimed = 0;
}

/* Adds the locks held to the request: pointers and messages in one allocation, which
 * free(req->locks) frees. */
static void session_claim_locks(struct mount_session *s, Rozo__MdOpenSessionReq *req)
{
    Rozo__Lock *msgs;

    session_forget_claimed(s);
    s->claimed = lock_table_list(s->config.lock_table, &s->n_claimed);
    if (s->n_claimed == 0)
        return;
    req->locks = xzalloc(s->n_claimed * (sizeof(*req->locks) + sizeof(*msgs)));
    msgs = (Rozo__Lock *)(req->locks + s->n_claimed);
    for (size_t i = 0; i < s->n_claimed; i++) {
        lock_table_to_wire(&s->claimed[i], &msgs[i]);
        req->locks[req->n_locks++] = &msgs[i];
    }
}

/* Adds the ranges held to the request. Returns the messages that req->ranges points
 * at; the caller frees both. */
static Rozo__TokenRange *session_claim_ranges(const struct token_cache_claim *claim,
                                              Rozo__MdOpenSessionReq *req)
{
    Rozo__TokenRange *msgs;

    if (claim->n_ranges == 0)
        return NULL;
    msgs = xzalloc(claim->n_ranges * sizeof(*msgs));
    req->ranges = xzalloc(claim->n_ranges * sizeof(Rozo__TokenRange *));
    for (size_t i = 0; i < claim->n_ranges; i++) {
        rozo__token_range__init(&msgs[i]);
        msgs[i].ino = claim->ranges[i].ino;
        msgs[i].from = claim->ranges[i].from;
        msgs[i].to = claim->ranges[i].to;
        msgs[i].write = claim->ranges[i].write;
        req->ranges[req->n_ranges++] = &msgs[i];
    }
    return msgs;
}

/* Returns sessions to report as dead, borrowed. */
static uint64_t *session_find_dead(struct mount_session *s, size_t *n)
{
    return s->config.find_dead == NULL
               ? NULL
               : (uint64_t *)(uintptr_t)s->config.find_dead(s->config.arg, n);
}

static void session_send_open(struct mount_session *s)
{
    Rozo__MdOpenSessionReq req = ROZO__MD_OPEN_SESSION_REQ__INIT;
    size_t n_inodes = 0;
    uint64_t *inodes = open_refs_list(s->config.refs, &n_inodes);
    struct token_cache_claim claim;
    Rozo__TokenRange *ranges;

    req.export_name = (char *)s->config.export_name;
    req.client = (char *)s->config.client;
    req.session = s->info.id;
    req.takes_over = session_takes_over(s) ? s->config.takes_over : 0;
    req.knows_inline = true;
    req.full_quorum = true;
    req.n_open_inodes = n_inodes;
    if (s->state == SESSION_OPENING)
        req.dead_sessions = session_find_dead(s, &req.n_dead_sessions);
    req.open_inodes = inodes;
    session_claim_locks(s, &req);
    token_cache_claim(s->config.tokens, &claim);
    req.shared_tokens = claim.shared;
    req.n_shared_tokens = claim.n_shared;
    req.exclusive_tokens = claim.exclusive;
    req.n_exclusive_tokens = claim.n_exclusive;
    ranges = session_claim_ranges(&claim, &req);
    s->asked_ns = env_wall_ns(s->env);
    md_client_send_within(s->md, &s->call, ROZO__OP__MD_OPEN_SESSION, &req.base,
                          MD_SESSIONLESS, s->config.open_timeout_ms, on_open_answer, s);
    free(req.locks);
    free(req.ranges);
    free(ranges);
    free(claim.ranges);
    free(claim.shared);
    free(claim.exclusive);
    free(inodes);
}

static void session_reopen(struct mount_session *s)
{
    s->state = SESSION_REOPENING;
    session_send_open(s);
}

static void alive_answer_take(struct mount_session *s, const struct md_call *call)
{
    Rozo__MdKeepAliveResp *r =
        rozo__md_keep_alive_resp__unpack(NULL, call->answer_len, call->answer);

    if (r == NULL) {
        log_warn("exportd sent an invalid answer to a keep-alive; ignored");
        return;
    }
    session_take_clock(s, r->now_ns);
    atomic_store(&s->config.reads->rate, r->stream_rate);
    if (r->losses == s->info.losses)
        unsynced_inodes_synced(s->config.unsynced, s->alive_no);
    if (r->n_storages != 0 && r->map_version != s->map_version)
        session_take_map(s, r->map_version, r->n_storages, r->storages);
    rozo__md_keep_alive_resp__free_unpacked(r, NULL);
}

static void on_alive_answer(struct md_call *call, int rc)
{
    struct mount_session *s = call->arg;

    s->alive_sent = false;
    if (s->state != SESSION_OPEN)
        return;
    if (rc == 0) {
        session_is_heard(s, call->sent_ns);
        session_dead_are_reported(s);
        alive_answer_take(s, call);
    } else if (call->answered && call->status == ROZO__STATUS__NO_SESSION)
        mount_session_lost(s);
}

/* ---- events from exportd ---- */

static void event_take(struct mount_session *s, const Rozo__MdEventsResp__Event *e)
{
    if (e->waiter != 0)
        s->config.lock_event(s->config.arg, e->waiter, status_to_errno(e->status));
    else if (e->ino != 0 && (unsigned)e->keep < TOKEN_EXCLUSIVE)
        s->config.recall(s->config.arg, e->ino, (enum token_mode)e->keep, e->grant,
                         e->call);
}

static void events_take(struct mount_session *s, const struct md_call *call)
{
    Rozo__MdEventsResp *r =
        rozo__md_events_resp__unpack(NULL, call->answer_len, call->answer);

    if (r == NULL) {
        log_warn("exportd sent invalid events of locks and tokens; ignored");
        return;
    }
    if (r->tokens_max != 0) {
        token_cache_set_max(s->config.tokens, r->tokens_max);
        s->config.tokens_max(s->config.arg);
    }
    for (size_t i = 0; i < r->n_events; i++) {
        const Rozo__MdEventsResp__Event *e = r->events[i];

        if (e->number <= s->seen_event)
            continue;
        s->seen_event = e->number;
        event_take(s, e);
    }
    rozo__md_events_resp__free_unpacked(r, NULL);
}

static void on_events_timer(struct env_timer *timer)
{
    session_send_events(container_of(timer, struct mount_session, events_timer));
}

static void on_events_answer(struct md_call *call, int rc)
{
    struct mount_session *s = call->arg;

    s->events_sent = false;
    if (s->state != SESSION_OPEN)
        return; /* sent again when the session is open */
    if (rc == 0) {
        events_take(s, call);
        session_send_events(s);
    } else if (call->answered && call->status == ROZO__STATUS__NO_SESSION) {
        mount_session_lost(s);
    } else {
        env_timer_start(s->env, &s->events_timer,
                        call->maybe_repeated ? REOPEN_SOON_MS : REOPEN_PAUSE_MS);
    }
}

static void session_send_events(struct mount_session *s)
{
    Rozo__MdEventsReq req = ROZO__MD_EVENTS_REQ__INIT;

    if (!s->wants_events || s->events_sent || s->state != SESSION_OPEN)
        return;
    s->events_sent = true;
    req.seen = s->seen_event;
    md_client_send_within(s->md, &s->events, ROZO__OP__MD_EVENTS, &req.base,
                          MD_SESSIONLESS, s->info.lease_ms, on_events_answer, s);
}

void mount_session_want_events(struct mount_session *s)
{
    s->wants_events = true;
    session_send_events(s);
}

/* ---- the life of a session ---- */

static void session_send_alive(struct mount_session *s)
{
    Rozo__MdKeepAliveReq req = ROZO__MD_KEEP_ALIVE_REQ__INIT;

    if (s->alive_sent)
        return;
    s->alive_sent = true;
    s->alive_no = unsynced_inodes_begin(s->config.unsynced);
    req.map_version = s->map_version;
    req.stream_reads = atomic_load(&s->config.reads->n);
    req.late_reads = atomic_load(&s->config.reads->n_late);
    req.dead_sessions = session_find_dead(s, &req.n_dead_sessions);
    s->asked_ns = env_wall_ns(s->env);
    md_client_send_within(s->md, &s->alive, ROZO__OP__MD_KEEP_ALIVE, &req.base,
                          MD_SESSIONLESS, s->info.lease_ms / 3, on_alive_answer, s);
}

void mount_session_link_is_up(struct mount_session *s)
{
    s->asked_ns =
        env_wall_ns(s->env); /* requests that waited for the link are sent now */
    if (s->state == SESSION_OPEN)
        session_send_alive(s);
}

static void on_session_timer(struct env_timer *timer)
{
    struct mount_session *s = container_of(timer, struct mount_session, timer);

    if (s->state == SESSION_PAUSING) {
        session_reopen(s);
    } else if (s->state == SESSION_OPEN) {
        session_send_alive(s);
        env_timer_start(s->env, &s->timer, s->info.lease_ms / 3);
    }
}

struct mount_session *mount_session_new(struct env *env, struct md_client *md,
                                        const struct mount_session_config *config)
{
    struct mount_session *s = xzalloc(sizeof(*s));

    s->env = env;
    s->md = md;
    s->config = *config;
    env_timer_init(&s->timer, on_session_timer);
    env_timer_init(&s->sure_timer, on_sure_timer);
    env_timer_init(&s->events_timer, on_events_timer);
    return s;
}

void mount_session_free(struct mount_session *s)
{
    if (s == NULL)
        return;
    assert(s->state == SESSION_NEW || s->state == SESSION_CLOSED);
    session_forget_claimed(s);
    free(s);
}

void mount_session_open(struct mount_session *s, void (*done)(void *arg, int rc),
                        void *arg)
{
    assert(s->state == SESSION_NEW);
    s->state = SESSION_OPENING;
    s->opened = done;
    s->arg = arg;
    session_send_open(s);
}

void mount_session_give_up(struct mount_session *s)
{
    assert(s->state == SESSION_OPENING);
    md_client_cancel(&s->call, false);
    s->state = SESSION_CLOSED;
}

void mount_session_lost(struct mount_session *s)
{
    if (s->state != SESSION_OPEN)
        return;
    log_warn("exportd does not know this mount's session any more: reopening it");
    session_reopen(s);
}

bool mount_session_is_over(const struct mount_session *s)
{
    return s->is_over;
}

static void on_close_answer(struct md_call *call, int rc)
{
    struct mount_session *s = call->arg;

    s->is_over = rc == 0;
    if (rc != 0)
        log_warn("exportd did not confirm the end of the session: %s", error_text(rc));
    s->state = SESSION_CLOSED;
    s->closed(s->arg);
}

void mount_session_close(struct mount_session *s, void (*done)(void *arg), void *arg)
{
    Rozo__MdCloseSessionReq req = ROZO__MD_CLOSE_SESSION_REQ__INIT;

    env_timer_stop(s->env, &s->timer);
    env_timer_stop(s->env, &s->sure_timer);
    env_timer_stop(s->env, &s->events_timer);
    md_client_cancel(&s->events, false);
    md_client_cancel(&s->alive, false);
    md_client_cancel(&s->call, false);
    s->state = SESSION_CLOSING;
    s->closed = done;
    s->arg = arg;
    md_client_send_within(s->md, &s->bye, ROZO__OP__MD_CLOSE_SESSION, &req.base,
                          MD_SESSIONLESS, CLOSE_TIMEOUT_MS, on_close_answer, s);
}
