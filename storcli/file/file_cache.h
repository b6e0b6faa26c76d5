/*
 * file_cache.h - data equal to the storages': clean runs, the fetches that bring them,
 * and reading ahead.
 *
 * Private to storcli/file. struct file_cache is written by file_cache.c only. Thread: the
 * env's.
 */
#ifndef ROZO_STORCLI_FILE_FILE_CACHE_H
#define ROZO_STORCLI_FILE_FILE_CACHE_H

#include "storcli/file/file_run.h"

enum {
    /* blocks of one read: 1 MiB of the smallest blocks, unaligned */
    FETCH_BLOCKS_MAX = 320,
    STREAMS_MAX = 8, /* sequential readers followed in one file */
};

struct read_fop {
    struct fop op;
    struct list_node active; /* in cache.reads */
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
    struct list_node link; /* in cache.fetches */
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

struct file_cache {
    struct frunset clean;
    struct list_node lru;       /* clean runs, least recently used first */
    struct list_node pool_link; /* in pool->cached while there are any */
    uint64_t bytes, bytes_max;
    struct env_timer timer;
    struct list_node reads; /* started and not ended: struct read_fop.active */
    struct list_node fetches;
    unsigned n_fetches;
    uint32_t fetch_blocks; /* the grid fetches keep to */
    uint64_t fetch_ns;     /* time of a fetch for readers, a moving average */
    struct stream streams[STREAMS_MAX];
    struct stepper stepper;
};

/** Begins without data; fetches keep to a grid of so many blocks. */
void cache_init(struct file *f, uint32_t fetch_blocks);
/** Frees clean runs. No fetch may be under way. */
void cache_free(struct file *f);
/** Makes room for n clean runs. Returns 0 or -ENOMEM. */
int cache_reserve(struct file *f, unsigned n);
/** Keeps clean runs that a read needs, until it ends. */
void cache_read_begins(struct read_fop *r);
void cache_read_ends(struct read_fop *r);

/* ---- clean runs ---- */

/**
 * Returns true if there is room for so many bytes more. If needed, takes clean data from
 * the files that were not used for longest.
 */
bool pool_make_room(struct file_pool *pool, uint64_t bytes);

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
void clean_drop_all(struct file *f);
/**
 * Lets a run go first that the read at offset has read up to byte `end`, if that is its
 * end: a sequential reader does not come back. For a stream it goes at once, so that data
 * read ahead comes into memory that is in the processor's caches.
 */
void cache_used_up(struct frun *run, uint64_t offset, uint64_t end);

/* ---- fetches ---- */

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

/** Limits fetches under way: bytes beyond size are zeros. */
void fetches_limit(struct file *f, uint64_t size);
/** Continues the fetches that waited for a fresh capability; rc: of the renewal. */
void fetches_renewed(struct file *f, int rc);
/**
 * Starts fetches for the missing blocks of [first, end); *first_out, unless it is set:
 * the first one. join: others' fetches will do.
 */
int fetch_missing(struct file *f, uint64_t first, uint64_t end, bool join,
                  struct fetch **first_out);
/**
 * Keeps window bytes ahead of the reader, but below `within`, in pieces that are worth a
 * request.
 */
void cache_read_ahead(struct file *f, uint64_t offset, uint64_t end, uint64_t within);

#endif
