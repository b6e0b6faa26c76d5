/*
 * namespace_int.h - what the files of the name space share among themselves.
 */
#ifndef ROZO_EXPORTD_NAMESPACE_NAMESPACE_INT_H
#define ROZO_EXPORTD_NAMESPACE_NAMESPACE_INT_H

#include "exportd/namespace/namespace.h"

/* A name in a directory. */
struct dentry {
    uint64_t ino;
    uint32_t type; /* mode & S_IFMT */
    uint64_t cookie;
};

/** 0; -EINVAL: empty, with a slash or zero byte, "." or ".."; -ENAMETOOLONG. */
int name_check(struct namespace_name name);
bool name_is(struct namespace_name name, const char *text);

/** -ESTALE when it is not there. */
int inode_get(struct namespace *ns, uint64_t ino, struct inode *out);
/** The same for a directory that names may be put into: -ENOTDIR, -ENOENT when removed. */
int dir_get(struct namespace *ns, uint64_t ino, struct inode *out);
/** Counts the change. */
void inode_put(struct namespace *ns, struct inode *in);
/** The inode a name means; its absence is a damaged store, -EIO. */
int named_inode_get(struct namespace *ns, const struct dentry *d, struct inode *out);

/** -ENOENT when the name is not there. */
int dentry_get(struct namespace *ns, uint64_t dir, struct namespace_name name,
               struct dentry *out);
/** The name and its place in the directory's order. */
void dentry_put(struct namespace *ns, uint64_t dir, struct namespace_name name,
                const struct dentry *d);
void dentry_delete(struct namespace *ns, uint64_t dir, struct namespace_name name,
                   const struct dentry *d);

/* The ACLs a new inode gets from its parent. */
struct inherited {
    uint8_t *access;     /* owned; NULL: none beyond the mode bits */
    const uint8_t *dflt; /* the parent's, borrowed from the store; NULL: none */
    size_t len;          /* of both */
};

/* An inode that is about to be made. */
struct new_inode {
    struct inode in; /* without number and generation until new_inode_put() */
    struct inherited inherited;
};

/** Decides owner, permissions, ACLs and storages of a new inode in `dir`. Puts nothing. */
int new_inode_init(struct namespace *ns, const struct namespace_create *req,
                   const struct inode *dir, struct new_inode *out);
/** Gives it a number and puts all of it but a name. Cannot fail. */
void new_inode_put(struct namespace *ns, const struct namespace_create *req,
                   struct new_inode *n);
void new_inode_free(struct new_inode *n);

/** An inode has lost its last name: to the orphans, to the trash, or gone. Puts in->nlink 0. */
void inode_unnamed(struct namespace *ns, struct inode *in);
void counters_put(struct namespace *ns);
/** A new seed for numbers from next_ino on: put. Once a start, and for a new export. */
void namespace_seed_begin(struct namespace *ns);
/** The last start gave out no number: its seed goes. */
void namespace_seed_drop_unused(struct namespace *ns);
uint32_t namespace_generation(const struct namespace_seed *seed, uint64_t ino);
/** These numbers are skipped: put. Once a start. */
void namespace_gap_add(struct namespace *ns, uint64_t from, uint64_t to);

/** What the request says of inline data is done to *in and the store, or what keeps it from that: -EREMCHG, -EINVAL, -EIO. */
int inline_wrote(struct namespace *ns, const struct namespace_wrote *req,
                 struct inode *in);
/** The file has that size now: what lies behind is gone. -EIO: nothing was done. */
int inline_cut(struct namespace *ns, struct inode *in, uint64_t size);
/** Nothing of it is here any more. */
void inline_drop(struct namespace *ns, struct inode *in);

enum { SCAN_STOP = 1 };
/** Called for each record of a scan; val is borrowed. @return 0 to go on, SCAN_STOP to stop before it, -errno. */
typedef int scan_cb(void *arg, uint64_t ino, const uint8_t *val, size_t len);
/**
 * Calls fn for the records of this kind of the export's inodes above *after, in order of inode
 * numbers, for at most max_keys of them. *after: the last one passed. *end: no more follow.
 * @return 0, or the -errno of fn or of the store.
 */
int scan_inos(struct namespace *ns, enum key_kind kind, uint64_t *after,
              unsigned max_keys, scan_cb *fn, void *arg, bool *end);

/** Its record goes; a file that has one lies on the storages in it, too, which *in gets. */
void redist_drop(struct namespace *ns, struct inode *in);

struct spans;

/** The blocks that are allocated once what the request says is done, for blocks_put(); -EINVAL, -ENOMEM. Changes nothing yet. */
int blocks_wrote(struct namespace *ns, const struct namespace_wrote *req,
                 const struct inode *in, struct spans *map);
/** They are these now. Frees map. True: that is another thing than before. */
bool blocks_put(struct namespace *ns, struct inode *in, struct spans *map);
/** None is left behind the one that has byte size - 1. */
void blocks_cut(struct namespace *ns, struct inode *in, uint64_t size);
/** Notes that a writer may have allocated blocks that it did not report. */
void blocks_doubt(struct inode *in);
/** None is left. */
void blocks_drop(struct namespace *ns, struct inode *in);

/** The value of an ACL the inode's flags say is there; -EIO when it is not, or not valid. */
int acl_get(struct namespace *ns, const struct inode *in, const char *name,
            const uint8_t **acl, size_t *len);
/** Put xattrs of an inode that had none (n of them, in order of names). */
void xattrs_make(struct namespace *ns, uint64_t ino, const char *const *names,
                 const uint8_t *const *vals, const size_t *lens, unsigned n);
/** Put a new value of an xattr that is there. */
void xattr_replace(struct namespace *ns, uint64_t ino, const char *name,
                   const uint8_t *val, size_t len);
/** Remove all xattrs of an inode that goes. It is not put. */
void xattrs_delete_all(struct namespace *ns, struct inode *in);

#endif
