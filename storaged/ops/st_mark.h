/*
 * st_mark.h - one ST_MARK, or one mark of the applier: a range of blocks becomes holes of
 * a version (truncate, punch).
 *
 * st_mark.c: the request, its checks, its frame in the journal. st_mark_apply.c: carries
 * it out in the projection files. Private to these files. Thread: the storio loop.
 */
#ifndef ROZO_STORAGED_OPS_ST_MARK_H
#define ROZO_STORAGED_OPS_ST_MARK_H

#include "storaged/ops/st_requests.h"

enum {
    /* up to so many blocks are written as heads, more as a range */
    SMALL_BLOCKS = 2 * EXTENT_BLOCKS,
    /* blocks of a range that is moved from a full mark page to heads */
    SPILL_BLOCKS_MAX = 1 << 20,
};

/* Ways of a mark to the journal. */
enum mark_way {
    MARK_IS_APPENDED,
    MARK_IS_HERE,    /* an equal mark is pending */
    MARK_IS_NOTHING, /* nothing of the file is here */
};

struct mark_op {
    struct st_op op;     /* must be first */
    unsigned projection; /* projection, or PROJECTION_ANY */
    uint64_t first, end; /* end UINT64_MAX: no end */
    uint64_t version;
    bool keep_newer;   /* keeps newer records instead of refusing */
    bool passed;       /* applier: see struct pending_mark */
    uint64_t stale;    /* newest version that refuses the mark */
    uint64_t verifier; /* taken before the first change, as for a write */
    unsigned p;        /* current projection */
    struct head_scan scan;
    struct marks *marks; /* owned; marks of p, with the new one */
    bool unbound;        /* a damaged record without a bound refuses the mark */
    /* The rest is for requests. */
    enum mark_way way;
    bool waiting, created;
    uint8_t *entry_header; /* owned */
};

static inline bool mark_is_small(const struct mark_op *m)
{
    return m->end - m->first <= SMALL_BLOCKS;
}

/** Allocates buffers, and selects all projections. mark_free() frees them. */
int mark_buffers(struct mark_op *m);
void mark_free(struct st_op *op);
/** A step: compares the mark with what lies in place, and what is pending. */
enum st_op_next mark_check(struct st_op *op);
/** A step: takes the verifier before the first change. */
enum st_op_next mark_begin(struct st_op *op);

#endif
