/*
 * session_store.h - sessions that outlive a restart of exportd, and its grace period.
 */
#ifndef ROZO_EXPORTD_SESSIONS_SESSION_STORE_H
#define ROZO_EXPORTD_SESSIONS_SESSION_STORE_H

#include "exportd/cluster/exportd_state.h"

/** What the store has. */
int session_store_load(struct exportd *x, struct err *err);
/** Everything is loaded, x->n_starts still that of before. */
void grace_begin(struct exportd *x);
void grace_tick(struct exportd *x);
/** Something that it waits for has happened. */
void grace_check(struct exportd *x);
/** Those from before our start are back, or had the time to and can write no more. */
bool grace_is_over(const struct exportd *x);
/** Who starts after us is to wait for it; or not. Put into the store. */
void session_store_put(struct session *s);
void session_store_delete(struct exportd *x, uint64_t id);
/** Was it open at our start, and may it still come back? */
bool session_is_awaited(struct exportd *x, const struct export *e, uint64_t id);
/** It has, with all that it holds; or it has said good-bye. False: nobody waited for it. */
bool session_came_back(struct exportd *x, uint64_t id);
/** It will not. */
void awaited_is_dead(struct exportd *x, uint64_t id);
unsigned sessions_awaited(const struct exportd *x);
void awaited_free_all(struct exportd *x);

#endif
