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
 * Safety measures that the simulator switches off one at a time, to show that it notices.
 * For its tests only; the daemon has no such setting.
 */
enum storage_mutant {
    MUTANT_NO_JOURNAL = 1,       /* records are overwritten in place */
    MUTANT_NO_JOURNAL_SYNC = 2,  /* ST_SYNC does not sync the journal */
    MUTANT_NO_COMMIT_RULE = 4,   /* pending records are applied without a commit */
    MUTANT_NO_VERSION_CHECK = 8, /* older versions are accepted */
    MUTANT_NO_CRC_CHECK = 16,    /* journal frames with a wrong crc are accepted */
    MUTANT_NO_FENCED = 32,       /* ended sessions may still write */
};

/* A write that this storage took in place of a home (handoff). */
struct storage_handoff {
    struct storage_file file;
    unsigned projection; /* the home is storages[projection] */
    uint64_t first, end; /* blocks */
    uint64_t version;
};

/* Blocks that must be checked: pages of them could not be read or are corrupt. */
struct storage_damaged {
    struct storage_file file;
    uint64_t first, end; /* blocks; end UINT64_MAX: all of the file */
};

struct storage_config {
    struct env *env;                  /* borrowed */
    struct disk *disk;                /* borrowed; of the same thread */
    struct identity *identity;        /* borrowed; shared by all loops */
    struct revoked_sessions *revoked; /* borrowed; shared by all loops */
    struct generations *generations;  /* borrowed; shared by all loops */
    struct capability_key *key;       /* borrowed; of this thread */
    const char *version;              /* facts for ST_INFO; borrowed */
    const char *host, *rack;
    const char *data_dir;
    const char *const *addresses;
    unsigned n_addresses;
    /* bytes; first writes stop at this much free space, see disk_reserve() */
    uint64_t reserve_bytes;
    unsigned files_max; /* bound of open projection files; 0: 1024 */
    unsigned ops_max;   /* bound of requests under way, above it BUSY; 0: 4096 */
    uint64_t boot;      /* see StWriteResp.verifier */
    uint64_t disk_id;   /* see StInfoResp.disk_id */
    /* this loop has the files with hash % n_loops == loop; n_loops 0: all */
    unsigned n_loops, loop;
    uint64_t journal_bytes; /* bytes, of all loops; 0: 256 MiB */
    unsigned mutant;        /* enum storage_mutant, for tests of the simulator only */
    void (*admitted)(void *arg); /* called after the identity was written; may be NULL */
    void *arg;
    /*
     * Called for a handoff. The client will say which home missed the write, unless it
     * dies first. May be NULL.
     */
    void (*handoff)(void *arg, const struct storage_handoff *what);
    void *handoff_arg;
    /* Called once for each damaged page when it is found. May be NULL. */
    void (*damaged)(void *arg, const struct storage_damaged *what);
    void *damaged_arg;
};

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
struct storage_unsettled {
    struct storage_file file;
    uint64_t first, end; /* blocks; end UINT64_MAX: no end */
    uint64_t newest;     /* newest version among them */
    uint64_t age_ns;     /* ns since the oldest one came */
};

/**
 * Finds the next file behind *cursor (0: the start) with anything uncommitted for
 * older_than_ns, and moves *cursor. Returns false if there is none.
 */
bool storage_next_unsettled(struct storage *st, uint64_t older_than_ns, uint64_t *cursor,
                            struct storage_unsettled *out);

/**
 * Returns a number that is equal for all requests on one file, so that one loop gets them
 * all. Reads only the front of the packed message; an unreadable message gives 0.
 */
uint32_t storage_route(uint16_t op, const uint8_t *msg, size_t msg_len);

#endif
