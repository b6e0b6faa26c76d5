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
    /* s: upper limit; the kernel drops what a token allowed when it is recalled */
    TOKEN_TIMEOUT_S = 3600,
};

/* Progress of an operation that may have to wait for a lock. */
enum lock_state {
    LOCKING_NO,
    LOCKING_ASKS,     /* MD_LOCK is out */
    LOCKING_WAITS,    /* waits for the event that grants it */
    LOCKING_GIVES_UP, /* a signal came: MD_LOCK_CANCEL is out */
    LOCKING_LATE,     /* MD_LOCK_CANCEL came too late: the event is on its way */
};

/*
 * One request of the kernel, from its handler to its reply. Thread: op->loop's; op->home
 * frees it.
 */
struct fuse_op {
    struct env_mail mail; /* posted when it changes loops */
    struct loop *home;    /* the loop that read the request; owns op and buf */
    struct loop *loop;    /* the loop that it runs on now */
    void (*step)(struct fuse_op *op); /* next function after a change of loop */
    fuse_req_t req;                   /* NULL once answered */
    uint64_t unique;                  /* the kernel's number of the request */
    struct md_call call; /* one request to exportd at a time, see fuse_op_ask() */
    void (*on_answer)(struct fuse_op *op, int rc);
    struct env_timer pause;
    unsigned n_sent_back; /* times that exportd answered "ask again" */
    uint64_t started_ns;  /* env_now_ns() at home */
    /* Interrupts: see fuse_op_wait_interruptibly(). */
    void (*give_up)(struct fuse_op *op);
    bool waiting;
    bool signalled;                /* by a signal that does not end the process */
    bool any_signal;               /* any signal ends this wait */
    bool to_the_end;               /* requests to exportd ignore signals */
    struct list_node waiting_link; /* in loop->waiting */
    /* Arguments and results; the handler decides which of them have a meaning. */
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
    struct iovec iov;   /* data of a write, in buf */
    void *memory;       /* free()d with the op */
    struct dir *dir;
    struct handle *handle;
    int rc;
    bool plus, keep_cache;
    bool flushes_mtime; /* SETATTR: mtime that writeback_cache gave to written pages */
    bool nameless;      /* CREATE without a name (O_TMPFILE) */
    /*
     * A copy: done_bytes are copied. An error after that is reported by the next request.
     */
    bool copies;
    uint64_t found;
    size_t done_bytes, piece_bytes;
    unsigned n_tries; /* attempts, while a name appears and disappears */
    bool elsewhere;   /* an append at another place than the end that the kernel knew */
    /* Locks: fs_lock.c. While the operation waits for one, `found` is its number. */
    struct table_lock lock;
    enum lock_state locking;
    bool lock_granted; /* the event came, with rc */
    bool gives_up;     /* abandoned the wait once: a repeated request does not wait */
    bool lock_lost;    /* a released lock was already lost */
    const struct handle *locked; /* see fuse_op_under_lock() */
    void (*under_lock)(struct fuse_op *op);
    UT_hash_handle lock_hh;
    /* lock owners being released; memory of the handle, or &fi.lock_owner */
    const uint64_t *owners;
    unsigned n_owners;
    bool owners_flock; /* releases their flock locks, too */
    void (*released)(struct fuse_op *op);
    unsigned long long asked; /* mount->n_lowered when exportd was asked */
    uint64_t changes;         /* token_cache_changes() that entry.attr includes */
    /* token_cache_changes() after our own change of ino and ino2 */
    uint64_t changes_ino, changes_ino2;
    uint64_t xattrs_of; /* inode, see fuse_op_changes_xattrs(); 0: none */
    /* Tokens: token_recall.c. */
    /* the inode whose token it waits for, or uses for a READ or a change; NULL: none */
    struct node *token_node;
    struct token_need token_need;
    /* a page written out by the kernel; any process may have changed it */
    bool token_page;
    void (*token_step)(struct fuse_op *op);
    struct list_node token_link;  /* in node->token_waiters, exclusive or reading */
    bool fills_pages;             /* a READ into the kernel's page cache */
    bool overtaken;               /* a READ: its data were changed meanwhile */
    bool has_waited, end_is_told; /* a READ past the end: read_past_eof.c */
    uint64_t parent;              /* directory that loses the name */
    struct rename_under_way renaming;
    char name[NAME_BYTES_MAX + 1];
    char name2[NAME_BYTES_MAX + 1];
};

/** Starts an operation for the request being handled, on the loop of its session. */
struct fuse_op *fuse_op_begin(fuse_req_t req);
/** Gives the memory of the request being handled to op, until fuse_op_finish(). */
void fuse_op_take_request(struct fuse_op *op);
/** Continues with step on the loop that owns ino; at once if that is this loop. */
void fuse_op_goto_owner(struct fuse_op *op, uint64_t ino,
                        void (*step)(struct fuse_op *op));
void fuse_op_goto(struct fuse_op *op, struct loop *loop,
                  void (*step)(struct fuse_op *op));
/**
 * Ends the operation, whose request must be answered: returns to its home loop and frees
 * all. The caller must not use op afterwards.
 */
void fuse_op_finish(struct fuse_op *op);
/**
 * Counts one operation less in n_ops; calls shell->drained() for the last one of the
 * mount.
 */
void fuse_op_is_over(struct mount *m);
/** Answers with an error (or success without data) and finishes. rc: 0 or any -errno. */
void fuse_op_reply_err(struct fuse_op *op, int rc);
/**
 * Records the tokens that came with op->entry. dir: the directory asked about; 0: none.
 */
void fuse_op_take_grant(struct fuse_op *op, uint64_t dir);
/** Records the token that came with an answer about one inode, for any operation. */
void loop_take_grant(struct loop *loop, const struct md_entry *e);
/**
 * Keeps the attributes of a directory that came with our own change of it, so that the
 * kernel's next GETATTR is answered without exportd.
 */
void fuse_op_keep_dir(struct fuse_op *op, const struct md_attr *dir, uint64_t grant,
                      uint64_t changes);
/**
 * Records the state of the tokens when a request is sent, or a local answer is looked up.
 * Call it before each: an older answer must not overwrite changes made since.
 */
void fuse_op_note_asked(struct fuse_op *op);
/**
 * Answers with the attributes in entry (own sizes and times if this loop has the file),
 * and finishes.
 */
void fuse_op_reply_attr(struct fuse_op *op);
/** Answers a LOOKUP of op->name in directory op->ino with entry, and finishes. */
void fuse_op_reply_entry(struct fuse_op *op);
/**
 * Answers as fuse_op_reply_entry() for an inode that is not open. Called with the token
 * lock held; the caller finishes op.
 */
void fuse_op_answer_entry(struct fuse_op *op);
/**
 * Fills *e for `name` in dir. Called with the token lock, which is held until the kernel
 * is answered. may_tell: loop_may_tell(), read under that lock.
 */
void fuse_op_fill_entry(struct fuse_op *op, uint64_t dir, const char *name, bool may_tell,
                        struct fuse_entry_param *e);
/**
 * Returns the seconds that the kernel may keep attributes, a name or its absence.
 * has_token: a token covers them. otherwise_s: the value when exportd gives no tokens.
 * Called with the token lock.
 */
double fuse_op_timeout(const struct fuse_op *op, bool has_token, double otherwise_s);
/** Returns true if exportd gives tokens and our session has certainly not ended. */
bool loop_may_tell(struct loop *loop);
/**
 * Sends a request to exportd with op->call, then calls on_answer on this loop, with an rc
 * for users. If a signal ends the process that waits, answers EINTR, provided that the
 * request changes nothing or is not sent yet. Call it last: op may be gone when it
 * returns.
 */
void fuse_op_ask(struct fuse_op *op, uint16_t code, const ProtobufCMessage *msg,
                 void (*on_answer)(struct fuse_op *op, int rc));
/**
 * Records that exportd changed this inode for op, besides op->ino and op->ino2. Returns
 * the change number to keep its attributes with.
 */
uint64_t fuse_op_note_change(struct fuse_op *op, uint64_t ino);
/**
 * Notes that the next request of op may change xattrs of the inode. Until its answer,
 * nothing is known of them.
 */
void fuse_op_changes_xattrs(struct fuse_op *op, uint64_t ino);
/**
 * Returns true, once, if exportd lost a change of op->ino by a power failure: for fsync.
 */
bool fuse_op_has_lost(struct fuse_op *op);
/**
 * Returns true if this error is the answer to a repeated request that exportd had done
 * before its restart, and whose first answer it has not kept.
 */
bool fuse_op_was_done(const struct fuse_op *op);
/**
 * Calls step when the kernel has dropped all pages that we have asked it to drop until
 * now.
 */
void fuse_op_after_pages(struct fuse_op *op, void (*step)(struct fuse_op *op));
/** Sends MD_SYNC for op->ino and answers the kernel. */
void fuse_op_sync_and_reply(struct fuse_op *op);
/** As fuse_op_ask(), with a timeout of its own. */
void fuse_op_ask_within(struct fuse_op *op, uint32_t timeout_ms, uint16_t code,
                        const ProtobufCMessage *msg,
                        void (*on_answer)(struct fuse_op *op, int rc));
/**
 * Lets a signal that ends the waiting process call give_up(op), once, until
 * fuse_op_wait_over(). give_up either answers EINTR and finishes, or lets the operation
 * go on. Call it last: the signal may have come already.
 */
void fuse_op_wait_interruptibly(struct fuse_op *op, void (*give_up)(struct fuse_op *op));
void fuse_op_wait_over(struct fuse_op *op);
void fuse_op_init_signals(struct loop *loop);
/** Handles the kernel's request to interrupt an operation. Any loop's thread. */
void fuse_op_interrupt(struct loop *loop, uint64_t unique);
/** Calls step as soon as the node pinned in op->node is not closing. */
void fuse_op_with_node(struct fuse_op *op, void (*step)(struct fuse_op *op));
/**
 * Copies a name of 1..255 bytes to to[]. Returns false if it is too long: answered
 * ENAMETOOLONG and finished.
 */
bool fuse_op_set_name(struct fuse_op *op, char *to, const char *name);
ProtobufCBinaryData bytes_of(const char *text);

#endif
