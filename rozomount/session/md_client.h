/*
 * md_client.h - calls to exportd: packed, sent, repeated where that is right, answered once.
 *
 * One struct md_client per loop, over one rpc_channel. A call is a struct md_call embedded in its
 * user's operation. Core: no sockets, no clock but the env's.
 *
 * What is repeated, and what is not (both until the deadline, config timeout_ms):
 * - BUSY: exportd did not look at it; sent again after a pause.
 * - NO_SESSION: exportd did not look at it; the call waits until md_client_session_is_open() is said
 *   again, and is sent again under the id it had: whoever ran before this exportd may have done it.
 * - A broken link: the channel sends again by itself, and exportd may then see a request a
 *   second time whose first answer was lost. It knows it by its id, and answers as it did then; of an exclusive
 *   create, unlink, rename, ... that was done before it was restarted it knows that much: DONE_BEFORE.
 * - RETRY: exportd did nothing, and the caller may have to do something first: see md_client_send_again().
 */
#ifndef ROZO_ROZOMOUNT_SESSION_MD_CLIENT_H
#define ROZO_ROZOMOUNT_SESSION_MD_CLIENT_H

#include "common/proto/rozo.pb-c.h"

#include "common/base/list.h"
#include "common/env/env.h"
#include "common/rpc/rpc.h"

enum {
    MD_MSG_INLINE = 320, /* packed messages up to this need no memory of their own */
    MD_BUSY_PAUSE_MS = 20,
};

struct md_call;
/** Exactly once, never inside md_client_send(). rc: 0, or -errno fit for users; see call->status. */
typedef void md_done_cb(struct md_call *call, int rc);

enum md_flags {
    MD_SESSIONLESS =
        1, /* OPEN_SESSION, KEEP_ALIVE: does not wait for a session; NO_SESSION is -ESRCH */
    MD_AGAIN =
        2, /* after -ERESTART the call is not over: md_client_send_again(), or md_client_cancel() */
};

enum md_call_state {
    MD_CALL_IDLE,
    MD_CALL_WAITING,
    MD_CALL_SENT,
    MD_CALL_PAUSING,
    MD_CALL_SENT_BACK, /* -ERESTART, with MD_AGAIN */
    MD_CALL_ENDED
};

/* One call, from md_client_send() to its callback. Embedded; zero-initialise before the first use. */
struct md_call {
    /* Valid in done. */
    const uint8_t *answer; /* with rc 0; gone when done returns */
    size_t answer_len;
    uint16_t status; /* enum Rozo__Status, when exportd answered at all */
    bool answered;
    bool maybe_repeated; /* a link broke on the way: exportd may have seen it twice */
    void *arg;           /* the caller's, from md_client_send() */
    /* The caller's, NULL from md_client_send() on: may it go out under a session that has just been opened? Else it ends with -EIO. */
    bool (*may_go)(const struct md_call *call);
    /* md's. */
    struct md_client *md;
    md_done_cb *done;
    enum md_call_state state;
    int rc; /* while MD_CALL_ENDED */
    unsigned flags;
    uint64_t deadline_ns;
    uint64_t sent_ns;     /* when it went out last */
    unsigned ups_at_send; /* md->n_ups when it was first sent */
    uint8_t *msg;         /* inline_msg or allocated */
    size_t msg_len;
    struct rpc_request rq;
    struct env_timer timer;
    struct env_task task;
    struct list_node link; /* in md->waiting */
    uint8_t inline_msg[MD_MSG_INLINE];
};

struct md_client_config {
    uint32_t timeout_ms; /* a call that exportd does not answer in this time: -EIO */
    void (*mount_session_lost)(
        void *
            arg); /* exportd does not know our session: open it again. May come more than once. */
    /** exportd has heard our session, at this env_now_ns() or later. May be NULL. */
    void (*heard)(void *arg, uint64_t sent_ns);
    void *arg;
};

/* Embedded in its loop. */
struct md_client {
    struct env *env;
    struct rpc_channel *channel; /* borrowed */
    struct md_client_config config;
    bool mount_session_open;
    unsigned n_ups;           /* times the channel came up */
    unsigned n_calls;         /* not done yet */
    struct list_node waiting; /* calls for a session, oldest first */
};

void md_client_init(struct md_client *md, struct env *env, struct rpc_channel *channel,
                    const struct md_client_config *config);
/** No call may be under way. */
void md_client_close(struct md_client *md);

/** The session is (again) open: what waited is sent. */
void md_client_session_is_open(struct md_client *md);
/** Calls wait from now on. */
void md_client_session_is_lost(struct md_client *md);
/** The channel went from down to up. */
void md_client_channel_is_up(struct md_client *md);

/** Ask exportd. The message is packed here and may go when this returns. */
void md_client_send(struct md_client *md, struct md_call *call, uint16_t op,
                    const ProtobufCMessage *msg, unsigned flags, md_done_cb *done,
                    void *arg);
/** The same with a timeout of its own. */
void md_client_send_within(struct md_client *md, struct md_call *call, uint16_t op,
                           const ProtobufCMessage *msg, unsigned flags,
                           uint32_t timeout_ms, md_done_cb *done, void *arg);

/**
 * Forget a call: no done. False when that is not possible any more (its end is on the way) or
 * `only_unsent` is asked and exportd may have it already; then done comes as usual.
 */
bool md_client_cancel(struct md_call *call, bool only_unsent);

/**
 * After -ERESTART of a call with MD_AGAIN: ask once more, as with a new request, after a pause. That counts as its first time unless
 * the one before may have been repeated. False: its time does not last so long; the call is over.
 */
bool md_client_send_again(struct md_call *call, uint32_t pause_ms);

/** An errno as programs may see it: our inner ones (of the wire, of sessions) become EIO. */
int md_client_user_errno(int rc);

#endif
