/*
 * mount.h - a mount: what its loops share.
 *
 * A mount has one or more loops, each a thread with a libuv loop, a clone of the FUSE descriptor,
 * and channels of its own; they share nothing but struct mount. All work on an open inode is done
 * on its owner loop, mount_owner(ino); an operation that was read elsewhere moves there (fuse_op_goto)
 * and is answered through the session it came from, whatever the thread.
 */
#ifndef ROZO_ROZOMOUNT_OP_MOUNT_H
#define ROZO_ROZOMOUNT_OP_MOUNT_H

#include "rozomount/inode/atimes.h"
#include "rozomount/op/fuse_op.h"
#include "rozomount/op/loop.h"
#include "rozomount/options/mountpoint.h"
#include "rozomount/options/options.h"
#include "rozomount/session/mount_session.h"

enum { COUNTERS = 4096 }; /* of open inodes, by hash, see mount_may_be_open() */

/* What operations need of the process around them; the simulator has its own. */
struct mount_shell {
    /** Takes back the memory of a request. On that loop. */
    void (*return_buf)(struct loop *loop, struct reqbuf *buf);
    /** No operation is left, and no loop reads any more. Any thread. */
    void (*drained)(struct mount *m);
    /**
     * Answers OPEN, or CREATE if there is an e, as fuse_reply_open() does. parallel: the kernel may
     * send writes of this file side by side, as long as they do not make it longer.
     */
    int (*reply_open)(fuse_req_t req, const struct fuse_entry_param *e,
                      const struct fuse_file_info *fi, bool parallel);
};

/* The whole mount. What is not atomic is written before the other loops start. */
struct mount {
    const struct options *opt;
    const struct mount_shell *shell;
    struct rpc_keys keys;
    struct open_refs *refs;
    struct lock_table *lock_table;
    atomic_bool wants_events; /* loop 0 is told, or was */
    struct env_mail events_mail;
    struct unsynced_inodes *unsynced;
    struct kernel_sizes *sizes;     /* with writeback_cache, else NULL */
    struct mount_session *session;  /* loop 0 */
    struct liveness *liveness;      /* who else of this machine is dead */
    struct mount_session_info info; /* of the first open */
    struct cluster_map *map;        /* loop 0: for loops that start later */
    struct loop *loops;
    unsigned n_loops;
    struct kernel_inval *inval; /* NULL: none */
    struct token_cache *tokens;
    struct name_inval *name_inval;
    struct rename_barrier *rename_barrier;
    struct open_dirs *open_dirs;
    struct dir_places *dir_places;
    struct next_files *next_files;
    struct atimes *atimes;
    struct atimes_report *atimes_report; /* loop 0's; NULL: none runs */
    struct kernel_notify *notify;        /* NULL: the kernel keeps nothing */
    struct mountpoint at;                /* where we are mounted, with is_listed */
    bool is_listed;
    bool names_expire;     /* the kernel can let a name expire, not only drop it */
    bool drops_privileges; /* we, not the kernel, take them away when a file is written */
    bool direct;           /* whatever is opened does: cache=direct */
    bool maps_direct;      /* ... and can be mapped shared all the same */
    bool
        direct_writes; /* so does what is opened for writing only, to append, or O_DIRECT */
    /* The kernel writes when it likes: sizes and times of files are its own. */
    bool writeback;
    atomic_llong clock_ahead_ns; /* exportd's clock against this machine's */
    atomic_uint open_counts[COUNTERS];
    atomic_uint kept_counts[COUNTERS]; /* of files that only we keep open */
    atomic_ullong n_lowered;           /* exclusive tokens that are not any more */
    atomic_bool was_recalled; /* others were there: exportd has recalled a token */
    atomic_uint n_ops;        /* under way on all loops */
    atomic_bool draining;     /* no loop reads any more: tell loop 0 when n_ops is 0 */
    atomic_bool drained_sent;
    atomic_bool stop_sent;
    struct env_mail drained_mail, stop_mail;
    /* Loop 0's. */
    unsigned n_loops_left; /* of the step under way */
    void (*next_step)(struct mount *m);
    void (*before_end)(
        void *arg); /* main.c's, when the loops are about to end; may be NULL */
    void *before_end_arg;
    bool giving_up; /* the start failed */
    bool unmounting;
    pthread_t unmounter; /* joined at the end */
    char client[256];
};

static inline struct loop *mount_owner(struct mount *m, uint64_t ino)
{
    if (m->n_loops == 1)
        return &m->loops[0];
    return &m->loops[(ino * 0x9e3779b97f4a7c15u >> 32) % m->n_loops];
}
static inline unsigned mount_counter(uint64_t ino)
{
    return (unsigned)((ino * 0x9e3779b97f4a7c15u >> 52) % COUNTERS);
}
/** False: no loop has a node of ino, exportd's attributes are the truth. */
static inline bool mount_may_be_open(struct mount *m, uint64_t ino)
{
    return atomic_load_explicit(&m->open_counts[mount_counter(ino)],
                                memory_order_acquire) != 0;
}
static inline bool mount_may_be_kept(struct mount *m, uint64_t ino)
{
    return atomic_load_explicit(&m->kept_counts[mount_counter(ino)],
                                memory_order_acquire) != 0;
}

#endif
