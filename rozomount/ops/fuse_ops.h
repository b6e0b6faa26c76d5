/*
 * fuse_ops.h - handlers of FUSE requests.
 */
#ifndef ROZO_ROZOMOUNT_OPS_FUSE_OPS_H
#define ROZO_ROZOMOUNT_OPS_FUSE_OPS_H

#include <fcntl.h>

#include "rozomount/op/handle.h"
#include "rozomount/op/mount.h"

extern const struct fuse_lowlevel_ops face_ops;

/* OPEN; the beginning of CREATE. */
struct open_op {
    struct fuse_op op; /* must be first */
    struct fuse_file_info fi;
    bool is_open_still; /* exportd was not asked */
    bool keep_cache;    /* the kernel's pages are those of the file */
};

/* FLUSH, RELEASE: ends locks of these owners. */
struct close_op {
    struct fuse_op op; /* must be first */
    uint64_t owner;
    const uint64_t *owners; /* memory of the handle, or &owner */
    unsigned n_owners;
    bool releases_flock; /* flock locks, too */
    bool lock_lost;      /* one was lost before */
    int rc;              /* result of the flush */
};

/* LOOKUP. */
struct lookup_op {
    struct fuse_op op; /* must be first */
    uint64_t after;    /* cookie before the names being prefetched */
    bool wants_xattrs; /* MD_LOOKUP has asked for them */
    char name[NAME_BYTES_MAX + 1];
};

/* Operations on extended attributes. */
struct xattr_op {
    struct fuse_op op; /* must be first */
    size_t size;       /* room for the answer, or bytes of the value in op.memory */
    int flags;         /* XATTR_CREATE, XATTR_REPLACE */
    bool kills_sgid;
    char name[NAME_BYTES_MAX + 1]; /* empty: the list of names */
};

static inline bool open_counts_as_read(int flags)
{
    return (flags & O_ACCMODE) != O_WRONLY && (flags & O_NOATIME) == 0;
}

void fs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void fs_forget(fuse_req_t req, fuse_ino_t ino, uint64_t n);
void fs_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets);
void fs_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
              dev_t rdev);
void fs_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void fs_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name);
void fs_create(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode,
               struct fuse_file_info *fi);
void fs_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void fs_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void fs_rename(fuse_req_t req, fuse_ino_t parent, const char *name, fuse_ino_t new_parent,
               const char *new_name, unsigned flags);
void fs_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t parent, const char *name);
void fs_readlink(fuse_req_t req, fuse_ino_t ino);

void fs_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *st, int valid,
                struct fuse_file_info *fi);
void fs_statfs(fuse_req_t req, fuse_ino_t ino);

void fs_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name, const char *value,
                 size_t size, int flags);
void fs_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void fs_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void fs_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);
/** Answers with the virtual xattr rozo.locate of a regular file. */
void fs_locate(struct xattr_op *x);
enum step_end xattr_reply(struct xattr_op *x, const void *value, size_t len);

/** Makes the open directory that a process before had under this number. */
void dir_inherit(struct loop *loop, uint64_t number, const struct held_handle *held);
void fs_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                struct fuse_file_info *fi);
void fs_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
                    struct fuse_file_info *fi);
void fs_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);

void fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
             struct fuse_file_info *fi);
void fs_write_buf(fuse_req_t req, fuse_ino_t ino, struct fuse_bufvec *bufv, off_t off,
                  struct fuse_file_info *fi);
void fs_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void fs_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void fs_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset, off_t length,
                  struct fuse_file_info *fi);
void fs_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
              struct fuse_file_info *fi);
void fs_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t off_in,
                        struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t off_out,
                        struct fuse_file_info *fi_out, size_t len, int flags);

void fs_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
              struct fuse_file_info *fi, unsigned flags, const void *in_buf,
              size_t in_size, size_t out_size);

void fs_getlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi,
              struct flock *fl);
void fs_setlk(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, struct flock *fl,
              int sleep);
void fs_flock(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi, int how);
/**
 * Returns the loop on which this number waits for a lock, or NULL if no loop can. Any
 * thread.
 */
struct loop *locks_loop(struct mount *m, uint64_t waiter);
/** Handles exportd's event that the lock is granted (rc 0) or refused. On that loop. */
void locks_event(struct loop *loop, uint64_t waiter, int rc);
/**
 * Repeats the waiting lock requests after the session was opened again: this exportd may
 * not know them.
 */
void locks_ask_again(struct loop *loop);
/** Ends all waits for locks at the end of the mount. */
void locks_give_up(struct loop *loop);
/** A step of a struct close_op: releases all locks of its owners on op->ino. */
enum step_end locks_release(struct fuse_op *op);

/**
 * Answers OPEN or CREATE of the file in op->entry with a handle, on the owner loop. op is
 * a struct open_op. Returns STEP_GO.
 */
enum step_end fs_created(struct fuse_op *op);
/**
 * Records tokens and attributes of a page of directory op->ino, before any entry of it
 * goes to the kernel. after: the cookie before this page.
 */
void fuse_op_take_page(struct fuse_op *op, const Rozo__MdReaddirResp *page,
                       uint64_t after);

#endif
