/*
 * sim_net_in.h - internal interface between sim_net.c, sim_records.c and sim_storage.c.
 */
#ifndef ROZO_SIM_NET_IN_H
#define ROZO_SIM_NET_IN_H

#include "tests/sim/sim_net.h"

/* Stages of a request. */
enum leg {
    LEG_QUEUED,   /* not sent yet: the payload still belongs to the caller */
    LEG_TO,       /* in transit, as a copy */
    LEG_KEPT,     /* held by a hung storage */
    LEG_WORKING,  /* in work at the storage */
    LEG_ANSWERED, /* answer in transit */
};

struct sim_request {
    struct sim_request *next;
    struct sim_channel *channel;
    struct rpc_request *rq; /* borrowed; NULL: cancelled or done */
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

/* ---- sim_records.c: records of blocks, and the records that they replaced ---- */

/** Returns len bytes with a reference count of 1. */
uint8_t *bytes_new(size_t len);
/** Sets a record; takes over the reference to bytes. */
void record_set(struct sim_record *record, uint64_t version, uint8_t *bytes,
                uint32_t len);
void record_copy(struct sim_record *to, const struct sim_record *from);
/** Drops the records older than `version`. */
void older_forget(struct sim_older *older, uint64_t version);
/** Drops the records from `version` on and
 * unsynced marks below newer records: power loss. */
void older_forget_from(struct sim_older *older, uint64_t version);
/** Makes stable the marks that arrived below newer records. */
void older_synced(struct sim_older *older);
/** Adds a new record or mark; takes over bytes.
 * Keeps no old record if the block was never used. */
void block_replace(const struct sim_net *net, struct sim_projection *p, uint64_t b,
                   uint64_t version, uint8_t *bytes, uint32_t len);
/** Inserts a mark below a newer record: reads at
 * an older version see it while it is pending. */
void block_mark_below(struct sim_projection *p, unsigned b, uint64_t version);
/** Returns the newest record that is not newer than at_most (0:
 * the newest of all). NULL: a hole that was never anything else. */
const struct sim_record *block_at(const struct sim_net *net,
                                  const struct sim_projection *p, uint64_t b,
                                  uint64_t at_most);
/** Commits `version`: it replaces its older records for good and is stable. */
void block_apply(struct sim_net *net, struct sim_projection *p, unsigned b,
                 uint64_t version);
/** Commits the versions that these watermarks cover. */
void storage_commit(struct sim_net *net, struct sim_storage *s, size_t n_durable,
                    const uint64_t *durable);
bool is_pending(const struct sim_projection *p, uint64_t first, uint64_t end);

/* ---- sim_storage.c: execution of requests ---- */

/** Returns the bytes of a record's head in this projection. */
size_t head_bytes(const struct sim_net *net, unsigned projection);
/** Executes a request. Returns its status; the answer is stored in r. */
uint16_t storage_carry_out(struct sim_net *net, struct sim_storage *s,
                           struct sim_request *r);

#endif
