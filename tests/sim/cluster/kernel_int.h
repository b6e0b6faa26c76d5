/*
 * kernel_int.h - what the files of the kernel's model share: kernel.c has operations and their locks, kernel_names.c names and
 * attributes, kernel_list.c listings, kernel_file.c open files and pages.
 */
#ifndef ROZO_SIM_KERNEL_INT_H
#define ROZO_SIM_KERNEL_INT_H

#include "common/base/list.h"
#include "tests/sim/cluster/kernel.h"

enum {
    KPAGE = 4096,
    KPAGES_MAX = 64, /* of a file: more is not written by anybody */
    KLOCKS_MAX = 4,
    KNAME_MAX = 64,
};

struct kpage {
    uint8_t *bytes; /* owned; NULL: never was there */
    bool is_here;
    bool locked;
    bool drop;     /* as soon as it is not locked any more */
    bool is_piece; /* a WRITE left one there: who wants the rest reads this page alone */
    bool
        ends; /* the file ended `end` bytes into it, says the mount, and Linux could not take that */
    unsigned end;
};

/* What a directory was found to have, by who opened it so that the kernel may keep it. */
struct klisting {
    struct sim_dirent *names; /* owned; in the order of the mount's answers */
    unsigned n;
    uint64_t end; /* where a reader is who has read all of them */
    bool is_whole;
    uint64_t epoch;
    uint64_t n_changes; /* of the directory, when it began */
    struct timespec mtime;
};

struct kinode {
    struct list_node link; /* in k->inodes */
    uint64_t ino;
    struct stat st;
    uint64_t size; /* i_size: the kernel's own idea */
    uint64_t version;
    uint64_t ended;    /* `version`, when a READ last made it shorter */
    uint64_t until_ns; /* st is believed; 0: not */
    bool invalid;      /* ... but not any more */
    bool unstable;     /* a write or truncate is about to change the size */
    uint64_t n_lookups;
    unsigned n_files, n_pins;
    struct kpage pages[KPAGES_MAX];
    struct klisting listing;
    uint64_t n_changes; /* of names in it that the kernel knows of */
    unsigned n_readers; /* i_rwsem */
    bool has_writer;
    struct list_node lock_waiters, page_waiters; /* operations */
};

struct kname {
    struct list_node link; /* in k->names */
    uint64_t parent;
    char name[KNAME_MAX];
    uint64_t ino; /* 0: there is none */
    uint64_t until_ns;
    uint64_t epoch; /* when the mount was asked */
};

struct kfile {
    struct list_node link; /* in k->files */
    uint64_t fh;
    struct kinode *inode; /* pinned */
    unsigned n_ahead;     /* READs that nobody waits for; a RELEASE comes after them */
    struct kop *release;
    bool is_direct, is_parallel;
    bool keeps_names; /* a directory: its listing may be kept, and be used */
};

struct klock {
    struct kinode *inode; /* pinned */
    bool alone;
};

/* What a process does in the kernel, from its call to its return; or an invalidation. */
struct kop {
    struct kernel *k;
    struct list_node link; /* in k->ops */
    struct request r;      /* its words are in name, name2 */
    char name[KNAME_MAX], name2[KNAME_MAX];
    struct fuse_req *req;         /* who asked; NULL: an invalidation, or nobody */
    struct kernel_notice *notice; /* of an invalidation */
    struct fuse_req below;        /* what the mount is asked */
    void (*step)(struct kop *op); /* what comes when it need not wait any more */
    struct env_timer timer;
    struct env_task task;
    struct list_node wait; /* in a lock's or page's waiters */
    struct klock locks[KLOCKS_MAX];
    unsigned n_locks, n_held;
    bool is_again; /* the mount has said ESTALE once */
    bool is_ahead; /* whoever answers takes the answer in, nobody is woken for that */
    bool alone;    /* the read of more pages has failed */
    struct kinode *inode;           /* pinned; NULL: none */
    uint64_t version, evict, epoch; /* when the mount was asked */
    uint64_t pos, end;              /* in the file */
    uint64_t size_told;             /* of a read: see read_sized() */
    unsigned page, n_pages, page_end;
    uint8_t *memory; /* owned */
};

struct kernel {
    struct kernel_config config;
    struct kernel_counts counts;
    struct list_node inodes, names, files, ops;
    uint64_t version; /* of attributes */
    uint64_t evict;   /* inodes forgotten */
    uint64_t epoch;   /* of names and listings */
};

/* ---- kernel.c ---- */

/** Ask the mount, with op->r or another; step when it has answered. Remembers how new the answer can be. */
void kop_ask(struct kop *op, const struct request *r, void (*step)(struct kop *op));
/** It is over: locks go, who asked is told rc and what below was told. */
void kop_end(struct kop *op, int rc);
void kop_lock(struct kop *op, struct kinode *inode, bool alone);
/** Take all that kop_lock() named and that it has not, in that order; then step. */
void kop_locked(struct kop *op, void (*step)(struct kop *op));
void kop_unlock(struct kop *op);
/** step, a moment later. */
void kop_later(struct kop *op, void (*step)(struct kop *op));
/** step, when a process has been woken. */
void kop_wake(struct kop *op, void (*step)(struct kop *op));
/** Another one for what op does, without who asked and without what it holds. */
struct kop *kop_spawn(struct kop *op);
/** A request that nobody waits for. */
void kernel_tell(struct kernel *k, const struct request *r);

struct kinode *kinode_find(struct kernel *k, uint64_t ino);
/** Made when needed. */
struct kinode *kinode_get(struct kernel *k, uint64_t ino);
void kop_pin(struct kop *op, uint64_t ino);

/* ---- kernel_names.c ---- */

void knames_ask(struct kop *op);
bool kattr_is_believed(const struct kinode *i);
/** An answer to a question of op, as it came below. Or another is newer. */
void kattr_learn(struct kop *op, struct kinode *i, const struct stat *st,
                 double timeout_s);
/** Whatever came meanwhile. */
void kattr_set(struct kernel *k, struct kinode *i, const struct stat *st,
               double timeout_s);
/** Its attributes are not believed any more, nor is what was asked before now. */
void kattr_drop(struct kernel *k, struct kinode *i);
void kname_drop(struct kernel *k, uint64_t parent, const char *name);
/** Somebody's names are believed: NULL none. */
struct kname *kname_find(struct kernel *k, uint64_t parent, const char *name);
void kdir_changed(struct kernel *k, uint64_t ino);
/** A listing of op->r.ino says what is behind a name. */
void kname_learn(struct kop *op, const char *name, const struct fuse_entry_param *e);

/* ---- kernel_list.c ---- */

void klist_ask(struct kop *op);
void klisting_drop(struct kernel *k, struct kinode *i);
void klisting_free(struct kinode *i);

/* ---- kernel_file.c ---- */

void kfile_ask(struct kop *op);
/** The kernel's own idea of the size; another one: its pages go. */
void kinode_set_size(struct kernel *k, struct kinode *i, uint64_t size);
void kpages_drop(struct kernel *k, struct kinode *i, unsigned from, unsigned end);
void kpages_free(struct kinode *i);
/** op->page up to op->page_end, each when it is not locked; then kop_end(). */
void kpages_invalidate(struct kop *op);
/** op->inode is open under the handle that the mount gave. */
void kfile_add(struct kop *op);
/** ... and its pages may go. */
void kfile_open(struct kop *op);
/** NULL: none. */
struct kfile *kfile_find(struct kernel *k, uint64_t fh);

#endif
