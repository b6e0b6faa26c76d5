/*
 * fanout.h - one request to n storages of a file: each projection to its home, or to a
 * spare when the home is down, hung, slow or refuses.
 *
 * Shared by writing, marking and reserving: decides which candidate is asked next, when
 * the data is safe, and when success is impossible. The owner fills the requests.
 */
#ifndef ROZO_STORCLI_BLOCKS_FANOUT_H
#define ROZO_STORCLI_BLOCKS_FANOUT_H

#include "storcli/blocks/engine.h"

struct fanout;

struct fanout_ops {
    /**
     * Fills op and payload of rq; packs the message into msg, returns its length.
     * projection may be PROJECTION_ANY when `extras` is set.
     */
    size_t (*fill)(struct fanout *s, unsigned candidate, unsigned projection,
                   struct rpc_request *rq, uint8_t msg[MSG_BYTES_MAX]);
    /**
     * Called when a candidate acknowledged (PROJECTION_ANY: it had the request, and may
     * hold nothing); its answer is in rq. May be NULL.
     */
    void (*acked)(struct fanout *s, unsigned candidate, const struct rpc_request *rq);
    /**
     * Called at the end: nothing is under way, the spread may be freed. Never inside
     * fanout_start().
     */
    void (*ended)(struct fanout *s, int rc);
    bool reports; /* messages carry watermarks (blk_commit.h) */
    bool extras;  /* afterwards the other candidates are asked too, best effort */
    /* reserving: the first NO_SPACE ends it, and what others reserved is known when it
     * fails */
    bool stop_at_no_space;
};

enum fanout_try_state {
    TRY_IDLE,
    TRY_SENT,
    TRY_ACKED,
    TRY_REFUSED, /* may be asked again after retry_ns */
};

/* Request to one candidate. */
struct fanout_try {
    struct rpc_request rq;
    struct fanout *fanout;
    uint64_t sent_ns;
    uint64_t took_ns; /* ns until the acknowledgement */
    uint64_t retry_ns;
    uint32_t backoff_ms;
    int refusal; /* -errno of the last refusal */
    uint8_t candidate;
    uint8_t projection;
    uint8_t state;      /* enum fanout_try_state */
    uint32_t commit_no; /* commit.no of the watermarks in the request */
    bool slow;          /* not waited for any more, though its answer will count */
    bool disconnected;  /* slow because its channel is not up */
};

/* Embedded in its owner; tries are owned from fanout_start() to ended or
 * fanout_cancel(). */
struct fanout {
    struct watch watch;
    struct storcli_file *file;
    uint64_t session; /* session of the operation */
    const struct fanout_ops *ops;
    struct fanout_try *tries; /* owned, c entries */
    uint64_t started_ns, deadline_ns;
    uint32_t spare_after_ms; /* after this long without an answer a spare is asked */
    uint32_t acked;          /* bitmap of projections */
    uint32_t
        outcome_unknown; /* candidates whose outcome is unknown: they may have taken it */
    uint32_t in_flight;  /* homes among them that are late, and nothing worse */
    bool extras_sent, running;
    struct holders held; /* candidates that hold it; `all` and `any` are equal here */
};

/**
 * Starts sending at once. s must be zero-initialised; may be called from inside op->run.
 * Returns 0 or -ENOMEM.
 */
int fanout_start(struct fanout *s, const struct blk_op *op, const struct fanout_ops *ops,
                 bool sync);
/**
 * Cancels everything: no callback comes, memory that requests point to is free. An idle
 * spread is fine.
 */
void fanout_cancel(struct fanout *s);

#endif
