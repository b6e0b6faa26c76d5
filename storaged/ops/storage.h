/*
 * storage.h - the storage daemon without its sockets and files: every ST_* request in, disk
 * requests and answers out. Core; one thread, that of its env.
 *
 * A daemon has one struct storage per loop and sends each file's requests always to the same
 * one; what they share is the identity.
 */
#ifndef ROZO_STORAGED_OPS_STORAGE_H
#define ROZO_STORAGED_OPS_STORAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "common/base/capability.h"
#include "common/base/record.h"
#include "common/env/env.h"
#include "common/rpc/rpc.h"
#include "storaged/disk/disk.h"
#include "storaged/format/generation.h"
#include "storaged/format/identity.h"
#include "storaged/format/projfile.h"
#include "storaged/object/revoked_sessions.h"

struct storage;

/*
 * Safety measures to be left out one at a time, so that the simulator can show that it would notice.
 * For its tests only; the daemon has no setting for it.
 */
enum storage_mutant {
    MUTANT_NO_JOURNAL = 1,      /* what is replaced is overwritten in place */
    MUTANT_NO_JOURNAL_SYNC = 2, /* ST_SYNC does not sync the journal */
    MUTANT_NO_COMMIT_RULE = 4,  /* what is pending is applied at once, without a commit */
    MUTANT_NO_VERSION_CHECK = 8, /* older versions are taken */
    MUTANT_NO_CRC_CHECK = 16,    /* frames of the journal are believed with a wrong crc */
    MUTANT_NO_FENCED = 32,       /* sessions that are over go on writing */
};

/* A client gave us what another storage is to hold. */
struct storage_handoff {
    struct storage_file file;
    unsigned projection; /* home: storages[projection] */
    uint64_t first, end; /* blocks */
    uint64_t version;
};

/* Pages here could not be read, or hold something else than they should: these blocks are to be looked at. */
struct storage_damaged {
    struct storage_file file;
    uint64_t first, end; /* blocks; end UINT64_MAX: all of the file */
};

struct storage_config {
    struct env *env;                  /* borrowed */
    struct disk *disk;                /* borrowed; of the same thread */
    struct identity *identity;        /* borrowed; shared with the other loops */
    struct revoked_sessions *revoked; /* the same */
    struct generations *generations;  /* the same */
    struct capability_key *key;       /* borrowed; of this thread */
    const char *version;              /* what ST_INFO tells, all borrowed */
    const char *host, *rack;
    const char *data_dir;
    const char *const *addresses;
    unsigned n_addresses;
    uint64_t reserve_bytes; /* first writes end at this much free space: disk_reserve() */
    unsigned files_max;     /* projection files held open; 0: 1024 */
    unsigned ops_max;       /* requests under way; above it BUSY; 0: 4096 */
    uint64_t boot;          /* see StWriteResp.verifier */
    uint64_t disk_id;       /* see StInfoResp.disk_id */
    unsigned n_loops, loop; /* files whose hash % n_loops is loop are ours; 0: all are */
    uint64_t journal_bytes; /* of all loops together; 0: 256 MiB */
    unsigned mutant;        /* enum storage_mutant, for tests of the simulator only */
    void (*admitted)(void *arg); /* the identity was written; may be NULL */
    void *arg;
    /* Who wrote it is to say who missed it, but may not live to. May be NULL. */
    void (*handoff)(void *arg, const struct storage_handoff *what);
    void *handoff_arg;
    /* Once for each page, when it is found. May be NULL. */
    void (*damaged)(void *arg, const struct storage_damaged *what);
    void *damaged_arg;
};

/** 0 or -ENOMEM. The config is copied. */
int storage_open(const struct storage_config *config, struct storage **out);

/**
 * Read the journal and take over what is ours of it. done(arg, rc), once and never from inside this call;
 * rc other than 0: the journal cannot be used, the daemon must not serve. Requests are BUSY until
 * storage_serve(), which is for when all loops are done with this.
 */
void storage_start(struct storage *st, void (*done)(void *arg, int rc), void *arg);
void storage_serve(struct storage *st);

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
 * The process has no descriptor left: close some files that nobody uses now, with descriptors smaller than `below`.
 * False: there are none.
 */
bool storage_close_idle(struct storage *st, unsigned below);

/** Add what this loop knows of its journal to *out: journal_bytes to uncommitted. */
void storage_health(const struct storage *st, Rozo__StHealthResp *out);

/* What waits here for a commit: who writes it may be gone. */
struct storage_unsettled {
    struct storage_file file;
    uint64_t first, end; /* blocks; end UINT64_MAX: to the end of everything */
    uint64_t newest;     /* version */
    uint64_t age_ns;     /* of the oldest */
};

/**
 * The next file after *cursor (0: from the start) of which something has been pending for older_than_ns without a
 * commit; *cursor moves on. False: no more.
 */
bool storage_next_unsettled(struct storage *st, uint64_t older_than_ns, uint64_t *cursor,
                            struct storage_unsettled *out);

/**
 * A number that is the same for all requests on one file, so that one loop sees them all. Reads
 * only the front of the packed message; what makes no sense gives 0.
 */
uint32_t storage_route(uint16_t op, const uint8_t *msg, size_t msg_len);

#endif
