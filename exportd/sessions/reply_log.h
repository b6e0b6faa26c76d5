/*
 * reply_log.h - requests that were done, kept over restarts of exportd.
 */
#ifndef ROZO_EXPORTD_SESSIONS_REPLY_LOG_H
#define ROZO_EXPORTD_SESSIONS_REPLY_LOG_H

#include "exportd/cluster/exportd_state.h"
#include "exportd/sessions/reply_cache.h"

/** In the batch of its changes. made_ino: what a CREATE made. */
void reply_log_put(struct session *s, const struct reply_to *to, uint64_t made_ino);
/**
 * Into s->before, what is kept for the session of this id: its own, when it comes back, or the one that its client had
 * before. -ENOMEM, -EIO. Scans the store.
 */
int reply_log_load(struct session *s, uint64_t id);
/** What is kept for sessions that are over goes. */
void reply_log_tick(struct exportd *x);

#endif
