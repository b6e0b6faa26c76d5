/*
 * daemon_asks.h - requests to several daemons at once, each with its own answer.
 */
#ifndef ROZO_DEPLOY_CLIENT_DAEMON_ASKS_H
#define ROZO_DEPLOY_CLIENT_DAEMON_ASKS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/err.h"
#include "common/base/list.h"
#include "common/rpc/rpc.h"
#include "deploy/cli/progress.h"

enum { DAEMON_MESSAGE_MAX = 200 };

struct daemon_asks;

/* One daemon, and the request to it. Embedded; zero-initialise. */
struct daemon_ask {
    struct rpc_channel *channel; /* owned; NULL: its addresses are not valid */
    int rc;                      /* 0: an answer came; else an error of the transport */
    uint16_t status;             /* ROZO__STATUS_ of the answer */
    char message[DAEMON_MESSAGE_MAX]; /* why there is no good answer; "": there is */
    void *arg;                        /* the user's, for take() */
    /* The rest is private. */
    struct daemon_asks *all;
    struct list_node link; /* while the request is under way */
    struct rpc_request rq;
    /** Takes an answer, whatever its status; may replace the message. NULL: nothing. */
    void (*take)(struct daemon_ask *a, const struct rpc_request *rq);
};

struct rpc_loop;
/* All daemons. Embedded; from daemon_asks_open() to daemon_asks_close(). */
struct daemon_asks {
    struct rpc_loop *loop;     /* owned */
    struct progress *progress; /* drawn while it waits; may be NULL */
    /* once a daemon has answered, the others have so long, from the start of the wait; 0:
     * until the deadlines of their requests */
    uint32_t slow_max_ms;
    /* The rest is private. */
    uint32_t refused_max_ms;
    uint64_t refused_ms, slow_ms;
    struct list_node out;
    bool has_answered; /* one of them, in this wait */
    bool is_done;
};

/**
 * Opens a loop. refused_max_ms: a daemon that refuses connections for so long has no
 * answer; one that does not answer has until the deadline of its request.
 */
int daemon_asks_open(struct daemon_asks *all, const char *node_key,
                     uint32_t refused_max_ms, struct err *err);
/** Closes the loop, whose daemons are all closed. May follow a failed open. */
void daemon_asks_close(struct daemon_asks *all);
/** Opens a channel to a daemon. Does not wait for it. Returns 0 or -errno. */
int daemon_ask_open(struct daemon_asks *all, struct daemon_ask *a,
                    const char *const *addresses, unsigned n_addresses, struct err *err);
void daemon_ask_close(struct daemon_asks *all, struct daemon_ask *a);

/** Sends a request, which is packed now; daemon_asks_wait() follows. */
void daemon_ask_send(struct daemon_ask *a, uint16_t op, const ProtobufCMessage *question,
                     uint32_t deadline_ms,
                     void (*take)(struct daemon_ask *a, const struct rpc_request *rq));
/**
 * Waits for the answers to all requests. Returns 0, or -EINTR if a signal came
 * (interrupt.h), which ends them.
 */
int daemon_asks_wait(struct daemon_asks *all);
/** Sends one request and waits for its answer. Returns a->rc, or that of its status. */
int daemon_ask_one(struct daemon_ask *a, uint16_t op, const ProtobufCMessage *question,
                   uint32_t deadline_ms,
                   void (*take)(struct daemon_ask *a, const struct rpc_request *rq));
/** Sets the message. */
void daemon_ask_fail(struct daemon_ask *a, const char *why);

#endif
