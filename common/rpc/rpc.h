/*
 * rpc.h - requests between processes, as cores see them: no sockets here.
 *
 * A request is (op, protobuf message, raw payload); its answer is (status, message,
 * payload). Bulk data is only ever payload. The client side is a struct rpc_channel (all
 * links to one peer), the server side a struct rpc_call (one request waiting for its
 * answer). The socket transport is rpc_tcp.h; tests bring transports of their own.
 *
 * Everything belongs to one thread, that of the env the channel or server was made with.
 */
#ifndef ROZO_COMMON_RPC_RPC_H
#define ROZO_COMMON_RPC_RPC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* A bit of ids that users of a channel choose; ids that a channel makes lack it. */
#define RPC_ID_CHOSEN (1ull << 63)

enum {
    RPC_MSG_MAX = 4 << 20,     /* bytes of one packed message */
    RPC_PAYLOAD_MAX = 8 << 20, /* bytes of one payload */
    RPC_IOV_MAX = 1024,        /* iovecs of one payload */
};

struct rpc_channel;
struct rpc_request;

/**
 * Called at the end of a request: exactly once, never inside rpc_send(). rc 0: the peer
 * answered, look at rq->status. Otherwise -ETIMEDOUT (the deadline passed), -ENOTCONN (no
 * link worked until the deadline, the channel closed, or the link broke in the middle of
 * an answer after place() had been asked), or the return value of place(). After it, no
 * memory of the caller is used any more.
 */
typedef void rpc_done_cb(struct rpc_request *rq, int rc);

/**
 * Asks for the places of the rest of the answer's payload. Called once, when the first
 * rq->recv_head_len bytes have arrived in rq->recv_head; not at all when the payload is
 * no longer than that. status, answer_msg and answer_payload_len of rq are valid inside.
 * @param rest_len bytes still to come, not 0.
 * @param iov      out: room for RPC_IOV_MAX; must add up to exactly rest_len.
 * @return number of iovecs; or -errno to discard the rest, the request then ends with it.
 */
typedef int rpc_place_cb(struct rpc_request *rq, size_t rest_len, struct iovec *iov);

/* Request by us, from rpc_send() to its rpc_done_cb. Embedded in its user's operation. */
struct rpc_request {
    /* Set by the caller. */
    uint16_t op;
    uint32_t deadline_ms; /* from now; not 0 */
    const void *msg;      /* packed message; copied by rpc_send() */
    size_t msg_len;
    const struct iovec *payload; /* borrowed until done or cancelled, array and bytes */
    unsigned n_payload;
    void *recv_head; /* first bytes of the answer's payload; NULL with place NULL */
    size_t recv_head_len;
    rpc_place_cb *place; /* NULL: rpc allocates, see answer_payload */
    rpc_done_cb *done;
    void *arg; /* the caller's */
    /* In every frame of the request. 0: rpc_send() sets the session that the channel has
     * then. */
    uint64_t session;
    /* Not 0: the id of the request: that of one that was answered before, which this one
     * repeats, or one that the caller has chosen, with RPC_ID_CHOSEN. */
    uint64_t again;
    /* Not 0: an exportd of another start refuses it with NOT_LEADER (lower 32 bits of
     * MdWaitLeaderResp.start). A peer that does not know this ignores it. */
    uint32_t start;
    uint64_t id; /* identity at the peer: set by rpc_send() */
    /* Valid inside done when rc is 0. */
    uint16_t status;           /* enum Rozo__Status */
    const uint8_t *answer_msg; /* borrowed, gone when done returns */
    size_t answer_msg_len;
    uint8_t *answer_payload;   /* without place: all of it, borrowed like answer_msg */
    size_t answer_payload_len; /* with or without place */
    /* The channel's. */
    struct rpc_channel *channel;
    void *impl;
};

/* Health of a peer, by its channel's own probes, in this order. */
enum rpc_health {
    RPC_DOWN,       /* no link is up */
    RPC_CONNECTING, /* no link is up, but one is at its first attempt */
    RPC_SUSPECT, /* links are up but the peer did not answer for too long: maybe hung */
    RPC_UP,
};

struct rpc_channel_ops {
    void (*send)(struct rpc_channel *ch, struct rpc_request *rq);
    void (*cancel)(struct rpc_channel *ch, struct rpc_request *rq);
    enum rpc_health (*health)(struct rpc_channel *ch);
    void (*connect_now)(struct rpc_channel *ch); /* NULL: it never waits to connect */
};
struct rpc_channel {
    const struct rpc_channel_ops *ops;
};

/**
 * Sends on the link with the least outstanding bytes; if it breaks before the answer,
 * sends again on another until the deadline, so requests must be idempotent or the peer
 * must recognise them. A channel without links queues (bounded) until one is up or the
 * deadline passes.
 */
static inline void rpc_send(struct rpc_channel *ch, struct rpc_request *rq)
{
    rq->channel = ch;
    ch->ops->send(ch, rq);
}
/**
 * Cancels a request that is not done: no done, no place, and its memory is free at
 * return.
 */
static inline void rpc_cancel(struct rpc_request *rq)
{
    rq->channel->ops->cancel(rq->channel, rq);
}
static inline enum rpc_health rpc_channel_health(struct rpc_channel *ch)
{
    return ch->ops->health(ch);
}
/**
 * Ends the pauses before broken links are connected again: the peer may be back. May be
 * called at any time and often; a link is tried every 50 ms at most.
 */
static inline void rpc_connect_now(struct rpc_channel *ch)
{
    if (ch->ops->connect_now != NULL)
        ch->ops->connect_now(ch);
}

/* ---- server side ---- */

/* Role of the other end, as proved by the Hello exchange. */
enum rpc_role {
    RPC_ROLE_CLIENT = 1, /* knows the client key: mounts */
    RPC_ROLE_NODE = 2,   /* knows the node key: daemons and administrators */
};

/* Piece of an answer's payload: memory, or bytes of a file sent without passing user
 * space. */
struct rpc_seg {
    const void *base; /* NULL: fd and offset count */
    int fd;
    off_t offset;
    size_t len;
};

struct rpc_call;
struct rpc_call_ops {
    void (*reply)(struct rpc_call *call, uint16_t status, const void *msg, size_t msg_len,
                  const struct rpc_seg *segs, unsigned n_segs, void (*sent)(void *arg),
                  void *arg);
};

/* Request by a peer, from the handler to rpc_reply(). Owned by its holder. */
struct rpc_call {
    const struct rpc_call_ops *ops;
    uint16_t op;
    enum rpc_role role;
    uint64_t session;   /* from the frame; 0 before a session is open */
    uint64_t id;        /* from the frame; equal when its sender sends it again */
    uint32_t start;     /* from the frame; rpc_request.start */
    uint64_t conn_id;   /* connection that it came on, unique in this process */
    const uint8_t *msg; /* packed message, the call's */
    size_t msg_len;
    uint8_t *payload; /* the call's, 4096-aligned; gone at rpc_reply() */
    size_t payload_len;
};

/**
 * Handles a request of a peer. Takes the call: rpc_reply() must come once, now or later.
 */
typedef void rpc_handler_cb(void *arg, struct rpc_call *call);

/**
 * Answers and frees the call; may be called from inside the handler. The message is
 * copied. Segments are borrowed until sent(arg), which comes exactly once: all bytes are
 * with the kernel, or the connection is gone. sent may be NULL when there are no
 * segments.
 */
static inline void rpc_reply(struct rpc_call *call, uint16_t status, const void *msg,
                             size_t msg_len, const struct rpc_seg *segs, unsigned n_segs,
                             void (*sent)(void *arg), void *arg)
{
    call->ops->reply(call, status, msg, msg_len, segs, n_segs, sent, arg);
}
static inline void rpc_reply_status(struct rpc_call *call, uint16_t status)
{
    rpc_reply(call, status, NULL, 0, NULL, 0, NULL, NULL);
}

#endif
