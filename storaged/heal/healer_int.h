/*
 * healer_int.h - declarations shared by the parts of the healer. Inside storaged/heal
 * only.
 *
 * A part (resync, rebuild, scrub, checks) makes jobs; heal_jobs.c runs a limited number
 * of them, in the order of their rank; repair.c does the work. Operations that will call
 * back count in n_busy, so that a stop knows when nothing points to the healer any more.
 */
#ifndef ROZO_STORAGED_HEAL_HEALER_INT_H
#define ROZO_STORAGED_HEAL_HEALER_INT_H

#include "storaged/heal/heal_check.h"
#include "storaged/heal/healer.h"
#include "storaged/heal/jobs/heal_state.h"
#include "storaged/heal/rebuild.h"
#include "storaged/heal/resync.h"
#include "storaged/heal/scrub.h"

/* Writes that we hold for other storages; only handoff.c writes this. */
struct handoffs {
    struct list_node list; /* oldest first */
    unsigned n;
    struct env_timer timer;
};

/* Proofs that were asked for, oldest first; only prove.c writes this. */
struct proofs {
    struct list_node list;
    unsigned n;
};

/* Parts of the healer, each with an owner. */
struct heal_parts {
    struct healer *h; /* borrowed: its owner */
    struct handoffs handoffs;
    struct proofs proofs;
    struct resync resync;
    struct heal_checks checks;
    struct rebuild rebuild;
    struct scrub scrub;
};

/** Returns our incarnation, for messages; borrowed. */
ProtobufCBinaryData healer_incarnation(const struct healer *h);
/** Writes a key, without waiting for it. val NULL: deletes it. */
void healer_put(struct healer *h, const char *key, const void *val, size_t len);
/**
 * Reads a key of exactly len bytes into val. Returns 0, -ENOENT, or -ROZO_EDAMAGED for
 * another length.
 */
int healer_get(struct healer *h, const char *key, void *val, size_t len);
/** Answers a call with OK and a message. */
void heal_reply(struct rpc_call *call, const ProtobufCMessage *msg);

void hints_handle(struct healer *h, struct rpc_call *call);
/** Answers a call when all hints logged so far are on stable storage. */
void hints_reply_stable(struct healer *h, struct rpc_call *call);
void hints_handle_list(struct healer *h, struct rpc_call *call);
void hints_handle_done(struct healer *h, struct rpc_call *call);

void handoff_init(struct healer *h);
void handoff_start(struct healer *h);
void handoff_stop(struct healer *h);

void proofs_init(struct healer *h);
void prove_handle(struct healer *h, struct rpc_call *call);
void proofs_stop(struct healer *h);

#endif
