/*
 * token_cache.h - tokens that exportd granted to this mount, and what the kernel caches
 * under them.
 *
 * A token belongs to one inode (docs/internals/tokens.md). SHARED allows caching of
 * attributes, of the names of a directory and of file data until exportd recalls it.
 * EXCLUSIVE, for a file only, also allows reporting writes later. RANGES is for a file
 * that other mounts use, too: the data of some ranges may be cached for reading or
 * writing, and writes there may be reported later. The size cannot change under RANGES;
 * attributes are requested each time.
 *
 * One table per mount. Any thread; a call costs one uncontended lock. "Needs the lock"
 * means: call between token_cache_lock() and token_cache_unlock().
 *
 * Answers of exportd may arrive after the recall of the token that they granted. So
 * grants are numbered: giving back a token with a number voids all grants of that inode
 * up to that number.
 */
#ifndef ROZO_ROZOMOUNT_TOKENS_TOKEN_CACHE_H
#define ROZO_ROZOMOUNT_TOKENS_TOKEN_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/table.h"
#include "common/wire/token.h"
#include "common/wire/wide_ns.h"
#include "rozomount/tokens/xattr_cache.h"

enum {
    TOKENS_MAX = 262144,  /* tokens held if exportd sets no limit */
    TOKENS_NAMES_PER = 2, /* cached names per token */
    /* attributes prefetched for LOOKUPs; the oldest are evicted */
    TOKENS_AHEAD_MAX = 16384,
    /* tokens being given back at a time because of the limit; those among them under
     * which the kernel caches names or pages */
    TOKENS_LEAVING_MAX = 2048,
    TOKENS_LEAVING_HEAVY_MAX = 32,
};

struct md_attr;
struct range_map;
struct token_cache;

/* A range of a file under a RANGES token. */
struct held_range {
    uint64_t ino;
    uint64_t from, to;
    bool write;    /* false: read only */
    uint64_t size; /* size of the file */
};

/* The token that an operation needs. */
struct token_need {
    enum token_mode mode; /* TOKEN_SHARED or TOKEN_EXCLUSIVE */
    uint64_t from, to;    /* the bytes needed; to 0: the whole file */
};

/* A name that may exist in a directory, or that the kernel caches, also as absent. */
struct kernel_name {
    struct kernel_name *next; /* next in its list, oldest first */
    struct kernel_name **at;  /* the pointer to this name in its list, while in a cache */
    struct table_link link;   /* in the token of its directory, likewise */
    bool is_dir;              /* the inode is, or may be, a directory */
    bool is_cached;           /* the kernel caches it */
    uint64_t ino;             /* inode with prefetched attributes; 0: none */
    uint64_t hint;            /* inode that it had for the kernel; 0: not known */
    char name[];
};

struct token_cache *token_cache_new(void);
void token_cache_free(struct token_cache *t);

/* ---- the session ---- */

/**
 * Notes that the session is open. All claimed tokens continue under the number `grant`;
 * older grants are void. grant 0: this exportd grants no tokens. lost: exportd rejected
 * the claims, so every token must be dropped, see token_cache_lost_one().
 */
void token_cache_opened(struct token_cache *t, uint64_t grant, bool lost);
/**
 * Notes tokens of these inodes that another process got: the kernel may have anything
 * under them.
 */
void token_cache_inherit(struct token_cache *t, const uint64_t *inos, size_t n);
/**
 * Returns true if exportd grants tokens. If not, the kernel caches names and attributes
 * for a fixed time.
 */
bool token_cache_are_given(struct token_cache *t);
/**
 * Returns the inodes with a token, as an array that the caller frees; *n is its length.
 */
uint64_t *token_cache_list(struct token_cache *t, size_t *n);
/**
 * All tokens held, to be claimed when the session is opened again; those of locks end
 * here.
 */
struct token_cache_claim {
    uint64_t *shared, *exclusive; /* owned by the caller */
    size_t n_shared, n_exclusive;
    struct held_range *ranges; /* owned by the caller */
    size_t n_ranges;
};
void token_cache_claim(struct token_cache *t, struct token_cache_claim *out);
/**
 * Returns an inode with a token that was lost and not given back yet, each inode once. 0:
 * none is left.
 */
uint64_t token_cache_lost_one(struct token_cache *t);
/**
 * Returns true if the token of the inode was lost. Grants for the inode are ignored until
 * token_cache_gave_back() with TOKEN_NONE.
 */
bool token_cache_is_lost(struct token_cache *t, uint64_t ino);

/* ---- grants ---- */

/**
 * Returns true if an answer with this grant counts for the inode. False: the grant is
 * older than a recall, or the previous token was lost and not given back yet.
 */
bool token_cache_takes(struct token_cache *t, uint64_t ino, uint64_t grant);
/** Notes a token that came with an answer. */
void token_cache_grant(struct token_cache *t, uint64_t ino, enum token_mode mode,
                       uint64_t grant);
/** Notes one of several tokens that came with an answer. Needs the lock. */
void token_cache_grant_locked(struct token_cache *t, uint64_t ino, enum token_mode mode,
                              uint64_t grant);
/** Notes a range that came with an answer, in addition to those held. */
void token_cache_grant_range(struct token_cache *t, const struct held_range *range,
                             uint64_t grant);
/** Notes whether other mounts have the export, too. */
void token_cache_note_others(struct token_cache *t, bool others);
bool token_cache_has_others(struct token_cache *t);
/** Returns the mode of the token held. */
enum token_mode token_cache_mode(struct token_cache *t, uint64_t ino);
/** Returns true if the token held is enough for `need`. */
bool token_cache_cover(struct token_cache *t, uint64_t ino,
                       const struct token_need *need);
/**
 * Returns the end of the bytes that may be read from the offset `from` on; UINT64_MAX: no
 * limit.
 */
uint64_t token_cache_readable_to(struct token_cache *t, uint64_t ino, uint64_t from);
/**
 * Returns the ranges of a RANGES token, borrowed; NULL: none. For checks while nothing
 * else uses the cache.
 */
const struct range_map *token_cache_ranges(struct token_cache *t, uint64_t ino);

/* ---- what the kernel may cache ---- */

/**
 * Locks the cache. No recall begins until token_cache_unlock(), so a caller can check a
 * token and answer the kernel in between.
 */
void token_cache_lock(struct token_cache *t);
void token_cache_unlock(struct token_cache *t);
/** Returns the mode of the token held. Needs the lock. */
enum token_mode token_cache_mode_locked(struct token_cache *t, uint64_t ino);
/**
 * Returns true if the kernel may cache attributes that came with this grant. Marks the
 * token as used. Needs the lock.
 */
bool token_cache_tell_attr(struct token_cache *t, uint64_t ino, uint64_t grant);
/**
 * Returns true if the kernel may cache a name, or its absence, under this grant of its
 * directory; then notes the name. ino: 0 if the name is absent. Needs the lock.
 */
bool token_cache_tell_name(struct token_cache *t, uint64_t dir, const char *name,
                           uint64_t ino, bool is_dir, uint64_t grant);
/**
 * Returns the inode that a name had when the kernel was last given it, 0: not known. A
 * guess: another inode may have the name by now.
 */
uint64_t token_cache_guess_inode(struct token_cache *t, uint64_t dir, const char *name);
/**
 * Returns true if the kernel may cache the listing that it is about to read, and notes
 * it. *kept: the listing that the kernel already caches is valid. Needs the lock.
 */
bool token_cache_tell_listing(struct token_cache *t, uint64_t dir, bool *kept);
/**
 * Notes that a change by this mount removed the name; the kernel knows. changes: the
 * value of token_cache_changes() before the request to exportd. Returns true if the
 * kernel had cached the name.
 */
bool token_cache_name_gone(struct token_cache *t, uint64_t dir, const char *name,
                           uint64_t changes);

/* A part of a listing. */
struct listed_names {
    uint64_t dir;
    uint64_t grant; /* grant of the answer */
    /* cookies: the part holds all names behind `after`, up to `to`; after 0: from the
     * start */
    uint64_t after, to;
    bool end;         /* the part ends the listing */
    uint64_t changes; /* token_cache_changes() before the request to exportd */
    size_t n;
    const struct listed_name {
        const char *name; /* without a zero byte */
        size_t len;
    } *names;
};
/**
 * Notes that an answer with this grant created the directory. Needs the lock.
 * All names of a directory are known if it was made here, or listed from start to end
 * under one token. The noted names may then be too many, never too few: a name is noted
 * before exportd is asked to create it and again after that, and dropped when exportd has
 * confirmed its removal since.
 */
void token_cache_dir_is_new(struct token_cache *t, uint64_t dir, uint64_t grant);
/** Notes a part of a listing that arrived. Needs the lock. */
void token_cache_names_listed(struct token_cache *t, const struct listed_names *l);
/** Notes a name that exportd is about to create at our request, or has created. */
void token_cache_name_comes(struct token_cache *t, uint64_t dir, const char *name);
/**
 * Returns true if it is certain that the name does not exist. *grant: grant of the
 * directory, under which the kernel may cache that. Needs the lock.
 */
bool token_cache_name_absent(struct token_cache *t, uint64_t dir, const char *name,
                             uint64_t *grant);

/* A request for a part of a listing with attributes, to answer later LOOKUPs. Lookups
 * of unknown names start such requests; n grows while LOOKUPs use the attributes. */
struct prefetch_answer {
    uint64_t dir;
    uint64_t after; /* cookie where the part begins */
    unsigned n;     /* entries to ask for */
};
/**
 * Notes a LOOKUP of an unknown name. Returns true if the caller must request the part of
 * the listing in *out, and call token_cache_prefetch_came() after that. Needs the lock.
 */
bool token_cache_prefetch_next(struct token_cache *t, uint64_t dir,
                               struct prefetch_answer *out);
/**
 * Notes that a prefetch request has ended, also with an error. next: cookie where the
 * next part begins; 0: at the start. Needs the lock.
 */
void token_cache_prefetch_came(struct token_cache *t, const struct prefetch_answer *a,
                               uint64_t next);
/**
 * Keeps prefetched attributes of a name, for the given grant and `changes` as in
 * token_cache_keep_attr(). Needs the lock.
 */
void token_cache_keep_prefetched(struct token_cache *t, uint64_t dir,
                                 const struct listed_name *name,
                                 const struct md_attr *attr, uint64_t grant,
                                 uint64_t changes);
/**
 * Returns true if valid prefetched attributes of the name exist, and copies them. Drops
 * them unless token_cache_keep_attr() keeps such attributes for more than one request.
 * Needs the lock.
 */
bool token_cache_take_prefetched(struct token_cache *t, uint64_t dir, const char *name,
                                 struct md_attr *out, uint64_t *grant);

/**
 * Notes that a change by this mount gave the name to another inode or removed it, so the
 * kernel's entry is outdated. Returns true if the kernel had cached the name.
 */
bool token_cache_name_moved(struct token_cache *t, uint64_t dir, const char *name);

/**
 * Returns the number of changes by this mount so far, of all inodes. Read it before a
 * request for attributes that may be kept.
 */
uint64_t token_cache_changes(struct token_cache *t);
/**
 * Keeps attributes and their grant for the kernel's next request; those of a directory,
 * or of a file under EXCLUSIVE, for all of its requests. The attributes contain our
 * changes of the inode up to `changes`; if there was a later one, they are not kept.
 * Needs the lock.
 */
void token_cache_keep_attr(struct token_cache *t, const struct md_attr *attr,
                           uint64_t grant, uint64_t changes);
/**
 * Returns true if valid attributes are kept, and copies them. Drops them if they are kept
 * for one request only.
 */
bool token_cache_take_attr(struct token_cache *t, uint64_t ino, struct md_attr *out,
                           uint64_t *grant);
/** Notes that data of the file went into the kernel's pages under the token. */
void tokens_note_data(struct token_cache *t, uint64_t ino);
/** Returns true if the kernel may have data of the file in its pages under the token. */
bool tokens_have_data(struct token_cache *t, uint64_t ino);
/** Sets the access time in kept attributes, because a read here has moved it. */
void tokens_note_atime(struct token_cache *t, uint64_t ino, wide_ns atime_ns);
/**
 * Drops attributes and listing of an inode that this mount has changed. changes:
 * token_cache_changes() before the request. Returns the `changes` for keeping the
 * attributes that came with the answer: the new token_cache_changes(), or the argument if
 * there was a later change.
 */
uint64_t token_cache_forget_attr(struct token_cache *t, uint64_t ino, uint64_t changes);

/* ---- extended attributes ---- */

/* An extended attribute that is known to exist or to be absent. The classes that an
 * inode has come with its attributes; small values are kept once read. Both are valid
 * under SHARED or more. Names are as in getxattr(2); "" stands for the list of all
 * names, each with its zero byte. */
struct known_xattr {
    bool is_there;
    size_t len;
    uint8_t value[XATTR_CACHED_MAX];
};
/**
 * Notes the classes (XattrBits) that came with this grant. `changes` is as in
 * token_cache_keep_attr(). Needs the lock.
 */
void token_cache_note_xattrs(struct token_cache *t, uint64_t ino, uint32_t classes,
                             uint64_t grant, uint64_t changes);
/** Notes one attribute, or its absence, that came with this grant. Needs the lock. */
void token_cache_keep_xattr(struct token_cache *t, uint64_t ino, const char *name,
                            const struct cached_xattr *x, uint64_t grant,
                            uint64_t changes);
/* All attributes of an inode. */
struct all_xattrs {
    unsigned n; /* 0..XATTR_SET_MAX */
    struct listed_name names[XATTR_SET_MAX];
    struct cached_xattr values[XATTR_SET_MAX];
};
/** Notes that an inode has these attributes, which came with this grant, and no others.
 * Needs the lock. */
void token_cache_keep_all_xattrs(struct token_cache *t, uint64_t ino,
                                 const struct all_xattrs *all, uint64_t grant,
                                 uint64_t changes);
/** Returns true if the attribute is known to exist or to be absent. */
bool token_cache_find_xattr(struct token_cache *t, uint64_t ino, const char *name,
                            struct known_xattr *out);
/**
 * Notes that a change of extended attributes is about to be sent (begins), or has ended,
 * with whatever result. Nothing is known between the two calls: another mount may see the
 * change before our answer arrives.
 */
void token_cache_xattrs_change(struct token_cache *t, uint64_t ino, bool begins);

/* ---- giving back ---- */

/**
 * Begins a recall: from now on nothing is granted to the kernel that needs a mode above
 * `keep`.
 */
void token_cache_recall(struct token_cache *t, uint64_t ino, enum token_mode keep);
/**
 * Returns the names of a directory that the kernel caches, owned by the caller, and drops
 * all names noted for the directory.
 */
struct kernel_name *token_cache_take_names(struct token_cache *t, uint64_t dir);
/**
 * Returns a copy of the names of a directory that the kernel caches, owned by the caller.
 * All names stay noted.
 */
struct kernel_name *token_cache_copy_names(struct token_cache *t, uint64_t dir);
void kernel_names_free(struct kernel_name *names);
/**
 * Drops all names of the directories for which is_old returns true, because the kernel
 * has invalidated them. Needs the lock.
 */
void token_cache_forget_names(struct token_cache *t,
                              bool (*is_old)(void *arg, uint64_t dir), void *arg);
/**
 * Ends a recall: lowers the token to `keep` and voids grants up to `grant`. Returns the
 * grant number to report to exportd.
 */
uint64_t token_cache_gave_back(struct token_cache *t, uint64_t ino, enum token_mode keep,
                               uint64_t grant);
/** Sets the number of tokens that exportd grants unasked; 0: exportd sets no limit. */
void token_cache_set_max(struct token_cache *t, size_t max);
/* A token that the mount must give back because of the limit. */
struct token_surplus {
    uint64_t ino;
    bool is_plain; /* see token_cache_recall_plain() */
};
/**
 * Returns up to max tokens that the mount must give back, least recently used first; 0:
 * none. Starts at three quarters of the limit and stops at five eighths. The tokens count
 * as given back and are not returned again. Ask again when some were given back.
 */
size_t token_cache_surplus(struct token_cache *t, struct token_surplus *out, size_t max);
/**
 * Begins a recall to TOKEN_NONE if the kernel caches only attributes under the token. If
 * not, returns false and does nothing.
 */
bool token_cache_recall_plain(struct token_cache *t, uint64_t ino);
/**
 * Handles an inode that lost its last name and is not open here. If no other mount has
 * the export, no one can change it: the token is dropped without a message, as exportd
 * does, too. If there are others, one may have it open: the token is the first to be
 * given back.
 */
void token_cache_inode_gone(struct token_cache *t, uint64_t ino);

#endif
