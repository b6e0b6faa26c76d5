/*
 * session_tokens.h - sessions and their tokens, for checks.
 */
#ifndef ROZO_EXPORTD_SESSIONS_SESSION_TOKENS_H
#define ROZO_EXPORTD_SESSIONS_SESSION_TOKENS_H

#include <stdbool.h>
#include <stdint.h>

struct exportd;
struct spans;

/* A token that a session holds; see tokens.h. */
struct exportd_token {
    uint32_t export_id;
    uint64_t session, ino;
    unsigned mode; /* of Rozo__TokenMode; not NONE */
    const struct spans
        *ranges; /* of RANGES, to read 1, to write 2; borrowed while it is told */
};
/** For checks: calls fn for each token of each session, in no order. */
void exportd_each_token(const struct exportd *x,
                        void (*fn)(void *arg, const struct exportd_token *token),
                        void *arg);
/** For checks: true if a session with this id is open. */
bool exportd_has_session(const struct exportd *x, uint64_t id);

#endif
