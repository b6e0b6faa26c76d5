/*
 * handle.h - open files of programs.
 */
#ifndef ROZO_ROZOMOUNT_OP_HANDLE_H
#define ROZO_ROZOMOUNT_OP_HANDLE_H

#include "rozomount/op/mount.h"

/* An open file of some process; fi->fh. Lives on the inode's owner loop. */
struct handle {
    struct node *node; /* pinned */
    bool sync;         /* opened O_SYNC or O_DSYNC */
    bool past_pages;   /* its data are never in the kernel's pages */
    bool no_atime;     /* opened O_NOATIME */
    uint64_t losses;   /* file_losses(), as its fsyncs have told */
    uint64_t given_up; /* node->n_given_up, the same */
    uint64_t unlocked; /* ... as its unlocks have told */
    uint64_t *owners;  /* owned: of locks that were taken through it */
    unsigned n_owners;
    struct handle *next, *prev; /* in loop->handles */
};

struct handle *handle_new(struct loop *loop, struct node *node);
void handle_free(struct loop *loop, struct handle *handle);
/** Why what was written through it, perhaps, was given up, as long as no fsync of it has told that; 0: nothing was. */
int handle_has_lost(const struct handle *handle);
/** This owner took a lock through it: the last close releases it. */
void handle_locks(struct handle *handle, uint64_t owner);
/**
 * Before data are read or changed through the handle: step, when the locks that were taken through it and are held
 * are still ours for certain; while exportd was not heard for so long that they may not be, wait for it. Lost, or
 * waited in vain: answered EIO and finished.
 */
void fuse_op_under_lock(struct fuse_op *op, const struct handle *handle,
                        void (*step)(struct fuse_op *op));
/** For who has waited since: is a lock under which it began not ours any more? */
bool fuse_op_has_lost_its_lock(const struct fuse_op *op);

#endif
