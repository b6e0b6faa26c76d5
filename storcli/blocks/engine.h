/*
 * engine.h - what the parts of the block engine share: the engine, its files, operations under a
 * memory bound, what is known of storages, and waking up.
 *
 * Private to storcli/core. Thread: the env's.
 */
#ifndef ROZO_STORCLI_BLOCKS_ENGINE_H
#define ROZO_STORCLI_BLOCKS_ENGINE_H

#include "storcli/blocks.h"
#include "storcli/blocks/after.h"
#include "storcli/blocks/commit.h"
#include "storcli/blocks/late.h"
#include "storcli/blocks/scratch.h"
#include "storcli/blocks/unsynced.h"

enum {
    PROJECTION_ANY = 255,
    REF_BYTES_MAX = 512, /* a packed FileRef field */
    MSG_BYTES_MAX = 704, /* a packed ST_* request */
    WATCH_TICK_MS = 10,  /* how exactly hedges, spares and deadlines are kept */
    WATCH_POLL_MS = 20,  /* how soon the health of a storage asked is looked at again */
    COMPLETED_MAX = 32,  /* blocks that are noted one by one; of more, all count */
};

/* Somebody who waits for time to pass or for a storage to change its health. */
struct watch {
    struct watch *prev, *next;
    uint64_t wake_ns; /* not before; the owner moves it as it likes */
    void (*wake)(struct watch *watch);
    bool listed;
};

/* What experience says of one storage, over all files. Lives as long as the engine. */
struct peer {
    struct peer *next;
    uint32_t storage_id;
    uint32_t avoid_ms;       /* how long it was avoided last; 0: never, or fine since */
    uint64_t avoid_until_ns; /* it was slow: others are asked first, and written to */
    bool is_unmet; /* a write waited for its first connection in vain; answers end that */
    struct late late;
};

struct storcli {
    struct env *env; /* borrowed */
    struct storcli_config config;
    struct storcli_peers where;
    struct storcli_stats stats;
    struct scratch scratch;
    struct peer *peers;      /* owned list; as long as the cluster is large */
    struct watch watches;    /* head of a ring */
    struct watch *tick_next; /* where the tick under way goes on */
    struct env_timer tick;
    struct op *waiting; /* for memory, oldest first */
    struct op **waiting_tail;
    uint64_t memory_used; /* bytes granted to operations */
    uint64_t
        read_latency_ns; /* that a storage usually takes to answer a read, a moving average */
    unsigned n_late;     /* peers that are late */
    unsigned n_files, n_ops;
    unsigned n_background;      /* syncs that nobody asked for, under way */
    struct list_node lingering; /* closed files with something left to do: struct after */
    unsigned n_lingering;
    storcli_done_cb *drained; /* of storcli_drain(), while one is under way */
    void *drained_arg;
    struct env_timer drain_timer;
    bool ticking;
};

/* How well a storage is to be asked, best first. */
enum peer_rank {
    PEER_GOOD,
    PEER_SLOW,    /* its links are fine, but it let a write wait in vain lately */
    PEER_SUSPECT, /* rpc thinks it hangs */
    PEER_DOWN,
};

struct sync_op;

struct storcli_file {
    struct storcli *cli; /* borrowed */
    struct storcli_target target;
    const struct codec *codec;
    unsigned k, n, c;
    unsigned q_read, q_write; /* quorum_read(), quorum_write() */
    uint32_t file_hash;
    size_t row_bytes;            /* of a full block */
    struct peer *peer[DIST_MAX]; /* borrowed, by place in the distribution */
    uint8_t ref[REF_BYTES_MAX];  /* field 1 of every ST_* request, packed */
    size_t ref_len;
    struct unsynced unsynced;     /* acknowledged since the last sync began */
    struct sync_op *syncing;      /* at most one is under way */
    struct sync_op *sync_waiting; /* the next, its callers join it until it begins */
    bool
        lost; /* a sync nobody asked for found a loss: the next one that is asked for says so */
    uint64_t n_losses;
    uint64_t n_told;                   /* syncs that told somebody of a loss */
    unsigned n_completed;              /* of completed; more: all blocks are */
    uint64_t completed[COMPLETED_MAX]; /* see storcli_file_completes() */
    struct commit commit;
    struct after after;
    bool others_wrote;           /* see storcli_file_others_wrote() */
    bool has_stored;             /* see storcli_file_has_stored() */
    struct storcli_target *next; /* owned; not NULL: where it lies, see relocate.c */
    struct op *held;             /* begun since then, oldest first */
    struct op **held_tail;
    unsigned n_held;     /* of n_ops */
    bool starved;        /* a read waited to its deadline in vain */
    uint32_t starved_up; /* with these up: until another comes reads wait less */
    unsigned n_ops;
};

/* The common part of every operation: first member of its struct, which is malloc'ed. */
struct op {
    struct storcli_file *file;  /* borrowed; it outlives its operations */
    storcli_done_cb *done;      /* called once, by op_end() */
    void *arg;                  /* the caller's */
    void (*run)(struct op *op); /* the first step, posted once there is memory */
    struct env_task task;
    struct op *next; /* in cli->waiting */
    uint64_t need_bytes;
    uint64_t
        session; /* what it writes it writes under this, also when the file gets another one */
};

/** size_bytes zeroed bytes that begin with an op. Out of memory ends the process: these are small. */
void *op_new(struct storcli_file *file, size_t size_bytes, storcli_done_cb *done,
             void *arg);
/**
 * Starts an operation that a caller of the engine asked for. When the file is about to get another distribution,
 * it starts after that.
 */
void engine_op_begin(struct op *op, uint64_t need_bytes, void (*run)(struct op *op));
/** Run op->run later, once need_bytes fit below memory_max (a single op always fits). */
void op_start(struct op *op, uint64_t need_bytes, void (*run)(struct op *op));
/** Give back the memory, free the op (its own resources are gone already), then tell its caller. */
void op_end(struct op *op, int rc);
/** The same, of one that waits for memory or is under way, telling nobody. Not while its task is queued. */
void op_drop(struct op *op);

void watch_start(struct storcli *cli, struct watch *watch,
                 void (*wake)(struct watch *watch));
/** After this wake does not come. An idle watch is fine. */
void watch_stop(struct storcli *cli, struct watch *watch);

static inline uint64_t engine_now_ns(struct storcli *cli)
{
    return env_now_ns(cli->env);
}
static inline uint64_t ms_ns(uint64_t ms)
{
    return ms * 1000000;
}

/** The channel to a candidate of the file, NULL when there is none. */
struct rpc_channel *engine_channel(struct storcli_file *file, unsigned candidate);
enum peer_rank engine_rank(struct storcli_file *file, unsigned candidate);
/** It let us wait: others are preferred for a while, longer each time. */
void engine_peer_slow(struct storcli_file *file, unsigned candidate);
/** It answered in time. */
void engine_peer_fine(struct storcli_file *file, unsigned candidate);
/** True when its channel exists and is RPC_UP. */
bool engine_is_up(struct storcli_file *file, unsigned candidate);
/** It is being connected to for the first time, and nobody has waited for that in vain: writes wait for it as for an answer. */
bool engine_is_arriving(struct storcli_file *file, unsigned candidate);
/** Somebody has. */
void engine_peer_unmet(struct storcli_file *file, unsigned candidate);

/** Pieces of a run of blocks, cut at extents. */
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
/** Sets what follows from the number of storages in the file's target. */
void engine_count_candidates(struct storcli_file *file);
/** What is known of a storage. NULL: out of memory, and never for one that was asked for before. */
struct peer *engine_peer_get(struct storcli *cli, uint32_t storage_id);

/** Everything that goes into ST_* requests beside the message's own fields. */
size_t engine_msg_begin(const struct storcli_file *file, uint8_t msg[MSG_BYTES_MAX]);

/* Internal calls of one part by another. */

/* What an inner read wants beyond storcli_read(). */
struct read_want {
    uint8_t *data;        /* NULL with heads_only */
    uint16_t *user_bytes; /* may be NULL */
    uint64_t *versions;   /* of each block, holes too; may be NULL */
    bool heads_only;      /* crc of data cannot be checked then */
    /* Not NULL: everybody who is there is asked; of each block, who has that version, each with a projection of its
     * own as far as there are such (of a hole any storage has one): `all` and `any`. */
    struct holders *holders;
};
/** Returns the operation, for engine_read_abandon(); it is gone when done is called. */
struct op *engine_read(struct storcli_file *file, uint64_t first_block, uint32_t n_blocks,
                       const struct read_want *want, storcli_done_cb *done, void *arg);
/** Nobody wants it any more: done is not called. False: it begins in this turn, and goes on. */
bool engine_read_abandon(struct op *read);

/** The file layer's sync is over: begin the one that waits. */
void engine_next_sync(struct storcli_file *file);
/** Sync what is unsynced; nobody waits for it, and whoever wants a sync of his own has precedence. */
void engine_sync_background(struct storcli_file *file);
/** Takes the distribution in file->next if nothing that began with the old one is under way. */
void engine_relocate_look(struct storcli_file *file);
/** Is the file about to get another distribution? What is under way ends with -EREMOTE then. */
static inline bool engine_is_relocating(const struct storcli_file *file)
{
    return file->next != NULL;
}
/** The sync under way ends with -EREMOTE soon. */
void engine_sync_relocates(struct storcli_file *file);
/** Give up the background sync under way. False: it begins to read in this turn; it ends as soon as it can. */
bool engine_sync_abandon(struct storcli_file *file);
/** What homes missed was told somebody: a sync that waits for it goes on. */
void engine_sync_look(struct storcli_file *file);
/** A closed file is freed, done or not. False: not yet, see engine_sync_abandon(). */
bool engine_file_end(struct storcli_file *file);

#endif
