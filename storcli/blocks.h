/*
 * blocks.h - the block engine: whole blocks of one file to and from many storages.
 *
 * Core (sans-I/O): channels, timers and chance come in from outside. The engine encodes
 * and decodes, spreads records over the distribution, uses spares when a storage is down,
 * hung or refuses, hedges slow reads, believes only what k projections agree on, and
 * never waits for ever. It knows nothing of bytes, sizes, caches or the kernel: that is
 * file.h.
 *
 * Promises of every call with a callback: the callback comes exactly once, and never
 * before the call has returned. One thread, that of the env.
 */
#ifndef ROZO_STORCLI_BLOCKS_H
#define ROZO_STORCLI_BLOCKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/codec.h"
#include "common/env/env.h"
#include "common/rpc/rpc.h"
#include "common/wire/record.h"

struct storcli;      /* the engine of one loop */
struct storcli_file; /* one file as this loop knows it, with its unsynced ranges */

/* Times in milliseconds. Zero-initialise for the defaults in brackets. */
struct storcli_config {
    uint32_t hedge_ms;          /* [60] after it without an answer a read asks others */
    uint32_t spare_ms;          /* [400] after it a write goes to a spare as well */
    uint32_t read_deadline_ms;  /* [20 s] fewer than k usable answers until then: -EIO */
    uint32_t write_deadline_ms; /* [20 s] no quorum until then: -EIO */
    uint64_t memory_max;        /* [256 MiB] bytes of operations under way; more wait */
};

/* Where storages are: the shell owns the channels and keeps this up to date. */
struct storcli_peers {
    /**
     * Returns the channel to a storage; NULL when the id is not known (yet): as if it
     * were down.
     */
    struct rpc_channel *(*channel)(void *arg, uint32_t storage_id);
    void *arg;
};

int storcli_new(struct env *env, const struct storcli_config *config,
                const struct storcli_peers *peers, struct storcli **out);
/**
 * Ends the work left for closed files. A closed file stays in the engine until what it
 * overwrote is stable and the storages know that, 30 s at most. At the deadline the rest
 * is abandoned, which does no harm: the storages then find out by themselves. done comes
 * with 0. No operation may be under way, no file open, and none may be opened any more.
 */
void storcli_drain(struct storcli *cli, uint32_t deadline_ms,
                   void (*done)(void *arg, int rc), void *arg);
/**
 * Frees the engine. No operation may be under way and no file open. Call storcli_drain()
 * first, unless no storage was ever lost.
 */
void storcli_free(struct storcli *cli);

/* A file's data as exportd described it (FileData in rozo.proto), unpacked and
 * checked. */
struct storcli_target {
    /* session that exportd answered, and that writes are sent under; 0: that of the
     * channels */
    uint64_t session;
    struct file_id id;
    uint8_t codec; /* enum codec_kind */
    uint8_t layout;
    uint16_t block_bytes;
    uint8_t n_storages;       /* c: layout n..DIST_MAX */
    bool full_quorum;         /* FileRef.full_quorum */
    uint32_t dist_generation; /* 0; one more each time the storages change */
    uint32_t storages[DIST_MAX];
    uint8_t capability[64];
    uint8_t capability_len;
};

/**
 * Opens a file. -EINVAL when the target is invalid (unknown codec, layout, too few
 * storages, ...).
 */
int storcli_file_open(struct storcli *cli, const struct storcli_target *target,
                      struct storcli_file **out);
/**
 * Takes a new capability (for example one that allows writing), and the session for
 * operations that begin from now on (0: unchanged). With a higher dist_generation also
 * takes the storages: operations under way end first, with -ROZO_EMOVED, and operations
 * that begin until then wait. Storages of a lower generation are ignored. -EINVAL if
 * anything else differs.
 */
int storcli_file_update(struct storcli_file *file, const struct storcli_target *target);
/** Returns the newest generation that storcli_file_update() was given. */
uint32_t storcli_file_dist_generation(const struct storcli_file *file);
/**
 * Closes the file for its caller; see storcli_drain(). No operation on it may be under
 * way.
 */
void storcli_file_close(struct storcli_file *file);
const struct codec *storcli_file_codec(const struct storcli_file *file);

/**
 * Result of an operation: 0, -EIO (not enough storages until the deadline, or a storage
 * says that our session is over), -ESTALE (another client wrote with a newer epoch: get a
 * fresh one and repeat), -ENOSPC, -EACCES (capability refused: get a fresh one), -ENOMEM,
 * -ROZO_EMOVED (the file lies on other storages by now: get its FileRef, and repeat).
 */
typedef void storcli_done_cb(void *arg, int rc);

enum { STORCLI_RUN_MAX = 1024 }; /* blocks of one call (8 MiB) */

/**
 * Writes n_blocks whole blocks. All but the last hold block_bytes user bytes, the last
 * one last_user_bytes (1..block_bytes). Done with 0 when n storages have every block, or,
 * when fewer than n candidates are alive, at least the quorum.
 *
 * @param data    n_blocks * block_bytes readable bytes, zero beyond the last user byte;
 *                borrowed until done; systematic rows are sent straight from here.
 * @param version greater than any version this file's blocks have from this writer; all
 *                blocks of the call get it.
 * @param sync    true: on the storages' stable storage before done (O_SYNC).
 */
void storcli_write(struct storcli_file *file, uint64_t version, uint64_t first_block,
                   uint32_t n_blocks, const uint8_t *data, size_t last_user_bytes,
                   bool sync, storcli_done_cb *done, void *arg);

/**
 * Reads n_blocks blocks. Holes, and the missing end of short blocks, are filled with
 * zeros.
 *
 * @param data       n_blocks * block_bytes bytes; borrowed until done; contents undefined
 *                   on error.
 * @param user_bytes n_blocks entries: bytes of the block that were written (0: hole); may
 *                   be NULL.
 */
void storcli_read(struct storcli_file *file, uint64_t first_block, uint32_t n_blocks,
                  uint8_t *data, uint16_t *user_bytes, storcli_done_cb *done, void *arg);

/**
 * Makes blocks [first_block, first_block + n_blocks) holes of this version; n_blocks 0:
 * to the end of the file. At least the quorum of storages has the mark when done with 0.
 */
void storcli_mark(struct storcli_file *file, uint64_t version, uint64_t first_block,
                  uint64_t n_blocks, storcli_done_cb *done, void *arg);
/**
 * Makes blocks holes like storcli_mark(), but leaves records that are newer than version:
 * never -ESTALE.
 */
void storcli_mark_below(struct storcli_file *file, uint64_t version, uint64_t first_block,
                        uint64_t n_blocks, storcli_done_cb *done, void *arg);

/**
 * Puts everything acknowledged on this file before this call on stable storage, on as
 * many storages as a write needs. If a storage that held unsynced records is unreachable
 * since, its projections are first written to a spare.
 */
void storcli_sync(struct storcli_file *file, storcli_done_cb *done, void *arg);
/**
 * Syncs like storcli_sync(), for an operation of the byte layer. A loss that it finds is
 * its own error and that of the next storcli_sync(), too.
 */
void storcli_sync_layer(struct storcli_file *file, storcli_done_cb *done, void *arg);
/**
 * Returns the number of syncs so far, background ones included, that found acknowledged
 * data lost.
 */
uint64_t storcli_file_losses(const struct storcli_file *file);

/**
 * Notes that others (another client, or this one before the file was closed and opened
 * again) may have written data that is not stable: the next sync asks every storage of
 * the file, not only those that this engine wrote to.
 */
void storcli_file_others_wrote(struct storcli_file *file);

/**
 * Returns true if some storage was asked to write, mark or reserve anything of the file,
 * whatever the outcome.
 */
bool storcli_file_has_stored(const struct storcli_file *file);

/**
 * Notes that data read from this block complete a partial write of it. When that write
 * finds that unsynced data of ours in the block were lost, the data read may have been
 * without them: the next sync reports the loss, although the block has been written
 * again.
 */
void storcli_file_completes(struct storcli_file *file, uint64_t block);

/**
 * Returns true when storcli_sync() has something to do: blocks written or marked since
 * the last sync that succeeded, or a missed-write note that no storage has yet.
 */
bool storcli_file_is_unsynced(const struct storcli_file *file);

/**
 * Finds the next data block >= from_block (or, with want_hole, the next hole).
 *
 * @param found_block out, valid when done with 0: the block, UINT64_MAX when there is no
 *                    more data.
 * @param limit_block with want_hole: the search ends here, and this is then the answer.
 */
void storcli_seek(struct storcli_file *file, uint64_t from_block, uint64_t limit_block,
                  bool want_hole, uint64_t *found_block, storcli_done_cb *done,
                  void *arg);

/**
 * Reserves space on the storages for a range: on its homes, and where these have no room,
 * divided among all candidates. Best effort below n. On failure all storages that answer
 * free the space that this call had reserved. If they refuse (-ROZO_EMOVED, -EACCES), a
 * call that repeats this one frees it when it fails too, or does not need it.
 *
 * @param again repeats the last call for this file, which failed; no other client may
 *              have reserved space of the file in between.
 */
void storcli_alloc(struct storcli_file *file, uint64_t first_block, uint64_t n_blocks,
                   bool again, storcli_done_cb *done, void *arg);

/* One projection file as a storage describes it. */
struct storcli_place {
    uint32_t storage_id;
    bool reachable;       /* true: it answered in time */
    uint32_t projections; /* bitmap of the projections that it holds */
    uint64_t size_bytes;  /* summed over its projections of this file */
    uint64_t allocated_bytes;
    char path[128]; /* path of the first projection, relative to its data directory */
};
/**
 * Asks every storage of the distribution for its projections of the file: fills c entries
 * of places.
 */
void storcli_locate(struct storcli_file *file, struct storcli_place places[DIST_MAX],
                    storcli_done_cb *done, void *arg);

/* Counters, for metrics and tests. */
struct storcli_stats {
    uint64_t blocks_read, blocks_written;
    uint64_t blocks_decoded; /* reads that were not a plain gather of rows */
    uint64_t hedges;         /* read requests that were not counted on any more */
    uint64_t spares;         /* write slots that went to a spare */
    uint64_t damaged;        /* records whose crc or identity was wrong */
    uint64_t stale;          /* records older than the version returned */
    uint64_t below;          /* blocks read below a newer version with too few holders */
    uint64_t background_syncs;
    uint64_t checks;  /* ST_CHECK sent */
    uint64_t commits; /* ST_COMMIT requests sent */
};
void storcli_get_stats(const struct storcli *cli, struct storcli_stats *out);

#endif
