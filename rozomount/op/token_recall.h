/*
 * token_recall.h - tokens of inodes in use.
 */
#ifndef ROZO_ROZOMOUNT_OP_TOKEN_RECALL_H
#define ROZO_ROZOMOUNT_OP_TOKEN_RECALL_H

#include "rozomount/op/mount.h"

/**
 * step, when this mount holds the token of the node, pinned by op or its handle: for EXCLUSIVE, and a READ, until fuse_op_token_done() or the
 * end of op, else for SHARED to begin with. Or it is answered with an error and finished. Reads and writes: op->offset and size say
 * what of the file.
 */
void fuse_op_with_token(struct fuse_op *op, struct node *node, enum token_mode mode,
                        void (*step)(struct fuse_op *op));
/** The same; only the data of these bytes, below the end of the file, are read or written. */
void fuse_op_with_range(struct fuse_op *op, struct node *node,
                        const struct token_need *need, void (*step)(struct fuse_op *op));
void fuse_op_token_done(struct fuse_op *op);
/* exportd wants a token back. */
struct recalled_token {
    uint64_t ino;
    enum token_mode keep;
    uint64_t grant;
    uint64_t call; /* not 0: it was granted to this MD_TOKEN of ours */
};
/* On its way to the owner of the inode; freed there. */
struct recall_news {
    struct env_mail mail;
    struct rename_waiter waiter;
    bool has_waited;
    struct loop *loop;
    struct recalled_token what;
};
/** To the owner, once no rename in it is under way. Any loop. */
void recall_send(struct mount *m, const struct recalled_token *what);
/** The rename that op asked for is over, or not under way: recalls go on. */
void fuse_op_rename_over(struct fuse_op *op);
/** What exportd said when the file was opened holds, and it is open: who opens it again need not ask. */
bool node_is_open_still(struct loop *loop, const struct node *node);
/** Who only read it may well do so again: shall it stay open? */
bool node_is_worth_keeping(struct loop *loop, const struct node *node);
/**
 * A name that it had is gone by our own doing, its last one if `gone`: if it is only kept open, it is not any more, and without a name
 * its token is of no use once it is closed. Any loop.
 */
void recalls_let_go(struct loop *loop, uint64_t ino, bool gone);
/** Our session is over: what it let us keep is dropped, and what was written under it and is not with the storages is lost. */
void recalls_lose_all(struct loop *loop);
/** The mount ends: the kernel asks no more and keeps nothing, nobody waits for a token. */
void recalls_stop(struct loop *loop);
/** ... and exportd has heard that we go. */
void recalls_close(struct loop *loop);
/** It may have changed without anybody's telling us: its token is given back. 0: none. Any loop. */
void recalls_doubt(struct loop *loop, uint64_t ino);
/** Are there too many tokens? Then give one back. Any loop. */
void recalls_trim(struct loop *loop);
/** loop->giving_task: what was given back in this turn is told to exportd. */
void on_giving_task(struct env_task *task);

#endif
