/*
 * sim_net.h - storages and a network in memory, on a virtual clock, with faults.
 *
 * Channels deliver requests of any number of clients to storages that keep records, marks
 * and versions as rozo.proto says: a new record or mark is pending until it is committed,
 * and the storage keeps the record that it replaces until then. The seed of the env
 * decides everything that is random. A storage can be down (its links are broken;
 * requests are sent again when it returns), hung (it keeps requests and executes them
 * later), slow, delayed, full or failing; its records can rot; its power can fail.
 */
#ifndef ROZO_SIM_NET_H
#define ROZO_SIM_NET_H

#include "codec/codec.h"
#include "common/rpc/rpc.h"
#include "common/wire/record.h"
#include "storcli/blocks.h"
#include "tests/lib/env_virtual.h"

enum {
    SIM_STORAGES_MAX = 20,
    SIM_CLIENTS_MAX = 100,
    SIM_BLOCKS = 600,     /* blocks of the only file; beyond: only marks to the end */
    SIM_SUSPECT_MS = 500, /* after this time without an answer the channel is suspect */
    SIM_LOOSE_MAX = 64,   /* unstable ranges of a storage; drops the oldest */
    SIM_ALLOCS_MAX = 128,
};

enum sim_state {
    SIM_UP,
    SIM_DOWN,
    SIM_CONNECTING, /* down with new channels that are still connecting */
    SIM_HUNG,
};

/* A record or hole at one block of one projection. */
struct sim_record {
    uint64_t version;
    uint8_t *bytes; /* head and body, reference counted; NULL: a hole of this version */
    uint32_t len;
    bool below; /* a mark that arrived after a newer record; not synced yet */
};

/* Records and marks that a block's newest one
 * replaced, oldest first; kept until the commit. */
struct sim_older {
    struct sim_record *v; /* owned */
    unsigned n, n_max;
};

struct sim_projection {
    bool here, here_stable;
    struct sim_record now[SIM_BLOCKS], stable[SIM_BLOCKS];
    struct sim_older older[SIM_BLOCKS]; /* not empty: `now` is pending */
    uint64_t tail_version, tail_stable; /* version of the mark to the
                                         * end, beyond SIM_BLOCKS */
};

struct sim_storage {
    uint32_t id;
    enum sim_state state;
    uint32_t slow_ms;   /* upper bound of the time that each request takes */
    uint32_t late_ms;   /* each answer is delayed by this time */
    uint32_t lossy_ppm; /* share of messages that are lost and sent again later */
    /* status for ST_WRITE, ST_MARK, ST_ALLOC and (unless FENCED) ST_SYNC; 0: none */
    uint16_t refuse_writes;
    uint16_t refuse_all; /* status for every request; 0: none */
    uint64_t verifier;
    struct sim_projection *projections;           /* owned, CODEC_N_MAX */
    uint64_t n_writes, n_reads, n_marks, n_syncs; /* requests executed */
    uint64_t n_read_blocks, n_commits, n_pending;
    uint64_t n_missed, n_checks;
    uint64_t session;         /* session of the last request that changes data */
    uint32_t dist_generation; /* generation of the distribution of the files
                               * here; requests with a lower one are stale */
    uint64_t missed_blocks[CODEC_N_MAX]; /* blocks in ST_MISSED, by home */
    uint32_t fence; /* writes and marks with epochs up to this one are refused; 0: none */
    struct sim_unstable { /* unstable ranges, returned if
                           * `others` is set; version 0: records */
        uint64_t first, n, version;
    } unstable[SIM_LOOSE_MAX];
    unsigned n_unstable;
    uint64_t alloc_room; /* bytes that can be reserved; 0: no limit */
    struct sim_alloc {   /* reservations; from, to: the pair of `taken` for it */
        unsigned projection;
        uint64_t first, n;
        uint64_t from, to;
    } allocs[SIM_ALLOCS_MAX];
    unsigned n_allocs;
    uint64_t alloc_at; /* start of the next pair; no place is given twice */
    bool pressure;     /* answers have `pressure` set */
    bool doubt;        /* answers have `doubt` set */
};

struct sim_channel {
    struct rpc_channel ch; /* must be the first member */
    struct sim_net *net;
    struct sim_storage *storage;
    uint64_t suspect_at_ns; /* ns, virtual clock; 0: no request is overdue */
    bool is_dead;           /* the client was killed */
};

struct sim_net {
    struct env_virtual *v; /* borrowed */
    const struct codec *codec;
    struct storcli_target target;
    unsigned n_storages;
    struct sim_storage storages[SIM_STORAGES_MAX];
    struct sim_channel channels[SIM_CLIENTS_MAX][SIM_STORAGES_MAX];
    struct sim_request *requests; /* owned list */
    uint64_t n_bad;    /* requests that break the protocol; asserted to be 0 at the end */
    uint64_t n_unsafe; /* watermarks that covered unstable
                        * versions; asserted to be 0 at the end */
    bool no_journal;   /* overwrites destroy the old record: nothing is pending */
    bool no_at_most;   /* reads ignore at_most */
    uint16_t refuse_missed; /* status for ST_MISSED; 0: none */
    uint32_t delay_ms;      /* upper bound of the transit time of a message */
};

/** Sets up one file of this layout; its
 * distribution is storages 1..n_storages in order. */
void sim_net_init(struct sim_net *net, struct env_virtual *v, unsigned kind,
                  unsigned layout, unsigned n_storages);
void sim_net_close(struct sim_net *net);
/** Returns the channels of client number `client`; they live as long as the net. */
struct storcli_peers sim_net_peers(struct sim_net *net, unsigned client);

void sim_storage_set(struct sim_net *net, unsigned storage, enum sim_state state);
/** Drops everything unsynced and changes the verifier. The state of the storage stays. */
void sim_storage_power_cut(struct sim_net *net, unsigned storage);
/** Kills a client: some of its requests still arrive, and it receives no more answers. */
void sim_net_kill_client(struct sim_net *net, unsigned client);
/** Applies everything that is pending on the storage, as a commit of all of it does. */
void sim_storage_apply(struct sim_net *net, unsigned storage);
/** Swaps a block's newest record and the one
 * below it: the newest one has not arrived yet. */
void sim_storage_swap(struct sim_net *net, unsigned storage, unsigned block);
/** Flips a bit of the record of (projection, block). Returns false if there is none. */
bool sim_storage_rot(struct sim_net *net, unsigned storage, unsigned projection,
                     unsigned block);

/** Prints the projections and versions of a block on every storage, for debugging. */
void sim_net_dump(const struct sim_net *net, unsigned block);

/** Returns the number of distinct projections of a block at exactly this
 * version with a right crc (of storages, if they are holes). stable:
 * counts only stable records. away: bitmap of storages to skip. */
unsigned sim_net_count(struct sim_net *net, unsigned block, uint64_t version, bool stable,
                       uint32_t away);
/** Returns the newest version of this block on any storage. */
uint64_t sim_net_newest(const struct sim_net *net, unsigned block);
/** Returns the number of storages with this block
 * stable at `version` or newer, any projection. */
unsigned sim_net_count_since(struct sim_net *net, unsigned block, uint64_t version);
/** Returns the largest sim_net_count() of stable
 * records over all versions from `version` on. */
unsigned sim_net_most_since(struct sim_net *net, unsigned block, uint64_t version);

#endif
