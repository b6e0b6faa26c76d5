/*
 * session_store.h - sessions that outlive a restart of exportd, and its grace period.
 */
#ifndef ROZO_EXPORTD_SESSIONS_SESSION_STORE_H
#define ROZO_EXPORTD_SESSIONS_SESSION_STORE_H

#include "exportd/cluster/exportd_state.h"

/*
 * Grace periods after a start: what is common to those of all exports. Each export waits
 * for its own sessions and fences (struct export_grace).
 */
struct grace {
    uint64_t ends_ns;         /* ns, monotonic; end of the time to come back */
    uint32_t lease_before_ms; /* lease that mounts had before this start */
    struct awaited *awaited;  /* owned; sessions that have not come back yet */
    struct store_wait wait;   /* until their end is stable */
};

/** Sets the start of exportd as the end of the grace. */
void grace_init(struct exportd *x);
/** Loads the records of sessions from the store. */
int session_store_load(struct exportd *x, struct err *err);
/**
 * Begins the grace of all exports, after everything was loaded and before the number of
 * the start changes.
 */
void grace_begin(struct exportd *x);
void grace_tick(struct exportd *x);
/** Gives sessions so much more time to come back. */
void grace_extend(struct exportd *x, uint64_t ns);
/** Returns true if the time in which sessions may come back has passed. */
bool grace_time_is_over(const struct exportd *x);
/** Ends the current phase of the export's grace if nothing is awaited any more. */
void grace_check(struct export *e);
/**
 * Returns true if the export's sessions from before this start are back, or have ended
 * and can write no more.
 */
bool grace_is_over(const struct export *e);
/** Returns true if the grace of all exports is over. */
bool graces_are_over(const struct exportd *x);
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
