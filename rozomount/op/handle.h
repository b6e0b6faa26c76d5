/*
 * handle.h - open files of programs.
 */
#ifndef ROZO_ROZOMOUNT_OP_HANDLE_H
#define ROZO_ROZOMOUNT_OP_HANDLE_H

#include "rozomount/hold/held.h"
#include "rozomount/op/mount.h"

/* An open file of a process (fi->fh). Lives on the loop that owns the inode. */
struct handle {
    struct node *node;  /* pinned */
    uint64_t number;    /* fi->fh, see held.h; 0 before open_set_handle() */
    int flags;          /* as in open(2) */
    bool is_inherited;  /* opened by a process before; node->file may be NULL */
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

/**
 * Returns the handle of a request; NULL: it was closed, by a process before that did not
 * answer.
 */
struct handle *handle_of(fuse_req_t req, uint64_t ino, const struct fuse_file_info *fi);
/**
 * Makes a handle of an open file with its number, and takes over a pin of the node.
 * Returns NULL if too many files are open.
 */
struct handle *handle_new(struct loop *loop, struct node *node, int flags,
                          bool past_pages);
void handle_free(struct loop *loop, struct handle *handle);
/** Makes the handle that a process before had under this number. */
void handle_inherit(struct loop *loop, uint64_t number, const struct held_handle *held);
/** Notes that the kernel has an error that a process before owed. */
void handle_has_reported(struct loop *loop, struct handle *handle);
/**
 * A step, on the owner loop: makes op->handle usable. Asks exportd if a process before
 * has opened it.
 */
enum step_end fuse_op_use_handle(struct fuse_op *op);
/**
 * Takes the answer to MD_OPEN of op->node into op->entry, on the owner loop. If exportd
 * may count a reference that gets no handle, notes it. Returns 0 or -errno.
 */
int fuse_op_hear_open(struct fuse_op *op);
/**
 * Gives the node what op->entry brings: tokens, attributes, its file. *fresh: the pages
 * of the kernel are those of the file. Returns 0, or -errno for the kernel.
 */
int fuse_op_take_open(struct fuse_op *op, bool *fresh);
/**
 * A step that follows a change of data through the handle, whose result is op->rc. In a
 * mount with a holder it waits until storages and exportd have the data, so that they
 * outlive this process. An fsync makes durable what storages have, whoever wrote it.
 */
enum step_end fuse_op_store(struct fuse_op *op, const struct handle *handle);
/**
 * Returns the -errno of a loss that may concern data written through the handle and that
 * no fsync of it has reported yet; 0 if there is none.
 */
int handle_has_lost(const struct handle *handle);
/**
 * Records that this owner takes a lock through the handle: its last close releases it.
 * Returns false if too many are recorded.
 */
bool handle_locks(const struct loop *loop, struct handle *handle, uint64_t owner);
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
