/*
 * reply_log.h - records of executed requests, kept over restarts of exportd.
 */
#ifndef ROZO_EXPORTD_SESSIONS_REPLY_LOG_H
#define ROZO_EXPORTD_SESSIONS_REPLY_LOG_H

#include "exportd/cluster/exportd_state.h"
#include "exportd/sessions/reply_cache.h"

/* Search for records of ended sessions, or the pause before the next. */
struct reply_search {
    uint64_t cursor;  /* session */
    uint64_t next_ns; /* ns, monotonic */
};

/**
 * Puts a record into the batch of the request's changes. made_ino: inode that a CREATE
 * made.
 */
void reply_log_put(struct session *s, const struct reply_to *to, uint64_t made_ino);
/**
 * Loads into s->before the records of session `id`: the same session that comes back, or
 * the former session of its client. Returns 0, -ENOMEM or -EIO. Scans the store.
 */
int reply_log_load(struct session *s, uint64_t id);
/** Deletes the records of ended sessions. */
void reply_log_tick(struct exportd *x);

#endif
