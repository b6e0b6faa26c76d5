/*
 * engine.h - internals of the block engine that its parts share: the engine, its files,
 * operations under a memory bound, the state kept of each storage, and waking up.
 *
 * Private to storcli/blocks. Thread: the env's.
 */
#ifndef ROZO_STORCLI_BLOCKS_ENGINE_H
#define ROZO_STORCLI_BLOCKS_ENGINE_H

#include "common/base/bufpool.h"
#include "common/base/units.h"
#include "storcli/blocks.h"
#include "storcli/blocks/background.h"
#include "storcli/blocks/blk_commit.h"
#include "storcli/blocks/straggler.h"
#include "storcli/rules/unsynced.h"

enum {
    PROJECTION_ANY = 255,
    REF_BYTES_MAX = 512, /* bytes of a packed FileRef field */
    MSG_BYTES_MAX = 704, /* bytes of a packed ST_* request */
    WATCH_TICK_MS = 10,  /* resolution of hedges, spares and deadlines */
    WATCH_POLL_MS = 20,  /* pause between looks at the health of a storage */
    COMPLETED_MAX = 32,  /* blocks noted one by one; above it all blocks count */
};

/* Wake-up of an operation that waits for time or for the health of a storage. */
struct watch {
    struct watch *prev, *next;
    uint64_t wake_ns; /* ns, monotonic: no wake-up before it; set by the owner */
    void (*wake)(struct watch *watch);
    bool listed;
};

/* State of one storage, over all files. Lives as long as the engine. */
struct peer {
    struct peer *next;
    uint32_t storage_id;
    uint32_t avoid_ms;       /* last avoidance; 0: none since it answered in time */
    uint64_t avoid_until_ns; /* ns, monotonic: until then others are preferred */
    /* a write timed out waiting for its first connection; any answer resets this */
    bool never_connected;
    struct straggler straggler;
};

struct storcli {
    struct env *env; /* borrowed */
    struct storcli_config config;
    struct storcli_peers where;
    struct storcli_stats stats;
    struct bufpool scratch;
    struct peer *peers;      /* owned list, one per storage of the cluster */
    struct watch watches;    /* head of a ring */
    struct watch *tick_next; /* next watch of the tick under way */
    struct env_timer tick;
    struct blk_op *waiting; /* operations that wait for memory, oldest first */
    struct blk_op **waiting_tail;
    uint64_t memory_used;     /* bytes granted to operations */
    uint64_t read_latency_ns; /* usual time of a read, a moving average */
    unsigned n_stragglers;    /* peers that are late */
    unsigned n_files, n_ops;
    unsigned n_background;      /* background syncs under way */
    struct list_node lingering; /* closed files with work left: struct background */
    unsigned n_lingering;
    storcli_done_cb *drained; /* callback of the storcli_drain() under way; NULL: none */
    void *drained_arg;
    struct env_timer drain_timer;
    bool ticking;
};

/* Preference order of storages for a request, best first. */
enum peer_rank {
    PEER_GOOD,
    PEER_SLOW,    /* links are fine, but a request lately timed out on it */
    PEER_SUSPECT, /* rpc takes it for hung */
    PEER_DOWN,
};

struct blk_sync_op;
struct reserved;

struct storcli_file {
    struct storcli *cli; /* borrowed */
    struct storcli_target target;
    const struct codec *codec;
    unsigned k, n, c;
    unsigned q_read, q_write; /* quorum_read(), quorum_write() */
    uint32_t file_hash;
    size_t row_bytes;            /* bytes of a row of a full block */
    struct peer *peer[DIST_MAX]; /* borrowed, by place in the distribution */
    uint8_t ref[REF_BYTES_MAX];  /* packed field 1 of every ST_* request */
    size_t ref_len;
    struct unsynced unsynced;         /* acknowledged since the last sync began */
    struct blk_sync_op *syncing;      /* sync under way, at most one; NULL: none */
    struct blk_sync_op *sync_waiting; /* next sync; callers join it until it begins */
    bool lost; /* a background sync found a loss: the next sync of a caller reports it */
    uint64_t n_losses;
    uint64_t n_reports;                /* syncs that reported a loss to a caller */
    unsigned n_completed;              /* length of completed; more: all blocks */
    uint64_t completed[COMPLETED_MAX]; /* see storcli_file_completes() */
    struct commit commit;
    struct background background;
    bool others_wrote;           /* see storcli_file_others_wrote() */
    bool has_stored;             /* see storcli_file_has_stored() */
    struct reserved *reserved;   /* owned; what storcli_alloc() could not give back */
    struct storcli_target *next; /* owned; new target, see relocate.c; or NULL */
    struct blk_op *held;         /* operations begun since `next` was set, oldest first */
    struct blk_op **held_tail;
    unsigned n_held;     /* length of `held`, counted in n_ops too */
    bool starved;        /* a read timed out at its deadline */
    uint32_t starved_up; /* candidates up then: reads wait less until another is */
    unsigned n_ops;
};

/* Common part of every operation: first member of its struct, which is malloc'ed. */
struct blk_op {
    struct storcli_file *file;      /* borrowed; it outlives its operations */
    storcli_done_cb *done;          /* called once, by blk_op_end() */
    void *arg;                      /* the caller's */
    void (*run)(struct blk_op *op); /* first step, posted once there is memory */
    struct env_task task;
    struct blk_op *next; /* in cli->waiting */
    uint64_t need_bytes;
    uint64_t session; /* session of its requests; stays if the file gets another one */
};

/**
 * Returns size_bytes zeroed bytes that begin with an op. Out of memory ends the process:
 * ops are small.
 */
void *blk_op_new(struct storcli_file *file, size_t size_bytes, storcli_done_cb *done,
                 void *arg);
/**
 * Starts an operation for a caller of the engine. If the file is about to get another
 * distribution, the operation starts after that.
 */
void engine_op_begin(struct blk_op *op, uint64_t need_bytes,
                     void (*run)(struct blk_op *op));
/** Posts op->run once need_bytes fit below memory_max (a single op always fits). */
void blk_op_start(struct blk_op *op, uint64_t need_bytes, void (*run)(struct blk_op *op));
/**
 * Gives back the memory, frees the op (its own resources must be freed already), then
 * calls done.
 */
void blk_op_end(struct blk_op *op, int rc);
/**
 * Ends an op that waits for memory or is under way, without calling done. Its task must
 * not be queued.
 */
void blk_op_drop(struct blk_op *op);

/**
 * Adds the watch: wake is called at the first tick after watch->wake_ns, again and again.
 */
void watch_start(struct storcli *cli, struct watch *watch,
                 void (*wake)(struct watch *watch));
/** Removes the watch: wake is not called any more. An idle watch is fine. */
void watch_stop(struct storcli *cli, struct watch *watch);

static inline uint64_t engine_now_ns(struct storcli *cli)
{
    return env_now_ns(cli->env);
}

/** Returns the channel to a candidate of the file; NULL when there is none. */
struct rpc_channel *engine_channel(struct storcli_file *file, unsigned candidate);
enum peer_rank engine_rank(struct storcli_file *file, unsigned candidate);
/**
 * Records that a request timed out on this candidate: others are preferred for a while,
 * twice as long each time.
 */
void engine_peer_slow(struct storcli_file *file, unsigned candidate);
/** Records that this candidate answered in time: ends its avoidance. */
void engine_peer_fine(struct storcli_file *file, unsigned candidate);
/** Returns true when its channel exists and is RPC_UP. */
bool engine_is_up(struct storcli_file *file, unsigned candidate);
/**
 * Returns true while the first connection to this candidate is being made and no write
 * has timed out waiting for it: writes then wait for it as for an answer.
 */
bool engine_is_connecting(struct storcli_file *file, unsigned candidate);
/** Records that a write timed out waiting for the first connection to this candidate. */
void engine_peer_never_connected(struct storcli_file *file, unsigned candidate);

/** Returns the length of the next piece of a run: pieces are cut at extents. */
static inline unsigned piece_blocks(uint64_t first_block, uint64_t n_left)
{
    uint64_t in_extent = EXTENT_BLOCKS - first_block % EXTENT_BLOCKS;

    return (unsigned)(n_left < in_extent ? n_left : in_extent);
}
static inline unsigned piece_count(uint64_t first_block, uint64_t n_blocks)
{
    return (unsigned)((first_block % EXTENT_BLOCKS + n_blocks + EXTENT_BLOCKS - 1) /
                      EXTENT_BLOCKS);
}

/** Checks that the parts of a target fit together: 0 or -EINVAL. */
int engine_target_check(const struct storcli_target *target);
/** Packs the file's ref again after its target has changed. -EINVAL: it is too large. */
int engine_ref_pack(struct storcli_file *file);
/** Sets c and the quorums from the number of storages in the file's target. */
void engine_count_candidates(struct storcli_file *file);
/**
 * Returns the state kept of a storage. NULL: out of memory, never for a storage asked for
 * before.
 */
struct peer *engine_peer_get(struct storcli *cli, uint32_t storage_id);

/**
 * Writes the part that is common to all ST_* requests (the FileRef) into msg; returns its
 * length.
 */
size_t engine_msg_begin(const struct storcli_file *file, uint8_t msg[MSG_BYTES_MAX]);

/* Internal calls of one part by another. */

/* Options of an inner read beyond those of storcli_read(). */
struct read_want {
    uint8_t *data;        /* NULL with heads_only */
    uint16_t *user_bytes; /* may be NULL */
    uint64_t *versions;   /* version of each block, holes too; may be NULL */
    bool heads_only;      /* the crc of bodies cannot be checked then */
    /* Not NULL: all reachable storages are asked, and for each block `all` and `any` say
     * which have that version, each counted with a projection of its own as far as
     * possible (a hole fits any). */
    struct holders *holders;
};
/**
 * Starts a read; returns the operation, for engine_read_abandon(). It is gone when done
 * is called.
 */
struct blk_op *engine_read(struct storcli_file *file, uint64_t first_block,
                           uint32_t n_blocks, const struct read_want *want,
                           storcli_done_cb *done, void *arg);
/** Ends the read without calling done. False: it begins in this turn, and goes on. */
bool engine_read_abandon(struct blk_op *read);

/** Forgets what storcli_alloc() could not give back. */
void reserve_forget(struct storcli_file *file);
/** Begins the sync that waits, unless another one is under way. */
void engine_next_sync(struct storcli_file *file);
/**
 * Starts a background sync of what is unsynced; a sync of a caller has precedence over
 * it.
 */
void engine_sync_background(struct storcli_file *file);
/**
 * Takes the distribution in file->next if no operation that began with the old one is
 * under way.
 */
void engine_relocate_look(struct storcli_file *file);
/**
 * Returns true if the file is about to get another distribution: operations under way end
 * with -ROZO_EMOVED then.
 */
static inline bool engine_is_relocating(const struct storcli_file *file)
{
    return file->next != NULL;
}
/** Makes the sync under way end with -ROZO_EMOVED soon. */
void engine_sync_relocates(struct storcli_file *file);
/**
 * Abandons the background sync under way. False: it begins to read in this turn; it ends
 * as soon as it can.
 */
bool engine_sync_abandon(struct storcli_file *file);
/** Continues a sync that waits for missed-write notes, after one was answered. */
void engine_sync_look(struct storcli_file *file);
/**
 * Frees a closed file, whether its work is done or not. False: not yet, see
 * engine_sync_abandon().
 */
bool engine_file_end(struct storcli_file *file);

#endif
