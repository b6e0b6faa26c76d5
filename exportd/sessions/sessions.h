/*
 * sessions.h - the state of this room: all sessions, and what belongs to them together.
 */
#ifndef ROZO_EXPORTD_SESSIONS_SESSIONS_H
#define ROZO_EXPORTD_SESSIONS_SESSIONS_H

#include "exportd/sessions/delayed_unlink.h"
#include "exportd/sessions/reply_log.h"
#include "exportd/sessions/session.h"
#include "exportd/sessions/session_fence.h"
#include "exportd/sessions/session_store.h"
#include "exportd/sessions/token_share.h"
#include "exportd/sessions/token_wait.h"

/* Each member is written only by the part whose header declares its type. */
struct sessions {
    struct exportd *x; /* borrowed */
    struct session_table table;
    struct grace grace;
    struct fences fences;
    struct delayed_unlinks delayed;
    struct reply_search reply_search;
    struct token_shares shares;
    struct token_turns turns;
};

#endif
