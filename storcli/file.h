/*
 * file.h - one open file in bytes: write-behind, read-modify-write, read-ahead, size,
 * truncate.
 *
 * Core (sans-I/O), above blocks.h. One struct file per inode and loop, shared by all
 * handles of that inode; the FUSE face calls it with byte ranges. It gathers small
 * sequential writes into large runs, completes partial blocks, orders overlapping
 * operations, keeps the size, and reports to exportd (through struct file_meta) what was
 * written. A read sees every write that was accepted before it.
 */
#ifndef ROZO_STORCLI_FILE_H
#define ROZO_STORCLI_FILE_H

#include <sys/uio.h>

#include "common/base/range_map.h"
#include "storcli/blocks.h"

struct file;

typedef void file_done_cb(void *arg, int rc);

/* End of data (holes may lie beyond): half of it, a projection, is the most that ext4
 * takes in one file. */
#define FILE_DATA_END_MAX (UINT64_C(1) << 44)

/* Age of the size in an answer of exportd. */
enum file_size_age {
    SIZE_NEW,
    SIZE_PERHAPS_OLD, /* a smaller size is ignored */
    SIZE_OLD,         /* a newer answer came before this one: the size is ignored */
};

/* Knowledge of the allocated blocks in an answer of exportd. */
enum file_blocks_known {
    BLOCKS_UNKNOWN,
    BLOCKS_AT_LEAST, /* there may be more */
    BLOCKS_ALL,
};

/* Attributes of the inode that a file needs. */
struct file_attr {
    uint64_t size;
    enum file_size_age size_age;
    bool has_data;  /* false: reads are zeros, no storage is asked */
    uint32_t epoch; /* to write with; 0: none yet */
    bool truncate_pending;
    uint64_t truncate_size;
    uint64_t truncate_version; /* version of the newest one, even if finished; 0: none */
    bool truncate_is_old;      /* others may have written since it was accepted */
    /* Not 0 and not on_storages: exportd has all data of the file, and storages have none
     * that count. */
    uint32_t inline_max;
    bool on_storages;
    uint64_t inline_version;    /* 0: there are no data yet; else see inline_data */
    const uint8_t *inline_data; /* borrowed until the end of the call; zeros follow */
    uint32_t inline_len;        /* 1..FILE_INLINE_MAX */
    /* Allocated blocks have the value 1; owned by the giver, valid until the end of the
     * call. */
    enum file_blocks_known blocks_known;
    struct range_map blocks;
};

enum {
    FILE_INLINE_MAX = 65536,
    FILE_RANGES_MAX = 4096, /* entries of file_attr.blocks */
    FILE_RANGES_REPORTED_MAX =
        1024, /* entries of file_meta_call.allocated, and of freed */
};

/* Calls to exportd, made by rozomount. Every one ends with call->done(call, rc), once,
 * later. */
struct file_meta_call;
typedef void file_meta_cb(struct file_meta_call *call, int rc);
struct file_meta_call {
    file_meta_cb *done; /* set by file.c */
    struct file *file;
    bool has_size; /* out of wrote: attr.size is exportd's size */
    bool is_cut;   /* out of wrote: because a newer truncate cut off data of the report */
    struct file_attr attr;        /* out of renew */
    struct storcli_target target; /* out of renew */
    /* Into renew and load: storages refuse this generation, and exportd knew no
     * later one. */
    bool moved;
    uint32_t dist_generation;
    /* Into wrote. Not 0: all data of the file are these, for exportd to keep in the
     * place of those it has, in one with the size; -ESTALE: that is not so any more,
     * a fresh epoch tells how it is. */
    uint64_t inline_version;
    const uint8_t *inline_data; /* borrowed until wrote returns */
    uint32_t inline_len;
    /* Into wrote: blocks allocated, and freed, since the last successful call
     * (range_map_pack()); borrowed until it returns. blocks_counted: with these, exportd
     * knows all allocated blocks. */
    bool reports_blocks, blocks_counted; /* counted: with these, exportd knows all */
    const uint8_t *allocated, *freed;
    size_t allocated_len, freed_len;
};
struct file_meta {
    /**
     * Asks for a fresh epoch and capability for writing (MD_OPEN with no_reference).
     * Fills attr and target; the session of target is ignored.
     */
    void (*renew)(void *arg, struct file_meta_call *call);
    /**
     * Reports that the file is at least size long (0: no change) by a write of this
     * epoch, and has data (MD_WROTE). mtime_ns 0: no change.
     */
    void (*wrote)(void *arg, struct file_meta_call *call, uint64_t size, uint32_t epoch,
                  bool has_data, int64_t mtime_ns, int64_t atime_ns, bool sync);
    /**
     * Asks for the data that exportd has (MD_OPEN without a reference, read only). Fills
     * attr; needed if inline_max may be given.
     */
    void (*load)(void *arg, struct file_meta_call *call);
    /**
     * Reports that the pending truncate of this version is finished on the storages
     * (MD_TRUNCATED).
     */
    void (*truncated)(void *arg, struct file_meta_call *call, uint64_t version);
    /**
     * Returns exportd's clock as it is estimated here, for write times; NULL: this
     * machine's clock.
     */
    int64_t (*clock_ns)(void *arg);
    void *arg; /* owned by the inode, in rozomount */
};

/* Memory shared by the files of one loop. Optional: without it each file has its own. */
struct file_pool;
/**
 * Makes a pool. Above max_bytes files read nothing ahead and write out before they take
 * more; 0: 256 MiB.
 */
int file_pool_new(uint64_t max_bytes, struct file_pool **out);
/** Frees the pool. No file that uses it may be open. */
void file_pool_free(struct file_pool *pool);

/* Value for cache_ms: clean data is believed until file_drop_cache(). */
#define FILE_CACHE_UNTIL_DROPPED UINT32_MAX

/* Zero-initialise for the defaults in brackets. */
struct file_config {
    uint64_t write_behind_max; /* [8 MiB] dirty bytes of one file before writers wait */
    uint64_t write_run_bytes;  /* [1 MiB] a sequential run this long is written at once */
    uint32_t write_delay_ms;   /* [1000] longest wait of dirty data */
    uint64_t read_ahead_max;   /* [2 MiB] */
    /* [4 MiB, or read_ahead_max if set] with slow storages */
    uint64_t read_ahead_far_max;
    uint32_t report_delay_ms; /* [1000] longest delay of a size report to exportd */
    uint32_t cache_ms;        /* [1000] time that clean data is believed */
    struct file_pool *pool;   /* borrowed, outlives the file; NULL: one of its own */
};

/** Opens a file; attr is exportd's answer, target its FileRef. */
int file_open(struct env *env, struct storcli *cli, const struct file_config *config,
              const struct file_meta *meta, const struct storcli_target *target,
              const struct file_attr *attr, struct file **out);
/**
 * Writes out, reports, syncs nothing, frees. No call with f may follow. rc says why data
 * could not be written or reported: that is lost now.
 */
void file_close(struct file *f, file_done_cb *done, void *arg);

/**
 * Takes a fresher epoch, capability and size from an answer of exportd (another open, a
 * getattr). A size smaller than ours is believed only while no report of ours is on its
 * way to exportd.
 *
 * @param target NULL: attr has only size and has_data, as a getattr answer.
 */
void file_refresh(struct file *f, const struct storcli_target *target,
                  const struct file_attr *attr);

/* The attributes that this client knows better than exportd, for getattr answers. */
uint64_t file_size(const struct file *f);
bool file_has_data(const struct file *f);
/**
 * Returns the allocated bytes, with those of runs on their way. The second argument is
 * exportd's number, used unless more is known here.
 */
uint64_t file_allocated(const struct file *f, uint64_t told);
/**
 * Returns the epoch of its writes; 0: none yet. A file that is opened again must not get
 * it once more.
 */
uint32_t file_epoch(const struct file *f);
/** Returns the clock at the last unreported write; 0: there is none. */
int64_t file_mtime_ns(const struct file *f);
/** Drops an unreported mtime (it was set explicitly). */
void file_forget_mtime(struct file *f);

/* Answer to a read: pieces of memory, valid inside the callback only. */
typedef void file_read_cb(void *arg, int rc, const struct iovec *iov, unsigned n_iov);

/**
 * Reads up to len bytes (1 MiB at most) at offset; fewer only at the end of the file.
 *
 * @param direct  bypasses this process's read-ahead cache (still sees every accepted
 *                write).
 */
void file_read(struct file *f, uint64_t offset, size_t len, bool direct,
               file_read_cb *done, void *arg);

/** Reads like file_read(), but reads nothing ahead beyond the offset `within`. */
void file_read_within(struct file *f, uint64_t offset, size_t len, uint64_t within,
                      bool direct, file_read_cb *done, void *arg);

enum file_write_flags {
    FILE_WRITE_SYNC = 1,    /* done when all is stable and durable (O_SYNC) */
    FILE_WRITE_THROUGH = 2, /* done only when enough storages have it (O_DIRECT) */
    FILE_WRITE_APPEND = 4,  /* ignores offset: at the end of the file as known here */
};
/**
 * Writes. The bytes are taken over (copied or sent) before done. Without flags done may
 * come as soon as they are in write-behind memory, and errors show at file_flush() /
 * file_sync().
 *
 * @param data borrowed until done.
 */
void file_write(struct file *f, uint64_t offset, const struct iovec *iov, unsigned n_iov,
                unsigned flags, file_done_cb *done, void *arg);

/* Data that could not be written stays in memory, is still returned by reads, and is
 * tried again: by each flush and sync, when a writer needs its room, and after a growing
 * pause. So every flush or sync reports the truth about all writes before it: an error
 * until they are with the storages, 0 from then on. Only file_close(), file_abandon() and
 * file_lose_all() drop data, and their rc says so. */
/**
 * Waits until all accepted writes are acknowledged by storages and reported to exportd
 * (close, flush).
 */
void file_flush(struct file *f, file_done_cb *done, void *arg);
/** Flushes, then makes it stable: storages synced, size and times durable at exportd. */
void file_sync(struct file *f, file_done_cb *done, void *arg);

/**
 * Flushes for a client that must let others at the file. Bytes that cannot be written or
 * reported, after one more try of what had failed before, are lost then: rc says why,
 * file_losses() has grown, and file_has_unreported() may be true. Calls under way fail
 * with the loss, too. No write may begin before done. From then on until the next write,
 * truncate, punch or allocate nothing is written, marked or reported; reads may be under
 * way.
 */
void file_abandon(struct file *f, file_done_cb *done, void *arg);
/**
 * Drops data like file_abandon(), for a client that has lost the right to write: only
 * requests already on their way to storages or exportd are waited for, the rest is lost.
 */
void file_lose_all(struct file *f, file_done_cb *done, void *arg);
/**
 * Returns true if there is nothing to write or report: file_abandon() would do nothing.
 */
bool file_is_clean(const struct file *f);

/**
 * Does the storages' part of a truncate that exportd has just accepted: attr is its
 * answer (new size, fresh epoch, pending truncate), target its FileRef. Writes accepted
 * before it are ordered before. Done when the storages have it and exportd knows
 * (MD_TRUNCATED). Call file_flush() first if the truncate shrinks the file (so that no
 * write is in flight at exportd).
 */
void file_truncate(struct file *f, const struct storcli_target *target,
                   const struct file_attr *attr, file_done_cb *done, void *arg);

/**
 * Optional, before MD_SETATTR: flushes, then holds every write and report of this file
 * until file_truncate() or file_truncate_cancel(), so that none of them can cross the
 * truncate on its way to exportd. done with 0: held, one of the two must follow; with an
 * error: nothing is held. While it is held, calls on this file wait: do not wait for one
 * of them before you go on.
 */
void file_truncate_begin(struct file *f, file_done_cb *done, void *arg);
/** Ends the hold without a truncate. */
void file_truncate_cancel(struct file *f);
/**
 * Ends the hold when exportd did not say whether it has truncated the file; also allowed
 * when nothing was held. Nothing is written before exportd has answered with a fresh
 * epoch: it may have given the truncate a newer epoch than ours, and what we write now
 * would be cut off later. Writes that wait for that fail if exportd stays unreachable.
 */
void file_truncate_unsure(struct file *f);

/**
 * Punches a hole within the size (FALLOC_FL_PUNCH_HOLE / ZERO_RANGE); the rest of partial
 * blocks stays.
 */
void file_punch(struct file *f, uint64_t offset, uint64_t len, file_done_cb *done,
                void *arg);
/** Reserves space (plain fallocate); grows the file unless keep_size. */
void file_allocate(struct file *f, uint64_t offset, uint64_t len, bool keep_size,
                   file_done_cb *done, void *arg);

/** Finds the next data (-ENXIO: none) or hole, as lseek does; rc is 0 and *found set. */
void file_seek(struct file *f, uint64_t offset, bool want_hole, uint64_t *found,
               file_done_cb *done, void *arg);

/**
 * Reports sizes and times again, after exportd may have forgotten what was not synced.
 * Reports on their way count as not made.
 */
void file_report_again(struct file *f);

/**
 * Returns a number that grows each time accepted bytes turn out to be lost by the
 * storages, or are abandoned. Only one file_sync() reports a loss of the storages; other
 * users of the file see it here.
 */
uint64_t file_losses(const struct file *f);

/**
 * Returns true if storages were, or will be, asked to keep something of the file: a
 * removal must reach them.
 */
bool file_has_stored(const struct file *f);

/**
 * Returns true if storages may have bytes of ours beyond the reported size: a write that
 * failed left them, or the report was lost.
 */
bool file_has_unreported(const struct file *f);

/**
 * Drops clean cached data (invalidate), and reads of it under way: only a read that began
 * before may still return that data.
 */
void file_drop_cache(struct file *f);

#endif
