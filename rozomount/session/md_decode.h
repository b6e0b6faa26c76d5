/*
 * md_decode.h - checks exportd's answers and turns them into our own structs.
 *
 * All data from the network is checked here, once (I8); results of these functions are in
 * range. They return 0 or -EBADMSG and do not touch their results on failure. Core, any
 * thread.
 */
#ifndef ROZO_ROZOMOUNT_SESSION_MD_DECODE_H
#define ROZO_ROZOMOUNT_SESSION_MD_DECODE_H

#include <sys/stat.h>

#include "common/base/arena.h"
#include "rozomount/session/md_client.h"
#include "rozomount/tokens/md_attr.h"
#include "storcli/file.h"

/* The tokens that came with an answer. */
struct md_grant {
    uint64_t number;         /* 0: no token came */
    enum token_mode dir;     /* mode for the directory of the request */
    enum token_mode new_dir; /* RENAME: mode for the new directory */
    bool others;             /* other mounts have the export, too */
};

/* Attributes and, if the answer has it, the location of a regular file's data. */
struct md_entry {
    struct md_attr attr;
    bool existed;    /* CREATE: the file existed already */
    uint32_t losses; /* WROTE, TRUNCATED: number of power losses of exportd */
    bool cut;        /* WROTE: exportd did not accept the size */
    struct md_grant grant;
    /* CREATE, LINK: attributes of the directory after that; ino 0: unknown */
    struct md_attr dir;
    uint64_t range_from, range_to; /* TOKEN: range granted; to 0: not a range */
    bool has_target;               /* the two members below are set */
    struct storcli_target target;
    struct file_attr file; /* inline_data is owned, until md_entry_drop() */
};

/* An attribute's value, or all names, each with its zero byte. */
struct md_xattr {
    uint8_t *value; /* owned, until md_xattr_drop(); NULL: no bytes */
    size_t len;
    uint64_t grant; /* grant of the token held; 0: none */
};

/** Frees inline data of a decoded entry. The entry may be all zero. */
void md_entry_drop(struct md_entry *entry);
int md_attr_check(const Rozo__Attr *attr, struct md_attr *out);
/** Decodes answers of LOOKUP, LINK, GETATTR, SETATTR, WROTE, TRUNCATED. */
int md_decode_entry(const struct md_call *call, struct md_entry *out);
/**
 * Unpacks and checks the xattrs in the answer of a LOOKUP. arena: as of
 * md_decode_readdir(). Returns NULL if there are none; the arena is empty then.
 */
const Rozo__XattrSet *md_decode_entry_xattrs(const struct md_call *call,
                                             struct arena *arena);
/** Decodes the answer of a LOOKUP that found nothing. */
int md_decode_no_entry(const struct md_call *call, struct md_grant *out);
/**
 * Decodes the answer of GETXATTR, also if the attribute does not exist, and LISTXATTR.
 */
int md_decode_xattr(const struct md_call *call, struct md_xattr *out);
int md_decode_xattr_names(const struct md_call *call, struct md_xattr *out);
/** Decodes the answer of REAL_NAME: the value is the name with a zero byte. */
int md_decode_real_name(const struct md_call *call, struct md_xattr *out);
void md_xattr_drop(struct md_xattr *x);
int md_decode_create(const struct md_call *call, struct md_entry *out);
int md_decode_open(const struct md_call *call, struct md_entry *out);

/* Answer of UNLINK, RMDIR and RENAME. */
struct md_removed {
    struct md_attr removed; /* inode that lost a name; ino 0: none */
    uint64_t moved[2];      /* RENAME: inodes that got another name; 0: none */
    struct md_grant grant;
    /* attributes of the directories after that; ino 0: unknown */
    struct md_attr dir, new_dir;
};
int md_decode_removed(const struct md_call *call, struct md_removed *out);

/** Decodes DONE_BEFORE. *ino: the inode that the call has made; 0: none. */
int md_decode_done(const struct md_call *call, uint64_t *ino);

/** Fills a struct stat for programs and FUSE replies, with st_blksize. */
void md_attr_to_stat(const struct md_attr *attr, struct stat *st);

/**
 * Unpacks and checks a page of a directory: names are 1..255 bytes without '/' and zero
 * bytes, cookies grow and stay below COOKIE_MAX. Attributes may be missing if another
 * mount is writing the file.
 * @param arena  out: memory of the page, for arena_free(). Not initialised before.
 * @return NULL: the answer is invalid; the arena is empty.
 */
Rozo__MdReaddirResp *md_decode_readdir(const struct md_call *call, uint64_t after_cookie,
                                       bool plus, struct arena *arena);

enum { MD_BLKSIZE = 128 << 10 }; /* st_blksize: preferred size of reads and writes */
#define MD_COOKIE_MAX \
    ((uint64_t)INT64_MAX - 2) /* the FUSE layer adds "." and ".." before the entries */

#endif
