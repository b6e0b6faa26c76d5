/*
 * heal_config.h - what a healer is given.
 */
#ifndef ROZO_STORAGED_HEAL_JOBS_HEAL_CONFIG_H
#define ROZO_STORAGED_HEAL_JOBS_HEAL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "common/proto/rozo.pb-c.h"

#include "common/env/disk.h"
#include "common/env/env.h"
#include "common/env/kv.h"
#include "common/rpc/rpc.h"
#include "common/wire/capability.h"
#include "storaged/format/identity.h"
#include "storaged/object/revoked_sessions.h"
#include "storcli/blocks.h"

enum { HEAL_UNCOMMITTED_MAX = 64, HEAL_ADDRS_MAX = 16 };

/* Opens and closes channels to storages, in role NODE. */
struct healer_peers {
    /**
     * Returns a channel to storage `id` of this incarnation (zeros: any) at these
     * addresses; NULL if they are invalid.
     */
    struct rpc_channel *(*open)(void *arg, uint32_t id,
                                const uint8_t incarnation[IDENTITY_ID_BYTES],
                                const char *const *addrs, unsigned n_addrs);
    /** Closes a channel. Requests still on it end with an error, later. */
    void (*close)(void *arg, struct rpc_channel *ch);
    void *arg;
};

/* A file with uncommitted content in the journal (storage_next_uncommitted()). */
struct heal_uncommitted {
    struct storcli_target target;
    uint64_t first, end; /* blocks; end UINT64_MAX: no end */
    uint64_t age_ns;
};

/* A question to all loops of our own storage, which may run on other threads. */
struct heal_question {
    uint64_t older_than_ns; /* in: only files uncommitted for longer than this */
    struct heal_uncommitted uncommitted[HEAL_UNCOMMITTED_MAX];
    unsigned n_uncommitted;
    Rozo__StHealthResp health; /* the journal's part */
    /* Called once, later, on the healer's thread. */
    void (*answered)(struct heal_question *q);
};

struct healer_config {
    struct env *env;           /* borrowed, as are all pointers here */
    struct disk *disk;         /* data directory: for listing it, and for storage.id */
    struct kv *kv;             /* used by the healer alone, syncs too */
    struct identity *identity; /* shared with the loops of the storage */
    struct revoked_sessions *revoked; /* set from the cluster map */
    struct capability_key *key;       /* for the healer's thread */
    struct healer_peers peers;
    /**
     * Asks our own storage: for uncommitted files, or for the journal's part of
     * ST_HEALTH.
     */
    void (*ask_uncommitted)(void *arg, struct heal_question *q);
    void (*ask_health)(void *arg, struct heal_question *q);
    void *arg;
    uint64_t boot; /* boot id of the machine */
    /* Unsynced data of this storage may have been lost in a power failure once. */
    bool power_was_lost;
    uint64_t rate_bytes; /* rate of healing, per second; 0: no limit */
    /* bytes per second that the storage can carry for streams, healing included; 0: not
     * known */
    uint64_t stream_bytes;
    uint64_t scrub_rate_bytes; /* further limit of a scrub, per second; 0: no limit */
    /* Days from the end of a scrub to the start of the next; 0: never. */
    uint32_t scrub_days;
    uint32_t concurrency;    /* repairs under way; 0: 4 */
    uint32_t uncommitted_ms; /* ms before uncommitted content is recovered; 0: 10000 */
    uint32_t return_ms; /* ms between questions to peers for missed writes; 0: 10000 */
    uint64_t missed_ranges_max, missed_files_max; /* see hint_log.h */
};

#endif
