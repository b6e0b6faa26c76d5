/*
 * session_fence.h - fences: sessions that ended without closing, until storages refuse
 * them.
 */
#ifndef ROZO_EXPORTD_SESSIONS_SESSION_FENCE_H
#define ROZO_EXPORTD_SESSIONS_SESSION_FENCE_H

#include "exportd/cluster/exportd_state.h"

/* Fences: sessions that ended without closing. */
struct fences {
    struct list_node list; /* owned; oldest first */
    uint64_t last;         /* number of the newest */
    unsigned n, n_unconfirmed;
    uint64_t log_ns; /* ns, monotonic; earliest next log line about them */
};

void fences_init(struct fences *fences);
/** Loads the fences from the store. */
int fences_load(struct exportd *x, struct err *err);
/**
 * Ends a session: deletes its record and stores a fence. What it holds is given away once
 * enough storages have confirmed. in_grace: the grace of the export lasts until then.
 * Returns false if there is no room now.
 */
bool fence_add(struct exportd *x, uint32_t export_id, uint64_t session, bool in_grace);
/**
 * Gives away what ended sessions hold, where possible. Called when a storage has
 * confirmed a map or is down.
 */
void fences_check(struct exportd *x);
void fences_tick(struct exportd *x);
/**
 * Returns true while the session's client may not know of its end, and may repeat its
 * requests.
 */
bool fence_is_young(const struct exportd *x, uint64_t session);
/** Lists the sessions for the newest map and returns their number. */
size_t fences_list(const struct exportd *x, uint64_t sessions[FENCES_MAX]);
/** Voids all confirmations: storages took the maps so far for old ones. */
void fences_resend(struct exportd *x);
void fences_free(struct exportd *x);

#endif
