/*
 * st_write.h - one ST_WRITE, or one write of the applier: the op, and its steps by file.
 *
 * st_write.c: the request, its frame in the journal, the answer. st_write_judge.c: which
 * way each block goes. st_write_place.c: bodies and heads in place. st_write_units.c: a
 * new file, and heads for the blocks beside the written ones. st_write_apply.c: the
 * applier, which uses the same steps. Private to these files. Thread: the storio loop.
 */
#ifndef ROZO_STORAGED_OPS_ST_WRITE_H
#define ROZO_STORAGED_OPS_ST_WRITE_H

#include "storaged/ops/st_requests.h"

/*
 * Phases of writing in place, in this order, each over all parts. A part is the blocks of
 * the run in one extent.
 */
enum write_phase {
    PHASE_BEGIN,
    PHASE_NEW_BODIES, /* bodies that need space */
    PHASE_NEW_HEADS,  /* heads of parts that replace nothing */
    PHASE_OLD_BODIES, /* bodies that replace a record */
    PHASE_OLD_HEADS,
    PHASE_END,
};

/* Ways of a block to the disk. */
enum write_way {
    WAY_NONE, /* nothing to write: it is here, or (applier) no longer pending */
    WAY_PLACE,
    WAY_JOURNAL,
};

/* Files that a write makes stable before its answer. */
enum write_sync {
    WRITE_SYNCS_NOTHING,
    WRITE_SYNCS_JOURNAL,
    WRITE_SYNCS_ALL, /* projection files, too */
};

/* A check for reserved space, see st_write_reserved.c. */
enum write_measure { MEASURE_NONE, MEASURE_HEADS, MEASURE_BODIES };

/* Heads for the blocks beside the written ones, see st_write_units.c. */
enum write_fill { FILL_NEXT, FILL_READING, FILL_WRITING, FILL_UNDOING };

struct write_block {
    enum write_way way;
    uint64_t version; /* applier: the version being applied */
    uint32_t body_at; /* bytes, in the payload */
    uint16_t body_len;
    bool is_here;     /* an equal record is pending */
    bool needs_space; /* the place has no body yet */
    bool lost;        /* the block in place is damaged */
    bool unbound;     /* lost, and no bound is known for its version */
    bool unread;      /* applier: pages of the journal with it could not be read */
    bool replaces;    /* the old block is anything but a hole of version 0 */
};

struct st_write_op {
    struct st_op op; /* must be first */
    unsigned projection;
    uint64_t first;
    unsigned n;
    const uint8_t *payload; /* the call's payload, or `loaded` */
    enum write_sync sync;
    bool reading, waiting;
    unsigned n_place, n_journal; /* blocks of each way */
    unsigned n_pending;          /* pending ones among the blocks already here */
    uint8_t *loaded;             /* applier: heads, then bodies; owned */
    struct journal_frame *load;  /* frame being read; referenced */
    unsigned load_at;            /* next block to load */
    uint8_t *entry_header;       /* owned */
    bool no_space; /* writes only blocks that replace a record, then fails with -ENOSPC */
    size_t head_bytes;
    bool created, noting;
    uint16_t fresh; /* bitmap of units of the run with blocks that may have no head */
    unsigned unit;  /* unit whose heads are being written */
    enum write_fill filling;
    uint8_t *fill; /* heads of `unit`, owned */
    /* owned: the written blocks after this write, with the fresh units */
    struct marks *noted;
    uint64_t newest; /* newest version in the request */
    uint64_t stale;  /* newest version here that refuses the request */
    uint64_t space;  /* bytes that first writes need */
    enum write_measure measuring;
    uint64_t measured; /* bytes; reserved up to here; 0: not begun */
    /* verifier before the write: a later failed sync may have lost it */
    uint64_t verifier;
    uint8_t *old; /* the heads in place */
    enum write_phase phase;
    unsigned at; /* next block of the phase, in the run */
    unsigned n_iov, iov_max;
    struct iovec *iov;          /* owned, with blocks */
    struct write_block *blocks; /* n entries */
};

static inline struct proj *write_proj(const struct st_write_op *w)
{
    return object_ready(w->op.obj, w->projection);
}

static inline const uint8_t *write_new_head(const struct st_write_op *w, unsigned i)
{
    return w->payload + i * w->head_bytes;
}

/** Returns the end of the part (the blocks of one extent) that has block i of the run. */
static inline unsigned write_part_end(const struct st_write_op *w, unsigned i)
{
    return i + extent_part(w->first + i, w->first + w->n);
}

/**
 * Allocates room for w->n blocks with heads of w->head_bytes. Returns 0 or -ENOMEM;
 * write_free() frees it in both cases.
 */
int write_alloc(struct st_write_op *w);
void write_free(struct st_op *op);
/**
 * Adds len bytes to the next write or frame; joins them to the last piece if they follow
 * it in memory.
 */
void write_iov_add(struct st_write_op *w, const void *base, size_t len);

/**
 * Returns the version of block i of the run that lies in place.
 * @param h        out: its head; version 0 if nothing of it counts.
 * @param body_len out: bytes of its body, 0 if there is none.
 */
uint64_t write_old_version(struct st_write_op *w, unsigned i, struct record_header *h,
                           size_t *body_len);
/**
 * Chooses the way of all blocks. Returns the newest version that refuses the write, or 0.
 */
uint64_t write_find_stale(struct st_write_op *w);

/* Steps that the applier shares, in this order. */

/**
 * Checks whether all blocks that need space have it reserved (ST_ALLOC), from w->at 0 on.
 * OP_BAD: no, or unknown. w->at is 0 again at OP_GO and OP_BAD.
 */
enum st_op_next write_is_reserved(struct st_write_op *w);
/** Reads the heads in place, part by part. */
enum st_op_next write_read_old(struct st_op *op);
/** Finds the fresh units. */
enum st_op_next write_find_fresh(struct st_op *op);
/** Writes a mark page if one must precede the records. */
enum st_op_next write_page(struct st_op *op);
/** Writes heads for the blocks beside the written ones in fresh units. */
enum st_op_next write_fill(struct st_op *op);
/** Writes bodies and heads. */
enum st_op_next write_pieces(struct st_op *op);
/** Notes that all blocks of the fresh units have heads. */
enum st_op_next write_note(struct st_op *op);

/** Creates the file if it is absent. Not for the applier. */
enum st_op_next write_create(struct st_op *op);

#endif
