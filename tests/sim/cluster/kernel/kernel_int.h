/*
 * kernel_int.h - internal interface of the kernel model.
 *
 * kernel.c has operations and their locks, kernel_names.c names and attributes,
 * kernel_list.c listings, kernel_file.c open files and pages.
 */
#ifndef ROZO_TESTS_SIM_CLUSTER_KERNEL_KERNEL_INT_H
#define ROZO_TESTS_SIM_CLUSTER_KERNEL_KERNEL_INT_H

#include "common/base/list.h"
#include "tests/sim/cluster/kernel/kernel.h"

enum {
    KPAGE = 4096,
    KPAGES_MAX = 64, /* pages of a file; no test writes more */
    KLOCKS_MAX = 4,
    KNAME_MAX = 64,
};

struct kpage {
    uint8_t *bytes; /* owned; NULL: never cached */
    bool is_here;
    bool locked;
    bool drop;     /* must be dropped when it is unlocked */
    bool is_piece; /* has a piece from a WRITE; the rest is read with this page alone */
    bool ends;     /* an answer that Linux ignores ended the file in this page ... */
    unsigned end;  /* ... after this many bytes */
};

/* Names of a directory, cached by a reader that may keep them. */
struct klisting {
    struct sim_dirent *names; /* owned; in the order of the mount's answers */
    unsigned n;
    uint64_t end; /* offset after the last name read */
    bool is_whole;
    uint64_t epoch;
    uint64_t n_changes; /* changes of the directory, counted when the listing began */
    struct timespec mtime;
};

struct kinode {
    struct list_node link; /* in k->inodes */
    uint64_t ino;
    struct stat st;
    uint64_t size; /* i_size: the size as the kernel knows it */
    uint64_t version;
    uint64_t ended;    /* value of `version` when a READ last made the file shorter */
    uint64_t until_ns; /* end of the validity of st; 0: not valid */
    bool invalid;      /* st was invalidated */
    bool unstable;     /* a write or truncate in progress may change the size */
    uint64_t n_lookups;
    unsigned n_files, n_pins;
    struct kpage pages[KPAGES_MAX];
    struct klisting listing;
    uint64_t n_changes; /* changes of names in it that the kernel knows */
    unsigned n_readers; /* i_rwsem: shared holders */
    bool has_writer;
    struct list_node lock_waiters, page_waiters; /* waiting operations */
};

struct kname {
    struct list_node link; /* in k->names */
    uint64_t parent;
    char name[KNAME_MAX];
    uint64_t ino; /* 0: the name does not exist */
    uint64_t until_ns;
    uint64_t epoch; /* value of k->epoch when the mount was asked */
};

struct kfile {
    struct list_node link; /* in k->files */
    uint64_t fh;
    struct kinode *inode; /* pinned */
    unsigned n_ahead;     /* readahead READs in progress; a RELEASE waits for them */
    struct kop *release;
    bool is_direct, is_parallel;
    bool keeps_names; /* a directory: its listing may be cached and used */
};

struct klock {
    struct kinode *inode; /* pinned */
    bool alone;
};

/* An operation of a process in the kernel, from
 * its call to its return; or an invalidation. */
struct kop {
    struct kernel *k;
    struct list_node link; /* in k->ops */
    struct request r;      /* strings lie in name, name2 */
    char name[KNAME_MAX], name2[KNAME_MAX];
    struct fuse_req *req;         /* caller; NULL: an invalidation,
                                   * or a request without a caller */
    struct kernel_notice *notice; /* an invalidation's caller */
    struct fuse_req below;        /* request to the mount */
    void (*step)(struct kop *op); /* next step, after a wait */
    struct env_timer timer;
    struct env_task task;
    struct list_node wait; /* in the waiters of a lock or page */
    struct klock locks[KLOCKS_MAX];
    unsigned n_locks, n_held;
    bool is_again;        /* ESTALE was answered once */
    bool is_ahead;        /* takes effect when it is answered: no process must wake up */
    bool alone;           /* readahead failed; read only the needed page */
    struct kinode *inode; /* pinned; NULL: none */
    uint64_t version, evict, epoch; /* values of the kernel when the mount was asked */
    uint64_t pos, end;              /* in the file, bytes */
    uint64_t size_answered;         /* size for a read, see read_sized() */
    unsigned page, n_pages, page_end;
    uint8_t *memory; /* owned */
};

struct kernel {
    struct kernel_config config;
    struct kernel_counts counts;
    struct list_node inodes, names, files, ops;
    uint64_t version; /* counter of attribute changes */
    uint64_t evict;   /* counter of forgotten inodes */
    uint64_t epoch;   /* epoch of names and listings */
};

/* ---- kernel.c ---- */

/** Asks the mount with op->r or another request; calls
 * step after the answer. Notes how new the answer can be. */
void kop_ask(struct kop *op, const struct request *r, void (*step)(struct kop *op));
/** Ends op: releases its locks; its caller gets rc and the answer. */
void kop_end(struct kop *op, int rc);
/** Adds a lock to those that kop_locked() takes; alone: exclusive. */
void kop_lock(struct kop *op, struct kinode *inode, bool alone);
/** Takes the locks named by kop_lock() that it does
 * not hold yet, in that order; then calls step. */
void kop_locked(struct kop *op, void (*step)(struct kop *op));
void kop_unlock(struct kop *op);
/** Calls step a moment later. */
void kop_later(struct kop *op, void (*step)(struct kop *op));
/** Calls step when the process has woken up. */
void kop_wake(struct kop *op, void (*step)(struct kop *op));
/** Makes a copy of op for a parallel request, without its caller and its locks. */
struct kop *kop_spawn(struct kop *op);
/** Sends a request without a caller. */
void kernel_tell(struct kernel *k, const struct request *r);

struct kinode *kinode_find(struct kernel *k, uint64_t ino);
/** Finds or makes the inode. */
struct kinode *kinode_get(struct kernel *k, uint64_t ino);
/** Sets op->inode and pins it until the end of op. */
void kop_pin(struct kop *op, uint64_t ino);

/* ---- kernel_names.c ---- */

void knames_ask(struct kop *op);
bool kattr_is_believed(const struct kinode *i);
/** Caches attributes from an answer to op, unless newer ones are known. */
void kattr_learn(struct kop *op, struct kinode *i, const struct stat *st,
                 double timeout_s);
/** Caches attributes unconditionally. */
void kattr_set(struct kernel *k, struct kinode *i, const struct stat *st,
               double timeout_s);
/** Invalidates the attributes, also those in answers to earlier requests. */
void kattr_drop(struct kernel *k, struct kinode *i);
void kname_drop(struct kernel *k, uint64_t parent, const char *name);
/** Finds a cached name. Returns NULL if there is none. */
struct kname *kname_find(struct kernel *k, uint64_t parent, const char *name);
void kdir_changed(struct kernel *k, uint64_t ino);
/** Caches a name and its inode from a listing of op->r.ino. */
void kname_learn(struct kop *op, const char *name, const struct fuse_entry_param *e);

/* ---- kernel_list.c ---- */

void klist_ask(struct kop *op);
void klisting_drop(struct kernel *k, struct kinode *i);
void klisting_free(struct kinode *i);

/* ---- kernel_file.c ---- */

void kfile_ask(struct kop *op);
/** Sets the kernel's size; if it changes, drops the pages. */
void kinode_set_size(struct kernel *k, struct kinode *i, uint64_t size);
void kpages_drop(struct kernel *k, struct kinode *i, unsigned from, unsigned end);
void kpages_free(struct kinode *i);
/** Drops the pages from op->page to op->page_end,
 * each when it is unlocked; then ends op. */
void kpages_invalidate(struct kop *op);
/** Adds an open file of op->inode with the handle that the mount gave. */
void kfile_add(struct kop *op);
/** Adds an open file, and drops the inode's pages unless the mount keeps them. */
void kfile_open(struct kop *op);
/** Returns NULL if there is none. */
struct kfile *kfile_find(struct kernel *k, uint64_t fh);

#endif
