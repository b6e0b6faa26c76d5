/*
 * storage.h - the storage daemon without sockets and files: ST_* requests in, disk
 * requests and answers out.
 *
 * Core; one thread, that of its env. A daemon has one struct storage per loop and sends
 * the requests of each file always to the same one. The loops share identity, revoked
 * sessions and generations.
 */
#ifndef ROZO_STORAGED_OPS_STORAGE_H
#define ROZO_STORAGED_OPS_STORAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "common/rpc/rpc.h"
#include "storaged/op/storage_config.h"

struct storage;

/** Makes a storage. The config is copied. Returns 0 or -ENOMEM. */
int storage_open(const struct storage_config *config, struct storage **out);

/**
 * Reads the journal and takes over the entries of this loop. done(arg, rc) comes once and
 * never inside this call; if rc is not 0 the journal cannot be used and the daemon must
 * not serve. Requests are BUSY until storage_serve(); call that when this has ended for
 * all loops.
 */
void storage_start(struct storage *st, void (*done)(void *arg, int rc), void *arg);
void storage_serve(struct storage *st);

/** Handles any ST_* request; takes the call (rpc.h). An rpc_handler_cb. */
void storage_handle(void *storage, struct rpc_call *call);

/**
 * Refuses new requests with BUSY, answers those under way, and makes the files in the
 * cache stable; then done(arg), once and never inside this call. Answers may still be on
 * their way out.
 */
void storage_stop(struct storage *st, void (*done)(void *arg), void *arg);

/** Frees the storage when nothing is under way and every answer is sent. NULL is fine. */
void storage_close(struct storage *st);

/**
 * Closes some idle files, because the process has no descriptor left. Only descriptors
 * smaller than `below`: others do not help. Returns false if there are none.
 */
bool storage_close_idle(struct storage *st, unsigned below);
/** Adds this loop's part to *out: the journal and the disk's health. */
void storage_health(const struct storage *st, Rozo__StHealthResp *out);

/* Records and marks of a file that wait here for a commit; their writer may be dead. */
struct storage_uncommitted {
    struct storage_file file;
    uint64_t first, end; /* blocks; end UINT64_MAX: no end */
    uint64_t newest;     /* newest version among them */
    uint64_t age_ns;     /* ns since the oldest one came */
};

/**
 * Finds the next file behind *cursor (0: the start) with anything uncommitted for
 * older_than_ns, and moves *cursor. Returns false if there is none.
 */
bool storage_next_uncommitted(struct storage *st, uint64_t older_than_ns,
                              uint64_t *cursor, struct storage_uncommitted *out);

/**
 * Returns a number that is equal for all requests on one file, so that one loop gets them
 * all. Reads only the front of the packed message; an unreadable message gives 0.
 */
uint32_t storage_route(uint16_t op, const uint8_t *msg, size_t msg_len);

#endif
