/*
 * file_int.h - internals of the byte layer that its parts share: the one struct file they
 * hang from, and how its data lie in memory.
 *
 * Private to storcli/file. Thread: the env's.
 *
 * Each part of struct file has an owner, and is declared in the owner's header. Only the
 * owner writes it: others read it, and call the owner's functions (test_house.py checks).
 *
 * Memory holds three sets of runs, and a block is looked for in this order:
 *   dirty    accepted, not on its way; takes further writes. Its first and last block may
 *            be incomplete until they were filled from below.
 *   writing  complete and unchangeable: on its way to the storages, or parked after a
 *            failure.
 *   clean    equal to the storages' data (read ahead, or just written).
 * Within a set no block appears twice; a block is never both dirty and clean, nor both
 * writing and clean. A dirty block above a writing one has been completed from it at
 * once.
 */
#ifndef ROZO_STORCLI_FILE_FILE_INT_H
#define ROZO_STORCLI_FILE_FILE_INT_H

#include <errno.h>

#include "common/base/err.h"
#include "common/base/list.h"
#include "storcli/file.h"
#include "storcli/file/file_blocks.h"
#include "storcli/file/file_cache.h"
#include "storcli/file/file_inline.h"
#include "storcli/file/file_meta_report.h"
#include "storcli/file/file_queue.h"
#include "storcli/file/file_run.h"
#include "storcli/file/file_size.h"
#include "storcli/file/file_trunc.h"
#include "storcli/file/file_writeback.h"

enum {
    READ_AHEAD_FAR_BYTES = 4 << 20,
    STALE_TRIES_MAX = 16,    /* fresh epochs for one write before it fails */
    AHEAD_BLOCKS_MAX = 128,  /* reserved beyond the end by a fallocate() in small steps */
    DENIED_TRIES_MAX = 1,    /* fresh capabilities for one request before it fails */
    MOVED_TRIES_MAX = 16,    /* fresh refs for one request before it fails */
    OUTDATED_PAUSE_MS = 500, /* before exportd is asked again for a later ref */
};

enum file_life {
    FILE_OPEN,
    FILE_CLOSING, /* file_close() was called: nothing new begins */
    FILE_CLOSED,  /* nothing is under way: to be freed at the end of the turn */
};

/* One open file. Its own fields are written by file.c only. */
struct file {
    struct env *env;         /* borrowed */
    struct storcli *cli;     /* borrowed */
    struct storcli_file *sf; /* owned */
    struct file_config config;
    struct file_meta meta;
    struct file_pool *pool;     /* borrowed, or own_pool */
    struct file_pool *own_pool; /* owned; NULL when config.pool was given */
    uint32_t bs;                /* bytes of a block */
    enum file_life life;
    int close_rc;
    uint64_t close_report_no; /* failures of older reports are not close's */

    struct file_queue queue;         /* operations */
    struct file_size size;           /* size, as readers, storages and exportd have it */
    struct file_runs runs;           /* dirty and writing runs */
    struct file_cache cache;         /* clean runs, fetches, reading ahead */
    struct file_writeback writeback; /* runs on their way, failures, losses */
    struct file_epoch epoch;         /* epoch and ref for requests */
    struct file_trunc trunc;         /* truncate that is pending */
    struct file_report report;       /* changes that exportd must learn */
    struct file_inline inl;          /* place of the data, and those that exportd has */
    struct file_blocks blocks;       /* allocated and reserved blocks */
};

static inline uint64_t block_of(const struct file *f, uint64_t offset)
{
    return offset / f->bs;
}
static inline uint64_t block_start(const struct file *f, uint64_t block)
{
    return block * f->bs;
}
/** Returns one past the last block that holds a byte below end. */
static inline uint64_t block_past(const struct file *f, uint64_t end)
{
    return (end + f->bs - 1) / f->bs;
}
static inline uint64_t min_u64(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}
static inline uint64_t max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}
/**
 * Returns the byte from which on storages hold no data that counts, ours or of others.
 */
static inline uint64_t storage_end(const struct file *f)
{
    uint64_t end = max_u64(f->size.meta, f->size.acked_end);

    if (f->inl.place == PLACE_EXPORTD)
        return min_u64(f->inl.len, f->size.now);
    if (!f->size.has_data)
        return 0;
    if (f->trunc.pending && f->trunc.size < end && f->inl.place == PLACE_STORAGES)
        end = f->trunc.size;
    return min_u64(end, f->size.now);
}
/** Returns the start of the bytes of a dirty run that are right. */
static inline uint64_t frun_from(const struct frun *run)
{
    return run->head_ok ? block_start(run->f, run->first) : run->lo;
}
/** Returns the end of the bytes of a dirty run that are right. */
static inline uint64_t frun_to(const struct frun *run)
{
    return run->tail_ok ? block_start(run->f, run->end) : run->hi;
}
/**
 * Returns true if the run reaches beyond an unfinished truncate: it may not be written
 * before that is finished.
 */
static inline bool frun_is_beyond(const struct frun *run)
{
    const struct file *f = run->f;

    return f->trunc.pending && run->end > block_past(f, f->trunc.size);
}
static inline uint8_t *frun_byte(const struct frun *run, uint64_t offset)
{
    return run->data + (offset - block_start(run->f, run->first));
}
static inline uint64_t frun_bytes(const struct frun *run)
{
    return (run->end - run->first) * run->f->bs;
}

/* ---- file.c ---- */

/** Replaces -ESTALE and -ROZO_EMOVED, which mean nothing to callers. */
static inline int plain_errno(int rc)
{
    return rc == -ESTALE || rc == -ROZO_EMOVED ? -EIO : rc;
}
/**
 * Adopts an answer of exportd; with_data: also the fields that only an open or setattr
 * answer has.
 */
void file_adopt(struct file *f, const struct file_attr *attr, bool with_data);
/** Returns true if no report of ours is on its way to exportd, or will be. */
bool file_is_reported(const struct file *f);

/* ---- file_exclusive.c ---- */

/**
 * Finishes a truncate left unfinished, alone, as a wanted run reaches beyond it; even
 * while a write is being taken in (it may wait for that run). Does nothing while another
 * operation is alone. If it fails, the wanted runs that reach beyond fail, too.
 */
void file_finish_truncate(struct file *f);

/* ---- file_write.c ---- */

/** Ends a piece that went straight from the caller's memory. */
void write_on_direct(struct write_fop *w, int rc);

#endif
