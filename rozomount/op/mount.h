/*
 * mount.h - state that the loops of a mount share.
 *
 * A mount has one or more loops. Each is a thread with a libuv loop, a clone of the FUSE
 * descriptor, and channels of its own; loops share nothing but struct mount. All work on
 * an open inode is done on its owner loop, mount_owner(ino). An operation that was read
 * by another loop moves there (fuse_op_goto); the answer goes through the session that it
 * came from, on whatever thread.
 */
#ifndef ROZO_ROZOMOUNT_OP_MOUNT_H
#define ROZO_ROZOMOUNT_OP_MOUNT_H

#include "common/base/units.h"
#include "rozomount/hold/holder.h"
#include "rozomount/inode/atimes.h"
#include "rozomount/kcache/kernel_inval.h"
#include "rozomount/op/fuse_op.h"
#include "rozomount/op/loop.h"
#include "rozomount/options/mountpoint.h"
#include "rozomount/options/options.h"
#include "rozomount/session/mount_session.h"

enum {
    COUNTERS = 4096, /* size of open_counts[] and kept_counts[], by hash of the inode */
    /* listings bring extended attributes for this time after a program has read one */
    XATTRS_WANTED_S = 60,
};

/* Services of the process around the operations. The simulator has its own. */
struct mount_shell {
    /** Takes back the memory of a request. Called on that loop. */
    void (*return_buf)(struct loop *loop, struct reqbuf *buf);
    /** Reports that no operation is left and no loop reads any more. Any thread. */
    void (*drained)(struct mount *m);
    /**
     * Answers OPEN as fuse_reply_open() does, or CREATE if e is not NULL. parallel: the
     * kernel may send writes of this file side by side unless they extend it.
     */
    int (*reply_open)(fuse_req_t req, const struct fuse_entry_param *e,
                      const struct fuse_file_info *fi, bool parallel);
};

/* Opens that go through the kernel's page cache. */
enum mount_cache {
    CACHE_PAGES,     /* all */
    CACHE_READS,     /* opens for reading, unless for append or with O_DIRECT */
    CACHE_NONE,      /* none: only memory mappings do */
    CACHE_WRITEBACK, /* all: the kernel writes later, and owns sizes and times of files */
};

/* A mount goes from one process to the next: see daemon/takeover.c. */
struct mount_takeover {
    struct inherited_session *inherited; /* until the start is over; NULL: none */
    bool resends; /* the kernel can send requests again that were not answered */
    bool replied_otherwise; /* to INIT than the process before */
    /*
     * The kernel forgets names by itself, as it cannot be made to forget them all: before
     * Linux 6.16.
     */
    bool forgets_names;
    /* This process hands over. A stop, or an unmount, that comes meanwhile waits. */
    bool hands_over, stops_after, unmounts_after;
    atomic_bool failed;
};

/*
 * The whole mount. Members that are not atomic are written before the other loops start.
 */
struct mount {
    const struct options *opt;
    const struct mount_shell *shell;
    struct rpc_keys keys;
    struct holder_fds hold;
    int device; /* /dev/fuse, mounted; each loop reads a clone of it. -1: none */
    struct mount_takeover takeover;
    struct held_files *held;
    struct open_refs *refs;
    struct lock_table *lock_table;
    atomic_bool wants_events; /* events_mail was posted to loop 0 */
    struct env_mail events_mail;
    struct unsynced_inodes *unsynced;
    struct kernel_sizes *sizes;     /* with writeback_cache, else NULL */
    struct mount_session *session;  /* loop 0 */
    struct liveness *liveness;      /* detects other dead mounts of this machine */
    struct mount_session_info info; /* result of the first open of the session */
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
    struct stream_reads reads;
    struct atimes_report *atimes_report; /* loop 0's; NULL: none runs */
    struct kernel_notify *notify;        /* NULL: the kernel caches nothing */
    struct mountpoint at;                /* where we are mounted, with is_listed */
    bool is_listed;
    bool names_expire; /* the kernel can let a name expire, not only drop it */
    /* this mount, not the kernel, clears set-id bits and capabilities on a write */
    bool drops_privileges;
    bool maps_direct; /* a file can be mapped shared though its open bypasses the cache */
    enum mount_cache cache;
    atomic_llong clock_ahead_ns; /* exportd's clock minus this machine's */
    atomic_uint open_counts[COUNTERS];
    atomic_uint kept_counts[COUNTERS]; /* files kept open by this mount only */
    atomic_ullong n_lowered;           /* exclusive tokens that were downgraded, ever */
    atomic_ullong xattrs_read_ns;      /* monotonic: a program read one last; 0: never */
    /* exportd has recalled a token: other mounts use our files */
    atomic_bool was_recalled;
    atomic_uint n_ops; /* operations in progress on all loops */
    /* no loop reads any more: loop 0 gets drained_mail when n_ops is 0 */
    atomic_bool draining;
    atomic_bool drained_sent;
    atomic_bool stop_sent;
    struct env_mail drained_mail, stop_mail;
    /* Members of loop 0. */
    unsigned n_loops_left; /* loops that have not finished the step in progress */
    void (*next_step)(struct mount *m);
    /* called when the loops are about to end (main.c); may be NULL */
    void (*before_end)(void *arg);
    void *before_end_arg;
    bool giving_up; /* the start failed */
    bool unmounting;
    pthread_t unmounter; /* joined at the end */
    char client[256];
};

/** Notes that a program reads an extended attribute. */
static inline void mount_note_xattrs_read(struct mount *m, uint64_t now_ns)
{
    atomic_store_explicit(&m->xattrs_read_ns, now_ns, memory_order_relaxed);
}
/** Returns whether listings shall bring extended attributes: programs ask for them. */
static inline bool mount_wants_xattrs(struct mount *m, uint64_t now_ns)
{
    uint64_t read_ns = atomic_load_explicit(&m->xattrs_read_ns, memory_order_relaxed);

    return read_ns != 0 && now_ns < read_ns + s_to_ns(XATTRS_WANTED_S);
}
static inline bool mount_writes_back(const struct mount *m)
{
    return m->cache == CACHE_WRITEBACK;
}
/** Returns true if the mount outlives this process. */
static inline bool mount_has_holder(const struct mount *m)
{
    return m->hold.link >= 0;
}
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
/**
 * Returns false if no loop has a node of ino: exportd's attributes are right as they are.
 */
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
