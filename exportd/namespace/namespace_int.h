/*
 * namespace_int.h - shared by the files of the name space; private to them.
 */
#ifndef ROZO_EXPORTD_NAMESPACE_NAMESPACE_INT_H
#define ROZO_EXPORTD_NAMESPACE_NAMESPACE_INT_H

#include "common/base/err.h"
#include "exportd/namespace/namespace.h"

/* Name in a directory. */
struct dentry {
    uint64_t ino;
    uint32_t type; /* mode & S_IFMT */
    uint64_t cookie;
};

/**
 * Checks a name. Returns 0, -ENAMETOOLONG, or -EINVAL if it is empty, contains a slash or
 * zero byte, or is "." or "..".
 */
int name_check(struct namespace_name name);
bool name_is(struct namespace_name name, const char *text);

/** Reads an inode. -ESTALE: there is none. */
int inode_get(struct namespace *ns, uint64_t ino, struct inode *out);
/** Reads a directory that names may be put into. -ENOTDIR; -ENOENT: removed; -ESTALE. */
int dir_get(struct namespace *ns, uint64_t ino, struct inode *out);
/** Puts an inode and counts the change. */
void inode_put(struct namespace *ns, struct inode *in);
/** Reads the inode of a name. A missing one means a corrupt store: -EIO. */
int named_inode_get(struct namespace *ns, const struct dentry *d, struct inode *out);

/** Reads a name. -ENOENT: there is none. */
int dentry_get(struct namespace *ns, uint64_t dir, struct namespace_name name,
               struct dentry *out);
/** Puts a name and its place in the order of the directory. */
void dentry_put(struct namespace *ns, uint64_t dir, struct namespace_name name,
                const struct dentry *d);
void dentry_delete(struct namespace *ns, uint64_t dir, struct namespace_name name,
                   const struct dentry *d);

/**
 * Reads the name with this cookie, borrowed from the store. Returns 0, -ENOENT, or -EIO.
 */
int order_get(struct namespace *ns, uint64_t dir, uint64_t cookie,
              struct namespace_name *name);

/** Puts a name with this cookie into the index of folded names, if there is one. */
void folded_put(struct namespace *ns, uint64_t dir, struct namespace_name name,
                uint64_t cookie);
void folded_delete(struct namespace *ns, uint64_t dir, struct namespace_name name,
                   uint64_t cookie);

/* ACLs that a new inode inherits from its parent. */
struct inherited {
    uint8_t *access;     /* access ACL, owned; NULL: mode bits are enough */
    const uint8_t *dflt; /* parent's default ACL, borrowed from the store; NULL: none */
    size_t len;          /* bytes, of each */
};

/* Inode being made. */
struct new_inode {
    struct inode in; /* without number and generation until new_inode_put() */
    struct inherited inherited;
};

/**
 * Decides owner, permissions, ACLs and storages of a new inode in `dir`. Puts nothing.
 */
int new_inode_init(struct namespace *ns, const struct namespace_create *req,
                   const struct inode *dir, struct new_inode *out);
/** Gives the inode a number and puts everything but a name. Cannot fail. */
void new_inode_put(struct namespace *ns, const struct namespace_create *req,
                   struct new_inode *n);
void new_inode_free(struct new_inode *n);

/**
 * Handles the loss of the last name: puts the inode among the orphans, or removes it.
 * Sets in->nlink to 0.
 */
void inode_unnamed(struct namespace *ns, struct inode *in);
void counters_put(struct namespace *ns);
/**
 * Makes and puts a new seed for numbers from next_ino on. Called once a start, and for a
 * new export.
 */
void namespace_seed_begin(struct namespace *ns);
/** Deletes the seed of the last start if that start gave out no number. */
void namespace_seed_drop_unused(struct namespace *ns);
uint32_t namespace_generation(const struct namespace_seed *seed, uint64_t ino);
/** Notes and puts a range of skipped numbers. Called once a start. */
void namespace_gap_add(struct namespace *ns, uint64_t from, uint64_t to);

/**
 * Applies the inline part of a report to *in and the store. Returns 0,
 * -ROZO_ESTALE_VERSION, -EINVAL or -EIO.
 */
int inline_wrote(struct namespace *ns, const struct namespace_wrote *req,
                 struct inode *in);
/** Cuts the inline data to a size. -EIO: nothing was done. */
int inline_cut(struct namespace *ns, struct inode *in, uint64_t size);
/** Deletes the inline data. */
void inline_drop(struct namespace *ns, struct inode *in);

enum { SCAN_STOP = 1 };
/**
 * Receives a record of a scan; val is borrowed.
 *
 * @return 0 to go on, SCAN_STOP to stop before this record, or -errno.
 */
typedef int scan_cb(void *arg, uint64_t ino, const uint8_t *val, size_t len);
/**
 * Calls fn for the records of one kind with inode numbers above *after, ascending, at
 * most max_keys of them. *after: the last one passed. *end: no more follow.
 *
 * @return 0, or the -errno of fn or of the store.
 */
int scan_inos(struct namespace *ns, enum key_kind kind, uint64_t *after,
              unsigned max_keys, scan_cb *fn, void *arg, bool *end);

/**
 * Deletes the record of a changing distribution. If there was one, *in gets its storages,
 * since they may have files, too.
 */
void redist_drop(struct namespace *ns, struct inode *in);

struct range_map;

/**
 * Computes the allocated blocks after a report, for namespace_blocks_put(). Changes
 * nothing yet. Returns 0, -EINVAL or -ENOMEM.
 */
int namespace_blocks_wrote(struct namespace *ns, const struct namespace_wrote *req,
                           const struct inode *in, struct range_map *map);
/**
 * Replaces the set of allocated blocks. Frees map. Returns true if the set has changed.
 */
bool namespace_blocks_put(struct namespace *ns, struct inode *in, struct range_map *map);
/** Removes all blocks behind the one with byte size - 1 from the set. */
void namespace_blocks_cut(struct namespace *ns, struct inode *in, uint64_t size);
/** Notes that a writer may have allocated blocks that it did not report. */
void namespace_blocks_doubt(struct inode *in);
/** Empties the set of allocated blocks. */
void namespace_blocks_drop(struct namespace *ns, struct inode *in);

/** Reads an ACL that exists by the inode's flags. -EIO: missing or not valid. */
int acl_get(struct namespace *ns, const struct inode *in, const char *name,
            const uint8_t **acl, size_t *len);
/** Puts n xattrs of an inode that had none, in order of names. */
void xattrs_make(struct namespace *ns, uint64_t ino, const char *const *names,
                 const uint8_t *const *vals, const size_t *lens, unsigned n);
/** Puts a new value of an existing xattr. */
void xattr_replace(struct namespace *ns, uint64_t ino, const char *name,
                   const uint8_t *val, size_t len);
/** Deletes all xattrs of an inode that is being removed. Does not put the inode. */
void xattrs_delete_all(struct namespace *ns, struct inode *in);

#endif
