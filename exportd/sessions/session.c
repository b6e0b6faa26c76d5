/*
 * session.c - the sessions of mounts, and the inodes that they hold open.
 *
 * In:     md.c; the tick.
 * Out:    references, counted per session and per export; orphans removed with the last
 *         one; files whose writer is gone, to writer_recovery.c.
 * Keeps:  I10: what a session held is given away when its lease ends, or when it is
 *         evicted because of a recall, but never before the end is on stable storage and
 *         session_fence.c allows it. Time in which exportd was suspended does not count.
 *         Until the grace of an export after a start is over, any of its inodes may be
 *         open, and no orphan of it is removed.
 */
#include "exportd/sessions/session.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/cluster/cluster.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/cluster/writer_recovery.h"
#include "exportd/sessions/session_events.h"
#include "exportd/sessions/session_locks.h"
#include "exportd/sessions/session_tokens.h"
#include "exportd/sessions/sessions.h"

enum {
    ORPHANS_A_TICK = 4096, /* orphans looked at after the grace */
    CUTS_MAX = 1 << 16,    /* remembered truncates, all sessions */
    STUCK_MS = 500,        /* giving back a SHARED token normally takes milliseconds */
};

static struct open_file *open_file_add(struct open_file **table, uint64_t ino, bool clean)
{
    struct open_file *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return NULL;
    f->ino = ino;
    f->clean = clean;
    hash_add(*table, ino, f);
    return f;
}

static void open_file_free(struct open_file **table, struct open_file *f)
{
    HASH_DEL(*table, f);
    free(f);
}

bool export_is_open(struct export *e, uint64_t ino)
{
    return !grace_is_over(e) || hash_find(e->opens, ino) != NULL;
}

struct session *session_find(struct exportd *x, uint64_t id)
{
    return hash_find(x->sessions->table.by_id, id);
}

struct session *session_find_continued(struct exportd *x, uint64_t id)
{
    struct session *s = session_find(x, id), *next;

    if (s != NULL)
        return s;
    HASH_ITER(hh, x->sessions->table.by_id, s, next)
    {
        if (s->id_before == id)
            return s;
    }
    return NULL;
}

void session_take_new_id(struct session *s)
{
    struct exportd *x = s->export->x;

    HASH_DEL(x->sessions->table.by_id, s);
    s->id_before = s->id;
    do
        env_random(x->env, &s->id, sizeof(s->id));
    while (s->id == 0 || session_find(x, s->id) != NULL);
    hash_add(x->sessions->table.by_id, id, s);
}

bool exportd_has_session(const struct exportd *x, uint64_t id)
{
    const struct session *s = hash_find(x->sessions->table.by_id, id);

    return s != NULL && !s->ends;
}

bool session_is_of_host(const struct session *s, const char *host)
{
    size_t len = strlen(host);

    return strncmp(s->client, host, len) == 0 && s->client[len] == ':';
}

void sessions_count_reads(struct exportd *x, uint32_t export, const char *host,
                          uint64_t *n_reads, uint64_t *n_late)
{
    struct session *s, *tmp;

    *n_reads = *n_late = 0;
    HASH_ITER(hh, x->sessions->table.by_id, s, tmp)
    {
        if (s->ends || s->export->id != export || !session_is_of_host(s, host))
            continue;
        *n_reads += s->n_stream_reads;
        *n_late += s->n_late_reads;
    }
}

void session_touch(struct exportd *x, struct session *s)
{
    assert(!s->ends);
    s->expires_ns = env_now_ns(x->env) + ms_to_ns(x->config.lease_ms);
}

static struct session *session_new(struct export *e, uint64_t id)
{
    struct session *s = calloc(1, sizeof(*s));

    assert(id != 0 && session_find(e->x, id) == NULL);
    if (s == NULL)
        return NULL;
    reply_cache_init(&s->replies);
    reply_cache_init(&s->before);
    lock_holder_init(&s->locks);
    token_holder_init(&s->tokens);
    list_init(&s->parked);
    list_init(&s->events);
    list_init(&s->news_link);
    s->id = id;
    s->export = e;
    s->tokens_max = (uint32_t)e->x->token_limits.session;
    e->n_sessions++;
    hash_add(e->x->sessions->table.by_id, id, s);
    return s;
}

/* Frees a session without references. */
static void session_free(struct exportd *x, struct session *s)
{
    assert(s->refs == NULL && s->cuts == NULL);
    session_drop_locks(s);
    session_drop_tokens(s);
    session_events_end(s, -ROZO_ENO_SESSION);
    assert(s->lock_calls == NULL && s->n_parked == 0 && s->n_events == 0);
    HASH_DEL(x->sessions->table.by_id, s);
    reply_cache_free(&s->replies);
    reply_cache_free(&s->before);
    free(s);
}

/* Makes a session. asked: the id that its client names, 0: none; id: the id that it
 * gets. */
static int session_begin(struct export *e, uint64_t asked, uint64_t id,
                         struct session **out)
{
    struct session *s = session_new(e, id);
    int rc = s == NULL ? -ENOMEM : 0;

    if (rc == 0 && asked != 0)
        rc = reply_log_load(s, asked);
    if (rc == 0) {
        *out = s;
    } else if (s != NULL) {
        e->n_sessions--;
        session_free(e->x, s);
    }
    return rc;
}

int session_open(struct exportd *x, struct export *e, uint64_t id, const char *client,
                 bool read_only, struct session **out)
{
    struct session *s = id == 0 ? NULL : session_find(x, id);
    bool back = s == NULL && id != 0 && session_is_awaited(x, e, id);
    uint64_t asked = id;
    int rc;

    if (s != NULL && !s->ends && s->export != e)
        return -EEXIST;
    if (s == NULL || s->ends) {
        if (!back &&
            HASH_COUNT(x->sessions->table.by_id) + sessions_awaited(x) >= SESSIONS_MAX)
            return -EBUSY;
        if (!back)
            id = 0;
        while (id == 0 || session_find(x, id) != NULL)
            env_random(x->env, &id, sizeof(id));
        rc = session_begin(e, asked, id, &s);
        if (rc != 0)
            return rc;
        log_info("session %016llx: %.*s %s %s%s", (unsigned long long)s->id, MESSAGE_MAX,
                 client, back ? "is back on" : "mounts", e->name,
                 read_only ? ", read only" : "");
    }
    snprintf(s->client, sizeof(s->client), "%s", client);
    s->read_only = read_only;
    session_store_put(s);
    session_touch(x, s);
    *out = s;
    return 0;
}

bool session_may_ref(const struct session *s)
{
    return HASH_COUNT(s->refs) < SESSION_REFS_MAX &&
           s->export->x->sessions->table.n_refs < REFS_MAX;
}

/* Adds n references of the session to the inode. */
static int refs_add(struct session *s, uint64_t ino, uint32_t n, bool clean)
{
    struct open_file *mine = hash_find(s->refs, ino);
    struct open_file *all = hash_find(s->export->opens, ino);

    assert(n > 0 && (mine == NULL || all != NULL));
    if (mine == NULL && !session_may_ref(s))
        return -ENOMEM;
    if (mine == NULL)
        mine = open_file_add(&s->refs, ino, false);
    if (mine == NULL)
        return -ENOMEM;
    if (all == NULL)
        all = open_file_add(&s->export->opens, ino, clean);
    if (all == NULL || n > UINT32_MAX - all->n_refs) {
        if (mine->n_refs == 0)
            open_file_free(&s->refs, mine);
        return -ENOMEM;
    }
    s->export->x->sessions->table.n_refs += mine->n_refs == 0;
    mine->n_refs += n;
    all->n_refs += n;
    return 0;
}

int session_ref(struct session *s, uint64_t ino, bool clean)
{
    return refs_add(s, ino, 1, clean);
}

int session_claim(struct session *s, uint64_t ino, uint32_t n)
{
    struct open_file *mine = hash_find(s->refs, ino);
    int rc;

    if (mine != NULL && mine->n_refs >= n)
        return 0;
    rc = refs_add(s, ino, mine == NULL ? n : n - mine->n_refs, false);
    if (rc == 0)
        session_writes(s, ino); /* an epoch may have been given out before this start */
    return rc;
}

void session_writes(struct session *s, uint64_t ino)
{
    struct open_file *mine = hash_find(s->refs, ino);

    if (mine != NULL) {
        hash_find(s->export->opens, ino)->n_writers += !mine->writes;
        mine->writes = true;
    } else if (s->export->x->sessions->table.n_cuts < CUTS_MAX &&
               hash_find(s->cuts, ino) == NULL)
        s->export->x->sessions->table.n_cuts +=
            open_file_add(&s->cuts, ino, false) != NULL;
    /* if not remembered, scrub repairs the file */
}

bool session_is_alone(struct session *s, uint64_t ino, bool own_too)
{
    const struct open_file *all = hash_find(s->export->opens, ino);
    const struct open_file *mine = hash_find(s->refs, ino);
    uint32_t n = all == NULL ? 0 : all->n_writers;

    if (own_too && mine != NULL)
        n -= mine->writes;
    /* False for a whole lease, even if all are back: a session that opens the file while
     * the truncate that follows is pending would not see what another one writes behind
     * it. */
    return n == 0 && grace_time_is_over(s->export->x);
}

void session_has_cut(struct session *s, uint64_t ino)
{
    struct open_file *cut = hash_find(s->cuts, ino);

    if (cut == NULL)
        return;
    assert(s->export->x->sessions->table.n_cuts > 0);
    open_file_free(&s->cuts, cut);
    s->export->x->sessions->table.n_cuts--;
}

void export_reap(struct export *e, uint64_t ino)
{
    if (!namespace_reap(&e->ns, ino))
        return;
    tokens_inode_gone(&e->tokens, ino);
    tokens_inode_gone(&e->tokens, token_of_locks(ino));
}

/* Drops n references of a session (wrote: its last one, with an epoch), and removes the
 * inode with the last of all if it has no name. nothing_stored: the client asked no
 * storage to store anything of the file. */
static void refs_drop(struct export *e, uint64_t ino, uint32_t n, bool wrote,
                      bool nothing_stored)
{
    struct open_file *all = hash_find(e->opens, ino);
    bool clean;

    assert(all != NULL && all->n_refs >= n && all->n_writers >= wrote);
    all->n_refs -= n;
    all->n_writers -= wrote;
    all->clean = all->clean && nothing_stored;
    if (all->n_refs > 0)
        return;
    clean = all->clean;
    open_file_free(&e->opens, all);
    if (clean)
        namespace_forget_may_have_data(&e->ns, ino);
    if (!export_needs(e, ino))
        export_reap(e, ino);
}

void session_unref(struct exportd *x, struct session *s, uint64_t ino, uint32_t n,
                   bool nothing_stored)
{
    struct open_file *mine = hash_find(s->refs, ino);
    bool wrote = false;

    if (mine == NULL)
        return; /* given back before: a repeated request */
    if (n > mine->n_refs)
        n = mine->n_refs;
    mine->n_refs -= n;
    if (mine->n_refs == 0) {
        assert(x->sessions->table.n_refs > 0);
        wrote = mine->writes;
        open_file_free(&s->refs, mine);
        x->sessions->table.n_refs--;
    }
    refs_drop(s->export, ino, n, wrote, nothing_stored);
}

/* Queues a check of a file that the session did not finish writing. */
static void file_abandoned(struct session *s, uint64_t ino)
{
    struct inode in;

    if (writer_recovery_has_room(s->export->x) &&
        namespace_getattr(&s->export->ns, ino, &in) == 0)
        writer_recovery_add(s->export, &in);
}

static void cuts_forget(struct session *s)
{
    struct open_file *f, *tmp;

    HASH_ITER(hh, s->cuts, f, tmp)
    {
        open_file_free(&s->cuts, f);
        s->export->x->sessions->table.n_cuts--;
    }
}

void session_abandon_files(struct session *s)
{
    struct open_file *f, *tmp;

    HASH_ITER(hh, s->cuts, f, tmp)
    file_abandoned(s, f->ino);
    cuts_forget(s);
    HASH_ITER(hh, s->refs, f, tmp)
    {
        if (!f->writes)
            continue;
        file_abandoned(s, f->ino);
        namespace_unreported(&s->export->ns, f->ino);
        store_end_operation(s->export->x->store);
    }
}

void session_end(struct exportd *x, struct session *s, bool gone)
{
    struct open_file *f, *tmp;

    assert(s->export->n_sessions > 0);
    if (gone)
        session_abandon_files(s);
    cuts_forget(s);
    HASH_ITER(hh, s->refs, f, tmp)
    {
        uint64_t ino = f->ino;
        uint32_t n = f->n_refs;
        bool wrote = f->writes;

        assert(n > 0);
        open_file_free(&s->refs, f);
        x->sessions->table.n_refs--;
        refs_drop(s->export, ino, n, wrote, false);
        store_end_operation(x->store);
    }
    if (!gone)
        session_store_delete(x, s->id);
    s->export->n_sessions--;
    session_free(x, s);
}

/* Ends a session. What it holds is given away once its end is stable and no late write of
 * it can succeed. */
static void session_evict(struct exportd *x, struct session *s, const char *why,
                          uint32_t ms)
{
    char message[32] = "";

    assert(!s->ends);
    s->ends = fence_add(x, s->export->id, s->id, false);
    if (!s->ends)
        return; /* no room: tried again with the next tick */
    if (ms != 0)
        snprintf(message, sizeof(message), " %u ms", ms);
    log_warn("session %016llx: %s %s%s: ended", (unsigned long long)s->id, s->client, why,
             message);
    session_parked_end(s, -ROZO_ENO_SESSION);
    session_events_end(s, -ROZO_ENO_SESSION);
}

/* Ends a session whose process is dead, so no client relies on its lease. */
static void session_end_dead(struct session *s, const char *why)
{
    struct exportd *x = s->export->x;

    if (s->is_fenced)
        return;
    s->expires_ns = 0;
    if (s->ends)
        fences_check(x);
    else
        session_evict(x, s, why, 0);
}

void session_begin_takeover(struct session *s)
{
    s->has_heir = true;
    session_end_dead(s, "has died, and another process takes its mount over");
}

void session_is_dead(struct exportd *x, uint64_t id)
{
    struct session *s = session_find(x, id);

    if (s == NULL)
        awaited_is_dead(x, id);
    else
        session_end_dead(s, "is dead, as a later mount on its machine reports");
}

/* Removes orphans of the export that no session has claimed since the start: their
 * holders are gone. */
static void orphans_look(struct export *e)
{
    struct export_grace *g = &e->grace;
    uint64_t *found = calloc(ORPHANS_A_TICK, sizeof(*found));
    struct kv_iter *it;
    struct key from;
    unsigned n = 0;
    size_t len;

    assert(!g->orphans_done && grace_is_over(e));
    if (found == NULL || store_scan(e->x->store, &it) != 0) {
        free(found);
        return; /* tried again with the next tick */
    }
    key_ino(&from, KEY_ORPHAN, e->id, g->orphan);
    kv_iter_seek(it, from.bytes, from.len);
    for (; n < ORPHANS_A_TICK && kv_iter_valid(it); kv_iter_next(it)) {
        const uint8_t *key = kv_iter_key(it, &len);

        if (len != from.len || key[0] != KEY_ORPHAN || key_get_u32(key + 1) != e->id)
            break;
        found[n++] = key_get_u64(key + 5);
    }
    g->orphans_done = n < ORPHANS_A_TICK && kv_iter_error(it) == 0;
    kv_iter_close(it);
    for (unsigned i = 0; i < n; i++) {
        if (!export_needs(e, found[i]))
            export_reap(e, found[i]);
        g->orphan = found[i] + 1;
    }
    free(found);
}

void sessions_extend_leases(struct exportd *x, uint64_t slept_ns)
{
    struct session *s, *tmp;

    log_warn(
        "exportd was suspended for %llu ms (stopped, or waiting for its disk): leases "
        "are extended by as much",
        (unsigned long long)ns_to_ms(slept_ns));
    grace_extend(x, slept_ns);
    HASH_ITER(hh, x->sessions->table.by_id, s, tmp)
    {
        s->expires_ns += slept_ns;
        token_holder_extend(&s->tokens, slept_ns);
    }
}

/* Returns true if giving back may wait for another call of the client. In its kernel, a
 * rename holds the lock of one directory while it waits for that of another, which a call
 * may hold that waits here. */
static bool may_be_stuck(const struct session *s, uint64_t now_ns)
{
    uint64_t since_ns = token_holder_owes_shared_since(&s->tokens);

    return since_ns != UINT64_MAX && now_ns > since_ns + ms_to_ns(STUCK_MS);
}

/* Returns true if other sessions have waited too long for a token of this one. */
static bool owes_too_long(const struct session *s, uint64_t now_ns)
{
    uint64_t since_ns = token_holder_owes_since(&s->tokens);

    return since_ns != UINT64_MAX &&
           now_ns > since_ns + ms_to_ns(s->export->x->config.evict_ms);
}

void sessions_tick(struct exportd *x)
{
    uint64_t now_ns = env_now_ns(x->env);
    struct session *s, *tmp;

    HASH_ITER(hh, x->sessions->table.by_id, s, tmp)
    {
        reply_cache_trim(&s->replies, now_ns);
        reply_cache_trim(&s->before, now_ns);
        session_events_tick(s);
        if (s->is_fenced && now_ns > s->expires_ns) {
            session_end(x, s, true); /* no process came to continue it */
            continue;
        }
        if (s->ends)
            continue;
        if (now_ns > s->expires_ns)
            session_evict(x, s, "has sent nothing for", x->config.lease_ms);
        else if (owes_too_long(s, now_ns))
            session_evict(x, s, "has not answered a recall for", x->config.evict_ms);
        else if (may_be_stuck(s, now_ns))
            session_send_back(s);
    }
    sessions_trim_tokens(x);
    LIST_FOREACH(node, &x->exports)
        tokens_tick(&container_of(node, struct export, link)->tokens, now_ns);
    grace_tick(x);
    fences_tick(x);
    LIST_FOREACH(node, &x->exports) {
        struct export *e = container_of(node, struct export, link);

        if (!e->grace.orphans_done && grace_is_over(e))
            orphans_look(e);
    }
    delayed_unlink_tick(x);
    reply_log_tick(x);
}

int sessions_new(struct exportd *x)
{
    struct sessions *all = calloc(1, sizeof(*all));

    if (all == NULL)
        return -ENOMEM;
    all->x = x;
    fences_init(&all->fences);
    delayed_unlinks_init(&all->delayed);
    token_turns_init(&all->turns);
    x->sessions = all;
    grace_init(x);
    return 0;
}

bool sessions_are_idle(const struct exportd *x)
{
    return token_turns_are_over(&x->sessions->turns);
}

void sessions_stop(struct exportd *x)
{
    struct session *s, *tmp;

    HASH_ITER(hh, x->sessions->table.by_id, s, tmp)
    {
        session_events_end(s, -EBUSY);
        session_parked_end(s, -EBUSY);
    }
}

void sessions_free(struct exportd *x)
{
    struct session *s, *tmp;
    struct open_file *f, *next;

    HASH_ITER(hh, x->sessions->table.by_id, s, tmp)
    {
        HASH_ITER(hh, s->refs, f, next)
        open_file_free(&s->refs, f);
        HASH_ITER(hh, s->cuts, f, next)
        open_file_free(&s->cuts, f);
        session_free(x, s);
    }
    awaited_free_all(x);
    LIST_FOREACH(node, &x->exports) {
        struct export *e = container_of(node, struct export, link);

        HASH_ITER(hh, e->opens, f, next)
        open_file_free(&e->opens, f);
    }
}
