/*
 * session_store.c - records of open sessions, so that the next start knows for whom to
 * wait.
 *
 * In:     session.c and md.c when one opens, comes back or goes; the start; the tick.
 * Out:    a record for each open session; the end of the grace of each export.
 * Keeps:  I10: a session without a record has ended, and its client is answered so. The
 *         grace of an export ends when all its sessions that were open at the start are
 *         back or have closed. The end of the others is on stable storage before anything
 *         of theirs is given away.
 * Ask:    the record's fields. Users' disks carry them.
 */
#include "exportd/sessions/session_store.h"

#include <assert.h>
#include <errno.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/sessions/sessions.h"
#include "exportd/store/kv_record.h"

/* Pseudo session 0: its record shows that session records are kept, and in the place of
 * the export has the lease that mounts know. */
enum { NOBODY = 0 };

/* Session from before this start that has not come back. */
struct awaited {
    uint64_t id; /* key */
    uint32_t export_id;
    struct export *export; /* borrowed; NULL: there is none */
    char client[MESSAGE_MAX + 1];
    UT_hash_handle hh;
};

static void key_session(struct key *k, uint64_t id)
{
    key_start(k, KEY_SESSION);
    key_add_u64(k, id);
}

static void record_put(struct exportd *x, uint64_t id, uint32_t export_id,
                       const char *client)
{
    struct kv_record_out f;
    struct key k;

    kv_record_begin(&f);
    kv_record_put_u32(&f, export_id);
    kv_record_put_text(&f, client);
    key_session(&k, id);
    store_put(x->store, &k, f.bytes, f.len);
}

void session_store_put(struct session *s)
{
    record_put(s->export->x, s->id, s->export->id, s->client);
}

void session_store_delete(struct exportd *x, uint64_t id)
{
    struct key k;

    key_session(&k, id);
    store_delete(x->store, &k);
}

/* ---- awaited sessions ---- */

static void awaited_add(struct exportd *x, struct awaited *a)
{
    a->export = export_find(x, a->export_id);
    if (a->export != NULL)
        a->export->grace.n_awaited++;
    hash_add(x->sessions->grace.awaited, id, a);
}

static void awaited_free(struct exportd *x, struct awaited *a)
{
    if (a->export != NULL) {
        assert(a->export->grace.n_awaited > 0);
        a->export->grace.n_awaited--;
    }
    HASH_DEL(x->sessions->grace.awaited, a);
    free(a);
}

unsigned sessions_awaited(const struct exportd *x)
{
    return HASH_COUNT(x->sessions->grace.awaited);
}

bool session_is_awaited(struct exportd *x, const struct export *e, uint64_t id)
{
    const struct awaited *a = hash_find(x->sessions->grace.awaited, id);

    return a == NULL ? e->grace.phase == GRACE_FOR_ANY : a->export_id == e->id;
}

void grace_check(struct export *e)
{
    struct export_grace *g = &e->grace;

    if (g->phase == GRACE_FOR_AWAITED && g->n_awaited == 0)
        g->phase = GRACE_FOR_FENCES;
    if (g->phase != GRACE_FOR_FENCES || g->n_fences > 0)
        return;
    g->phase = GRACE_OVER;
    log_info("all sessions of %s from before the start are back or have ended: the grace "
             "is over",
             e->name);
}

/* Forgets an awaited session that came back or has ended. */
static void awaited_done(struct exportd *x, struct awaited *a)
{
    struct export *e = a->export;

    awaited_free(x, a);
    if (e != NULL)
        grace_check(e);
}

bool session_came_back(struct exportd *x, uint64_t id)
{
    struct awaited *a = hash_find(x->sessions->grace.awaited, id);

    if (a == NULL)
        return false;
    awaited_done(x, a);
    return true;
}

static void on_late_are_over(struct store_wait *wait, int rc)
{
    struct exportd *x = container_of(wait, struct sessions, grace.wait)->x;

    if (rc != 0)
        return; /* locks of awaited sessions are given to no other session */
    LIST_FOREACH(node, &x->exports) {
        struct export *e = container_of(node, struct export, link);

        if (e->grace.phase != GRACE_ENDS)
            continue;
        e->grace.phase = GRACE_FOR_FENCES;
        grace_check(e);
    }
}

/* Stores the end of an awaited session. Returns false if there is no room for a fence
 * now. */
static bool awaited_end(struct exportd *x, struct awaited *a, const char *why)
{
    if (!fence_add(x, a->export_id, a->id, true))
        return false;
    log_warn("session %016llx: %s %s: ended", (unsigned long long)a->id, a->client, why);
    return true;
}

void awaited_is_dead(struct exportd *x, uint64_t id)
{
    struct awaited *a = hash_find(x->sessions->grace.awaited, id);

    if (a != NULL &&
        awaited_end(x, a, "is dead, as a later mount on its machine reports"))
        awaited_done(x, a);
}

/* Returns true while sessions of the export may come back. */
static bool is_waiting(const struct export *e)
{
    return e->grace.phase == GRACE_FOR_AWAITED || e->grace.phase == GRACE_FOR_ANY;
}

/* Ends sessions of all exports that did not reconnect within the grace period. */
static void grace_end(struct exportd *x)
{
    struct awaited *a, *next;

    HASH_ITER(hh, x->sessions->grace.awaited, a, next)
    {
        /* one that is there opens at this moment */
        if (session_find(x, a->id) == NULL &&
            !awaited_end(x, a, "did not reconnect within the grace period"))
            return; /* tried again with the next tick */
        awaited_free(x, a);
    }
    assert(x->sessions->grace.awaited == NULL);
    LIST_FOREACH(node, &x->exports) {
        struct export *e = container_of(node, struct export, link);

        if (is_waiting(e))
            e->grace.phase = GRACE_ENDS;
    }
    x->sessions->grace.wait.fn = on_late_are_over;
    store_when_synced(x->store, &x->sessions->grace.wait);
}

bool grace_is_over(const struct export *e)
{
    return e->grace.phase == GRACE_OVER;
}

bool graces_are_over(const struct exportd *x)
{
    LIST_FOREACH(node, &x->exports) {
        if (!grace_is_over(container_of(node, struct export, link)))
            return false;
    }
    return x->sessions->grace.awaited == NULL;
}

void grace_extend(struct exportd *x, uint64_t ns)
{
    x->sessions->grace.ends_ns += ns;
}

bool grace_time_is_over(const struct exportd *x)
{
    return env_now_ns(x->env) > x->sessions->grace.ends_ns;
}

void grace_tick(struct exportd *x)
{
    bool waits = x->sessions->grace.awaited != NULL;

    LIST_FOREACH(node, &x->exports)
        waits = waits || is_waiting(container_of(node, struct export, link));
    if (waits && grace_time_is_over(x))
        grace_end(x);
}

/* ---- the start ---- */

void grace_init(struct exportd *x)
{
    x->sessions->grace.ends_ns = env_now_ns(x->env);
}

static void phases_set(struct exportd *x, enum grace_phase phase)
{
    LIST_FOREACH(node, &x->exports)
        container_of(node, struct export, link)->grace.phase = phase;
}

static int load_one(struct exportd *x, uint64_t id, const uint8_t *val, size_t len)
{
    struct awaited *a = calloc(1, sizeof(*a));
    struct kv_record_in f;

    if (a == NULL)
        return -ENOMEM;
    a->id = id;
    kv_record_read(&f, val, len);
    a->export_id = kv_record_get_u32(&f);
    kv_record_get_text(&f, a->client, MESSAGE_MAX);
    if (!kv_record_end(&f)) {
        free(a);
        return -EINVAL;
    }
    if (id == NOBODY) {
        phases_set(x, GRACE_FOR_AWAITED);
        x->sessions->grace.lease_before_ms = a->export_id;
        free(a);
    } else {
        awaited_add(x, a);
    }
    return 0;
}

int session_store_load(struct exportd *x, struct err *err)
{
    struct kv_iter *it;
    struct key from;
    size_t key_len, len;
    int rc = store_scan(x->store, &it);

    phases_set(x, GRACE_FOR_ANY);
    if (rc != 0)
        return err_set(err, rc, "scan the metadata store: %s", error_text(rc));
    key_session(&from, NOBODY);
    kv_iter_seek(it, from.bytes, from.len);
    for (; rc == 0 && kv_iter_valid(it); kv_iter_next(it)) {
        const uint8_t *key = kv_iter_key(it, &key_len);
        const uint8_t *val = kv_iter_val(it, &len);

        if (key_len != from.len || key[0] != KEY_SESSION)
            break;
        rc = load_one(x, key_get_u64(key + 1), val, len);
        if (rc != 0)
            err_set(err, rc, "the record of session %016llx in the metadata store: %s",
                    (unsigned long long)key_get_u64(key + 1),
                    rc == -EINVAL ? "it is corrupt" : error_text(rc));
    }
    if (rc == 0 && kv_iter_error(it) != 0)
        rc = err_set(err, -EIO, "scan the sessions in the metadata store: it is damaged");
    kv_iter_close(it);
    return rc;
}

void grace_begin(struct exportd *x)
{
    uint32_t lease_ms = x->config.lease_ms;

    if (lease_ms < x->sessions->grace.lease_before_ms)
        lease_ms = x->sessions->grace.lease_before_ms;
    record_put(x, NOBODY, x->config.lease_ms, "");
    if (cluster_n_starts(x) > 0)
        x->sessions->grace.ends_ns += ms_to_ns(lease_ms);
    LIST_FOREACH(node, &x->exports) {
        struct export_grace *g = &container_of(node, struct export, link)->grace;

        /* an export without sessions before this start waits for none */
        if (g->phase == GRACE_FOR_AWAITED && g->n_awaited == 0)
            g->phase = g->n_fences == 0 ? GRACE_OVER : GRACE_FOR_FENCES;
    }
}

void awaited_free_all(struct exportd *x)
{
    struct awaited *a, *next;

    HASH_ITER(hh, x->sessions->grace.awaited, a, next)
    awaited_free(x, a);
}
