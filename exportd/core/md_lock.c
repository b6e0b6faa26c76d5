/*
 * md_lock.c - locks: MD_LOCK*.
 *
 * In:     decoded messages; locks.c when a wait is over.
 * Out:    locks.h; answers; events for those who have waited.
 * Keeps:  I10: while those from before our start may claim their locks, nobody gets one. I9: waits are counted.
 */
#include <errno.h>

#include "exportd/core/state.h"

enum { LOCK_WAITS_MAX = 1 << 16 }; /* of one session */

/* A lock that a session waits for. */
struct lock_call {
    struct lock_wait wait;
    struct session *session; /* borrowed */
    uint64_t waiter;         /* key */
    UT_hash_handle hh;
};

/* ---- locks ---- */

static int lock_decode(struct session *s, const Rozo__Lock *msg, struct lock *out)
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

static void lock_call_free(struct lock_call *c)
{
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

static struct lock_call *lock_call_find(struct session *s, uint64_t waiter)
{
    struct lock_call *c;

    HASH_FIND(hh, s->lock_calls, &waiter, sizeof(waiter), c);
    return c;
}

static int lock_wait(struct session *s, const struct lock *lock, uint64_t waiter)
{
    struct lock_call *c;
    int rc;

    if (lock_call_find(s, waiter) != NULL)
        return -EINPROGRESS; /* it asks once more, to be sure */
    c = HASH_COUNT(s->lock_calls) < LOCK_WAITS_MAX ? calloc(1, sizeof(*c)) : NULL;
    if (c == NULL)
        return -ENOLCK;
    c->session = s;
    c->waiter = waiter;
    c->wait = (struct lock_wait){ .lock = *lock, .granted = on_lock_granted };
    HASH_ADD(hh, s->lock_calls, waiter, sizeof(c->waiter), c);
    rc = locks_wait(&s->export->locks, &c->wait);
    if (rc != -EINPROGRESS)
        lock_call_free(c);
    return rc;
}

int md_lock(struct op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdLockReq *req = (const Rozo__MdLockReq *)msg;
    struct session *s = op->session;
    struct inode in;
    struct lock lock;
    int rc = lock_decode(s, req->lock, &lock);

    if (rc != 0)
        return rc;
    if (lock.mode == LOCK_NONE)
        return locks_set(&s->export->locks, &lock);
    if (!grace_is_over(op->x))
        return -EBUSY;
    rc = fs_getattr(op->fs, lock.ino, &in);
    if (rc != 0)
        return rc;
    return req->waiter != 0 ? lock_wait(s, &lock, req->waiter)
                            : locks_set(&s->export->locks, &lock);
}

int md_lock_test(struct op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdLockTestReq *req = (const Rozo__MdLockTestReq *)msg;
    Rozo__MdLockTestResp resp = ROZO__MD_LOCK_TEST_RESP__INIT;
    Rozo__Lock found = ROZO__LOCK__INIT;
    struct lock lock, in_way;
    int rc = lock_decode(op->session, req->lock, &lock);

    if (rc == 0 && !grace_is_over(op->x))
        rc = -EBUSY;
    if (rc != 0)
        return rc;
    if (locks_test(&op->export->locks, &lock, &in_way)) {
        found.ino = in_way.ino;
        found.flock = in_way.kind == LOCK_FLOCK;
        found.owner = in_way.owner;
        found.pid = in_way.holder == &op->session->locks ? in_way.pid : 0;
        found.from = in_way.from;
        found.to = in_way.to;
        found.mode = (Rozo__Lock__Mode)in_way.mode;
        resp.lock = &found;
    }
    return op_pack(op, &resp.base);
}

int md_lock_cancel(struct op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdLockCancelReq *req = (const Rozo__MdLockCancelReq *)msg;
    struct lock_call *c = lock_call_find(op->session, req->waiter);

    if (c == NULL)
        return -ENOENT;
    locks_cancel(&op->export->locks, &c->wait);
    lock_call_free(c);
    return 0;
}

int session_claim_lock(struct session *s, const Rozo__Lock *msg)
{
    struct lock lock;
    int rc = lock_decode(s, msg, &lock);

    return rc == 0 ? locks_set(&s->export->locks, &lock) : rc;
}

void session_drop_locks(struct session *s)
{
    struct lock_call *c, *next;

    HASH_ITER(hh, s->lock_calls, c, next)
    {
        locks_cancel(&s->export->locks, &c->wait);
        lock_call_free(c);
    }
    lock_holder_end(&s->export->locks, &s->locks);
}
