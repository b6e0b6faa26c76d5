/*
 * session_takeover.c - sessions of dead processes that others continue.
 *
 * In:     MD_OPEN_SESSION with `takes_over`; session_fence.c when storages refuse the
 *         writes of the dead process; the tick.
 * Out:    the session under a new id, with all that it held; checks of files that the
 *         dead process may have left half written.
 * Keeps:  I5: the session continues only when no late write of the dead process can
 *         succeed. Until then it holds everything, and exportd gives nothing to others.
 *         A client that repeats its request gets the same session.
 */
#include "exportd/sessions/session_takeover.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "exportd/cluster/answer.h"
#include "exportd/sessions/session.h"
#include "exportd/sessions/session_events.h"
#include "exportd/sessions/session_locks.h"
#include "exportd/sessions/sessions.h"

/* Returns true if this client has the session already: its request came once more. */
static bool has_it(const struct session *s, uint64_t id, const char *client)
{
    return s->id != id && !s->ends && strcmp(s->client, client) == 0;
}

/* Ends what belonged to the dead process alone, and gives the session a new id. Changes
 * that it had sent are known by their records, as after a restart. */
static int session_begin_anew(struct session *s)
{
    int rc = reply_log_load(s, s->id);

    if (rc != 0)
        return rc;
    reply_cache_free(&s->replies);
    reply_cache_init(&s->replies);

    session_end_lock_waits(s);
    session_abandon_files(s);
    session_take_new_id(s);
    s->n_done = 0; /* records of requests are those of the id */
    s->ends = s->has_heir = s->is_fenced = false;
    return 0;
}

int session_take_over(struct exportd *x, struct export *e, uint64_t id,
                      const char *client, bool read_only, struct session **out)
{
    struct session *s = session_find_continued(x, id);
    int rc;

    if (s == NULL || s->export != e)
        return -ROZO_ENO_SESSION;
    if (!has_it(s, id, client)) {
        session_begin_takeover(s);
        if (!s->is_fenced)
            return -EBUSY;
        rc = session_begin_anew(s);
        if (rc != 0)
            return rc;
        log_info("session %016llx: %.*s continues session %016llx of a process that died",
                 (unsigned long long)s->id, MESSAGE_MAX, client,
                 (unsigned long long)s->id_before);
    }
    snprintf(s->client, sizeof(s->client), "%s", client);
    s->read_only = read_only;
    session_store_put(s);
    session_touch(x, s);
    *out = s;
    return 0;
}

/* ---- what the session holds ---- */

static void add_lock(void *arg, const struct lock *lock)
{
    struct held_messages *h = arg;
    Rozo__Lock *to = &h->locks[h->n_locks];

    session_lock_encode(lock, to);
    h->lock_list[h->n_locks++] = to;
}

static void count_lock(void *arg, const struct lock *lock)
{
    (void)lock;
    ++*(size_t *)arg;
}

void held_messages_free(struct held_messages *h)
{
    free(h->inodes);
    free(h->inode_list);
    free(h->tokens);
    free(h->locks);
    free(h->lock_list);
}

int held_messages_make(struct session *s, struct held_messages *h)
{
    size_t n_locks = 0, n_inodes = HASH_COUNT(s->refs);
    struct open_file *f, *next;

    lock_holder_each(&s->locks, count_lock, &n_locks);
    *h = (struct held_messages){
        .inodes = calloc(n_inodes + 1, sizeof(*h->inodes)),
        .inode_list = calloc(n_inodes + 1, sizeof(*h->inode_list)),
        .tokens = calloc(s->tokens.n + 1, sizeof(*h->tokens)),
        .locks = calloc(n_locks + 1, sizeof(*h->locks)),
        .lock_list = calloc(n_locks + 1, sizeof(*h->lock_list)),
    };
    if (h->inodes == NULL || h->inode_list == NULL || h->tokens == NULL ||
        h->locks == NULL || h->lock_list == NULL) {
        held_messages_free(h);
        return -ENOMEM;
    }
    HASH_ITER(hh, s->refs, f, next)
    {
        rozo__held_inode__init(&h->inodes[h->n_inodes]);
        h->inodes[h->n_inodes].ino = f->ino;
        h->inodes[h->n_inodes].n_references = f->n_refs;
        h->inode_list[h->n_inodes] = &h->inodes[h->n_inodes];
        h->n_inodes++;
    }
    h->n_shared = token_holder_list(&s->tokens, h->tokens);
    lock_holder_each(&s->locks, add_lock, h);
    return 0;
}
