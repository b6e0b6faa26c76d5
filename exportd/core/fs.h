/*
 * fs.h - the name space of one export: inodes, names, links, attributes, xattrs.
 *
 * Every call is one operation: it checks everything, then puts its changes into the store's
 * pending batch, all or nothing. 0 or -errno; results are untouched on failure. Nothing may be
 * told to others before the store has committed. Who may do what has been decided by the
 * client's kernel; here only what POSIX says of the tree itself.
 *
 * -ESTALE: the inode number is not there; -ENOENT: the name is not; -EIO: the store, or what lies
 * in it, cannot be believed.
 */
#ifndef ROZO_EXPORTD_FS_H
#define ROZO_EXPORTD_FS_H

#include "common/base/inode_times.h"
#include "exportd/core/inode.h"
#include "exportd/core/store.h"

enum {
    FS_ROOT_INO = 1,
    FS_LINKS_MAX = 65000,
    FS_TARGET_MAX = 4095,       /* bytes of a symlink's target */
    FS_XATTR_VALUE_MAX = 65536, /* bytes of one value */
    FS_XATTR_NAMES_MAX =
        65536,            /* bytes of all names of an inode, with their zero bytes */
    FS_COOKIE_FIRST = 16, /* smaller ones are the client's, for "." and ".." */
    FS_PARENT_STEPS_MAX = 1 << 20,
    FS_FIRSTS = 512,
    FS_INLINE_MAX = 65536, /* bytes of a file's data kept here */
};

/* What a name space needs from the rest of exportd. */
struct fs_hooks {
    /** Choose storages for a new file: fills the distribution. 0, -ENOSPC, -EIO. */
    int (*place)(void *arg, struct inode *in);
    /** This inode loses its last name: does it stay, as an orphan, until fs_reap()? */
    bool (*keeps)(void *arg, uint64_t ino);
    /** A key of kind KEY_TRASH was put for this inode. */
    void (*trashed)(void *arg, const struct inode *in);
    void *arg;
};

/* A directory has no entries before this cookie. Cookies only grow, so that stays true; and a
 * listing from the start need not walk over a million names that are gone. */
struct fs_first {
    uint64_t dir; /* 0: nothing is known */
    uint64_t cookie;
};

/* Inode numbers from..to-1 that were skipped. */
struct fs_gap {
    uint64_t from, to;
};

/* The generations of inodes from this number on, up to the next seed's, follow from it. */
struct fs_seed {
    uint64_t from;
    uint64_t secret[2];
};

/* One export's tree. Owned by its export; members are fs.c's. */
struct fs {
    struct env *env;     /* borrowed */
    struct store *store; /* borrowed */
    struct fs_hooks hooks;
    uint32_t export_id;
    uint32_t start;     /* number of this start of exportd; durable before any request */
    uint32_t last_loss; /* number of the last start after a loss of power; 0: none */
    uint32_t
        inline_max;    /* bytes; 0: data of new files go to storages. Set by its export */
    uint64_t next_ino; /* never given out before */
    uint64_t n_inodes; /* in use */
    struct fs_gap *gaps; /* owned; ascending; room for one more at start */
    size_t n_gaps;
    struct fs_seed seed;   /* of what is created now */
    struct fs_seed *seeds; /* owned; ascending; of earlier starts */
    size_t n_seeds;
    struct fs_first firsts[FS_FIRSTS]; /* by inode number; a newer one takes the place */
};

/* Bytes of a name, not checked yet. */
struct fs_name {
    const uint8_t *bytes;
    size_t len;
};

/** Load the counters of an export that exists. */
int fs_open(struct fs *fs, struct env *env, struct store *store, uint32_t export_id,
            const struct fs_hooks *hooks);
/** Between fs_open() and fs_begin(): what was skipped, and seeds. 0, -EINVAL when it makes no sense, -EIO, -ENOMEM. */
int fs_gaps_load(struct fs *fs);
/** After fs_open() and fs_gaps_load(), once for this start of exportd, whose number is stable before it answers anything. */
void fs_begin(struct fs *fs, uint32_t start, uint32_t last_loss);
/** Instead of both for a new one: its root directory and counters are put. */
void fs_make(struct fs *fs, struct env *env, struct store *store, uint32_t export_id,
             const struct fs_hooks *hooks);

/** The end. A zeroed one is fine. */
void fs_close(struct fs *fs);

/** Was there ever an inode of this number, as far as we know? What a power cut took is not known. */
bool fs_was_given_out(const struct fs *fs, uint64_t ino);
/**
 * Did this number come with this generation, for certain? Not so after a restore from a backup, when another inode had
 * the number before, nor of numbers that were given out by a build that knew no seeds.
 */
bool fs_gave_out(const struct fs *fs, uint64_t ino, uint32_t generation);

/* ---- fs.c: inodes and names ---- */

int fs_getattr(struct fs *fs, uint64_t ino, struct inode *out);
/** "." is the inode itself, whatever it is; ".." the parent of a directory. */
int fs_lookup(struct fs *fs, uint64_t parent, struct fs_name name, struct inode *out);

struct fs_create {
    uint64_t parent;
    struct fs_name name;
    uint32_t mode, umask, uid, gid, rdev;
    struct fs_name target; /* of a symlink */
};
/** -EEXIST fills *out too, with what is there. */
int fs_create(struct fs *fs, const struct fs_create *req, struct inode *out);
/** A regular file without a name, as for O_TMPFILE: an orphan that fs_link() may name. */
int fs_create_nameless(struct fs *fs, const struct fs_create *req, struct inode *out);
/** out: the inode as it is after losing the name; nlink 0: it is gone, or an orphan. */
int fs_unlink(struct fs *fs, uint64_t parent, struct fs_name name, struct inode *out);
int fs_rmdir(struct fs *fs, uint64_t parent, struct fs_name name, struct inode *out);
/** -ENOENT: it has lost its last name. */
int fs_link(struct fs *fs, uint64_t ino, uint64_t parent, struct fs_name name,
            struct inode *out);
int fs_readlink(struct fs *fs, uint64_t ino, const uint8_t **target, size_t *len);

/** Nobody needs an inode without names any more: remove it. No orphan: nothing. True: it is not there any more. */
bool fs_reap(struct fs *fs, uint64_t ino);

/* One entry of a directory; borrowed while fs_readdir's callback runs. */
struct fs_entry {
    struct fs_name name;
    uint64_t ino;
    uint32_t type; /* mode & S_IFMT */
    uint64_t cookie;
};
/** @return false to stop before this entry. */
typedef bool fs_entry_cb(void *arg, const struct fs_entry *entry);
/** Entries after cookie, in order of cookies. *end: the last one was seen. */
int fs_readdir(struct fs *fs, uint64_t ino, uint64_t cookie, fs_entry_cb *fn, void *arg,
               struct inode *dir, bool *end);

/* ---- fs_scan.c: looking through all of it, bounded ---- */

/** @return false to stop before this file. */
typedef bool fs_file_cb(void *arg, const struct inode *in);
/** Regular files with numbers above *after, ascending; *after: the last inode looked at, of any type. */
int fs_files(struct fs *fs, uint64_t *after, unsigned max_keys, fs_file_cb *fn, void *arg,
             bool *end);

/* A name; borrowed while the callback runs. */
struct fs_named {
    uint64_t dir;
    struct fs_name name;
    uint64_t ino;
    uint32_t type; /* mode & S_IFMT */
};
/** @return false when it has seen enough: that is the end. */
typedef bool fs_named_cb(void *arg, const struct fs_named *named);
/** Names in this directory, dir 0: in all of them. *cursor: where to go on; length 0: from the start. */
int fs_names(struct fs *fs, uint64_t dir, struct key *cursor, unsigned max_keys,
             fs_named_cb *fn, void *arg, bool *end);

/* ---- fs_rename.c ---- */

struct fs_renamed {
    struct inode removed; /* ino 0: none was */
    uint64_t
        moved[2]; /* the inode that has the new name; EXCHANGE: the other one. 0: none */
};

/* Who owns what a call makes. */
struct fs_owner {
    uint32_t uid, gid;
};

struct fs_rename {
    uint64_t parent;
    struct fs_name name;
    uint64_t new_parent;
    struct fs_name new_name;
    uint32_t flags;        /* of renameat2(2): RENAME_NOREPLACE, _EXCHANGE, _WHITEOUT */
    struct fs_owner owner; /* of a whiteout */
};
int fs_rename(struct fs *fs, const struct fs_rename *req, struct fs_renamed *out);

/* ---- fs_attr.c: attributes and file data ---- */

struct fs_setattr {
    uint64_t ino;
    uint32_t valid; /* Rozo__SetattrBits */
    uint32_t mode, uid, gid;
    uint32_t file_flags; /* FileFlags */
    uint64_t size;
    wide_ns atime_ns, mtime_ns;
    bool alone; /* with a size: nobody but who asks may be writing it */
};
int fs_setattr(struct fs *fs, const struct fs_setattr *req, struct inode *out);
/** As Attr tells them. */
uint32_t fs_file_flags(const struct inode *in);
/** Give out the next epoch of a regular file. alone: nobody may be writing it yet, not even who asks. */
int fs_next_epoch(struct fs *fs, uint64_t ino, bool alone, struct inode *out);
/** Whoever wrote it is gone, or could not tell how far it got. */
void fs_untold(struct fs *fs, uint64_t ino);
/** A file that nobody has open any more, and that nobody wrote, needs no storages told. */
void fs_forget_may_have_data(struct fs *fs, uint64_t ino);

struct fs_wrote {
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
int fs_wrote(struct fs *fs, const struct fs_wrote *req, struct inode *out, bool *cut);
/**
 * Moves the access time of an inode that was read, if it should (inode_times.h). The
 * change counter stays: nobody needs to hear of it.
 */
void fs_accessed(struct fs *fs, uint64_t ino, const struct noted_read *read, bool strict);
int fs_truncated(struct fs *fs, uint64_t ino, uint64_t version, struct inode *out);

/* ---- fs_blocks.c: what is allocated ---- */

enum {
    FS_BLOCK_RANGES_MAX =
        4096, /* of one file; beyond, the narrowest holes count as data */
    FS_BLOCK_RANGES_TOLD_MAX = 1024, /* in one message */
};

/** As FileData tells it. room: SPAN_PACKED_MAX bytes; *bytes are there, or borrowed from the store. */
void fs_blocks_get(struct fs *fs, const struct inode *in, uint8_t *room,
                   const uint8_t **bytes, size_t *len);

/* ---- fs_inline.c: data of small files ---- */

/** May its data be here, or stay here? */
bool fs_may_be_inline(const struct fs *fs, const struct inode *in);
/** Those of an INODE_INLINE; *bytes is borrowed from the store. -EIO: damaged. */
int fs_inline_get(struct fs *fs, const struct inode *in, const uint8_t **bytes,
                  size_t *len, uint64_t *version);

/* ---- fs_redist.c: a file's distribution changes ---- */

enum redist_phase {
    REDIST_PREPARED = 1, /* new homes are being told; old storages know nothing of it */
    REDIST_BEGUN = 2,    /* old storages may be told: only forward */
    REDIST_DONE = 3,     /* the inode has it; some storages may lack it */
    REDIST_GIVEN_UP = 4, /* while PREPARED: the generation must not be used again */
};

/* The record of a file whose distribution changes (KEY_REDIST). */
struct fs_redist {
    enum redist_phase phase;
    uint32_t generation; /* of the new distribution */
    uint32_t n_storages;
    uint32_t storages[DIST_MAX];
};

/** -ENOENT: there is none; -EIO. */
int fs_redist_get(struct fs *fs, uint64_t ino, struct fs_redist *out);
/** Puts the record, and notes in the inode that it has one. REDIST_DONE: the inode has that distribution from now on. */
int fs_redist_put(struct fs *fs, uint64_t ino, const struct fs_redist *r);
void fs_redist_delete(struct fs *fs, uint64_t ino);
/** @return false to stop before this one. */
typedef bool fs_redist_cb(void *arg, uint64_t ino, const struct fs_redist *r);
/** Records of inodes above *after, ascending; at most max. *end: the last one was seen. */
int fs_redists(struct fs *fs, uint64_t *after, unsigned max, fs_redist_cb *fn, void *arg,
               bool *end);
/** An epoch that nobody gets: all that were given out until now can be fenced. */
int fs_fence_epoch(struct fs *fs, uint64_t ino, struct inode *out);

/* ---- fs_xattr.c ---- */

int fs_getxattr(struct fs *fs, uint64_t ino, struct fs_name name, const uint8_t **val,
                size_t *len);
/** flags of setxattr(2): XATTR_CREATE, XATTR_REPLACE. */
int fs_setxattr(struct fs *fs, uint64_t ino, struct fs_name name, const uint8_t *val,
                size_t len, uint32_t flags, bool kill_sgid);
/** All names, each with its zero byte. */
int fs_listxattr(struct fs *fs, uint64_t ino, const uint8_t **names, size_t *len);
int fs_removexattr(struct fs *fs, uint64_t ino, struct fs_name name);

/* As on the wire: XattrBits. */
enum fs_xattr_classes {
    FS_XATTRS_TOLD = 1,
    FS_XATTRS_SECURITY = 2,
    FS_XATTRS_ACL_ACCESS = 4,
    FS_XATTRS_ACL_DEFAULT = 8,
    FS_XATTRS_USER = 16,
    FS_XATTRS_TRUSTED = 32,
};
/** Which classes of xattrs the inode has any of; 0: nobody can say. */
uint32_t fs_xattr_classes(struct fs *fs, const struct inode *in);

#endif
