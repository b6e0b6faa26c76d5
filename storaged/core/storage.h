/*
 * storage.h - the storage daemon without its sockets and files: every ST_* request in, disk
 * requests and answers out. Core; one thread, that of its env.
 *
 * A daemon has one struct storage per loop and sends each file's requests always to the same
 * one; what they share is the identity.
 */
#ifndef ROZO_STORAGED_STORAGE_H
#define ROZO_STORAGED_STORAGE_H

#include <stdint.h>

#include "common/capability.h"
#include "common/env.h"
#include "common/rpc.h"
#include "storaged/core/disk.h"
#include "storaged/core/generation.h"
#include "storaged/core/identity.h"

struct storage;

struct storage_config {
    struct env *env;                 /* borrowed */
    struct disk *disk;               /* borrowed; of the same thread */
    struct identity *identity;       /* borrowed; shared with the other loops */
    struct generations *generations; /* the same */
    struct capability_key *key;      /* borrowed; of this thread */
    const char *version;             /* what ST_INFO tells, all borrowed */
    const char *host, *rack;
    const char *data_dir;
    const char *const *addresses;
    unsigned n_addresses;
    uint64_t reserve_bytes; /* first writes end at this much free space; UINT64_MAX: 1 %,
                                      at most 64 MiB */
    unsigned files_max;     /* projection files held open; 0: 1024 */
    unsigned ops_max;       /* requests under way; above it BUSY; 0: 4096 */
    uint64_t boot;          /* see StWriteResp.verifier */
    unsigned n_loops, loop; /* files whose hash % n_loops is loop are ours; 0: all are */
    void (*admitted)(void *arg); /* the identity was written; may be NULL */
    void *arg;
};

/** 0 or -ENOMEM. The config is copied. */
int storage_open(const struct storage_config *config, struct storage **out);

/** Any ST_* request; takes the call (rpc.h). An rpc_handler_cb. */
void storage_handle(void *storage, struct rpc_call *call);

/**
 * Refuse what comes from now on with BUSY, answer what is under way, bring the files in the cache
 * to stable storage; then done(arg), once and never from inside this call. Answers may still be
 * on their way out.
 */
void storage_stop(struct storage *st, void (*done)(void *arg), void *arg);

/** When nothing is under way and every answer is sent. NULL is fine. */
void storage_close(struct storage *st);

/**
 * A number that is the same for all requests on one file, so that one loop sees them all. Reads
 * only the front of the packed message; what makes no sense gives 0.
 */
uint32_t storage_route(uint16_t op, const uint8_t *msg, size_t msg_len);

#endif
