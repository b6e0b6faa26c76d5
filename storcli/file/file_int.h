/*
 * file_int.h - internals of the byte layer that its parts share: runs of blocks in
 * memory, fetches, operations, and the one struct file they hang from.
 *
 * Private to storcli/file. Thread: the env's.
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

#include "common/base/list.h"
#include "storcli/file.h"
#include "storcli/file/file_blocks.h"
#include "storcli/file/file_inline.h"
#include "storcli/file/file_meta_report.h"
#include "storcli/file/file_queue.h"
#include "storcli/file/file_size.h"
#include "storcli/file/file_trunc.h"
#include "storcli/file/file_writeback.h"
#include "storcli/rules/scratch.h"

enum {
    /* blocks of one read: 1 MiB of the smallest blocks, unaligned */
    FETCH_BLOCKS_MAX = 320,
    READ_AHEAD_FAR_BYTES = 4 << 20,
    STREAMS_MAX = 8,         /* sequential readers followed in one file */
    STALE_TRIES_MAX = 16,    /* fresh epochs for one write before it fails */
    AHEAD_BLOCKS_MAX = 128,  /* reserved beyond the end by a fallocate() in small steps */
    DENIED_TRIES_MAX = 1,    /* fresh capabilities for one request before it fails */
    MOVED_TRIES_MAX = 16,    /* fresh refs for one request before it fails */
    OUTDATED_PAUSE_MS = 500, /* before exportd is asked again for a later ref */
};

/* Memory for the data of many files of one loop. */
struct file_pool {
    struct scratch scratch;
    uint64_t max_bytes;      /* most bytes lent, in whole buffers */
    unsigned n_bufs;         /* lent at the moment */
    struct list_node cached; /* files with clean data, least recently used first */
};

/* Piece of the pool, shared by the runs that lie in it. */
struct fbuf {
    struct file_pool *pool; /* borrowed */
    uint8_t *data;          /* owned, from the scratch */
    size_t bytes;
    unsigned n_refs;
};

struct fbuf *fbuf_new(struct file_pool *pool, size_t bytes);
struct fbuf *fbuf_share(struct fbuf *buf);
void fbuf_drop(struct fbuf *buf); /* NULL is fine */
/**
 * Returns true if there is room for so many bytes more. If needed, takes clean data from
 * the files that were not used for longest.
 */
bool pool_make_room(struct file_pool *pool, uint64_t bytes);

enum frun_state {
    FRUN_DIRTY,  /* in dirty */
    FRUN_FLYING, /* in writing: storcli_write() is under way */
    FRUN_EPOCH,  /* in writing: refused, waits for a fresh epoch or capability */
    FRUN_PARKED, /* in writing: failed with rc; kept, and tried again */
    FRUN_CLEAN,  /* in clean */
};

struct write_fop;

/* Consecutive blocks in memory. */
struct frun {
    struct file *f;        /* borrowed */
    struct list_node link; /* in f->writeback.want (dirty, writing) or f->lru (clean) */
    struct fbuf *buf;      /* shared; NULL: the caller's memory, see `direct` */
    struct write_fop *direct; /* write whose memory this is; NULL with a buf */
    uint8_t *data;            /* start of block `first` */
    uint64_t first;           /* block index */
    uint64_t end;             /* one past the last block */
    uint64_t cap_end;         /* dirty: end of the memory */
    uint64_t lo, hi;          /* written bytes of the file; in the first and last block */
    /* bytes of the first block below lo, of the last above hi, are right */
    bool head_ok, tail_ok;
    bool sync;       /* stable before it is acknowledged (O_SYNC) */
    bool wanted;     /* dirty, parked: must be written as soon as possible */
    bool needed;     /* parked: a wanted run lies above it, and waits for it */
    bool is_used_up; /* clean: a stream has read it to its end */
    bool was_read;   /* clean: read from storages, perhaps after they lost some of ours */
    enum frun_state state;
    uint64_t id;      /* dirty, writing: age, from f->next_id */
    uint64_t version; /* version of the last attempt */
    uint64_t cut;     /* flying: filler from this byte on has been cut off since */
    unsigned n_stale, n_denied; /* refusals of this attempt */
    uint64_t
        failed_clock; /* f->writeback.clock when the last attempt failed; 0: did not */
    bool was_told;    /* has failed before, at any time */
    int rc;           /* error of the failure */
    uint64_t born_ns; /* dirty: age of its oldest byte; clean: time of the data */
};

/* Runs ordered by block, none overlapping another. */
struct frunset {
    struct frun **v; /* owned array */
    unsigned n, n_max;
};

/** Makes room for n runs, so that frunset_add() cannot fail. Returns 0 or -ENOMEM. */
int frunset_reserve(struct frunset *set, unsigned n);
void frunset_add(struct frunset *set, struct frun *run);
void frunset_remove(struct frunset *set, struct frun *run);
/** Returns the run that holds block, or NULL. */
struct frun *frunset_find(const struct frunset *set, uint64_t block);
/**
 * Returns the index of the first run that ends after block; set->n when there is none.
 */
unsigned frunset_index(const struct frunset *set, uint64_t block);
/**
 * Returns the first block of the first run that ends after block; UINT64_MAX when there
 * is none.
 */
uint64_t frunset_next(const struct frunset *set, uint64_t block);
bool frunset_overlaps(const struct frunset *set, uint64_t first, uint64_t end);

struct read_fop {
    struct fop op;
    struct list_node active; /* in f->reads */
    file_read_cb *read_done;
    uint64_t offset, end; /* bytes; end is within the size at its begin */
    uint64_t within;      /* nothing is read ahead from here on */
    bool direct, begun;
    bool exact;         /* a shared fetch failed: fetch only what is needed */
    bool drained;       /* direct: storages have all that was accepted before */
    uint64_t before_id; /* direct: runs older than this were accepted before */
    struct fetch *own;  /* direct: own fetch, done or not; owned */
    bool own_busy;
};

enum fetch_kind {
    FETCH_CACHE, /* into clean */
    FETCH_FILL,  /* one block, to complete a dirty one */
    FETCH_OWN,   /* for one operation alone */
};

/* Blocks on their way from the storages. */
struct fetch {
    struct file *f;
    struct list_node link; /* in f->fetches */
    enum fetch_kind kind;
    struct fbuf *buf; /* owned until done */
    uint64_t first;
    uint32_t n;
    bool denied;      /* capability was refused once */
    bool waits;       /* waits for a fresh capability */
    unsigned n_moved; /* fresh refs that it waited for */
    bool moved;       /* waits for a fresh ref */
    bool inlined;     /* served from exportd's data, or waits for that */
    int rc;
    uint64_t limit; /* bytes of the file from here on are zeros, whatever comes */
    uint64_t stale[FETCH_BLOCKS_MAX / 64]; /* blocks overwritten since it began */
    uint16_t user_bytes[FETCH_BLOCKS_MAX];
    uint64_t started_ns;
    struct waitlist waiters;
    void (*done)(struct fetch *fetch, void *arg); /* FETCH_OWN; takes the fetch */
    void *arg;
};

struct stream {
    uint64_t next;   /* where the reader will go on, bytes */
    uint64_t ahead;  /* blocks below this have been asked for */
    uint64_t window; /* bytes to be ahead */
    uint64_t used_ns;
};

/* A reader that comes at equal distances, forwards or backwards. */
struct stepper {
    uint64_t at, len; /* last read, bytes */
    int64_t step;     /* distance of the last two reads */
    unsigned n_same;  /* equal steps and lengths so far */
    unsigned n_ahead; /* reads asked for beyond the last one */
};

struct file {
    struct env *env;         /* borrowed */
    struct storcli *cli;     /* borrowed */
    struct storcli_file *sf; /* owned */
    struct file_config config;
    struct file_meta meta;
    struct file_pool *pool;     /* borrowed, or own_pool */
    struct file_pool *own_pool; /* owned; NULL when config.pool was given */
    uint32_t bs;                /* bytes of a block */
    uint32_t run_blocks;        /* blocks of a full run, and the grid runs keep to */
    uint32_t fetch_blocks;      /* the grid fetches keep to */
    uint64_t clean_max;

    /* Attributes of the inode. */
    struct file_size size;

    /* Memory. */
    struct frunset dirty, writing, clean;
    unsigned n_runs;
    struct list_node lru;       /* clean runs, least recently used first */
    struct list_node pool_link; /* in pool->cached while there are any */
    uint64_t dirty_bytes;       /* dirty and writing */
    uint64_t clean_bytes;
    uint64_t next_id;
    struct list_node fetches;
    unsigned n_fetches;
    struct stream streams[STREAMS_MAX];
    struct stepper stepper;
    uint64_t fetch_ns; /* time of a fetch for readers, a moving average */
    /* end of the last write; bytes of the sequence so far */
    uint64_t write_next, write_streak;

    struct file_queue queue;
    struct list_node reads; /* started and not ended: struct read_fop.active */
    struct waitlist run_waiters;
    struct file_trunc trunc;

    /* Exchange with exportd. */
    struct file_epoch epoch;
    struct file_writeback writeback;
    struct file_report report;
    struct file_inline inl;
    struct file_blocks blocks;
    struct env_timer clean_timer;
    bool closing, closed;
    int close_rc;
    uint64_t close_report_no; /* failures of older reports are not close's */
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

/** Replaces -ESTALE and -EREMOTE, which mean nothing to callers. */
static inline int plain_errno(int rc)
{
    return rc == -ESTALE || rc == -EREMOTE ? -EIO : rc;
}
/**
 * Adopts an answer of exportd; with_data: also the fields that only an open or setattr
 * answer has.
 */
void file_adopt(struct file *f, const struct file_attr *attr, bool with_data);
/** Returns true if no report of ours is on its way to exportd, or will be. */
bool file_is_silent(const struct file *f);

/* ---- file_run.c: runs in memory ---- */

struct frun *frun_new(struct file *f);
void frun_free(struct frun *run);
/**
 * Takes bytes [pos, end) of the file into dirty memory, as many as fit one run.
 *
 * @param src bytes to copy, NULL: zeros.
 * @return bytes taken; 0: a block must be filled first, wait for run_waiters; or -errno.
 */
int64_t frun_place(struct file *f, uint64_t pos, uint64_t end, const uint8_t *src,
                   bool sync, struct fop *op);
/** Completes the edges of a dirty run that lie in block from its data below. */
void frun_fill(struct frun *run, uint64_t block, const uint8_t *data);
/**
 * Completes the edges of a dirty run: at once from memory, else by fetches. True:
 * complete.
 */
bool frun_complete(struct frun *run);
/**
 * Forgets clean blocks that change, and keeps fetches under way from making them clean.
 */
void clean_forget(struct file *f, uint64_t first, uint64_t end);
/** Does clean_forget(), and keeps fetches from completing dirty blocks, too. */
void clean_forget_all(struct file *f, uint64_t first, uint64_t end);
/**
 * Keeps blocks [first, first + n) of buf, which storages have, as clean, except dirty or
 * stale ones. stale NULL: they were just written.
 */
void clean_add(struct file *f, struct fbuf *buf, uint64_t first, uint32_t n,
               const uint64_t *stale);
/** Returns a clean run fresh enough for an operation begun at start_ns; NULL: none. */
struct frun *clean_find(struct file *f, uint64_t block, uint64_t start_ns);
void clean_shrink(struct file *f, uint64_t max_bytes);
/**
 * Marks a run that a stream has read to its end: it goes when no read needs it; earlier
 * ones go now.
 */
void clean_is_used_up(struct frun *run);
void clean_drop_all(struct file *f);
void clean_start_timer(struct file *f);
/** Cuts the runs in memory for a truncate to size. No run may be flying. */
void frun_cut(struct file *f, uint64_t size);
/**
 * Clears the bytes beyond size that blocks were completed with: another client cut the
 * file there.
 */
void frun_forget_beyond(struct file *f, uint64_t size);
/** Clears these bytes in a run that was on its way then, before it goes once more. */
void frun_apply_cut(struct frun *run);
/** Drops dirty and parked runs; no run may be flying. */
void frun_drop_dirty(struct file *f);
/** Drops dirty runs. */
void frun_drop_unsent(struct file *f);

/* ---- file_writeback.c: fetches ---- */

/**
 * Reads blocks into a new fetch; runs in memory are not looked at. Returns 0 or -ENOMEM.
 */
int fetch_start(struct file *f, enum fetch_kind kind, uint64_t first, uint32_t n,
                struct fetch **out);
void fetch_free(struct fetch *fetch);
struct fetch *fetch_find(struct file *f, enum fetch_kind kind, uint64_t block);

/** Handles the answer to a fetch, or ends it. */
void fetch_answered(struct fetch *fetch, int rc);
void fetch_read(struct fetch *fetch);

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
