/*
 * blocks.h - the block engine: whole blocks of one file to and from many storages.
 *
 * This is core (sans-I/O): channels, timers and chance come in from outside. It encodes and
 * decodes, spreads records over the distribution, uses spares when a storage is down, hung or
 * refuses, hedges slow reads, believes only what k projections agree on, and never waits for
 * ever. It knows nothing of bytes, sizes, caches or the kernel: that is file.h.
 *
 * Promises of every call with a callback: it comes exactly once, and never before the call has
 * returned. One thread, that of the env.
 */
#ifndef ROZO_STORCLI_BLOCKS_H
#define ROZO_STORCLI_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/codec.h"
#include "common/base/record.h"
#include "common/env/env.h"
#include "common/rpc/rpc.h"

struct storcli;      /* the engine of one loop */
struct storcli_file; /* one file as this loop knows it, with what is not synced yet */

/* Everything in milliseconds; zero-initialise for the defaults in brackets. */
struct storcli_config {
    uint32_t
        hedge_ms; /* [60] silent this long: reads do without it; others are asked before */
    uint32_t spare_ms;         /* [400] a write silent this long also goes to a spare */
    uint32_t read_deadline_ms; /* [20 s] fewer than k usable answers until then: -EIO */
    uint32_t
        write_deadline_ms; /* [20 s] fewer than quorum acknowledgements until then: -EIO */
    uint64_t
        memory_max; /* [256 MiB] bytes of operations under way; above it new ones wait */
};

/* Where storages are: the shell owns the channels and keeps this up to date. */
struct storcli_peers {
    /** The channel to a storage, NULL when the id is not known (yet): as if it were down. */
    struct rpc_channel *(*channel)(void *arg, uint32_t storage_id);
    void *arg;
};

int storcli_new(struct env *env, const struct storcli_config *config,
                const struct storcli_peers *peers, struct storcli **out);
/**
 * A file that was closed lingers in the engine until what it overwrote is stable and the storages have
 * heard of it, 30 s at the longest. End that, at the deadline whatever is left: it does no harm, the storages
 * then find out by themselves. done comes with 0. No operation may be under way and no file open, and no
 * file may be opened any more.
 */
void storcli_drain(struct storcli *cli, uint32_t deadline_ms,
                   void (*done)(void *arg, int rc), void *arg);
/** No operation may be under way and no file open; storcli_drain() first, unless no storage was ever lost. */
void storcli_free(struct storcli *cli);

/* What exportd said of a file's data (FileData in rozo.proto), unpacked and checked. */
struct storcli_target {
    uint64_t
        session; /* that it said so to, and may write by it; 0: that of the channels */
    struct file_id id;
    uint8_t codec; /* enum codec_kind */
    uint8_t layout;
    uint16_t block_bytes;
    uint8_t n_storages;       /* c: layout n..DIST_MAX */
    uint32_t dist_generation; /* 0, and one more each time that the storages changed */
    uint32_t storages[DIST_MAX];
    uint8_t capability[64];
    uint8_t capability_len;
};

/** -EINVAL when the target makes no sense (unknown codec, layout, too few storages, ...). */
int storcli_file_open(struct storcli *cli, const struct storcli_target *target,
                      struct storcli_file **out);
/**
 * Takes a new capability (say, now also for writing), and the session for what begins from now on (0: as before).
 * With a higher dist_generation also the storages: what is under way ends first, with -EREMOTE, and what
 * begins until then waits. Those of a lower one are ignored. The rest must be as before (-EINVAL).
 */
int storcli_file_update(struct storcli_file *file, const struct storcli_target *target);
/** The newest generation that storcli_file_update() was given. */
uint32_t storcli_file_dist_generation(const struct storcli_file *file);
/** No operation on it may be under way. The file is gone for its caller; see storcli_drain(). */
void storcli_file_close(struct storcli_file *file);
const struct codec *storcli_file_codec(const struct storcli_file *file);

/**
 * 0 or -EIO (not enough storages until the deadline, or one of them says that our session is over), -ESTALE (somebody wrote with a newer
 * epoch: get a fresh one and repeat), -ENOSPC, -EACCES (capability refused: get a fresh one),
 * -ENOMEM, -EREMOTE (the file lies on other storages by now: get its ref, and repeat).
 */
typedef void storcli_done_cb(void *arg, int rc);

enum { STORCLI_RUN_MAX = 1024 }; /* blocks of one call (8 MiB) */

/**
 * Write n_blocks whole blocks. All but the last hold block_bytes user bytes, the last one
 * last_user_bytes (1..block_bytes). Done with 0 when n storages have every block, or, when
 * fewer than n candidates are alive, at least the quorum.
 *
 * @param data    n_blocks * block_bytes readable bytes, zero beyond the last user byte; borrowed
 *                until done; systematic rows are sent straight from here.
 * @param version greater than any version this file's blocks have from this writer; all
 *                blocks of the call get it.
 * @param sync    true: on the storages' stable storage before done (O_SYNC).
 */
void storcli_write(struct storcli_file *file, uint64_t version, uint64_t first_block,
                   uint32_t n_blocks, const uint8_t *data, size_t last_user_bytes,
                   bool sync, storcli_done_cb *done, void *arg);

/**
 * Read n_blocks blocks. Holes and what is missing from short blocks is filled with zeros.
 *
 * @param data       n_blocks * block_bytes bytes; borrowed until done; contents undefined on error.
 * @param user_bytes n_blocks entries, how many bytes of the block were written (0: hole); may be NULL.
 */
void storcli_read(struct storcli_file *file, uint64_t first_block, uint32_t n_blocks,
                  uint8_t *data, uint16_t *user_bytes, storcli_done_cb *done, void *arg);

/**
 * Make blocks [first_block, first_block + n_blocks) holes of this version; n_blocks 0: to the
 * end of everything. At least the quorum of storages has the mark when done with 0.
 */
void storcli_mark(struct storcli_file *file, uint64_t version, uint64_t first_block,
                  uint64_t n_blocks, storcli_done_cb *done, void *arg);
/** The same below whatever is newer there, which stays: never -ESTALE. */
void storcli_mark_below(struct storcli_file *file, uint64_t version, uint64_t first_block,
                        uint64_t n_blocks, storcli_done_cb *done, void *arg);

/**
 * Everything acknowledged on this file before this call is on stable storage, on as many
 * storages as a write needs. Where a storage that held unsynced records has gone away since, its
 * projections are first made again on a spare.
 */
void storcli_sync(struct storcli_file *file, storcli_done_cb *done, void *arg);
/** The same for an operation of ours: what turns out to be lost is its error, and of the next storcli_sync(), too. */
void storcli_settle(struct storcli_file *file, storcli_done_cb *done, void *arg);
/** How many syncs so far, also those nobody asked for, found that something acknowledged is lost. */
uint64_t storcli_file_losses(const struct storcli_file *file);

/**
 * Others (another client, or we ourselves before the file was closed and opened again) may have
 * written what is not stable: the next sync asks every storage of the file, not only those that
 * we gave something.
 */
void storcli_file_others_wrote(struct storcli_file *file);

/** Some storage was asked to write, mark or reserve something of the file, whatever became of that. */
bool storcli_file_has_stored(const struct storcli_file *file);

/**
 * What was read of this block is to complete a write of a part of it. When that write finds that what we had written there is
 * lost, it was read without that, or may have been: the next sync says so, as if the block had not been written again.
 */
void storcli_file_completes(struct storcli_file *file, uint64_t block);

/** True when there is something for storcli_sync() to do: written or marked since the last that succeeded, or missed by a home and not told. */
bool storcli_file_is_unsynced(const struct storcli_file *file);

/**
 * Find the next data block >= from_block (or, with want_hole, the next hole).
 * *found_block: the block, UINT64_MAX when there is no more data; valid when done with 0.
 * With want_hole, the search ends at limit_block, which then is the answer.
 */
void storcli_seek(struct storcli_file *file, uint64_t from_block, uint64_t limit_block,
                  bool want_hole, uint64_t *found_block, storcli_done_cb *done,
                  void *arg);

/**
 * Reserve space on the storages for a range: on its homes, and where these have no room,
 * divided among all candidates. Best effort below n. If it fails (-ENOSPC, -EIO), what
 * it took is given back by all storages that answer.
 */
void storcli_alloc(struct storcli_file *file, uint64_t first_block, uint64_t n_blocks,
                   storcli_done_cb *done, void *arg);

/* One projection file as a storage describes it. */
struct storcli_place {
    uint32_t storage_id;
    bool reachable;       /* it answered in time */
    uint32_t projections; /* bitmap of what it holds */
    uint64_t size_bytes;  /* summed over its projections of this file */
    uint64_t allocated_bytes;
    char path[128]; /* of the first one, below its data directory */
};
/** Ask every storage of the distribution what it holds: c entries of places are filled. */
void storcli_locate(struct storcli_file *file, struct storcli_place places[DIST_MAX],
                    storcli_done_cb *done, void *arg);

/* Counters, for metrics and tests. */
struct storcli_stats {
    uint64_t blocks_read, blocks_written;
    uint64_t blocks_decoded; /* reads that were not a plain gather of rows */
    uint64_t hedges;         /* requests of reads that were not counted on any more */
    uint64_t spares;         /* write slots that went to a spare */
    uint64_t damaged;        /* records whose crc or identity was wrong */
    uint64_t stale;          /* records older than the version returned */
    uint64_t below;          /* blocks read below a newer version that too few have */
    uint64_t background_syncs;
    uint64_t checks;  /* ST_CHECK sent */
    uint64_t commits; /* ST_COMMIT sent: nothing else went there in time */
};
void storcli_get_stats(const struct storcli *cli, struct storcli_stats *out);

#endif
