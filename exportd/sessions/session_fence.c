/*
 * session_fence.c - sessions that ended without closing, until storages refuse their
 * writes.
 *
 * In:     session.c and session_store.c at the end of a session; the start; answers to
 *         ST_MAP; the tick.
 * Out:    a record of each, the list in ST_MAP; the end of the session, and of the grace.
 * Keeps:  I5: what a session held is given to others only when too few storages may still
 *         take its late writes to make one of them readable. One commit stores the fence
 *         and deletes the session's record, and storages get the fence when that is
 *         stable: a session that may come back is fenced nowhere. An unconfirmed fence
 *         never leaves the list.
 * Yours:  the pauses.
 * Ask:    the record's fields. Users' disks carry them.
 */
#include "exportd/sessions/session_fence.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "codec/codec.h"
#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/cluster/map_push.h"
#include "exportd/sessions/sessions.h"
#include "exportd/store/kv_record.h"

enum {
    FENCE_TIMEOUT_MS = 10000, /* wait for a storage that is up but does not confirm */
    /* since it was sent to storages; clients repeat requests no longer */
    FENCE_YOUNG_MS = REPLY_KEEP_MS,
    FENCE_LOG_MS = 30000, /* between log lines about unconfirmed fences */
};

enum fence_state {
    FENCE_STORING, /* not stable yet: no map has it */
    FENCE_SENT,    /* maps have it from map_version on */
    FENCE_CONFIRMED,
};

/* Fence of a session, from its end on. */
struct session_fence {
    struct list_node link; /* in the list of fences */
    struct exportd *x;     /* borrowed */
    uint64_t number;       /* key; ascending */
    uint64_t session;
    uint32_t export_id;
    enum fence_state state;
    uint64_t map_version; /* first map with it */
    uint64_t map_ns;      /* ns, monotonic; when that map was made */
    bool in_grace;        /* the grace of its export lasts until it is confirmed */
    struct store_wait wait;
};

static void fence_key(struct key *k, uint64_t number)
{
    key_start(k, KEY_FENCE);
    key_add_u64(k, number);
}

static void fence_put(const struct session_fence *f)
{
    struct kv_record_out out;
    struct key k;

    kv_record_begin(&out);
    kv_record_put_u64(&out, f->session);
    kv_record_put_u32(&out, f->export_id);
    kv_record_put_u32(&out, f->state == FENCE_CONFIRMED);
    fence_key(&k, f->number);
    store_put(f->x->store, &k, out.bytes, out.len);
}

static void fence_free(struct session_fence *f)
{
    struct fences *all = &f->x->sessions->fences;

    assert(all->n > 0);
    list_remove(&f->link);
    all->n--;
    free(f);
}

static struct session_fence *fence_new(struct exportd *x, uint64_t number,
                                       uint64_t session, uint32_t export_id)
{
    struct session_fence *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return NULL;
    f->x = x;
    f->number = number;
    f->session = session;
    f->export_id = export_id;
    list_add_tail(&x->sessions->fences.list, &f->link);
    x->sessions->fences.n++;
    x->sessions->fences.last = number;
    return f;
}

/* ---- storages that may still take its writes ---- */

/* Counts the storages of the volume that have not confirmed the fence. words, unless
 * NULL: a list of them. *hasty: one of them may answer soon. */
static unsigned n_unaware(const struct session_fence *f, bool *hasty,
                          char message[MESSAGE_MAX + 1])
{
    const struct export *e = export_find(f->x, f->export_id);
    bool is_overdue = env_now_ns(f->x->env) - f->map_ns >= ms_to_ns(FENCE_TIMEOUT_MS);
    unsigned n = 0, len = 0;

    *hasty = false;
    LIST_FOREACH(node, &f->x->storages) {
        const struct cluster_storage *s =
            container_of(node, struct cluster_storage, link);

        if (e == NULL || s->facts.volume != e->volume || s->facts.lost ||
            storage_has_map(s, f->map_version))
            continue;
        n++;
        *hasty |= !is_overdue && (s->up || !s->asked);
        if (message != NULL && len < MESSAGE_MAX)
            len += (unsigned)snprintf(message + len, MESSAGE_MAX + 1 - len, "%s%u (%s)",
                                      len == 0 ? "" : ", ", s->facts.id, s->facts.host);
    }
    return n;
}

/* Returns true if few enough storages lack the fence. A version is read only if k
 * storages have distinct projections of it, so fewer than k cannot complete a write that
 * had not begun. They are awaited all the same while they may answer soon. */
static bool is_tight(const struct session_fence *f)
{
    const struct export *e = export_find(f->x, f->export_id);
    bool hasty;
    unsigned n = n_unaware(f, &hasty, NULL);

    return e == NULL || (n < codec_layout(e->layout)->k && !hasty);
}

/* Lets the grace of the export last until the fence is confirmed. */
static void fence_enter_grace(struct session_fence *f)
{
    struct export *e = export_find(f->x, f->export_id);

    f->in_grace = e != NULL;
    if (e != NULL)
        e->grace.n_fences++;
}

static void fence_leave_grace(struct session_fence *f)
{
    struct export *e = f->in_grace ? export_find(f->x, f->export_id) : NULL;

    if (e == NULL)
        return;
    assert(e->grace.n_fences > 0);
    f->in_grace = false;
    e->grace.n_fences--;
    grace_check(e);
}

static void fence_confirm(struct session_fence *f)
{
    struct exportd *x = f->x;
    struct session *s = session_find(x, f->session);

    assert(f->state == FENCE_SENT && x->sessions->fences.n_unconfirmed > 0);
    f->state = FENCE_CONFIRMED;
    x->sessions->fences.n_unconfirmed--;
    fence_put(f);
    if (s != NULL && s->ends && s->has_heir) {
        s->is_fenced = true;
        s->expires_ns = env_now_ns(x->env) + ms_to_ns(x->config.lease_ms);
    } else if (s != NULL && s->ends) {
        session_end(x, s, true);
    }
    fence_leave_grace(f);
}

/* Returns true while the client, by its own clock, may rely on what it held: for a lease
 * after it was last answered. */
static bool client_may_believe(const struct session_fence *f)
{
    const struct session *s = session_find(f->x, f->session);

    return s != NULL && s->ends && env_now_ns(f->x->env) <= s->expires_ns;
}

void fences_check(struct exportd *x)
{
    const struct session_fence *before = NULL;
    bool tight = false;

    if (x->sessions->fences.n_unconfirmed == 0 || x->stopping ||
        store_error(x->store) != 0)
        return;
    LIST_FOREACH_SAFE(node, &x->sessions->fences.list) {
        struct session_fence *f = container_of(node, struct session_fence, link);

        if (f->state != FENCE_SENT || client_may_believe(f))
            continue;
        if (before == NULL || before->export_id != f->export_id ||
            before->map_version != f->map_version || before->map_ns != f->map_ns)
            tight = is_tight(f);
        before = f;
        if (tight)
            fence_confirm(f);
    }
}

void fences_tick(struct exportd *x)
{
    uint64_t now_ns = env_now_ns(x->env);
    char message[MESSAGE_MAX + 1] = "";
    bool hasty;

    fences_check(x);
    if (x->sessions->fences.n_unconfirmed == 0 || now_ns < x->sessions->fences.log_ns)
        return;
    LIST_FOREACH(node, &x->sessions->fences.list) {
        const struct session_fence *f = container_of(node, struct session_fence, link);

        if (f->state != FENCE_SENT || client_may_believe(f) ||
            now_ns - f->map_ns < ms_to_ns(FENCE_TIMEOUT_MS))
            continue;
        n_unaware(f, &hasty, message);
        log_warn(
            "session %016llx has ended (%u in all): its tokens and locks stay reserved "
            "until these storages confirm: %s (if one will not come back: rozo storage "
            "lost)",
            (unsigned long long)f->session, x->sessions->fences.n_unconfirmed, message);
        x->sessions->fences.log_ns = now_ns + ms_to_ns(FENCE_LOG_MS);
        return;
    }
}

/* ---- the end of a session ---- */

/* Notes that the newest map has the fence. */
static void fence_tell(struct session_fence *f)
{
    assert(f->state != FENCE_CONFIRMED);
    f->state = FENCE_SENT;
    f->map_version = f->x->map_version;
    f->map_ns = env_now_ns(f->x->env);
}

static void on_fence_stable(struct store_wait *wait, int rc)
{
    struct session_fence *f = container_of(wait, struct session_fence, wait);
    struct exportd *x = f->x;

    if (rc != 0 || x->stopping) /* everything the session held stays reserved */
        return;
    map_changed(x);
    fence_tell(f);
    LIST_FOREACH(node, &x->storages) {
        struct cluster_storage *s = container_of(node, struct cluster_storage, link);

        if (s->up)
            storage_push_map(s);
    }
    fences_check(x); /* maybe no storage has to confirm */
}

/* Makes room by dropping the oldest confirmed fence. */
static bool fences_make_room(struct exportd *x)
{
    struct key k;

    if (x->sessions->fences.n < FENCES_MAX)
        return true;
    LIST_FOREACH(node, &x->sessions->fences.list) {
        struct session_fence *f = container_of(node, struct session_fence, link);

        if (f->state != FENCE_CONFIRMED)
            continue;
        fence_key(&k, f->number);
        store_delete(x->store, &k);
        fence_free(f);
        return true;
    }
    return false;
}

bool fence_add(struct exportd *x, uint32_t export_id, uint64_t session, bool in_grace)
{
    struct session_fence *f = NULL;

    if (fences_make_room(x))
        f = fence_new(x, x->sessions->fences.last + 1, session, export_id);
    if (f == NULL)
        return false;
    if (in_grace)
        fence_enter_grace(f);
    x->sessions->fences.n_unconfirmed++;
    fence_put(f);
    session_store_delete(x, session);
    f->wait.fn = on_fence_stable;
    store_when_synced(x->store, &f->wait);
    return true;
}

/* ---- maps for storages ---- */

size_t fences_list(const struct exportd *x, uint64_t sessions[FENCES_MAX])
{
    size_t n = 0;

    LIST_FOREACH(node, &x->sessions->fences.list) {
        const struct session_fence *f = container_of(node, struct session_fence, link);

        assert(n < FENCES_MAX);
        if (f->state != FENCE_STORING)
            sessions[n++] = f->session;
    }
    return n;
}

bool fence_is_young(const struct exportd *x, uint64_t session)
{
    uint64_t now_ns = env_now_ns(x->env);

    LIST_FOREACH(node, &x->sessions->fences.list) {
        const struct session_fence *f = container_of(node, struct session_fence, link);

        if (f->session == session && (f->state != FENCE_CONFIRMED ||
                                      now_ns - f->map_ns < ms_to_ns(FENCE_YOUNG_MS)))
            return true;
    }
    return false;
}

void fences_resend(struct exportd *x)
{
    LIST_FOREACH(node, &x->sessions->fences.list) {
        struct session_fence *f = container_of(node, struct session_fence, link);

        if (f->state == FENCE_SENT)
            fence_tell(f);
    }
}

/* ---- the start ---- */

/* Loads a fence. All maps of this start have it, since the last start may have sent it to
 * no storage. */
static int load_one(struct exportd *x, uint64_t number, const uint8_t *val, size_t len)
{
    struct kv_record_in in;
    uint64_t session;
    uint32_t export_id, confirmed;
    struct session_fence *f;

    kv_record_read(&in, val, len);
    session = kv_record_get_u64(&in);
    export_id = kv_record_get_u32(&in);
    confirmed = kv_record_get_u32(&in);
    if (!kv_record_end(&in) || session == 0 || session == UINT64_MAX || confirmed > 1)
        return -EINVAL;
    f = fence_new(x, number, session, export_id);
    if (f == NULL)
        return -ENOMEM;
    f->map_version = 1;
    f->map_ns = env_now_ns(x->env);
    f->state = confirmed != 0 ? FENCE_CONFIRMED : FENCE_SENT;
    if (confirmed == 0) {
        x->sessions->fences.n_unconfirmed++;
        fence_enter_grace(f);
    }
    return 0;
}

void fences_init(struct fences *fences)
{
    list_init(&fences->list);
}

int fences_load(struct exportd *x, struct err *err)
{
    struct kv_iter *it;
    struct key from;
    size_t key_len, len;
    int rc = store_scan(x->store, &it);

    if (rc != 0)
        return err_set(err, rc, "scan the metadata store: %s", error_text(rc));
    fence_key(&from, 0);
    kv_iter_seek(it, from.bytes, from.len);
    for (; rc == 0 && kv_iter_valid(it); kv_iter_next(it)) {
        const uint8_t *key = kv_iter_key(it, &key_len);
        const uint8_t *val = kv_iter_val(it, &len);

        if (key_len != from.len || key[0] != KEY_FENCE)
            break;
        rc = x->sessions->fences.n >= FENCES_MAX
                 ? -EINVAL
                 : load_one(x, key_get_u64(key + 1), val, len);
        if (rc != 0)
            err_set(err, rc, "the record of fence %llu in the metadata store: %s",
                    (unsigned long long)key_get_u64(key + 1),
                    rc == -EINVAL ? "it is corrupt" : error_text(rc));
    }
    if (rc == 0 && kv_iter_error(it) != 0)
        rc = err_set(err, -EIO, "scan the fences in the metadata store: it is damaged");
    kv_iter_close(it);
    return rc;
}

void fences_free(struct exportd *x)
{
    LIST_FOREACH_SAFE(node, &x->sessions->fences.list)
        fence_free(container_of(node, struct session_fence, link));
}
