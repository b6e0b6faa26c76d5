/*
 * answer.h - a request while it is handled, and its answer until it may leave.
 */
#ifndef ROZO_EXPORTD_CLUSTER_ANSWER_H
#define ROZO_EXPORTD_CLUSTER_ANSWER_H

#include "exportd/cluster/exportd_state.h"

/* One request, from its arrival until its answer is queued. */
struct md_op {
    struct exportd *x;
    struct rpc_call *call; /* taken by an async handler: then NULL */
    struct session *session;
    struct export *export;
    struct namespace *ns; /* of the export */
    bool sync;            /* answer only when durable */
    uint64_t made_ino;    /* inode number that a CREATE made; 0: none */
    bool is_large;        /* the answer holds data of a file */
    uint64_t grant;       /* serial of the tokens granted by this answer; 0: none */
    struct parked
        *parked; /* borrowed; set when the call waited for tokens and runs again */
    struct answer *answer;
};

typedef int md_handler(struct md_op *op, const ProtobufCMessage *req);

/* A packed answer, from the end of its handler until it may leave. */
struct answer {
    struct store_wait wait;
    struct exportd *x;
    struct rpc_call *call; /* owned until replied to */
    uint16_t status;
    size_t len;
    uint8_t msg[];
};

/** An answer with room for len bytes. -ENOMEM. */
int answer_new(size_t len, struct answer **out);
/** An answer with this message; NULL: an empty one. -ENOMEM, -EOVERFLOW. */
int answer_pack(const ProtobufCMessage *msg, struct answer **out);
/** Takes a and call. The answer leaves once all changes are committed; with sync and rc 0, once they are durable. */
void answer_queue(struct exportd *x, struct answer *a, struct rpc_call *call, int rc,
                  bool sync);

/** Packs the answer of op, which is sent with an error status if the handler fails. -ENOMEM. */
int md_op_pack(struct md_op *op, const ProtobufCMessage *msg);
/** Room for three Attr, one FileData, tokens and the like, twice. */
enum { ANSWER_ROOM = 2048 };
/** As md_op_pack(), faster, for messages of at most ANSWER_ROOM bytes or with op->is_large set. */
int md_op_pack_inode(struct md_op *op, const ProtobufCMessage *msg);
/** Answers a call that an async handler took, as answer_queue() does. */
void call_answer(struct exportd *x, struct rpc_call *call, int rc,
                 const ProtobufCMessage *msg, bool sync);

#endif
