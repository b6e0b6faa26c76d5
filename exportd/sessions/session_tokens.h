/*
 * session_tokens.h - the tokens of sessions, for checks.
 */
#ifndef ROZO_EXPORTD_SESSIONS_SESSION_TOKENS_H
#define ROZO_EXPORTD_SESSIONS_SESSION_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

struct exportd;
struct range_map;

/* Token that a session holds; see tokens.h. */
struct exportd_token {
    uint32_t export_id;
    uint64_t session, ino;
    unsigned mode; /* Rozo__TokenMode, not NONE */
    /* for RANGES: values of enum token_access; borrowed during the callback */
    const struct range_map *ranges;
};
/** Calls fn for each token of each session, in no order. For checks. */
void exportd_each_token(const struct exportd *x,
                        void (*fn)(void *arg, const struct exportd_token *token),
                        void *arg);
/** Returns true if a session with this id is open. For checks. */
bool exportd_has_session(const struct exportd *x, uint64_t id);

#endif
