/*
 * session_locks.c - file locks of a session, and the locks that it waits for.
 *
 * In:     MD_LOCK*, decoded; locks.c when a wait ends; the end of a session.
 * Out:    locks.h; events for sessions that waited.
 * Keeps:  I9: waits are counted.
 */
#include "exportd/sessions/session_locks.h"

#include <assert.h>
#include <errno.h>

#include "exportd/cluster/exportd_state.h"
#include "exportd/sessions/session.h"
#include "exportd/sessions/session_events.h"

enum { LOCK_WAITS_MAX = 1 << 16 }; /* waits of one session */

/* Lock that a session waits for. */
struct lock_call {
    struct lock_wait wait;
    struct session *session; /* borrowed */
    uint64_t waiter;         /* key */
    UT_hash_handle hh;
};

int session_lock_decode(struct session *s, const Rozo__Lock *msg, struct lock *out)
{
    if (msg == NULL || msg->from >= msg->to || (unsigned)msg->mode > LOCK_WRITE ||
        (msg->flock && (msg->from != 0 || msg->to != SPAN_END)))
        return -EINVAL;
    *out = (struct lock){
        .ino = msg->ino,
        .kind = msg->flock ? LOCK_FLOCK : LOCK_POSIX,
        .holder = &s->locks,
        .owner = msg->owner,
        .pid = msg->pid,
        .from = msg->from,
        .to = msg->to,
        .mode = (enum lock_mode)msg->mode,
    };
    return 0;
}

void session_lock_encode(const struct lock *lock, Rozo__Lock *msg)
{
    rozo__lock__init(msg);
    msg->ino = lock->ino;
    msg->flock = lock->kind == LOCK_FLOCK;
    msg->owner = lock->owner;
    msg->pid = lock->pid;
    msg->from = lock->from;
    msg->to = lock->to;
    msg->mode = (Rozo__Lock__Mode)lock->mode;
}

static void lock_call_free(struct lock_call *c)
{
    assert(hash_find(c->session->lock_calls, c->waiter) == c);
    HASH_DEL(c->session->lock_calls, c);
    free(c);
}

static void on_lock_granted(struct lock_wait *wait, int rc)
{
    struct lock_call *c = container_of(wait, struct lock_call, wait);
    struct session *s = c->session;
    uint64_t waiter = c->waiter;

    lock_call_free(c);
    session_tell_lock(s, waiter, rc);
}

int session_lock_wait(struct session *s, const struct lock *lock, uint64_t waiter)
{
    struct lock_call *c;
    int rc;

    if (hash_find(s->lock_calls, waiter) != NULL)
        return -EINPROGRESS; /* the client repeats its request, to be sure */
    c = HASH_COUNT(s->lock_calls) < LOCK_WAITS_MAX ? calloc(1, sizeof(*c)) : NULL;
    if (c == NULL)
        return -ENOLCK;
    c->session = s;
    c->waiter = waiter;
    c->wait = (struct lock_wait){ .lock = *lock, .granted = on_lock_granted };
    hash_add(s->lock_calls, waiter, c);
    rc = locks_wait(&s->export->locks, &c->wait);
    if (rc != -EINPROGRESS)
        lock_call_free(c);
    return rc;
}

int session_lock_cancel(struct session *s, uint64_t waiter)
{
    struct lock_call *c = hash_find(s->lock_calls, waiter);

    if (c == NULL)
        return -ENOENT;
    locks_cancel(&s->export->locks, &c->wait);
    lock_call_free(c);
    return 0;
}

int session_claim_lock(struct session *s, const Rozo__Lock *msg)
{
    struct lock lock;
    int rc = session_lock_decode(s, msg, &lock);

    return rc == 0 ? locks_set(&s->export->locks, &lock) : rc;
}

void session_end_lock_waits(struct session *s)
{
    struct lock_call *c, *next;

    HASH_ITER(hh, s->lock_calls, c, next)
    {
        locks_cancel(&s->export->locks, &c->wait);
        lock_call_free(c);
    }
}

void session_drop_locks(struct session *s)
{
    session_end_lock_waits(s);
    lock_holder_end(&s->export->locks, &s->locks);
}
