/*
 * token_recall_int.h - what token_recall.c, which decides, and recall_inval.c, which has the kernel drop what it keeps, know of a recall.
 */
#ifndef ROZO_ROZOMOUNT_OP_TOKEN_RECALL_INT_H
#define ROZO_ROZOMOUNT_OP_TOKEN_RECALL_INT_H

#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"

enum { PAGE_BYTES = 4096 };

/* A token on its way back. */
struct recall {
    struct loop *loop;
    uint64_t ino;      /* key; in loop->recalls */
    struct node *node; /* pinned */
    enum token_mode keep;
    uint64_t grant;
    uint64_t call; /* the MD_TOKEN that it speaks of */
    bool lost;     /* it is not ours any more, and what was written under it neither */
    bool busy;     /* what follows waits for a callback */
    bool told;     /* the kernel has been told once to drop all of it */

    struct list_node drops; /* what the kernel is dropping */
    struct node_wait wait;
    UT_hash_handle hh;
};

static inline struct token_cache *tokens_of(const struct loop *loop)
{
    return loop->mount->tokens;
}

static inline bool is_exclusive(const struct fuse_op *op)
{
    return op->token_need.mode == TOKEN_EXCLUSIVE;
}

/* ---- token_recall.c ---- */

/** Decide what comes next. */
void recall_step(struct recall *r);

/* ---- recall_inval.c ---- */

/** The kernel is to drop what it keeps by that token; busy until it has, unless no kernel keeps anything. */
void recall_inval_begin(struct recall *r);
/** While pages are being dropped the kernel may come to one that it keeps locked for op, which waits for the token. */
void inval_skip_locked(struct recall *r, const struct fuse_op *op);

#endif
