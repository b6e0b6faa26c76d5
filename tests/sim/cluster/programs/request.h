/*
 * request.h - a request to a mount and its answer: libfuse's struct fuse_req, filled by
 * mount.c's versions of libfuse's functions.
 *
 * Programs send requests, and so does the kernel model between them and the mount
 * (kernel.h).
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_PROGRAMS_REQUEST_H
#define ROZO_TESTS_SIM_CLUSTER_PROGRAMS_REQUEST_H

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
    REQUEST_READDIRPLUS, /* sent by a kernel only */
    REQUEST_RELEASEDIR,
    REQUEST_SETLK,
    REQUEST_FORGET, /* sent by a kernel only */
};

/* Arguments of a request. Pointers are borrowed until the answer. */
struct request {
    enum request_kind kind;
    uint64_t ino;      /* the file or the directory */
    uint64_t ino2;     /* rename: the other directory; link:
                        * the inode that gets the name */
    const char *name;  /* in ino; or name of an xattr */
    const char *name2; /* in ino2 */
    uint64_t fh;
    uint64_t off, len;
    int flags;      /* flags of an open file; mode of fallocate;
                     * whence of seek; type of a lock */
    uint64_t owner; /* process, for a flush or a lock */
    bool waits;     /* a lock: F_SETLKW */
    const void *data;
};

struct sim_client;

/* One request. Embedded in the world's memory; initialise with zeros. */
struct fuse_req {
    struct sim_client *client;
    void (*done)(struct fuse_req *req); /* called in the world, later;
                                         * not if the client dies */
    struct env_task task;
    bool under_way;
    uint64_t unique; /* request number for the mount */
    /* The answer. */
    int rc; /* 0 or -errno */
    struct fuse_entry_param entry;
    struct stat st;
    double attr_timeout_s; /* validity of st, unless st is in entry */
    uint64_t fh;
    bool keeps_cache, is_direct, is_parallel; /* answer to an open */
    bool keeps_names;                         /* answer to an opendir: cache_readdir */
    uint64_t n;                               /* bytes written, or offset found */
    uint8_t *data; /* in: room for a read or readdir; NULL: not wanted */
    size_t data_len;
};

/* One entry of a readdir in req->data. */
struct sim_dirent {
    uint64_t ino, next;
    char name[64];
};
struct sim_direntplus {
    struct sim_dirent d;
    struct fuse_entry_param entry; /* ino 0: no attributes */
};

/** Marks the request as in progress. */
void request_begin(struct fuse_req *req);
/** Ends the request: done() is called later, in the world. Works in any process. */
void request_answered(struct fuse_req *req, int rc);

#endif
