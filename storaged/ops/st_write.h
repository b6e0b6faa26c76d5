/*
 * st_write.h - one ST_WRITE, or what the applier writes for the journal: the operation, and its steps by file.
 *
 * st_write.c: the request, its life, the frame in the journal, the answer. st_write_judge.c: what is there, and
 * which way each block goes. st_write_place.c: bodies and heads in place. st_write_units.c: a new file, and
 * heads for the blocks beside those written. st_write_apply.c: the applier, which goes through the same steps from heads
 * to notes.
 *
 * Private to these. Thread: the storio loop.
 */
#ifndef ROZO_STORAGED_OPS_ST_WRITE_H
#define ROZO_STORAGED_OPS_ST_WRITE_H

#include "storaged/ops/st_op.h"

/* In this order, each over all parts. A part is what one extent holds of the run. */
enum write_phase {
    PHASE_NEW_BODIES, /* those that need space */
    PHASE_NEW_HEADS,  /* heads of parts where nothing old is replaced */
    PHASE_OLD_BODIES, /* those that replace a record */
    PHASE_OLD_HEADS,
    PHASE_END,
};

/* How a block goes to the disk. */
enum write_way {
    WAY_NONE, /* it is here already, or (applier) not there any more */
    WAY_PLACE,
    WAY_JOURNAL,
};

struct write_block {
    enum write_way way;
    uint64_t version; /* of an applied one */
    uint32_t body_at; /* in the payload */
    uint16_t body_len;
    bool is_here;     /* the same record is pending */
    bool needs_space; /* no body lies there */
    bool lost;        /* what lies there is damaged */
    bool unbound;     /* and nobody knows how new that was */
    bool
        unread; /* the applier's: pages of the journal that it may lie in could not be read */
    bool replaces; /* something that is not a hole of version 0 */
};

struct write_op {
    struct st_op op; /* first */
    unsigned projection;
    uint64_t first;
    unsigned n;
    const uint8_t *payload; /* the call's, or loaded */
    bool sync;
    bool reading, writing, waiting;
    unsigned n_place, n_journal; /* blocks, by their way */
    unsigned n_pending;          /* of those that are here already */
    uint8_t *loaded;             /* applier: heads, then bodies; owned */
    struct journal_frame *load;  /* being read; referenced */
    unsigned load_at;            /* of blocks from here on */
    uint8_t *entry_header;       /* owned */
    bool no_space; /* only what replaces a record is written, then it is refused */
    size_t head_bytes;
    bool created, undoing, noting;
    bool file_sync; /* not only the journal */
    uint16_t
        fresh; /* units of the run that not all blocks of are known to have heads, a bitmap */
    unsigned unit;       /* being given heads */
    uint8_t filling;     /* enum fill_state */
    uint8_t *fill;       /* their heads, owned */
    struct marks *noted; /* owned: the written blocks with those of the fresh units */
    uint64_t newest;     /* version in the request */
    uint64_t stale;      /* the newest version in its way */
    uint64_t space;      /* bytes that first writes need */
    bool measuring, measuring_bodies; /* is that reserved? See st_write_reserved.c */
    uint64_t measured;                /* up to this byte; 0: begins */
    uint64_t verifier; /* of before it wrote: a sync that fails since may lose it */
    uint8_t *old;      /* the heads that lie there */
    enum write_phase phase;
    unsigned at; /* block of the run the phase has come to */
    unsigned n_iov, iov_max;
    struct iovec *iov;          /* owned, with blocks */
    struct write_block *blocks; /* n */
};

static inline struct proj *write_proj(const struct write_op *w)
{
    return object_ready(w->op.obj, w->projection);
}

static inline const uint8_t *write_new_head(const struct write_op *w, unsigned i)
{
    return w->payload + i * w->head_bytes;
}

/** End of the part (the blocks of one extent) that block i of the run is in. */
static inline unsigned write_part_end(const struct write_op *w, unsigned i)
{
    return i + extent_part(w->first + i, w->first + w->n);
}

/** Room for w->n blocks, w->head_bytes each. Returns 0 or -ENOMEM. write_free() frees it, done or not. */
int write_alloc(struct write_op *w);
void write_free(struct st_op *op);
/** Call the steps from op->state on; each is called until it says OP_GO. */
enum st_op_next write_run(struct write_op *w,
                          enum st_op_next (*const *steps)(struct write_op *), int n);

/** len bytes at base more for the write or frame to come; what joins the last piece makes it longer. */
void write_iov_add(struct write_op *w, const void *base, size_t len);

/**
 * What lies in place of block i of the run: its version.
 * @param h        out: its head; version 0 when nothing of it counts.
 * @param body_len out: bytes of its body, 0 when there is none.
 */
uint64_t write_old_version(struct write_op *w, unsigned i, struct record_header *h,
                           size_t *body_len);
/** Judge all blocks: which way each goes. Returns the newest version in the way; 0: none is. */
uint64_t write_find_stale(struct write_op *w);

/* Steps that the applier has, too, in this order. */

/**
 * Do all blocks that need space have it reserved (ST_ALLOC)? From w->at 0 on. OP_BAD:
 * no, or nobody knows. w->at is 0 again when it says OP_GO or OP_BAD.
 */
enum st_op_next write_is_reserved(struct write_op *w);
/** The heads that lie there, part by part. */
enum st_op_next write_read_old(struct write_op *w);
/** Which units are new? */
enum st_op_next write_find_fresh(struct write_op *w);
/** A page of marks, where one must come before the records. */
enum st_op_next write_page(struct write_op *w);
/** Heads for the blocks beside those written, in units that are new. */
enum st_op_next write_fill(struct write_op *w);
/** Bodies and heads. */
enum st_op_next write_pieces(struct write_op *w);
/** All blocks of the fresh units have heads now: note that. */
enum st_op_next write_note(struct write_op *w);

/** No file yet: make it. Not the applier's. */
enum st_op_next write_create(struct write_op *w);

#endif
