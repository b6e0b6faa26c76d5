/*
 * token_recall.h - acquisition and recall of tokens of inodes in use.
 */
#ifndef ROZO_ROZOMOUNT_OP_TOKEN_RECALL_H
#define ROZO_ROZOMOUNT_OP_TOKEN_RECALL_H

#include "rozomount/op/mount.h"

/** Says which bytes op reads or writes, and how. Call it before the functions below. */
static inline void fuse_op_use_pages(struct fuse_op *op, enum page_use pages,
                                     uint64_t offset, size_t size)
{
    op->token.pages = pages;
    op->token.from = offset;
    op->token.to = offset + size;
}
/**
 * Waits until this mount holds the token of the node, which op or its handle pins; else
 * ends with an error. An EXCLUSIVE token, or that of a READ, is held until
 * fuse_op_token_done() or the end of op; another SHARED one is held when the next step
 * begins, and may be recalled later.
 */
enum step_end fuse_op_with_token(struct fuse_op *op, struct node *node,
                                 enum token_mode mode);
/**
 * As fuse_op_with_token(), for an operation that reads or writes only the bytes in need,
 * below the end of the file.
 */
enum step_end fuse_op_with_range(struct fuse_op *op, struct node *node,
                                 const struct token_need *need);
void fuse_op_token_done(struct fuse_op *op);
/* A token that exportd recalls. */
struct recalled_token {
    uint64_t ino;
    enum token_mode keep;
    uint64_t grant;
    uint64_t call; /* number of our MD_TOKEN that it was granted to; 0: none */
};
/* A recall on its way to the loop that owns the inode, which frees it. */
struct recall_news {
    struct env_mail mail;
    struct rename_waiter waiter;
    bool has_waited;
    struct loop *loop;
    struct recalled_token what;
};
/**
 * Sends a recall to the owner loop, once no rename in the directory is in progress. Any
 * loop.
 */
void recall_send(struct mount *m, const struct recalled_token *what);
/** Ends op's rename, if any, so that recalls that waited for it go on. */
void fuse_op_rename_over(struct fuse_op *op);
/**
 * Returns true if the file is open and exportd's answer to that open is still valid:
 * another open needs no request.
 */
bool node_is_open_still(struct loop *loop, const struct node *node);
/**
 * Returns true if the file was only read and should stay open: programs often open it
 * again.
 */
bool node_is_worth_keeping(struct loop *loop, const struct node *node);
/**
 * Records that our own operation removed a name of the inode; gone: its last one. A file
 * that is only kept open is closed, and its token given back if it has no name. Any loop.
 */
void recalls_let_go(struct loop *loop, uint64_t ino, bool gone);
/**
 * Ends what our lost session allowed: kept files are closed, and data written under it
 * that no storage has yet are lost.
 */
void recalls_lose_all(struct loop *loop);
/**
 * Stops at the end of the mount: the kernel sends no requests and keeps nothing, and
 * nothing waits for a token.
 */
void recalls_stop(struct loop *loop);
/**
 * Frees messages that give tokens back, when exportd has closed our session at the end of
 * the mount.
 */
void recalls_close(struct loop *loop);
/**
 * Gives back the token of an inode that may have changed without a recall. ino 0: none.
 * Any loop.
 */
void recalls_doubt(struct loop *loop, uint64_t ino);
/** Gives tokens back if there are too many. Any loop. */
void recalls_trim(struct loop *loop);
/** Sends exportd the tokens given back in this turn (loop->giving_task). */
void on_giving_task(struct env_task *task);

#endif
