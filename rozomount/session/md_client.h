/*
 * md_client.h - calls to exportd: packs and sends them, repeats them if safe, answers
 * each once.
 *
 * One struct md_client per loop, on one rpc_channel. A call is a struct md_call embedded
 * in its user's operation. Core: no sockets, no clock but the env's.
 *
 * Repeats, all until the deadline of the call (config timeout_ms):
 * - BUSY: exportd did not process the call; it is sent again after a pause.
 * - NO_SESSION: exportd did not process the call. It waits for
 *   md_client_session_is_open() and is sent again under the same id, because a previous
 *   exportd may have executed it.
 * - Broken link: the channel sends again by itself, so exportd may get a request twice if
 *   the first answer was lost. It recognises the id and sends the same answer. After a
 *   restart of exportd the answer for an exclusive create, unlink, rename, ... is
 *   DONE_BEFORE.
 * - RETRY: exportd did nothing; the caller may have to act first, see
 *   md_client_send_again().
 */
#ifndef ROZO_ROZOMOUNT_SESSION_MD_CLIENT_H
#define ROZO_ROZOMOUNT_SESSION_MD_CLIENT_H

#include "common/proto/rozo.pb-c.h"

#include "common/base/list.h"
#include "common/env/env.h"
#include "common/rpc/rpc.h"

enum {
    MD_MSG_INLINE = 320, /* bytes; larger packed messages are allocated */
    MD_BUSY_PAUSE_MS = 20,
};

struct md_call;
/**
 * Ends a call: runs exactly once, never inside md_client_send(). rc: 0, or a -errno that
 * programs may see; see call->status.
 */
typedef void md_done_cb(struct md_call *call, int rc);

enum md_flags {
    /* for OPEN_SESSION, KEEP_ALIVE: waits for no session; NO_SESSION ends it with
     * -ROZO_ENO_SESSION */
    MD_SESSIONLESS = 1,
    /* after -ROZO_ERETRY the call goes on: md_client_send_again() or
     * md_client_cancel() */
    MD_AGAIN = 2,
};

enum md_call_state {
    MD_CALL_IDLE,
    MD_CALL_WAITING,
    MD_CALL_SENT,
    MD_CALL_PAUSING,
    MD_CALL_SENT_BACK, /* ended with -ROZO_ERETRY and MD_AGAIN */
    MD_CALL_ENDED
};

/* One call, from md_client_send() to its callback. Embedded; zero-initialise it before
 * the first use. */
struct md_call {
    /* The members below are valid in done. */
    const uint8_t *answer; /* if rc is 0; freed when done returns */
    size_t answer_len;
    uint16_t status; /* enum Rozo__Status, if exportd answered */
    bool answered;
    bool maybe_repeated; /* the link broke meanwhile: exportd may have got it twice */
    void *arg;           /* argument of md_client_send() */
    /*
     * Set by the caller before md_client_send(): id of a change that a process may repeat
     * which takes this one's mount over, with RPC_ID_CHOSEN; 0: the channel chooses.
     */
    uint64_t chosen_id;
    /* Set by the caller after md_client_send(), which sets NULL. Returns true if the
     * call may be sent in a session that was just opened; if not, it ends with -EIO. */
    bool (*may_go)(const struct md_call *call);
    /* The members below belong to md_client.c. */
    struct md_client *md;
    md_done_cb *done;
    enum md_call_state state;
    int rc; /* in state MD_CALL_ENDED */
    unsigned flags;
    uint64_t deadline_ns;
    uint64_t sent_ns;     /* time of the last transmission */
    unsigned ups_at_send; /* md->n_ups when it was first sent */
    uint8_t *msg;         /* inline_msg, or allocated */
    size_t msg_len;
    struct rpc_request rq;
    struct env_timer timer;
    struct env_task task;
    struct list_node link; /* in md->waiting */
    uint8_t inline_msg[MD_MSG_INLINE];
};

struct md_client_config {
    uint32_t timeout_ms; /* time to wait for an answer, then -EIO */
    /**
     * Called when exportd does not know our session: it must be reopened. May be called
     * repeatedly.
     */
    void (*mount_session_lost)(void *arg);
    /**
     * Called when exportd has renewed our session at env_now_ns() sent_ns or later. May
     * be NULL.
     */
    void (*heard)(void *arg, uint64_t sent_ns);
    void *arg;
};

/* Embedded in its loop. */
struct md_client {
    struct env *env;
    struct rpc_channel *channel; /* borrowed */
    struct md_client_config config;
    bool mount_session_open;
    unsigned n_ups;           /* number of times the channel came up */
    unsigned n_calls;         /* calls under way */
    struct list_node waiting; /* calls that wait for a session, oldest first */
};

void md_client_init(struct md_client *md, struct env *env, struct rpc_channel *channel,
                    const struct md_client_config *config);
/** Closes the client. No call may be under way. */
void md_client_close(struct md_client *md);

/** Notes that the session is open, and sends the waiting calls. */
void md_client_session_is_open(struct md_client *md);
/** Notes that the session is lost: calls wait from now on. */
void md_client_session_is_lost(struct md_client *md);
/** Notes that the channel went from down to up. */
void md_client_channel_is_up(struct md_client *md);

/** Sends a call to exportd. Packs msg, which may be freed after the return. */
void md_client_send(struct md_client *md, struct md_call *call, uint16_t op,
                    const ProtobufCMessage *msg, unsigned flags, md_done_cb *done,
                    void *arg);
/** Sends a call to exportd with a timeout of its own. */
void md_client_send_within(struct md_client *md, struct md_call *call, uint16_t op,
                           const ProtobufCMessage *msg, unsigned flags,
                           uint32_t timeout_ms, md_done_cb *done, void *arg);

/**
 * Cancels a call: done is not called. Returns false, and done follows as usual, if its
 * end is already on the way, or if `only_unsent` is set and exportd may have the call.
 */
bool md_client_cancel(struct md_call *call, bool only_unsent);

/**
 * Sends a call with MD_AGAIN again after -ROZO_ERETRY and a pause, like a new request.
 * Resets maybe_repeated unless the previous request may have been repeated. Returns false
 * if the deadline is too close; the call is then over.
 */
bool md_client_send_again(struct md_call *call, uint32_t pause_ms);

/**
 * Maps an internal errno (of the wire, of sessions) to one that programs may see, mostly
 * EIO.
 */
int md_client_user_errno(int rc);

#endif
