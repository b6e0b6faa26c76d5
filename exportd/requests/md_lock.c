/*
 * md_lock.c - handlers of MD_LOCK*.
 *
 * In:     decoded messages.
 * Out:    session_locks.c, answers.
 * Keeps:  I10: no lock is granted while sessions from before this start may still claim
 *         theirs.
 */
#include <errno.h>

#include "exportd/cluster/answer.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/requests/requests.h"
#include "exportd/sessions/session.h"
#include "exportd/sessions/session_locks.h"
#include "exportd/sessions/session_store.h"

int md_lock(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdLockReq *req = (const Rozo__MdLockReq *)msg;
    struct session *s = op->session;
    struct inode in;
    struct lock lock;
    int rc = session_lock_decode(s, req->lock, &lock);

    if (rc != 0)
        return rc;
    if (lock.mode == LOCK_NONE)
        return locks_set(&s->export->locks, &lock);
    if (!grace_is_over(op->export))
        return -EBUSY;
    rc = namespace_getattr(op->ns, lock.ino, &in);
    if (rc != 0)
        return rc;
    return req->waiter != 0 ? session_lock_wait(s, &lock, req->waiter)
                            : locks_set(&s->export->locks, &lock);
}

int md_lock_test(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdLockTestReq *req = (const Rozo__MdLockTestReq *)msg;
    Rozo__MdLockTestResp resp = ROZO__MD_LOCK_TEST_RESP__INIT;
    Rozo__Lock found = ROZO__LOCK__INIT;
    struct lock lock, in_way;
    int rc = session_lock_decode(op->session, req->lock, &lock);

    if (rc == 0 && !grace_is_over(op->export))
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
    return md_op_pack(op, &resp.base);
}

int md_lock_cancel(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdLockCancelReq *req = (const Rozo__MdLockCancelReq *)msg;

    return session_lock_cancel(op->session, req->waiter);
}
