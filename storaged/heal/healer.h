/*
 * healer.h - the healing half of a storage daemon.
 *
 * It keeps hints about writes that other storages missed, fetches what this storage
 * missed (resync), recovers incomplete writes, rebuilds a lost disk, and scrubs all files
 * now and then.
 *
 * Serves ST_MAP, ST_MISSED, ST_MISSED_LIST, ST_MISSED_DONE, ST_CHECK, ST_HEALTH, ST_HEAL,
 * ST_REPAIR and ST_LIST; is a client (role NODE) of all storages, its own too. All
 * repairing is done by repair.h.
 *
 *     healer_open(&config, &healer, &err);
 *     healer_start(healer);
 *     ... healer_handle(healer, call) ...
 *     healer_stop(healer, on_stopped, me);
 *     healer_close(healer);
 *
 * Core: one thread, that of the env, the disk, the kv and the channels. It has no sockets
 * and no files of its own, so that a simulator has one for each node.
 */
#ifndef ROZO_STORAGED_HEAL_HEALER_H
#define ROZO_STORAGED_HEAL_HEALER_H

#include "storaged/heal/jobs/heal_config.h"

struct healer;

/**
 * Opens the healer with the state kept in the kv. The config is copied. Returns 0, or
 * -errno with a message in err.
 */
int healer_open(const struct healer_config *config, struct healer **out, struct err *err);
/** Starts healing. Our own storage must answer from now on. */
void healer_start(struct healer *h);
/**
 * Notes that a client gave us a write instead of `home`. If no client reports it within
 * some seconds, a hint is logged that home missed it.
 */
void healer_handoff(struct healer *h, const struct storcli_target *target, uint32_t home,
                    uint64_t first, uint64_t end, uint64_t version);
/**
 * Starts a check of blocks that our own storage found damaged: they are read whole and
 * repaired. end UINT64_MAX: all of the file.
 */
void healer_damaged(struct healer *h, const struct storcli_target *target, uint64_t first,
                    uint64_t end);
/** Returns whether the healer serves this request. */
bool healer_serves(uint16_t op);
/** Serves one of these requests; takes the call. An rpc_handler_cb. */
void healer_handle(void *healer, struct rpc_call *call);
/**
 * Stops: answers new requests with BUSY, abandons work under way, answers waiting
 * requests and closes the channels. Then calls done(arg), once, later.
 */
void healer_stop(struct healer *h, void (*done)(void *arg), void *arg);
/** Frees a healer that has stopped or was never started. NULL is fine. */
void healer_close(struct healer *h);

#endif
