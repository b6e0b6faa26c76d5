/*
 * exportd.h - the metadata daemon without its sockets, threads and files.
 *
 * One state machine on one thread, that of the env: requests come in as rpc_calls, everything is
 * kept in a kv, storages are reached over channels that the shell opens. Every call is answered
 * exactly once, and only after what it says is safe.
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
 * Take up what lies in the kv, or begin a new cluster in an empty one. A kv of an unknown format
 * is refused.
 */
int exportd_open(struct env *env, struct kv *kv, const struct exportd_config *config,
                 struct exportd **out, struct err *err);
/** 1 once requests are served, soon after exportd_open(); 0: they are told BUSY; or why never. */
int exportd_is_ready(const struct exportd *x);
/** An rpc_handler_cb; arg is the struct exportd. */
void exportd_handle(void *arg, struct rpc_call *call);
/**
 * Answer nothing new, answer what is waiting, sync; then done(arg, rc): 0 when all that was
 * acknowledged is on stable storage. Then exportd_close().
 */
void exportd_stop(struct exportd *x, void (*done)(void *arg, int rc), void *arg);
/** After exportd_stop() is done. NULL is fine. */
void exportd_close(struct exportd *x);

/** 16 bytes. */
const uint8_t *exportd_cluster_id(const struct exportd *x);

#endif
