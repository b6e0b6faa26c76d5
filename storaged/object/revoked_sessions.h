/*
 * revoked_sessions.h - the sessions that have ended: storages refuse to change files for
 * them.
 *
 * The healer's thread sets the list from the cluster map; all loops look sessions up. No
 * locks: an entry keeps its slot until it leaves the list.
 */
#ifndef ROZO_STORAGED_OBJECT_REVOKED_SESSIONS_H
#define ROZO_STORAGED_OBJECT_REVOKED_SESSIONS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REVOKED_MAX = 4096, REVOKED_SLOTS = 2 * REVOKED_MAX };

/* Empty when all zero. */
struct revoked_sessions {
    _Atomic uint64_t slots[REVOKED_SLOTS];
};

/** True if `session` can be stored: it is neither 0 nor UINT64_MAX. */
bool revoked_sessions_may_have(uint64_t session);
/**
 * Replaces the list. n: at most REVOKED_MAX; each session passes
 * revoked_sessions_may_have(). One thread calls this. Returns 0 or -ENOMEM.
 */
int revoked_sessions_set(struct revoked_sessions *r, const uint64_t *sessions, size_t n);
/** True if the session is in the list. Any thread. */
bool revoked_sessions_have(const struct revoked_sessions *r, uint64_t session);

#endif
