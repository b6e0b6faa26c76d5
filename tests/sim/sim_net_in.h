/*
 * sim_net_in.h - what sim_net.c, sim_records.c and sim_storage.c know of each other.
 */
#ifndef ROZO_SIM_NET_IN_H
#define ROZO_SIM_NET_IN_H

#include "tests/sim/sim_net.h"

/* Where a request is on its way. */
enum leg {
    LEG_QUEUED,   /* not sent: its payload is still the caller's */
    LEG_TO,       /* on its way, a copy */
    LEG_KEPT,     /* at a storage that hangs */
    LEG_WORKING,  /* the storage works on it */
    LEG_ANSWERED, /* the answer is on its way */
};

struct sim_request {
    struct sim_request *next;
    struct sim_channel *channel;
    struct rpc_request *rq; /* NULL: cancelled or over */
    enum leg leg;
    struct env_timer timer, deadline;
    uint16_t op;
    uint64_t session;
    uint8_t *msg, *payload; /* owned */
    size_t msg_len, payload_len;
    uint16_t status;
    uint8_t *answer_msg, *answer; /* owned */
    size_t answer_msg_len, answer_len;
};

/* ---- sim_records.c: what blocks have, and what was replaced there ---- */

/** Counted bytes of records. */
uint8_t *bytes_new(size_t len);
/** Takes bytes. */
void record_set(struct sim_record *record, uint64_t version, uint8_t *bytes,
                uint32_t len);
void record_copy(struct sim_record *to, const struct sim_record *from);
/** Forget what is older than `version`. */
void older_forget(struct sim_older *older, uint64_t version);
/** Forget `version` and what is newer, and marks that came below since the last sync: the power is gone. */
void older_forget_from(struct sim_older *older, uint64_t version);
/** Marks that came below are on stable storage. */
void older_synced(struct sim_older *older);
/** A new record or mark; takes bytes. What certainly was a hole before is not kept. */
void block_replace(const struct sim_net *net, struct sim_projection *p, uint64_t b,
                   uint64_t version, uint8_t *bytes, uint32_t len);
/** A mark that came after something newer: who asks what lies below that sees it while that is pending. */
void block_mark_below(struct sim_projection *p, unsigned b, uint64_t version);
/** The newest that is not newer than at_most (0: of all); NULL: a hole that never was anything else. */
const struct sim_record *block_at(const struct sim_net *net,
                                  const struct sim_projection *p, uint64_t b,
                                  uint64_t at_most);
/** `version` takes its place for good, and is synced there. */
void block_apply(struct sim_net *net, struct sim_projection *p, unsigned b,
                 uint64_t version);
/** What these watermarks cover is applied. */
void storage_commit(struct sim_net *net, struct sim_storage *s, size_t n_durable,
                    const uint64_t *durable);
bool is_pending(const struct sim_projection *p, uint64_t first, uint64_t end);

/* ---- sim_storage.c: what storages do ---- */

/** Bytes of a head of this projection. */
size_t head_bytes(const struct sim_net *net, unsigned projection);
/** The request's status; its answer is in r. */
uint16_t storage_carry_out(struct sim_net *net, struct sim_storage *s,
                           struct sim_request *r);

#endif
