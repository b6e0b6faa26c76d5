/*
 * fuse_op.h - one request of the kernel, from its handler to its reply.
 */
#ifndef ROZO_ROZOMOUNT_OP_FUSE_OP_H
#define ROZO_ROZOMOUNT_OP_FUSE_OP_H

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include "common/env/env_uv.h"
#include "rozomount/inode/node.h"
#include "rozomount/kcache/kernel_inval.h"
#include "rozomount/op/loop.h"
#include "rozomount/session/lock_table.h"
#include "rozomount/session/md_client.h"
#include "rozomount/session/md_decode.h"
#include "rozomount/tokens/rename_barrier.h"

enum {
    NAME_BYTES_MAX = 255,
    TOKEN_TIMEOUT_S = 3600, /* the kernel believes what a token allows until it is told */
};

/* How far an operation that may have to wait for a lock is. */
enum lock_state {
    LOCKING_NO,
    LOCKING_ASKS,     /* MD_LOCK is out */
    LOCKING_WAITS,    /* for the event */
    LOCKING_GIVES_UP, /* a signal came: MD_LOCK_CANCEL is out */
    LOCKING_LATE,     /* that came too late: the event is on its way */
};

/* One request of the kernel, from its handler to its reply. Thread: op->loop's; freed at home. */
struct fuse_op {
    struct env_mail mail;             /* while it hops */
    struct loop *home;                /* read the request; owns op and buf */
    struct loop *loop;                /* where it is now */
    void (*step)(struct fuse_op *op); /* what to do after the hop */
    fuse_req_t req;                   /* NULL once answered */
    uint64_t unique;                  /* the kernel's number for it */
    struct md_call call;              /* one at a time, see fuse_op_ask() */
    void (*on_answer)(struct fuse_op *op, int rc);
    struct env_timer pause;
    unsigned n_sent_back; /* by exportd, to be asked again */
    uint64_t started_ns;  /* env_now_ns() at home */
    /* Interrupts: see fuse_op_wait_interruptibly(). */
    void (*give_up)(struct fuse_op *op);
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
    struct kernel_inval_wait pages;
    struct md_entry entry;
    struct reqbuf *buf; /* held until fuse_op_finish() */
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
    struct table_lock lock;
    enum lock_state locking;
    bool lock_granted;           /* the event came, with rc */
    bool gives_up;               /* it has, once: what is asked again is not waited for */
    bool lock_lost;              /* what was released was lost */
    const struct handle *locked; /* see fuse_op_under_lock() */
    void (*under_lock)(struct fuse_op *op);
    UT_hash_handle lock_hh;
    const uint64_t
        *owners; /* whose locks are being released; of the handle, or &fi.lock_owner */
    unsigned n_owners;
    bool owners_flock; /* their flock locks too */
    void (*released)(struct fuse_op *op);
    unsigned long long asked; /* mount->n_lowered, when exportd was asked */
    uint64_t
        changes; /* that entry.attr holds: token_cache_changes() then, or after our own */
    uint64_t changes_ino, changes_ino2; /* after our own change of those two */
    uint64_t xattrs_of; /* see fuse_op_changes_xattrs(); 0: it changes none */
    /* Tokens: token_recall.c. */
    struct node
        *token_node; /* it waits for its token, or changes it by an exclusive one */
    struct token_need token_need;
    bool token_page; /* a page of the kernel's, whoever changed it */
    void (*token_step)(struct fuse_op *op);
    struct list_node token_link;  /* in node->token_waiters, exclusive or reading */
    bool fills_pages;             /* a READ: the kernel keeps what it brings */
    bool overtaken;               /* a change of what it reads came meanwhile */
    bool has_waited, end_is_told; /* of a READ behind the end: read_past_eof.c */
    uint64_t parent;              /* whose name it takes away */
    struct rename_under_way renaming;
    char name[NAME_BYTES_MAX + 1];
    char name2[NAME_BYTES_MAX + 1];
};

/** For the request being handled on the loop of the session it came through. */
struct fuse_op *fuse_op_begin(fuse_req_t req);
/** Memory of the request being handled belongs to op, until fuse_op_finish(). */
void fuse_op_take_request(struct fuse_op *op);
/** Go on with step on ino's owner: at once when that is here. */
void fuse_op_goto_owner(struct fuse_op *op, uint64_t ino,
                        void (*step)(struct fuse_op *op));
void fuse_op_goto(struct fuse_op *op, struct loop *loop,
                  void (*step)(struct fuse_op *op));
/** The last thing: goes home, gives everything back. The request must be answered. */
void fuse_op_finish(struct fuse_op *op);
/** One less is under way, of those counted in n_ops. */
void fuse_op_is_over(struct mount *m);
/** Answer with an error (or success without data) and finish. rc 0 or -errno of any kind. */
void fuse_op_reply_err(struct fuse_op *op, int rc);
/** Note the tokens that came with op->entry; dir: the directory asked about, 0: none. */
void fuse_op_take_grant(struct fuse_op *op, uint64_t dir);
/** The same on any operation's behalf: of an answer that is about one inode. */
void loop_take_grant(struct loop *loop, const struct md_entry *e);
/** Attributes of a directory that came with our own change of it: for the kernel's next question. */
void fuse_op_keep_dir(struct fuse_op *op, const struct md_attr *dir, uint64_t grant,
                      uint64_t changes);
/** Note when exportd was asked, or what it answered before is taken for its answer. */
void fuse_op_note_asked(struct fuse_op *op);
/** Answer with the attributes in entry, overlaid where this loop has the file, and finish. */
void fuse_op_reply_attr(struct fuse_op *op);
/** The same as the answer to a LOOKUP of name in dir. */
void fuse_op_reply_entry(struct fuse_op *op);
/** The same with the lock of the tokens, of what is not open; op is to be finished. */
void fuse_op_answer_entry(struct fuse_op *op);
/** With the lock of the tokens, until the kernel is answered: the entry `name` of dir. may_tell: loop_may_tell(), under that lock. */
void fuse_op_fill_entry(struct fuse_op *op, uint64_t dir, const char *name, bool may_tell,
                        struct fuse_entry_param *e);
/** How long the kernel may believe in attributes, a name or its absence; by has_token or as it was told. With that lock, too. */
double fuse_op_timeout(const struct fuse_op *op, bool has_token, double otherwise_s);
/** exportd has certainly not ended our session, and gives tokens. */
bool loop_may_tell(struct loop *loop);
/**
 * Ask exportd with op->call; then on_answer, on this loop, with rc fit for users. A signal that
 * ends the waiting process ends the operation with EINTR, when the call only asks or is not sent
 * yet. Like all of these the last thing a function does: the op may be gone when it returns.
 */
void fuse_op_ask(struct fuse_op *op, uint16_t code, const ProtobufCMessage *msg,
                 void (*on_answer)(struct fuse_op *op, int rc));
/** exportd changed this inode for op, beyond op->ino and op->ino2. Returns what its attributes are to be kept with. */
uint64_t fuse_op_note_change(struct fuse_op *op, uint64_t ino);
/**
 * Notes that the next request of op may change xattrs of the inode. Until its answer,
 * nothing is known of them.
 */
void fuse_op_changes_xattrs(struct fuse_op *op, uint64_t ino);
/** For an fsync of op->ino: has exportd lost a change of it with its power? True once. */
bool fuse_op_has_lost(struct fuse_op *op);
/** In the handler of an answer that is an error: exportd did it before it was restarted, and has not kept what it said of it. */
bool fuse_op_was_done(const struct fuse_op *op);
/** The kernel's pages that we have told it to drop until now are gone: then step. */
void fuse_op_after_pages(struct fuse_op *op, void (*step)(struct fuse_op *op));
/** MD_SYNC for op->ino, and the answer. */
void fuse_op_sync_and_reply(struct fuse_op *op);
/** The same with a timeout of its own. */
void fuse_op_ask_within(struct fuse_op *op, uint32_t timeout_ms, uint16_t code,
                        const ProtobufCMessage *msg,
                        void (*on_answer)(struct fuse_op *op, int rc));
/**
 * From now until fuse_op_wait_over(), a signal that ends the waiting process calls give_up(op), once. That
 * either answers EINTR and finishes, or lets the operation go on. The signal may have come
 * already: the last thing a function does.
 */
void fuse_op_wait_interruptibly(struct fuse_op *op, void (*give_up)(struct fuse_op *op));
void fuse_op_wait_over(struct fuse_op *op);
void fuse_op_init_signals(struct loop *loop);
/** The kernel wants an operation interrupted. Thread: any loop's. */
void fuse_op_interrupt(struct loop *loop, uint64_t unique);
/** Wait for the node of op (pinned in op->node) not to be closing, then step. */
void fuse_op_with_node(struct fuse_op *op, void (*step)(struct fuse_op *op));
/** A name of 1..255 bytes into to[]. False: too long; answered ENAMETOOLONG and finished. */
bool fuse_op_set_name(struct fuse_op *op, char *to, const char *name);
ProtobufCBinaryData bytes_of(const char *text);

#endif
