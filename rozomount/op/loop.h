/*
 * loop.h - one thread of a mount: its FUSE descriptor, its channels, its inodes.
 */
#ifndef ROZO_ROZOMOUNT_OP_LOOP_H
#define ROZO_ROZOMOUNT_OP_LOOP_H

#include <pthread.h>
#include <stdatomic.h>

#include <uv.h>

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include "common/base/list.h"
#include "common/env/env_uv.h"
#include "common/rpc/rpc_tcp.h"
#include "rozomount/inode/node.h"
#include "rozomount/session/md_client.h"
#include "rozomount/session/storage_peers.h"
#include "storcli/file.h"

enum {
    IO_MAX = 1 << 20,        /* bytes of one read or write by the kernel */
    REQUEST_HEAD_BYTES = 80, /* fuse_in_header + fuse_write_in: data begins on a page */
    REQUEST_BYTES = IO_MAX + 4096, /* what we offer to read(2) of the device */
    /* Request buffers of one loop; when all are taken, we stop reading: that must not happen
     * while some writers wait for storages, or nobody else gets through. */
    REQUESTS_MAX = 512,
    REQUESTS_KEPT = 96, /* of those, when they are free again, */
    REQUESTS_KEPT_LONG =
        8, /* of which so many keep more than the memory of short requests */
    REQUEST_SHORT_BYTES = 64 << 10,
    REQUESTS_PER_TURN = 32, /* then others get their turn */
    INTERRUPTS_EARLY =
        32, /* interrupts remembered that came before their operation waits */
};

struct mount;
struct handle;
struct fuse_op;

/* Memory one request of the kernel is read into; a write keeps it until its data are stored. */
struct reqbuf {
    struct list_node link, link_long; /* loop->free_bufs, free_long_bufs */
    uint8_t *base;                    /* page-aligned, owned */
    uint8_t *mem; /* where the request begins: so that a write's data are page-aligned */
    bool is_long; /* has memory of a request longer than REQUEST_SHORT_BYTES */
};

/* One thread of the mount. */
struct loop {
    uv_loop_t uv;
    struct env_uv env; /* its wall clock runs as exportd's */
    struct env_ops env_ops;
    const struct env_ops *env_below; /* NULL: uv and env are not open */
    struct mount *mount;
    unsigned index;
    pthread_t thread; /* not of loop 0, that is the process's own */
    bool started;

    struct fuse_session *se; /* the protocol; loop 0's is the one that mounted */
    int fd;                  /* this loop's clone of the device; closed by se */
    uv_poll_t poll;
    bool polling, poll_open;
    struct list_node free_bufs,
        free_long_bufs; /* all, those with long memory; last back first */
    unsigned n_bufs, n_free_bufs, n_free_long;
    struct reqbuf *current; /* the one being handled; NULL once somebody took it */
    uint64_t current_unique;
    bool makes_nameless; /* the one being handled is a FUSE_TMPFILE */
    struct fuse_op *free_ops;
    unsigned n_free_ops;
    struct list_node waiting;         /* those an interrupt may end, in order */
    uint64_t early[INTERRUPTS_EARLY]; /* for those that do not wait (yet); 0: none */
    unsigned next_early, n_early;
    struct fuse_op *lock_waits; /* by number */
    uint64_t last_waiter;
    struct env_timer signal_timer; /* while one of waiting is signalled */

    struct rpc_channel *md_channel;
    struct md_client md;
    struct storage_peers peers;
    struct storcli *cli;
    struct file_pool *pool;
    struct nodes nodes;
    struct handle *handles;
    struct recall *recalls;   /* by inode */
    struct list_node givings; /* tokens that exportd is being told of */
    struct giving *giving; /* one of them: told with the end of this turn; NULL: none */
    struct env_task giving_task;
    bool kernel_is_gone; /* at the end: only files that are open still keep something */
    uint64_t last_token_call;
    bool ready;                  /* everything above is made */
    struct env_timer quit_timer; /* at the end: until the kernel has no more for us */
    unsigned n_quit_looks;
    unsigned n_closing; /* at the end: parts not closed yet */
    struct env_mail mail, lost_mail, tokens_mail;
    atomic_bool lost_sent;
};

#endif
