/*
 * md_lock.c - handlers of MD_LOCK*.
 *
 * In:     decoded messages.
 * Out:    session_locks.c, answers.
 * Keeps:  I10: no lock is granted while sessions from before this start may still claim
 *         theirs, nor while another session has the token of the inode's locks.
 */
#include <errno.h>

#include "exportd/cluster/answer.h"
#include "exportd/cluster/exportd_state.h"
#include "exportd/requests/requests.h"
#include "exportd/sessions/session.h"
#include "exportd/sessions/session_locks.h"
#include "exportd/sessions/session_store.h"
#include "exportd/sessions/token_wait.h"

/* Has other sessions give back the token of the inode's locks: they would go on to say
 * that there are none. Returns as md_op_wants() does. */
static int others_hear_of_locks(struct md_op *op, uint64_t ino)
{
    const struct token_want want = { .ino = token_of_locks(ino), .kind = WANT_CHANGE };

    return md_op_wants(op, &want, 1, ASKED_WAITS);
}

/* Returns the grant of the token of the inode's locks; 0: others have locks, or the
 * session gets none. */
static uint64_t lock_token_grant(struct md_op *op, uint64_t ino)
{
    struct inode in;

    if (token_is_of_locks(ino) || namespace_getattr(op->ns, ino, &in) != 0 ||
        locks_are_of_others(&op->export->locks, ino, LOCK_POSIX, &op->session->locks) ||
        md_op_grant(op, token_of_locks(ino), TOKEN_SHARED) != ROZO__TOKEN_MODE__SHARED)
        return 0;
    return op->grant;
}

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
    if (rc == 0 && lock.kind == LOCK_POSIX)
        rc = others_hear_of_locks(op, lock.ino);
    if (rc != 0)
        return rc;
    return req->waiter != 0 ? session_lock_wait(s, &lock, req->waiter)
                            : locks_set(&s->export->locks, &lock);
}

int md_lock_test(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdLockTestReq *req = (const Rozo__MdLockTestReq *)msg;
    Rozo__MdLockTestResp resp = ROZO__MD_LOCK_TEST_RESP__INIT;
    Rozo__Lock found;
    struct lock lock, in_way;
    int rc = session_lock_decode(op->session, req->lock, &lock);

    if (rc == 0 && !grace_is_over(op->export))
        rc = -EBUSY;
    if (rc != 0)
        return rc;
    if (locks_test(&op->export->locks, &lock, &in_way)) {
        session_lock_encode(&in_way, &found);
        if (in_way.holder != &op->session->locks)
            found.pid = 0;
        resp.lock = &found;
    }
    if (req->wants_token && lock.kind == LOCK_POSIX)
        resp.grant = lock_token_grant(op, lock.ino);
    return md_op_pack(op, &resp.base);
}

int md_lock_cancel(struct md_op *op, const ProtobufCMessage *msg)
{
    const Rozo__MdLockCancelReq *req = (const Rozo__MdLockCancelReq *)msg;

    return session_lock_cancel(op->session, req->waiter);
}
