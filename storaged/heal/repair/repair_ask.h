/*
 * repair_ask.h - requests of a healer about one file: what they have in common, and one of them.
 *
 * Thread: that of the env. The rest of storaged/heal is not to send anything but through this.
 */
#ifndef ROZO_STORAGED_HEAL_REPAIR_REPAIR_ASK_H
#define ROZO_STORAGED_HEAL_REPAIR_REPAIR_ASK_H

#include <stdbool.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "codec/codec.h"
#include "common/rpc/rpc.h"
#include "storcli/blocks.h"

enum {
    HEAL_NO_CANDIDATE = 255,
    HEAL_PROJECTION_ANY = 255,
};

/* A file as healing sees it. Must not move once heal_file_init() is done. */
struct heal_file {
    struct env *env; /* borrowed */
    struct storcli_peers peers;
    uint32_t deadline_ms; /* of every request */
    struct storcli_target target;
    const struct codec *codec;
    unsigned k, n, c, q;
    uint32_t file_hash;
    size_t row_bytes; /* of a full block */
    /* Who is to hold projection p: candidate p, or, when that is lost for good, a spare;
     * HEAL_NO_CANDIDATE when there is none. */
    uint8_t home[CODEC_N_MAX];
    uint32_t lost;   /* candidates that will not come back */
    uint32_t silent; /* candidates that did not answer something, or refused to tell */
    uint32_t moved;  /* ... that know of a later distribution than target's */
    Rozo__FileRef ref;
    uint8_t id[FILE_ID_BYTES];
};

/** 0, or -EINVAL: no file can lie like that. */
int heal_target_check(const struct storcli_target *target);
/** -EINVAL when the target makes no sense. lost: bitmap of places in the distribution. */
int heal_file_init(struct heal_file *file, struct env *env,
                   const struct storcli_peers *peers, uint32_t deadline_ms,
                   const struct storcli_target *target, uint32_t lost);
/** Every candidate, as a bitmap. */
uint32_t heal_file_all(const struct heal_file *file);
/** Is it worth asking at all? */
bool heal_file_is_up(const struct heal_file *file, unsigned candidate);
/** Bytes of a head of projection p. */
size_t heal_head_bytes(const struct heal_file *file, unsigned p);

/** Bytes of the body that comes with this head of projection p; 0: none. */
size_t heal_row(const struct heal_file *file, uint64_t block, unsigned p,
                const uint8_t *head);
/**
 * Bytes of the bodies that belong to n heads of projection p, of blocks from `first` on: those at buf, where places for
 * n full rows follow them. iov, if any: where the bodies go, *n_iov (0 before) of them; room for n.
 */
size_t heal_bodies(const struct heal_file *file, uint64_t first, unsigned n, unsigned p,
                   uint8_t *buf, struct iovec *iov, unsigned *n_iov);

/** An rpc_place_cb's answer: bodies go right behind the heads at buf, each in its place. */
int heal_bodies_place(const struct heal_file *file, uint64_t first, unsigned n,
                      unsigned p, uint8_t *buf, size_t rest_len, struct iovec *iov);

struct repair_ask;
/** rc 0: it answered, ask->rq.status says what; else it was silent. May send the ask again. */
typedef void repair_ask_done_cb(struct repair_ask *ask, int rc);

/* One request to one candidate. Embedded in its owner, zero-initialised; not to move while sent. */
struct repair_ask {
    struct rpc_request rq;
    struct heal_file *file; /* borrowed */
    repair_ask_done_cb *done;
    uint8_t candidate;
    bool sent;
    /* As in struct rpc_request; NULL and 0, or set before repair_ask_send(). */
    rpc_place_cb *place;
    void *recv_head;
    size_t recv_head_len;
};

/**
 * The message has its ref and its to_storage set; it is copied. payload is borrowed until done.
 * @return 0; -ENOTCONN when that storage is not up: then no callback comes, and it is noted as
 * silent; -ENOMEM.
 */
int repair_ask_send(struct repair_ask *ask, struct heal_file *file, unsigned candidate,
                    uint16_t op, const ProtobufCMessage *msg, const struct iovec *payload,
                    unsigned n_payload, repair_ask_done_cb *done);
/** After this nothing comes. An idle one is fine. */
void repair_ask_cancel(struct repair_ask *ask);
/** Answered, with OK. */
static inline bool repair_ask_is_ok(const struct repair_ask *ask, int rc)
{
    return rc == 0 && ask->rq.status == ROZO__STATUS__OK;
}

#endif
