/*
 * spread.h - one request to n storages of a file: each projection to its optimal storage, to a
 * spare when that one is down, hung, slow or refuses.
 *
 * The common heart of writing, marking and reserving: who is asked next, when it is safe, and when
 * there is no hope. What is sent is the owner's.
 */
#ifndef ROZO_STORCLI_BLOCKS_SPREAD_H
#define ROZO_STORCLI_BLOCKS_SPREAD_H

#include "storcli/blocks/engine.h"

struct spread;

struct spread_ops {
    /** Fill op and payload of rq; pack the message into msg, return its length. projection may
     * be PROJECTION_ANY when `extras` is set. */
    size_t (*fill)(struct spread *s, unsigned candidate, unsigned projection,
                   struct rpc_request *rq, uint8_t msg[MSG_BYTES_MAX]);
    /** This candidate has it (or, asked for PROJECTION_ANY, was told); its answer is in rq. May be
     * NULL. */
    void (*acked)(struct spread *s, unsigned candidate, const struct rpc_request *rq);
    /** Over: nothing of it is under way. The spread may be freed. Never inside spread_start(). */
    void (*ended)(struct spread *s, int rc);
    bool tells;  /* its messages carry watermarks (commit.h) */
    bool extras; /* afterwards the other candidates are asked too, for what it is worth */
    bool stop_at_no_space; /* reserving: full once means full */
};

enum spread_try_state {
    TRY_IDLE,
    TRY_SENT,
    TRY_ACKED,
    TRY_REFUSED, /* may be asked again after retry_ns */
};

/* One candidate's part. */
struct spread_try {
    struct rpc_request rq;
    struct spread *spread;
    uint64_t sent_ns;
    uint64_t took_ns; /* acknowledged */
    uint64_t retry_ns;
    uint32_t backoff_ms;
    int refusal; /* -errno of the last refusal */
    uint8_t candidate;
    uint8_t projection;
    uint8_t state;      /* enum spread_try_state */
    uint32_t commit_no; /* of the watermarks it was told */
    bool slow;          /* not waited for any more, though its answer will count */
    bool away;          /* that is because its channel is not up */
};

/* Embedded in its owner; tries are owned from spread_start() to ended or spread_cancel(). */
struct spread {
    struct watch watch;
    struct storcli_file *file;
    uint64_t session; /* of the operation */
    const struct spread_ops *ops;
    struct spread_try *tries; /* c of them */
    uint64_t started_ns, deadline_ns;
    uint32_t patience_ms; /* silent this long: a spare is asked */
    uint32_t acked;       /* bitmap of projections */
    uint32_t unheard; /* candidates that may have taken it without our hearing of it */
    uint32_t coming;  /* of these: homes that are late, and nothing worse */
    bool extras_sent, running;
    struct holders held; /* who has it; `all` and `any` are the same here */
};

/** Zero-initialised s; sends at once, may be called from inside op->run. -ENOMEM. */
int spread_start(struct spread *s, const struct op *op, const struct spread_ops *ops,
                 bool sync);
/** Forget it: nothing comes any more, memory it points to is free. An idle one is fine. */
void spread_cancel(struct spread *s);

#endif
