/*
 * token_wait.h - tokens of sessions, and calls that wait for them.
 */
#ifndef ROZO_EXPORTD_SESSIONS_TOKEN_WAIT_H
#define ROZO_EXPORTD_SESSIONS_TOKEN_WAIT_H

#include "exportd/cluster/answer.h"

enum {
    PARKED_MAX = 1 << 16, /* calls that wait for tokens; more are told BUSY */
    SESSION_PARKED_MAX = 1 << 12,
};

/* A call that must wait, of a session that is itself asked for a token there: giving it back may need that the call ends. */
enum when_asked {
    ASKED_WAITS,  /* it does not */
    ASKED_PASSES, /* the call is part of giving back */
    ASKED_FAILS,  /* the call ends with -ERESTART: its kernel holds locks until then */
};

/** Nothing of others can be in the way of this call, and nothing is asked of its session. */
bool md_op_is_alone(const struct md_op *op);
/**
 * Before anything is changed: may the call do all this now? 0: go on. -EINPROGRESS: it was taken, and runs again from
 * its start when it may. -ERESTART, -EBUSY, -ENOMEM: the answer.
 */
int md_op_wants(struct md_op *op, const struct token_want *wants, unsigned n,
                enum when_asked when_asked);
/** What the session holds of it after this answer; given when nobody else wants it. */
Rozo__TokenMode md_op_grant(struct md_op *op, uint64_t ino, enum token_mode mode);
/** It is given: md_op_wants() has asked for as much. call: see MdTokenReq. */
Rozo__TokenMode md_op_grant_asked(struct md_op *op, uint64_t ino, enum token_mode mode,
                                  uint64_t call);
/** The same, or, where others use the file elsewhere, of a range that has *range in it. *range: then that; to 0: all of it. */
Rozo__TokenMode md_op_grant_range(struct md_op *op, uint64_t ino, enum token_mode mode,
                                  uint64_t call, struct token_range *range);
/** Hooks of token tables. */
void session_recall(struct token_holder *holder, const struct token_recall *recall);
void session_wake(struct token_waiter *waiter);
/**
 * It says what it holds; nothing else is left to it. fresh: it was made just now, in the grace, and is believed as long
 * as nobody else is in the way. False: it holds nothing. *grant: what it has is of this serial.
 */
bool session_claim_tokens(struct session *s, const Rozo__MdOpenSessionReq *req,
                          bool fresh, uint64_t *grant);
/** What changes names and waits is not done, and to be asked again (RETRY). */
void session_send_back(struct session *s);
/** Its calls that wait are answered with rc. */
void session_parked_end(struct session *s, int rc);
/** It waits for no token and holds none any more. */
void session_drop_tokens(struct session *s);
void on_tokens_turn(struct env_task *task);

md_handler md_give_back;

#endif
