/*
 * file.h - one open file in bytes: write-behind, read-modify-write, read-ahead, size, truncate.
 *
 * Core (sans-I/O), above blocks.h. One struct file per inode and loop, shared by all handles of
 * that inode; the FUSE face calls it with byte ranges. It gathers small sequential writes into
 * large runs, completes partial blocks, orders overlapping operations, keeps the size, and
 * tells exportd (through struct file_meta) what was written. A read sees every write that was
 * accepted before it.
 */
#ifndef ROZO_STORCLI_FILE_H
#define ROZO_STORCLI_FILE_H

#include <sys/uio.h>

#include "common/base/spans.h"
#include "storcli/blocks.h"

struct file;

typedef void file_done_cb(void *arg, int rc);

/* Data reach no further (holes may): half of it, a projection, is what ext4 takes in one file. */
#define FILE_DATA_END_MAX (UINT64_C(1) << 44)

/* What a file needs to know of its inode. */
struct file_attr {
    uint64_t size;
    /* The answer is older than another that came before it: its size says nothing; or it may be: that the file is shorter
     * is not believed then. */
    bool size_is_old, size_may_be_old;
    bool has_data;  /* false: reads are zeros, no storage is asked */
    uint32_t epoch; /* to write with; 0: none yet */
    bool truncate_pending;
    uint64_t truncate_size;
    uint64_t truncate_version; /* of the newest one, also when it is done; 0: none was */
    bool
        truncate_is_old; /* file_truncate(): others may have written since it was accepted */
    /* Not 0, and not on_storages: exportd has all data of the file itself, and storages have none that count. */
    uint32_t inline_max;
    bool on_storages;
    uint64_t inline_version; /* 0: there are no data yet; else: */
    const uint8_t *
        inline_data; /* borrowed for the call that this is given to, until its end; zeros follow */
    uint32_t inline_len; /* 1..FILE_INLINE_MAX */
    /* Allocated blocks have the value 1; owned by whoever gives it, until the end of the call. */
    bool blocks_known, blocks_unsure; /* unsure: there may be more of them */
    struct spans blocks;
};

enum {
    FILE_INLINE_MAX = 65536,
    FILE_RANGES_MAX = 4096,      /* of file_attr.blocks */
    FILE_RANGES_TOLD_MAX = 1024, /* of file_meta_call.allocated, and of freed */
};

/* Calls to exportd, given by rozomount. Every one ends with call->done(call, rc), once, later. */
struct file_meta_call;
typedef void file_meta_cb(struct file_meta_call *call, int rc);
struct file_meta_call {
    file_meta_cb *done; /* set by file.c */
    struct file *file;
    bool has_size;         /* out of wrote: attr.size is exportd's */
    bool is_cut;           /* ... because a truncate newer than what was told took it */
    struct file_attr attr; /* out of renew */
    struct storcli_target target; /* out of renew */
    /* Into renew and load: storages refuse this generation, and exportd told of no later one. */
    bool moved;
    uint32_t dist_generation;
    /* Into wrote. Not 0: all data of the file are these, for exportd to keep in the place of those it has, in one with the size; -ESTALE:
     * that is not so any more, a fresh epoch tells how it is. */
    uint64_t inline_version;
    const uint8_t *inline_data; /* borrowed until wrote returns */
    uint32_t inline_len;
    /* Into wrote: blocks that were allocated, and freed, since the last one that went well (spans_pack()); borrowed until it returns. */
    bool tells_blocks, blocks_counted; /* counted: with these, exportd knows all */
    const uint8_t *allocated, *freed;
    size_t allocated_len, freed_len;
};
struct file_meta {
    /** A fresh epoch and capability for writing (MD_OPEN with no_reference). Fills attr and target, whose session does not count. */
    void (*renew)(void *arg, struct file_meta_call *call);
    /**
     * MD_WROTE: the file is at least size long (0: no change) by a write of this epoch, has data; mtime_ns 0: no
     * change.
     */
    void (*wrote)(void *arg, struct file_meta_call *call, uint64_t size, uint32_t epoch,
                  bool has_data, int64_t mtime_ns, int64_t atime_ns, bool sync);
    /** The data that exportd has (MD_OPEN without a reference, only to read). Fills attr; needed where inline_max may be given. */
    void (*load)(void *arg, struct file_meta_call *call);
    /** MD_TRUNCATED: the pending truncate of this version is done on the storages. */
    void (*truncated)(void *arg, struct file_meta_call *call, uint64_t version);
    /** exportd's clock as it is estimated here, to stamp writes with; NULL: this machine's. */
    int64_t (*clock_ns)(void *arg);
    void *arg; /* the inode's, in rozomount */
};

/* Memory that the files of one loop share. Optional: without it each file has its own. */
struct file_pool;
/** max_bytes: above it files read nothing ahead and write out before they take more; 0: 256 MiB. */
int file_pool_new(uint64_t max_bytes, struct file_pool **out);
/** No file that uses it may be open. */
void file_pool_free(struct file_pool *pool);

/* As cache_ms: clean data is believed until file_drop_cache(). */
#define FILE_CACHE_UNTIL_DROPPED UINT32_MAX

/* Everything 0 is the default. */
struct file_config {
    uint64_t
        write_behind_max; /* dirty bytes of one file before writers wait [8 MiB]; 0: default */
    uint64_t write_run_bytes; /* a sequential run this long is written at once [1 MiB] */
    uint32_t write_delay_ms;  /* dirty data does not wait longer than this [1000] */
    uint64_t read_ahead_max;  /* [2 MiB]; 0: default */
    uint64_t
        read_ahead_far_max; /* while the storages are slow to answer [4 MiB, or what read_ahead_max says] */
    uint32_t
        report_delay_ms; /* a grown size is told to exportd after this at the latest [1000] */
    uint32_t cache_ms;      /* clean data is believed this long [1000] */
    struct file_pool *pool; /* borrowed, outlives the file; NULL: one of its own */
};

int file_open(struct env *env, struct storcli *cli, const struct file_config *config,
              const struct file_meta *meta, const struct storcli_target *target,
              const struct file_attr *attr, struct file **out);
/**
 * Writes out, reports, syncs nothing, frees. Nothing may be called with f any more. rc says what
 * could not be written or reported: that is lost now.
 */
void file_close(struct file *f, file_done_cb *done, void *arg);

/**
 * exportd told us more (another open, a getattr): adopt a fresher epoch, capability, size. A size
 * smaller than ours is believed only while nothing of ours is on its way to exportd.
 * @param target NULL: attr has only size and has_data, as a getattr answer.
 */
void file_refresh(struct file *f, const struct storcli_target *target,
                  const struct file_attr *attr);

/* The attributes this client knows better than exportd, for getattr answers. */
uint64_t file_size(const struct file *f);
bool file_has_data(const struct file *f);
/** Allocated bytes, with what is on its way: what exportd has said (told), unless we know of more. */
uint64_t file_allocated(const struct file *f, uint64_t told);
/** What it writes with; 0: none yet. A file that is opened again must not get it once more. */
uint32_t file_epoch(const struct file *f);
/** 0 while this client has not written; else its clock at the last write not yet reported. */
int64_t file_mtime_ns(const struct file *f);
/** Give up an unreported mtime (someone set mtime explicitly). */
void file_forget_mtime(struct file *f);

/* The answer to a read: pieces of memory, valid inside the callback only. */
typedef void file_read_cb(void *arg, int rc, const struct iovec *iov, unsigned n_iov);

/**
 * Read up to len bytes (1 MiB at most) at offset; fewer only at the end of the file.
 * @param direct  bypass this process's read-ahead cache (still sees every accepted write).
 */
void file_read(struct file *f, uint64_t offset, size_t len, bool direct,
               file_read_cb *done, void *arg);

/** The same; what lies behind `within` is not read ahead. */
void file_read_within(struct file *f, uint64_t offset, size_t len, uint64_t within,
                      bool direct, file_read_cb *done, void *arg);

enum file_write_flags {
    FILE_WRITE_SYNC =
        1, /* done only when stable, size and times durable at exportd (O_SYNC) */
    FILE_WRITE_THROUGH = 2, /* done only when enough storages have it (O_DIRECT) */
    FILE_WRITE_APPEND =
        4, /* offset is ignored: at the end of the file as we know it now */
};
/**
 * Write. The bytes are taken over (copied or sent) before done; without flags done may come
 * as soon as they are in write-behind memory, and errors show at file_flush / file_sync.
 * @param data borrowed until done.
 */
void file_write(struct file *f, uint64_t offset, const struct iovec *iov, unsigned n_iov,
                unsigned flags, file_done_cb *done, void *arg);

/*
 * Data that could not be written stays in memory, is still returned by reads, and is tried again:
 * by each flush and sync, when a writer needs its room, and by itself after a growing pause. So
 * every flush or sync says the truth about all writes before it: an error until they are with
 * the storages, 0 from then on. Only file_close() and file_give_up() give data up, and their rc
 * says so.
 */
/** All accepted writes are acknowledged by the storages and reported to exportd (close, flush). */
void file_flush(struct file *f, file_done_cb *done, void *arg);
/** The same, and stable: storages synced, size and times durable at exportd. */
void file_sync(struct file *f, file_done_cb *done, void *arg);

/**
 * The same as file_flush(), for who must let others at the file: what cannot be written or reported, also by
 * one more try of what had failed before, is lost then. rc says why; file_losses() has grown, and
 * file_is_untold() may be true. Calls under way hear of the loss, too. No write may begin before
 * done. From then on until the next write, truncate, punch or allocate nothing is written, marked or
 * reported; reads may be under way.
 */
void file_give_up(struct file *f, file_done_cb *done, void *arg);
/**
 * The same for who has lost the right to write: what is not on its way to storages or exportd is not tried any more.
 */
void file_lose_all(struct file *f, file_done_cb *done, void *arg);
/** Nothing is to be written or reported, or is about to be: file_give_up() would do nothing. */
bool file_is_clean(const struct file *f);

/**
 * The storages' part of a truncate that exportd has just accepted: attr is its answer (new
 * size, fresh epoch, pending truncate), target its FileRef. Writes accepted before it are
 * ordered before. Done when the storages have it and exportd knows (MD_TRUNCATED).
 * Call file_flush first when the truncate shrinks the file (so that no write is in flight at exportd).
 */
void file_truncate(struct file *f, const struct storcli_target *target,
                   const struct file_attr *attr, file_done_cb *done, void *arg);

/**
 * Optional, before MD_SETATTR: flush, then hold every write and report of this file until
 * file_truncate() or file_truncate_cancel(), so that none of them can cross the truncate on its
 * way to exportd. done with 0: held, one of the two must follow; with an error: nothing is held.
 * While it is held, calls on this file wait: do not wait for one of them before you go on.
 */
void file_truncate_begin(struct file *f, file_done_cb *done, void *arg);
void file_truncate_cancel(struct file *f);
/**
 * In the place of cancel (and also when nothing was held): exportd did not say whether it has
 * truncated the file. Nothing is written before it has told, with a fresh epoch: it may have given
 * the truncate a newer one than we have, under which what we write now would be cut off later.
 * Writes that wait for that fail when exportd stays away.
 */
void file_truncate_unsure(struct file *f);

/** FALLOC_FL_PUNCH_HOLE / ZERO_RANGE within the size; the rest of partial blocks stays. */
void file_punch(struct file *f, uint64_t offset, uint64_t len, file_done_cb *done,
                void *arg);
/** Plain fallocate: reserve; grow unless keep_size. */
void file_allocate(struct file *f, uint64_t offset, uint64_t len, bool keep_size,
                   file_done_cb *done, void *arg);

/** lseek: offset of the next data (-ENXIO: none) or hole; rc is 0 and *found set. */
void file_seek(struct file *f, uint64_t offset, bool want_hole, uint64_t *found,
               file_done_cb *done, void *arg);

/**
 * exportd may have forgotten what it was told since its last sync: sizes and the rest are told again, and what is on its
 * way counts as not told.
 */
void file_tell_again(struct file *f);

/**
 * Grows each time accepted bytes turn out to be lost by the storages, or are given up. One file_sync() says what
 * storages lost; who has the file open besides its caller sees it here.
 */
uint64_t file_losses(const struct file *f);

/** Storages have been, or will be, asked to keep something of the file: a removal has to reach them. */
bool file_has_stored(const struct file *f);

/**
 * Storages may have bytes of ours that lie beyond the size we tell: a write that failed left them, or exportd was not
 * told.
 */
bool file_is_untold(const struct file *f);

/**
 * Drop clean cached data (invalidate), and what is being read for it: only a read that began before
 * may still return that.
 */
void file_drop_cache(struct file *f);

#endif
