/*
 * real.h - real storages (storaged/ops with their journal) on disks in memory, one env,
 * channels of nodes to them, and a client driven by hand. There is one file.
 */
#ifndef ROZO_TEST_HEAL_REAL_H
#define ROZO_TEST_HEAL_REAL_H

#include "common/proto/rozo.pb-c.h"

#include "storaged/ops/storage.h"
#include "tests/lib/env_virtual.h"
#include "tests/lib/memdisk.h"
#include "tests/unit/heal/made.h"
#include "tests/unit/heal/run.h"
#include "tests/unit/unit.h"

enum { REAL_STORAGES = 16 };

struct real;

struct real_storage {
    struct rpc_channel ch; /* must be the first member; the channel serves all drivers */
    struct real *real;
    unsigned index;
    bool up;
    struct memdisk disk;
    struct identity identity;
    struct revoked_sessions revoked;
    struct generations generations;
    struct storage_config config;
    struct storage *storage;
    unsigned n_calls; /* calls in progress inside the storage */
};

struct real {
    struct env_virtual v;
    struct storcli_target target;
    unsigned k, n, c, q;
    unsigned n_storages;
    struct capability_key *key;
    struct real_storage storages[REAL_STORAGES];
    struct real_call *calls;
    uint64_t n_of[32];
    uint64_t n_read_bytes;
};

void real_init(struct real *r, uint64_t seed, unsigned kind, unsigned layout);
void real_close(struct real *r);
/** n storages more, which are no candidates yet. */
void real_more(struct real *r, unsigned n);
struct storcli_peers real_peers(struct real *r);
/** Lets time pass. */
void real_run_ms(struct real *r, uint64_t ms);
/** Restarts a storage, with or without a power cut. No call may be in progress: let time
 * pass before. */
void real_restart(struct real *r, unsigned storage, bool power_cut);
/** Replaces the lost disk of a storage by an empty one. */
void real_replace(struct real *r, unsigned storage);

/** Starts a repair of the target by storage `own`; the request needs no target. */
void real_repair(struct real *r, struct run *run, unsigned own,
                 struct repair_request request);
/** Waits for the end of a repair. Returns its result. */
struct repair_result real_run_end(struct real *r, struct run *run);

/** Writes n blocks at all homes except those in `but`. */
void real_write_homes(struct real *r, uint64_t first, unsigned n, uint64_t version,
                      uint32_t but, bool sync);
/** Sends a client's write to one storage and waits. Returns the status. */
uint16_t real_write(struct real *r, unsigned storage, unsigned projection, uint64_t block,
                    unsigned n, uint64_t version, bool sync);
/** Sends a client's mark; n 0: to the end. */
uint16_t real_mark(struct real *r, unsigned storage, unsigned projection, uint64_t first,
                   uint64_t n, uint64_t version);
uint16_t real_sync(struct real *r, unsigned storage);
uint16_t real_commit(struct real *r, unsigned storage, uint64_t first, uint64_t n,
                     uint64_t version);
uint16_t real_whole(struct real *r, unsigned storage, uint32_t projections);
/** Sends the target's current distribution to a storage (ST_REDIST). */
uint16_t real_redist(struct real *r, unsigned storage, uint32_t make_partial);
/** Reads the versions of blocks [first, first + n), n 1..128, of one extent, and checks
 * every byte. A block never written gives 0, a damaged one UINT64_MAX. Returns the
 * status. */
uint16_t real_read(struct real *r, unsigned storage, unsigned projection, uint64_t first,
                   unsigned n, uint64_t *versions);
/** Counts the records in all journals that wait for a commit. */
uint64_t real_uncommitted(struct real *r);

#endif
