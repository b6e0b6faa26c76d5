/*
 * repair_ask.h - requests of the healer about one file: their common parts, and one
 * request.
 *
 * Thread: that of the env. The other parts of a repair send only through this.
 */
#ifndef ROZO_STORAGED_HEAL_DECIDE_REPAIR_ASK_H
#define ROZO_STORAGED_HEAL_DECIDE_REPAIR_ASK_H

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

/* One file and its code, as healing uses it. Must not move after heal_file_init(). */
struct heal_file {
    struct env *env; /* borrowed */
    struct storcli_peers peers;
    uint32_t deadline_ms; /* for every request */
    struct storcli_target target;
    const struct codec *codec;
    unsigned k, n, c;
    unsigned q;        /* quorum_read(): what a decision may rely on */
    unsigned q_commit; /* quorum_write(): storages that must have what is committed */
    uint32_t file_hash;
    size_t row_bytes; /* bytes of a row of a full block */
    /* Candidate that must hold projection p: candidate p, or a spare if that one is lost
     * for good; HEAL_NO_CANDIDATE if no spare is left. */
    uint8_t home[CODEC_N_MAX];
    uint32_t lost; /* bitmap of candidates that are lost for good */
    /* Bitmap of candidates that left a request unanswered or refused it. */
    uint32_t unanswered;
    /* Bitmap of candidates that know a later distribution than target's. */
    uint32_t moved;
    Rozo__FileRef ref;
    uint8_t id[FILE_ID_BYTES];
};

/**
 * Checks code, layout and distribution. Returns 0, or -EINVAL if no file can have them.
 */
int heal_target_check(const struct storcli_target *target);
/**
 * Fills in a file. lost: bitmap of places in the distribution. Returns 0, or -EINVAL for
 * an invalid target.
 */
int heal_file_init(struct heal_file *file, struct env *env,
                   const struct storcli_peers *peers, uint32_t deadline_ms,
                   const struct storcli_target *target, uint32_t lost);
/** Returns the bitmap of all candidates. */
uint32_t heal_file_all(const struct heal_file *file);
/** Returns whether the channel to this candidate is up. */
bool heal_file_is_up(const struct heal_file *file, unsigned candidate);
/** Returns the bytes of a head (record header and overhang) of projection p. */
size_t heal_head_bytes(const struct heal_file *file, unsigned p);

/**
 * Returns the bytes of the body that belongs to this head of projection p; 0: it has
 * none.
 */
size_t heal_row(const struct heal_file *file, uint64_t block, unsigned p,
                const uint8_t *head);
/**
 * Returns the total bytes of the bodies that belong to n heads of projection p of blocks
 * from `first` on. The heads are at buf, followed by n places of a full row each. If iov
 * is not NULL, it gets where the bodies go (room for n entries), and *n_iov, 0 before,
 * their number.
 */
size_t heal_bodies(const struct heal_file *file, uint64_t first, unsigned n, unsigned p,
                   uint8_t *buf, struct iovec *iov, unsigned *n_iov);

/**
 * Answers an rpc_place_cb: bodies go after the heads at buf, each into its place.
 * Returns the number of entries in iov, or -EBADMSG if rest_len does not fit the heads.
 */
int heal_bodies_place(const struct heal_file *file, uint64_t first, unsigned n,
                      unsigned p, uint8_t *buf, size_t rest_len, struct iovec *iov);

struct repair_ask;
/**
 * Ends a request. rc 0: an answer came, with its status in ask->rq.status; else none
 * came. May send the same ask again.
 */
typedef void repair_ask_done_cb(struct repair_ask *ask, int rc);

/* One request to one candidate. Embedded in its owner, zero-initialised; must not move
 * while sent. */
struct repair_ask {
    struct rpc_request rq;
    struct heal_file *file; /* borrowed */
    repair_ask_done_cb *done;
    uint8_t candidate;
    bool sent;
    /* As in struct rpc_request; either NULL and 0, or set before repair_ask_send(). */
    rpc_place_cb *place;
    void *recv_head;
    size_t recv_head_len;
};

/**
 * Sends a request. The message, with ref and to_storage set, is copied; payload is
 * borrowed until done.
 * @return 0; -ENOTCONN if that storage is not up (noted as unanswered); -ENOMEM. If it is
 * not 0, done is never called.
 */
int repair_ask_send(struct repair_ask *ask, struct heal_file *file, unsigned candidate,
                    uint16_t op, const ProtobufCMessage *msg, const struct iovec *payload,
                    unsigned n_payload, repair_ask_done_cb *done);
/** Cancels a request: done is not called. Does nothing if none is sent. */
void repair_ask_cancel(struct repair_ask *ask);
/** Returns whether an answer came with status OK. */
static inline bool repair_ask_is_ok(const struct repair_ask *ask, int rc)
{
    return rc == 0 && ask->rq.status == ROZO__STATUS__OK;
}

#endif
