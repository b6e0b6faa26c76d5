/*
 * token_cache.h - what exportd lets this mount keep, and what the kernel has been told on the strength of it.
 *
 * A token is of one inode (docs/internals/tokens.md). SHARED: its attributes, the names of a directory and the data of a
 * file may be kept until exportd recalls it; EXCLUSIVE, of a file: besides, what was written need not be told yet. RANGES, of a file
 * that other mounts use, too: the data of some ranges, to read or to write; what was written there need not be told yet. The
 * size stays as it is, attributes are asked for each time.
 * One table a mount. Any thread; a call costs one uncontended lock.
 *
 * Answers of exportd may arrive after the recall of what they granted. Grants are numbered; what was given back takes all
 * grants of that inode up to its own number with it.
 */
#ifndef ROZO_ROZOMOUNT_TOKENS_TOKEN_CACHE_H
#define ROZO_ROZOMOUNT_TOKENS_TOKEN_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/table.h"
#include "common/base/token.h"
#include "common/base/wide_ns.h"
#include "rozomount/tokens/xattr_cache.h"

enum {
    TOKENS_MAX = 262144,      /* held, when exportd does not say how many it gives */
    TOKENS_NAMES_PER = 2,     /* names told to the kernel, for each of those */
    TOKENS_AHEAD_MAX = 16384, /* attributes kept for LOOKUPs to come; the oldest go */
    TOKENS_LEAVING_MAX =
        2048, /* on their way back at a time because there are too many, */
    TOKENS_LEAVING_HEAVY_MAX =
        32, /* and of those which the kernel keeps names or pages by */
};

struct md_attr;
struct spans;
struct token_cache;

/* Some bytes of a file that we hold. */
struct held_range {
    uint64_t ino;
    uint64_t from, to;
    bool write;    /* else only to read */
    uint64_t size; /* of the file */
};

/* What somebody needs. */
struct token_need {
    enum token_mode mode; /* SHARED or EXCLUSIVE */
    uint64_t from, to;    /* to not 0: only for these bytes */
};

/* A name that may be there, or that the kernel was told of; also that there is none of that name. */
struct told_name {
    struct told_name *next; /* in its list, oldest first */
    struct told_name **at;  /* what points at it, as long as it is told */
    struct table_link link; /* in its directory's token, so long, too */
    bool is_dir;            /* or may be one */
    bool is_told;
    uint64_t ino; /* whose name it is, for token_cache_take_prefetched(); 0: not known */
    char name[];
};

struct token_cache *token_cache_new(void);
void token_cache_free(struct token_cache *t);

/* ---- the session ---- */

/**
 * The session is open. grant: of all that was claimed, older grants are void; 0: this exportd gives no tokens. lost:
 * it did not accept the claims: everything is to be given up, see token_cache_lost_one().
 */
void token_cache_opened(struct token_cache *t, uint64_t grant, bool lost);
/** Does exportd give tokens? Else the kernel believes names and attributes for a while. */
bool token_cache_are_given(struct token_cache *t);
/** The inodes that something is held of, as an array to free(); *n its length. */
uint64_t *token_cache_list(struct token_cache *t, size_t *n);
/** The same in the two modes, to be claimed: until token_cache_opened() answers do not grant anything. */
struct token_cache_claim {
    uint64_t *shared, *exclusive; /* to free() */
    size_t n_shared, n_exclusive;
    struct held_range *ranges; /* to free() */
    size_t n_ranges;
};
void token_cache_claim(struct token_cache *t, struct token_cache_claim *out);
/** Any inode that is still noted from before the claims were lost, each once; 0: none is. */
uint64_t token_cache_lost_one(struct token_cache *t);
/** Is it noted so? Nothing is granted of it until it is given back, to NONE. */
bool token_cache_is_lost(struct token_cache *t, uint64_t ino);

/* ---- grants ---- */

/** Does an answer with this grant count for the inode? No: from before a recall, or what was held before is lost and not given back yet. */
bool token_cache_takes(struct token_cache *t, uint64_t ino, uint64_t grant);
/** An answer says that we hold this. */
void token_cache_grant(struct token_cache *t, uint64_t ino, enum token_mode mode,
                       uint64_t grant);
/** The same with the lock: one answer may speak of many. */
void token_cache_grant_locked(struct token_cache *t, uint64_t ino, enum token_mode mode,
                              uint64_t grant);
/** ... or this range, besides those before. */
void token_cache_grant_range(struct token_cache *t, const struct held_range *range,
                             uint64_t grant);
/** ... and whether we are the only mount. */
void token_cache_note_others(struct token_cache *t, bool others);
bool token_cache_has_others(struct token_cache *t);
/** What we hold. */
enum token_mode token_cache_mode(struct token_cache *t, uint64_t ino);
/** Is it enough for that? */
bool token_cache_cover(struct token_cache *t, uint64_t ino,
                       const struct token_need *need);
/** From this byte on all up to there may be read; UINT64_MAX: to the end. */
uint64_t token_cache_readable_to(struct token_cache *t, uint64_t ino, uint64_t from);
/** The ranges of RANGES, as they lie there; NULL: none. For checks: nothing may be under way. */
const struct spans *token_cache_ranges(struct token_cache *t, uint64_t ino);

/* ---- what the kernel is told ---- */

/** From here until token_cache_unlock() no recall begins: ask, and answer the kernel, between the two. */
void token_cache_lock(struct token_cache *t);
void token_cache_unlock(struct token_cache *t);
/** With the lock: what we hold. */
enum token_mode token_cache_mode_locked(struct token_cache *t, uint64_t ino);
/** With the lock: may the kernel keep the attributes that came with this grant? Notes that it does. */
bool token_cache_tell_attr(struct token_cache *t, uint64_t ino, uint64_t grant);
/** With the lock: the same of a name, or that it is not there, by a grant of its directory. */
bool token_cache_tell_name(struct token_cache *t, uint64_t dir, const char *name,
                           bool is_dir, uint64_t grant);
/**
 * With the lock: may the kernel keep the listing that it is about to read? *kept: it may go on with the one that it has.
 */
bool token_cache_tell_listing(struct token_cache *t, uint64_t dir, bool *kept);
/** The name is gone, by our own doing: the kernel knows. Was it told? changes: token_cache_changes(), before exportd was asked to remove it. */
bool token_cache_name_gone(struct token_cache *t, uint64_t dir, const char *name,
                           uint64_t changes);

/* Part of a listing. */
struct listed_names {
    uint64_t dir;
    uint64_t grant; /* that came with it */
    uint64_t after,
        to; /* cookies: all that are behind `after`, up to this one; after 0: from the start */
    bool end;         /* none is behind `to` */
    uint64_t changes; /* token_cache_changes(), before exportd was asked */
    size_t n;
    const struct listed_name {
        const char *name; /* without a zero byte */
        size_t len;
    } *names;
};
/**
 * Which names are in a directory is known once it was made here, or listed from its start to its end, under one token. What
 * is noted then may be more than is there, never less: a name is noted before exportd is asked to make it, again when it was made, and
 * goes when exportd, asked since then, has said that it is gone. With the lock, an answer with this grant made the directory.
 */
void token_cache_dir_is_new(struct token_cache *t, uint64_t dir, uint64_t grant);
/** With the lock: part of a listing came. */
void token_cache_names_listed(struct token_cache *t, const struct listed_names *l);
/** exportd is going to be asked to put this name there, or has done so. */
void token_cache_name_comes(struct token_cache *t, uint64_t dir, const char *name);
/** With the lock: is it certain that there is no such name? *grant: of the directory, to tell the kernel by. */
bool token_cache_name_absent(struct token_cache *t, uint64_t dir, const char *name,
                             uint64_t *grant);

/*
 * Attributes for LOOKUPs to come: of a directory in which names were looked up that we knew nothing of, part of the listing is asked for, the more the more
 * of it turn out to be wanted.
 */
struct prefetch_answer {
    uint64_t dir;
    uint64_t after; /* cookie */
    unsigned n;     /* entries to ask for */
};
/** With the lock: another name was looked up in vain. Shall part of the listing be asked for? Then token_cache_prefetch_came() is to follow. */
bool token_cache_prefetch_next(struct token_cache *t, uint64_t dir,
                               struct prefetch_answer *out);
/** With the lock: it came, or not. next: the cookie where the next part begins, 0: at the start. */
void token_cache_prefetch_came(struct token_cache *t, const struct prefetch_answer *a,
                               uint64_t next);
/** With the lock: keep what came with it of a name, with the grant and from when `changes` was, as token_cache_keep_attr() does. */
void token_cache_keep_prefetched(struct token_cache *t, uint64_t dir,
                                 const struct listed_name *name,
                                 const struct md_attr *attr, uint64_t grant,
                                 uint64_t changes);
/** With the lock: is it there, and still good? It is good for one LOOKUP, then it is forgotten. */
bool token_cache_take_prefetched(struct token_cache *t, uint64_t dir, const char *name,
                                 struct md_attr *out, uint64_t *grant);

/** By our own doing the name is not that of the same inode any more, or not there: what the kernel believes of it is. Was it told? */
bool token_cache_name_moved(struct token_cache *t, uint64_t dir, const char *name);

/** Our changes so far, of all inodes: to be noted before exportd is asked for attributes that may be kept. */
uint64_t token_cache_changes(struct token_cache *t);
/**
 * With the lock: keep these attributes for the question that the kernel will ask next, with their grant. Of a directory, and of a file that we have
 * EXCLUSIVE, for all that it will ask.
 * They hold all of our changes of the inode up to `changes`; if there was a later one, they are not kept.
 */
void token_cache_keep_attr(struct token_cache *t, const struct md_attr *attr,
                           uint64_t grant, uint64_t changes);
/** They are, if still good: then they are forgotten, if for one question. */
bool token_cache_take_attr(struct token_cache *t, uint64_t ino, struct md_attr *out,
                           uint64_t *grant);
/** Notes that data of the file went into the kernel's pages by the token. */
void tokens_note_data(struct token_cache *t, uint64_t ino);
/** Returns true if the kernel may have data of the file in its pages by the token. */
bool tokens_have_data(struct token_cache *t, uint64_t ino);
/** Sets the access time in kept attributes, because a read here has moved it. */
void tokens_note_atime(struct token_cache *t, uint64_t ino, wide_ns atime_ns);
/**
 * We have changed the inode: what is kept of it, also its listing, is old. changes: when exportd was asked to. Returns what
 * attributes of right after that change are to be kept with: the new token_cache_changes(), or `changes` when they are not the newest.
 */
uint64_t token_cache_forget_attr(struct token_cache *t, uint64_t ino, uint64_t changes);

/* ---- extended attributes ---- */

/*
 * Which classes of them an inode has comes with its attributes, small ones stay once they were read, and both are good as long as
 * its token: SHARED, or more. Names are as in getxattr(2); "" is the list of all names, each with its zero byte.
 */
struct known_xattr {
    bool is_there;
    size_t len;
    uint8_t value[XATTR_CACHED_MAX];
};
/** With the lock: an answer with this grant told of the classes (XattrBits), as token_cache_keep_attr(). */
void token_cache_note_xattrs(struct token_cache *t, uint64_t ino, uint32_t classes,
                             uint64_t grant, uint64_t changes);
/** With the lock: it told of this one, or that there is none. */
void token_cache_keep_xattr(struct token_cache *t, uint64_t ino, const char *name,
                            const struct cached_xattr *x, uint64_t grant,
                            uint64_t changes);
/** Is it known, or that it is not there? */
bool token_cache_find_xattr(struct token_cache *t, uint64_t ino, const char *name,
                            struct known_xattr *out);
/**
 * We are about to have exportd change them (begins), or it has done so, or not: between the two nothing is known, since another mount may
 * see the change before we hear that it was made.
 */
void token_cache_xattrs_change(struct token_cache *t, uint64_t ino, bool begins);

/* ---- giving back ---- */

/** The kernel is told nothing more that only a mode above `keep` allows. */
void token_cache_recall(struct token_cache *t, uint64_t ino, enum token_mode keep);
/** The names of a directory that the kernel was told; owned by the caller from now on. None is noted any more. */
struct told_name *token_cache_take_names(struct token_cache *t, uint64_t dir);
/** The same, and they stay noted. */
struct told_name *token_cache_copy_names(struct token_cache *t, uint64_t dir);
void told_names_free(struct told_name *names);
/** With the lock: the kernel believes no name any more that it was told in the directories that is_old says. */
void token_cache_forget_names(struct token_cache *t,
                              bool (*is_old)(void *arg, uint64_t dir), void *arg);
/** Now we hold no more than keep, by no grant up to `grant`. The number to tell exportd. */
uint64_t token_cache_gave_back(struct token_cache *t, uint64_t ino, enum token_mode keep,
                               uint64_t grant);
/** How many exportd gives unasked, from now on; 0: it does not say. */
void token_cache_set_max(struct token_cache *t, size_t max);
/* One to be given back. */
struct token_surplus {
    uint64_t ino;
    bool is_plain; /* see token_cache_recall_plain() */
};
/**
 * Those not used of late are to be given back from three quarters of the limit on, until five eighths are left; up to max of
 * them, 0: none now. They count as given back, and are not offered again; it may be asked again when some are.
 */
size_t token_cache_surplus(struct token_cache *t, struct token_surplus *out, size_t max);
/** As token_cache_recall(), to NONE, if the kernel keeps no more than attributes by it. Else false, and nothing is done. */
bool token_cache_recall_plain(struct token_cache *t, uint64_t ino);
/**
 * An inode has lost its last name and is not open here. While we are alone nobody can change it any more, so its token is forgotten
 * and exportd, which does the same, is not told. Else another mount may have it open: then it is the first to be surplus.
 */
void token_cache_inode_gone(struct token_cache *t, uint64_t ino);

#endif
