/*
 * mount.h - a client of the simulated cluster: rozomount's face, session, nodes and file layer as they
 * are, with a kernel and a libfuse made of paper. Everything a program may ask of the mount is a
 * struct fuse_req given to one of rozomount's handlers.
 */
#ifndef ROZO_SIM_MOUNT_H
#define ROZO_SIM_MOUNT_H

#include "rozomount/face.h"
#include "tests/sim/cluster/servers.h"

enum { MOUNT_READ_MAX = 256 << 10 };

/* One request of a program. The world's, embedded; zero-initialise. */
struct fuse_req {
    struct sim_client *client;
    void (*done)(struct fuse_req *req); /* in the world, later; not if the client dies */
    struct env_task task;
    bool under_way;
    /* The answer. */
    int rc; /* 0 or -errno */
    struct fuse_entry_param entry;
    struct stat st;
    uint64_t fh;
    uint64_t n;    /* bytes written, offset found */
    uint8_t *data; /* in: room for a read or readdir; NULL: none wanted */
    size_t data_len;
};

/* A place for mounts. */
struct sim_client {
    struct host *host;
    unsigned index;
    struct sim_mount *mount; /* of the process */
    bool mounted, stopped;
    uint64_t session;
};

void client_init(struct sim_client *c, unsigned index);
void client_start(struct sim_client *c);
void client_kill(struct sim_client *c);
/** Unmount: writes out, says good bye; c->stopped in the end, then client_kill(). */
void client_stop(struct sim_client *c);
bool client_is_up(const struct sim_client *c);

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
void client_flush(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh);
void client_truncate(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                     uint64_t size);
void client_fallocate(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                      uint64_t fh, int mode, uint64_t offset, uint64_t len);
void client_seek(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                 uint64_t offset, int whence);
void client_getattr(struct sim_client *c, struct fuse_req *req, uint64_t ino);
void client_unlink(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                   const char *name);
void client_rmdir(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                  const char *name);
void client_link(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                 uint64_t parent, const char *name);
void client_rename(struct sim_client *c, struct fuse_req *req, uint64_t parent,
                   const char *name, uint64_t new_parent, const char *new_name);
/** One page of names: struct fuse_dirent's as libfuse packs them are not used, see mount.c. */
void client_readdir(struct sim_client *c, struct fuse_req *req, uint64_t ino, uint64_t fh,
                    uint64_t offset);
void client_opendir(struct sim_client *c, struct fuse_req *req, uint64_t ino);
void client_releasedir(struct sim_client *c, struct fuse_req *req, uint64_t ino,
                       uint64_t fh);

/* What client_readdir() puts into req->data, one behind the other. */
struct sim_dirent {
    uint64_t ino, next;
    char name[64];
};

#endif
