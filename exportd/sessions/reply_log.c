/*
 * reply_log.c - records of executed requests, so that the next start recognises repeated
 * ones.
 *
 * In:     exportd.c, after a request that must not be executed again; session.c, when a
 *         session opens; the tick.
 * Out:    a record for each of a session's last REPLIES_MAX changes, in the batch of the
 *         change; DONE_BEFORE answers, in session->before.
 * Keeps:  I4: a loss of power takes a change and its record, or neither. I9: each session
 *         has at most REPLIES_MAX records, and the oldest is replaced. They are deleted
 *         after the session has ended and its client had time to repeat its requests in
 *         another one.
 * Yours:  how often old records are searched.
 * Ask:    the record's fields. Users' disks carry them.
 */
#include "exportd/sessions/reply_log.h"

#include <assert.h>
#include <errno.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/sessions/sessions.h"
#include "exportd/store/kv_record.h"

enum {
    DONE_A_TICK = 4096,    /* records deleted */
    SESSIONS_A_TICK = 256, /* sessions looked at */
    LOOK_MS = 60000,       /* ms, between two searches */
    KEY_BYTES = 1 + 8 + 4,
};

/* Executed request. */
struct done {
    struct reply_to to; /* id 0: none */
    uint64_t number;    /* ascending in the session */
    uint64_t made_ino;
};

static void reply_log_key(struct key *k, uint64_t session, uint32_t slot)
{
    key_start(k, KEY_DONE);
    key_add_u64(k, session);
    key_add_u32(k, slot);
}

void reply_log_put(struct session *s, const struct reply_to *to, uint64_t made_ino)
{
    struct kv_record_out f;
    struct key k;

    assert(to->op < OPS_MAX && !s->ends);
    kv_record_begin(&f);
    kv_record_put_u64(&f, s->n_done);
    kv_record_put_u64(&f, to->id);
    kv_record_put_u32(&f, to->op);
    kv_record_put_u32(&f, to->crc);
    kv_record_put_u64(&f, made_ino);
    reply_log_key(&k, s->id, s->n_done % REPLIES_MAX);
    store_put(s->export->x->store, &k, f.bytes, f.len);
    s->n_done++;
}

/* ---- a session opens ---- */

static int reply_log_decode(struct done *d, const uint8_t *val, size_t len)
{
    struct kv_record_in f;
    uint32_t op;

    kv_record_read(&f, val, len);
    d->number = kv_record_get_u64(&f);
    d->to.id = kv_record_get_u64(&f);
    op = kv_record_get_u32(&f);
    d->to.crc = kv_record_get_u32(&f);
    d->made_ino = kv_record_get_u64(&f);
    if (!kv_record_end(&f) || op >= OPS_MAX || d->number == UINT64_MAX)
        return -EINVAL;
    d->to.op = (uint16_t)op;
    return 0;
}

/* Reads the records of a session, each into its slot. */
static int ring_read(struct exportd *x, uint64_t id, struct done ring[REPLIES_MAX])
{
    struct kv_iter *it;
    struct key from;
    size_t key_len, len;
    int rc = store_scan(x->store, &it);

    if (rc != 0)
        return rc;
    reply_log_key(&from, id, 0);
    for (kv_iter_seek(it, from.bytes, from.len); kv_iter_valid(it); kv_iter_next(it)) {
        const uint8_t *key = kv_iter_key(it, &key_len);
        const uint8_t *val = kv_iter_val(it, &len);
        uint32_t slot;
        struct done d;

        if (key_len != KEY_BYTES || memcmp(key, from.bytes, 9) != 0)
            break;
        slot = key_get_u32(key + 9);
        if (slot < REPLIES_MAX && reply_log_decode(&d, val, len) == 0 &&
            d.number % REPLIES_MAX == slot)
            ring[slot] = d;
        else
            log_error(
                "metadata store: the record of a request of session %016llx is corrupt: "
                "exportd would not recognise a repetition",
                (unsigned long long)id);
    }
    rc = kv_iter_error(it);
    kv_iter_close(it);
    return rc;
}

static void reply_log_answer(struct session *s, const struct done *d, uint64_t now_ns)
{
    Rozo__MdDoneResp resp = ROZO__MD_DONE_RESP__INIT;
    uint8_t msg[16];

    resp.ino = d->made_ino;
    assert(rozo__md_done_resp__get_packed_size(&resp) <= sizeof(msg));
    reply_cache_keep(&s->before, &d->to, -ROZO_EDONE_BEFORE, true, msg,
                     rozo__md_done_resp__pack(&resp, msg), now_ns);
}

int reply_log_load(struct session *s, uint64_t id)
{
    struct exportd *x = s->export->x;
    struct done *ring = calloc(REPLIES_MAX, sizeof(*ring));
    uint64_t next = 0;
    int rc = ring == NULL ? -ENOMEM : ring_read(x, id, ring);

    for (unsigned i = 0; rc == 0 && i < REPLIES_MAX; i++) {
        if (ring[i].to.id != 0 && ring[i].number >= next)
            next = ring[i].number + 1;
    }
    for (unsigned i = 0; rc == 0 && i < REPLIES_MAX; i++) {
        const struct done *d = &ring[(next + i) % REPLIES_MAX]; /* oldest first */

        if (d->to.id != 0)
            reply_log_answer(s, d, env_now_ns(x->env));
    }
    if (rc == 0 && id == s->id)
        s->n_done = next;
    free(ring);
    return rc;
}

/* ---- ended sessions ---- */

/* Scan of the records, from the cursor on. */
struct reply_log_scan {
    struct kv_iter *it;
    unsigned n_sessions;
    unsigned n; /* records to delete: */
    struct {
        uint64_t session;
        uint32_t slot;
    } gone[DONE_A_TICK];
};

static bool is_needed(struct exportd *x, uint64_t session)
{
    return session_find(x, session) != NULL || fence_is_young(x, session);
}

/* Looks at all records of the session under the iterator, if there is room. Returns false
 * if there are no more. */
static bool look_at_session(struct exportd *x, struct reply_log_scan *l)
{
    struct key from;
    size_t len;
    const uint8_t *key = kv_iter_valid(l->it) ? kv_iter_key(l->it, &len) : NULL;
    uint64_t id;

    if (key == NULL || len != KEY_BYTES || key[0] != KEY_DONE)
        return false;
    id = key_get_u64(key + 1);
    x->sessions->reply_search.cursor = id;
    reply_log_key(&from, id, 0);
    for (bool needed = is_needed(x, id); !needed && l->n < DONE_A_TICK;) {
        l->gone[l->n].session = id;
        l->gone[l->n++].slot = key_get_u32(key + 9);
        kv_iter_next(l->it);
        key = kv_iter_valid(l->it) ? kv_iter_key(l->it, &len) : NULL;
        if (key == NULL || len != KEY_BYTES || memcmp(key, from.bytes, 9) != 0)
            break;
    }
    if (l->n == DONE_A_TICK)
        return true; /* the next scan looks at it again */
    if (id == UINT64_MAX)
        return false;
    x->sessions->reply_search.cursor = id + 1;
    reply_log_key(&from, id + 1, 0);
    kv_iter_seek(l->it, from.bytes, from.len);
    return true;
}

void reply_log_tick(struct exportd *x)
{
    uint64_t now_ns = env_now_ns(x->env);
    struct reply_log_scan *l;
    struct key from;
    bool more = true;

    if (now_ns < x->sessions->reply_search.next_ns || !graces_are_over(x) ||
        store_error(x->store) != 0)
        return;
    l = malloc(sizeof(*l));
    if (l == NULL || store_scan(x->store, &l->it) != 0) {
        free(l);
        return; /* tried again with the next tick */
    }
    l->n = l->n_sessions = 0;
    reply_log_key(&from, x->sessions->reply_search.cursor, 0);
    kv_iter_seek(l->it, from.bytes, from.len);
    while (more && l->n < DONE_A_TICK && l->n_sessions++ < SESSIONS_A_TICK)
        more = look_at_session(x, l);
    kv_iter_close(l->it);
    for (unsigned i = 0; i < l->n; i++) {
        reply_log_key(&from, l->gone[i].session, l->gone[i].slot);
        store_delete(x->store, &from);
    }
    if (!more) {
        x->sessions->reply_search.cursor = 0;
        x->sessions->reply_search.next_ns = now_ns + ms_to_ns(LOOK_MS);
    }
    free(l);
}
