/*
 * md_decode.h - exportd's answers, checked and turned into our own structs.
 *
 * Everything from the network is checked here, once (I8); what these return can be believed to
 * be in range. 0 or -EBADMSG; results are untouched on failure. Core, any thread.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_MD_DECODE_H
#define ROZO_ROZOMOUNT_SESSION_MD_DECODE_H

#include <sys/stat.h>

#include "common/base/arena.h"
#include "rozomount/session/md_client.h"
#include "rozomount/tokens/md_attr.h"
#include "storcli/file.h"

/* The tokens that come with an answer. */
struct md_grant {
    uint64_t number;         /* 0: none do */
    enum token_mode dir;     /* of the directory asked about */
    enum token_mode new_dir; /* RENAME: of the other one */
    bool others;             /* other mounts have the export, too */
};

/* Attributes and, when the answer has them, how to reach a regular file's data. */
struct md_entry {
    struct md_attr attr;
    bool existed;    /* CREATE: it was there already */
    uint32_t losses; /* WROTE, TRUNCATED: of exportd's power */
    bool cut;        /* WROTE: the size was not taken */
    struct md_grant grant;
    struct md_attr dir; /* CREATE, LINK: of the directory after that; ino 0: not told */
    uint64_t range_from, range_to; /* TOKEN: given; to 0: not a range */
    bool has_target;               /* the two below are set */
    struct storcli_target target;
    struct file_attr file; /* its inline_data are ours, until md_entry_drop() */
};

/* A value, or all names, each with its zero byte. */
struct md_xattr {
    uint8_t *value; /* until md_xattr_drop(); NULL: of no bytes */
    size_t len;
    uint64_t grant; /* of the token that we have; 0: none */
};

/** What was decoded is not needed any more: its inline data go. Also of one that is all zero. */
void md_entry_drop(struct md_entry *entry);
int md_attr_check(const Rozo__Attr *attr, struct md_attr *out);
/** For answers of LOOKUP, LINK, GETATTR, SETATTR, WROTE, TRUNCATED. */
int md_decode_entry(const struct md_call *call, struct md_entry *out);
/** For a LOOKUP that found nothing. */
int md_decode_no_entry(const struct md_call *call, struct md_grant *out);
/** For GETXATTR, also when the answer is that there is none, and LISTXATTR. */
int md_decode_xattr(const struct md_call *call, struct md_xattr *out);
int md_decode_xattr_names(const struct md_call *call, struct md_xattr *out);
void md_xattr_drop(struct md_xattr *x);
int md_decode_create(const struct md_call *call, struct md_entry *out);
int md_decode_open(const struct md_call *call, struct md_entry *out);

/* What UNLINK, RMDIR and RENAME answer. */
struct md_removed {
    struct md_attr removed; /* the inode that has a name less; ino 0: none */
    uint64_t moved[2];      /* RENAME: the inodes that have other names now; 0: none */
    struct md_grant grant;
    struct md_attr dir, new_dir; /* of those directories after that; ino 0: not told */
};
int md_decode_removed(const struct md_call *call, struct md_removed *out);

/** What a call answered DONE_BEFORE has made; *ino 0: nothing. */
int md_decode_done(const struct md_call *call, uint64_t *ino);

/** For stat and FUSE replies; st_blksize as well. */
void md_attr_to_stat(const struct md_attr *attr, struct stat *st);

/**
 * Unpack a page of a directory and check all of it: names are 1..255 bytes without '/' and zero
 * bytes, cookies grow and stay below COOKIE_MAX. Attributes may be missing: another mount is writing the file.
 * @param arena  out: where it lies, for arena_free(). Not initialised before.
 * @return NULL: the answer makes no sense; the arena is empty.
 */
Rozo__MdReaddirResp *md_decode_readdir(const struct md_call *call, uint64_t after_cookie,
                                       bool plus, struct arena *arena);

enum {
    MD_BLKSIZE = 128 << 10
}; /* st_blksize: what programs had better read and write at once */
#define MD_COOKIE_MAX \
    ((uint64_t)INT64_MAX - 2) /* the face adds "." and ".." before them */

#endif
