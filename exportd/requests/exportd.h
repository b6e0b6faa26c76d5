/*
 * exportd.h - the metadata daemon without its sockets, threads and files.
 *
 * One state machine on one thread, that of the env: requests come in as rpc_calls,
 * everything is kept in a kv, storages are reached over channels that the shell opens.
 * Each call is answered exactly once, and only after the changes it reports are safe.
 */
#ifndef ROZO_EXPORTD_REQUESTS_EXPORTD_H
#define ROZO_EXPORTD_REQUESTS_EXPORTD_H

#include "common/base/err.h"
#include "common/env/env.h"
#include "common/env/kv.h"
#include "common/rpc/rpc.h"
#include "exportd/cluster/exportd_config.h"
#include "exportd/sessions/session_tokens.h"

/**
 * Opens the cluster in the kv, or makes a new one in an empty kv. A kv of an unknown
 * format is refused.
 */
int exportd_open(struct env *env, struct kv *kv, const struct exportd_config *config,
                 struct exportd **out, struct err *err);
/**
 * Returns 1 if requests are served, soon after exportd_open(); 0: they are answered BUSY;
 * or the -errno that prevents it for good.
 */
int exportd_is_ready(const struct exportd *x);
/** Handles a request: an rpc_handler_cb whose arg is the struct exportd. */
void exportd_handle(void *arg, struct rpc_call *call);
/**
 * Takes no new requests, answers all waiting ones, syncs; then done(arg, rc), 0 if all
 * acknowledged changes are on stable storage. exportd_close() follows.
 */
void exportd_stop(struct exportd *x, void (*done)(void *arg, int rc), void *arg);
/**
 * Stops when another process may change the kv from now on (kv_quorum_depose()), or when
 * the kv has failed. From the return of this call on nothing is written to the kv and
 * nothing sent to storages, and all calls, waiting and new ones, are answered NOT_LEADER:
 * what was done since the last commit may never have been. done(arg,
 * -ROZO_ENOT_LEADER) comes when the kv has ended its callbacks; exportd_close() follows.
 * While exportd_stop() is under way, done takes the place of its done. Not twice.
 */
void exportd_abandon(struct exportd *x, void (*done)(void *arg, int rc), void *arg);
/** Frees exportd after exportd_stop() or exportd_abandon() is done. NULL is fine. */
void exportd_close(struct exportd *x);

/** Returns the number of this start. */
uint32_t exportd_start(const struct exportd *x);
/** Returns the id of the cluster, 16 bytes. */
const uint8_t *exportd_cluster_id(const struct exportd *x);
/**
 * Returns the number of the later start that a storage knew when it was deposed, as
 * cluster_start_number() makes it; 0: not known.
 */
uint64_t exportd_start_known(const struct exportd *x);

#endif
