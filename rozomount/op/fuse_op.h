/*
 * fuse_op.h - one request of the kernel, from its handler to its reply.
 */
#ifndef ROZO_ROZOMOUNT_OP_FUSE_OP_H
#define ROZO_ROZOMOUNT_OP_FUSE_OP_H

#define FUSE_USE_VERSION 314
#include <fuse3/fuse_lowlevel.h>

#include "common/env/env_uv.h"
#include "rozomount/inode/node.h"
#include "rozomount/op/loop.h"
#include "rozomount/session/md_client.h"
#include "rozomount/session/md_decode.h"
#include "rozomount/tokens/rename_barrier.h"

enum {
    NAME_BYTES_MAX = 255,
    /* s: upper limit; the kernel drops what a token allowed when it is recalled */
    TOKEN_TIMEOUT_S = 3600,
    NAMES_HELD_S = 1, /* see mount_takeover.forgets_names */
};
/* FUSE_UNIQUE_RESEND, Linux 6.9: a process before has read the request already */
#define UNIQUE_IS_RESENT (1ull << 63)

struct fuse_op;

/* End of a step. */
enum step_end {
    STEP_GO,   /* the next step follows at once */
    STEP_WAIT, /* fuse_op_next() follows, or op is answered: it must not be used */
    STEP_END,  /* the answer is op->rc: an error, or success without data */
};

/* One step of an operation, on op->loop. Its last act is to wait, or to return. */
typedef enum step_end fuse_op_step(struct fuse_op *op);

/* Signals that end a wait of an operation. */
enum op_signals {
    SIGNALS_FATAL, /* signals that end the process */
    SIGNALS_ANY,
    SIGNALS_NONE, /* no signal ends a request to exportd */
};

/* Interrupts of an operation, see fuse_op_wait_interruptibly(). */
struct op_interrupt {
    void (*give_up)(struct fuse_op *op);
    struct list_node link; /* in loop->waiting */
    enum op_signals by;
    bool waits;
    bool signalled; /* by a signal that does not end the process */
};

/* Use of the kernel's pages by an operation that waits for a token, or holds it. */
enum page_use {
    PAGES_NONE, /* none, or a change of unknown pages */
    PAGES_FILL, /* a READ into the page cache */
    PAGES_WRITE,
    PAGES_WRITE_DIRECT, /* a WRITE with O_DIRECT: keeps no page locked */
    PAGES_WRITE_BACK,   /* a page that any process may have changed in a mapping */
};

/* The token that an operation waits for, or uses for a READ or a change. */
struct token_use {
    struct node *node; /* NULL: none */
    struct token_need need;
    struct list_node link; /* in node->token_waiters, exclusive, reading or past_eof */
    enum page_use pages;
    uint64_t from, to; /* bytes read or written */
};

/* Changes of tokens that an operation must know to record an answer. */
struct op_changes {
    unsigned long long lowered; /* mount->n_lowered when exportd was asked */
    uint64_t entry;             /* token_cache_changes() that entry.attr includes */
    /* token_cache_changes() after our own change of ino and ino2 */
    uint64_t ino, ino2;
};

/* A rename, while exportd is asked and until the kernel is answered. */
struct op_rename {
    struct rename_under_way dirs;
    unsigned flags;
    const char *name; /* the new one, in directory ino2 */
};

/*
 * The common part of all operations: the struct of each begins with it. The steps of the
 * operation's table run in order, and each may wait; a step that waits in the middle of
 * its work sets `next`. Thread: op->loop's; op->home frees it.
 */
struct fuse_op {
    struct env_mail mail;       /* posted when it changes loops */
    struct loop *home;          /* the loop that read the request; owns op and buf */
    struct loop *loop;          /* the loop that it runs on now */
    fuse_req_t req;             /* NULL once answered */
    uint64_t unique;            /* the kernel's number of the request */
    fuse_op_step *const *steps; /* the rest of its table; NULL is its end */
    fuse_op_step *next;         /* a step before those, for the next time; NULL: none */
    int rc;                     /* result of the last wait */
    struct op_interrupt interrupt;
    struct md_call call;  /* one request to exportd at a time, see fuse_op_ask() */
    unsigned n_changes;   /* requests so far that change something */
    unsigned n_sent_back; /* times that exportd answered "ask again" */
    struct env_timer pause;
    struct md_entry entry; /* from exportd's answer */
    struct op_changes changes;
    uint64_t xattrs_of; /* inode, see fuse_op_changes_xattrs(); 0: none */
    uint64_t locks_of;  /* inode, see fuse_op_changes_locks(); 0: none */
    uint64_t ino;       /* the inode, or the directory that gets a name */
    uint64_t ino2;      /* a second inode that it changes; 0: none */
    uint64_t parent;    /* directory that loses a name; 0: none */
    const char *name;   /* in one of these; NULL: none, also of a new file (O_TMPFILE) */
    struct op_rename *renaming; /* NULL: no rename */
    struct node *node;          /* pinned */
    struct node_wait node_wait;
    struct handle *handle;       /* the open file in use; NULL: none */
    const struct handle *locked; /* see fuse_op_under_lock() */
    struct token_use token;
    struct reqbuf *buf; /* held until fuse_op_finish() */
    void *memory;       /* free()d with the op */
    size_t n_copied;    /* bytes; an error after them is left to the next request */
};

/**
 * Starts an operation for the request being handled, on the loop of its session. bytes:
 * size of its struct, which is zeroed.
 */
void *fuse_op_begin(fuse_req_t req, size_t bytes);
/** Runs the steps, which end with NULL. Call it last: op may be gone when it returns. */
void fuse_op_start(struct fuse_op *op, fuse_op_step *const *steps);
/** Goes on after a wait, on op->loop: with op->next, or else the next step. */
void fuse_op_next(struct fuse_op *op);
/** Goes on after a wait that ends as a step does. */
void fuse_op_resume(struct fuse_op *op, enum step_end end);
/** A callback of the file layer with op as its argument: op->rc is the result. */
void fuse_op_file_done(void *op, int rc);
/** Makes these the next steps. Returns STEP_GO. */
enum step_end fuse_op_go(struct fuse_op *op, fuse_op_step *const *steps);
/** Sets the answer: rc is 0 or any -errno. Returns STEP_END. */
enum step_end fuse_op_end(struct fuse_op *op, int rc);
/** Returns the user, group, process and umask of a request that is not answered yet. */
static inline const struct fuse_ctx *fuse_op_caller(const struct fuse_op *op)
{
    return fuse_req_ctx(op->req);
}
/** Gives the memory of the request being handled to op, until fuse_op_finish(). */
void fuse_op_take_request(struct fuse_op *op);
/** Changes to the loop that owns ino; goes on at once if that is this loop. */
enum step_end fuse_op_goto(struct fuse_op *op, uint64_t ino);
/** A step: changes to the loop that owns op->ino. */
enum step_end fuse_op_goto_owner(struct fuse_op *op);
/**
 * Ends the operation, whose request must be answered: returns to its home loop and frees
 * all. The caller must not use op afterwards. Returns STEP_WAIT.
 */
enum step_end fuse_op_finish(struct fuse_op *op);
/**
 * Counts one operation less in n_ops; calls shell->drained() for the last one of the
 * mount.
 */
void fuse_op_is_over(struct mount *m);
/** Answers with an error (or success without data) and finishes. rc: 0 or any -errno. */
void fuse_op_reply_err(struct fuse_op *op, int rc);
/**
 * Records the tokens that came with op->entry. dir: the directory asked about; 0: none.
 * A file that may be open here gets no first token by this: fuse_op_take_data_grant(), or
 * the answer with the attributes, records it.
 */
void fuse_op_take_grant(struct fuse_op *op, uint64_t dir);
/** Likewise for one inode of an answer. Called with the token lock. */
void fuse_op_take_attr_grant(struct fuse_op *op, const struct md_attr *attr,
                             uint64_t grant);
/** Records the token that came with op->entry; the open file adopts the entry next. */
void fuse_op_take_data_grant(struct fuse_op *op);
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
 * A last step: answers with the attributes in entry, or own sizes and times if this loop
 * has the file.
 */
enum step_end fuse_op_reply_attr(struct fuse_op *op);
/** A last step: as fuse_op_reply_attr(), for an inode that this operation changed. */
enum step_end fuse_op_reply_changed_attr(struct fuse_op *op);
/** A last step: answers a LOOKUP of op->name in directory op->ino with entry. */
enum step_end fuse_op_reply_entry(struct fuse_op *op);
/**
 * Answers as fuse_op_reply_entry() for an inode that is not open. Called with the token
 * lock held; the caller finishes op.
 */
void fuse_op_answer_entry(struct fuse_op *op);
/**
 * Fills *e for `name` in dir; NULL: a file without a name. Called with the token lock,
 * which is held until the kernel is answered. may_tell: loop_may_tell(), read under that
 * lock.
 */
void fuse_op_fill_entry(struct fuse_op *op, uint64_t dir, const char *name, bool may_tell,
                        struct fuse_entry_param *e);
/**
 * Returns the seconds that the kernel may keep attributes, a name or its absence.
 * has_token: a token covers them. otherwise_s: the value when exportd gives no tokens.
 * Called with the token lock.
 */
double fuse_op_timeout(const struct fuse_op *op, bool has_token, double otherwise_s);
/** Returns the same for a name or its absence. */
double fuse_op_name_timeout(const struct fuse_op *op, bool has_token, double otherwise_s);
/** Returns true if a process before has read this request, and perhaps done it. */
bool fuse_op_is_resent(const struct fuse_op *op);
/** Returns true if exportd gives tokens and our session has certainly not ended. */
bool loop_may_tell(struct loop *loop);
/**
 * Sends a request to exportd with op->call. Then the operation goes on, here, with op->rc
 * an errno for users. If a signal ends the process that waits, op->rc is -EINTR, provided
 * that the request changes nothing or is not sent yet. Returns STEP_WAIT; call it last.
 */
enum step_end fuse_op_ask(struct fuse_op *op, uint16_t code, const ProtobufCMessage *msg);
/**
 * Records that exportd changed this inode for op, besides op->ino and op->ino2. Returns
 * the change number to keep its attributes with.
 */
uint64_t fuse_op_note_change(struct fuse_op *op, uint64_t ino);
/**
 * Keeps all extended attributes of an inode, which came with this grant. Called with the
 * token lock.
 */
void fuse_op_keep_xattrs(struct fuse_op *op, uint64_t ino, const Rozo__XattrSet *set,
                         uint64_t grant);
/**
 * Notes that the next request of op may change xattrs of the inode. Until its answer,
 * nothing is known of them.
 */
void fuse_op_changes_xattrs(struct fuse_op *op, uint64_t ino);
/**
 * Notes that the requests of op may change fcntl locks of the inode. Until it ends, only
 * exportd says what they are.
 */
void fuse_op_changes_locks(struct fuse_op *op, uint64_t ino);
/**
 * Returns true if this error is the answer to a repeated request that exportd had done
 * before its restart, and whose first answer it has not kept.
 */
bool fuse_op_was_done(const struct fuse_op *op);
/** As fuse_op_ask(), with a timeout of its own. */
enum step_end fuse_op_ask_within(struct fuse_op *op, uint32_t timeout_ms, uint16_t code,
                                 const ProtobufCMessage *msg);
/**
 * Lets a signal that ends the waiting process call give_up(op), once, until
 * fuse_op_next() or fuse_op_wait_over(). give_up either answers EINTR and finishes, or
 * lets the operation go on. Call it last: the signal may have come already.
 */
void fuse_op_wait_interruptibly(struct fuse_op *op, void (*give_up)(struct fuse_op *op));
void fuse_op_wait_over(struct fuse_op *op);
void fuse_op_init_signals(struct loop *loop);
/** Handles the kernel's request to interrupt an operation. Any loop's thread. */
void fuse_op_interrupt(struct loop *loop, uint64_t unique);
/** Waits until the node pinned in op->node is not closing. */
enum step_end fuse_op_wait_for_node(struct fuse_op *op);
/**
 * Copies a name of 1..255 bytes to to[] and returns it. NULL: it is too long; answered
 * ENAMETOOLONG and finished.
 */
const char *fuse_op_copy_name(struct fuse_op *op, char to[NAME_BYTES_MAX + 1],
                              const char *name);
ProtobufCBinaryData bytes_of(const char *text);

#endif
