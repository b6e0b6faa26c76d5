/*
 * file_int.h - what the parts of the byte layer share: runs of blocks in memory, fetches,
 * operations, and the one struct file they hang from.
 *
 * Private to storcli/file. Thread: the env's.
 *
 * Memory holds three sets of runs, and a block is looked for in this order:
 *   dirty    accepted, not on its way; takes further writes. Its first and last block may be
 *            incomplete until they were filled from below.
 *   writing  complete and unchangeable: on its way to the storages, or parked after a failure.
 *   clean    what the storages have (read ahead, or just written).
 * Within a set no block appears twice; a block is never both dirty and clean, nor both writing
 * and clean. A dirty block above a writing one has been completed from it at once.
 */
#ifndef ROZO_STORCLI_FILE_FILE_INT_H
#define ROZO_STORCLI_FILE_FILE_INT_H

#include <errno.h>

#include "common/base/list.h"
#include "common/base/spans.h"
#include "storcli/blocks/scratch.h"
#include "storcli/file.h"

enum {
    FETCH_BLOCKS_MAX =
        320, /* of one read from the storages: 1 MiB of the smallest blocks, unaligned */
    FLYING_MAX = 64, /* runs of one file on their way */
    READ_AHEAD_FAR_BYTES = 4 << 20,
    STREAMS_MAX = 8,         /* sequential readers followed in one file */
    STALE_TRIES_MAX = 16,    /* fresh epochs for one write before it fails */
    AHEAD_BLOCKS_MAX = 128,  /* that a fallocate() in small steps reserves beyond them */
    RESERVED_MAX = 256,      /* ranges that are remembered; more are forgotten */
    DENIED_TRIES_MAX = 1,    /* fresh capabilities for one request before it fails */
    MOVED_TRIES_MAX = 16,    /* fresh refs for one request before it fails */
    OUTDATED_PAUSE_MS = 500, /* before exportd is asked again for a later ref */
    RETRY_MS_MIN = 1000, /* first pause before a parked run is tried again by itself */
    RETRY_MS_MAX = 30000,
};

/* Memory for the data of many files of one loop. */
struct file_pool {
    struct scratch scratch;
    uint64_t max_bytes;      /* of what it lends, whole buffers */
    unsigned n_bufs;         /* out at the moment */
    struct list_node cached; /* files with clean data, least recently used first */
};

/* A piece of the pool, shared by the runs that lie in it. */
struct fbuf {
    struct file_pool *pool; /* borrowed */
    uint8_t *data;          /* owned, of the scratch */
    size_t bytes;
    unsigned n_refs;
};

struct fbuf *fbuf_new(struct file_pool *pool, size_t bytes);
struct fbuf *fbuf_share(struct fbuf *buf);
void fbuf_drop(struct fbuf *buf); /* NULL is fine */
/**
 * Is there room for so many bytes more? If need be in the place of clean data of files that were not
 * used for long: they may keep it for as long as they like.
 */
bool pool_make_room(struct file_pool *pool, uint64_t bytes);

enum frun_state {
    FRUN_DIRTY,  /* in dirty */
    FRUN_FLYING, /* in writing: storcli_write() is under way */
    FRUN_EPOCH,  /* in writing: was refused, waits for a fresh epoch or capability */
    FRUN_PARKED, /* in writing: failed with rc; kept, and tried again */
    FRUN_CLEAN,  /* in clean */
};

struct write_fop;

/* Consecutive blocks in memory. */
struct frun {
    struct file *f;           /* borrowed */
    struct list_node link;    /* in f->want (dirty, writing) or f->lru (clean) */
    struct fbuf *buf;         /* shared; NULL: the caller's memory, of `direct` */
    struct write_fop *direct; /* the write whose memory this is; NULL with a buf */
    uint8_t *data;            /* of block `first` */
    uint64_t first;           /* block index */
    uint64_t end;             /* one past the last block */
    uint64_t cap_end;         /* dirty: as far as data reaches */
    uint64_t lo, hi; /* bytes of the file somebody wrote; in the first and last block */
    bool head_ok, tail_ok; /* the first block below lo, the last above hi are right too */
    bool sync;             /* to stable storage before it is acknowledged */
    bool wanted;           /* dirty, parked: to be written as soon as may be */
    bool needed;           /* parked: a run above it may go, and can only after it */
    bool is_used_up;       /* clean: a stream has read it to its end */
    bool
        was_read; /* clean: from the storages, maybe after the power had taken some of ours there */
    enum frun_state state;
    uint64_t id;      /* dirty, writing: age, from f->next_id */
    uint64_t version; /* of the last attempt */
    uint64_t cut;     /* flying: what fills it up from this byte on another cut off */
    unsigned n_stale, n_denied; /* refusals of this attempt */
    uint64_t failed_clock;      /* f->clock when the last attempt failed; 0: did not */
    bool was_told;              /* that one failed, whenever */
    int rc;                     /* why it failed */
    uint64_t born_ns; /* dirty: of its oldest byte; clean: when the storages had it */
};

/* Runs ordered by block, none overlapping another. */
struct frunset {
    struct frun **v; /* owned array */
    unsigned n, n_max;
};

/** Make room, so that frunset_add() need not fail. */
int frunset_reserve(struct frunset *set, unsigned n);
void frunset_add(struct frunset *set, struct frun *run);
void frunset_remove(struct frunset *set, struct frun *run);
/** The run that holds block, or NULL. */
struct frun *frunset_find(const struct frunset *set, uint64_t block);
/** Index of the first run that ends after block; set->n when there is none. */
unsigned frunset_index(const struct frunset *set, uint64_t block);
/** The first block of the first run that ends after block, UINT64_MAX when there is none. */
uint64_t frunset_next(const struct frunset *set, uint64_t block);
bool frunset_overlaps(const struct frunset *set, uint64_t first, uint64_t end);

/* Operations that wait for the same thing. */
struct waitlist {
    struct list_node ops;
};

enum fop_kind { FOP_READ, FOP_WRITE, FOP_FLUSH, FOP_EXCLUSIVE, FOP_SEEK, FOP_CLOSE };

/* The common part of every operation: first member of its struct, which is malloc'ed. */
struct fop {
    struct list_node link; /* in f->queue, f->ready or one waitlist */
    struct file *f;        /* borrowed */
    enum fop_kind kind;
    bool started;
    bool denied;      /* had its fresh capability */
    unsigned n_moved; /* fresh refs that it waited for */
    int fetch_rc;     /* of a fetch it waited for that failed; 0: none */
    void (*step)(struct fop *op);
    file_done_cb *done; /* called once, by fop_end(); NULL: the op calls for itself */
    void *arg;          /* the caller's */
    uint64_t clock;     /* failures up to here are not ours to tell */
    uint64_t start_ns;
};

struct read_fop {
    struct fop op;
    struct list_node active; /* in f->reads */
    file_read_cb *read_done;
    uint64_t offset, end; /* bytes; end is within the size it began with */
    uint64_t within;      /* nothing is read ahead from here on */
    bool direct, begun;
    bool exact;         /* a shared fetch failed: now only what we need ourselves */
    bool drained;       /* direct: what was accepted before us is with the storages */
    uint64_t before_id; /* direct: runs older than this were accepted before us */
    struct fetch *own;  /* direct: ours, done or not; owned */
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
    bool denied; /* the capability was refused once: waits for, or had, a fresh one */
    bool waits;  /* for that */
    unsigned n_moved; /* fresh refs that it waited for */
    bool moved;       /* waits for one */
    bool inlined;     /* from what exportd has: served, or waits for that */
    int rc;
    uint64_t limit; /* bytes of the file from here on are zeros, whatever comes */
    uint64_t stale[FETCH_BLOCKS_MAX / 64]; /* blocks overwritten since it began */
    uint16_t user_bytes[FETCH_BLOCKS_MAX];
    uint64_t started_ns;
    struct waitlist waiters;
    void (*done)(struct fetch *fetch, void *arg); /* FETCH_OWN; takes the fetch */
    void *arg;
};

/* What file_truncate() and whoever finds an unfinished truncate have to do on the storages. */
enum trunc_state {
    TRUNC_DRAIN, /* nothing may be flying */
    TRUNC_EPOCH, /* an epoch not below the truncate's is needed */
    TRUNC_MARK,  /* blocks beyond become holes */
    TRUNC_LOOK,  /* what lies in the last partial block? */
    TRUNC_CUT,   /* it is written again, short */
    TRUNC_SYNC,  /* stable on the storages: exportd is about to forget that it was not */
    TRUNC_TELL,  /* exportd may forget it */
};
struct trunc {
    enum trunc_state state;
    bool busy;    /* an answer will come */
    bool asked;   /* it has come: rc is the state's */
    bool own;     /* it is our own file_truncate(): what is beyond is ours to remove */
    bool fresh;   /* the mark needs a version of our own, the truncate's was too old */
    bool refused; /* something newer is beyond a truncate that is not ours */
    bool below;   /* and exportd says that it is pending still: what is newer stays */
    bool denied;  /* had its fresh capability */
    bool by_run;  /* a run in memory that will be written is the cut */
    bool renewed; /* the answer asked for is that of file_renew() */
    int rc;
    unsigned n_tries;
    uint64_t clock;
    struct fetch *look; /* what came of TRUNC_LOOK; owned */
    struct file_meta_call call;
};

struct stream {
    uint64_t next;   /* where the reader will go on, bytes */
    uint64_t ahead;  /* blocks below this have been asked for */
    uint64_t window; /* bytes to be ahead */
    uint64_t used_ns;
};

/* A reader who comes at equal distances, forwards or backwards. */
struct stepper {
    uint64_t at, len; /* his last read, bytes */
    int64_t step;     /* from the one before to that */
    unsigned n_same;  /* steps of that length and that one, so far */
    unsigned n_ahead; /* reads that were asked for behind his last one */
};

/* Where the data of the file are. */
enum place {
    PLACE_STORAGES,
    PLACE_EXPORTD, /* and nothing on storages counts */
    PLACE_UNKNOWN, /* others may have changed it since we heard: exportd is asked before data are read or changed */
};

/*
 * A small file, see file_inline.c. What lies with exportd (`bytes`) takes the place of what lies on storages: runs are completed from it,
 * fetches are served from it, and runs that are to be written go there, all at once.
 */
struct inl {
    enum place place;
    uint64_t max; /* data do not lie behind this byte; 0: never with exportd */
    uint8_t
        *bytes; /* EXPORTD: what it has; owned. Zeros follow up to the end of the file */
    uint64_t len;
    uint64_t version; /* of them; 0: there are none */
    uint64_t
        no; /* of our last turn: answers to what was asked before say nothing of the place */
    bool stale;       /* EXPORTD: it takes nothing before we have a fresh epoch */
    unsigned n_stale; /* times that it was so, since something went there */
    bool resend;      /* it may have forgotten: the next report tells it again */
    /* From exportd to the storages: STORAGES already, but others have not been told, and we may die. */
    bool leaving;
    uint64_t
        leave_id; /* of runs, what is older has to be acknowledged before it is told, ... */
    bool leave_syncs; /* ... and synced, for what is there already may be so, too ... */
    bool settled;     /* ... and it is */
    bool settle_busy;
    bool settle_moved; /* it waits for a fresh ref */
    unsigned n_settle_moved;
    /* A WROTE with data is out. */
    bool busy;
    struct file_meta_call call;
    uint8_t *sent; /* owned */
    struct {
        uint64_t len, version, no, size, change, n_truncates, doubt_no;
        int64_t mtime_ns;
        bool sync;
    } out;
    bool load_busy;
    uint64_t load_no;
    struct file_meta_call load_call;
    struct waitlist load_waiters;
    struct waitlist moved_waiters; /* for a fresh ref */
    uint64_t renew_no;             /* inl.no when the renewal was asked */
};

/*
 * Which blocks are allocated, see file_blocks.c. What was told moves on: tell -> sent -> told -> nowhere, when it is durable.
 */
struct blocks {
    bool is_known;                 /* `known` is all that others have allocated, too */
    struct spans known;            /* BLOCKS_ALLOCATED */
    struct spans tell, sent, told; /* enum blocks_change */
    /* Blocks that nobody told of are looked for in the holes that exportd knows. */
    bool counting, counted; /* counted: it is to be told so */
    bool seek_busy;
    uint64_t count_at, hole_end; /* blocks */
    uint64_t count_ns;           /* when it began */
    uint64_t found;
    uint64_t n_freed, seek_n_freed; /* what was freed while we asked is not found */
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

    /* What we know of the inode. */
    uint64_t size;      /* as our readers see it: grows when a write is accepted */
    uint64_t meta_size; /* as exportd knows it */
    uint64_t
        acked_end; /* end of what storages acknowledged or reserved since the last truncate */
    uint64_t
        through_end; /* a flush, or a synchronous write, says that it is so long at least: newer bytes below do not count */
    uint32_t
        size_epoch; /* of the write that made it so long, or what else did; 0: none of ours */
    uint64_t n_losses; /* sizes that exportd did not take, and what was given up */
    bool has_data, has_data_told;
    int64_t mtime_ns; /* of the last write not yet reported; 0: none */
    uint32_t epoch, sequence;
    struct spans
        reserved; /* blocks that this mount has reserved, and nobody has freed since */
    bool truncate_pending;
    uint64_t truncate_size, truncate_version;
    uint64_t n_truncates; /* ours; a report that spans one says nothing of the size */
    bool
        unsure; /* of a truncate, ours that exportd did not answer or another's: no version is good */
    uint64_t sure_no; /* the renewal that will tell, see renew_no */

    /* Memory. */
    struct frunset dirty, writing, clean;
    unsigned n_runs;
    struct list_node lru;       /* clean runs, least recently used first */
    struct list_node pool_link; /* in pool->cached while there are any */
    struct list_node want; /* dirty and parked runs to be written, in order of wanting */
    uint64_t dirty_bytes;  /* dirty and writing */
    uint64_t clean_bytes;
    unsigned n_flying;
    uint64_t next_id;
    uint64_t clock;      /* counts failures */
    uint64_t lost_clock; /* f->clock when data was given up last; 0: never was */
    int lost_rc;         /* why that, or a report, was given up */
    unsigned
        n_giving_up; /* operations that give up what fails: it is not tried again by itself */
    uint64_t retry_ms;
    uint64_t retry_at_ns; /* parked runs are wanted again; 0: none is parked */
    struct list_node fetches;
    unsigned n_fetches;
    struct stream streams[STREAMS_MAX];
    struct stepper stepper;
    uint64_t
        fetch_ns; /* how long what is fetched for readers takes: the older the less it counts */
    uint64_t write_next,
        write_streak; /* end of the last write; bytes of the sequence so far */

    /* Operations. */
    struct list_node queue; /* not started, in order of arrival */
    struct list_node ready; /* to be stepped */
    struct list_node reads; /* started and not ended: struct read_fop.active */
    unsigned n_active;
    struct fop *accepting; /* the write that is being taken in */
    struct fop
        *exclusive; /* alone: truncate, punch, allocate, or a write that finishes one */
    uint64_t exclusive_first,
        exclusive_end;   /* blocks that may be written out nevertheless */
    bool exclusive_held; /* file_truncate_begin() was answered, its end has not come */
    struct waitlist run_waiters, exclusive_waiters, renew_waiters, report_waiters;
    struct trunc trunc;
    bool
        trunc_active; /* it is under way, and hears for itself what became of the truncate */

    /* Talk with exportd. */
    struct file_meta_call renew_call;
    bool renew_busy;
    uint64_t renew_no; /* answers so far, good and bad */
    int renew_rc;      /* of the last one */
    struct file_meta_call report_call;
    bool report_busy, report_again, report_again_sync;
    uint64_t change; /* counts what exportd has to be told */
    uint64_t reported_change, durable_change;
    uint64_t report_no;        /* reports begun */
    uint64_t report_failed_no; /* the newest that failed */
    uint64_t report_lost_no;   /* the newest whose word was given up */
    int report_rc;
    uint64_t
        told_end; /* the largest size told since the last report that is durable; 0: none */
    uint64_t fresh_end; /* end of what storages acknowledged since then */
    bool is_untold;     /* a write beyond the end failed, and may be there */
    bool in_doubt;      /* exportd may have forgotten meta_size */
    uint64_t doubt_no;  /* times it was so */
    struct inl inl;
    struct blocks blocks;
    struct {
        uint64_t size, change, n_truncates, doubt_no, fresh_end;
        uint64_t least_size; /* exportd has it so long, once it has heard this */
        bool left, resent;
        int64_t mtime_ns;
        bool has_data, sync;
        bool again; /* the size was told before */
    } report;       /* what is on its way */

    struct env_task task;
    struct env_timer write_timer, report_timer, clean_timer;
    struct env_timer renew_timer, load_timer; /* pauses while `outdated` */
    bool outdated; /* storages refused the newest ref that exportd has */
    bool closing, closed;
    int close_rc;
    uint64_t close_report_no; /* failures of older reports are not close's */
    struct fop *close_op;     /* owned; outlives the file's other operations */
};

static inline uint64_t block_of(const struct file *f, uint64_t offset)
{
    return offset / f->bs;
}
static inline uint64_t block_start(const struct file *f, uint64_t block)
{
    return block * f->bs;
}
/** One past the last block that holds a byte below end. */
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
/** Storages hold nothing of ours, and nothing of anybody's that counts, from this byte on. */
static inline uint64_t storage_end(const struct file *f)
{
    uint64_t end = max_u64(f->meta_size, f->acked_end);

    if (f->inl.place == PLACE_EXPORTD)
        return min_u64(f->inl.len, f->size);
    if (!f->has_data)
        return 0;
    if (f->truncate_pending && f->truncate_size < end && f->inl.place == PLACE_STORAGES)
        end = f->truncate_size;
    return min_u64(end, f->size);
}
/** The bytes of a dirty run that are right: from here ... */
static inline uint64_t frun_from(const struct frun *run)
{
    return run->head_ok ? block_start(run->f, run->first) : run->lo;
}
/** ... to here. */
static inline uint64_t frun_to(const struct frun *run)
{
    return run->tail_ok ? block_start(run->f, run->end) : run->hi;
}
/** It reaches beyond a truncate that is not finished: it may not be written before that. */
static inline bool frun_is_beyond(const struct frun *run)
{
    const struct file *f = run->f;

    return f->truncate_pending && run->end > block_past(f, f->truncate_size);
}
static inline uint8_t *frun_byte(const struct frun *run, uint64_t offset)
{
    return run->data + (offset - block_start(run->f, run->first));
}
static inline uint64_t frun_bytes(const struct frun *run)
{
    return (run->end - run->first) * run->f->bs;
}

/* ---- file.c: operations and the loop that steps them ---- */

/** Posted: step what is ready, write what is wanted, start what waits. */
void file_wake(struct file *f);
void *fop_new(struct file *f, size_t bytes, enum fop_kind kind,
              void (*step)(struct fop *), file_done_cb *done, void *arg);
void fop_queue(struct fop *op);
/** Step again when the list is woken. */
void fop_wait(struct fop *op, struct waitlist *list);
/**
 * The capability was refused for the first time: waits for a fresh one, then steps again.
 * False: this is not it.
 */
bool fop_denied(struct fop *op, int rc);
/**
 * The file lies on other storages: waits for a fresh ref, then steps again. False: this is not it, or it was so
 * too often.
 */
bool fop_moved(struct fop *op, int rc);
/** A request was refused with -EREMOTE for the n-th time: the first time our ref may be old. */
static inline void file_is_refused(struct file *f, unsigned n)
{
    f->outdated = f->outdated || n > 1;
}
/** What a caller is told of -ESTALE and -EREMOTE, which mean nothing to him. */
static inline int plain_errno(int rc)
{
    return rc == -ESTALE || rc == -EREMOTE ? -EIO : rc;
}
/** Takes what exportd said of where the file lies. */
int file_take_ref(struct file *f, const struct storcli_target *target);
/** Step again in this turn. */
void fop_ready(struct fop *op);
/** Free it and tell its caller. */
void fop_end(struct fop *op, int rc);
void waitlist_init(struct waitlist *list);
void waitlist_wake(struct file *f, struct waitlist *list);
/** The op gives up being alone; others go on. */
void file_exclusive_end(struct file *f);
int64_t file_clock_ns(struct file *f);
/** Adopt what exportd said; with_data: also what only an open or setattr answer has. */
void file_adopt(struct file *f, const struct file_attr *attr, bool with_data);
/** Nothing is on its way to the storages, or waits for an epoch to be. */
bool file_is_landed(const struct file *f);
/** What is on the storages beyond size is not ours any more. */
void file_forget_beyond(struct file *f, uint64_t size);
/** Blocks from first on may have been freed. */
void file_forget_reserved(struct file *f, uint64_t first);
/** After a failed write: the size is what is left of it. */
void file_size_recount(struct file *f);

/* ---- file_run.c: runs in memory ---- */

struct frun *frun_new(struct file *f);
void frun_free(struct frun *run);
/**
 * Take bytes [pos, end) of the file into dirty memory, as many as fit one run.
 * @param src bytes to copy, NULL: zeros.
 * @return bytes taken; 0: a block must be filled first, wait for run_waiters; or -errno.
 */
int64_t frun_place(struct file *f, uint64_t pos, uint64_t end, const uint8_t *src,
                   bool sync, struct fop *op);
/** Complete the edges of a dirty run that lie in block from its data below. */
void frun_fill(struct frun *run, uint64_t block, const uint8_t *data);
/** Complete the edges of a dirty run: at once from memory, else by fetches. True: complete. */
bool frun_complete(struct frun *run);
/** Blocks change: forget clean ones, and let fetches under way not become clean ones. */
void clean_forget(struct file *f, uint64_t first, uint64_t end);
/** The same, and fetches that complete dirty blocks must not either. */
void clean_forget_all(struct file *f, uint64_t first, uint64_t end);
/** Keep blocks [first, first + n) of buf, which storages have, minus what is dirty or stale. stale NULL: we wrote them. */
void clean_add(struct file *f, struct fbuf *buf, uint64_t first, uint32_t n,
               const uint64_t *stale);
/** A clean run fresh enough for somebody who began at start_ns; NULL: none. */
struct frun *clean_find(struct file *f, uint64_t block, uint64_t start_ns);
void clean_shrink(struct file *f, uint64_t max_bytes);
/** A stream has read this one to its end: it goes when nobody reads it, and what was used up before it goes now. */
void clean_is_used_up(struct frun *run);
void clean_drop_all(struct file *f);
void clean_start_timer(struct file *f);
/** The memory's part of a truncate to size. Nothing may be flying. */
void frun_cut(struct file *f, uint64_t size);
/** Another client cut the file there: what blocks were completed with from the storages is gone. */
void frun_forget_beyond(struct file *f, uint64_t size);
/** The same for a run that was on its way then, before it goes once more. */
void frun_apply_cut(struct frun *run);
/** Forget what is dirty and parked; nothing may be flying. */
void frun_drop_dirty(struct file *f);
/** Forget what is dirty. */
void frun_drop_unsent(struct file *f);

/* ---- file_store.c: to and from the storages ---- */

void frun_want(struct frun *run);
void frun_unwant(struct frun *run);
/** Want everything that is dirty or parked. */
void file_want_all(struct file *f);
/** Start what is wanted and may be. */
void file_fly(struct file *f);
/** Put a write's own memory on its way; nothing dirty or writing may overlap. */
int frun_fly_direct(struct file *f, struct write_fop *w, uint64_t first, uint64_t end,
                    const uint8_t *data, bool sync);
/**
 * Are accepted bytes of blocks [first, end), older than run id before_id, still to be
 * acknowledged? Wants them. A failure since clock ends the waiting for that run: its reason goes
 * to *rc (if that is 0).
 */
bool file_is_pending(struct file *f, uint64_t first, uint64_t end, uint64_t before_id,
                     uint64_t clock, int *rc);
void file_failed(struct frun *run, int rc);
/**
 * Give up what could not be written, for rc: nothing may be flying. Whatever waits for it fails, exportd
 * may be told of what lies behind.
 */
void file_lose(struct file *f, int rc);
/** The same, but what is on its way to storages goes on. */
void file_lose_unsent(struct file *f, int rc);
/** The delay timer, for the oldest dirty and the parked runs. */
void file_start_write_timer(struct file *f);
void file_on_write_timer(struct env_timer *timer);
void file_on_renew_timer(struct env_timer *timer);
/** A version above all before; f->epoch must not be 0. False: a fresh epoch is needed first. */
bool file_next_version(struct file *f, uint64_t *version);
void file_renew(struct file *f);
/** No version is good until exportd has told what became of the file. */
void file_doubt(struct file *f);
/**
 * For an operation about to change the file: does exportd have to tell first? 1: no; 0: op waits
 * for it; -errno: it does not tell. *asked_no: 0 before the first call, then its own.
 */
int file_be_sure(struct fop *op, uint64_t *asked_no);
/** Read blocks; does nothing for those that are in memory. -ENOMEM or 0. */
int fetch_start(struct file *f, enum fetch_kind kind, uint64_t first, uint32_t n,
                struct fetch **out);
void fetch_free(struct fetch *fetch);
struct fetch *fetch_find(struct file *f, enum fetch_kind kind, uint64_t block);

/* Acknowledged, with its version: it is clean now. */
void frun_written(struct frun *run);
/** The answer to a fetch, or its end. */
void fetch_answered(struct fetch *fetch, int rc);
void fetch_read(struct fetch *fetch);

/* ---- file_inline.c: small files, whose data exportd has ---- */

/** exportd said where the data are. overrules: also when what we know is not older. */
void inline_adopt(struct file *f, const struct file_attr *attr, bool overrules);
/** Somebody else may have been here. */
void inline_forget(struct file *f);
/** Before an operation: 1: we know where the data are; 0: op waits for that; -errno. */
int inline_know(struct fop *op);
/** Its data are to be on storages from now on. 1: so it is; 0: op waits; -errno. */
int inline_leave_first(struct fop *op);
/** A write that reaches so far is about to be taken in. */
void inline_expect(struct file *f, uint64_t end);
/** What is wanted goes to exportd. False: to the storages. */
bool inline_fly(struct file *f);
/** Fetches that wait for what exportd has. */
void inline_serve(struct file *f);
void inline_read(struct fetch *fetch);
/** Asks exportd where the file lies, without a fresh epoch: moved_waiters and fetches that moved go on then. */
void file_reload(struct file *f);
void file_on_load_timer(struct env_timer *timer);
/** Bytes [from, to) of what exportd has, to be in their block of the run. */
void inline_copy(const struct file *f, uint8_t *dst, uint64_t from, uint64_t to);
/** What is told now has to wait. */
bool inline_holds_report(struct file *f);
/** Something was acknowledged: a report that waited may go. */
void inline_look(struct file *f);
/** What was not told is given up. */
void inline_lose(struct file *f);
/** A renewal was answered. */
void inline_renewed(struct file *f, int rc);
void inline_free(struct file *f);

/* ---- file_blocks.c: what is allocated ---- */

/** exportd has said it. */
void blocks_adopt(struct file *f, const struct file_attr *attr);
/** Forgets the set: another client may have changed it. */
void blocks_forget(struct file *f);
/** Written, or reserved; or not any more. exportd is to hear of it, if that is news. */
void blocks_allocated(struct file *f, uint64_t first, uint64_t end);
void blocks_freed(struct file *f, uint64_t first, uint64_t end);
/** Others want the file: who opens it next for writing asks what nobody told of. */
void blocks_count_stop(struct file *f);
/** exportd knows that nothing is behind that size. */
void blocks_cut(struct file *f, uint64_t size);
/** Nothing is: no data, and nothing reserved. */
bool blocks_are_none(const struct file *f);
/** exportd knows all of it. */
bool blocks_are_told(const struct file *f);
void blocks_lose(struct file *f);
/** Into what is about to be told; false: there is more than that. */
bool blocks_send(struct file *f, struct file_meta_call *call);
/** That went well, and all before is durable; or not. */
void blocks_sent(struct file *f, bool ok, bool durable);
/** Reports again what exportd was told, but has not made durable. */
void blocks_tell_again(struct file *f);
void blocks_free(struct file *f);

/* ---- file_report.c: what exportd is told ---- */

/** It could not be told now; it will be tried again. */
void file_report_failed(struct file *f, int rc);

/** Something changed that exportd must hear of, at the latest after report_delay_ms. */
void file_changed(struct file *f);
/** Storages acknowledged bytes up to end: if exportd has to hear of it, it will. */
void file_acked(struct file *f, uint64_t end);
/** Of what was accepted exportd has to be told nothing but the time: it knows that there are data, and a size that is long enough. */
bool file_changes_only_time(const struct file *f);
/**
 * For who waits for a sync: when nothing but the time is to be told, that becomes durable beside the writes. True: it does; then
 * *change is what file_report() is to be asked about, as long as nothing else is to be told.
 */
bool file_tell_ahead(struct file *f, uint64_t *change);
/** All bytes up to end that were accepted before some moment are acknowledged: exportd may hear of it now. */
void file_is_through(struct file *f, uint64_t end);
/**
 * Has exportd been told all up to change (durably, with sync)? Sees to it.
 * @param since reports begun up to this number are not ours to fail with.
 * @return 1: yes; 0: wait for report_waiters; -errno: it could not be told.
 */
int file_report(struct file *f, uint64_t change, bool sync, uint64_t since);
/** Give up what exportd could not be told: the file is as exportd knows it. No report may be under way. */
void file_forget_report(struct file *f, int rc);
/** Reports are no longer held: send what waited. */
void file_report_released(struct file *f);
void file_on_report_timer(struct env_timer *timer);

/* ---- file_trunc.c ---- */

/** Begin to finish the pending truncate (own: that of our caller); f->exclusive is held. */
void trunc_start(struct file *f, bool own);
/** 1: it is finished; 0: op waits for its next step; -errno: failed, and still pending. */
int trunc_step(struct file *f, struct fop *op);

/* ---- file_alone.c ---- */

/**
 * A run that reaches beyond a truncate nobody finished is to be written: finish it first, alone,
 * even while a write is being taken in (it may wait for that run). Does nothing while another
 * operation is alone. When it fails, so do the wanted runs that reach beyond.
 */
void file_finish_truncate(struct file *f);

/* ---- file_write.c ---- */

/** A piece that went straight from the caller's memory ended. */
void write_on_direct(struct write_fop *w, int rc);

#endif
