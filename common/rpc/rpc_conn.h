/*
 * rpc_conn.h - one TCP connection as frames in and frames out, for rpc_server.c and
 * rpc_channel.c.
 *
 * Raw non-blocking sockets under uv_poll: payloads are received straight into their
 * places and file segments leave by sendfile. Small frames sent in one turn of the loop
 * leave in one system call, when all other work of that turn is done. All calls on the
 * env's thread; callbacks of conn_ops may call any function here, conn_close() too.
 */
#ifndef ROZO_COMMON_RPC_RPC_CONN_H
#define ROZO_COMMON_RPC_RPC_CONN_H

#include <uv.h>

#include "common/base/list.h"
#include "common/env/env_uv.h"
#include "common/rpc/frame.h"
#include "common/rpc/rpc.h"
#include "common/rpc/rpc_tcp.h"

enum { CONN_IN_BYTES = 8192 }; /* small frames are read many at once */

struct conn;

/* Frame on its way out. Embedded in its user's struct, which owns all it points at. */
struct conn_out {
    struct list_node node; /* the conn's, from conn_send() to sent() */
    const uint8_t *head;   /* header and message */
    size_t head_len;
    const struct iovec *iov; /* payload: iov or segs */
    unsigned n_iov;
    const struct rpc_seg *segs; /* used if iov is NULL */
    unsigned n_segs;
    /* all bytes are with the kernel */
    void (*sent)(struct conn *c, struct conn_out *out);
    size_t total; /* bytes of all; set by conn_send() */
    /* The conn's: progress. piece 0 is the head, then iov or segs. */
    size_t n_sent;
    unsigned piece;
    size_t piece_done;
};

struct conn_ops {
    /* A header came; look at c->frame. 0: go on; -EAGAIN: wait until conn_resume(); else
     * break. */
    int (*on_header)(struct conn *c);
    /* The message is here and its crc is right; msg is gone at return. If
     * c->frame.payload_len is not 0, call conn_receive() or conn_discard(). Else the
     * frame is over. -errno: break. */
    int (*on_frame)(struct conn *c, const uint8_t *msg);
    /* The places given are full and c->payload_left is not 0: give more. -errno:
     * break. */
    int (*on_filled)(struct conn *c);
    /* The whole payload is in its places (or discarded). -errno: break. */
    int (*on_payload)(struct conn *c);
    /* The connection is unusable; call conn_close(). Once at most. why is for people. */
    void (*on_broken)(struct conn *c, int rc, const char *why);
    /* End of conn_close(): c is not used any more. c->out may still hold frames. */
    void (*on_closed)(struct conn *c);
};

enum conn_rx { CONN_RX_HEADER, CONN_RX_ADMIT, CONN_RX_MSG, CONN_RX_PAYLOAD };

struct conn {
    const struct conn_ops *ops;
    struct env_uv *e; /* borrowed */
    int fd;           /* owned; -1 when closed */
    uv_poll_t poll;
    int events; /* events that poll waits for */
    bool is_closed, handle_closed;
    bool is_broken; /* on_broken was called */
    bool is_paused; /* on_header returned -EAGAIN, or conn_pause() */
    char peer[RPC_ADDR_TEXT_MAX];

    uint8_t in[CONN_IN_BYTES];
    size_t in_pos, in_len; /* unread bytes are in[in_pos .. in_len) */
    enum conn_rx rx;
    struct frame frame; /* being received */
    uint8_t *big_msg;   /* owned; a message that does not fit in `in` */
    size_t big_got;
    struct iovec *dst; /* borrowed and consumed: places for payload */
    unsigned n_dst;
    size_t payload_left; /* bytes of the frame */
    bool discard;
    uint64_t heard_ns; /* last byte in */

    struct list_node out; /* conn_outs, first to leave first */
    size_t out_bytes;     /* not with the kernel yet */
    bool out_blocked;     /* the socket was full */
    uint64_t drained_ns;  /* last time a full socket took more, or out became non-empty */
    struct env_task task; /* flush and resume */
};

/**
 * Takes over a non-blocking socket; c zeroed. Returns 0 or -errno, fd is ours only on 0.
 * @param is_connecting connect() is still going on: frames wait, failure comes as
 *                      on_broken().
 */
int conn_open(struct conn *c, struct env_uv *e, int fd, bool is_connecting,
              const struct conn_ops *ops);
/**
 * Queues a frame; it leaves in this turn, a small one at its end. front: before all that
 * have not begun.
 */
void conn_send(struct conn *c, struct conn_out *out, bool front);
/**
 * Takes out back, its memory is free at return; a frame that has begun is finished from a
 * copy. Returns 0, or -ENOMEM: then the connection must be closed. Not for out with segs.
 */
int conn_unsend(struct conn *c, struct conn_out *out);
/**
 * Gives places for the next bytes of the payload, together at most c->payload_left. The
 * array is consumed.
 */
void conn_receive(struct conn *c, struct iovec *iov, unsigned n);
/** Discards the rest of this frame's payload; on_payload() comes at its end. */
void conn_discard(struct conn *c);
/** Reads and handles nothing more until conn_resume(). */
void conn_pause(struct conn *c);
/** Looks again at a header that had to wait. */
void conn_resume(struct conn *c);
/** Closes; on_closed() follows, never from inside. Calling it again does nothing. */
void conn_close(struct conn *c);

/* ---- addresses ---- */

/** Splits "host:port" or "[v6]:port"; -EINVAL with a text in err. */
int addr_split(const char *addr, char host[RPC_ADDR_TEXT_MAX], char port[8],
               struct err *err);
/** Formats "127.0.0.1:80" or "[::1]:80". */
void addr_format(const struct sockaddr *sa, char text[RPC_ADDR_TEXT_MAX]);
/** Sets TCP_NODELAY and keep-alive. Failures do no harm. */
void socket_tune(int fd);

#endif
