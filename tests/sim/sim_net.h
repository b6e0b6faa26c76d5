/*
 * sim_net.h - storages and a network in memory, on a virtual clock, with faults.
 *
 * Channels deliver requests of any number of clients to storages that keep records, marks and
 * versions as rozo.proto says: what replaces something is pending, and keeps what it replaced, until
 * it is committed. Everything random comes from the env's seed. A storage can be down
 * (links broken; requests are sent again when it returns), hung (requests are kept and carried out
 * late), slow, late, full, failing; its records can rot; its power can fail.
 */
#ifndef ROZO_SIM_NET_H
#define ROZO_SIM_NET_H

#include "codec/codec.h"
#include "common/base/record.h"
#include "common/rpc/rpc.h"
#include "storcli/blocks.h"
#include "tests/lib/env_virtual.h"

enum {
    SIM_STORAGES_MAX = 20,
    SIM_CLIENTS_MAX = 100,
    SIM_BLOCKS = 600,     /* of the one file there is; beyond, only marks to the end */
    SIM_SUSPECT_MS = 500, /* after a request that is not answered */
    SIM_LOOSE_MAX = 64,   /* the oldest is forgotten */
    SIM_ALLOCS_MAX = 128,
};

enum sim_state {
    SIM_UP,
    SIM_DOWN,
    SIM_CONNECTING, /* down, too, but the channels are new */
    SIM_HUNG,
};

/* What lies at one block of one projection. */
struct sim_record {
    uint64_t version;
    uint8_t *bytes; /* head and body, counted; NULL: a hole of this version */
    uint32_t len;
    bool below; /* a mark that came after something newer; not synced yet */
};

/* What a block's newest record or mark replaced, oldest first, until that is committed. */
struct sim_older {
    struct sim_record *v; /* owned */
    unsigned n, n_max;
};

struct sim_projection {
    bool here, here_stable;
    struct sim_record now[SIM_BLOCKS], stable[SIM_BLOCKS];
    struct sim_older older[SIM_BLOCKS]; /* not empty: `now` is pending */
    uint64_t tail_version, tail_stable; /* mark to the end, beyond SIM_BLOCKS */
};

struct sim_storage {
    uint32_t id;
    enum sim_state state;
    uint32_t slow_ms;   /* each request takes up to this long */
    uint32_t late_ms;   /* each answer comes so much later than it was sent */
    uint32_t lossy_ppm; /* of messages that get lost, and are sent again later */
    uint16_t
        refuse_writes; /* a status for ST_WRITE, ST_MARK, ST_ALLOC, and but for FENCED ST_SYNC; 0: none */
    uint16_t refuse_all; /* a status for everything; 0: none */
    uint64_t verifier;
    struct sim_projection *projections;           /* owned, CODEC_N_MAX */
    uint64_t n_writes, n_reads, n_marks, n_syncs; /* requests carried out */
    uint64_t n_read_blocks, n_commits, n_pending;
    uint64_t n_missed, n_checks;
    uint64_t session;         /* that the last request to change something named */
    uint32_t dist_generation; /* of the headers here: what names a lower one is stale */
    uint64_t
        missed_blocks[CODEC_N_MAX]; /* of these, by home: summed, as they were told */
    uint32_t fence; /* writes and marks with epochs up to this one are refused; 0: none */
    struct sim_unstable { /* what it tells of with `others`; version 0: records */
        uint64_t first, n, version;
    } unstable[SIM_LOOSE_MAX];
    unsigned n_unstable;
    uint64_t alloc_room; /* bytes that can be reserved; 0: no limit */
    struct sim_alloc {   /* what is reserved; a pair of `taken` says where it lies */
        unsigned projection;
        uint64_t first, n;
        uint64_t from, to;
    } allocs[SIM_ALLOCS_MAX];
    unsigned n_allocs;
    uint64_t alloc_at; /* pairs begin there, never twice at one place */
    bool pressure;     /* it says so in its answers */
    bool doubt;        /* the same */
};

struct sim_channel {
    struct rpc_channel ch; /* first */
    struct sim_net *net;
    struct sim_storage *storage;
    uint64_t suspect_at_ns; /* 0: nothing is overdue */
    bool is_dead;           /* its client is */
};

struct sim_net {
    struct env_virtual *v; /* borrowed */
    const struct codec *codec;
    struct storcli_target target;
    unsigned n_storages;
    struct sim_storage storages[SIM_STORAGES_MAX];
    struct sim_channel channels[SIM_CLIENTS_MAX][SIM_STORAGES_MAX];
    struct sim_request *requests; /* owned list */
    uint64_t n_bad;    /* requests that no client may send: asserted to be 0 at the end */
    uint64_t n_unsafe; /* watermarks that covered what was not durable: the same */
    bool
        no_journal; /* overwrites destroy what was there, as before there were journals */
    bool no_at_most;        /* reads say only the newest there is */
    uint16_t refuse_missed; /* a status for ST_MISSED; 0: none */
    uint32_t delay_ms;      /* a message takes 0..delay_ms */
};

/** One file of this layout; its distribution is storages 1..n_storages in order. */
void sim_net_init(struct sim_net *net, struct env_virtual *v, unsigned kind,
                  unsigned layout, unsigned n_storages);
void sim_net_close(struct sim_net *net);
/** How client number `client` reaches them. The channels live as long as the net. */
struct storcli_peers sim_net_peers(struct sim_net *net, unsigned client);

void sim_storage_set(struct sim_net *net, unsigned storage, enum sim_state state);
/** Everything not synced is lost, and the verifier changes. The storage stays in its state. */
void sim_storage_power_cut(struct sim_net *net, unsigned storage);
/** The client is gone: of what it has sent some arrives, some does not, and nothing comes back. */
void sim_net_kill_client(struct sim_net *net, unsigned client);
/** Everything pending there is applied, as after a commit of all of it. */
void sim_storage_apply(struct sim_net *net, unsigned storage);
/** What a block has, and what lies right below it, change places: the newest is still on its way. */
void sim_storage_swap(struct sim_net *net, unsigned storage, unsigned block);
/** Flip a bit of the record of (projection, block); false when there is none. */
bool sim_storage_rot(struct sim_net *net, unsigned storage, unsigned projection,
                     unsigned block);

/** Print who holds what of a block, for people who hunt a bug. */
void sim_net_dump(const struct sim_net *net, unsigned block);

/** Distinct projections of this block at exactly this version with a right crc (holes: storages).
 * stable: only what is on stable storage. away: bitmap of storages that do not count. */
unsigned sim_net_count(struct sim_net *net, unsigned block, uint64_t version, bool stable,
                       uint32_t away);
/** The newest version of this block anywhere. */
uint64_t sim_net_newest(const struct sim_net *net, unsigned block);
/** Storages that have this block at this version or a newer one, on stable storage, whatever of it. */
unsigned sim_net_count_since(struct sim_net *net, unsigned block, uint64_t version);
/** As sim_net_count() of what is stable, of that version from this one on that most have. */
unsigned sim_net_most_since(struct sim_net *net, unsigned block, uint64_t version);

#endif
