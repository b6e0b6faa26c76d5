/*
 * namespace.h - the name space of one export: inodes, names, links, attributes, xattrs.
 *
 * Each call is one operation: it checks everything, then puts its changes into the
 * store's pending batch, all or nothing. Returns 0 or -errno; results are untouched on
 * failure. Nothing may be answered before the store has committed. The client's kernel
 * has checked permissions; only the rules of POSIX for the tree itself are checked here.
 *
 * -ESTALE: there is no such inode number; -ENOENT: there is no such name; -EIO: the store
 * has failed, or a record in it is corrupt.
 */
#ifndef ROZO_EXPORTD_NAMESPACE_NAMESPACE_H
#define ROZO_EXPORTD_NAMESPACE_NAMESPACE_H

#include "common/base/err.h"
#include "common/wire/inode_times.h"
#include "exportd/namespace/inode.h"
#include "exportd/store/store.h"

enum {
    NAMESPACE_ROOT_INO = 1,
    NAMESPACE_LINKS_MAX = 65000,
    NAMESPACE_TARGET_MAX = 4095,       /* bytes, target of a symlink */
    NAMESPACE_XATTR_VALUE_MAX = 65536, /* bytes, one value */
    /* bytes, all names of an inode, each with its zero byte */
    NAMESPACE_XATTR_NAMES_MAX = 65536,
    NAMESPACE_COOKIE_FIRST = 16, /* smaller ones belong to clients, for "." and ".." */
    NAMESPACE_PARENT_STEPS_MAX = 1 << 20,
    NAMESPACE_FIRSTS = 512,
    NAMESPACE_INLINE_MAX = 65536, /* bytes of a file's data in the store */
};

/* Functions that a name space calls in the rest of exportd. */
struct namespace_hooks {
    /**
     * Chooses the storages of a new file: fills its distribution. Returns 0, -ENOSPC or
     * -EIO.
     */
    int (*place)(void *arg, struct inode *in);
    /**
     * Returns true if this inode, which loses its last name, stays as an orphan until
     * namespace_reap().
     */
    bool (*keeps)(void *arg, uint64_t ino);
    /** Called after a key of kind KEY_DELETION was put for this inode. */
    void (*deleted)(void *arg, const struct inode *in);
    void *arg;
};

/*
 * First cookie of a directory: no entry lies before it. Cookies only grow, so this stays
 * true, and a listing from the start skips the keys of deleted names.
 */
struct namespace_first {
    uint64_t dir; /* 0: unknown */
    uint64_t cookie;
};

/* Inode numbers from .. to - 1, which were skipped. */
struct namespace_gap {
    uint64_t from, to;
};

/* Seed of the generations of inodes from `from` up to the next seed. */
struct namespace_seed {
    uint64_t from;
    uint64_t secret[2];
};

/* Tree of one export, owned by its export. The members belong to namespace.c. */
struct namespace
{
    struct env *env;     /* borrowed */
    struct store *store; /* borrowed */
    struct namespace_hooks hooks;
    uint32_t export_id;
    uint32_t start;     /* number of this start of exportd; stable before any request */
    uint32_t last_loss; /* number of the last start after a loss of power; 0: none */
    uint32_t
        inline_max; /* bytes; 0: data of new files go to storages. Set by the export */
    uint32_t fold_rules; /* FOLD_RULES; 0: no index of folded names. Set by the export */
    uint64_t next_ino;   /* next number to give out */
    uint64_t n_inodes;   /* number of inodes in use */
    struct namespace_gap *gaps; /* owned; ascending; room for one more after the start */
    size_t n_gaps;
    struct namespace_seed seed;   /* seed for new inodes */
    struct namespace_seed *seeds; /* seeds of earlier starts, owned; ascending */
    size_t n_seeds;
    /* cache, by inode number; a newer one replaces an older one */
    struct namespace_first firsts[NAMESPACE_FIRSTS];
};

/* Bytes of a name, not checked yet. */
struct namespace_name {
    const uint8_t *bytes;
    size_t len;
};

/** Loads the counters of an existing export. */
int namespace_open(struct namespace *ns, struct env *env, struct store *store,
                   uint32_t export_id, const struct namespace_hooks *hooks);
/**
 * Loads skipped numbers and seeds, between namespace_open() and namespace_begin().
 * Returns 0, -EIO, -ENOMEM, or -EINVAL if a record is corrupt.
 */
int namespace_gaps_load(struct namespace *ns);
/**
 * Begins this start of exportd, once, after namespace_gaps_load(). The changes must be
 * stable before any answer.
 */
void namespace_begin(struct namespace *ns, uint32_t start, uint32_t last_loss);
/**
 * Makes a new tree, in place of opening and beginning one: puts the root directory and
 * the counters.
 */
void namespace_make(struct namespace *ns, struct env *env, struct store *store,
                    uint32_t export_id, const struct namespace_hooks *hooks);

/** Frees the memory. A zeroed struct is fine. */
void namespace_close(struct namespace *ns);

/**
 * Returns true if an inode had this number, as far as is known: false for numbers whose
 * inodes were lost with the power.
 */
bool namespace_was_given_out(const struct namespace *ns, uint64_t ino);
/**
 * Returns true if this number was certainly given out with this generation. False after a
 * restore from a backup if another inode had the number before, and for numbers given out
 * by a build without seeds.
 */
bool namespace_gave_out(const struct namespace *ns, uint64_t ino, uint32_t generation);

/* ---- namespace.c: inodes and names ---- */

int namespace_getattr(struct namespace *ns, uint64_t ino, struct inode *out);
/**
 * Looks up a name. "." is the inode itself, of any type; ".." is the parent of a
 * directory.
 */
int namespace_lookup(struct namespace *ns, uint64_t parent, struct namespace_name name,
                     struct inode *out);

struct namespace_create {
    uint64_t parent;
    struct namespace_name name;
    uint32_t mode, umask, uid, gid, rdev;
    struct namespace_name target; /* symlinks: the target */
};
/**
 * Makes an inode with a name. -EEXIST fills *out, too, with the inode that has the name.
 */
int namespace_create(struct namespace *ns, const struct namespace_create *req,
                     struct inode *out);
/**
 * Makes a regular file without a name, as for O_TMPFILE: an orphan that namespace_link()
 * may name.
 */
int namespace_create_nameless(struct namespace *ns, const struct namespace_create *req,
                              struct inode *out);
/** Removes a name. *out: the inode without that name; nlink 0: removed, or an orphan. */
int namespace_unlink(struct namespace *ns, uint64_t parent, struct namespace_name name,
                     struct inode *out);
int namespace_rmdir(struct namespace *ns, uint64_t parent, struct namespace_name name,
                    struct inode *out);
/** Adds a name. -ENOENT: the inode has lost its last name. */
int namespace_link(struct namespace *ns, uint64_t ino, uint64_t parent,
                   struct namespace_name name, struct inode *out);
int namespace_readlink(struct namespace *ns, uint64_t ino, const uint8_t **target,
                       size_t *len);

/**
 * Removes an orphan that is not open any more; does nothing to an inode with names.
 * Returns true if the inode does not exist any more.
 */
bool namespace_reap(struct namespace *ns, uint64_t ino);

/* Entry of a directory; borrowed while the callback of namespace_readdir() runs. */
struct namespace_entry {
    struct namespace_name name;
    uint64_t ino;
    uint32_t type; /* mode & S_IFMT */
    uint64_t cookie;
};
/**
 * Receives an entry.
 *
 * @return false to stop before this entry.
 */
typedef bool namespace_entry_cb(void *arg, const struct namespace_entry *entry);
/**
 * Lists the entries after a cookie, in order of cookies. *end: the last entry was listed.
 */
int namespace_readdir(struct namespace *ns, uint64_t ino, uint64_t cookie,
                      namespace_entry_cb *fn, void *arg, struct inode *dir, bool *end);

/* ---- namespace_fold.c: names in another case or normalisation ---- */

/**
 * Finds the name in the directory that is equal to this one, or else the oldest one that
 * folds to the same (fold.h). *found is borrowed from the store, or is `name` itself.
 * -EOPNOTSUPP: the export has no index of folded names; -ENOENT: there is no such name.
 */
int namespace_real_name(struct namespace *ns, uint64_t dir, struct namespace_name name,
                        struct namespace_name *found);

/* ---- namespace_scan.c: bounded scans of a whole export ---- */

/**
 * Receives a file.
 *
 * @return false to stop before this file.
 */
typedef bool namespace_file_cb(void *arg, const struct inode *in);
/**
 * Lists regular files with numbers above *after, ascending. *after: last inode passed, of
 * any type.
 */
int namespace_files(struct namespace *ns, uint64_t *after, unsigned max_keys,
                    namespace_file_cb *fn, void *arg, bool *end);

/* Name in a directory; borrowed while the callback runs. */
struct namespace_named {
    uint64_t dir;
    struct namespace_name name;
    uint64_t ino;
    uint32_t type; /* mode & S_IFMT */
};
/**
 * Receives a name.
 *
 * @return false to end the scan.
 */
typedef bool namespace_named_cb(void *arg, const struct namespace_named *named);
/**
 * Lists the names of a directory (dir 0: of all directories). *cursor: where to continue;
 * length 0: from the start.
 */
int namespace_names(struct namespace *ns, uint64_t dir, struct key *cursor,
                    unsigned max_keys, namespace_named_cb *fn, void *arg, bool *end);

/* ---- namespace_check.c: names against the keys and inodes that belong to them ---- */

/* As on the wire: AdNamesResp.Kind, which says more. */
enum namespace_fault_kind {
    NAMESPACE_NAME_CORRUPT = 1,
    NAMESPACE_NAME_OF_NOTHING,
    NAMESPACE_NAME_OF_OTHER,
    NAMESPACE_NAME_OUTSIDE,
    NAMESPACE_DIR_ELSEWHERE,
    NAMESPACE_NAME_UNLISTED,
    NAMESPACE_LISTED_OTHER,
    NAMESPACE_LISTED_NAMELESS,
    NAMESPACE_NAME_UNFOLDED,
    NAMESPACE_FOLDED_NAMELESS,
    NAMESPACE_FOLDED_OTHER,
};

/* Fault of a name; borrowed while the callback runs. */
struct namespace_fault {
    enum namespace_fault_kind kind;
    uint64_t dir;
    struct namespace_name name; /* length 0: unknown */
    uint64_t ino;               /* 0: unknown */
    bool repaired;
};
/** Receives a fault. */
typedef void namespace_fault_cb(void *arg, const struct namespace_fault *fault);

enum {
    NAMESPACE_CHECK_KEYS_MAX = 512, /* keys a call */
    NAMESPACE_FAULTS_OF_KEY_MAX = 4,
};

/**
 * Checks the next keys of the names: first the names, then the order of readdir, then
 * the index of folded names. *cursor: the last key that was checked; length 0: from the
 * start, and when all was checked. Everything that belongs to a key is looked at in this
 * call, so concurrent changes are no faults.
 *
 * @param repair  puts keys that others prove to be missing, and deletes those of the
 * index that no name has.
 * @param n_names in and out: counts the names checked.
 * @return 0, -EINVAL (no cursor of a check), -ENOMEM, or an error of the store.
 */
int namespace_check(struct namespace *ns, struct key *cursor, unsigned max_keys,
                    bool repair, namespace_fault_cb *fn, void *arg, uint64_t *n_names);

/* ---- namespace_rename.c ---- */

struct namespace_renamed {
    struct inode removed; /* replaced inode; ino 0: none */
    /* inode with the new name; with EXCHANGE also the other one. 0: none */
    uint64_t moved[2];
};

/* Owner of a new inode. */
struct namespace_owner {
    uint32_t uid, gid;
};

struct namespace_rename {
    uint64_t parent;
    struct namespace_name name;
    uint64_t new_parent;
    struct namespace_name new_name;
    uint32_t flags; /* flags of renameat2(2): RENAME_NOREPLACE, _EXCHANGE, _WHITEOUT */
    struct namespace_owner owner; /* owner of the whiteout */
};
int namespace_rename(struct namespace *ns, const struct namespace_rename *req,
                     struct namespace_renamed *out);

/* ---- namespace_attr.c: attributes and file data ---- */

struct namespace_setattr {
    uint64_t ino;
    uint32_t valid; /* Rozo__SetattrBits */
    uint32_t mode, uid, gid;
    uint32_t file_flags; /* FileFlags */
    uint64_t size;
    wide_ns atime_ns, mtime_ns;
    bool alone; /* for a new size: no other session may be writing the file */
};
int namespace_setattr(struct namespace *ns, const struct namespace_setattr *req,
                      struct inode *out);
/** Returns the chattr flags as they go into Attr. */
uint32_t namespace_file_flags(const struct inode *in);
/**
 * Gives out the next epoch of a regular file. alone: no session may be writing it yet,
 * not even the caller's.
 */
int namespace_next_epoch(struct namespace *ns, uint64_t ino, bool alone,
                         struct inode *out);
/** Notes that a writer of the file is gone, or could not report all it wrote. */
void namespace_unreported(struct namespace *ns, uint64_t ino);
/**
 * Clears INODE_MAY_HAVE_DATA of a file that no session has open and that was never
 * written: storages need not be asked to remove it.
 */
void namespace_forget_may_have_data(struct namespace *ns, uint64_t ino);

struct namespace_wrote {
    uint64_t ino;
    bool has_data;
    uint64_t size;              /* bytes, least size; 0: no change */
    int64_t mtime_ns, atime_ns; /* 0: no change */
    uint32_t epoch;             /* epoch of the last write; 0: not reported */
    /* other sessions write, too, and may have reported a later time */
    bool beside_others;
    bool blocks_counted; /* with this report all blocks of an INODE_UNCOUNTED are known */
    bool reports_blocks; /* true: the two range lists below count (range_map_pack()) */
    const uint8_t *allocated, *freed;
    size_t allocated_len, freed_len;
    uint64_t inline_version; /* not 0: inline_data is all data of the file */
    const uint8_t *inline_data;
    size_t inline_len;
};
/**
 * Takes a client's report of writes. *cut: a truncate newer than the epoch removed the
 * bytes, so the size stays. -ROZO_ESTALE_VERSION: the inline data are not newer than
 * the known ones.
 */
int namespace_wrote(struct namespace *ns, const struct namespace_wrote *req,
                    struct inode *out, bool *cut);
/**
 * Moves the access time of an inode that was read, if it should (inode_times.h). Does not
 * change the change counter.
 */
void namespace_accessed(struct namespace *ns, uint64_t ino, const struct noted_read *read,
                        bool strict);
int namespace_truncated(struct namespace *ns, uint64_t ino, uint64_t version,
                        struct inode *out);

/* ---- namespace_blocks.c: allocated blocks ---- */

enum {
    /* for one file; beyond, the narrowest holes count as data */
    NAMESPACE_BLOCK_RANGES_MAX = 4096,
    NAMESPACE_BLOCK_RANGES_TOLD_MAX = 1024, /* in one message */
};

/**
 * Returns the allocated blocks in the form of FileData. room: SPAN_PACKED_MAX bytes, in
 * which *bytes may lie; else *bytes is borrowed from the store.
 */
void namespace_blocks_get(struct namespace *ns, const struct inode *in, uint8_t *room,
                          const uint8_t **bytes, size_t *len);

/* ---- namespace_inline.c: data of small files ---- */

/** Returns true if the data may be stored here, or stay here. */
bool namespace_may_be_inline(const struct namespace *ns, const struct inode *in);
/**
 * Returns the data of a file with INODE_INLINE; *bytes is borrowed from the store. -EIO:
 * corrupt.
 */
int namespace_inline_get(struct namespace *ns, const struct inode *in,
                         const uint8_t **bytes, size_t *len, uint64_t *version);

/* ---- namespace_redist.c: a file's distribution changes ---- */

enum redist_phase {
    /* new homes are being prepared; old storages know nothing of it */
    REDIST_PREPARED = 1,
    REDIST_BEGUN = 2, /* old storages may have been asked: can only go forward */
    REDIST_DONE = 3,  /* the inode has it; some storages may lack it */
    /* abandoned while PREPARED: the generation must not be used again */
    REDIST_GIVEN_UP = 4,
};

/* Record of a file whose distribution changes (KEY_REDIST). */
struct namespace_redist {
    enum redist_phase phase;
    uint32_t generation; /* generation of the new distribution */
    uint32_t n_storages;
    uint32_t storages[DIST_MAX];
};

/** Returns the record of an inode. -ENOENT: there is none; -EIO: corrupt. */
int namespace_redist_get(struct namespace *ns, uint64_t ino,
                         struct namespace_redist *out);
/**
 * Puts the record, and notes in the inode that there is one. With REDIST_DONE also puts
 * the new distribution into the inode.
 */
int namespace_redist_put(struct namespace *ns, uint64_t ino,
                         const struct namespace_redist *r);
void namespace_redist_delete(struct namespace *ns, uint64_t ino);
/**
 * Receives a record.
 *
 * @return false to stop before this record.
 */
typedef bool namespace_redist_cb(void *arg, uint64_t ino,
                                 const struct namespace_redist *r);
/**
 * Lists records of inodes above *after, ascending, at most max. *end: the last one was
 * listed.
 */
int namespace_redists(struct namespace *ns, uint64_t *after, unsigned max,
                      namespace_redist_cb *fn, void *arg, bool *end);
/**
 * Takes an epoch that no client gets, so that all epochs given out before can be fenced.
 */
int namespace_fence_epoch(struct namespace *ns, uint64_t ino, struct inode *out);

/* ---- namespace_xattr.c ---- */

int namespace_getxattr(struct namespace *ns, uint64_t ino, struct namespace_name name,
                       const uint8_t **val, size_t *len);
/** Sets an xattr. flags of setxattr(2): XATTR_CREATE, XATTR_REPLACE. */
int namespace_setxattr(struct namespace *ns, uint64_t ino, struct namespace_name name,
                       const uint8_t *val, size_t len, uint32_t flags, bool kill_sgid);
/** Returns all names, each with its zero byte. */
int namespace_listxattr(struct namespace *ns, uint64_t ino, const uint8_t **names,
                        size_t *len);
int namespace_removexattr(struct namespace *ns, uint64_t ino, struct namespace_name name);

/* Classes of xattrs, as on the wire: XattrBits. */
enum namespace_xattr_classes {
    NAMESPACE_XATTRS_TOLD = 1,
    NAMESPACE_XATTRS_SECURITY = 2,
    NAMESPACE_XATTRS_ACL_ACCESS = 4,
    NAMESPACE_XATTRS_ACL_DEFAULT = 8,
    NAMESPACE_XATTRS_USER = 16,
    NAMESPACE_XATTRS_TRUSTED = 32,
};
/** Returns the classes of which the inode has an xattr; 0: unknown. */
uint32_t namespace_xattr_classes(struct namespace *ns, const struct inode *in);

enum {
    NAMESPACE_XATTR_SET_MAX = 16,     /* xattrs of a set */
    NAMESPACE_XATTR_SET_BYTES = 1024, /* a value, and all names together, at most */
};

/* All xattrs of an inode. Names and values are in memory of the caller. */
struct namespace_xattr_set {
    unsigned n;
    struct namespace_name names[NAMESPACE_XATTR_SET_MAX];
    struct namespace_name values[NAMESPACE_XATTR_SET_MAX];
    size_t used; /* bytes of the room that they take */
};
/**
 * Copies all xattrs of an inode into `room`. Returns 0; -E2BIG if there are too many, too
 * large ones, or too little room; or another -errno.
 */
int namespace_get_xattr_set(struct namespace *ns, const struct inode *in, uint8_t *room,
                            size_t room_len, struct namespace_xattr_set *out);

#endif
