/*
 * storage_config.h - the environment of a storage: what it borrows, and whom it tells.
 *
 * For storage_open(); the ops read it. One thread, that of its env, except where noted.
 */
#ifndef ROZO_STORAGED_OP_STORAGE_CONFIG_H
#define ROZO_STORAGED_OP_STORAGE_CONFIG_H

#include <stdint.h>

#include "common/env/disk.h"
#include "common/env/env.h"
#include "common/wire/capability.h"
#include "storaged/format/generation.h"
#include "storaged/format/identity.h"
#include "storaged/format/projfile.h"
#include "storaged/object/revoked_sessions.h"

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
    uint64_t stream_bytes, link_bytes; /* see StInfoResp */
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

#endif
