/*
 * session_events.h - messages that a session gets without having asked.
 */
#ifndef ROZO_EXPORTD_SESSIONS_SESSION_EVENTS_H
#define ROZO_EXPORTD_SESSIONS_SESSION_EVENTS_H

#include "exportd/cluster/answer.h"

enum { EVENTS_AN_ANSWER = 256 };

/** Of a lock that it has waited for. */
void session_tell_lock(struct session *s, uint64_t waiter, int rc);
/** Of a token that it is asked for; session_tell_now() follows, so that several go together. */
void session_tell_recall(struct session *s, const struct token_recall *recall);
void session_tell_now(struct session *s);
/** How many tokens it may hold from now on. */
void session_tell_tokens_max(struct session *s, uint32_t max);
/** A call that has been held long enough is answered. */
void session_events_tick(struct session *s);
/** A call that is held is answered with rc. Events are forgotten, unless rc is -EBUSY. */
void session_events_end(struct session *s, int rc);

md_handler md_events;

#endif
