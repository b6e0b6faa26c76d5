/*
 * session_events.h - events: messages that a session gets without a request.
 */
#ifndef ROZO_EXPORTD_SESSIONS_SESSION_EVENTS_H
#define ROZO_EXPORTD_SESSIONS_SESSION_EVENTS_H

#include "exportd/cluster/answer.h"

enum { EVENTS_AN_ANSWER = 256 };

/** Adds an event: the end of a wait for a lock. */
void session_tell_lock(struct session *s, uint64_t waiter, int rc);
/**
 * Adds an event: a recall. session_tell_now() must follow, so that several go together.
 */
void session_tell_recall(struct session *s, const struct token_recall *recall);
void session_tell_now(struct session *s);
/** Changes the number of tokens that the session may hold, and sends it. */
void session_tell_tokens_max(struct session *s, uint32_t max);
/** Answers a call that has been held long enough. */
void session_events_tick(struct session *s);
/** Answers a held call with rc. Drops the events, unless rc is -EBUSY. */
void session_events_end(struct session *s, int rc);

md_handler md_events;

#endif
