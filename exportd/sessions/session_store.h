/*
 * session_store.h - sessions that outlive a restart of exportd, and its grace period.
 */
#ifndef ROZO_EXPORTD_SESSIONS_SESSION_STORE_H
#define ROZO_EXPORTD_SESSIONS_SESSION_STORE_H

#include "exportd/cluster/exportd_state.h"

/** Loads the records of sessions from the store. */
int session_store_load(struct exportd *x, struct err *err);
/**
 * Begins the grace, after everything was loaded; x->n_starts must still be the old one.
 */
void grace_begin(struct exportd *x);
void grace_tick(struct exportd *x);
/** Ends the current phase of the grace if nothing is awaited any more. */
void grace_check(struct exportd *x);
/**
 * Returns true if the sessions from before this start are back, or have ended and can
 * write no more.
 */
bool grace_is_over(const struct exportd *x);
/**
 * Puts the record of an open session, by which the next start waits for it; or deletes
 * it.
 */
void session_store_put(struct session *s);
void session_store_delete(struct exportd *x, uint64_t id);
/** Returns true if the session was open at the start and may still come back. */
bool session_is_awaited(struct exportd *x, const struct export *e, uint64_t id);
/**
 * Notes that a session came back with all it holds, or closed. Returns false if it was
 * not awaited.
 */
bool session_came_back(struct exportd *x, uint64_t id);
/** Notes that a session will not come back. */
void awaited_is_dead(struct exportd *x, uint64_t id);
unsigned sessions_awaited(const struct exportd *x);
void awaited_free_all(struct exportd *x);

#endif
