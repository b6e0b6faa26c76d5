/*
 * namespace.h - the name space of one export: inodes, names, links, attributes, xattrs.
 *
 * Every call is one operation: it checks everything, then puts its changes into the store's
 * pending batch, all or nothing. 0 or -errno; results are untouched on failure. Nothing may be
 * told to others before the store has committed. Who may do what has been decided by the
 * client's kernel; here only what POSIX says of the tree itself.
 *
 * -ESTALE: the inode number is not there; -ENOENT: the name is not; -EIO: the store, or what lies
 * in it, cannot be believed.
 */
#ifndef ROZO_EXPORTD_NAMESPACE_NAMESPACE_H
#define ROZO_EXPORTD_NAMESPACE_NAMESPACE_H

#include "exportd/namespace/inode.h"
#include "exportd/store/store.h"

enum {
    NAMESPACE_ROOT_INO = 1,
    NAMESPACE_LINKS_MAX = 65000,
    NAMESPACE_TARGET_MAX = 4095,       /* bytes of a symlink's target */
    NAMESPACE_XATTR_VALUE_MAX = 65536, /* bytes of one value */
    NAMESPACE_XATTR_NAMES_MAX =
        65536, /* bytes of all names of an inode, with their zero bytes */
    NAMESPACE_COOKIE_FIRST = 16, /* smaller ones are the client's, for "." and ".." */
    NAMESPACE_PARENT_STEPS_MAX = 1 << 20,
    NAMESPACE_FIRSTS = 512,
    NAMESPACE_INLINE_MAX = 65536, /* bytes of a file's data kept here */
};

/* What a name space needs from the rest of exportd. */
struct namespace_hooks {
    /** Choose storages for a new file: fills the distribution. 0, -ENOSPC, -EIO. */
    int (*place)(void *arg, struct inode *in);
    /** This inode loses its last name: does it stay, as an orphan, until namespace_reap()? */
    bool (*keeps)(void *arg, uint64_t ino);
    /** A key of kind KEY_DELETION was put for this inode. */
    void (*deleted)(void *arg, const struct inode *in);
    void *arg;
};

/* A directory has no entries before this cookie. Cookies only grow, so that stays true; and a
 * listing from the start need not walk over a million names that are gone. */
struct namespace_first {
    uint64_t dir; /* 0: nothing is known */
    uint64_t cookie;
};

/* Inode numbers from..to-1 that were skipped. */
struct namespace_gap {
    uint64_t from, to;
};

/* The generations of inodes from this number on, up to the next seed's, follow from it. */
struct namespace_seed {
    uint64_t from;
    uint64_t secret[2];
};

/* One export's tree. Owned by its export; members are namespace.c's. */
struct namespace
{
    struct env *env;     /* borrowed */
    struct store *store; /* borrowed */
    struct namespace_hooks hooks;
    uint32_t export_id;
    uint32_t start;     /* number of this start of exportd; durable before any request */
    uint32_t last_loss; /* number of the last start after a loss of power; 0: none */
    uint32_t
        inline_max;    /* bytes; 0: data of new files go to storages. Set by its export */
    uint64_t next_ino; /* never given out before */
    uint64_t n_inodes; /* in use */
    struct namespace_gap *gaps; /* owned; ascending; room for one more at start */
    size_t n_gaps;
    struct namespace_seed seed;   /* of what is created now */
    struct namespace_seed *seeds; /* owned; ascending; of earlier starts */
    size_t n_seeds;
    struct namespace_first
        firsts[NAMESPACE_FIRSTS]; /* by inode number; a newer one takes the place */
};

/* Bytes of a name, not checked yet. */
struct namespace_name {
    const uint8_t *bytes;
    size_t len;
};

/** Load the counters of an export that exists. */
int namespace_open(struct namespace *ns, struct env *env, struct store *store,
                   uint32_t export_id, const struct namespace_hooks *hooks);
/** Between namespace_open() and namespace_begin(): what was skipped, and seeds. 0, -EINVAL when it makes no sense, -EIO, -ENOMEM. */
int namespace_gaps_load(struct namespace *ns);
/** After namespace_open() and namespace_gaps_load(), once for this start of exportd, whose number is stable before it answers anything. */
void namespace_begin(struct namespace *ns, uint32_t start, uint32_t last_loss);
/** Instead of both for a new one: its root directory and counters are put. */
void namespace_make(struct namespace *ns, struct env *env, struct store *store,
                    uint32_t export_id, const struct namespace_hooks *hooks);

/** The end. A zeroed one is fine. */
void namespace_close(struct namespace *ns);

/** Was there ever an inode of this number, as far as we know? What a power cut took is not known. */
bool namespace_was_given_out(const struct namespace *ns, uint64_t ino);
/**
 * Did this number come with this generation, for certain? Not so after a restore from a backup, when another inode had
 * the number before, nor of numbers that were given out by a build that knew no seeds.
 */
bool namespace_gave_out(const struct namespace *ns, uint64_t ino, uint32_t generation);

/* ---- namespace.c: inodes and names ---- */

int namespace_getattr(struct namespace *ns, uint64_t ino, struct inode *out);
/** "." is the inode itself, whatever it is; ".." the parent of a directory. */
int namespace_lookup(struct namespace *ns, uint64_t parent, struct namespace_name name,
                     struct inode *out);

struct namespace_create {
    uint64_t parent;
    struct namespace_name name;
    uint32_t mode, umask, uid, gid, rdev;
    struct namespace_name target; /* of a symlink */
};
/** -EEXIST fills *out too, with what is there. */
int namespace_create(struct namespace *ns, const struct namespace_create *req,
                     struct inode *out);
/** A regular file without a name, as for O_TMPFILE: an orphan that namespace_link() may name. */
int namespace_create_nameless(struct namespace *ns, const struct namespace_create *req,
                              struct inode *out);
/** out: the inode as it is after losing the name; nlink 0: it is gone, or an orphan. */
int namespace_unlink(struct namespace *ns, uint64_t parent, struct namespace_name name,
                     struct inode *out);
int namespace_rmdir(struct namespace *ns, uint64_t parent, struct namespace_name name,
                    struct inode *out);
/** -ENOENT: it has lost its last name. */
int namespace_link(struct namespace *ns, uint64_t ino, uint64_t parent,
                   struct namespace_name name, struct inode *out);
int namespace_readlink(struct namespace *ns, uint64_t ino, const uint8_t **target,
                       size_t *len);

/** Nobody needs an inode without names any more: remove it. No orphan: nothing. True: it is not there any more. */
bool namespace_reap(struct namespace *ns, uint64_t ino);

/* One entry of a directory; borrowed while namespace_readdir's callback runs. */
struct namespace_entry {
    struct namespace_name name;
    uint64_t ino;
    uint32_t type; /* mode & S_IFMT */
    uint64_t cookie;
};
/** @return false to stop before this entry. */
typedef bool namespace_entry_cb(void *arg, const struct namespace_entry *entry);
/** Entries after cookie, in order of cookies. *end: the last one was seen. */
int namespace_readdir(struct namespace *ns, uint64_t ino, uint64_t cookie,
                      namespace_entry_cb *fn, void *arg, struct inode *dir, bool *end);

/* ---- namespace_scan.c: looking through all of it, bounded ---- */

/** @return false to stop before this file. */
typedef bool namespace_file_cb(void *arg, const struct inode *in);
/** Regular files with numbers above *after, ascending; *after: the last inode looked at, of any type. */
int namespace_files(struct namespace *ns, uint64_t *after, unsigned max_keys,
                    namespace_file_cb *fn, void *arg, bool *end);

/* A name; borrowed while the callback runs. */
struct namespace_named {
    uint64_t dir;
    struct namespace_name name;
    uint64_t ino;
    uint32_t type; /* mode & S_IFMT */
};
/** @return false when it has seen enough: that is the end. */
typedef bool namespace_named_cb(void *arg, const struct namespace_named *named);
/** Names in this directory, dir 0: in all of them. *cursor: where to go on; length 0: from the start. */
int namespace_names(struct namespace *ns, uint64_t dir, struct key *cursor,
                    unsigned max_keys, namespace_named_cb *fn, void *arg, bool *end);

/* ---- namespace_rename.c ---- */

struct namespace_renamed {
    struct inode removed; /* ino 0: none was */
    uint64_t
        moved[2]; /* the inode that has the new name; EXCHANGE: the other one. 0: none */
};

/* Who owns what a call makes. */
struct namespace_owner {
    uint32_t uid, gid;
};

struct namespace_rename {
    uint64_t parent;
    struct namespace_name name;
    uint64_t new_parent;
    struct namespace_name new_name;
    uint32_t flags; /* of renameat2(2): RENAME_NOREPLACE, _EXCHANGE, _WHITEOUT */
    struct namespace_owner owner; /* of a whiteout */
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
    bool alone; /* with a size: nobody but who asks may be writing it */
};
int namespace_setattr(struct namespace *ns, const struct namespace_setattr *req,
                      struct inode *out);
/** As Attr tells them. */
uint32_t namespace_file_flags(const struct inode *in);
/** Give out the next epoch of a regular file. alone: nobody may be writing it yet, not even who asks. */
int namespace_next_epoch(struct namespace *ns, uint64_t ino, bool alone,
                         struct inode *out);
/** Whoever wrote it is gone, or could not tell how far it got. */
void namespace_untold(struct namespace *ns, uint64_t ino);
/** A file that nobody has open any more, and that nobody wrote, needs no storages told. */
void namespace_forget_may_have_data(struct namespace *ns, uint64_t ino);

struct namespace_wrote {
    uint64_t ino;
    bool has_data;
    uint64_t size;              /* at least; 0: leave */
    int64_t mtime_ns, atime_ns; /* 0: leave */
    uint32_t epoch;             /* of what was written at the end; 0: nobody says */
    bool beside_others;  /* who write, too: one of them may have told of a later time */
    bool blocks_counted; /* of an INODE_UNCOUNTED: with these, all are known */
    bool tells_blocks;   /* these were allocated, and those freed (spans_pack()): */
    const uint8_t *allocated, *freed;
    size_t allocated_len, freed_len;
    uint64_t inline_version; /* not 0: these are all data of the file: */
    const uint8_t *inline_data;
    size_t inline_len;
};
/**
 * *cut: a truncate since that epoch has taken what the size speaks of; the size stays. -EREMCHG: inline data that are
 * not newer than what is known.
 */
int namespace_wrote(struct namespace *ns, const struct namespace_wrote *req,
                    struct inode *out, bool *cut);
int namespace_truncated(struct namespace *ns, uint64_t ino, uint64_t version,
                        struct inode *out);

/* ---- namespace_blocks.c: what is allocated ---- */

enum {
    NAMESPACE_BLOCK_RANGES_MAX =
        4096, /* of one file; beyond, the narrowest holes count as data */
    NAMESPACE_BLOCK_RANGES_TOLD_MAX = 1024, /* in one message */
};

/** As FileData tells it. room: SPAN_PACKED_MAX bytes; *bytes are there, or borrowed from the store. */
void namespace_blocks_get(struct namespace *ns, const struct inode *in, uint8_t *room,
                          const uint8_t **bytes, size_t *len);

/* ---- namespace_inline.c: data of small files ---- */

/** May its data be here, or stay here? */
bool namespace_may_be_inline(const struct namespace *ns, const struct inode *in);
/** Those of an INODE_INLINE; *bytes is borrowed from the store. -EIO: damaged. */
int namespace_inline_get(struct namespace *ns, const struct inode *in,
                         const uint8_t **bytes, size_t *len, uint64_t *version);

/* ---- namespace_redist.c: a file's distribution changes ---- */

enum redist_phase {
    REDIST_PREPARED = 1, /* new homes are being told; old storages know nothing of it */
    REDIST_BEGUN = 2,    /* old storages may be told: only forward */
    REDIST_DONE = 3,     /* the inode has it; some storages may lack it */
    REDIST_GIVEN_UP = 4, /* while PREPARED: the generation must not be used again */
};

/* The record of a file whose distribution changes (KEY_REDIST). */
struct namespace_redist {
    enum redist_phase phase;
    uint32_t generation; /* of the new distribution */
    uint32_t n_storages;
    uint32_t storages[DIST_MAX];
};

/** -ENOENT: there is none; -EIO. */
int namespace_redist_get(struct namespace *ns, uint64_t ino,
                         struct namespace_redist *out);
/** Puts the record, and notes in the inode that it has one. REDIST_DONE: the inode has that distribution from now on. */
int namespace_redist_put(struct namespace *ns, uint64_t ino,
                         const struct namespace_redist *r);
void namespace_redist_delete(struct namespace *ns, uint64_t ino);
/** @return false to stop before this one. */
typedef bool namespace_redist_cb(void *arg, uint64_t ino,
                                 const struct namespace_redist *r);
/** Records of inodes above *after, ascending; at most max. *end: the last one was seen. */
int namespace_redists(struct namespace *ns, uint64_t *after, unsigned max,
                      namespace_redist_cb *fn, void *arg, bool *end);
/** An epoch that nobody gets: all that were given out until now can be fenced. */
int namespace_fence_epoch(struct namespace *ns, uint64_t ino, struct inode *out);

/* ---- namespace_xattr.c ---- */

int namespace_getxattr(struct namespace *ns, uint64_t ino, struct namespace_name name,
                       const uint8_t **val, size_t *len);
/** flags of setxattr(2): XATTR_CREATE, XATTR_REPLACE. */
int namespace_setxattr(struct namespace *ns, uint64_t ino, struct namespace_name name,
                       const uint8_t *val, size_t len, uint32_t flags, bool kill_sgid);
/** All names, each with its zero byte. */
int namespace_listxattr(struct namespace *ns, uint64_t ino, const uint8_t **names,
                        size_t *len);
int namespace_removexattr(struct namespace *ns, uint64_t ino, struct namespace_name name);

/* As on the wire: XattrBits. */
enum namespace_xattr_classes {
    NAMESPACE_XATTRS_TOLD = 1,
    NAMESPACE_XATTRS_SECURITY = 2,
    NAMESPACE_XATTRS_ACL_ACCESS = 4,
    NAMESPACE_XATTRS_ACL_DEFAULT = 8,
    NAMESPACE_XATTRS_USER = 16,
    NAMESPACE_XATTRS_TRUSTED = 32,
};
/** Which classes of xattrs the inode has any of; 0: nobody can say. */
uint32_t namespace_xattr_classes(struct namespace *ns, const struct inode *in);

#endif
