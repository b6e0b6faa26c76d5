/*
 * handle.h - open files of programs.
 */
#ifndef ROZO_ROZOMOUNT_OP_HANDLE_H
#define ROZO_ROZOMOUNT_OP_HANDLE_H

#include "rozomount/op/mount.h"

/* An open file of a process (fi->fh). Lives on the loop that owns the inode. */
struct handle {
    struct node *node;  /* pinned */
    bool sync;          /* opened O_SYNC or O_DSYNC */
    bool past_pages;    /* bypasses the kernel's page cache */
    bool no_atime;      /* opened O_NOATIME */
    uint64_t losses;    /* file_losses() that its fsyncs have reported */
    uint64_t abandoned; /* node->n_abandoned that its fsyncs have reported */
    uint64_t unlocked;  /* node->n_abandoned that its unlocks have reported */
    uint64_t *owners;   /* owners of locks taken through it; owned */
    unsigned n_owners;
    struct handle *next, *prev; /* in loop->handles */
};

static inline struct handle *handle_of(const struct fuse_file_info *fi)
{
    return (struct handle *)(uintptr_t)fi->fh;
}
struct handle *handle_new(struct loop *loop, struct node *node);
void handle_free(struct loop *loop, struct handle *handle);
/**
 * Returns the -errno of a loss that may concern data written through the handle and that
 * no fsync of it has reported yet; 0 if there is none.
 */
int handle_has_lost(const struct handle *handle);
/** Records that this owner took a lock through the handle: its last close releases it. */
void handle_locks(struct handle *handle, uint64_t owner);
/**
 * A step, before data are read or changed: checks that locks taken through op->handle are
 * certainly still held. Waits if exportd has not been heard for so long that they may be
 * lost. Ends with -EIO if they are lost or the wait times out.
 */
enum step_end fuse_op_under_lock(struct fuse_op *op);
/** Returns the file, on its owner loop. The handle pins it. */
struct file *handle_file(const struct handle *handle);
/** Returns true if a lock that op began under was lost while it waited. */
bool fuse_op_has_lost_its_lock(const struct fuse_op *op);

#endif
