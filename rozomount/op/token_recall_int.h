/*
 * token_recall_int.h - a recall in progress, shared by token_recall.c and recall_inval.c.
 */
#ifndef ROZO_ROZOMOUNT_OP_TOKEN_RECALL_INT_H
#define ROZO_ROZOMOUNT_OP_TOKEN_RECALL_INT_H

#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"

enum { PAGE_BYTES = 4096 };

/* A recall in progress: the token is on its way back. */
struct recall {
    struct loop *loop;
    uint64_t ino;      /* key; in loop->recalls */
    struct node *node; /* pinned */
    enum token_mode keep;
    uint64_t grant;
    uint64_t call;  /* number of the MD_TOKEN concerned; 0: none */
    bool lost;      /* the token is lost, and so are unflushed data written under it */
    bool busy;      /* the next step waits for a callback */
    bool was_asked; /* the kernel was asked once to drop everything */

    struct list_node drops; /* invalidations in progress */
    struct node_wait wait;
    UT_hash_handle hh;
};

static inline struct token_cache *tokens_of(const struct loop *loop)
{
    return loop->mount->tokens;
}

static inline bool is_exclusive(const struct fuse_op *op)
{
    return op->token.need.mode == TOKEN_EXCLUSIVE;
}

/* ---- token_recall.c ---- */

/** Continues the recall with its next step. */
void recall_step(struct recall *r);

/* ---- recall_inval.c ---- */

/**
 * Makes the kernel drop all that it keeps by this token. Sets busy until it has; no
 * kernel caches: does nothing.
 */
void recall_inval_begin(struct recall *r);
/**
 * Stops waiting for pages that the kernel keeps locked for op, which waits for the token:
 * else the invalidation in progress would deadlock with it.
 */
void inval_skip_locked(struct recall *r, const struct fuse_op *op);

#endif
