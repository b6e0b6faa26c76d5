/*
 * token_wait.h - tokens of sessions, and calls that wait for them.
 */
#ifndef ROZO_EXPORTD_SESSIONS_TOKEN_WAIT_H
#define ROZO_EXPORTD_SESSIONS_TOKEN_WAIT_H

#include "common/base/err.h"
#include "exportd/cluster/answer.h"

enum {
    PARKED_MAX = 1 << 16, /* calls that wait for tokens; more are answered BUSY */
    SESSION_PARKED_MAX = 1 << 12,
};

/*
 * Treatment of a call that must wait while its session is itself asked for a token there:
 * giving that back may need the end of the call.
 */
enum when_asked {
    ASKED_WAITS,  /* wait: giving back does not need the end of the call */
    ASKED_PASSES, /* go on: the call is part of giving back */
    ASKED_FAILS,  /* end with -ROZO_ERETRY: the client's kernel holds locks until then */
};

/* Calls and sessions that have something to do in the next turn of the loop. */
struct token_turns {
    struct list_node ready; /* parked calls that may be able to go on */
    struct list_node news;  /* sessions with new recalls */
    struct env_task task;   /* works through both */
    unsigned n_parked;      /* calls that wait */
};

void token_turns_init(struct token_turns *turns);
/** Returns true if nothing is left for the next turn. */
bool token_turns_are_over(const struct token_turns *turns);
/**
 * Returns true if nothing of others can be in the way of this call, and its session has
 * no recall.
 */
bool md_op_is_alone(const struct md_op *op);
/**
 * Checks, before a call changes anything, whether all its wants are free. Returns 0: go
 * on; -EINPROGRESS: the call was taken, and runs again from its start later;
 * -ROZO_ERETRY, -EBUSY, -ENOMEM: the answer.
 */
int md_op_wants(struct md_op *op, const struct token_want *wants, unsigned n,
                enum when_asked when_asked);
/**
 * Grants a token along with an answer if no other session wants the inode. Returns the
 * mode that the session then holds.
 */
Rozo__TokenMode md_op_grant(struct md_op *op, uint64_t ino, enum token_mode mode);
/**
 * Grants a token that md_op_wants() has allowed. call: see MdTokenReq. Returns the mode
 * that the session then holds.
 */
Rozo__TokenMode md_op_grant_asked(struct md_op *op, uint64_t ino, enum token_mode mode,
                                  uint64_t call);
/**
 * Grants a token like md_op_grant_asked(), or RANGES around *range if others use the file
 * elsewhere. *range: the range granted; to 0: the whole file.
 */
Rozo__TokenMode md_op_grant_range(struct md_op *op, uint64_t ino, enum token_mode mode,
                                  uint64_t call, struct token_range *range);
/** Hooks of the token tables. */
void session_recall(struct token_holder *holder, const struct token_recall *recall);
void session_wake(struct token_waiter *waiter);
/**
 * Takes the claims of a session and drops its other tokens. fresh: the session was made
 * just now, in the grace, and is believed as long as no other session is in the way.
 * Returns false if it then holds nothing. *grant: serial of its tokens.
 */
bool session_claim_tokens(struct session *s, const Rozo__MdOpenSessionReq *req,
                          bool fresh, uint64_t *grant);
/**
 * Keeps all tokens of a session whose client was replaced, and sends it the recalls that
 * are not answered. Returns the serial of its tokens.
 */
uint64_t session_keep_tokens(struct session *s);
/** Answers RETRY to waiting calls that change names; they have done nothing. */
void session_send_back(struct session *s);
/** Answers all waiting calls with rc. */
void session_parked_end(struct session *s, int rc);
/** Ends all waits and drops all tokens of the session. */
void session_drop_tokens(struct session *s);

md_handler md_give_back;

#endif
