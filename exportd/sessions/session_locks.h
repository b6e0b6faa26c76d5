/*
 * session_locks.h - file locks of a session.
 */
#ifndef ROZO_EXPORTD_SESSIONS_SESSION_LOCKS_H
#define ROZO_EXPORTD_SESSIONS_SESSION_LOCKS_H

#include "exportd/cluster/exportd_state.h"

/**
 * Decodes the lock of a message, with the session as its holder. Returns 0 or -EINVAL.
 */
int session_lock_decode(struct session *s, const Rozo__Lock *msg, struct lock *out);
/** Encodes a lock for a message. */
void session_lock_encode(const struct lock *lock, Rozo__Lock *msg);
/**
 * Takes the lock, or waits for it: -EINPROGRESS, and the session gets an event with this
 * waiter later. -ENOLCK.
 */
int session_lock_wait(struct session *s, const struct lock *lock, uint64_t waiter);
/** Ends a wait. -ENOENT: there is none with this waiter. */
int session_lock_cancel(struct session *s, uint64_t waiter);
/**
 * Takes a lock that the session held before this start. -EAGAIN: another session has it.
 */
int session_claim_lock(struct session *s, const Rozo__Lock *msg);
void session_end_lock_waits(struct session *s);
/** Ends all waits of the session and releases its locks. */
void session_drop_locks(struct session *s);

#endif
