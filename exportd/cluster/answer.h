/*
 * answer.h - a request while it is handled, and its answer until it may leave.
 */
#ifndef ROZO_EXPORTD_CLUSTER_ANSWER_H
#define ROZO_EXPORTD_CLUSTER_ANSWER_H

#include "exportd/cluster/exportd_state.h"

/* Request, from its arrival until its answer is queued. */
struct md_op {
    struct exportd *x;
    struct rpc_call *call; /* an async handler takes it and sets NULL */
    struct session *session;
    struct export *export;
    struct namespace *ns; /* name space of the export */
    bool sync;            /* answer only when stable */
    uint64_t made_ino;    /* inode number that a CREATE made; 0: none */
    bool is_large;        /* the answer holds data of a file */
    uint64_t grant;       /* serial of the tokens granted by this answer; 0: none */
    /* borrowed; set if the call waited for tokens and runs again */
    struct parked *parked;
    struct answer *answer;
};

typedef int md_handler(struct md_op *op, const ProtobufCMessage *req);

/* Packed answer, from the end of its handler until it may leave. */
struct answer {
    struct store_wait wait;
    struct kv_done confirm;
    struct exportd *x;
    struct rpc_call *call; /* owned until the reply */
    uint16_t status;
    size_t len;
    uint8_t msg[];
};

/** Makes an answer with room for len bytes. Returns 0 or -ENOMEM. */
int answer_new(size_t len, struct answer **out);
/**
 * Makes an answer with this message; NULL: an empty one. Returns 0, -ENOMEM or
 * -EOVERFLOW.
 */
int answer_pack(const ProtobufCMessage *msg, struct answer **out);
/**
 * Queues an answer; takes a and call. The answer leaves once all changes are committed;
 * with sync and rc 0, once they are stable; and in any case when the kv has confirmed
 * after that that nothing of it can be stale. From exportd_abandon() on it is NOT_LEADER.
 */
void answer_queue(struct exportd *x, struct answer *a, struct rpc_call *call, int rc,
                  bool sync);

/**
 * Packs the answer of op, which is sent with an error status if the handler fails.
 * Returns 0, -ENOMEM or -EOVERFLOW.
 */
int md_op_pack(struct md_op *op, const ProtobufCMessage *msg);
/** Bytes: twice the size of three Attr, one FileData and tokens. */
enum { ANSWER_ROOM = 2048 };
/**
 * Packs as md_op_pack() does, but faster, a message of at most ANSWER_ROOM bytes or with
 * op->is_large set.
 */
int md_op_pack_inode(struct md_op *op, const ProtobufCMessage *msg);
/** Answers a call that an async handler took, as answer_queue() does. */
void call_answer(struct exportd *x, struct rpc_call *call, int rc,
                 const ProtobufCMessage *msg, bool sync);

#endif
