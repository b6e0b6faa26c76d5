/*
 * mount.h - a client of the simulated cluster: rozomount's face, session, nodes and file layer as they
 * are, with a libfuse made of paper. What a program asks goes to one of rozomount's handlers as it is, or through a model of
 * Linux (kernel.h), which keeps what it may and asks the rest.
 */
#ifndef ROZO_SIM_MOUNT_H
#define ROZO_SIM_MOUNT_H

#include "rozomount/ops/fs_privileges.h"
#include "rozomount/op/fuse_op.h"
#include "rozomount/ops/fuse_ops.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "tests/sim/cluster/kernel.h"
#include "tests/sim/cluster/servers.h"

/* A place for mounts. */
struct sim_client {
    struct host *host;
    unsigned index;
    struct sim_mount *mount; /* of the process */
    bool mounted, stopped;
    uint64_t dead;                    /* the session it had when it was killed */
    uint64_t session, opened_ns;      /* ... or opened again */
    bool has_kernel, has_deaf_kernel; /* from its next start on */
    bool has_old_kernel;   /* the same; it cannot make names old, as Linux before 6.16 */
    struct kernel *kernel; /* the world's; NULL: none */
    struct kernel_counts counts; /* of kernels before */
};

void client_init(struct sim_client *c, unsigned index);
void client_start(struct sim_client *c);
void client_kill(struct sim_client *c);
/** Unmount: writes out, says good bye; c->stopped in the end, then client_kill(). */
void client_stop(struct sim_client *c);
bool client_is_up(const struct sim_client *c);
/** What it believes that it may keep. It is up. */
struct tokens *client_tokens(const struct sim_client *c);
/** Its kernel has not dropped yet all that it was told to. It is up. */
bool client_is_dropping(const struct sim_client *c);
/** What its kernels kept, and were good for. */
void client_counts(const struct sim_client *c, struct kernel_counts *sum);

/* Programs' requests. Nothing is under way for req before; all bytes are copied. */
void client_lookup(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                   const char *name);
void client_create(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                   const char *name, int flags);
void client_mkdir(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                  const char *name);
void client_open(struct sim_client *c, struct fuse_req *req, uint64_t ino, int flags);
void client_release(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                    uint64_t fh);
void client_read(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                 uint64_t offset, size_t len, int flags);
void client_write(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                  uint64_t offset, const void *data, size_t len, int flags);
void client_fsync(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh);
void client_flush(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                  uint64_t owner);
/** type: of fcntl; len 0: all from there on; waits: F_SETLKW. */
void client_setlk(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                  uint64_t owner, int type, uint64_t offset, uint64_t len, bool waits);
/** A signal for who waits for a lock. */
void client_interrupt(struct sim_client *c, struct fuse_req *req);
void client_truncate(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                     uint64_t size);
void client_fallocate(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                      uint64_t fh, int mode, uint64_t offset, uint64_t len);
void client_seek(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                 uint64_t offset, int whence);
void client_getattr(struct sim_client *c, struct fuse_req *req, uint64_t ino);
/** Of at most len bytes. */
void client_getxattr(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                     const char *name, size_t len);
void client_listxattr(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                      size_t len);
void client_setxattr(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                     const char *name, const void *value, size_t len);
void client_removexattr(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                        const char *name);
void client_unlink(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                   const char *name);
void client_rmdir(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                  const char *name);
void client_link(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                 uint64_t parent, const char *name);
void client_rename(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                   const char *name, uint64_t new_parent, const char *new_name);
/** One page of names: struct sim_dirent, not what libfuse packs. */
void client_readdir(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                    uint64_t offset);
void client_opendir(struct sim_client *c, struct fuse_req *req, uint64_t ino);
void client_releasedir(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                       uint64_t fh);

#endif
