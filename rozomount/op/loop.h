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
    REQUEST_BYTES = IO_MAX + 4096, /* size of a read(2) from the device */
    /*
     * Request buffers of one loop. When all are taken the loop stops reading. That must
     * not happen while some writers wait for storages: others could not be served.
     */
    REQUESTS_MAX = 512,
    REQUESTS_KEPT = 96, /* free buffers kept in memory */
    /* free buffers that keep more memory than short requests need */
    REQUESTS_KEPT_LONG = 8,
    REQUEST_SHORT_BYTES = 64 << 10,
    REQUESTS_PER_TURN = 32, /* requests of one turn, then other work of the loop runs */
    /* interrupts remembered that came before their operation waits */
    INTERRUPTS_EARLY = 32,
};

struct exportd_link;
struct mount;
struct handle;
struct fuse_op;
struct lock_op;

/*
 * Memory that one request of the kernel is read into; a write keeps it until its data are
 * stored.
 */
struct reqbuf {
    struct list_node link, link_long; /* loop->free_bufs, free_long_bufs */
    uint8_t *base;                    /* page-aligned, owned */
    uint8_t *mem; /* start of the request, so that a write's data are page-aligned */
    bool is_long; /* has memory of a request longer than REQUEST_SHORT_BYTES */
};

/* One thread of the mount. */
struct loop {
    uv_loop_t uv;
    struct env_uv env; /* clock and timers; the wall clock follows exportd's */
    struct env_ops env_ops;
    const struct env_ops *env_below; /* NULL: uv and env are not open */
    struct mount *mount;
    unsigned index;
    pthread_t thread; /* unused by loop 0, which runs on the main thread */
    bool started;

    struct fuse_session *se; /* FUSE protocol; loop 0's session mounted */
    int fd;                  /* this loop's clone of the device; closed by se */
    uv_poll_t poll;
    bool polling, poll_open;
    struct list_node free_bufs,
        free_long_bufs; /* all, and those with long memory; last used first */
    unsigned n_bufs, n_free_bufs, n_free_long;
    struct reqbuf *current; /* request being handled; NULL once an operation took it */
    uint64_t current_unique;
    bool makes_nameless; /* the request being handled is a FUSE_TMPFILE */
    struct fuse_op *free_ops;
    unsigned n_free_ops;
    struct list_node waiting; /* operations that an interrupt may end, in order */
    /* numbers of interrupted operations that do not wait yet; 0: none */
    uint64_t early[INTERRUPTS_EARLY];
    unsigned next_early, n_early;
    struct lock_op *lock_waits; /* hash table by number */
    uint64_t last_waiter;
    struct env_timer signal_timer; /* runs while an operation in waiting is signalled */

    struct exportd_link *exportd;   /* owned; NULL in the simulator */
    struct rpc_channel *md_channel; /* borrowed: the one of exportd */
    struct md_client md;
    struct storage_peers peers;
    struct storcli *cli;
    struct file_pool *pool;
    struct nodes nodes;
    struct handle *handles;
    struct recall *recalls;   /* hash table by inode */
    struct list_node givings; /* messages that give tokens back to exportd */
    struct giving *giving;    /* the one sent at the end of this turn; NULL: none */
    struct env_task giving_task;
    bool kernel_is_gone; /* at the end: no kernel cache is left, only open files */
    uint64_t last_token_call;
    uint64_t io_error_told_ns; /* monotonic: when one was logged last; 0: never */
    bool ready;                /* all members above are initialised */
    /* at the end: polls until the device has no more requests */
    struct env_timer quit_timer;
    unsigned n_quit_looks;
    unsigned n_closing; /* at the end: parts not closed yet */
    struct env_mail mail, lost_mail, tokens_mail;
    atomic_bool lost_sent;
};

#endif
