/*
 * session_store.c - which sessions are open, in the store: so whoever starts after us knows whom to wait for.
 *
 * In:     session.c and md.c when one opens, comes back or goes; the start; the tick.
 * Out:    a record for each session that is open; the end of the grace.
 * Keeps:  I10: a session without a record is over, and its client hears so. The grace ends when all that were
 *         open at our start are back or have said good-bye; those that are late are over before anybody gets
 *         what was theirs, on stable storage, too.
 * Ask:    the record's fields. Users' disks carry them.
 */
#include "exportd/sessions/session_store.h"

#include <errno.h>

#include "common/base/log.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/sessions/session.h"
#include "exportd/sessions/session_fence.h"
#include "exportd/store/kv_record.h"

/* Session 0: whoever runs remembers its sessions; where others have their export, the lease that they were told. */
enum { NOBODY = 0 };

/* A session of before our start that has not come back. */
struct awaited {
    uint64_t id; /* key */
    uint32_t export_id;
    char client[WORDS_MAX + 1];
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

/* ---- those we wait for ---- */

static void awaited_free(struct exportd *x, struct awaited *a)
{
    HASH_DEL(x->awaited, a);
    free(a);
}

static struct awaited *awaited_find(struct exportd *x, uint64_t id)
{
    struct awaited *a;

    HASH_FIND(hh, x->awaited, &id, sizeof(id), a);
    return a;
}

unsigned sessions_awaited(const struct exportd *x)
{
    return HASH_COUNT(x->awaited);
}

bool session_is_awaited(struct exportd *x, const struct export *e, uint64_t id)
{
    const struct awaited *a = awaited_find(x, id);

    return a == NULL ? x->grace == GRACE_FOR_ANY : a->export_id == e->id;
}

void grace_check(struct exportd *x)
{
    if (x->grace == GRACE_FOR_AWAITED && x->awaited == NULL)
        x->grace = GRACE_FOR_FENCES;
    if (x->grace != GRACE_FOR_FENCES || x->n_grace_fences > 0)
        return;
    x->grace = GRACE_OVER;
    log_info(
        "all sessions of before the start are back or have ended: the grace is over");
}

bool session_came_back(struct exportd *x, uint64_t id)
{
    struct awaited *a = awaited_find(x, id);

    if (a == NULL)
        return false;
    awaited_free(x, a);
    grace_check(x);
    return true;
}

static void on_late_are_over(struct store_wait *wait, int rc)
{
    struct exportd *x = container_of(wait, struct exportd, grace_wait);

    if (rc != 0)
        return; /* their locks are given to nobody */
    x->grace = GRACE_FOR_FENCES;
    grace_check(x);
}

/* False: there is no room for the fence now. */
static bool awaited_end(struct exportd *x, struct awaited *a, const char *why)
{
    if (!fence_add(x, a->export_id, a->id, true))
        return false;
    log_warn("session %016llx: %s %s: ended", (unsigned long long)a->id, a->client, why);
    awaited_free(x, a);
    return true;
}

void awaited_is_dead(struct exportd *x, uint64_t id)
{
    struct awaited *a = awaited_find(x, id);

    if (a != NULL && awaited_end(x, a, "is dead, says who is there in its place"))
        grace_check(x);
}

/* Who has not come back does not any more. */
static void grace_end(struct exportd *x)
{
    struct awaited *a, *next;

    HASH_ITER(hh, x->awaited, a, next)
    {
        if (session_find(x, a->id) != NULL) /* it is just coming */
            awaited_free(x, a);
        else if (!awaited_end(x, a, "has not come back in the time of a lease"))
            return; /* with the next tick */
    }
    x->grace = GRACE_ENDS;
    x->grace_wait.fn = on_late_are_over;
    store_when_synced(x->store, &x->grace_wait);
}

bool grace_is_over(const struct exportd *x)
{
    return x->grace == GRACE_OVER;
}

void grace_tick(struct exportd *x)
{
    if ((x->grace == GRACE_FOR_AWAITED || x->grace == GRACE_FOR_ANY) &&
        env_now_ns(x->env) > x->grace_ends_ns)
        grace_end(x);
}

/* ---- the start ---- */

static int load_one(struct exportd *x, uint64_t id, const uint8_t *val, size_t len)
{
    struct awaited *a = calloc(1, sizeof(*a));
    struct kv_record_in f;

    if (a == NULL)
        return -ENOMEM;
    a->id = id;
    kv_record_read(&f, val, len);
    a->export_id = kv_record_get_u32(&f);
    kv_record_get_text(&f, a->client, WORDS_MAX);
    if (!kv_record_end(&f)) {
        free(a);
        return -EINVAL;
    }
    if (id == NOBODY) {
        x->grace = GRACE_FOR_AWAITED;
        x->lease_before_ms = a->export_id;
        free(a);
    } else {
        HASH_ADD(hh, x->awaited, id, sizeof(a->id), a);
    }
    return 0;
}

int session_store_load(struct exportd *x, struct err *err)
{
    struct kv_iter *it;
    struct key from;
    size_t key_len, len;
    int rc = store_scan(x->store, &it);

    x->grace = GRACE_FOR_ANY;
    if (rc != 0)
        return err_set(err, rc, "scan the metadata store: %s", strerror(-rc));
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
                    rc == -EINVAL ? "it makes no sense" : strerror(-rc));
    }
    if (rc == 0 && kv_iter_error(it) != 0)
        rc = err_set(err, -EIO, "scan the sessions in the metadata store: it is damaged");
    kv_iter_close(it);
    return rc;
}

void grace_begin(struct exportd *x)
{
    uint32_t lease_ms = x->config.lease_ms;

    if (lease_ms < x->lease_before_ms)
        lease_ms = x->lease_before_ms;
    record_put(x, NOBODY, x->config.lease_ms, "");
    if (x->n_starts > 0)
        x->grace_ends_ns += (uint64_t)lease_ms * 1000000;
    if (x->n_starts == 0 || (x->grace == GRACE_FOR_AWAITED && x->awaited == NULL))
        x->grace = x->n_grace_fences == 0 ? GRACE_OVER /* there was nobody before us */
                                          : GRACE_FOR_FENCES;
}

void awaited_free_all(struct exportd *x)
{
    struct awaited *a, *next;

    HASH_ITER(hh, x->awaited, a, next)
    awaited_free(x, a);
}
