/*
 * session_fence.h - sessions that ended without closing, until storages know it.
 */
#ifndef ROZO_EXPORTD_SESSIONS_SESSION_FENCE_H
#define ROZO_EXPORTD_SESSIONS_SESSION_FENCE_H

#include "exportd/cluster/exportd_state.h"

/** What the store has. */
int fences_load(struct exportd *x, struct err *err);
/**
 * This session is over: the record of it that is remembered goes, and when enough storages know of that, so does
 * what it holds here. in_grace: the grace lasts until then. False: there is no room now.
 */
bool fence_add(struct exportd *x, uint32_t export_id, uint64_t session, bool in_grace);
/** A storage has confirmed a map, or is down: may somebody's holdings go? */
void fences_check(struct exportd *x);
void fences_tick(struct exportd *x);
/** May its client, which does not know that it is over, still come and repeat what it asked in it? */
bool fence_is_young(const struct exportd *x, uint64_t session);
/** Those of the newest map; how many. */
size_t fences_list(const struct exportd *x, uint64_t sessions[FENCES_MAX]);
/** Maps so far count for nothing: storages took them for old ones. */
void fences_resend(struct exportd *x);
void fences_free(struct exportd *x);

#endif
