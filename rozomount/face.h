/*
 * face.h - the FUSE face: the mount, its loops, and the requests of the kernel on their way.
 *
 * A mount has one or more loops, each a thread with a libuv loop, a clone of the FUSE
 * descriptor, and channels of its own; they share nothing but what stands in struct mount.
 * What concerns an inode's open file happens on its owner, mount_owner(ino); an operation that
 * was read elsewhere hops there (op_goto) and its answer goes out through the session it came
 * from, whatever the thread.
 */
#ifndef ROZO_FACE_H
#define ROZO_FACE_H

#include <pthread.h>
#include <stdatomic.h>
#include <uthash.h>

#include <uv.h>

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include "common/base/list.h"
#include "common/env/env_uv.h"
#include "common/rpc/rpc_tcp.h"
#include "rozomount/atimes.h"
#include "rozomount/dirplaces.h"
#include "rozomount/dropping.h"
#include "rozomount/held.h"
#include "rozomount/invalidator.h"
#include "rozomount/md.h"
#include "rozomount/md_decode.h"
#include "rozomount/mountpoint.h"
#include "rozomount/nextfiles.h"
#include "rozomount/node.h"
#include "rozomount/opendirs.h"
#include "rozomount/options.h"
#include "rozomount/peers.h"
#include "rozomount/recaller.h"
#include "rozomount/refs.h"
#include "rozomount/renames.h"
#include "rozomount/session.h"
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
    NAME_BYTES_MAX = 255,
    COUNTERS = 4096,        /* of open inodes, by hash, see mount_may_be_open() */
    TOKEN_TIMEOUT_S = 3600, /* the kernel believes what a token allows until it is told */
    INTERRUPTS_EARLY =
        32, /* interrupts remembered that came before their operation waits */
};

struct mount;
struct loop;

/* Memory one request of the kernel is read into; a write keeps it until its data are stored. */
struct reqbuf {
    struct list_node link, link_long; /* loop->free_bufs, free_long_bufs */
    uint8_t *base;                    /* page-aligned, owned */
    uint8_t *mem; /* where the request begins: so that a write's data are page-aligned */
    bool is_long; /* has memory of a request longer than REQUEST_SHORT_BYTES */
};

/* How far an operation that may have to wait for a lock is. */
enum op_locking {
    LOCKING_NO,
    LOCKING_ASKS,     /* MD_LOCK is out */
    LOCKING_WAITS,    /* for the event */
    LOCKING_GIVES_UP, /* a signal came: MD_LOCK_CANCEL is out */
    LOCKING_LATE,     /* that came too late: the event is on its way */
};

/* One request of the kernel, from its handler to its reply. Thread: op->loop's; freed at home. */
struct op {
    struct env_mail mail;        /* while it hops */
    struct loop *home;           /* read the request; owns op and buf */
    struct loop *loop;           /* where it is now */
    void (*step)(struct op *op); /* what to do after the hop */
    fuse_req_t req;              /* NULL once answered */
    uint64_t unique;             /* the kernel's number for it */
    struct md_call call;         /* one at a time, see op_ask() */
    void (*on_answer)(struct op *op, int rc);
    struct env_timer pause;
    unsigned n_sent_back; /* by exportd, to be asked again */
    uint64_t started_ns;  /* env_now_ns() at home */
    /* Interrupts: see op_wait_interruptibly(). */
    void (*give_up)(struct op *op);
    bool waiting;
    bool signalled;  /* by a signal that does not end the process */
    bool any_signal; /* ... which is enough to end this wait */
    bool to_the_end; /* what it asks exportd is asked whatever signal comes */
    struct list_node waiting_link; /* in loop->waiting */
    /* What the operation is about; which of these mean something is the handler's business. */
    uint64_t ino, ino2;
    uid_t uid;
    gid_t gid;
    pid_t pid;
    mode_t umask;
    mode_t mode;
    dev_t rdev;
    unsigned flags;
    unsigned valid;
    struct stat st;
    size_t size;
    uint64_t offset, offset2;
    struct fuse_file_info fi;
    struct node *node; /* pinned */
    struct node_wait wait;
    struct invalidator_wait pages;
    struct md_entry entry;
    struct reqbuf *buf; /* held until op_finish() */
    struct iovec iov;   /* of a write: in buf */
    void *memory;       /* free()d with the op */
    struct dir *dir;
    struct handle *handle;
    int rc;
    bool plus, keep_cache;
    bool flushes_mtime; /* SETATTR: writeback_cache tells when pages were written */
    bool nameless;      /* CREATE: of a file without a name, O_TMPFILE */
    bool
        copies; /* done_bytes are copied already: an error after that is told the next time */
    uint64_t found;
    size_t done_bytes, piece_bytes;
    unsigned n_tries; /* of a name that comes and goes */
    bool elsewhere;   /* an append that does not go where the kernel took the end for */
    /* Locks: fs_lock.c. While it waits for one, `found` is its number. */
    struct held_lock lock;
    enum op_locking locking;
    bool lock_granted;           /* the event came, with rc */
    bool gives_up;               /* it has, once: what is asked again is not waited for */
    bool lock_lost;              /* what was released was lost */
    const struct handle *locked; /* see op_under_lock() */
    void (*under_lock)(struct op *op);
    UT_hash_handle lock_hh;
    const uint64_t
        *owners; /* whose locks are being released; of the handle, or &fi.lock_owner */
    unsigned n_owners;
    bool owners_flock; /* their flock locks too */
    void (*released)(struct op *op);
    unsigned long long asked; /* mount->n_lowered, when exportd was asked */
    uint64_t changes; /* that entry.attr holds: tokens_changes() then, or after our own */
    uint64_t changes_ino, changes_ino2; /* after our own change of those two */
    uint64_t xattrs_of;                 /* see op_changes_xattrs(); 0: it changes none */
    /* Tokens: recall.c. */
    struct node
        *token_node; /* it waits for its token, or changes it by an exclusive one */
    struct token_need token_need;
    bool token_page; /* a page of the kernel's, whoever changed it */
    void (*token_step)(struct op *op);
    struct list_node token_link;  /* in node->token_waiters, exclusive or reading */
    bool fills_pages;             /* a READ: the kernel keeps what it brings */
    bool overtaken;               /* a change of what it reads came meanwhile */
    bool has_waited, end_is_told; /* of a READ behind the end: behind.c */
    uint64_t parent;              /* whose name it takes away */
    struct rename_under_way renaming;
    char name[NAME_BYTES_MAX + 1];
    char name2[NAME_BYTES_MAX + 1];
};

/* An open file of some process; fi->fh. Lives on the inode's owner loop. */
struct handle {
    struct node *node; /* pinned */
    bool sync;         /* opened O_SYNC or O_DSYNC */
    bool past_pages;   /* its data are never in the kernel's pages */
    bool no_atime;     /* opened O_NOATIME */
    uint64_t losses;   /* file_losses(), as its fsyncs have told */
    uint64_t given_up; /* node->n_given_up, the same */
    uint64_t unlocked; /* ... as its unlocks have told */
    uint64_t *owners;  /* owned: of locks that were taken through it */
    unsigned n_owners;
    struct handle *next, *prev; /* in loop->handles */
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
    struct op *free_ops;
    unsigned n_free_ops;
    struct list_node waiting;         /* those an interrupt may end, in order */
    uint64_t early[INTERRUPTS_EARLY]; /* for those that do not wait (yet); 0: none */
    unsigned next_early, n_early;
    struct op *lock_waits; /* by number */
    uint64_t last_waiter;
    struct env_timer signal_timer; /* while one of waiting is signalled */

    struct rpc_channel *md_channel;
    struct md md;
    struct peers peers;
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

/* The whole mount. What is not atomic is written before the other loops start. */
struct mount {
    const struct options *opt;
    struct rpc_keys keys;
    struct refs *refs;
    struct held *held;
    atomic_bool wants_events; /* loop 0 is told, or was */
    struct env_mail events_mail;
    struct unstable *unstable;
    struct kernel_sizes *sizes; /* with writeback_cache, else NULL */
    struct session *session;    /* loop 0 */
    struct pulse *pulse;        /* who else of this machine is dead */
    struct session_info info;   /* of the first open */
    struct cluster_map *map;    /* loop 0: for loops that start later */
    struct loop *loops;
    unsigned n_loops;
    struct invalidator *invalidator; /* NULL: none */
    struct tokens *tokens;
    struct dropping *dropping;
    struct renames *renames;
    struct opendirs *opendirs;
    struct dirplaces *dirplaces;
    struct nextfiles *nextfiles;
    struct atimes *atimes;
    struct atimes_report *atimes_report; /* loop 0's; NULL: none runs */
    struct recaller *recaller;           /* NULL: the kernel keeps nothing */
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

/* ---- mount.c ---- */

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
/** The kernel's side is gone, or we are told to go: finish what is under way, then end. Any thread. */
void mount_stop(struct mount *m);
/** No operation is left, and no loop reads any more. Any thread. */
void mount_drained(struct mount *m);
/**
 * Answer OPEN, or CREATE when there is an e. parallel: the kernel may send writes of this file one beside the other, as long as
 * they do not make it longer. As fuse_reply_open().
 */
int mount_reply_open(fuse_req_t req, const struct fuse_entry_param *e,
                     const struct fuse_file_info *fi, bool parallel);

/* ---- atimes_report.c ---- */

/** On the first loop: exportd is told what was read, every few seconds. */
void atimes_report_start(struct loop *loop);
/** Sends the last report at the end of the mount; then ended(m). */
void atimes_report_end(struct mount *m, void (*ended)(struct mount *m));

/* ---- loop.c ---- */

int loop_init(struct loop *loop, struct mount *m, unsigned index, struct err *err);
/** Read requests from the device from now on. */
int loop_start_reading(struct loop *loop, struct err *err);
void loop_stop_reading(struct loop *loop);
/** Memory of the request being handled now belongs to op, until op_finish(). */
void loop_take_request(struct loop *loop, struct op *op);
void loop_return_buf(struct loop *loop, struct reqbuf *buf);
void loop_free_memory(struct loop *loop);

/* ---- unalias.c ---- */

/**
 * A LOOKUP found op->entry. May it be answered at once? False: it is a directory that another mount moved, and the kernel has a
 * dentry elsewhere: then op_reply_free_dir().
 */
bool op_dir_is_free(struct op *op);
/** The kernel is told a name, or that it is not there, and may not keep it: it has a dentry all the same. */
void name_is_loose(struct mount *m, uint64_t dir, const char *name, bool is_dir);
/** op_reply_entry() as soon as the kernel has dropped that dentry, or cannot. */
void op_reply_free_dir(struct op *op);

/* ---- ahead.c ---- */

/** Of a LOOKUP: is it known, from a look ahead? Then it is answered, and to be finished. */
bool lookup_finds_ahead(struct op *op);
/** Shall more than this name be asked for? It is being; then fs_lookup_again(). */
bool lookup_goes_ahead(struct op *op);
void fs_lookup_again(struct op *op);

/* ---- early.c ---- */

/** A page of the listing of dir, of which `after` is the cookie before, came with attributes; its tokens are noted. */
void early_listed(struct mount *m, uint64_t dir, uint64_t after,
                  const Rozo__MdReaddirResp *page);
/** A program has opened ino to read it, and is answered: those that it will probably open next are read. On ino's owner. */
void early_opened(struct loop *loop, uint64_t ino);

/* ---- op.c ---- */

/** For the request being handled on the loop of the session it came through. */
struct op *op_begin(fuse_req_t req);
/** Go on with step on ino's owner: at once when that is here. */
void op_goto_owner(struct op *op, uint64_t ino, void (*step)(struct op *op));
void op_goto(struct op *op, struct loop *loop, void (*step)(struct op *op));
/** The last thing: goes home, gives everything back. The request must be answered. */
void op_finish(struct op *op);
/** One less is under way, of those counted in n_ops. */
void op_is_over(struct mount *m);
/** Answer with an error (or success without data) and finish. rc 0 or -errno of any kind. */
void op_reply_err(struct op *op, int rc);
/** Note what came with a page of the directory op->ino, of which `after` is the cookie before, before any of it is told. */
void op_take_page(struct op *op, const Rozo__MdReaddirResp *page, uint64_t after);
/** Note the tokens that came with op->entry; dir: the directory asked about, 0: none. */
void op_take_grant(struct op *op, uint64_t dir);
/** The same on any operation's behalf: of an answer that is about one inode. */
void loop_take_grant(struct loop *loop, const struct md_entry *e);
/** Attributes of a directory that came with our own change of it: for the kernel's next question. */
void op_keep_dir(struct op *op, const struct md_attr *dir, uint64_t grant,
                 uint64_t changes);
/** Note when exportd was asked, or what it answered before is taken for its answer. */
void op_note_asked(struct op *op);
/** Answer with the attributes in entry, overlaid where this loop has the file, and finish. */
void op_reply_attr(struct op *op);
/** The same as the answer to a LOOKUP of name in dir. */
void op_reply_entry(struct op *op);
/** The same with the lock of the tokens, of what is not open; op is to be finished. */
void op_answer_entry(struct op *op);
/** With the lock of the tokens, until the kernel is answered: the entry `name` of dir. may_tell: loop_may_tell(), under that lock. */
void op_fill_entry(struct op *op, uint64_t dir, const char *name, bool may_tell,
                   struct fuse_entry_param *e);
/** How long the kernel may believe in attributes, a name or its absence; by has_token or as it was told. With that lock, too. */
double op_timeout(const struct op *op, bool has_token, double otherwise_s);
/** exportd has certainly not ended our session, and gives tokens. */
bool loop_may_tell(struct loop *loop);
/**
 * Ask exportd with op->call; then on_answer, on this loop, with rc fit for users. A signal that
 * ends the waiting process ends the operation with EINTR, when the call only asks or is not sent
 * yet. Like all of these the last thing a function does: the op may be gone when it returns.
 */
void op_ask(struct op *op, uint16_t code, const ProtobufCMessage *msg,
            void (*on_answer)(struct op *op, int rc));
/** exportd changed this inode for op, beyond op->ino and op->ino2. Returns what its attributes are to be kept with. */
uint64_t op_note_change(struct op *op, uint64_t ino);
/**
 * Notes that the next request of op may change xattrs of the inode. Until its answer,
 * nothing is known of them.
 */
void op_changes_xattrs(struct op *op, uint64_t ino);
/** For an fsync of op->ino: has exportd lost a change of it with its power? True once. */
bool op_has_lost(struct op *op);
/** In the handler of an answer that is an error: exportd did it before it was restarted, and has not kept what it said of it. */
bool op_was_done(const struct op *op);
/** The kernel's pages that we have told it to drop until now are gone: then step. */
void op_after_pages(struct op *op, void (*step)(struct op *op));
/** MD_SYNC for op->ino, and the answer. */
void op_sync_and_reply(struct op *op);
/** The same with a timeout of its own. */
void op_ask_within(struct op *op, uint32_t timeout_ms, uint16_t code,
                   const ProtobufCMessage *msg, void (*on_answer)(struct op *op, int rc));
/**
 * From now until op_wait_over(), a signal that ends the waiting process calls give_up(op), once. That
 * either answers EINTR and finishes, or lets the operation go on. The signal may have come
 * already: the last thing a function does.
 */
void op_wait_interruptibly(struct op *op, void (*give_up)(struct op *op));
void op_wait_over(struct op *op);
void op_init_signals(struct loop *loop);
/** The kernel wants an operation interrupted. Thread: any loop's. */
void op_interrupt(struct loop *loop, uint64_t unique);
/** Wait for the node of op (pinned in op->node) not to be closing, then step. */
void op_with_node(struct op *op, void (*step)(struct op *op));
/** A name of 1..255 bytes into to[]. False: too long; answered ENAMETOOLONG and finished. */
bool op_set_name(struct op *op, char *to, const char *name);
ProtobufCBinaryData bytes_of(const char *text);

/* ---- the operations, fs_*.c ---- */

extern const struct fuse_lowlevel_ops face_ops;
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
/** The value of the virtual xattr rozo.locate of a regular file. */
void fs_locate(struct op *op);
void op_reply_xattr(struct op *op, const void *value, size_t len);

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
/** The loop on which this number waits for a lock; NULL: nobody can. Any thread. */
struct loop *locks_loop(struct mount *m, uint64_t waiter);
/** exportd says that it has the lock (rc 0), or not. On that loop. */
void locks_event(struct loop *loop, uint64_t waiter, int rc);
/** The session was opened again, perhaps at an exportd that knows of no waits. */
void locks_ask_again(struct loop *loop);
/** The mount ends: nobody waits any longer. */
void locks_give_up(struct loop *loop);
/** Release all locks that these owners hold on op->ino, then step. flock: those of both kinds. */
void locks_release(struct op *op, const uint64_t *owners, unsigned n, bool flock,
                   void (*step)(struct op *op));
/** This owner took a lock through it: the last close releases it. */
void handle_locks(struct handle *handle, uint64_t owner);
/**
 * Before data are read or changed through the handle: step, when the locks that were taken through it and are held
 * are still ours for certain; while exportd was not heard for so long that they may not be, wait for it. Lost, or
 * waited in vain: answered EIO and finished.
 */
void op_under_lock(struct op *op, const struct handle *handle,
                   void (*step)(struct op *op));
/** For who has waited since: is a lock under which it began not ours any more? */
bool op_has_lost_its_lock(const struct op *op);

/* ---- recall.c ---- */

/**
 * step, when this mount holds the token of the node, pinned by op or its handle: for EXCLUSIVE, and a READ, until op_token_done() or the
 * end of op, else for SHARED to begin with. Or it is answered with an error and finished. Reads and writes: op->offset and size say
 * what of the file.
 */
void op_with_token(struct op *op, struct node *node, enum token_mode mode,
                   void (*step)(struct op *op));
/** The same; only the data of these bytes, below the end of the file, are read or written. */
void op_with_range(struct op *op, struct node *node, const struct token_need *need,
                   void (*step)(struct op *op));
void op_token_done(struct op *op);
/* exportd wants a token back. */
struct token_recall {
    uint64_t ino;
    enum token_mode keep;
    uint64_t grant;
    uint64_t call; /* not 0: it was granted to this MD_TOKEN of ours */
};
/* On its way to the owner of the inode; freed there. */
struct recall_news {
    struct env_mail mail;
    struct rename_waiter waiter;
    bool has_waited;
    struct loop *loop;
    struct token_recall what;
};
/** To the owner, once no rename in it is under way. Any loop. */
void recall_send(struct mount *m, const struct token_recall *what);
/** The rename that op asked for is over, or not under way: recalls go on. */
void op_rename_over(struct op *op);
/** What exportd said when the file was opened holds, and it is open: who opens it again need not ask. */
bool node_is_open_still(struct loop *loop, const struct node *node);
/** Who only read it may well do so again: shall it stay open? */
bool node_is_worth_keeping(struct loop *loop, const struct node *node);
/**
 * A name that it had is gone by our own doing, its last one if `gone`: if it is only kept open, it is not any more, and without a name
 * its token is of no use once it is closed. Any loop.
 */
void recalls_let_go(struct loop *loop, uint64_t ino, bool gone);
/** Our session is over: what it let us keep is dropped, and what was written under it and is not with the storages is lost. */
void recalls_lose_all(struct loop *loop);
/** The mount ends: the kernel asks no more and keeps nothing, nobody waits for a token. */
void recalls_stop(struct loop *loop);
/** ... and exportd has heard that we go. */
void recalls_close(struct loop *loop);
/** It may have changed without anybody's telling us: its token is given back. 0: none. Any loop. */
void recalls_doubt(struct loop *loop, uint64_t ino);
/** Are there too many tokens? Then give one back. Any loop. */
void recalls_trim(struct loop *loop);
/** loop->giving_task: what was given back in this turn is told to exportd. */
void on_giving_task(struct env_task *task);

/* ---- drops.c ---- */

/**
 * A READ, pinned in op->node, was answered with less than was asked for. Where a notice to the kernel came after the kernel had asked, it
 * takes what is lacking for zeros, not for the end of the file, and keeps them, if the notice was not about these pages:
 * then they are dropped now.
 */
void op_read_ended(struct op *op);
/**
 * The kernel drops the attributes and pages of op->ino: then step. Without a token, and nothing that the kernel waits for with a page
 * locked waits for op: it may wait for pages that others read.
 */
void op_drop_pages(struct op *op, void (*step)(struct op *op));
/** Has the kernel drop the attributes of op->ino, but no pages; then step. */
void op_drop_attr(struct op *op, void (*step)(struct op *op));
/** exportd may have ended our session: the kernel is to ask us. Any loop. */
void recalls_drop_kernel(struct loop *loop);
/**
 * No name that the kernel was told until now needs to be dropped any more, but those of listings on their way; locked: see dropping.h.
 * False: it is not done. Any loop.
 */
bool recalls_age_names(struct loop *loop, const uint64_t *locked);

/* ---- behind.c ---- */

/** A READ that is under way and has come to nothing: does it wait? Then op_read_again() follows, or it is given up. */
bool op_waits_behind(struct op *op);
/** A READ was told where the file ends. */
void node_end_told(struct node *node);
/** The kernel is about to drop these pages: nobody waits. */
void node_behind_go_on(struct node *node);
/** fs_file.c: with the token, when it comes. */
void op_read_again(struct op *op);

/* ---- fs_privileges.c ---- */

/**
 * Before a write: what it takes from the file (set-id bits, unless it is root's; the capability)
 * is taken; then step. At once when the kernel sees to it.
 */
void op_drop_privileges(struct op *op, void (*step)(struct op *op));
/** Is the caller in that group? When nobody can tell: he is not. */
bool op_is_in_group(struct op *op, gid_t gid);
/**
 * The set-id bits of a file that a change by this caller clears, as SetattrBits; 0 if it
 * clears none.
 */
uint32_t op_kills_set_id(struct op *op, uint32_t mode, gid_t gid);
/**
 * Knowledge of an open file that was good until until_ns (0: there is none) and is looked after
 * from time to time, such as that it has no capability: may we go by it? Also when it is too old,
 * while exportd is away.
 */
bool op_still_knows(const struct op *op, uint64_t until_ns);
/** Ask exportd for it; not for long when we have something to go by. */
void op_ask_again(struct op *op, uint64_t until_ns, uint16_t code,
                  const ProtobufCMessage *msg, void (*on_answer)(struct op *op, int rc));
/** rc of op_ask_again(): exportd did not answer, and we go by what we had. */
bool op_goes_on_knowing(const struct op *op, uint64_t until_ns, int rc);
struct handle *handle_new(struct loop *loop, struct node *node);
void handle_free(struct loop *loop, struct handle *handle);
/** Why what was written through it, perhaps, was given up, as long as no fsync of it has told that; 0: nothing was. */
int handle_has_lost(const struct handle *handle);
/** The file in op->entry is created or opened: answer, with a handle. On the owner. */
void fs_created(struct op *op);

#endif
