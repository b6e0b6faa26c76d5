/*
 * mount.h - a client of the simulated cluster: the real rozomount (handlers, session,
 * nodes, file layer) without libfuse.
 *
 * A program's request goes to one of rozomount's handlers directly, or through a model of
 * Linux (kernel.h), which answers from its caches or asks the handler.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_PROGRAMS_MOUNT_H
#define ROZO_TESTS_SIM_CLUSTER_PROGRAMS_MOUNT_H

#include "rozomount/op/fuse_op.h"
#include "rozomount/op/handle.h"
#include "rozomount/op/mount.h"
#include "rozomount/op/read_past_eof.h"
#include "rozomount/op/recall_inval.h"
#include "rozomount/op/token_recall.h"
#include "rozomount/ops/fs_privileges.h"
#include "rozomount/ops/fuse_ops.h"
#include "tests/sim/cluster/kernel/kernel.h"
#include "tests/sim/cluster/world/servers.h"

/* A place for mounts, one after the other. */
struct sim_client {
    struct host *host;
    unsigned index;
    struct sim_mount *mount; /* the running process's; NULL: none */
    bool mounted, stopped;
    uint64_t dead;                    /* session of the last killed mount */
    uint64_t session, opened_ns;      /* current session, and the time of its open */
    uint32_t losses;                  /* exportd's losses of power, as it knows them */
    bool has_kernel, has_deaf_kernel; /* for the next start */
    bool has_old_kernel;              /* for the next start; the kernel cannot
                                       * age names, as Linux before 6.16 */
    struct kernel *kernel;            /* owned by the world; NULL: none */
    struct kernel_counts counts;      /* sums of earlier kernels */
};

void client_init(struct sim_client *c, unsigned index);
void client_start(struct sim_client *c);
void client_kill(struct sim_client *c);
/** Unmounts: writes out and closes the session; then
 * sets c->stopped. Call client_kill() after that. */
void client_stop(struct sim_client *c);
bool client_is_up(const struct sim_client *c);
/** Returns the tokens that the client uses; it must be up. */
struct token_cache *client_tokens(const struct sim_client *c);
/** Tells whether its kernel still works on invalidations; the client must be up. */
bool client_is_dropping(const struct sim_client *c);
/** Adds the cache statistics of all its kernels. */
void client_counts(const struct sim_client *c, struct kernel_counts *sum);

/* Requests of programs. req must not be in use; all bytes are copied. */
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
/** type: of fcntl; len 0: to the end of the file; waits: F_SETLKW. */
void client_setlk(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                  uint64_t owner, int type, uint64_t offset, uint64_t len, bool waits);
/** Sends a signal to a program that waits for a lock. */
void client_interrupt(struct sim_client *c, struct fuse_req *req);
void client_truncate(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                     uint64_t size);
void client_fallocate(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                      uint64_t fh, int mode, uint64_t offset, uint64_t len);
void client_seek(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                 uint64_t offset, int whence);
void client_getattr(struct sim_client *c, struct fuse_req *req, uint64_t ino);
/** Gets an xattr of at most len bytes. */
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
/** Reads one page of names, as struct sim_dirent (libfuse's format is not used). */
void client_readdir(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                    uint64_t offset);
void client_opendir(struct sim_client *c, struct fuse_req *req, uint64_t ino);
void client_releasedir(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                       uint64_t fh);

#endif
