/*
 * request.h - what is asked of a mount, and its answer: libfuse's struct fuse_req, filled by libfuse's functions as
 * mount.c makes them. Programs ask so, and so does the kernel that may stand between (kernel.h).
 */
#ifndef ROZO_SIM_REQUEST_H
#define ROZO_SIM_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include "common/env/env.h"

enum { MOUNT_READ_MAX = 256 << 10 };

enum request_kind {
    REQUEST_LOOKUP,
    REQUEST_CREATE,
    REQUEST_MKDIR,
    REQUEST_OPEN,
    REQUEST_RELEASE,
    REQUEST_READ,
    REQUEST_WRITE,
    REQUEST_FSYNC,
    REQUEST_FLUSH,
    REQUEST_TRUNCATE,
    REQUEST_FALLOCATE,
    REQUEST_SEEK,
    REQUEST_GETATTR,
    REQUEST_GETXATTR,
    REQUEST_LISTXATTR,
    REQUEST_SETXATTR,
    REQUEST_REMOVEXATTR,
    REQUEST_UNLINK,
    REQUEST_RMDIR,
    REQUEST_LINK,
    REQUEST_RENAME,
    REQUEST_OPENDIR,
    REQUEST_READDIR,
    REQUEST_READDIRPLUS, /* only a kernel's */
    REQUEST_RELEASEDIR,
    REQUEST_SETLK,
    REQUEST_FORGET, /* only a kernel's */
};

/* Pointers are borrowed until the answer. */
struct request {
    enum request_kind kind;
    uint64_t ino;      /* or that of the directory */
    uint64_t ino2;     /* a rename: of the other directory; a link: what gets the name */
    const char *name;  /* in ino; of an xattr */
    const char *name2; /* in ino2 */
    uint64_t fh;
    uint64_t off, len;
    int flags; /* of an open file; mode of an fallocate; whence of a seek; type of a lock */
    uint64_t owner; /* of a flush or a lock: the process */
    bool waits;     /* for a lock */
    const void *data;
};

struct sim_client;

/* One request. The world's, embedded; zero-initialise. */
struct fuse_req {
    struct sim_client *client;
    void (*done)(struct fuse_req *req); /* in the world, later; not if the client dies */
    struct env_task task;
    bool under_way;
    uint64_t unique; /* as the mount knows it */
    /* The answer. */
    int rc; /* 0 or -errno */
    struct fuse_entry_param entry;
    struct stat st;
    double attr_timeout_s; /* of st, when it is not in entry */
    uint64_t fh;
    bool keeps_cache, is_direct, is_parallel; /* of an open */
    bool keeps_names;                         /* of an opendir: cache_readdir */
    uint64_t n;                               /* bytes written, offset found */
    uint8_t *data; /* in: room for a read or readdir; NULL: none wanted */
    size_t data_len;
};

/* What a readdir puts into req->data, one behind the other. */
struct sim_dirent {
    uint64_t ino, next;
    char name[64];
};
struct sim_direntplus {
    struct sim_dirent d;
    struct fuse_entry_param entry; /* ino 0: nothing is said of it */
};

/** It is asked now. */
void request_begin(struct fuse_req *req);
/** It is answered: done() comes, in the world, later. From any process. */
void request_answered(struct fuse_req *req, int rc);

#endif
