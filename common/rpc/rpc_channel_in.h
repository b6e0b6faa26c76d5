/*
 * rpc_channel_in.h - one channel's links and requests, for rpc_channel.c, rpc_link.c,
 * rpc_request.c.
 *
 * A request waits in the channel, goes to a link that is up, and back to the channel when
 * that link breaks. Thread: the env's loop.
 */
#ifndef ROZO_COMMON_RPC_RPC_CHANNEL_IN_H
#define ROZO_COMMON_RPC_RPC_CHANNEL_IN_H

#include "common/base/bufpool.h"
#include "common/base/list.h"
#include "common/rpc/hello.h"
#include "common/rpc/rpc_conn.h"
#include "common/rpc/rpc_tcp.h"

enum {
    RETRY_MS_MIN = 50,
    N_BUCKETS = 256,
    ERROR_TEXT_MAX = 256,
};

struct channel;
struct link;

enum sent_state {
    SENT_WAITING, /* in channel->waiting */
    SENT_ON_LINK, /* in link->sent: queued, partly out, or out and not answered */
    SENT_FAILED,  /* in channel->failed: done() is posted */
};

/* Request of ours, from rpc_send() to done or rpc_cancel(). rq->impl points at it. */
struct sent {
    struct rpc_request *rq; /* borrowed, the user's */
    struct channel *ch;
    struct link *link;     /* when SENT_ON_LINK */
    struct list_node node; /* in the list that state names */
    struct sent *hash_next;
    enum sent_state state;
    bool is_out;     /* the request has left, out is not in link->conn.out */
    bool has_placed; /* place() was asked: no second answer can be taken */
    int rc;          /* SENT_FAILED, or the result of place() */
    uint64_t id;     /* equal for every attempt, so that the peer recognises it */
    uint64_t order;  /* order of arrival */
    uint64_t bytes;  /* counted against queue_max */
    struct env_timer deadline;
    struct conn_out out;
    uint8_t head[]; /* header and message */
};

enum link_state { LINK_IDLE, LINK_RESOLVING, LINK_HELLO, LINK_UP, LINK_CLOSING };

/* One TCP connection, again and again. */
struct link {
    struct conn conn;
    struct channel *ch;
    unsigned addr;                 /* index */
    struct addrinfo *found;        /* owned: addresses of the name of addr */
    const struct addrinfo *next;   /* in found: next to try when the present one fails */
    char where[RPC_ADDR_TEXT_MAX]; /* the one being tried, as numbers */
    char tried[ERROR_TEXT_MAX];    /* addresses that failed, and why */
    enum link_state state;
    struct env_timer timer; /* IDLE: try again; HELLO: it took too long */
    uint32_t retry_ms;
    uint64_t tried_ns;          /* last attempt to connect */
    bool other_failure;         /* an address failed otherwise than by refusing */
    char error[ERROR_TEXT_MAX]; /* last one logged; "" once up */
    uv_getaddrinfo_t resolve;
    struct hello hello;
    struct conn_out hello_out, ping_out;
    uint8_t hello_bytes[FRAME_HEADER_BYTES + HELLO_MSG_MAX];
    uint8_t ping_bytes[FRAME_HEADER_BYTES];
    bool hello_busy;
    bool ping_busy;   /* ping_out is in conn.out */
    bool ping_is_out; /* the pong has not come */
    uint64_t ping_id;
    struct list_node sent; /* requests on this link, oldest first */
    uint64_t bytes;        /* bytes of those requests */
    uint64_t owed_ns;      /* since then the peer owes us an answer; 0: it does not */
    uint64_t awake_ns;     /* start of its silence: we slept for a part of it */
    struct sent *rx;       /* request whose payload is being received */
    bool rx_in_head;       /* into rx->rq->recv_head, place() not asked yet */
    uint8_t *rx_msg;       /* copy of the answer's message; owned, grows */
    size_t rx_msg_max;
    struct iovec rx_iov[RPC_IOV_MAX];
};

struct channel {
    struct rpc_channel base; /* first */
    struct env_uv *e;
    const struct rpc_keys *keys;
    enum rpc_role role;
    char name[HELLO_NAME_MAX + 1];
    uint8_t cluster_id[RPC_CLUSTER_ID_BYTES];
    uint8_t incarnation[RPC_INCARNATION_BYTES]; /* zero: any */
    char (*addrs)[RPC_ADDR_TEXT_MAX];           /* owned */
    unsigned n_addrs;
    struct link *links; /* owned array */
    unsigned n_links, n_up;
    unsigned last_link; /* for taking turns among equals */
    uint32_t probe_ms;
    uint64_t queue_max, bytes; /* bytes: with the links, too */
    uint64_t session, next_order;
    uint64_t next_id; /* begins anywhere: channels of one session do not share ids */
    struct list_node waiting; /* by order */
    struct list_node failed;
    struct sent *buckets[N_BUCKETS]; /* requests on links by id */
    struct env_timer tick;
    uint64_t tick_due_ns; /* when the tick should have come */
    struct env_task task; /* failed requests, end */
    struct bufpool pool;
    char last_error[ERROR_TEXT_MAX];
    struct channel_watch {
        void (*fn)(void *arg); /* NULL: nobody */
        void *arg;
    } on_up, on_down, on_refused;
    bool is_closing;
    unsigned n_busy; /* conns and resolves that libuv still knows */
    void (*closed)(void *arg);
    void *closed_arg;
};

static inline struct channel *channel_of(struct rpc_channel *base)
{
    return container_of(base, struct channel, base);
}

static inline uint64_t now_of(struct channel *ch)
{
    return env_now_ns(&ch->e->env);
}

/* ---- rpc_request.c ---- */

/** Send, cancel and health of a channel. */
extern const struct rpc_channel_ops channel_ops;
/** Gives waiting requests to links while there is room. */
void channel_dispatch(struct channel *ch);
/** Puts a request back among the waiting ones, at the place of its arrival. */
void sent_again(struct sent *s);
/** Takes a request from wherever it is; done(rc) is posted. */
void sent_fail_later(struct sent *s, int rc);
/** Ends a request and frees s; done() may do anything, also close the channel. */
void sent_done(struct sent *s, int rc);
/** Handles an answer's message; -errno: the link is unusable. */
int answer_message(struct link *l, const uint8_t *msg);
/** Asks for the places of the rest, once the head is full (or there is none). */
void answer_place(struct link *l, struct sent *s);
/** Ends a request whose answer is complete. */
void answer_done(struct sent *s);

/* ---- rpc_link.c ---- */

/** Prepares a link to address `addr` of ch. */
void link_init(struct link *l, struct channel *ch, unsigned addr);
void link_connect(struct link *l);
/** Closes an unusable connection: its requests go to other links. */
void link_fail(struct link *l);
/** Computes owed_ns again, after a request left or was answered. */
void link_update_owed(struct link *l);
/** Returns true if the peer has owed us a byte for too long. */
bool link_is_suspect(const struct link *l, uint64_t now_ns);
/** Detects that this process slept: that time is not the peers' silence. */
void channel_note_sleep(struct channel *ch, uint64_t now_ns);
enum rpc_health channel_health(struct rpc_channel *base);
void channel_connect_now(struct rpc_channel *base);
/** Probes links while one is up. */
void on_channel_tick(struct env_timer *timer);

#endif
