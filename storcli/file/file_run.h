/*
 * file_run.h - runs of blocks in memory: those that are dirty, and those being written.
 *
 * Private to storcli/file. struct file_runs is written by file_run.c only. Thread: the
 * env's.
 */
#ifndef ROZO_STORCLI_FILE_FILE_RUN_H
#define ROZO_STORCLI_FILE_FILE_RUN_H

#include "common/base/bufpool.h"
#include "storcli/file/file_queue.h"

/* Memory for the data of many files of one loop. */
struct file_pool {
    struct bufpool bufs;
    uint64_t max_bytes;      /* most bytes lent, in whole buffers */
    unsigned n_bufs;         /* lent at the moment */
    struct list_node cached; /* files with clean data, least recently used first */
};

/* Piece of the pool, shared by the runs that lie in it. */
struct fbuf {
    struct file_pool *pool; /* borrowed */
    uint8_t *data;          /* owned, from pool->bufs */
    size_t bytes;
    unsigned n_refs;
};

struct fbuf *fbuf_new(struct file_pool *pool, size_t bytes);
struct fbuf *fbuf_share(struct fbuf *buf);
void fbuf_drop(struct fbuf *buf); /* NULL is fine */
enum frun_state {
    FRUN_DIRTY,   /* in dirty */
    FRUN_FLYING,  /* in writing: storcli_write() is under way */
    FRUN_EPOCH,   /* in writing: refused, waits for a fresh epoch or capability */
    FRUN_PARKED,  /* in writing: failed with rc; kept, and tried again */
    FRUN_CLEAN,   /* in clean */
    FRUN_USED_UP, /* in clean: a stream has read it to its end */
};

/* Need to write a dirty or parked run as soon as possible. */
enum frun_want {
    WANT_NOT,
    WANT_SOON,
    WANT_BELOW, /* parked: a wanted run lies above it, and waits for it */
};

struct write_fop;

/* Consecutive blocks in memory. */
struct frun {
    struct file *f; /* borrowed */
    struct list_node
        link;         /* in f->writeback.want (dirty, writing) or f->cache.lru (clean) */
    struct fbuf *buf; /* shared; NULL: the caller's memory, see `direct` */
    struct write_fop *direct; /* write whose memory this is; NULL with a buf */
    uint8_t *data;            /* start of block `first` */
    uint64_t first;           /* block index */
    uint64_t end;             /* one past the last block */
    uint64_t cap_end;         /* dirty: end of the memory */
    uint64_t lo, hi;          /* written bytes of the file; in the first and last block */
    /* bytes of the first block below lo, of the last above hi, are right */
    bool head_ok, tail_ok;
    bool sync; /* stable before it is acknowledged (O_SYNC) */
    enum frun_want want;
    bool was_read; /* clean: read from storages, perhaps after they lost some of ours */
    enum frun_state state;
    uint64_t id;      /* dirty, writing: age, from runs.next_id */
    uint64_t version; /* version of the last attempt */
    uint64_t cut;     /* flying: filler from this byte on has been cut off since */
    unsigned n_stale, n_denied; /* refusals of this attempt */
    uint64_t
        failed_clock; /* f->writeback.clock when the last attempt failed; 0: did not */
    bool has_failed;  /* has failed before, at any time */
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

struct file_runs {
    struct frunset dirty, writing;
    unsigned n;       /* clean ones too */
    uint64_t bytes;   /* dirty and writing */
    uint32_t blocks;  /* blocks of a full run, and the grid runs keep to */
    uint64_t next_id; /* id of the next dirty run */
    /* end of the last write; bytes of the sequence so far */
    uint64_t write_next, write_streak;
    struct waitlist waiters; /* for a change in any run */
};

/** Begins with no runs; full ones will have this many blocks. */
void runs_init(struct file *f, uint32_t blocks);
void runs_free(struct file *f);
/** Moves a dirty run to the writing ones: it does not change any more. */
void runs_set_off(struct frun *run);
/** Takes a writing run out: it was written, or is given back. */
void runs_take_out(struct frun *run);
/** Adds a run of a write's own memory to the writing ones. NULL: out of memory. */
struct frun *runs_add_direct(struct file *f, struct write_fop *w, uint64_t first,
                             uint64_t end, const uint8_t *data, bool sync);
/** Follows sequences of writes: begins one at offset, took in [from, to), ends. */
void runs_write_begins(struct file *f, uint64_t offset);
void runs_wrote(struct file *f, uint64_t from, uint64_t to);
void runs_end_sequence(struct file *f);

struct frun *frun_new(struct file *f);
void frun_free(struct frun *run);
/**
 * Takes bytes [pos, end) of the file into dirty memory, as many as fit one run.
 *
 * @param src bytes to copy, NULL: zeros.
 * @return bytes taken; 0: a block must be filled first, wait for runs.waiters; or -errno.
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

#endif
